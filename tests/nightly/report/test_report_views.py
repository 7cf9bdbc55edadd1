"""What the reader can do with the charts: subtract a step or a run, put steps to scale, pick out a layer, take data."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from browser import Watched
from report_browser import STEPS, ready, state
from synthetic_families import make_everything
from synthetic_runs import fill, make_rows

from repdyn.report import write_report
from repdyn.tables.frames import grid, layer_mean, measurements

pytestmark = pytest.mark.slow


METRICS = ("anisotropy", "two_nn", "token_rank")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A deep run of three metrics, and a shallow one of other steps."""
    deep = make_everything(run="deep", steps=STEPS, n_blocks=4, metrics=METRICS)
    shallow = make_rows(run="shallow", steps=(1, 16, 64, 128), n_blocks=2, dimension=lambda step, depth: 20 + depth)
    return fill(tmp_path_factory.mktemp("views"), deep, shallow)


@pytest.fixture(scope="module")
def path(store) -> Path:
    return write_report(store, store.path / "report.html")


@pytest.fixture
def opened(browser: Watched, path: Path) -> Callable[[str], Watched]:
    def open_with(chosen: str) -> Watched:
        browser.page.goto("about:blank")
        browser.page.goto(f"{path.as_uri()}#run=deep&{chosen}")
        ready(browser)
        return browser

    return open_with


def values(store, run: str, metric: str = "two_nn") -> np.ndarray:
    return grid(measurements(store.to_pandas(run)), metric, "all").to_numpy()


def drawn(watched: Watched, plot: str, what: str = "data.at(-1).y") -> np.ndarray:
    found = watched.page.evaluate(
        f"JSON.parse(JSON.stringify(document.getElementById('{plot}').{what}, (_, value) =>"
        " ArrayBuffer.isView(value) ? Array.from(value) : Number.isNaN(value) ? null : value))"
    )
    return np.array(found, float)


def test_a_pinned_step_is_drawn_and_can_be_subtracted(opened, store):
    watched = opened("metric=two_nn&subset=all&step=16")
    watched.page.locator("#pin").click()
    assert watched.page.locator("#pin").inner_text() == "Unpin step 16"
    watched.page.locator("#step").press("End")
    pinned = drawn(watched, "profile", "data.find((t) => t.name?.endsWith('pinned')).y")
    wanted = values(store, "deep")
    np.testing.assert_allclose(pinned, wanted[:, 3], rtol=1e-6)
    watched.page.locator("#subtract").check()
    np.testing.assert_allclose(drawn(watched, "profile"), wanted[:, 4] - wanted[:, 3], atol=1e-5)
    changes = drawn(watched, "heatmap", "data[0].z")
    np.testing.assert_allclose(changes, wanted - wanted[:, [3]], atol=1e-5)
    np.testing.assert_allclose(drawn(watched, "lines", "data.map((t) => t.y)"), changes)
    assert {key: state(watched)[key] for key in ("pin", "subtract")} == {"pin": "16", "subtract": "yes"}
    watched.page.locator("#pin").click()
    np.testing.assert_allclose(drawn(watched, "profile"), wanted[:, 4], rtol=1e-6)
    assert watched.page.locator("#subtract").is_hidden()
    assert watched.errors == []


def test_a_metric_is_downloaded_as_a_table(opened, store):
    watched = opened("metric=two_nn&subset=all")
    with watched.page.expect_download() as downloading:
        watched.page.locator("#download").click()
    assert downloading.value.suggested_filename == "deep_two_nn_all.csv"
    rows = list(csv.DictReader(Path(downloading.value.path()).read_text().splitlines()))
    assert [(int(row["step"]), int(row["layer"])) for row in rows] == [(s, layer) for s in STEPS for layer in range(5)]
    np.testing.assert_allclose([float(row["value"]) for row in rows], values(store, "deep").T.ravel(), rtol=1e-6)
    assert watched.errors == []


def test_runs_are_shown_as_differences_from_a_baseline(opened, store):
    watched = opened("metric=two_nn&subset=all")
    watched.page.locator("#baseline").select_option("deep")
    deep, shallow = values(store, "deep"), values(store, "shallow")
    number = watched.page.evaluate(
        "[...document.getElementById('run').options].findIndex((o) => o.value === 'shallow')"
    )
    trace = f"data.find((t) => t.meta?.run === {number} && t.meta.role === 'value')"
    # blocks 0, 2 and 4 of four are at the depths of blocks 0, 1 and 2 of two
    np.testing.assert_allclose(
        drawn(watched, "profiles", f"{trace}.y"), shallow[:, -1] - deep[[0, 2, 4], -1], atol=1e-4
    )
    means = [layer_mean(measurements(store.to_pandas(run)), "two_nn", "all").mean for run in ("shallow", "deep")]
    differences = drawn(watched, "training", f"{trace}.y")
    np.testing.assert_allclose(differences, (means[0] - means[1])[means[0].index], atol=1e-4)
    assert np.isnan(differences[-1])
    cells = drawn(watched, "heatmaps", f"data.find((t) => t.meta.member === {number}).z")
    np.testing.assert_allclose(cells[:, 1], shallow[:, 1] - deep[[0, 2, 4], 3], atol=1e-4)
    assert np.isnan(cells[:, -1]).all()
    watched.page.locator("#own-colours").check()
    assert watched.page.evaluate("document.getElementById('heatmaps').data.every((t) => t.coloraxis === undefined)")
    watched.page.locator("#baseline").select_option("")
    np.testing.assert_allclose(drawn(watched, "profiles", f"{trace}.y"), shallow[:, -1], atol=1e-4)
    assert watched.errors == []


def test_nothing_is_cut_off_on_paper(browser: Watched, path: Path):
    browser.page.set_viewport_size({"width": 688, "height": 970})
    browser.page.emulate_media(media="print")
    browser.page.goto(path.as_uri())
    ready(browser)
    browser.page.evaluate("onbeforeprint()")
    wide = "[...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1"
    shown = "getComputedStyle(e).visibility === 'visible' && !e.closest('.visually-hidden, svg, .js-plotly-plot'))"
    assert browser.page.evaluate(f"{wide} && {shown}.map((e) => e.outerHTML.slice(0, 80))") == []
    assert browser.page.locator("#provenance").is_visible()
    browser.page.emulate_media(media="screen")
    browser.page.set_viewport_size({"width": 1280, "height": 720})

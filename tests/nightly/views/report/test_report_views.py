"""What the reader can do with the charts: subtract a step or a run, put steps to scale, pick out a
layer, take data.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from browser import Watched
from report_browser import STEPS, ready, state
from synthetic_families import make_everything
from synthetic_runs import fill, make_rows

from repdyn.views.report import write_report
from repdyn.views.tables.frames import grid, measurements
from repdyn.views.tables.series import metric_series

METRICS = ("anisotropy", "two_nn", "token_rank")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A deep run of three metrics, and a shallow one of other steps."""
    deep = make_everything(run="deep", steps=STEPS, n_blocks=4, metrics=METRICS)
    shallow = make_rows(
        run="shallow", steps=(1, 16, 64, 128), n_blocks=2, dimension=lambda step, depth: 20 + depth
    )
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
    values = watched.page.evaluate(
        f"JSON.parse(JSON.stringify(document.getElementById('{plot}').{what}, (_, value) =>"
        " ArrayBuffer.isView(value) ? Array.from(value) : Number.isNaN(value) ? null : value))"
    )
    return np.array(values, float)


def test_a_page_with_an_early_alert_opens_at_the_last_step(browser, tmp_path):
    """It opened at the step of the alert, which looked like the end of the training."""
    rows = make_rows(steps=STEPS, dimension=lambda step, depth: 2.0 if step == STEPS[1] else 9.0)
    path = write_report(fill(tmp_path / "store", rows), tmp_path / "report.html")
    browser.page.goto("about:blank")
    browser.page.goto(path.as_uri())
    ready(browser)
    shown = browser.page.locator("#step-text").inner_text()
    assert shown.startswith(f"step {STEPS[-1]}")


def test_a_pinned_step_is_drawn_and_can_be_subtracted(opened, store):
    watched = opened("metric=two_nn&subset=all&step=16")
    watched.page.locator("#pin").click()
    assert watched.page.locator("#pin").inner_text() == "Unpin step 16"
    watched.page.locator("#step").press("End")
    pinned = drawn(watched, "profile", "data.find((t) => t.name?.endsWith('pinned')).y")
    expected = values(store, "deep")
    np.testing.assert_allclose(pinned, expected[:, 3], rtol=1e-6)
    watched.page.locator("#subtract").check()
    np.testing.assert_allclose(
        drawn(watched, "profile"), expected[:, 4] - expected[:, 3], atol=1e-5
    )
    changes = drawn(watched, "heatmap", "data[0].z")
    np.testing.assert_allclose(changes, expected - expected[:, [3]], atol=1e-5)
    np.testing.assert_allclose(drawn(watched, "lines", "data.map((t) => t.y)"), changes)
    assert {key: state(watched)[key] for key in ("pin", "subtract")} == {
        "pin": "16",
        "subtract": "yes",
    }
    watched.page.locator("#pin").click()
    np.testing.assert_allclose(drawn(watched, "profile"), expected[:, 4], rtol=1e-6)
    assert watched.page.locator("#subtract").is_hidden()
    assert watched.errors == []


def test_a_difference_of_two_runs_has_the_interval_of_both(opened, store):
    watched = opened("metric=two_nn&subset=all")
    watched.page.locator("#baseline").select_option("shallow")
    series = {
        run: metric_series(measurements(store.to_pandas(run)))["two_nn", "all"]
        for run in ("deep", "shallow")
    }
    means = [one.layer_mean for one in series.values()]
    shared = [1, 16, 64]
    of_deep = "data.find((t) => t.meta?.role === 'value' && t.name === 'deep')"
    np.testing.assert_allclose(
        drawn(watched, "training", f"{of_deep}.y"), (means[0].mean - means[1].mean)[shared]
    )
    margins = np.hypot(*(mean.margin[shared] for mean in means))
    change = (means[0].mean - means[1].mean)[shared]
    for end, expected in (("low", change - margins), ("high", change + margins)):
        np.testing.assert_allclose(
            drawn(watched, "training", f"{of_deep}.meta.{end}"), expected, rtol=1e-5
        )
    assert drawn(watched, "training", "data.filter((t) => t.meta?.role === 'band').length") == 1
    assert watched.errors == []

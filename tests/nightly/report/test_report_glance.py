"""The top of the page: the status of each run, and statements that lead to the charts they are about."""

from pathlib import Path

import numpy as np
import pytest
from browser import Watched
from report_browser import ready, state
from synthetic_runs import fill, make_rows, make_scalar

from repdyn.report import write_report

STEPS = tuple(range(0, 120, 10))


def run(name, losses, dimension=lambda step, depth: 9 + depth, **more):
    rows = make_rows(run=name, steps=STEPS, n_blocks=4, dimension=dimension, loss=False, **more)
    return [*rows, *(make_scalar(step, loss, run=name) for step, loss in zip(STEPS, losses, strict=True))]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """A run that goes well, and one that fails after its dimension has halved in one layer."""
    folder = tmp_path_factory.mktemp("glance")
    well = run("well", np.linspace(5, 2, 12))
    failed = run(
        "failed",
        [*np.linspace(5, 2, 6), *np.linspace(2, 6, 6)],
        dimension=lambda step, depth: 2.0 if step >= 80 and depth == 0.5 else 9 + depth,
    )
    return write_report(fill(folder / "store", well, failed), folder / "report.html")


def test_the_page_opens_on_the_alert_of_the_run_that_failed(browser: Watched, path: Path):
    browser.page.goto(path.as_uri())
    ready(browser)
    assert {name: state(browser)[name] for name in ("run", "metric", "step")} == {
        "run": "failed",
        "metric": "two_nn",
        "step": "80",
    }
    charts = browser.page.locator("#charts").bounding_box()
    assert charts is not None
    assert charts["y"] < 720


def test_a_card_sets_the_charts_by_mouse_and_by_keyboard(browser: Watched, path: Path):
    browser.page.goto(f"{path.as_uri()}#run=failed&axis=steps&scale=linear")
    ready(browser)
    card = browser.page.locator("#glance .run-glance", has_text="well").locator(".card", has_text="Anisotropy").first
    for act in (lambda: card.click(), lambda: card.press("Enter")):
        browser.page.evaluate("delete document.documentElement.dataset.ready")
        act()
        ready(browser)
        chosen = state(browser)
        assert (chosen["run"], chosen["metric"], chosen["scale"]) == ("well", "anisotropy", "linear")
        browser.page.evaluate("location.hash = 'run=failed&scale=linear'")
    assert browser.errors == []
    assert browser.strangers == []


@pytest.mark.parametrize("width", [400, 1440])
def test_nothing_is_cut_off(browser: Watched, path: Path, width: int):
    browser.page.set_viewport_size({"width": width, "height": 900})
    browser.page.goto(path.as_uri())
    ready(browser)
    wide = "[...document.querySelectorAll('#glance, #glance :not(.visually-hidden)')].filter((e) => e.scrollWidth > e.clientWidth + 1"
    assert browser.page.evaluate(f"{wide} && getComputedStyle(e).display === 'block').length") == 0
    assert browser.page.evaluate("document.documentElement.scrollWidth") <= width
    browser.page.set_viewport_size({"width": 1280, "height": 720})

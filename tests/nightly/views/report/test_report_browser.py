"""The page in a real browser: it loads without an error or a request, and every control does what
it says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from browser import Watched
from report_browser import STEPS, ready, state
from synthetic_families import make_everything
from synthetic_runs import fill, make_finished, make_rows

from repdyn.utils.numbers import number_text, short_count
from repdyn.views.report import write_report
from repdyn.views.report.markup import asset
from repdyn.views.tables.frames import grid, measurements

SOME_NUMBERS = [0.0, 0.012345, -3.2e-5, 9.999e-5, 4.25, 999.4, 999.5, 3842.1, 1234567.0, 2e9]
TRAINING_RUNS = "[...new Set(document.getElementById('training').data.map((t) => t.meta.run))]"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two runs that train, of which one has an alert, and a finished model."""
    metrics = ("anisotropy", "two_nn", "token_rank", "attention_topic_gap")
    counted = [
        make_rows(run="small", steps=(step,), tokens_seen=1000 * step, n_blocks=4) for step in STEPS
    ]
    dented = make_everything(
        run="wide", steps=STEPS, n_blocks=4, metrics=metrics, n_heads=2, tokens_seen=None
    )
    sudden = make_rows(
        run="dented",
        steps=STEPS,
        n_blocks=4,
        dimension=lambda step, depth: 2.0 if step == 16 and depth == 0.5 else 9 + depth + step / 64,
    )
    runs = [row for rows in counted for row in rows], dented, sudden, make_finished()
    return fill(tmp_path_factory.mktemp("browser"), *runs)


def test_texts_round_as_everywhere(browser: Watched):
    """The page writes 5.782 where a statement says 5.78, or 33.4M tokens where an axis says 33M."""
    both = "values.map((value) => [number(value), shortCount(value)])"
    function = f"(values) => {{ {asset('numbers.js')} return {both}; }}"
    written = browser.page.evaluate(function, SOME_NUMBERS)
    assert written == [[number_text(value), short_count(value)] for value in SOME_NUMBERS]


@pytest.fixture(scope="module")
def path(store) -> Path:
    return write_report(store, store.path / "report.html", title="Three runs")


@pytest.fixture(scope="module")
def loaded(started_browser: Watched, path: Path) -> Watched:
    started_browser.page.goto(path.as_uri())
    ready(started_browser)
    return started_browser


@pytest.fixture
def opened(browser: Watched, loaded: Watched, path: Path) -> Iterator[Callable[[str], Watched]]:
    """The page with what stands in its address chosen, all else as at first."""
    calls = count()

    def open_with(chosen: str = "") -> Watched:
        if not loaded.page.url.startswith(path.as_uri()):
            loaded.page.goto(path.as_uri())
            ready(loaded)
        loaded.page.evaluate("delete document.documentElement.dataset.ready")
        loaded.page.evaluate(
            "chosen => { location.hash = chosen; }", f"{chosen}&call={next(calls)}"
        )
        ready(loaded)
        return loaded

    yield open_with
    assert loaded.errors == []
    assert loaded.strangers == []


def choose(watched: Watched, control: str, label: str) -> None:
    watched.page.locator(f"#{control}").select_option(label=label)


def trace(watched: Watched, plot: str, role: str, of: str = "y") -> list[float]:
    return watched.page.evaluate(
        f"Array.from(document.getElementById('{plot}').data.find((t) => t.meta?.role === "
        f"'{role}').{of})"
    )


def profiles(store, run: str, metric: str = "two_nn", subset: str = "all"):
    return grid(measurements(store.to_pandas(run)), metric, subset)


def run_of(watched: Watched, label: str) -> None:
    choose(watched, "run", label)


def test_the_page_draws_its_charts_without_network(opened):
    page = opened().page
    for plot in ("course", "heatmap", "lines", "profile", "profiles", "training", "heatmaps"):
        assert page.locator(f"#{plot} svg.main-svg").first.is_visible(), plot
        words = page.locator(f"#{plot}").get_attribute("aria-label")
        assert re.search(r"lowest .* highest|values from .* to |at 5 steps", words), words
    assert page.title() == "Three runs"
    assert page.locator("#error").is_hidden()
    buttons = page.locator(".modebar-btn")
    assert {button.get_attribute("data-title") for button in buttons.all()} == {
        "Download plot as a PNG"
    }
    assert {button.get_attribute("tabindex") for button in buttons.all()} == {"-1"}


def test_the_slider_moves_the_profile_and_says_where_it_is(opened, store):
    watched = opened("metric=two_nn&subset=all")
    run_of(watched, "small")
    values = profiles(store, "small")
    np.testing.assert_allclose(trace(watched, "profile", "value"), values[64], rtol=1e-6)
    slider = watched.page.locator("#step")
    assert slider.get_attribute("aria-valuetext") == "step 64, 64k tokens (5 of 5)"
    slider.focus()
    for _ in range(2):
        watched.page.keyboard.press("ArrowLeft")
    np.testing.assert_allclose(trace(watched, "profile", "value"), values[4], rtol=1e-6)
    # the interval of 8 batches with a standard deviation of 1%: t of 7 degrees of freedom times
    # sqrt(2 / 8)
    upper = trace(watched, "profile", "band")[: len(values)]
    np.testing.assert_allclose(upper, values[4] * (1 + 0.01 * 2.364624 / 2), rtol=1e-6)
    assert slider.get_attribute("aria-valuetext") == "step 4, 4k tokens (3 of 5)"
    assert (
        watched.page.locator("#step-text").text_content().startswith("step 4, 4k tokens: lowest ")
    )
    assert state(watched)["step"] == "4"
    watched.page.wait_for_timeout(300)
    assert watched.page.evaluate("document.getElementById('heatmap').layout.shapes[0].x0") == 1.5


def test_metric_and_tokens_can_be_chosen(opened, store):
    watched = opened("metric=two_nn&subset=all")
    run_of(watched, "wide")
    choose(watched, "metric", "Anisotropy")
    choose(watched, "subset", "without first positions and special tokens")
    values = profiles(store, "wide", "anisotropy", "no_sink")
    np.testing.assert_allclose(trace(watched, "profile", "value"), values[64], rtol=1e-6)
    assert (
        watched.page.locator("#profile-caption")
        .inner_text()
        .startswith("wide: Anisotropy, no sinks")
    )
    assert (
        watched.page.locator("#announcement").text_content() == "Showing wide: Anisotropy, no sinks"
    )
    # one that was not measured without sinks
    choose(watched, "metric", "Topic gap of the attention")
    assert state(watched)["subset"] == "all"
    assert watched.page.locator("#heads svg.main-svg").first.is_visible()
    watched.page.locator("#step").focus()
    watched.page.keyboard.press("Home")
    assert "by attention head. step 0: values from " in watched.page.locator(
        "#heads"
    ).get_attribute("aria-label")


def test_the_course_counts_steps_or_tokens_on_a_log_or_linear_axis(opened):
    watched = opened()
    run_of(watched, "small")
    steps = trace(watched, "course", "value", "x")
    assert steps[1:] == [1, 4, 16, 64]
    assert 0 < steps[0] < 1
    watched.page.locator("#axis-tokens").check()
    assert trace(watched, "course", "value", "x")[1:] == [1000, 4000, 16000, 64000]
    watched.page.locator("#scale-linear").check()
    assert trace(watched, "course", "value", "x") == [0, 1000, 4000, 16000, 64000]
    assert watched.page.evaluate("document.getElementById('course').layout.xaxis.type") == "linear"
    # side by side: those that know theirs
    assert watched.page.evaluate(TRAINING_RUNS) == [1]
    assert (
        "left out, their tokens are not known: "
        in watched.page.locator("#training-caption").inner_text()
    )
    run_of(watched, "dented")
    assert watched.page.locator("#axis-tokens").is_disabled()
    assert watched.page.locator("#axis-steps").is_checked()
    assert trace(watched, "course", "value", "x") == [0, 1, 4, 16, 64]
    assert len(watched.page.evaluate(TRAINING_RUNS)) == 3
    run_of(watched, "small")
    assert watched.page.locator("#axis-tokens").is_checked()


def test_everything_is_reached_by_keyboard_in_the_order_of_the_page(opened):
    watched = opened()
    watched.page.reload()
    ready(watched)
    watched.page.keyboard.press("Tab")
    assert watched.page.evaluate("document.activeElement.className") == "skip"
    watched.page.keyboard.press("Enter")
    reached = []
    for _ in range(12):
        watched.page.keyboard.press("Tab")
        reached.append(watched.page.evaluate("document.activeElement.id"))
    assert [name for name in reached if name][:8] == [
        *("run", "metric", "subset", "axis-steps", "scale-log", "alerts", "play", "step")
    ]
    watched.page.locator("#play").focus()
    watched.page.keyboard.press("Space")
    assert watched.page.locator("#play").get_attribute("aria-pressed") == "true"

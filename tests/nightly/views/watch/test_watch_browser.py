"""The table of runs and the page of a run in a real browser: both change when something is
measured.
"""

from __future__ import annotations

import pytest
from browser import watched_page  # noqa: F401
from synthetic_runs import fill, make_finished, make_rows, make_scalar

pytestmark = pytest.mark.process


STEPS = (0, 10, 20, 30, 40, 50, 60, 70)


def opened(watched, address):
    watched.page.goto(address)
    watched.page.locator("html[data-ready=yes]").wait_for(state="attached")


def test_a_measurement_changes_the_table(watched_page, serve, tmp_path):  # noqa: F811
    fill(tmp_path / "a" / "repdyn", make_rows(run="first", steps=STEPS, n_blocks=2))
    fill(tmp_path / "b", make_finished("lab/bert", n_blocks=2))
    page = watched_page.page
    opened(watched_page, serve(tmp_path))
    assert "token" not in page.url
    first = page.locator("tr", has=page.get_by_role("link", name="first"))
    first.locator(".status.healthy").wait_for()
    assert first.locator("[data-name=Step]").inner_text() == "70"
    bert = page.locator("tr", has=page.get_by_role("link", name="lab/bert"))
    bert.locator("[data-name=Step]", has_text="finished model").wait_for()
    page.evaluate("window.same = true")
    # the reader's checkbox and focus stay
    first.get_by_role("checkbox").focus()
    page.keyboard.press("Space")
    fill(tmp_path / "a" / "repdyn", make_rows(run="first", steps=(80,), n_blocks=2))
    first.locator("[data-name=Step]", has_text="80").wait_for()
    assert first.get_by_role("checkbox").is_checked()
    assert page.evaluate("document.activeElement.ariaLabel") == "compare first"
    # a new run, and one that fails
    losses = [2.0, 1.8, 1.5, 1.2, 1.0, 3.0, 6.0, 9.0]
    scalars = [
        make_scalar(step, loss, run="diverging") for step, loss in zip(STEPS, losses, strict=True)
    ]
    fill(tmp_path / "c", make_rows(run="diverging", steps=STEPS, n_blocks=2, loss=False) + scalars)
    page.locator("tr", has=page.get_by_role("link", name="diverging")).locator(
        ".status.failed"
    ).wait_for(timeout=30_000)
    assert page.locator("tbody tr").first.get_by_role("link").inner_text() == "diverging"
    assert page.title() == "Runs (1 failed)"
    page.get_by_role("button", name="Run", exact=True).press("Enter")
    assert page.locator("tbody a").all_inner_texts() == ["diverging", "first", "lab/bert"]
    page.get_by_label("Filter").fill("bert")
    assert page.locator("tbody tr:visible").count() == 1
    assert page.evaluate("window.same") is True
    assert watched_page.errors == []
    assert watched_page.strangers == []


def test_a_measurement_changes_the_page_of_its_run_and_nothing_that_was_chosen(
    watched_page,  # noqa: F811
    serve,
    tmp_path,
):
    fill(
        tmp_path,
        make_rows(run="first", steps=STEPS, n_blocks=2),
        make_rows(run="second", steps=STEPS, n_blocks=2),
    )
    page = watched_page.page
    opened(watched_page, serve(tmp_path))
    page.locator("tbody tr:nth-child(2)").wait_for()
    for box in page.get_by_role("checkbox").all():
        box.check()
    page.get_by_role("button", name="Compare 2 runs").click()
    page.locator("html[data-ready=yes] #comparison:not([hidden])").wait_for()
    page.get_by_role("link", name="All runs").click()
    page.get_by_role("link", name="first").click()
    page.locator("html[data-ready=yes] #metric").wait_for()
    page.locator("#metric").select_option("two_nn")
    page.locator("#as-table summary").click()
    page.evaluate("window.same = true; scrollTo({ top: 500, behavior: 'instant' })")
    fill(tmp_path, make_rows(run="first", steps=(80,), n_blocks=2))
    page.locator("#step[max='8']").wait_for(state="attached")
    assert page.locator("#metric").input_value() == "two_nn"
    assert page.locator("#step-text").inner_text().startswith("step 80")
    assert page.locator("#as-table").get_attribute("open") is not None
    assert page.evaluate("scrollY") == pytest.approx(500, abs=2)
    assert page.locator("#live").inner_text() == "Live."
    assert "9 steps, 0 to 80" in page.locator("#glance").inner_text()
    page.locator("#hold").click()
    fill(tmp_path, make_rows(run="first", steps=(90,), n_blocks=2))
    page.wait_for_timeout(800)
    assert page.locator("#step").get_attribute("max") == "8"
    page.locator("#hold").click()
    page.locator("#step[max='9']").wait_for(state="attached")
    assert page.evaluate("window.same") is True
    assert watched_page.errors == []
    assert watched_page.strangers == []

"""The page of a running training in a real browser, and a page with hostile names."""

from __future__ import annotations

import json
import re

import pytest
from report_browser import STEPS, ready, state, until
from synthetic_runs import fill, make_rows

from repdyn.views.report import write_report


def test_a_live_page_shows_the_next_step_and_keeps_what_was_chosen(browser, tmp_path):
    rows = make_rows(run="live", steps=STEPS, n_blocks=2)
    path = write_report(fill(tmp_path, rows), tmp_path / "report.html", refresh_seconds=1.0)
    browser.page.goto(f"{path.as_uri()}#metric=two_nn&subset=all&theme=dark&scale=linear")
    ready(browser)
    # at once: it soon loads itself anew
    browser.page.evaluate(
        "document.getElementById('scale-linear').focus(); "
        "document.getElementById('as-table').open = true;"
        "scrollTo({ top: 700, behavior: 'instant' })"
    )
    assert re.fullmatch(
        r"Live, written \d\d:\d\d:\d\d UTC\.", browser.page.locator("#live").inner_text()
    )
    whole = write_report(
        fill(tmp_path, make_rows(run="live", steps=(128,), n_blocks=2)),
        tmp_path / "next.html",
        refresh_seconds=1.0,
    )
    # met half copied
    path.write_bytes(whole.read_bytes()[:-2000])
    until(browser, "body:not(:has(#end)) noscript")
    whole.replace(path)
    until(browser, "#step[max='5']")
    ready(browser)
    kept = {"metric": "two_nn", "subset": "all", "theme": "dark", "scale": "linear", "step": "last"}
    assert state(browser).items() >= kept.items()
    assert browser.page.locator("#step").input_value() == "5"
    assert browser.page.evaluate("document.activeElement.id") == "scale-linear"
    assert browser.page.locator("#as-table").get_attribute("open") is not None
    assert browser.page.evaluate("scrollY") == pytest.approx(700, abs=2)
    # the last word of a run that has ended
    write_report(fill(tmp_path, rows), path)
    until(browser, "html[data-ready=yes] #hold[hidden]")
    assert browser.page.locator("#live").is_hidden()
    assert browser.errors == []


def test_nothing_written_by_others_runs(browser, tmp_path):
    evil = (
        "</script><img src=x "
        "onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
    )
    rows = make_rows(run=evil, model=evil, steps=STEPS, n_blocks=2)
    path = write_report(fill(tmp_path, rows), tmp_path / "report.html", title=evil)
    browser.page.goto(path.as_uri())
    ready(browser)
    assert browser.page.title() == evil
    assert browser.page.locator("#run option").inner_text() == json.loads(json.dumps(evil))
    assert browser.page.locator("img").count() == 0
    assert browser.errors == []

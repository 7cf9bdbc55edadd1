"""Seeds of one model on the page in a real browser."""

from report_browser import ready
from synthetic_runs import fill, make_published

from repdyn.report.write import write_report

SHOWN = "document.getElementById('profiles').data.filter((t) => CONDITION).length"


THIN, OF_MEAN = "t.meta.run !== undefined && !t.meta.role", "t.meta.seeds"


def test_the_mean_of_seeds_stays_until_all_are_taken_out(browser, tmp_path):
    runs = [make_published(f"lab/m-seed{n}", steps=(0, 8), n_blocks=2, probe="0" * 16) for n in (1, 2, 3)]
    store = fill(tmp_path / "store", *runs)
    page = browser.page
    page.goto(f"{write_report(store, tmp_path / 'page.html').as_uri()}#metric=two_nn&subset=all")
    ready(browser)
    counts = [SHOWN.replace("CONDITION", which) for which in (THIN, OF_MEAN)]
    # a line, and two edges of a band
    assert [page.evaluate(count) for count in counts] == [3, 3]
    page.locator("#run-selection summary").click()
    boxes = page.locator("#compared-runs input")
    boxes.nth(0).uncheck()
    assert [page.evaluate(count) for count in counts] == [2, 3]
    boxes.nth(1).uncheck()
    boxes.nth(2).uncheck()
    assert [page.evaluate(count) for count in counts] == [0, 0]
    assert not browser.errors

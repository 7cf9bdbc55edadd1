"""The page that follows a run: there while it goes on, at a bounded cost, and final when it ends."""

import re
from contextlib import suppress

import pytest
from lightning.pytorch.loggers import WandbLogger
from small import HandWritten

from repdyn import Tracker
from repdyn.tracking import run_views as showing
from repdyn.tracking.run_views import REFRESH_SECONDS, RunViews


@pytest.fixture
def pages(monkeypatch):
    """What is written, in order, by a clock that stands still."""
    written = []
    monkeypatch.setattr("repdyn.report.write_report", lambda store, path, **given: written.append((path, given)))
    monkeypatch.setattr("repdyn.publish.results.show_run", lambda *_, **given: written.append(given))
    return written


@pytest.mark.slow
def test_a_run_is_followed_and_then_left_as_it_is(tmp_path, small_probe, pages, monkeypatch):
    monkeypatch.setattr(showing.time, "perf_counter", lambda: 0.0)
    with Tracker(HandWritten(), small_probe, schedule=1, store=tmp_path / "mine") as tracker:
        tracker.step()
    page = tmp_path / "mine" / "report.html"
    live = {"refresh_seconds": REFRESH_SECONDS}
    final = {}
    assert pages[:3] == [(page, live), (page, live), (page, final)]
    assert pages[3]["report"] == page


@pytest.mark.parametrize("fails", [False, True])
def test_pages_take_a_small_share_of_the_time(tmp_path, pages, monkeypatch, fails):
    clock = [100.0]

    def slow(*_, **__):
        clock[0] += 3.0
        pages.append(clock[0])
        if fails:
            raise OSError("no place")

    monkeypatch.setattr("repdyn.report.write_report", slow)
    monkeypatch.setattr(showing.time, "perf_counter", lambda: clock[0])
    from repdyn import open_store

    shown = RunViews(open_store(tmp_path), tuple, live=True)
    for _ in range(1000):
        with suppress(OSError):
            shown.refresh("mine", "3f2a")
        clock[0] += 1.0
    assert 3.0 * len(pages) <= showing.MAX_TIME_SHARE * (clock[0] - 100.0) + 3.0
    assert len(pages) > 5


@pytest.mark.slow
def test_without_a_page(tmp_path, small_probe, pages):
    with Tracker(HandWritten(), small_probe, schedule=1, store=tmp_path / "mine", report=False) as tracker:
        tracker.step()
    (shown,) = pages
    assert shown["report"] is None


@pytest.mark.slow
def test_a_page_that_cannot_be_written_costs_nothing_else(tmp_path, small_probe, pages, monkeypatch, caplog):
    monkeypatch.setattr("repdyn.report.write_report", lambda *_, **__: 1 / 0)
    with Tracker(HandWritten(), small_probe, schedule=1, store=tmp_path / "mine") as tracker:
        tracker.step()
    assert tracker.store.steps("mine") == [0, 1]
    assert len(pages) == 1  # the summary
    failures = [record.message for record in caplog.records if "ZeroDivisionError" in record.message]
    assert [re.sub(" failed.*", "", text, flags=re.DOTALL) for text in failures] == ["drawing at step 0"]
    with pytest.raises(ZeroDivisionError):
        Tracker(HandWritten(), small_probe, store=tmp_path / "other", on_error="raise").__enter__()


@pytest.mark.slow
def test_the_real_page_is_there_from_the_first_measurement_on(tmp_path, small_probe, monkeypatch):
    monkeypatch.setattr("repdyn.publish.results.show_run", lambda *_, **__: None)
    page = tmp_path / "mine" / "report.html"
    with Tracker(HandWritten(), small_probe, schedule=1, store=tmp_path / "mine"):
        live = page.read_text()
    assert live.startswith("<!DOCTYPE html>")
    assert page.read_text() != live


@pytest.mark.slow
def test_wandb_gets_tables_and_page_at_the_end(tmp_path, small_probe, monkeypatch):
    monkeypatch.setattr("repdyn.publish.results.show_run", lambda *_, **__: None)
    logged = {}

    class Experiment:
        def define_metric(self, *_, **__):
            pass

        def log(self, values):
            logged.update(values)

    logger = WandbLogger.__new__(WandbLogger)
    logger._experiment = Experiment()
    with Tracker(HandWritten(), small_probe, schedule=1, store=tmp_path / "mine", loggers=[logger]) as tracker:
        tracker.step()
    assert {"tables/two_nn_all", "tables/alerts", "tables/findings", "report"} <= set(logged)
    table = logged["tables/two_nn_all"]
    frame = tracker.store.to_pandas().query("metric == 'two_nn' and layer.notna()")
    assert len(table.data) == len(frame) == 8
    place = table.columns.index("value")
    assert sorted(row[place] for row in table.data) == sorted(frame["value"])
    assert {"interactive/profile_two_nn_all", "interactive/heatmap_two_nn_all", "interactive/means_two_nn_all"} <= set(
        logged
    )

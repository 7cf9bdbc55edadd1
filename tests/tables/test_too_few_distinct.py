"""A value on too few distinct vectors is missing, with the reason, in every view; in stores of earlier versions too."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from publish.test_media import Experiment, logger_of
from report.pages import read_page
from rich.console import Console
from synthetic_runs import NO_DESIGN, fill, make_row
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from repdyn import open_store
from repdyn.alerts import RULES, find_alerts
from repdyn.alerts.series import courses
from repdyn.figures.run import heatmap, mean_over_layers, profile_over_depth
from repdyn.publish.export import export_run
from repdyn.publish.keys import logged_values
from repdyn.publish.media import log_stored_media
from repdyn.report import figures as interactive
from repdyn.report import write_report
from repdyn.store import MeasurementKey, Store
from repdyn.tables.frames import layer_mean, measurements
from repdyn.terminal.comparison import print_comparison
from repdyn.terminal.summary import print_summary

RUNS = Path(__file__).parents[2] / "docs" / "runs"
REASON = "fewer than half of the vectors are distinct: 80 of 4096"
FEW = {"n_unique": 80, "on_distinct": True}
NOW = FEW | {"value": math.nan, "std": math.nan, "reason": REASON, "own_window_excluded": True}
BEFORE = FEW | NO_DESIGN
"""What earlier versions stored: a number, and how many vectors it rests on."""


@pytest.fixture(params=[NOW, BEFORE], ids=["now", "an earlier version"])
def store(request, tmp_path) -> Store:
    """A run of three layers at two steps, the first layer with too few distinct vectors."""
    rows = []
    for step in (0, 8):
        for layer in range(3):
            given = {"layer": layer, "depth": layer / 2, "step": step, "metric": "two_nn", "n_batches": 4}
            few = request.param if layer == 0 else {name: None for name in NO_DESIGN if name in request.param}
            rows.append(make_row(**{"value": 10.0 + layer, "std": 0.1} | given | few))
    return fill(tmp_path / "store", rows)


def test_the_frame_has_no_value_and_the_reason(store):
    rows = measurements(store.to_pandas())
    few = rows.loc[rows["layer"] == 0]
    assert few[["value", "std", "margin"]].isna().all(axis=None)
    assert set(few["reason"]) == {REASON}
    assert rows.loc[rows["layer"] > 0, "value"].notna().all()
    means = layer_mean(rows, "two_nn", "all")
    assert means.mean.tolist() == [11.5, 11.5]
    assert (means.n_used, means.n_layers) == (2, 3)


@pytest.mark.slow
def test_figures_leave_it_out(store):
    frame = store.to_pandas()
    for line in profile_over_depth(frame, "two_nn").axes[0].lines:
        np.testing.assert_array_equal(np.asarray(line.get_ydata(), float), [math.nan, 11, 12])
    np.testing.assert_array_equal(mean_over_layers(frame, ("two_nn",)).axes[0].lines[0].get_ydata(), [11.5, 11.5])
    cells = heatmap(frame, "two_nn", "all").axes[0].images[0].get_array()
    assert np.ma.getmaskarray(cells).tolist() == [[True, True], [False, False], [False, False]]


@pytest.mark.slow
def test_the_report_leaves_it_out_and_says_why(store, tmp_path):
    page = read_page(write_report(store, tmp_path / "report.html"))
    series = page.tree["runs"][0]["metrics"]["two_nn"]["all"]
    np.testing.assert_array_equal(page.array(series["values"]), [[math.nan] * 2, [11, 11], [12, 12]])
    assert series["reasons"] == [[REASON] * 2, ["", ""], ["", ""]]
    headings = [note["text"] for note in series["course"]["layout"]["annotations"]]
    assert any("mean over 2 of 3 layers" in heading for heading in headings)
    figure = interactive.profile(store.to_pandas(), "two_nn", "all")
    np.testing.assert_array_equal(np.asarray(figure.data[-1].y, float), [math.nan, 11, 12])


@pytest.mark.slow
def test_the_terminal_leaves_it_out_and_says_why(store):
    for show in (print_summary, print_comparison):
        out = io.StringIO()
        show(store.to_pandas(), console=Console(file=out, width=100))
        text = " ".join(out.getvalue().split())
        assert "10.0" not in text
        if show is print_summary:
            assert "nan" not in text
            assert "warning" not in text
            assert "layer 0, the embeddings, has no two_nn: 80 of 4,096 vectors are distinct" in text
        else:
            assert "11.5*" in text
            assert "a mean over fewer layers than the run has: 2 of 3" in text


def test_loggers_leave_it_out(store, tmp_path, monkeypatch):
    monkeypatch.setattr("repdyn.publish.export.all_figures", lambda *_: {})
    table, board = CSVLogger(tmp_path, name="csv"), TensorBoardLogger(tmp_path, name="board")
    export_run(store, "decoder-quickstart", [table, board])
    table.save()
    board.finalize("success")
    lines = list(csv.DictReader((Path(table.log_dir) / "metrics.csv").open()))
    assert [line["two_nn/layer_00"] for line in lines] == ["nan", "nan"]
    assert [float(line["two_nn/mean"]) for line in lines] == [11.5, 11.5]
    events = EventAccumulator(str(board.log_dir))
    events.Reload()
    assert all(math.isnan(event.value) for event in events.Scalars("two_nn/layer_00"))
    assert [event.value for event in events.Scalars("two_nn/mean")] == [11.5, 11.5]


def test_what_a_resumed_run_logs_once_more_leaves_it_out(store):
    for step in (0, 8):
        values = logged_values(store.read(MeasurementKey("decoder-quickstart", step, "3f2ab1c09d77e412", "0123abcd")))
        assert math.isnan(values["two_nn/layer_00"])
        assert (values["two_nn/layer_01"], values["two_nn/mean"]) == (11, 11.5)


@pytest.mark.slow
def test_tables_of_weights_and_biases_leave_it_out_and_say_why(store):
    experiment = Experiment()
    log_stored_media(store, "decoder-quickstart", [logger_of(experiment)])
    table = experiment.logged["tables/two_nn_all"]
    told = [{name: row[table.columns.index(name)] for name in ("layer", "value", "reason")} for row in table.data]
    assert [one for one in told if one["layer"] == 0] == [{"layer": 0, "value": None, "reason": REASON}] * 2


def test_alerts_see_no_value(store):
    ((_, course),) = courses(store.to_pandas())
    assert len(course.steps)
    assert all(map(math.isnan, course.values[:, 0]))
    assert set(course.reasons[:, 0]) == {REASON}
    assert not find_alerts(store.to_pandas(), RULES)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["decoder", "diverging", "finished"])
def test_published_runs_of_earlier_versions_have_no_such_value(run):
    frame = open_store(RUNS / run).to_pandas()
    few = frame["on_distinct"] & (2 * frame["n_unique"] < frame["n_vectors"])
    assert few.any()
    assert frame.loc[few, "value"].isna().all()
    assert frame.loc[few, "reason"].str.startswith("fewer than half of the vectors are distinct: ").all()

"""What loggers know of a run beside its curves."""

from itertools import pairwise

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from synthetic_runs import fill, make_rows, make_two_stacks
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from repdyn.publish.description import log_config, log_heatmaps, log_status
from repdyn.tracking.run_views import FIRST_HEATMAPS, HEATMAP_GROWTH, MAX_TIME_SHARE, RunViews

pytestmark = pytest.mark.slow
RUN = "decoder-quickstart"


@pytest.fixture
def board(tmp_path):
    return TensorBoardLogger(tmp_path, name="", version="board")


def read(board):
    board.finalize("success")
    events = EventAccumulator(board.log_dir)
    return events.Reload()


def texts(events, tag):
    return [
        value.decode() for event in events.Tensors(f"{tag}/text_summary") for value in event.tensor_proto.string_val
    ]


def test_configuration_and_status(tmp_path, board):
    store = fill(tmp_path / "store", make_rows(steps=(0, 8)))
    loggers = [board, CSVLogger(tmp_path, name="", version="csv")]
    log_config({"probe": "3f2a", "schedule": "every 8"}, loggers, "teacher_")
    log_status(store, RUN, loggers)
    events = read(board)
    assert texts(events, "repdyn/config") == ["    repdyn/teacher_probe: 3f2a\n    repdyn/teacher_schedule: every 8"]
    (summary,) = texts(events, "repdyn/summary")
    assert [line.partition(":")[0] for line in summary.splitlines()] == ["    repdyn/status", "    repdyn/headline"]


def test_each_stack_has_a_status(tmp_path, board):
    log_status(fill(tmp_path / "store", make_two_stacks(steps=(0, 8))), "lab/t5", [board], prefix="teacher_")
    (summary,) = texts(read(board), "repdyn/summary")
    assert {line.partition(":")[0].strip() for line in summary.splitlines()} == {
        f"repdyn/{stack}/teacher_{name}" for stack in ("encoder", "decoder") for name in ("status", "headline")
    }


def test_heatmaps_have_the_names_of_the_final_figures(tmp_path, board):
    store = fill(tmp_path / "store", make_rows(steps=(0, 8)))
    log_heatmaps(store, RUN, [CSVLogger(tmp_path, name="", version="csv"), board], prefix="teacher_")
    events = read(board)
    names = {f"figures/teacher_heatmap_{name}" for name in ("two_nn_all", "anisotropy_all", "anisotropy_no_sink")}
    assert set(events.Tags()["images"]) == names
    assert {event.step for name in names for event in events.Images(name)} == {8}


def test_heatmaps_become_rarer_as_a_run_goes_on(tmp_path, board, monkeypatch):
    drawn, described, clock = [], [], [0.0]

    def draw(*_, **__):
        clock[0] += 2.0
        drawn.append(len(measured))

    monkeypatch.setattr("repdyn.publish.description.log_heatmaps", draw)
    monkeypatch.setattr("repdyn.publish.description.log_config", lambda config, *_: described.append(config))
    monkeypatch.setattr("repdyn.tracking.run_views.time.perf_counter", lambda: clock[0])
    rows, measured = make_rows(steps=(0, 8)), []
    monkeypatch.setattr("repdyn.store.Store.steps", lambda *_: list(range(len(measured))))
    store = fill(tmp_path / "store", rows)

    def go_on(until: int) -> None:
        views = RunViews(store, lambda: [board], live=False)
        while len(measured) < until:
            measured.append(clock[0])
            views.refresh(RUN, rows[0].probe)
            clock[0] += 10.0

    go_on(300)
    assert drawn[0] == FIRST_HEATMAPS
    assert 8 < len(drawn) < 20
    for earlier, later in pairwise(drawn):
        assert later >= earlier * HEATMAP_GROWTH
        assert MAX_TIME_SHARE * (measured[later - 1] - measured[earlier - 1]) >= 2.0
    assert len(described) == 1
    # of a resumed run: at once, and then as rarely as before
    del drawn[:]
    go_on(500)
    assert drawn[:2] == [301, 377]
    assert described[0]["metrics"] == "anisotropy@all, anisotropy@no_sink, two_nn@all"

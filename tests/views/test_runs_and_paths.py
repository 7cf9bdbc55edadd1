"""A run only ever grows, and a history is a path: what is shown of resumed, branched and repeated
trainings.
"""

from __future__ import annotations

import json
import shutil

import pandas as pd
import pytest
import torch
from stored_rows import row

from repdyn import open_store
from repdyn.store import MeasurementKey


def measured(store, run, steps, weights="w{step}", value=None):
    """Write one row for each step, with a fingerprint that names the step unless another one is
    given.
    """
    for step in steps:
        at = f"{run.started[:19]}.{step:06d}+00:00"
        value_now = float(step) if value is None else value
        rows = [
            row(
                run=run.name,
                run_id=run.id,
                step=step,
                value=value_now,
                weights=weights.format(step=step),
            )
        ]
        store.write(
            MeasurementKey(run=run.id, step=step, probe="probehash", metrics="m"),
            [one.with_columns(measured_at=at) for one in rows],
        )
    return run


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store in which each run begins a minute after the one before it."""
    times = iter(
        pd.date_range("2026-11-26 02:00", freq="min", periods=100, tz="UTC").to_pydatetime()
    )

    class Clock:
        @staticmethod
        def now(zone):
            return next(times)

    monkeypatch.setattr("repdyn.store.store.datetime", Clock)
    return open_store(tmp_path / "store")


def test_a_run_has_a_folder_of_its_own_whatever_the_seed(store):
    """An id from the seeded generators would be the same in two trainings of one seed."""
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        runs.append(store.begin_run("a/b", {"lr": 1e-3, "path": store.path}))
    assert runs[0].id != runs[1].id
    assert runs[0].id.startswith("a/b--")
    renamed = json.loads((store.folder_of(runs[0].id) / "run.json").read_text())
    assert renamed["name"] == "a/b"
    assert renamed["configuration"]["lr"] == 1e-3
    assert renamed["parent"] is None
    assert store.find_run(runs[0].id) == runs[0]
    assert store.runs() == []  # nothing is measured yet
    assert store.find_run("a/b") is None


def test_two_runs_of_one_name_are_two_and_the_first_keeps_its_name(store):
    first = measured(store, store.begin_run("a"), [0, 4], value=1.0)
    names = store.runs()
    measured(store, store.begin_run("a"), [0, 4], value=2.0)
    assert store.runs() == [*names, "a (2, 2026-11-26 02:01)"]
    assert store.to_pandas("a")["value"].tolist() == [1.0, 1.0]
    assert store.to_pandas("a (2, 2026-11-26 02:01)")["value"].tolist() == [2.0, 2.0]
    assert set(store.to_pandas()["run"]) == set(store.runs())
    assert store.path_of(first.id).name == "a"


def test_a_resumed_run_is_one_history(store):
    first = measured(store, store.begin_run("a"), [0, 4, 8])
    second = measured(store, store.begin_run("a", parent=first.id, parent_step=8), [12, 16])
    third = measured(store, store.begin_run("a", parent=second.id, parent_step=16), [20])
    assert store.runs() == ["a"]
    assert store.steps("a") == [0, 4, 8, 12, 16, 20]
    frame = store.to_pandas("a")
    assert frame["run"].unique().tolist() == ["a"]
    assert frame["run_id"].tolist() == [first.id] * 3 + [second.id] * 2 + [third.id]
    pd.testing.assert_frame_equal(store.to_pandas(), frame)
    assert store.steps(second.id) == [0, 4, 8, 12, 16]  # a run in the middle, by its id
    assert store.alerts_path("a") == store.folder_of(third.id) / "alerts.yaml"


def test_a_run_that_has_just_begun_hides_nothing(store):
    first = measured(store, store.begin_run("a"), [0, 4])
    store.begin_run("a", parent=first.id, parent_step=4)
    assert store.runs() == ["a"]
    assert store.steps("a") == [0, 4]


def test_steps_repeated_exactly_after_a_crash_show_once(store):
    first = measured(store, store.begin_run("a"), [0, 4, 8, 12])
    second = measured(store, store.begin_run("a", parent=first.id, parent_step=4), [8])
    assert store.runs() == ["a", "a (2, 2026-11-26 02:01)"]  # the first has a step more, so far
    measured(store, second, [12, 16])
    assert store.runs() == ["a"]
    assert store.steps("a") == [0, 4, 8, 12, 16]


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_branch_shows_both(store, name):
    first = measured(store, store.begin_run("a"), [0, 4, 8, 12])
    before = {path: path.read_bytes() for path in store.path.rglob("*.*")}
    branch = measured(
        store,
        store.begin_run(name, parent=first.id, parent_step=4),
        [8, 12, 16],
        "other{step}",
        0.5,
    )
    shown = store.path_of(branch.id).name
    assert store.runs() == ["a", shown]
    assert shown == ("b" if name == "b" else "a (2, 2026-11-26 02:01)")
    assert store.to_pandas("a")["value"].tolist() == [0, 4, 8, 12]
    assert store.to_pandas(shown)["value"].tolist() == [0, 4, 0.5, 0.5, 0.5]
    assert {path: path.read_bytes() for path in before} == before


def test_two_children_of_one_run(store):
    """A run that both left at its end is shown by neither name alone; the first child keeps the
    name.
    """
    first = measured(store, store.begin_run("a"), [0, 4])
    for value in (1.0, 2.0):
        measured(
            store, store.begin_run("a", parent=first.id, parent_step=4), [8], f"{value}", value
        )
    assert store.runs() == ["a", "a (2, 2026-11-26 02:02)"]
    assert [store.to_pandas(name)["value"].tolist() for name in store.runs()] == [
        [0, 4, 1],
        [0, 4, 2],
    ]


def test_failed_steps_do_not_keep_a_run_in_view(store):
    first = measured(store, store.begin_run("a"), [0, 4])
    store.write(
        MeasurementKey(run=first.id, step=8, probe="probehash", metrics="m").failed,
        [row(step=8, layer=None, reason="no memory")],
    )
    measured(store, store.begin_run("a", parent=first.id, parent_step=4), [8])
    assert store.runs() == ["a"]


def test_a_measurement_of_the_same_weights_is_found_in_the_family(store):
    first = measured(store, store.begin_run("a"), [0, 4, 8])
    sibling = measured(
        store, store.begin_run("a", parent=first.id, parent_step=4), [8, 12], "s{step}"
    )
    run = store.begin_run("b", parent=first.id, parent_step=4)
    stranger = measured(store, store.begin_run("c"), [16])

    def measured_by(step, weights, metrics="m"):
        key = MeasurementKey(run=run.id, step=step, probe="probehash", metrics=metrics)
        measurement = store.find_measurement(key, weights)
        if measurement is None:
            return None
        rows, folder = measurement
        assert folder == store.folder_of(rows[0].run_id)
        return rows[0].run_id

    assert measured_by(4, "w4") == first.id
    assert measured_by(8, "w8") == first.id  # beyond the step at which it was left
    assert measured_by(8, "s8") == measured_by(12, "s12") == sibling.id
    assert (
        measured_by(8, "other")
        is measured_by(8, None)
        is measured_by(8, "w8", "other metrics")
        is None
    )
    assert measured_by(16, "w16") is None
    assert (
        store.find_measurement(
            MeasurementKey(run=stranger.id, step=16, probe="probehash", metrics="m"), "w16"
        )
        is not None
    )
    rows, _ = store.find_measurement(
        MeasurementKey(run=run.id, step=8, probe="probehash", metrics="m"), "w8"
    )
    store.write(MeasurementKey(run=run.id, step=8, probe="probehash", metrics="m"), rows)
    assert store.to_pandas("b")["run_id"].tolist() == [first.id] * 3


def test_a_parent_in_another_store(store, tmp_path, caplog):
    parent = measured(store, store.begin_run("a"), [0, 4, 8])
    other = open_store(tmp_path / "other")
    run = other.begin_run("b", parent=parent.id, parent_step=4, parent_store=store.path)
    measured(other, run, [8, 12], "other{step}")
    assert str(tmp_path) not in (other.folder_of(run.id) / "run.json").read_text()
    assert other.steps("b") == [0, 4, 8, 12]
    assert (
        other.find_measurement(
            MeasurementKey(run=run.id, step=8, probe="probehash", metrics="m"), "w8"
        )[0][0].run_id
        == parent.id
    )
    assert store.runs() == ["a"]
    for path in (store.path, other.path):  # both moved to another place, together
        (tmp_path / "moved").mkdir(exist_ok=True)
        shutil.move(path, tmp_path / "moved" / path.name)
    moved = open_store(tmp_path / "moved" / "other")
    assert moved.to_pandas("b")["step"].tolist() == [0, 4, 8, 12]
    assert caplog.text == ""
    shutil.rmtree(tmp_path / "moved" / "store")
    assert open_store(moved.path).to_pandas("b")["step"].tolist() == [8, 12]
    assert parent.id in caplog.text
    # the parent's folder was copied into the store
    assert other.begin_run("c", parent=run.id, parent_store=tmp_path).parent_store is not None
    assert moved.begin_run("c", parent=run.id, parent_store=tmp_path).parent_store is None


def test_folders_without_a_description_are_runs(store):
    """Sweeps, and the rows of others: their folder is their name."""
    for step in (0, 8):
        store.write(
            MeasurementKey(run="a", step=step, probe="p", metrics="m"), [row(run="a", step=step)]
        )
    run = measured(store, store.begin_run("a"), [0])
    assert store.runs() == ["a", "a (2, 2026-11-26 02:00)"]
    assert store.steps("a") == [0, 8]
    (store.folder_of(run.id) / "run.json").write_text("{")  # damaged: its rows are not lost
    assert store.runs() == ["a", run.id]
    assert store.to_pandas(run.id)["value"].tolist() == [0.0]


def test_a_copied_run_is_another_one(store):
    run = measured(store, store.begin_run("a"), [0])
    shutil.copytree(store.folder_of(run.id), store.path / "a--copy")
    assert len(store.runs()) == len(store.to_pandas()) == 2


def test_what_is_read_is_current(store):
    """The list of histories is remembered, but not beyond a change."""
    import os
    import time

    run = measured(store, store.begin_run("a"), [0])
    long_ago = time.time() - 100
    for folder in (store.folder_of(run.id), store.path):
        os.utime(folder, (long_ago, long_ago))
    assert store.paths() is store.paths()
    other = measured(store, store.begin_run("b"), [0])
    assert store.runs() == ["a", "b"]
    measured(open_store(store.path), other, [4])
    assert store.steps("b") == [0, 4]


def test_circles_and_unknown_parents_end(store):
    first = measured(store, store.begin_run("a"), [0])
    second = measured(store, store.begin_run("a", parent=first.id, parent_step=0), [4])
    path = store.folder_of(first.id) / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "parent": second.id}))
    assert len(store.to_pandas(second.id)) == 2
    lost = measured(store, store.begin_run("b", parent="gone--1", parent_step=3), [4])
    assert store.steps(lost.id) == [4]


def test_a_resumed_run_is_followed_as_one(store):
    """The page that watches runs reads files by itself: it must join them as the store does."""
    from repdyn.views.watch.index import Index

    first = measured(store, store.begin_run("a"), [0, 4, 8])
    index = Index([store.path], 0.0)
    index.poll(5)
    measured(store, store.begin_run("a", parent=first.id, parent_step=4), [8, 12], value=0.5)
    while index.poll(5):
        pass
    (summary,) = index.summaries.values()
    frames, _ = index.rows([summary["key"]])
    (frame,) = frames.values()
    assert summary["label"] == "a"
    assert summary["measurements"] == 4
    assert frame["run"].unique().tolist() == ["a"]
    assert frame.sort_values("step")["value"].tolist() == [0.0, 4.0, 0.5, 0.5]

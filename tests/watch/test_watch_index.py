"""What is followed: each file is read once, whatever else happens in the folders."""

from __future__ import annotations

import os
import shutil
from collections import Counter

import pandas as pd
import pyarrow as pa
import pytest
import yaml
from synthetic_runs import LOG_STEPS, fill, make_failures, make_rows, make_scalar, make_two_stacks

from repdyn.store import MeasurementKey
from repdyn.watch import folder as folders
from repdyn.watch import run as runs
from repdyn.watch.index import Index
from repdyn.watch.rows import _MERGED_AT, RunRows


@pytest.fixture
def read(monkeypatch):
    """How often each file was read, by its path."""
    counts = Counter()
    read_table = runs.read_table

    def counting(path):
        counts[path] += 1
        return read_table(path)

    monkeypatch.setattr(runs, "read_table", counting)
    return counts


def settle(index):
    """Poll until nothing is left to do."""
    while index.poll(10.0):
        pass
    return {summary["label"]: summary for summary in index.summaries.values()}


@pytest.fixture
def followed(tmp_path):
    return Index([tmp_path], interval=0.0)


def _key(store, run):
    return MeasurementKey(run, 64, store.to_pandas(run)["probe"][0], "0123abcd")


def one_run(path, *, run="first", steps=LOG_STEPS, **given):
    return fill(path, make_rows(run=run, steps=steps, n_blocks=2, **given))


def test_every_file_is_read_once(followed, tmp_path, read):
    for name in ("a", "b/repdyn"):
        one_run(tmp_path / name, run=name)
    settle(followed)
    settle(followed)
    assert set(read) == set(tmp_path.rglob("step*.parquet"))
    one_run(tmp_path / "a", run="a", steps=(1024, 2048))
    found = settle(followed)
    settle(followed)
    assert set(read) == set(tmp_path.rglob("step*.parquet"))
    assert set(read.values()) == {1}
    assert (found["a"]["step"], found["b/repdyn"]["step"]) == (2048, 512)
    assert found["a"]["measurements"] == len(LOG_STEPS) + 2


def test_the_rows_are_those_of_the_store(followed, tmp_path, monkeypatch):
    monkeypatch.setattr("repdyn.watch.rows._MERGED_AT", 4)
    store = one_run(tmp_path)
    fill(tmp_path, make_failures(8, run="first", probe="3f2ab1c09d77e412"), make_failures(9, run="first"))
    settle(followed)
    one_run(tmp_path, steps=(4,), noise=0.5)  # measured again
    settle(followed)
    (key,) = followed.summaries
    rows, _ = followed.rows([key])
    (frame,) = rows.values()
    pd.testing.assert_frame_equal(frame, store.to_pandas("first", categorical=True))


def test_what_the_table_shows(followed, tmp_path):
    one_run(tmp_path / "repdyn")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"trainer": {"max_steps": 1000}}))
    found = settle(followed)["first"]
    assert (found["status"], found["step"], found["total"], found["unread"]) == ("healthy", 512, 1000, 0)
    assert found["loss"] == pytest.approx(1.2, abs=0.01)
    assert [step for step, _ in found["losses"]] == list(LOG_STEPS)
    frame = next(iter(followed.rows(followed.summaries)[0].values()))
    last = frame.loc[(frame["step"] == 512) & frame["layer"].notna()]
    for metric, subset in (("two_nn", "all"), ("anisotropy", "no_sink")):
        values = last.loc[(last["metric"] == metric) & (last["subset"] == subset), "value"]
        assert found[metric] == pytest.approx(values.mean())


@pytest.mark.parametrize(
    "content", ["", "trainer: 3", "trainer: {max_steps: -1}", "trainer: {max_steps: many}", "a: [", "- 1"]
)
def test_a_configuration_without_a_number_of_steps_gives_no_total(content, tmp_path):
    (tmp_path / "config.yaml").write_text(content)
    assert runs.total_steps(tmp_path) is None


def test_the_most_severe_status_of_the_stacks_counts(followed, tmp_path):
    rows = make_two_stacks("lab/t5", steps=(*range(0, 80, 10),))
    losses = [make_scalar(step, 2.0 + (step > 40) * step, run="lab/t5") for step in range(0, 80, 10)]
    fill(tmp_path, [row for row in rows if row.layer is not None] + losses)
    assert settle(followed)["lab/t5"]["status"] == "failed"


def test_new_runs_and_stores_appear_and_deleted_ones_vanish(followed, tmp_path):
    assert settle(followed) == {}
    store = one_run(tmp_path / "deep" / "a")
    assert set(settle(followed)) == {"first"}
    fill(store.path, make_rows(run="second", steps=(0, 1)))
    one_run(tmp_path / "b", run="third")
    assert set(settle(followed)) == {"first", "second", "third"}
    shutil.rmtree(store.folder_of("first"))
    assert set(settle(followed)) == {"second", "third"}
    shutil.rmtree(store.path)
    assert set(settle(followed)) == {"third"}


def test_runs_of_one_name_go_by_their_stores(followed, tmp_path):
    for seed in ("seed0", "seed1"):
        one_run(tmp_path / seed / "repdyn", run="lab/a")
    assert set(settle(followed)) == {"seed0/repdyn/lab/a", "seed1/repdyn/lab/a"}


def test_a_rewritten_file_counts_anew_and_a_deleted_one_no_longer(followed, tmp_path, read):
    store = one_run(tmp_path, loss=False)
    settle(followed)
    first = settle(followed)["first"]
    assert first["loss"] is None
    one_run(tmp_path, steps=(512,))  # with the loss, which is known later
    found = settle(followed)["first"]
    assert found["loss"] == pytest.approx(1.2, abs=0.01)
    assert found["version"] > first["version"]
    (last,) = store.folder_of("first").glob("step000000512-*")
    assert read[last] == 2
    last.unlink()
    found = settle(followed)["first"]
    assert (found["step"], found["loss"]) == (256, None)
    assert sum(read.values()) == len(LOG_STEPS) + 1


def test_a_run_without_a_training_loss_shows_that_on_the_probe(followed, tmp_path):
    steps = (0, 8)
    on_probe = [make_scalar(step, 10.0 - step, "probe/loss", run="swept") for step in steps]
    fill(tmp_path / "a", make_rows(run="swept", steps=steps, n_blocks=2, loss=False) + on_probe)
    both = [make_scalar(step, 10.0 - step, "probe/loss", run="tracked") for step in steps]
    fill(tmp_path / "b", make_rows(run="tracked", steps=steps, n_blocks=2) + both)
    found = settle(followed)
    assert (found["swept"]["loss"], found["swept"]["losses"]) == (2.0, [[0, 10.0], [8, 2.0]])
    assert found["tracked"]["losses"][0] == [0, pytest.approx(5.6)]


def test_a_file_that_is_still_copied_is_said_and_read_when_it_is_whole(followed, tmp_path):
    store = one_run(tmp_path)
    (last,) = store.folder_of("first").glob("step000000512-*")
    content = last.read_bytes()
    last.write_bytes(content[:1000])
    found = settle(followed)["first"]
    assert (found["step"], found["n_damaged"], found["status"]) == (256, 1, "healthy")
    assert found["damaged"][0].startswith(f"{last.name}: expected a Parquet file of measurements, cannot read ")
    with last.open("r+b") as file:  # in place, which leaves the time of the folder alone
        file.write(content)
    found = settle(followed)["first"]
    assert (found["step"], found["n_damaged"]) == (512, 0)


def test_a_run_of_which_nothing_can_be_read_is_there(followed, tmp_path):
    one_run(tmp_path)
    broken = tmp_path / "broken" / "step000000001-a-b.parquet"
    broken.parent.mkdir()
    broken.write_bytes(b"no rows")
    found = settle(followed)["broken"]
    assert (found["status"], found["step"], found["n_damaged"]) == ("unknown", None, 1)
    with pytest.raises(KeyError):
        followed.rows(["no such key"])


def test_rows_that_cannot_be_judged_together_are_no_reason_to_stop(followed, tmp_path):
    fill(tmp_path, make_rows(run="mixed", steps=(0, 1)), make_rows(run="mixed", steps=(2,), model="Other"))
    found = settle(followed)["mixed"]
    assert found["status"] == "unknown"
    assert found["reason"].startswith("expected the rows of one model, got 2: ")


def test_work_stops_at_the_deadline_and_the_last_steps_come_first(tmp_path, read):
    index = Index([tmp_path], interval=0.0)
    for run in ("first", "second"):
        one_run(tmp_path, run=run)
    assert index.poll(0.0)
    assert sum(read.values()) == 0
    while not all(summary["step"] == 512 for summary in index.summaries.values()) or len(index.summaries) < 2:
        assert index.poll(0.004)
    assert sum(read.values()) < 2 * len(LOG_STEPS)


def test_a_run_is_not_described_more_often_than_the_interval(tmp_path, monkeypatch):
    described = []
    monkeypatch.setattr(runs, "_stacks", lambda *_: described.append(1) or [])
    index = Index([tmp_path], interval=1000.0)
    one_run(tmp_path)
    settle(index)
    one_run(tmp_path, steps=(1024,))
    assert settle(index)["first"]["step"] == 1024
    assert len(described) == 1


def test_a_folder_that_did_not_change_is_not_listed_again(tmp_path, monkeypatch):
    folder = folders.WatchedFolder(tmp_path)
    (tmp_path / "step0.parquet").write_bytes(b"a")
    os.utime(tmp_path, (1.0, 1.0))
    assert folder.look().changed == ("step0.parquet",)
    with monkeypatch.context() as patched:
        patched.setattr(folders.os, "scandir", lambda _: pytest.fail("listed"))
        assert folder.look() == folders.Changes()
    # overwritten in place: seen by the next look at every file
    (tmp_path / "step0.parquet").write_bytes(b"ab")
    assert folder.look() == folders.Changes()
    monkeypatch.setattr(folders, "_FULL_LOOK_SECONDS", 0.0)
    assert folder.look().changed == ("step0.parquet",)


def test_rows_take_little_memory(tmp_path):
    store = one_run(tmp_path, steps=range(_MERGED_AT))
    rows, tables = RunRows(), []
    for path in sorted(store.folder_of("first").glob("*.parquet")):
        tables.append(runs.read_table(path))
        rows.put(path.name, tables[-1])
    assert rows.nbytes < 0.25 * pa.concat_tables(tables).nbytes

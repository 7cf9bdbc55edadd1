"""What is followed: each file is read once, whatever else happens in the folders."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from synthetic_runs import LOG_STEPS, fill, make_rows

from repdyn.watch import folder as folders
from repdyn.watch import run as runs
from repdyn.watch.index import Index
from repdyn.watch.rows import _MERGED_AT, RunRows


def settle(index):
    """Poll until nothing is left to do."""
    while index.poll(10.0):
        pass
    return {summary["label"]: summary for summary in index.summaries.values()}


@pytest.fixture
def followed(tmp_path):
    return Index([tmp_path], interval=0.0)


def one_run(path, *, run="first", steps=LOG_STEPS, **given):
    return fill(path, make_rows(run=run, steps=steps, n_blocks=2, **given))


def test_runs_of_one_name_go_by_their_stores(followed, tmp_path):
    for seed in ("seed0", "seed1"):
        one_run(tmp_path / seed / "repdyn", run="lab/a")
    assert set(settle(followed)) == {"seed0/repdyn/lab/a", "seed1/repdyn/lab/a"}


def test_a_run_of_which_nothing_can_be_read_is_there(followed, tmp_path):
    one_run(tmp_path)
    broken = tmp_path / "broken" / "step000000001-a-b.parquet"
    broken.parent.mkdir()
    broken.write_bytes(b"no rows")
    found = settle(followed)["broken"]
    assert (found["status"], found["step"], found["n_damaged"]) == ("unknown", None, 1)
    with pytest.raises(KeyError):
        followed.rows(["no such key"])


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

"""What is followed: each file is read once, whatever else happens in the folders."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from synthetic_runs import LOG_STEPS, fill, make_rows

from repdyn.store.files import read_tables
from repdyn.store.schema import SCHEMA
from repdyn.watch import run as runs
from repdyn.watch.run import _MERGED_AT, RunRows


def one_run(path, *, run="first", steps=LOG_STEPS, **given):
    return fill(path, make_rows(run=run, steps=steps, n_blocks=2, **given))


def test_a_folder_that_did_not_change_is_not_listed_again(tmp_path, monkeypatch):
    folder = runs.WatchedFolder(tmp_path)
    (tmp_path / "step0.parquet").write_bytes(b"a")
    os.utime(tmp_path, (1.0, 1.0))
    assert folder.look() == ({"step0.parquet"}, set())
    with monkeypatch.context() as patched:
        patched.setattr(runs.os, "scandir", lambda _: pytest.fail("listed"))
        assert folder.look() == (set(), set())
    # overwritten in place: seen by the next look at every file
    (tmp_path / "step0.parquet").write_bytes(b"ab")
    assert folder.look() == (set(), set())
    monkeypatch.setattr(runs, "_FULL_LOOK_SECONDS", 0.0)
    assert folder.look() == ({"step0.parquet"}, set())


def test_rows_take_little_memory(tmp_path):
    store = one_run(tmp_path, steps=range(_MERGED_AT))
    rows, tables = RunRows(), []
    for path in sorted(store.folder_of("first").glob("*.parquet")):
        tables.append(read_tables([path]).cast(SCHEMA))
        rows.put(path.name, tables[-1])
    assert rows.nbytes < 0.25 * pa.concat_tables(tables).nbytes

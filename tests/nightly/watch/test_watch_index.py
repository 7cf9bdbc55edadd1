"""What is followed: each file is read once, whatever else happens in the folders."""

from __future__ import annotations

import os

import pytest

from repdyn.watch import run as runs


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

"""Temporary files and folders: gone at the end, left by a killed process, removed only then."""

import os
from pathlib import Path

import pytest
import torch

from repdyn import Probe, open_store
from repdyn.checkpoints.temporary import remove_abandoned_folders
from repdyn.store import MeasurementKey
from repdyn.store.schema import Checkpoint, failure_rows
from repdyn.store.state_cache import StateCache
from repdyn.utils.files import TEMPORARY_FILE, write_atomically


@pytest.fixture(autouse=True)
def temporary(tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def rows(store: Path) -> None:
    open_store(store).write(
        MeasurementKey("run", 8, "p", "m"), failure_rows(Checkpoint("run", step=8), ["two_nn"], "x", probe="p")
    )


def states(store: Path) -> None:
    StateCache(store, run="run", probe="p").save(8, None, 1, torch.zeros(1000, 4))


def probe(store: Path) -> None:
    tokens = torch.arange(192).reshape(16, 12)
    open_store(store).save_probe(Probe.from_tokens(tokens, max_vectors=96, batch_vectors=48))


@pytest.mark.parametrize("save", [rows, states, probe])
def test_files_of_a_store_are_temporary_until_they_are_complete(save, tmp_path, monkeypatch):
    """Whatever library writes them: a file of its own would be left by a killed process, or readable by it alone."""
    written = []
    fsync = os.fsync

    def inspect(descriptor: int) -> None:
        written.extend(path for path in tmp_path.rglob("*") if path.is_file())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", inspect)
    save(tmp_path / "store")
    assert {bool(TEMPORARY_FILE.fullmatch(path.name)) for path in written} == {True}
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_file_system_without_locks(temporary, tmp_path, monkeypatch):
    """Files are written as elsewhere; nothing is known to be abandoned."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    write_atomically(tmp_path / "a.txt", lambda path: path.write_text("whole"))
    assert (tmp_path / "a.txt").read_text() == "whole"
    (temporary / f"repdyn-downloads-{'0' * 32}").mkdir()
    assert remove_abandoned_folders(temporary) == []
    assert len(list(temporary.iterdir())) == 1

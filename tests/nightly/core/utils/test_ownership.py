"""Files of a store are temporary until they are complete."""

import os
from pathlib import Path

import pytest
import torch

from repdyn import Probe, open_store
from repdyn.store import MeasurementKey
from repdyn.store.schema import Checkpoint, failure_rows
from repdyn.store.state_cache import StateCache


def rows(store: Path) -> None:
    open_store(store).write(
        MeasurementKey(run="run", step=8, probe="p", metrics="m"),
        failure_rows(Checkpoint(run="run", step=8), ["two_nn"], "x", probe="p"),
    )


def states(store: Path) -> None:
    StateCache(store, run="run", probe="p").save(8, None, 1, torch.zeros(1000, 4))


def probe(store: Path) -> None:
    tokens = torch.arange(192).reshape(16, 12)
    open_store(store).save_probe(Probe.from_tokens(tokens, max_vectors=96, batch_vectors=48))


@pytest.mark.parametrize("save", [rows, states, probe])
def test_files_of_a_store_are_temporary_until_they_are_complete(save, tmp_path, monkeypatch):
    """Whatever library writes them: a file of its own would be left by a killed process, or
    readable by it alone.
    """
    written = []
    fsync = os.fsync

    def inspect(descriptor: int) -> None:
        written.extend(path for path in tmp_path.rglob("*") if path.is_file())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", inspect)
    save(tmp_path / "store")
    assert {path.name.startswith(".repdyn-") for path in written} == {True}
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

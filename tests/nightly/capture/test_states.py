"""States of layers: each token in its row, in memory up to a limit, in files without a name beyond it."""

import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from repdyn.capture import states as layer_states
from repdyn.capture.states import Buffers, LayerStates, States

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The system's temporary folder, for one test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def n_mapped(folder: Path) -> int:
    return Path("/proc/self/maps").read_text().count(f"{folder}/")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_fits_stays_in_memory(folder):
    buffers = Buffers(limit=1000, n_expected=4)
    large, small = torch.empty(1, 100), torch.empty(1, 50)
    kept = [buffers.new(2, like) for like in (large, large, small)]  # 800, 800 and 400 bytes
    assert n_mapped(folder) == 2
    kept += [buffers.new(1, small)]  # the last 200
    assert n_mapped(folder) == 2
    assert [tuple(buffer.shape) for buffer in kept] == [(2, 100), (2, 100), (2, 50), (1, 50)]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_file_has_no_name_and_goes_with_the_last_view(folder):
    buffer = Buffers(limit=0, n_expected=1).new(3000, torch.empty(1, 7))
    assert not list(folder.iterdir())
    view = buffer[5:]
    del buffer
    assert n_mapped(folder) == 1
    del view
    assert n_mapped(folder) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_files_hold_what_is_written(dtype):
    values = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    buffer = Buffers(limit=0, n_expected=1).new(50, values)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    buffer[order] = values[order]
    assert buffer.dtype == dtype
    assert torch.equal(buffer, values)


@pytest.mark.parametrize("reserves", [True, False], ids=["posix_fallocate", "without"])
def test_too_small_a_disk_is_told_before_anything_is_written(folder, monkeypatch, reserves):
    def full(file, offset, n_bytes):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if reserves:
        monkeypatch.setattr(os, "posix_fallocate", full)
    else:
        monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(layer_states.shutil, "disk_usage", lambda _: SimpleNamespace(free=3_000_000_000))
    buffers = Buffers(limit=4_000_000_000, n_expected=10)
    like = torch.empty(1, 1, device="meta").expand(1, 1000)
    buffers.new(1_000_000, like)
    message = (
        rf"expected at least 36.0 GB of free space in {folder} for the states of layers beyond states_bytes, got 3.0 GB "
        r"\(No space left on device\); set TMPDIR to a folder with more, take a probe of fewer vectors, or raise states_bytes"
    )
    with pytest.raises(OSError, match=message):
        buffers.new(1_000_000, like)
    assert not list(folder.iterdir())


def test_without_posix_fallocate_files_work_where_there_is_room(monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    buffer = Buffers(limit=0, n_expected=1).new(50, torch.empty(1, 7)).fill_(1)
    assert buffer.sum() == 350


def test_taking_hands_layers_over_in_their_order():
    layers = [LayerStates(i, i / 2, f"blocks.{i}", torch.full((2, 3), i), CPU) for i in range(3)]
    states = States(layers.copy(), np.array([1, 0]))
    assert [states.take().index for _ in range(3)] == [0, 1, 2]
    assert states.layers == []


def test_rows_are_a_slice_where_they_follow_each_other():
    states = States([], np.array([2, -1, 3, 0, 4, 1]))
    assert states.rows_of(np.array([0, 2, 4])) == slice(2, 5)
    assert torch.equal(states.rows_of(np.array([4, 2, 0])), torch.tensor([4, 3, 2]))
    message = (
        r"expected tokens that were sampled, got 1 of 2 that were not; name their subset in capture\(..., subsets\)"
    )
    with pytest.raises(ValueError, match=message):
        states.rows_of(np.array([0, 1]))

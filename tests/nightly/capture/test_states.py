"""States of layers: each token in its row, in memory up to a limit, in files without a name beyond it."""

import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from repdyn.capture import states as layer_states
from repdyn.capture.states import Buffers


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

"""States of layers: each token in its row, in memory up to a limit, in files without a name beyond
it.
"""

import errno
import os
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


@pytest.mark.parametrize("reserves", [True, False], ids=["posix_fallocate", "without"])
def test_too_small_a_disk_is_told_before_anything_is_written(folder, monkeypatch, reserves):
    def full(file, offset, n_bytes):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if reserves:
        monkeypatch.setattr(os, "posix_fallocate", full)
    else:
        monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(
        layer_states.shutil, "disk_usage", lambda _: SimpleNamespace(free=3_000_000_000)
    )
    buffers = Buffers(4_000_000_000)
    like = torch.empty(1, 1, device="meta").expand(1, 1000)
    buffers.new(1_000_000, like)
    with pytest.raises(OSError, match=rf"4.0 GB of free space in {folder}"):
        buffers.new(1_000_000, like)
    assert not list(folder.iterdir())

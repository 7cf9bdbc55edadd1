"""A sweep where something of the machine is missing: space on the disk, the store itself."""

from __future__ import annotations

import errno
from pathlib import Path


def test_a_disk_that_is_full_when_the_probe_is_saved(hub, commits, command, tmp_path, monkeypatch):
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.suffix == ".safetensors":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    status, _, errors = command("lab/model", "--revisions", "8", "--store", "store")
    assert status == 1
    assert "stopped: the disk is full ([Errno 28] No space left on device" in errors
    assert "then repeat the command" in errors
    assert list((tmp_path / "store").rglob("*.parquet")) == []

"""A sweep where something of the machine is missing: a home directory, space on the disk, the store itself."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import HubServer

from repdyn import open_store

# as in a container that runs under a number without an entry in its passwd
NOBODY = """
import json, os, pwd, sys

def unknown(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")

pwd.getpwuid = unknown
from repdyn.cli.main import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(["sweep", *arguments])
        print("status 0", flush=True)
    except SystemExit as end:
        print("status", end.code, flush=True)
"""


@pytest.mark.process
def test_a_user_without_a_home(hub: HubServer, commits, tmp_path):
    names = ("HOME", "USER", "LOGNAME", "USERNAME", "LNAME", "REPDYN_CACHE", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment = {name: value for name, value in environment.items() if name not in names}
    environment |= {"HF_ENDPOINT": hub.url, "MPLCONFIGDIR": str(tmp_path), "NO_PROXY": "127.0.0.1"}
    arguments = ["lab/model", "--revisions", "8", "--text", "builtin", "--max-vectors", "512", "--device", "cpu"]

    def run(*commands: list[str]) -> tuple[list[str], str]:
        """Run commands in one process, since most of the time goes into imports; return their statuses."""
        command = [sys.executable, "-c", NOBODY, json.dumps(commands)]
        ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert "Traceback" not in ended.stderr, ended.stderr
        return [line for line in ended.stdout.splitlines() if line.startswith("status ")], ended.stderr

    statuses, errors = run(arguments)
    assert statuses == ["status 2"], errors
    assert "REPDYN_CACHE" in errors
    environment["REPDYN_CACHE"] = str(tmp_path / "cache")
    statuses, errors = run(arguments)
    assert statuses == ["status 1"], errors
    assert "HF_HOME" in errors
    environment["HF_HOME"] = str(tmp_path / "hf")
    statuses, errors = run(arguments)
    assert statuses == ["status 0"], errors
    assert open_store(tmp_path / "sweeps").steps("lab/model") == [8]


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

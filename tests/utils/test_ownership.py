"""Temporary files and folders: gone at the end, left by a killed process, removed only then."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from repdyn import Probe, open_store
from repdyn.store import MeasurementKey
from repdyn.store.schema import Checkpoint, failure_rows
from repdyn.store.state_cache import StateCache
from repdyn.utils.files import (
    TEMPORARY_FILE,
    remove_abandoned_files,
    remove_abandoned_folders,
    temporary_folder,
    write_atomically,
)

OWNER = """
import sys, time
from pathlib import Path
from repdyn.utils.files import write_atomically
from repdyn.utils.files import temporary_folder

def wait(path):
    path.write_text("half")
    print("ready", flush=True)
    time.sleep(60)

with temporary_folder("offload") as folder:
    (folder / "weights.dat").touch()
    write_atomically(Path(sys.argv[1]) / "rows.parquet", wait)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def owner(tmp_path, temporary):
    """A process in the middle of writing a file, with a temporary folder."""
    (tmp_path / "store").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "store")],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def test_what_a_killed_process_left_is_removed_and_what_a_running_one_has_is_not(owner, tmp_path, temporary):
    files = list((tmp_path / "store").iterdir())
    folders = list(temporary.glob("repdyn-offload-*"))
    assert (len(files), len(folders)) == (1, 1)
    assert TEMPORARY_FILE.fullmatch(files[0].name)
    assert remove_abandoned_files(files) == []
    assert remove_abandoned_folders() == []
    assert files[0].read_text() == "half"
    assert (folders[0] / "weights.dat").exists()

    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert remove_abandoned_files(files) == files
    assert remove_abandoned_folders() == folders
    assert list((tmp_path / "store").iterdir()) == []
    assert list(temporary.iterdir()) == []


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
def test_files_of_a_store_are_locked_until_they_are_complete(save, tmp_path, monkeypatch):
    """Whatever library writes them: by a file of its own it would leave the locked one, and more if it is killed."""
    removed, written = [], []
    fsync = os.fsync

    def inspect(descriptor: int) -> None:
        written.extend(path for path in tmp_path.rglob("*") if path.is_file())
        removed.extend(remove_abandoned_files(written))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", inspect)
    save(tmp_path / "store")
    assert removed == []
    assert [bool(TEMPORARY_FILE.fullmatch(path.name)) for path in written] == [True]
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_folder_is_deleted_at_the_end(temporary):
    with temporary_folder("probe") as folder:
        (folder / "config.json").touch()
        assert folder.stat().st_mode & 0o077 == 0
    assert list(temporary.iterdir()) == []


def test_killed_before_the_folder_was_made(temporary):
    (temporary / f".repdyn-probe-{'0' * 32}").touch()
    assert remove_abandoned_folders() == []
    assert list(temporary.iterdir()) == []


def test_other_files_stay(temporary, tmp_path):
    """Those of other programs, rescued measurements, links, and named pipes, which are not waited for."""
    name = f"repdyn-probe-{'0' * 32}"
    (tmp_path / "precious").touch()
    (temporary / "repdyn-rescued-abc").mkdir()
    (temporary / ".repdyn-rescued-abc").touch()
    (temporary / name).mkdir()
    (temporary / f".{name}").symlink_to(tmp_path / "precious")
    os.mkfifo(temporary / f".{name[:-1]}1")
    before = sorted(temporary.iterdir())
    assert remove_abandoned_folders() == []
    assert sorted(temporary.iterdir()) == before
    assert (tmp_path / "precious").exists()


def test_a_file_system_without_locks(temporary, tmp_path, monkeypatch):
    """Files are written as elsewhere; nothing is known to be abandoned."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    write_atomically(tmp_path / "a.txt", lambda path: path.write_text("whole"))
    assert (tmp_path / "a.txt").read_text() == "whole"
    (temporary / f".repdyn-probe-{'0' * 32}").touch()
    assert remove_abandoned_folders() == []
    assert len(list(temporary.iterdir())) == 1

"""What a killed sweep left is removed by the next one, which says so."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path

import pytest
from hub_server import HubServer
from stored_rows import KEY, row

from repdyn import open_store
from repdyn.checkpoints.hub import Hub
from repdyn.store.state_cache import STATES_FOLDER
from repdyn.store.unfinished import remove_unfinished_files
from repdyn.checkpoints.downloads import DownloadLimits, Downloads
from repdyn.checkpoints.leftovers import remove_leftovers
from repdyn.utils.files import locked_file, temporary_folder

HEX = "0123456789abcdef" * 2


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_each_place(tmp_path, temporary, hub):
    store = open_store(tmp_path / "store")
    states = store.folder_of("run") / STATES_FOLDER / "0123" / "step000000008" / "encoder"
    states.mkdir(parents=True)
    left = [
        store.folder_of("run") / f".repdyn-{HEX}.parquet",
        store.folder_of("run") / f".compact-{HEX}.parquet",
        store.path / f".repdyn-{HEX}.html",
        states / f".repdyn-{HEX}.safetensors",
    ]
    kept = [states / "layer001.safetensors", store.path / ".repdyn-notes", store.path / ".gitignore"]
    for path in left + kept:
        path.touch()
    (temporary / f"repdyn-offload-{HEX}").mkdir()
    (temporary / f".repdyn-offload-{HEX}").touch()
    downloads = Downloads(Hub(), DownloadLimits(tmp_path / "d"))
    killed = tmp_path / "d" / "repdyn-downloads" / "0123456789ab"
    killed.mkdir(parents=True)
    with locked_file(states / f".repdyn-{HEX[::-1]}.safetensors"), temporary_folder("probe") as living:
        lines = remove_leftovers(store, downloads)
        assert (states / f".repdyn-{HEX[::-1]}.safetensors").exists()
        assert living.exists()
    assert lines == [
        f"removed 4 unfinished files of killed processes: {min(left)}, ...",
        f"removed 1 temporary folder of killed processes: {temporary}/repdyn-offload-{HEX}",
        f"removed 1 folder of downloads of killed processes: {killed}",
    ]
    assert not any(path.exists() for path in [*left, killed])
    assert all(path.exists() for path in kept)
    assert list(temporary.iterdir()) == []
    assert remove_leftovers(store, downloads) == []


def test_the_copy_of_a_remote_store(faulty):
    store = open_store("faulty://host/sweep")
    state = store.path.parent / "state" / "waiting"
    state.mkdir(parents=True, exist_ok=True)
    left = [state / f".repdyn-{HEX}.json", state.parent / f".repdyn-{HEX}.json"]
    [path.touch() for path in left]
    assert remove_unfinished_files(store) == [f"removed 2 unfinished files of killed processes: {min(left)}, ..."]
    assert not any(path.exists() for path in left)


@pytest.mark.extended
@pytest.mark.once
@pytest.mark.slow
@pytest.mark.process
def test_a_sweep_killed_while_its_probe_is_made(hub: HubServer, commits, start, command, temporary):
    hub.fault("tokenizer.json", "slow", bytes_per_second=50)
    process = start("lab/model")
    while not list(temporary.glob("repdyn-probe-*/tokenizer/**/*.incomplete")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.kill()
    process.communicate()
    hub.faults.clear()
    (folder,) = temporary.glob("repdyn-probe-*")
    status, _, errors = command("lab/model", "--revisions", "8")
    assert status == 0, errors
    assert f"removed 1 temporary folder of killed processes: {folder}" in errors
    assert list(temporary.glob("*repdyn-*")) == []


def test_what_a_compaction_left_is_removed_and_what_it_writes_is_not(tmp_path, monkeypatch):
    store = open_store(tmp_path / "store")
    for step in (0, 8):
        store.write(dataclasses.replace(KEY, step=step), [row(step=step)])
    (tmp_path / "elsewhere").mkdir()
    linked = tmp_path / "elsewhere" / f".compact-{HEX}.parquet"
    linked.touch()
    (store.path / "link").symlink_to(tmp_path / "elsewhere")
    said = []
    done = store.compact("run", lambda done, total: said.append(remove_unfinished_files(store)))
    assert (done.files_after, said) == (1, [[], []])
    assert linked.exists()

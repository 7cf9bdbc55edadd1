"""A sweep into a remote store: what it measures, uploads and says, and two machines that share one."""

from __future__ import annotations

import threading

import pytest
from sweep.conftest import lines

from repdyn import open_store
from repdyn.cli import sweep as cli

pytestmark = pytest.mark.slow
URL = "faulty://host/sweeps"


@pytest.fixture
def elsewhere(elsewhere):
    return lambda: elsewhere(URL)


def values(store):
    frame = store.to_pandas("lab/model")
    return frame[frame["layer"].notna()].drop(columns=["seconds", "measured_at"]).reset_index(drop=True)


def test_a_remote_store_gets_the_values_of_a_local_one(faulty, hub, commits, command, shown, elsewhere, tmp_path):
    assert command("lab/model", "--store", URL)[0] == 0
    assert command("lab/model", "--store", tmp_path / "local")[0] == 0
    assert values(elsewhere()).equals(values(open_store(tmp_path / "local")))
    assert not [path for path in faulty.store if "/claims/" in path]
    status, _, err = command("lab/model", "--store", URL)
    assert (status, err) == (0, f"3 of 3 checkpoints are in {URL} already\n")


def test_what_cannot_be_uploaded_is_kept_and_said(faulty, hub, commits, command, shown, elsewhere, monkeypatch):
    monkeypatch.setattr(cli, "UPLOAD_SECONDS", 0.5)
    monkeypatch.setattr("repdyn.store.remote.UPLOAD_SECONDS", 0.5)
    faulty.faults["put_file"] = ConnectionRefusedError("refused")
    status, _, err = command("lab/model", "--store", URL, "--revisions", "step0,step8")
    assert status == 3
    assert "files are not uploaded" in err
    assert "repdyn push" in lines(err)[-1]
    assert elsewhere().runs() == []
    faulty.faults.clear()
    # the same command uploads it, and measures only the rest
    status, _, err = command("lab/model", "--store", URL)
    assert status == 0
    assert lines(err)[0] == f"2 of 3 checkpoints are in {URL} already"
    assert elsewhere().steps("lab/model") == [0, 8, 16]


def test_no_connection_is_exit_status_3(faulty, hub, commits, command):
    faulty.faults["find"] = ConnectionRefusedError("refused")
    status, _, err = command("lab/model", "--store", URL)
    assert status == 3
    assert f"listing at {URL} failed 3 times: refused; check the connection, then repeat the command" in err


def test_a_checkpoint_claimed_on_another_machine_is_left_to_it(faulty, hub, commits, command, elsewhere, monkeypatch):
    claimed = threading.Event()
    there = elsewhere()
    held = []
    original = type(there).claim

    def claim(store, key):
        if not claimed.is_set():
            claimed.set()
            held.append(original(there, key))
        return original(store, key)

    monkeypatch.setattr(type(there), "claim", claim)
    monkeypatch.setattr("repdyn.cli.sweep_measuring.show_store", lambda store, names: None)
    status, _, err = command("lab/model", "--store", URL)
    assert status == 1
    assert "not measured: lab/model step0: another process is measuring it" in err
    assert there.steps("lab/model") == []
    held[0].release()
    assert command("lab/model", "--store", URL)[0] == 0
    assert elsewhere().steps("lab/model") == [0, 8, 16]

"""Remote stores: a local copy, and uploads that survive any failure."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest
from remote_fixtures import FaultyFileSystem
from stored_rows import KEY, row

from repdyn import Probe, open_store
from repdyn.store import find_store
from repdyn.store.remote import RefusedError, RemoteError, is_shared

URL = "faulty://host/prefix/sweep"
OTHER = dataclasses.replace(KEY, step=16)


def written(url=URL, *keys):
    store = open_store(url)
    for key in keys or (KEY,):
        store.write(key, [row(step=key.step)])
    assert store.drain(20) is None
    return store


def requested(faulty: type[FaultyFileSystem], method: str) -> list[str]:
    return [
        path.removeprefix("/host/prefix/sweep/") for name, path in faulty.requests if name == method
    ]


def test_what_is_written_is_read_on_another_machine(faulty, elsewhere):
    store = open_store(URL)
    probe = Probe.from_tokens([[1, 2, 3, 4], [5, 6, 7, 8]], max_vectors=6)
    store.save_probe(probe)
    run = store.begin_run("a", {"lr": 1})
    store.write(dataclasses.replace(KEY, run=run.id), [row(run="a")])
    store.write(KEY, [row()])
    store.write(KEY.failed, [row(layer=None, reason="no")])
    assert store.drain(20) is None
    other = elsewhere(URL)
    assert other.path != store.path
    assert other.path.name == "sweep"
    assert other.to_pandas().equals(store.to_pandas())
    assert other.runs() == ["a", "run"]
    assert other.find_run(run.id).configuration == {"lr": 1}
    assert Probe.load(other.probe_path(probe.hash)).hash == probe.hash
    assert find_store(URL).runs() == ["a", "run"]


def test_only_what_is_new_or_changed_is_transferred(faulty, elsewhere):
    store = written(URL, KEY, OTHER)
    other = elsewhere(URL)
    faulty.requests.clear()
    other.refresh()
    assert [method for method, _ in faulty.requests] == ["find"]
    store.write(KEY, [row(value=3.0)])
    assert store.drain(20) is None
    assert requested(faulty, "put_file") == [KEY.filename]
    other.refresh()
    assert requested(faulty, "get_file") == [KEY.filename]
    assert other.read(KEY)[0].value == 3.0
    store.refresh()  # what this machine has uploaded is not downloaded again
    assert requested(faulty, "get_file") == [KEY.filename]
    assert open_store(URL, refresh=False).waiting() == []


def test_what_is_gone_remotely_is_deleted_but_not_what_waits(faulty, elsewhere):
    """Neither a file that is new, nor one that was uploaded before and has been written again."""
    written(URL, KEY, OTHER).refresh()
    other = elsewhere(URL)
    faulty.faults["put_file"] = ConnectionError("unreachable")
    other.write(dataclasses.replace(KEY, step=24), [row(step=24)])
    other.write(OTHER, [row(step=16, value=0.5)])
    for gone in (KEY, OTHER):
        faulty.store.pop(f"/host/prefix/sweep/{gone.filename}")
    other.refresh()
    assert other.steps("run") == [16, 24]
    faulty.faults.clear()
    assert other.drain(20) is None
    assert open_store(URL).steps("run") == [16, 24]
    assert open_store(URL).read(OTHER)[0].value == 0.5


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("run/step000000008-p-m.parquet", True),
        ("run/rows.parquet", True),
        ("run/run.json", True),
        ("probes/3f.safetensors", True),
        ("exports/csv/metrics.parquet", False),
        ("run/.repdyn-0123.parquet", False),
        ("run/alerts.yaml", False),
        ("run/kept_states/3f/step000000008/layer003.safetensors", False),
        ("../step000000008.parquet", False),
        ("report.html", False),
    ],
)
def test_which_files_are_shared(name, shared):
    assert is_shared(name) is shared


def test_names_that_lead_out_of_the_folder_are_not_downloaded(faulty, elsewhere):
    written()
    content = faulty.store[f"/host/prefix/sweep/{KEY.filename}"]
    faulty.store["/host/prefix/sweep/../../step000000001-p-m.parquet"] = content
    other = elsewhere(URL)
    assert {path.name for path in other.path.parent.rglob("*.parquet")} == {Path(KEY.filename).name}


@pytest.mark.parametrize("fault", ["truncate", ConnectionResetError("cut")])
def test_a_download_that_is_cut_is_no_file(faulty, elsewhere, fault):
    written()
    faulty.faults["get_file"] = fault
    with pytest.raises(RemoteError, match="repeat the command"):
        elsewhere(URL)
    faulty.faults.clear()
    assert elsewhere(URL).read(KEY)[0].value == 7.25


def test_an_upload_that_fails_waits_and_is_uploaded_by_the_next_start(faulty, elsewhere, caplog):
    store = open_store(URL)
    faulty.faults["put_file"] = ConnectionRefusedError("refused")
    store.write(KEY, [row()])
    problem = store.drain(1)
    assert "1 files are not uploaded" in problem
    assert f'open_store("{URL}").drain(600)' in problem
    assert "refused" in caplog.text
    faulty.faults.clear()
    again = open_store(URL)  # as a new process does
    assert again.drain(20) is None
    assert KEY in elsewhere(URL)


def test_one_file_that_fails_is_in_no_others_way(faulty, elsewhere, monkeypatch):
    store = open_store(URL)
    put = faulty.put_file

    def refuses_one(self, lpath, rpath, **options):
        if rpath.endswith(KEY.filename):
            raise ConnectionError("no")
        return put(self, lpath, rpath, **options)

    monkeypatch.setattr(faulty, "put_file", refuses_one)
    for key in (KEY, OTHER):
        store.write(key, [row(step=key.step)])
    assert "1 files" in store.drain(3)
    assert elsewhere(URL).steps("run") == [16]


def test_a_refusal_is_not_repeated_and_credentials_are_read_again(faulty):
    store = open_store(URL)
    faulty.faults["put_file"] = PermissionError("no access")
    store.write(KEY, [row()])
    assert "credentials" in store.drain(20)
    assert isinstance(store.error, RefusedError)
    faulty.faults.clear()  # renewed
    assert store.drain(20) is None


def test_writing_does_not_wait_for_the_upload(faulty, monkeypatch):
    store = open_store(URL, refresh=False)
    has_returned = threading.Event()
    returned_first = []

    def upload(names, source):
        returned_first.append(has_returned.wait(20))

    monkeypatch.setattr(store.remote, "upload", upload)
    store.write(KEY, [row()])
    has_returned.set()
    assert store.drain(20) is None
    assert returned_first == [True]


def test_a_server_that_does_not_answer_ends_no_training(faulty, monkeypatch):
    monkeypatch.setattr("repdyn.store.remote.REQUEST_SECONDS", 0.2)
    faulty.faults.update(put_file=1.0, find=1.0)
    store = open_store(URL, refresh=False)
    store.write(KEY, [row()])
    assert store.steps("run") == [8]
    assert "not uploaded" in store.drain(0.3)
    with pytest.raises(RemoteError, match="no answer in 0.2 s"):
        store.refresh()


def test_a_file_that_other_programs_write_to_the_copy_is_uploaded(faulty, elsewhere):
    store = written()
    copy = store.folder_of("b") / "rows.parquet"
    copy.parent.mkdir()
    copy.write_bytes((store.path / KEY.filename).read_bytes())
    store.refresh()
    assert store.drain(20) is None
    assert elsewhere(URL).runs() == ["b", "run"]


def test_a_url_without_its_package_or_its_secrets(faulty, monkeypatch):
    assert "secret" not in repr(open_store("faulty://user:secret@host/x", refresh=False))
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(ValueError, match=r"S3.*\[s3\]"):
        open_store("s3://bucket/x")
    with pytest.raises(ValueError, match="nosuch"):
        open_store("nosuch://bucket/x")

"""Remote stores: a local copy, uploads that survive any failure, and claims among machines."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time

import pytest
from remote_fixtures import FaultyFileSystem
from stored_rows import KEY, row

from repdyn import Probe, open_store
from repdyn.store import find_store, find_stores, leases, remote_requests
from repdyn.store.mirror import is_shared
from repdyn.store.remote_errors import RefusedError, RemoteError

URL = "faulty://host/prefix/sweep"
OTHER = dataclasses.replace(KEY, step=16)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Open the store on another machine: with another cache."""

    def opened(url=URL):
        with monkeypatch.context() as patch:
            patch.setenv("REPDYN_CACHE", str(tmp_path / "elsewhere"))
            return open_store(url)

    return opened


def written(url=URL, *keys):
    store = open_store(url)
    for key in keys or (KEY,):
        store.write(key, [row(step=key.step)])
    assert store.drain(20) is None
    return store


def test_rows_are_read_on_another_machine(faulty, elsewhere):
    store = written(URL, KEY, OTHER)
    other = elsewhere()
    assert other.path != store.path
    assert other.path.name == "sweep"
    assert other.to_pandas().equals(store.to_pandas())
    assert other.steps("run") == [8, 16]
    assert KEY in other


def test_only_what_is_new_or_changed_is_downloaded(faulty, elsewhere):
    store = written(URL, KEY, OTHER)
    other = elsewhere()
    faulty.requests.clear()
    other.refresh()
    assert [method for method, _ in faulty.requests] == ["find"]
    store.write(KEY, [row(value=3.0)])
    assert store.drain(20) is None
    faulty.requests.clear()
    other.refresh()
    assert [path for method, path in faulty.requests if method == "get_file"] == [f"/host/prefix/sweep/{KEY.filename}"]
    assert other.read(KEY)[0].value == 3.0
    # what this machine has uploaded is not downloaded again
    faulty.requests.clear()
    store.refresh()
    assert not [path for method, path in faulty.requests if method == "get_file"]


def test_what_is_gone_remotely_is_deleted_but_not_what_waits(faulty, elsewhere):
    store = written(URL, KEY, OTHER)
    other = elsewhere()
    faulty.faults["put_file"] = ConnectionError("unreachable")
    waiting = dataclasses.replace(KEY, step=24)
    other.write(waiting, [row(step=24)])
    faulty.store.pop(f"/host/prefix/sweep/{KEY.filename}")
    other.refresh()
    assert other.steps("run") == [16, 24]
    faulty.faults.clear()
    assert other.drain(20) is None
    store.refresh()
    assert store.steps("run") == [16, 24]


def test_discarded_failures_are_deleted_remotely(faulty, elsewhere):
    store = open_store(URL)
    store.write(KEY.failed, [row(layer=None, reason="no")])
    store.write(KEY, [row()])
    store.discard_failures(KEY)
    assert store.drain(20) is None
    assert KEY.failed not in elsewhere()
    assert KEY in elsewhere()


def test_a_failure_that_a_killed_process_has_discarded_does_not_come_back(faulty, elsewhere):
    store = open_store(URL)
    store.write(KEY.failed, [row(layer=None, reason="no")])
    store.write(KEY, [row()])
    assert store.drain(20) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pathlib.Path.unlink", lambda *_, **__: 1 / 0)
        patch.setattr(store._uploader, "wake", lambda: None)
        with pytest.raises(ZeroDivisionError):
            store.discard_failures(KEY)
    for _ in range(3):
        again = open_store(URL)
        assert again.drain(20) is None
    assert KEY.failed not in again
    assert KEY.failed not in elsewhere()
    assert KEY in again


def test_a_damaged_record_of_what_waits_is_named_and_in_the_way_of_nothing_later(faulty, elsewhere):
    store = written()
    marker = store.mirror.path.parent / "state" / "waiting" / "bad.json"
    marker.write_text("{")
    store.write(OTHER, [row(step=16)])
    problem = store.drain(5)
    assert f"cannot read {marker}" in problem
    assert "delete it" in problem
    with pytest.raises(RefusedError, match="delete it"):
        open_store(URL)
    marker.unlink()
    assert store.drain(20) is None
    assert OTHER in elsewhere()


def test_a_request_that_takes_long_is_said_once(faulty, monkeypatch, caplog):
    monkeypatch.setattr(remote_requests, "NOTICE_SECONDS", 0.1)
    store = written()
    assert caplog.text == ""
    faulty.faults["find"] = 0.3
    for _ in range(2):
        store.refresh()
    assert [record.getMessage() for record in caplog.records] == [
        f"listing at {URL}: no answer for 0.1 s; it is tried up to 3 times, for 100 s each"
    ]
    faulty.faults.clear()
    store.refresh()
    faulty.faults["find"] = 0.3
    store.refresh()
    assert len(caplog.records) == 2


def test_what_is_written_to_the_hub_is_committed_together(datasets, elsewhere):
    datasets.create("me/sweep")
    url = "hf://datasets/me/sweep"
    store = open_store(url)
    store.write(KEY.failed, [row(layer=None, reason="no")])
    for step in range(0, 48, 8):
        key = dataclasses.replace(KEY, step=step)
        claim = store.claim(key)
        store.write(key, [row(step=step)])
        store.discard_failures(key)
        claim.release()
    assert store.drain(30) is None
    assert len(datasets.commits) <= 2  # the first as soon as there is something
    n_before = len(datasets.commits)
    before = elsewhere(url).to_pandas()
    assert len(before) == 6
    store.compact("run")
    assert store.drain(30) is None
    assert len(datasets.commits) == n_before + 1
    assert len(datasets.files("me/sweep")) == 1
    other = elsewhere(url)
    assert other.to_pandas().equals(before)
    assert len(list(other.path.rglob("*.parquet"))) == 1


def test_a_file_that_another_machine_has_committed_meanwhile_is_not_deleted(datasets, elsewhere):
    datasets.create("me/sweep")
    url = "hf://datasets/me/sweep"
    here = written(url, KEY, OTHER)
    there = elsewhere(url)

    def progress(done, total):
        if done == 1:
            here.write(KEY, [row(value=2.0)])
            assert here.drain(20) is None

    there.compact("run", progress)
    assert there.drain(20) is None
    there.refresh()
    assert there.to_pandas()["value"].tolist() == [2.0, 7.25]


def test_probes_are_shared(faulty, elsewhere):
    import torch

    probe = Probe.from_tokens(torch.arange(64).reshape(4, 16), max_vectors=16, batch_vectors=16)
    store = open_store(URL)
    store.save_probe(probe)
    assert store.drain(20) is None
    assert Probe.load(elsewhere().probe_path(probe.hash)).hash == probe.hash


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("run/step000000008-p-m.parquet", True),
        ("run/step000000000-compact-3f.parquet", True),
        ("probes/3f.safetensors", True),
        ("certificates/3f.json", True),
        ("exports/csv/metrics.parquet", False),
        ("run/.0123.parquet", False),
        ("run/alerts.yaml", False),
        ("run/kept_states/3f/step000000008/layer003.safetensors", False),
        (".claims/3f.lock", False),
        ("claims/3f.000001", False),
        ("../outside/step000000008.parquet", False),
        ("report.html", False),
    ],
)
def test_which_files_are_shared(name, shared):
    assert is_shared(name) is shared


def test_names_that_lead_out_of_the_folder_are_not_downloaded(faulty, elsewhere):
    written()
    content = faulty.store[f"/host/prefix/sweep/{KEY.filename}"]
    faulty.store["/host/prefix/sweep/../../step000000001-p-m.parquet"] = content
    other = elsewhere()
    assert {path.name for path in other.path.parent.rglob("*.parquet")} == {KEY.filename.rpartition("/")[2]}


@pytest.mark.parametrize("fault", ["truncate", ConnectionResetError("cut")])
def test_a_download_that_is_cut_is_no_file(faulty, elsewhere, fault):
    written()
    faulty.faults["get_file"] = fault
    with pytest.raises(RemoteError, match=r"downloading run/step000000008.* failed 3 times.*repeat the command"):
        elsewhere()
    faulty.faults.clear()
    assert elsewhere().read(KEY)[0].value == 7.25


def test_an_upload_that_fails_waits_and_is_uploaded_by_the_next_start(faulty, elsewhere, caplog):
    store = open_store(URL)
    faulty.faults["put_file"] = ConnectionRefusedError("refused")
    started = time.monotonic()
    store.write(KEY, [row()])
    assert time.monotonic() - started < 1
    problem = store.drain(0.3)
    assert problem is not None
    assert "1 files are not uploaded" in problem
    assert f"repdyn push {store.path} {URL}" in problem
    assert KEY not in elsewhere()
    faulty.faults.clear()
    again = open_store(URL)
    assert KEY in again
    assert again.drain(20) is None
    assert KEY in elsewhere()


def test_a_refused_upload_is_not_repeated(faulty):
    store = open_store(URL)
    faulty.faults["put_file"] = PermissionError("ExpiredToken: The provided token has expired.")
    store.write(KEY, [row()])
    started = time.monotonic()
    problem = store.drain(30)
    assert time.monotonic() - started < 5
    assert "expired or unknown: renew them" in problem


def test_a_slow_server_is_given_up(faulty, monkeypatch):
    monkeypatch.setattr(remote_requests, "REQUEST_SECONDS", 0.05)
    faulty.faults["find"] = 1.0
    with pytest.raises(RemoteError, match=r"listing at .* failed 3 times: no answer in 0.05 s"):
        open_store(URL)


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("REPDYN_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ValueError, match=r"pip install 'repdyn\[gcs\]'"):
        open_store("gs://bucket/store")
    with pytest.raises(ValueError, match="expected a folder or a URL such as s3://bucket/prefix, got nowhere://x"):
        open_store("nowhere://x")


def test_find_store(faulty):
    with pytest.raises(ValueError, match=f"found none at {URL}"):
        find_store(URL)
    assert find_stores(URL) == []
    written()
    assert find_store(URL).steps("run") == [8]


def test_secrets_of_a_url_are_not_shown(faulty):
    store = open_store("faulty://me:password@host/sweep", refresh=False)
    assert "password" not in f"{store!r} {store.location} {store.path} {store.output}"


def test_a_file_written_to_the_copy_by_others_is_uploaded(faulty, elsewhere):
    store = written()
    open_store(store.path).write(OTHER, [row(step=16)])
    store.refresh()
    assert store.drain(20) is None
    assert OTHER in elsewhere()


def test_files_that_were_joined_are_replaced_everywhere(faulty, elsewhere):
    store = written(URL, KEY, OTHER)
    other, before = elsewhere(), store.to_pandas()
    store.compact("run")
    assert store.drain(20) is None
    other.refresh()
    assert len(list(other.path.rglob("*.parquet"))) == 1
    assert other.to_pandas().equals(before)
    store.split("run")
    assert store.drain(20) is None
    other.refresh()
    assert len(list(other.path.rglob("*.parquet"))) == 2
    assert other.to_pandas().equals(before)


def test_a_newer_measurement_of_another_machine_is_joined(faulty, elsewhere):
    here = written(URL, KEY, OTHER)
    there = elsewhere()
    here.write(KEY, [row(value=2.0)])
    assert here.drain(20) is None
    there.compact("run")
    assert there.drain(20) is None
    here.refresh()
    assert len(list(here.path.rglob("*.parquet"))) == 1
    assert here.read(KEY)[0].value == there.read(KEY)[0].value == 2.0


def test_a_measurement_that_arrives_while_files_are_joined_is_not_deleted(faulty, elsewhere):
    here = written(URL, KEY, OTHER)
    there = elsewhere()

    def progress(done, total):
        if done == 1:
            here.write(KEY, [row(value=2.0)])
            assert here.drain(20) is None

    there.compact("run", progress)
    assert there.drain(20) is None
    for store in (here, there):
        store.refresh()
        assert store.to_pandas()["value"].tolist() == [2.0, 7.25]
    there.compact("run")
    assert there.drain(20) is None
    here.refresh()
    assert len(list(here.path.rglob("*.parquet"))) == 1
    assert here.read(KEY)[0].value == 2.0


def test_two_machines_do_not_join_the_files_of_a_run_at_once(faulty, elsewhere):
    here = written(URL, KEY, OTHER)
    there = elsewhere()

    def progress(done, total):
        with pytest.raises(BlockingIOError, match=f"expected run in {URL} for this process alone; wait for the other"):
            there.compact("run")

    assert here.compact("run", progress).files_after == 1
    # what the first has joined is there when its claim is given back
    assert there.compact("run") is None
    assert len(list(there.path.rglob("*.parquet"))) == 1


@pytest.mark.extended
def test_a_run_is_not_joined_at_its_end_where_the_store_does_not_answer(faulty, monkeypatch, caplog):
    for module in ("store", "remote"):
        monkeypatch.setattr(f"repdyn.store.{module}.COMPACT_FROM", 2)
    monkeypatch.setattr("repdyn.store.remote.JOINED_SECONDS", 0.5)
    monkeypatch.setattr("repdyn.store.remote.END_SECONDS", 0.5)
    store = written(URL, KEY, OTHER)
    for method, fault in {"pipe_file": ConnectionRefusedError("refused"), "find": 3.0, "put_file": 3.0}.items():
        caplog.clear()
        faulty.faults[method] = fault
        store.write(KEY, [row()])
        started = time.monotonic()
        store.compact_at_end("run")
        assert time.monotonic() - started < 2.5
        assert "run was not made compact" in caplog.text
        assert f"repdyn compact {URL} does so" in caplog.text
        faulty.faults.clear()
        time.sleep(3 * (fault == 3.0))  # until what has been given up has ended
        assert store.drain(20) is None
    store.compact_at_end("run")
    assert len(list(store.path.rglob("*.parquet"))) == 1


def test_claims_exclude_other_machines(faulty, elsewhere):
    here, there = open_store(URL), elsewhere()
    claim = here.claim(KEY)
    assert claim is not None
    assert there.claim(KEY) is None
    here.write(KEY, [row()])
    claim.release()
    second = there.claim(KEY)
    # what was measured meanwhile is there at once
    assert KEY in there
    second.release()
    assert not [path for path in faulty.store if "/claims/" in path]


def test_the_claim_of_a_lost_machine_expires(faulty, elsewhere, monkeypatch):
    here, there = open_store(URL), elsewhere()
    with monkeypatch.context() as patch:
        patch.setattr(leases, "LEASE_SECONDS", -1.0)
        patch.setattr(leases.Lease, "_extend", lambda self: None)
        lost = here.claim(KEY)
    claim = there.claim(KEY)
    assert claim is not None
    assert [path.rpartition(".")[2] for path in faulty.store if "/claims/" in path] == ["000002"]
    lost.release()  # it comes back, and takes nothing from the other
    assert open_store(URL).claim(KEY) is None
    claim.release()


def test_a_killed_process_is_not_in_the_way_of_its_machine(faulty):
    store = open_store(URL)
    lost = store.claim(KEY)
    lost._claim._ended.set()
    lost._claim._local.release()  # the lock of a killed process goes with it, the claim stays
    assert store.claim(KEY) is not None


def test_of_many_claims_one_succeeds(faulty, elsewhere, tmp_path, monkeypatch):
    stores = []
    for index in range(8):
        monkeypatch.setenv("REPDYN_CACHE", str(tmp_path / str(index)))
        stores.append(open_store(URL))
    for round_ in range(5):
        key, barrier, claims = dataclasses.replace(KEY, step=round_), threading.Barrier(8), []

        def claim(store, key=key, barrier=barrier, claims=claims):
            barrier.wait()
            claims.append(store.claim(key))

        threads = [threading.Thread(target=claim, args=(store,)) for store in stores]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        held = [one for one in claims if one is not None]
        assert len(held) == 1
        held[0].release()


def test_a_server_without_conditional_writes_is_noticed(faulty, monkeypatch):
    def pipe_file(self, path, value, mode="overwrite", **options):
        return super(FaultyFileSystem, self).pipe_file(path, value)

    monkeypatch.setattr(FaultyFileSystem, "pipe_file", pipe_file)
    with pytest.raises(ValueError, match="expected a server that creates files on condition"):
        open_store(URL).claim(KEY)


@pytest.mark.extended
@pytest.mark.process
def test_neither_the_package_nor_a_local_store_loads_fsspec():
    code = (
        "import sys, repdyn; print('fsspec' in sys.modules); import repdyn.store.mirror, repdyn.store.remote_folder;"
        "before = 'fsspec' in sys.modules; from repdyn.store.remote import RemoteStore; print(before)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert out[0] == "False", out


WRITER = """
import sys
from repdyn import open_store
from stored_rows import KEY, row
import dataclasses
store = open_store(sys.argv[1])
for step in range(int(sys.argv[2])):
    key = dataclasses.replace(KEY, step=step)
    if key not in store:
        claim = store.claim(key)
        if claim is None or key in store:
            continue
        store.write(key.failed, [row(step=step, layer=None, reason="first")])
        store.write(key, [row(step=step, value=float(step))])
        store.discard_failures(key)
        claim.release()
    print(step, flush=True)
print(store.drain(60))
"""


def check_killed_writers(url, elsewhere, tmp_path, environment, kill_after, n_steps):
    """Kill a process that writes a store after so many steps each time, let the last one end, and check the store."""
    (tmp_path / "writer.py").write_text(WRITER)
    variables = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "writer.py"), url, str(n_steps)]
    for steps in kill_after:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables)
        for _ in range(steps):
            process.stdout.readline()
        process.kill()
        process.wait()
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "None"
    store = elsewhere(url)
    assert store.to_pandas()["value"].tolist() == [float(step) for step in range(n_steps)]
    assert len(list(store.path.rglob("*.parquet"))) == n_steps  # no failure came back


@pytest.mark.extended
@pytest.mark.once
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(600)
def test_killed_at_any_moment_a_store_on_s3_ends_as_an_undisturbed_one(bucket, s3_environment, elsewhere, tmp_path):
    check_killed_writers(f"{bucket}/sweep", elsewhere, tmp_path, s3_environment, (1, 6), 40)


@pytest.mark.extended
@pytest.mark.once
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(600)
def test_killed_at_any_moment_a_store_on_the_hub_ends_as_an_undisturbed_one(datasets, elsewhere, tmp_path):
    datasets.create("me/sweep")
    environment = {
        "HF_ENDPOINT": datasets.url,
        "HF_TOKEN": "none",
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "REPDYN_CACHE": str(tmp_path / "cache"),
    }
    check_killed_writers("hf://datasets/me/sweep", elsewhere, tmp_path, environment, (1, 3), 10)


@pytest.mark.slow
def test_on_s3(bucket, elsewhere):
    store = written(f"{bucket}/some/sweep", KEY, OTHER)
    other = elsewhere(f"{bucket}/some/sweep")
    assert other.to_pandas().equals(store.to_pandas())
    claim = other.claim(KEY)
    assert store.claim(KEY) is None
    claim.release()
    with pytest.raises(RefusedError, match="expected an existing bucket or repository at s3://no-such-bucket/x"):
        open_store("s3://no-such-bucket/x")


def test_a_claim_says_nothing_of_its_machine(faulty):
    claim = open_store(URL).claim(KEY)
    (path,) = [path for path in faulty.store if "/claims/" in path]
    assert set(json.loads(faulty.store[path].getvalue())) == {"owner", "until", "token"}
    claim.release()

"""Stores on S3 and on the Hugging Face hub that fail or are killed while they are written: nothing
is lost.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest
from stored_rows import KEY, row

from repdyn import open_store
from repdyn.store.remote import RefusedError, RemoteError

EXPIRED = {"status": 400, "code": "ExpiredToken"}
REFUSALS = [
    EXPIRED,
    {"status": 403, "code": "InvalidAccessKeyId"},
    {"status": 403, "code": "AccessDenied"},
]
INTERRUPTIONS = [
    ("refused", {}),
    ("status", {"status": 503}),
    ("status", {"status": 500}),
    ("slow", {"seconds": 0.6}),
]
HUB = "hf://datasets/me/sweep"
BUSY = [("status", {"code": code}) for code in (500, 503, 429, 412)] + [("cut", {})]


@pytest.mark.parametrize("error", REFUSALS)
def test_a_refused_upload_to_s3_waits(bucket, s3_server, elsewhere, error):
    store = open_store(f"{bucket}/mine")
    s3_server.fault("^PUT", "status", **error)
    store.write(KEY, [row()])
    assert "credentials" in store.drain(20)
    assert elsewhere(store.location).runs() == []
    s3_server.faults.clear()
    assert store.drain(20) is None
    assert elsewhere(store.location).to_pandas().equals(store.to_pandas())


@pytest.mark.parametrize("error", REFUSALS)
def test_a_refused_reader_of_s3_is_told(bucket, s3_server, error):
    s3_server.fault("^GET", "status", **error)
    with pytest.raises(RefusedError, match="credentials"):
        open_store(f"{bucket}/mine")


@pytest.mark.parametrize(("kind", "options"), INTERRUPTIONS)
def test_an_interrupted_upload_to_s3_is_repeated(bucket, s3_server, elsewhere, kind, options):
    store = open_store(f"{bucket}/mine")
    s3_server.fault("^PUT", kind, times=2, **options)
    store.write(KEY, [row()])
    assert store.drain(30) is None
    assert elsewhere(store.location).to_pandas().equals(store.to_pandas())


def test_downloads_from_s3_that_are_cut(bucket, s3_server, elsewhere):
    store = open_store(f"{bucket}/mine")
    store.write(KEY, [row()])
    assert store.drain(20) is None
    s3_server.fault("^GET .*parquet", "cut")
    with pytest.raises(RemoteError, match="downloading run/step000000008"):
        elsewhere(store.location)
    s3_server.faults.clear()
    s3_server.fault("^GET .*parquet", "cut", times=1)
    assert elsewhere(store.location).to_pandas().equals(store.to_pandas())


def test_credentials_that_expire_are_renewed_while_the_process_runs(
    bucket, s3_server, monkeypatch, tmp_path
):
    credentials = tmp_path / "credentials"
    credentials.write_text("[default]\naws_access_key_id=first\naws_secret_access_key=x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = open_store(f"{bucket}/mine")
    type(store.remote._opened[0]).clear_instance_cache()
    store.remote.__dict__.pop("_opened")  # that of the fixture has other credentials
    store.write(KEY, [row()])
    assert store.drain(20) is None
    s3_server.fault("", "status", key_id="Credential=first/", **EXPIRED)
    store.write(dataclasses.replace(KEY, step=16), [row(step=16)])
    assert "renew" in store.drain(20)
    credentials.write_text("[default]\naws_access_key_id=second\naws_secret_access_key=x\n")
    assert store.drain(20) is None


@pytest.fixture(params=[(), (".parquet",)], ids=["regular", "lfs"])
def hub_store(request, datasets):
    """A hub with an empty dataset, whose files are regular ones or in LFS."""
    datasets.create("me/sweep")
    datasets.large = request.param
    return datasets


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize(("kind", "options"), BUSY)
def test_an_interrupted_commit_is_repeated(hub_store, elsewhere, kind, options, is_done):
    store = open_store(HUB)
    hub_store.fault("^POST .*/commit/", kind, times=2, is_done=is_done, **options)
    store.write(KEY, [row()])
    assert store.drain(30) is None
    assert sorted(hub_store.files("me/sweep")) == [KEY.filename]
    assert elsewhere(HUB).to_pandas().equals(store.to_pandas())


def test_what_is_written_to_the_hub_is_committed_together(hub_store, elsewhere, capfd):
    store = open_store(HUB)
    for step in range(0, 48, 8):
        store.write(dataclasses.replace(KEY, step=step), [row(step=step)])
    assert store.drain(30) is None
    assert len(hub_store.commits) <= 2  # the first as soon as there is something
    assert elsewhere(HUB).to_pandas().equals(store.to_pandas())
    assert "%|" not in capfd.readouterr().err  # a progress bar in that of a training


WRITER = """
import sys
from repdyn import open_store
from stored_rows import KEY, row
import dataclasses
store = open_store(sys.argv[1])
for step in range(int(sys.argv[2])):
    key = dataclasses.replace(KEY, step=step)
    if key not in store:
        store.write(key.failed, [row(step=step, layer=None, value=float("nan"), reason="first")])
        store.write(key, [row(step=step, value=float(step))])
    print(step, flush=True)
print(store.drain(60))
"""


def check_killed_writers(url, elsewhere, tmp_path, environment, kill_after, n_steps):
    """Kill a process that writes a store after so many steps each time, let the last one end, and
    check the store.
    """
    (tmp_path / "writer.py").write_text(WRITER)
    variables = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "writer.py"), url, str(n_steps)]
    for steps in kill_after:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables)
        assert process.stdout is not None
        for _ in range(steps):
            process.stdout.readline()
        process.kill()
        process.wait()
    done = subprocess.run(
        command, capture_output=True, text=True, env=variables, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "None"
    assert elsewhere(url).to_pandas()["value"].tolist() == [float(step) for step in range(n_steps)]


@pytest.mark.once
@pytest.mark.process
@pytest.mark.timeout(600)
def test_killed_at_any_moment_a_store_on_s3_ends_as_an_undisturbed_one(
    bucket, s3_environment, elsewhere, tmp_path
):
    check_killed_writers(f"{bucket}/sweep", elsewhere, tmp_path, s3_environment, (1, 6), 40)


@pytest.mark.once
@pytest.mark.process
@pytest.mark.timeout(600)
def test_killed_at_any_moment_a_store_on_the_hub_ends_as_an_undisturbed_one(
    datasets, elsewhere, tmp_path
):
    datasets.create("me/sweep")
    environment = {
        "HF_ENDPOINT": datasets.url,
        "HF_TOKEN": "none",
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "REPDYN_CACHE": str(tmp_path / "cache"),
    }
    check_killed_writers(HUB, elsewhere, tmp_path, environment, (1, 3), 10)


KILLED_WRITER = """
import itertools, sys
from stored_rows import row
from repdyn.store import MeasurementKey, Store
store = Store(sys.argv[1])
rows = [row(layer=layer) for layer in range(2000)]
print("ready", flush=True)
for step in itertools.count():
    store.write(MeasurementKey("run", step % 50, "p", "m"), rows)
    print(step, flush=True)
"""


@pytest.mark.once
@pytest.mark.process
def test_a_store_is_readable_after_a_killed_write(tmp_path):
    import time

    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILLED_WRITER, str(tmp_path)]
    for delay in (0.0, 0.003, 0.01):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=variables)
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        time.sleep(delay)
        process.kill()
        process.wait()
        assert set(open_store(tmp_path).to_pandas().groupby("step").size()) == {2000}

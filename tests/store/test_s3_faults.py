"""A store on a server that speaks S3 and fails: nothing is lost, and what is wrong is said."""

from __future__ import annotations

import dataclasses

import pytest
from stored_rows import KEY, row

from repdyn import open_store
from repdyn.store import remote_requests, uploader
from repdyn.store.remote_errors import RefusedError, RemoteError

pytestmark = pytest.mark.slow
EXPIRED = {"status": 400, "code": "ExpiredToken"}
REFUSALS = [
    (EXPIRED, "the credentials are expired or unknown: renew them"),
    ({"status": 403, "code": "InvalidAccessKeyId"}, "the credentials are expired or unknown: renew them"),
    ({"status": 403, "code": "AccessDenied"}, "the credentials lack the permission for it"),
]
INTERRUPTIONS = [("refused", {}), ("status", {"status": 503}), ("status", {"status": 500}), ("slow", {"seconds": 0.6})]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(remote_requests, "WAITS_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(uploader, "FIRST_PAUSE_SECONDS", 0.1)


@pytest.mark.parametrize(("error", "message"), REFUSALS)
def test_a_refused_upload_waits(bucket, s3_server, elsewhere, error, message):
    store = open_store(f"{bucket}/mine")
    s3_server.fault("^PUT", "status", **error)
    store.write(KEY, [row()])
    problem = store.drain(20)
    assert problem is not None
    assert message in problem
    assert elsewhere(store.location).runs() == []
    s3_server.faults.clear()
    assert store.drain(20) is None
    assert elsewhere(store.location).to_pandas().equals(store.to_pandas())


@pytest.mark.parametrize(("error", "message"), REFUSALS)
def test_a_refused_reader_is_told(bucket, s3_server, error, message):
    s3_server.fault("^GET", "status", **error)
    with pytest.raises(RefusedError, match=message):
        open_store(f"{bucket}/mine")


def test_expired_credentials_at_a_request_whose_answer_has_no_body(bucket, s3_server):
    store = open_store(f"{bucket}/mine")
    s3_server.fault("^HEAD", "status", **EXPIRED)
    with pytest.raises(RefusedError, match="the credentials are probably expired: renew them"):
        store.remote.file(KEY.filename)


@pytest.mark.parametrize(("kind", "options"), INTERRUPTIONS)
def test_an_interrupted_upload_is_repeated(bucket, s3_server, elsewhere, kind, options):
    store = open_store(f"{bucket}/mine")
    s3_server.fault("^PUT", kind, times=2, **options)
    store.write(KEY, [row()])
    assert store.drain(30) is None
    assert elsewhere(store.location).to_pandas().equals(store.to_pandas())
    assert len([request for request in s3_server.requests if request.endswith(f"mine/{KEY.filename}")]) > 1


@pytest.mark.extended
def test_downloads_that_are_cut(bucket, s3_server, elsewhere):
    store = open_store(f"{bucket}/mine")
    store.write(KEY, [row()])
    assert store.drain(20) is None
    s3_server.fault("^GET .*parquet", "cut")
    with pytest.raises(RemoteError, match="downloading run/step000000008"):
        elsewhere(store.location)
    s3_server.faults.clear()
    s3_server.fault("^GET .*parquet", "cut", times=1)
    assert elsewhere(store.location).to_pandas().equals(store.to_pandas())


def test_a_server_that_says_nothing(bucket, s3_server, monkeypatch):
    monkeypatch.setattr(remote_requests, "REQUEST_SECONDS", 0.2)
    s3_server.fault("^GET", "slow", seconds=1.0)
    with pytest.raises(RemoteError, match=r"no answer in 0\.2 s"):
        open_store(f"{bucket}/mine")


def test_credentials_that_expire_are_renewed_while_the_process_runs(bucket, s3_server, monkeypatch, tmp_path):
    credentials = tmp_path / "credentials"
    credentials.write_text("[default]\naws_access_key_id=first\naws_secret_access_key=x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = open_store(f"{bucket}/mine")
    type(store.remote._filesystem).clear_instance_cache()
    store.remote.__dict__.pop("_opened")  # that of the fixture has other credentials
    store.write(KEY, [row()])
    assert store.drain(20) is None
    s3_server.fault("", "status", key_id="Credential=first/", **EXPIRED)
    store.write(dataclasses.replace(KEY, step=16), [row(step=16)])
    problem = store.drain(20)
    assert problem is not None
    assert "renew them" in problem
    credentials.write_text("[default]\naws_access_key_id=second\naws_secret_access_key=x\n")
    # without a further call, as in a training that only writes
    store._uploader._thread.join(0.3)
    assert store.drain(20) is None
    assert s3_server.faults[0].key_id == "Credential=first/"

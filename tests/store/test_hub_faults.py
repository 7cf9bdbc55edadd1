"""A store on the Hugging Face hub that fails while it is written: nothing is lost, and what is wrong is said."""

from __future__ import annotations

import dataclasses
import time
from hashlib import sha256

import pytest
from huggingface_hub import _commit_api
from huggingface_hub.utils import _xet
from stored_rows import KEY, row

from repdyn import open_store
from repdyn.store import remote_requests, uploader

pytestmark = pytest.mark.slow
URL = "hf://datasets/me/sweep"
OTHER = dataclasses.replace(KEY, step=16)
FIRST, SECOND = ("hf_" + letter * 34 for letter in "ab")
BUSY = {"status": [{"code": 500}, {"code": 502}, {"code": 503}, {"code": 429}, {"code": 412}], "cut": [{}]}
INTERRUPTIONS = [(kind, options) for kind, each in BUSY.items() for options in each]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(remote_requests, "WAITS_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(uploader, "FIRST_PAUSE_SECONDS", 0.1)


@pytest.fixture
def token(monkeypatch, tmp_path):
    """The file that the client of the hub reads the token from, with the first one in it."""
    path = tmp_path / "token"
    path.write_text(FIRST)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return path


@pytest.fixture(params=[(), (".parquet",)], ids=["regular", "lfs"])
def sweep(request, datasets):
    """A hub with an empty dataset, whose files are regular ones or in LFS."""
    datasets.create("me/sweep")
    datasets.large = request.param
    return datasets


@pytest.fixture
def large(datasets):
    """A hub with an empty dataset, whose files are in LFS."""
    datasets.create("me/sweep")
    datasets.large = (".parquet",)
    return datasets


def files(hub) -> list[str]:
    return sorted(hub.files("me/sweep"))


def commits(hub) -> int:
    """Return the number of commits that the hub was asked for."""
    return sum(method == "POST" and "/commit/" in path for method, path in hub.requests)


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize(("kind", "options"), INTERRUPTIONS)
def test_an_interrupted_commit_is_repeated(sweep, elsewhere, kind, options, is_done):
    store = open_store(URL)
    sweep.fault("^POST .*/commit/", kind, times=2, is_done=is_done, **options)
    store.write(KEY, [row()])
    assert store.drain(30) is None
    assert files(sweep) == [KEY.filename]
    assert len(sweep.commits) == 1
    assert elsewhere(URL).to_pandas().equals(store.to_pandas())


@pytest.mark.parametrize("is_done", [False, True])
def test_files_that_were_joined_are_replaced_once_although_the_answer_is_lost(sweep, elsewhere, is_done):
    store = open_store(URL)
    for key in (KEY, OTHER):
        store.write(key, [row(step=key.step)])
    assert store.drain(30) is None
    before = store.to_pandas()
    n_before = len(sweep.commits)
    sweep.fault("^POST .*/commit/", "status", times=1, code=500, is_done=is_done)
    store.compact("run")
    assert store.drain(30) is None
    assert len(sweep.commits) == n_before + 1
    (joined,) = files(sweep)
    assert "-compact-" in joined
    assert elsewhere(URL).to_pandas().equals(before)


@pytest.mark.parametrize("path", ["preupload/", "batch", "^PUT /objects/"])
def test_an_interrupted_upload_of_a_large_file_is_repeated(large, elsewhere, path, capfd):
    datasets = large
    store = open_store(URL)
    datasets.fault(path, "status", times=3, code=503)
    datasets.fault(path, "cut", times=3)
    store.write(KEY, [row()])
    assert store.drain(30) is None
    assert elsewhere(URL).to_pandas().equals(store.to_pandas())
    assert len(datasets.objects) == 1
    assert "%|" not in capfd.readouterr().err  # a progress bar in that of a training


@pytest.mark.extended
def test_why_a_large_file_is_not_uploaded_is_said_without_the_signature(large):
    store = open_store(URL)
    large.fault("^PUT /objects/", "status", code=403)
    store.write(KEY, [row()])
    problem = store.drain(5)
    assert f"Error while uploading '{KEY.filename}'" in problem
    assert "403" in problem
    assert "signature" not in problem


@pytest.fixture
def xet(large, monkeypatch, tmp_path):
    """A hub whose large files go to a Xet storage, which is a folder."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    monkeypatch.setattr(_xet, "XET_CONNECTION_INFO_CACHE", {})

    def find(checksum: str) -> bytes:
        written = (path.read_bytes() for path in (tmp_path / "cache").rglob("step*.parquet"))
        return next(content for content in written if sha256(content).hexdigest() == checksum)

    large.xet, large.find_object = f"local://{tmp_path / 'xet'}", find
    return large


def test_a_store_whose_files_go_to_xet(xet, elsewhere, tmp_path, capfd):
    store = open_store(URL)
    for key in (KEY, OTHER):
        store.write(key, [row(step=key.step)])
    assert store.drain(30) is None
    assert files(xet) == [KEY.filename, OTHER.filename]
    assert list((tmp_path / "xet").rglob("xorbs/default.*"))
    assert elsewhere(URL).to_pandas().equals(store.to_pandas())
    assert "Processing Files" not in capfd.readouterr().err


@pytest.mark.parametrize(("code", "message"), [(401, "renew them"), (403, "lack the permission")])
def test_a_xet_storage_that_refuses(xet, code, message):
    store = open_store(URL)
    xet.fault("/xet-write-token/", "status", code=code)
    store.write(KEY, [row()])
    started = time.monotonic()
    problem = store.drain(30)
    assert time.monotonic() - started < 15
    assert message in problem
    xet.faults.clear()
    assert store.drain(30) is None


@pytest.mark.extended
def test_a_xet_storage_that_does_not_answer_is_given_up(xet, monkeypatch):
    # that it answers later is not tested: the client of Xet keeps its stand-in's address in this process
    monkeypatch.setattr(remote_requests, "TRANSFER_SECONDS", 0.5)
    xet.xet = "http://127.0.0.1:9"
    store = open_store(URL)
    store.write(KEY, [row()])
    problem = store.drain(8)
    assert "no answer in 0.5 s" in problem
    assert f"repdyn push {store.path} {URL}" in problem
    assert [each.value for each in store.read(KEY)] == [row().value]


@pytest.mark.extended
def test_a_commit_without_an_answer_is_given_up_and_made_later(sweep, elsewhere, monkeypatch):
    monkeypatch.setattr(remote_requests, "TRANSFER_SECONDS", 0.5)
    store = open_store(URL)
    sweep.fault("^POST .*/commit/", "stall", seconds=30)
    started = time.monotonic()
    store.write(KEY, [row()])
    assert time.monotonic() - started < 0.5
    problem = store.drain(8)
    assert problem is not None
    assert "no answer in 0.5 s" in problem
    assert f"repdyn push {store.path} {URL}" in problem
    assert files(sweep) == []
    sweep.faults.clear()
    assert store.drain(30) is None
    assert elsewhere(URL).to_pandas().equals(store.to_pandas())


@pytest.mark.extended
def test_a_commit_that_is_made_late_changes_nothing_of_a_newer_one(sweep, elsewhere, monkeypatch):
    monkeypatch.setattr(remote_requests, "TRANSFER_SECONDS", 0.5)
    store = open_store(URL)
    store.write(KEY, [row(value=1.0)])
    assert store.drain(30) is None
    # what has been given up goes on in the client, which waits as the hub has asked
    n_late, send = [], _commit_api._send_commit

    def late(**options):
        n_late.append(1)
        time.sleep(4)
        return send(**options)

    with monkeypatch.context() as patch:
        patch.setattr(_commit_api, "_send_commit", late)
        patch.setattr(remote_requests, "WAITS_SECONDS", ())
        store.write(KEY, [row(value=2.0)])
        assert "no answer in 0.5 s" in store.drain(2.5)
    monkeypatch.setattr(remote_requests, "TRANSFER_SECONDS", 30.0)
    store.write(KEY, [row(value=3.0)])
    assert store.drain(30) is None
    time.sleep(5)
    assert n_late
    assert elsewhere(URL).read(KEY)[0].value == 3.0


def test_the_wait_that_the_hub_asks_for_is_granted(sweep, elsewhere, caplog):
    store = open_store(URL)
    sweep.fault("^POST .*/commit/", "status", times=1, code=429, headers={"Retry-After": "2"})
    store.write(KEY, [row()])
    started = time.monotonic()
    assert store.drain(30) is None
    assert time.monotonic() - started > 1.9
    assert commits(sweep) == 2
    assert elsewhere(URL).to_pandas().equals(store.to_pandas())


@pytest.mark.parametrize("headers", [{"Retry-After": "2400"}, {"RateLimit": '"api";r=0;t=2400'}])
def test_a_long_wait_that_the_hub_asks_for_is_said_and_not_sat_out(sweep, elsewhere, headers):
    store = open_store(URL)
    sweep.fault("^POST .*/commit/", "status", code=429, headers=headers)
    store.write(KEY, [row()])
    started = time.monotonic()
    problem = store.drain(30)
    assert time.monotonic() - started < 10
    assert "asks to wait 2400 s" in problem
    assert f"repdyn push {store.path} {URL}" in problem
    time.sleep(0.5)
    asked = commits(sweep)
    assert asked <= 2  # the first may have been made before the wait for it began
    # what is written meanwhile causes no further request
    store.write(OTHER, [row(step=16)])
    time.sleep(0.5)
    assert commits(sweep) == asked
    sweep.faults.clear()
    assert store.drain(30) is None
    assert elsewhere(URL).to_pandas().equals(store.to_pandas())


def test_a_token_that_expires_between_two_commits(sweep, token, elsewhere, monkeypatch, caplog):
    monkeypatch.setattr(uploader, "COMMIT_SECONDS", 0.1)
    sweep.token = FIRST
    store = open_store(URL)
    store.write(KEY, [row()])
    assert store.drain(30) is None
    sweep.token = SECOND
    store.write(OTHER, [row(step=16)])
    problem = store.drain(10)
    assert "renew them, then repeat the command" in problem
    assert f"repdyn push {store.path} {URL}" in problem
    assert FIRST not in problem + caplog.text
    assert files(sweep) == [KEY.filename]
    token.write_text(SECOND)
    # without a further call, as in a training that only writes
    deadline = time.monotonic() + 20
    while store.mirror.waiting() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert files(sweep) == [KEY.filename, OTHER.filename]
    assert elsewhere(URL).to_pandas().equals(store.to_pandas())


@pytest.mark.extended
def test_a_file_that_the_repository_ignores_is_named_and_kept(sweep):
    store = open_store(URL)
    sweep.ignored = {KEY.filename}
    for key in (KEY, OTHER):
        store.write(key, [row(step=key.step)])
    problem = store.drain(8)
    assert "1 files are not uploaded" in problem
    assert f"{KEY.filename} is not in {URL} after its commit" in problem
    assert ".gitignore" in problem
    assert files(sweep) == [OTHER.filename]
    sweep.ignored = set()
    assert store.drain(30) is None
    assert files(sweep) == [KEY.filename, OTHER.filename]

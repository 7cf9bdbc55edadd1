"""Whatever a hub sends, and however slowly: it is bounded in time and size, and Ctrl-C acts at once."""

import itertools
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hub_server import HubServer
from huggingface_hub import HfApi

from repdyn.hub import transfer
from repdyn.hub.client import Hub, RemoteFile
from repdyn.hub.errors import CancelledError, CheckpointError
from repdyn.hub.tokenizers import HubFolder, fetch_tokenizer
from repdyn.hub.transfer import DownloadMonitor, in_threads, unmonitored

DRIP = {"bytes_per_second": 20}
SOON = 8.0
"""Seconds, on a machine that is busy with other things."""


@pytest.fixture
def commit(hub: HubServer, family: dict[int, Path]) -> str:
    return hub.publish("lab/model", "main", family[8])


def seconds_until(error: type[BaseException], call: Callable[[], object], match: str | None = None) -> float:
    start = time.monotonic()
    with pytest.raises(error) as raised:
        call()
    assert match is None or match in str(raised.value)
    return time.monotonic() - start


@pytest.mark.parametrize("what", ["refs", "commit", "files"])
def test_a_listing_that_drips_ends_with_the_timeout(hub, commit, what):
    hub.fault("/api/", "slow", **DRIP)
    slow = Hub(timeout_seconds=0.5)
    requests = {
        "refs": lambda: slow.refs("lab/model"),
        "commit": lambda: slow.commit("lab/model", "main"),
        "files": lambda: slow.files("lab/model", commit),
    }
    expected = "did not complete its answer within --timeout 0.5 seconds"
    assert seconds_until(CheckpointError, requests[what], expected) < SOON


def test_a_listing_without_end(hub, commit, monkeypatch):
    entries = list(HfApi(endpoint=hub.url).list_repo_tree("lab/model", revision=commit, recursive=True))
    monkeypatch.setattr(HfApi, "list_repo_tree", lambda *_, **__: itertools.cycle(entries))
    monkeypatch.setattr("repdyn.hub.client._MOST_FILES", 1000)
    with pytest.raises(CheckpointError, match="expected at most 1,000 files in lab/model, the hub lists more"):
        Hub().files("lab/model", commit)


def test_a_file_that_drips_ends_with_the_timeout(hub, commit, tmp_path):
    files = Hub().files("lab/model", commit)
    hub.fault("config.json", "slow", **DRIP)
    monitor = DownloadMonitor(0.5, threading.Event(), lambda n: None)
    download = lambda: Hub().download("lab/model", commit, files, tmp_path / "here", monitor)  # noqa: E731
    assert seconds_until(CheckpointError, download, "longer than --timeout 0.5 seconds") < SOON


def test_a_tokenizer_that_drips_ends_with_the_timeout(hub, commit, tmp_path):
    hub.fault("tokenizer.json", "slow", **DRIP)
    slow, folders = Hub(timeout_seconds=0.5), [HubFolder("lab/model")]
    fetch = lambda: fetch_tokenizer("lab/model", folders, slow, tmp_path / "here", False)  # noqa: E731
    assert seconds_until(CheckpointError, fetch, "longer than --timeout 0.5 seconds") < SOON


@pytest.mark.parametrize("what", ["listing", "tokenizer"])
def test_ctrl_c_acts_while_a_hub_drips(hub, commit, tmp_path, what):
    hub.fault("tokenizer.json" if what == "tokenizer" else "/api/", "slow", **DRIP)
    slow, folders = Hub(), [HubFolder("lab/model")]
    main = threading.main_thread().ident or 0
    threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)).start()
    fetch = lambda: fetch_tokenizer("lab/model", folders, slow, tmp_path / "here", False)  # noqa: E731
    assert seconds_until(KeyboardInterrupt, fetch) < SOON


def test_more_bytes_than_listed(hub, commit, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "PIECE_BYTES", 0)
    files = {"model.safetensors": RemoteFile(1000, None)}
    with pytest.raises(
        CheckpointError, match=r"model.safetensors is larger than the hub lists: [\d,]+ bytes arrived of 1,000"
    ):
        Hub().download("lab/model", commit, files, tmp_path / "here", unmonitored())
    assert not (tmp_path / "here" / "model.safetensors").exists()


def test_every_file_is_fetched_once_and_the_first_error_ends_the_others():
    fetched: list[str] = []
    in_threads(fetched.append, [str(number) for number in range(100)], unmonitored(), threading.Event())
    assert sorted(fetched, key=int) == [str(number) for number in range(100)]

    def fail(name: str) -> None:
        fetched.append(name)
        raise ZeroDivisionError(name)

    fetched.clear()
    with pytest.raises(ZeroDivisionError):
        in_threads(fail, [str(number) for number in range(100)], unmonitored(), threading.Event())
    assert len(fetched) <= 4


def test_cancelling_does_not_wait_for_a_silent_server():
    cancelled, silent = threading.Event(), threading.Event()
    monitor = DownloadMonitor(60, cancelled, lambda n: None)
    threading.Timer(0.2, cancelled.set).start()
    waiting = lambda: in_threads(lambda name: silent.wait(20) and None, ["a"], monitor, threading.Event())  # noqa: E731
    assert seconds_until(CancelledError, waiting) < SOON
    silent.set()


def test_a_download_leaves_no_threads(hub, commit, tmp_path):
    files = Hub().files("lab/model", commit)
    before = {thread.name for thread in threading.enumerate()}
    Hub().download("lab/model", commit, files, tmp_path / "here", unmonitored())
    after = [thread.name for thread in threading.enumerate() if "process_request" not in thread.name]
    assert set(after) <= before


def test_an_interrupted_request_is_not_taken_for_ended(hub, commit):
    hub.fault("/api/", "slow", **DRIP)
    main = threading.main_thread().ident or 0
    threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)).start()
    assert seconds_until(KeyboardInterrupt, lambda: Hub().refs("lab/model")) < SOON
    assert [thread.is_alive() for thread in threading.enumerate() if thread.name == "asking the hub"] == [True]

"""Whatever a hub sends, and however slowly: it is bounded in time and size, and Ctrl-C acts at once."""

import itertools
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hub_server import HubServer
from huggingface_hub import HfApi

from repdyn.hub import transfer
from repdyn.checkpoints.hub import Hub, RemoteFile, total_bytes
from repdyn.checkpoints.errors import CancelledError, CheckpointError
from repdyn.checkpoints.tokenizers import HubFolder, fetch_tokenizer
from repdyn.checkpoints.hub import DownloadMonitor, in_threads, map_concurrently, unmonitored

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
    monkeypatch.setattr("repdyn.checkpoints.hub._MOST_FILES", 1000)
    with pytest.raises(CheckpointError, match="expected at most 1,000 files in lab/model, the hub lists more"):
        Hub().files("lab/model", commit)


@pytest.mark.parametrize("what", ["commits", "tree"])
@pytest.mark.parametrize("pages", ["itself", "another", "new"])
def test_pages_that_refer_to_each_other(hub, commit, monkeypatch, what, pages):
    monkeypatch.setattr("repdyn.checkpoints.responses._MOST_PAGES", 20)
    address = f"{hub.url}/api/models/lab/model/{what}/{'main' if what == 'commits' else commit}"
    asked = {"commits": lambda: Hub().commits("lab/model"), "tree": lambda: Hub().files("lab/model", commit)}
    following = {
        "itself": itertools.repeat(f"{address}?p=1"),
        "another": itertools.cycle([f"{address}?p=1", f"{address}?p=2"]),
        "new": (f"{address}?p={number}" for number in itertools.count(1)),
    }[pages]
    for _ in range(30):
        headers = {"Link": f'<{next(following)}>; rel="next"'}
        hub.fault(f"/{what}/", "headers", times=1, headers=headers)
    how = "it has more than 20 pages" if pages == "new" else "its pages refer to each other"
    with pytest.raises(CheckpointError, match=f"expected a listing that ends from the hub, but {how}: {address}"):
        asked[what]()
    assert len(hub.requests) <= 21


def in_utf_8(header: str) -> str:
    """Return a header's text as the server must be given it, which sends Latin-1."""
    return header.encode().decode("latin-1")


@pytest.mark.parametrize("code", [429, 503])
@pytest.mark.parametrize(
    ("seconds", "shown"), [("86400", "86400"), ("9" * 400, "999999999999..."), (in_utf_8("٣٠١"), "301")]
)
@pytest.mark.parametrize("what", ["refs", "commit", "tree", "HEAD", "GET"])
def test_a_wait_that_is_too_long_is_not_begun(hub, commit, tmp_path, waits, code, seconds, shown, what):
    files = Hub().files("lab/model", commit)
    pattern = f"^{what} .*/resolve/" if what in {"HEAD", "GET"} else "/api/"
    hub.fault(pattern, "status", code=code, headers={"Retry-After": seconds})
    new = Hub()
    requests = {
        "refs": lambda: new.refs("lab/model"),
        "commit": lambda: new.commit("lab/model", "main"),
        "tree": lambda: new.files("lab/model", commit),
    }
    download = lambda: new.download("lab/model", commit, files, tmp_path / "here", unmonitored())  # noqa: E731
    with pytest.raises(
        CheckpointError, match=rf"the hub asks to wait {shown} seconds .*\({code}\), longer than the 300"
    ):
        requests.get(what, download)()
    assert waits == []


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize(("seconds", "lines"), [(200, 1), (5, 0)])
def test_a_long_wait_is_announced_in_one_line(hub, commit, tmp_path, monkeypatch, caplog, method, seconds, lines):
    """Also where four files wait at the same time."""
    monkeypatch.setattr("repdyn.checkpoints.responses._announced_until", 0.0)
    monkeypatch.setattr("repdyn.checkpoints.hub._wait", lambda *_: None)
    files = Hub().files("lab/model", commit)
    hub.fault(f"^{method} .*/resolve/", "status", code=429, times=4, headers={"Retry-After": str(seconds)})
    Hub().download("lab/model", commit, files, tmp_path / "here", unmonitored())
    announced = [record.getMessage() for record in caplog.records if record.name == "repdyn.checkpoints.responses"]
    assert announced == [f"the hub asks to wait {seconds} seconds before the next request (429)"] * lines


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("code", [429, 500, 502, 503, 504, 520])
def test_a_busy_hub_is_asked_again_for_a_file(hub, commit, tmp_path, code, method):
    """Also by a server before the hub (520), and whatever the client itself repeats."""
    hub.fault(f"^{method} .*/resolve/.*safetensors", "status", times=2, code=code)
    files = Hub().files("lab/model", commit)
    Hub().download("lab/model", commit, files, tmp_path / "here", unmonitored())
    assert (tmp_path / "here" / "model.safetensors").stat().st_size == files["model.safetensors"].n_bytes


def test_a_file_that_the_hub_gives_no_checksum_of_is_not_used(hub, commit, tmp_path):
    listed = Hub().files("lab/model", commit)["config.json"]
    bare = {"config.json": replace(listed, sha256=None, oid="")}
    with pytest.raises(
        CheckpointError, match=r"expected a checksum of config.json from the hub, got none, so its cont"
    ):
        Hub().download("lab/model", commit, bare, tmp_path / "here", unmonitored())


@pytest.mark.parametrize("what", ["refs", "commit", "files", "commits"])
@pytest.mark.parametrize("kind", ["cut", "truncated", "status"])
def test_a_listing_that_fails_once_is_asked_for_again(hub, commit, what, kind):
    hub.fault("/api/", kind, times=1)
    asked = {"refs": ["lab/model"], "commit": ["lab/model", "main"], "files": ["lab/model", commit]}
    assert getattr(Hub(), what)(*asked.get(what, ["lab/model"]))


@pytest.mark.parametrize("what", ["refs", "commit", "files", "commits"])
@pytest.mark.parametrize("is_error", [False, True])
def test_an_answer_without_end_is_not_read_into_memory(hub, commit, monkeypatch, what, is_error):
    """A listing, or an error's message, of which 5 kB arrive and 5 MB would be unpacked."""
    monkeypatch.setattr("repdyn.checkpoints.hub.MOST_LISTED_BYTES", 10_000)
    monkeypatch.setattr("repdyn.checkpoints.responses._MOST_ERROR_BYTES", 10_000)
    hub.fault("/api/", "gzip", after=5_000_000)
    if is_error:
        monkeypatch.setattr("httpx2.Response.is_error", True)
    asked = {"refs": ["lab/model"], "commit": ["lab/model", "main"], "files": ["lab/model", commit]}
    with pytest.raises(CheckpointError, match="expected answers of at most .* bytes from the hub, got more"):
        getattr(Hub(), what)(*asked.get(what, ["lab/model"]))


def test_a_rate_limit_with_a_long_window(hub, commit, waits):
    hub.fault("/api/", "status", code=429, headers={"ratelimit": '"api";r=0;t=86400'})
    with pytest.raises(CheckpointError, match="the hub asks to wait 86400 seconds"):
        Hub().files("lab/model", commit)
    assert waits == []


def test_responses_to_other_parts_of_the_program_are_not_checked(hub, commit, waits):
    Hub().refs("lab/model")  # from here on, the client library calls the check
    hub.fault("/tree/", "status", times=1, code=429, headers={"Retry-After": "86400"})
    assert list(HfApi(endpoint=hub.url).list_repo_tree("lab/model", revision=commit))
    assert waits == [86401.0]


def test_an_abandoned_listing_ends(hub, commit):
    """After the timeout, no further page is asked for."""
    Hub().refs("lab/model")  # what the client library imports for its first request would take the time of this one
    hub.requests.clear()
    link = {"Link": f'<{hub.url}/api/models/lab/model/commits/main?p=1>; rel="next"'}
    hub.fault("/commits/", "slow", times=1, bytes_per_second=200, headers=link)
    hub.fault("/commits/", "headers", headers=link)
    with pytest.raises(CheckpointError, match="did not complete its answer within --timeout 0.2 seconds"):
        Hub(timeout_seconds=0.2).commits("lab/model")
    for thread in threading.enumerate():
        if thread.name == "asking the hub":
            thread.join(SOON)
            assert not thread.is_alive()
    assert len(hub.requests) == 2


def test_results_of_threads_are_in_order_and_ctrl_c_does_not_wait_for_them():
    assert map_concurrently(lambda number: number**2, range(50)) == [number**2 for number in range(50)]
    silent = threading.Event()
    main = threading.main_thread().ident or 0
    threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)).start()
    assert seconds_until(KeyboardInterrupt, lambda: map_concurrently(lambda _: silent.wait(20), range(3))) < SOON
    silent.set()


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


def written(folder: Path) -> int:
    """Bytes of files on the disk, without the client's notes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files if ".cache" not in path.parts or path.suffix == ".incomplete")


@pytest.mark.parametrize("excess", [0, 100_000_000])
def test_compressed_answers_count_as_what_is_written(hub, commit, tmp_path, excess):
    """The bytes that arrive are a thousandth of it."""
    files = {"tokenizer_config.json": Hub().files("lab/model", commit)["tokenizer_config.json"]}
    hub.fault("^GET .*tokenizer_config.json", "gzip", after=excess)
    download = lambda: Hub().download("lab/model", commit, files, tmp_path / "here", unmonitored())  # noqa: E731
    if excess:
        with pytest.raises(CheckpointError, match=r"tokenizer_config.json is larger than the hub lists"):
            download()
        assert written(tmp_path / "here") <= total_bytes(files)
    else:
        download()
        assert written(tmp_path / "here") == total_bytes(files)


def test_a_resumed_file_is_counted_once(hub, commit, tmp_path):
    files = {"model.safetensors": Hub().files("lab/model", commit)["model.safetensors"]}
    hub.fault("^GET .*safetensors", "truncated", times=1, after=9000)
    received = []
    monitor = DownloadMonitor(60, threading.Event(), received.append)
    Hub().download("lab/model", commit, files, tmp_path / "here", monitor)
    assert sum(received) == total_bytes(files)


def test_a_tokenizer_larger_than_the_disk_budget_is_not_downloaded(hub, commit, tmp_path):
    small = Hub(budget_bytes=100)
    with pytest.raises(CheckpointError, match="takes .* GB, more than the 1e-07 GB of --max-disk"):
        fetch_tokenizer("lab/model", [HubFolder("lab/model", commit)], small, tmp_path / "here", False)
    assert not any("/resolve/" in path for _, path in hub.requests)


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

"""The thread that uploads, with a mirror that fails where it is told to."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from repdyn.store import uploader
from repdyn.store.remote_errors import RefusedError, RemoteError
from repdyn.store.uploader import Uploader
from repdyn.store.waiting_files import Waiting


class Files:
    """A mirror with files, of which some cannot be uploaded.

    Attributes:
        left: names of those that wait; one that begins with "-" is to be deleted.
        errors: by the names of those that fail.
    """

    path = "copy"

    def __init__(self, *names: str, has_commits: bool = False) -> None:
        self.left = list(names)
        self.errors: dict[str, Exception] = {}
        self.tried: list[str] = []
        self.commits: list[list[str]] = []
        self.has_commits = has_commits

    def waiting(self) -> list[Waiting]:
        if "listing" in self.errors:
            raise self.errors["listing"]
        return [Waiting(name, name.startswith("-"), False, Path(name), name) for name in self.left]

    def upload(self, one: Waiting) -> None:
        self.tried.append(one.name)
        if one.name in self.errors:
            raise self.errors[one.name]
        self.left.remove(one.name)

    def upload_all(self) -> None:
        self.commits.append(list(self.left))
        self.left.clear()


class OneFile(Files):
    """A mirror with one file, whose first upload is refused once ``refuse`` is set."""

    def __init__(self) -> None:
        super().__init__("file")
        self.begun, self.refuse = threading.Event(), threading.Event()

    def upload(self, one: Waiting) -> None:
        if not self.begun.is_set():
            self.begun.set()
            assert self.refuse.wait(10)
            raise RefusedError("expired")
        time.sleep(0.5)  # in which a refusal would be seen
        super().upload(one)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(uploader, "FIRST_PAUSE_SECONDS", 0.05)


def uploading(mirror: Files) -> Uploader:
    return Uploader(mirror)  # type: ignore[arg-type]


def test_a_refusal_of_an_earlier_attempt_does_not_end_the_wait():
    mirror = OneFile()
    uploads = uploading(mirror)
    uploads.wake()
    assert mirror.begun.wait(10)
    threading.Timer(0.3, mirror.refuse.set).start()
    assert uploads.drain(10) == 0
    assert uploads.error is None


@pytest.mark.parametrize("n_bad", [1, 5])
def test_files_that_fail_are_in_no_other_way(n_bad):
    bad = [f"bad{number}" for number in range(n_bad)]
    mirror = Files(*bad, "good", "better", "best")
    mirror.errors = dict.fromkeys(bad, RemoteError("too large"))
    uploads = uploading(mirror)
    assert uploads.drain(1) == n_bad
    assert mirror.left == bad
    assert str(uploads.error) == "too large"
    mirror.errors.clear()
    assert uploads.drain(10) == 0


def test_an_attempt_ends_when_several_files_in_a_row_have_failed():
    mirror = Files(*"abcdefgh")
    mirror.errors = dict.fromkeys("abcdefgh", RemoteError("no connection"))
    uploads = uploading(mirror)
    uploads.wake()
    time.sleep(0.04)
    assert mirror.tried == ["a", "b", "c"]


def test_a_refusal_ends_the_attempt():
    mirror = Files("a", "b")
    mirror.errors["a"] = RefusedError("expired")
    assert uploading(mirror).drain(10) == 2
    assert set(mirror.tried) == {"a"}  # perhaps again, in another attempt


def test_what_is_replaced_is_not_deleted_before_what_replaces_it_is_there():
    mirror = Files("-single", "joined")
    mirror.errors["joined"] = RemoteError("too large")
    uploads = uploading(mirror)
    assert uploads.drain(0.3) == 2
    assert set(mirror.tried) == {"joined"}
    mirror.errors.clear()
    mirror.tried.clear()
    assert uploads.drain(10) == 0
    assert mirror.tried == ["joined", "-single"]


def test_the_thread_outlives_an_error_of_the_record(caplog):
    mirror = Files("a")
    mirror.errors["listing"] = RefusedError("damaged")
    uploads = uploading(mirror)
    uploads.wake()
    time.sleep(0.3)
    with pytest.raises(RefusedError, match="damaged"):
        uploads.drain(1)
    assert "damaged; the rows are kept in copy and uploaded later" in caplog.text
    mirror.errors.clear()
    time.sleep(0.5)  # without a further call
    assert mirror.left == []


def test_commits_are_made_at_intervals_and_at_the_end(monkeypatch):
    monkeypatch.setattr(uploader, "COMMIT_SECONDS", 1.0)
    mirror = Files("a", has_commits=True)
    uploads = uploading(mirror)
    uploads.wake()
    time.sleep(0.3)
    assert mirror.commits == [["a"]]
    for name in "bcd":
        mirror.left.append(name)
        uploads.wake()
        time.sleep(0.1)
    assert mirror.commits == [["a"]]
    time.sleep(1.0)
    assert mirror.commits == [["a"], ["b", "c", "d"]]
    mirror.left.append("e")
    uploads.wake()
    assert uploads.drain(0.5) == 0
    assert mirror.commits[2:] == [["e"]]

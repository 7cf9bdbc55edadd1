"""The thread that uploads, with a mirror that fails where it is told to."""

from __future__ import annotations

import threading
import time

from repdyn.store.remote_errors import RefusedError
from repdyn.store.uploader import Uploader


class OneFile:
    """A mirror with one file, whose first upload is refused once ``refuse`` is set."""

    path = "copy"

    def __init__(self) -> None:
        self.left = ["file"]
        self.begun, self.refuse = threading.Event(), threading.Event()

    def waiting(self) -> list[str]:
        return list(self.left)

    def upload(self, one: str) -> None:
        if not self.begun.is_set():
            self.begun.set()
            assert self.refuse.wait(10)
            raise RefusedError("expired")
        time.sleep(0.5)  # in which a refusal would be seen
        self.left.remove(one)


def test_a_refusal_of_an_earlier_attempt_does_not_end_the_wait():
    mirror = OneFile()
    uploader = Uploader(mirror)  # type: ignore[arg-type]
    uploader.wake()
    assert mirror.begun.wait(10)
    threading.Timer(0.3, mirror.refuse.set).start()
    assert uploader.drain(10) == 0
    assert uploader.error is None

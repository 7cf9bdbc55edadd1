"""The head of a Ray cluster: whether it can be reached, which Ray itself says only by ending the process."""

from __future__ import annotations

import socket
import time

from repdyn.hub.errors import SweepStoppedError

CHECK_SECONDS = 5.0
"""How often a sweep that waits for its workers looks for the head."""
LOST_SECONDS = 20.0
"""How long the head may be out of reach, as while it is started again. Ray ends the process after a minute."""
_CONNECT_SECONDS = 10


class ClusterLostError(SweepStoppedError):
    """The head of the Ray cluster is out of reach, and with it all results that are not stored."""


class ClusterHead:
    """The head of a cluster that this process is connected to.

    Args:
        address: host and port of its control service; of another network, as behind ``ray://``, it is not watched.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._is_watched = self._is_reachable()
        self._missed_since: float | None = None

    def check(self) -> None:
        """Look for the head.

        Raises:
            ClusterLostError: it has been out of reach for long.
        """
        asked = time.monotonic()
        if not self._is_watched or self._is_reachable():
            self._missed_since = None
            return
        self._missed_since = self._missed_since or asked
        if time.monotonic() - self._missed_since > LOST_SECONDS:
            raise ClusterLostError(
                f"expected the head of the Ray cluster at {self._address}, it has been out of reach for "
                f"{LOST_SECONDS:g} s; what is measured is stored: start the cluster again, set RAY_ADDRESS to it, and "
                "the same command goes on from there"
            )

    def wait(self) -> None:
        """Return once the head is there.

        Raises:
            ClusterLostError: it is not there in time.
        """
        self.check()
        while self._missed_since is not None:
            time.sleep(1)
            self.check()

    def _is_reachable(self) -> bool:
        try:
            check_reachable(self._address)
        except OSError:
            return False
        return True


def check_reachable(address: str) -> None:
    """Raise OSError if an address is not reachable, which Ray itself would retry for a quarter of an hour."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()

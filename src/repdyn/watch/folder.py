"""The files of measurements in a folder, and which of them are new, changed or gone since the last look."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from repdyn.store.files import ROW_FILE

_SETTLED_NS = 2_000_000_000
"""Age of a folder's time of change from which every later change is certain to alter it."""
_FULL_LOOK_SECONDS = 60.0
"""Interval at which every file is looked at: one that is overwritten in place leaves the folder's time alone."""

Stamp: TypeAlias = tuple[int, int, int]
"""Time of change, size and number of a file: another stamp is another content."""


@dataclass(frozen=True)
class Changes:
    """Names of files."""

    changed: tuple[str, ...] = ()
    """New ones and those with another content."""
    gone: tuple[str, ...] = ()


class WatchedFolder:
    """A folder in which files of measurements appear.

    Files of a store are written under another name and renamed, which changes the folder's own time. A folder whose
    time stays is not listed again, so that a look at 100,000 files costs as much as one at their folders.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamps: dict[str, Stamp] = {}
        self._unsettled: set[str] = set()
        self._folder_time = -1
        self._full_look = 0.0

    def look(self) -> Changes:
        """Return what changed since the last look.

        Raises:
            OSError: the folder cannot be listed; it may be gone.
        """
        folder_time, now = self.path.stat().st_mtime_ns, time.monotonic()
        if folder_time == self._folder_time and now - self._full_look < _FULL_LOOK_SECONDS:
            again = self._stamps_of(self._unsettled)
            return self._difference({**self._stamps, **again}) if again else Changes()
        found = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                if ROW_FILE.fullmatch(entry.name):
                    try:
                        found[entry.name] = _stamp(entry.stat())
                    except FileNotFoundError:  # deleted since it was listed
                        continue
        is_settled = time.time_ns() - folder_time > _SETTLED_NS
        self._folder_time, self._full_look = folder_time if is_settled else -1, now
        return self._difference(found)

    def expect_change(self, name: str, expected: bool) -> None:
        """Look at a file every time, or no longer: a damaged one may be one that is still being copied."""
        (self._unsettled.add if expected else self._unsettled.discard)(name)

    def _difference(self, found: dict[str, Stamp]) -> Changes:
        before, self._stamps = self._stamps, found
        changed = tuple(name for name, stamp in found.items() if before.get(name) != stamp)
        return Changes(changed, tuple(before.keys() - found.keys()))

    def _stamps_of(self, names: set[str]) -> dict[str, Stamp]:
        found = {}
        for name in names:
            try:
                found[name] = _stamp((self.path / name).stat())
            except FileNotFoundError:  # the next listing tells
                continue
        return found


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_size, status.st_ino

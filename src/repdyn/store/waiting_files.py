"""The record of what is to be uploaded to a remote store or deleted there: a marker for each file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from filelock import FileLock

from repdyn.store.remote_errors import RefusedError
from repdyn.utils.files import write_atomically


@dataclass(frozen=True)
class Waiting:
    """A file that is to be uploaded, or deleted remotely."""

    name: str
    is_deleted: bool
    is_discarded: bool
    """Whether it is to be deleted here too."""
    marker: Path
    token: str
    """Differs for each change of the file."""


class WaitingFiles:
    """The markers of the files that wait; each is made before its file is changed, and removed after the upload.

    Args:
        folder: of the markers.
        files: folder of the files.
    """

    def __init__(self, folder: Path, files: Path) -> None:
        self._folder = folder
        self._files = files

    def mark(self, name: str, *, is_deleted: bool = False, is_discarded: bool = False) -> None:
        """Record that a file is to be uploaded or deleted, in place of an earlier record."""
        kind = {"is_deleted": is_deleted, "is_discarded": is_discarded}
        content = json.dumps({"name": name, **kind, "token": uuid4().hex})
        marker = self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"
        with self._locked():
            write_atomically(marker, lambda temporary: temporary.write_text(content))

    def all(self) -> list[Waiting]:
        """Return what is to be uploaded or deleted, in the order in which it was marked.

        Raises:
            RefusedError: a marker is damaged.
        """
        found = []
        for marker in self._folder.glob("[!.]*.json"):
            try:
                one, marked = _read(marker), marker.stat().st_mtime_ns
            except FileNotFoundError:
                continue  # uploaded by another process
            # a marker without a file is that of a process killed before it wrote
            if one.is_deleted or (self._files / one.name).exists():
                found.append((marked, one.name, one))
        return [one for _, _, one in sorted(found, key=lambda each: each[:2])]

    @contextmanager
    def if_unchanged(self, one: Waiting) -> Iterator[bool]:
        """Yield whether a file has not been marked again; until the context ends, it is not."""
        with self._locked():
            try:
                yield _read(one.marker).token == one.token
            except FileNotFoundError:
                yield False

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self._folder.with_name(f"{self._folder.name}.lock")):
            yield


def _read(marker: Path) -> Waiting:
    try:
        content = json.loads(marker.read_text(encoding="utf-8"))
        is_discarded = bool(content.get("is_discarded"))
        return Waiting(str(content["name"]), bool(content["is_deleted"]), is_discarded, marker, str(content["token"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedError(
            f"expected the record of a file that waits for upload, cannot read {marker}: {error!r}; delete it, and "
            "push the store that the rows are from again"
        ) from error

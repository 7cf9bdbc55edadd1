"""A second copy of what this process has stored, from which a store that is deleted meanwhile is written again."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO

from repdyn.utils.files import write_atomically


class KeptFiles:
    """Copies of files below a folder, in one temporary file without a name, which ends with the process.

    Args:
        folder: of the store.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._copies: IO[bytes] | None = None
        self._places: dict[Path, tuple[int, int]] = {}

    @property
    def names(self) -> list[Path]:
        """The paths of the copied files in the store."""
        return list(self._places)

    def keep(self, path: Path) -> None:
        """Copy a file of the store, in place of any copy of this name.

        Raises:
            OSError: it cannot be read, or the temporary folder has no space.
        """
        content = path.read_bytes()
        self._copies = self._copies or tempfile.TemporaryFile()  # noqa: SIM115 - it stays open
        start = self._copies.seek(0, 2)
        self._copies.write(content)
        self._copies.flush()
        self._places[path.relative_to(self._folder)] = start, len(content)

    def keep_once(self, path: Path) -> None:
        """Copy a file of the store that does not change, if there is one."""
        if path.relative_to(self._folder) not in self._places and path.exists():
            self.keep(path)

    def forget_missing(self) -> None:
        """Forget the copies of files that were moved away."""
        self._places = {name: place for name, place in self._places.items() if (self._folder / name).exists()}

    def restore(self) -> int:
        """Write the files that are missing again, and return their number.

        Raises:
            OSError: one cannot be written.
        """
        missing = {name: place for name, place in self._places.items() if not (self._folder / name).exists()}
        for name, (start, size) in missing.items():
            if self._copies is not None:
                self._copies.seek(start)
                content = self._copies.read(size)
                write_atomically(self._folder / name, lambda path, content=content: path.write_bytes(content))
        return len(missing)

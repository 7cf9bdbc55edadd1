"""Temporary files that killed processes left in a store."""

from __future__ import annotations

from pathlib import Path

from repdyn.store.keys import STATES_FOLDER
from repdyn.store.store import Store
from repdyn.utils.files import TEMPORARY_FILE, remove_abandoned_files

_PLACES = (".repdyn-*", "*/.repdyn-*", f"*/{STATES_FOLDER}/**/.repdyn-*")


def remove_unfinished_files(store: Store) -> list[str]:
    """Delete the unfinished files of killed processes; those of running ones are locked, and remain.

    Returns:
        What was deleted: a line, or nothing.
    """
    found = {path for place in _PLACES for path in store.path.glob(place)}
    named = sorted(path for path in found if TEMPORARY_FILE.fullmatch(path.name))
    # what a link leads to is not this store's
    own = [path for path in named if not path.parent.is_symlink()]
    return describe_removed(remove_abandoned_files(own), "unfinished file")


def describe_removed(paths: list[Path], one: str, several: str = "") -> list[str]:
    """Return a line that says what was deleted; none if there was nothing.

    >>> describe_removed([Path("a"), Path("b")], "file")
    ['removed 2 files of killed processes: a, ...']
    """
    if not paths:
        return []
    what = f"1 {one}" if len(paths) == 1 else f"{len(paths)} {several or f'{one}s'}"
    return [f"removed {what} of killed processes: {paths[0]}{', ...' if len(paths) > 1 else ''}"]

"""Remove the temporary files that killed processes left in a store, in the folder for downloads and elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repdyn.store import Store
from repdyn.store.state_cache import STATES_FOLDER
from repdyn.sweep.downloads import Downloads
from repdyn.utils.atomic_files import TEMPORARY_FILE
from repdyn.utils.ownership import remove_abandoned_files, remove_abandoned_folders

_PLACES = (".repdyn-*", "*/.repdyn-*", f"*/{STATES_FOLDER}/**/.repdyn-*")


def remove_leftovers(store: Store, downloads: Downloads) -> list[str]:
    """Delete the temporary files and folders of killed processes; those of running ones are locked, and remain.

    Returns:
        What was deleted: a line for each place, empty if there was nothing.
    """
    found = {path for place in _PLACES for path in store.path.glob(place) if TEMPORARY_FILE.fullmatch(path.name)}
    return [
        *_described(remove_abandoned_files(sorted(found)), "unfinished file"),
        *_described(remove_abandoned_folders(), "temporary folder"),
        *_described(downloads.purge(), "folder of downloads", "folders of downloads"),
    ]


def _described(paths: Sequence[Path], one: str, several: str = "") -> list[str]:
    if not paths:
        return []
    what = f"1 {one}" if len(paths) == 1 else f"{len(paths)} {several or f'{one}s'}"
    return [f"removed {what} of killed processes: {paths[0]}{', ...' if len(paths) > 1 else ''}"]

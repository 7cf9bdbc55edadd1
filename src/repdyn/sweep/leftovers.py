"""Remove the temporary files that killed processes left in a store, in the folder for downloads and elsewhere."""

from __future__ import annotations

from repdyn.store import Store
from repdyn.store.unfinished import describe_removed, remove_unfinished_files
from repdyn.sweep.downloads import Downloads
from repdyn.utils.files import remove_abandoned_folders


def remove_leftovers(store: Store, downloads: Downloads) -> list[str]:
    """Delete the temporary files and folders of killed processes; those of running ones are locked, and remain.

    Returns:
        What was deleted: a line for each place, empty if there was nothing.
    """
    return [
        *remove_unfinished_files(store),
        *describe_removed(remove_abandoned_folders(), "temporary folder"),
        *describe_removed(downloads.purge(), "folder of downloads", "folders of downloads"),
    ]

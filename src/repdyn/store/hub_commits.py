"""Commits to repositories of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

FILES_PER_COMMIT = 500


def commit(filesystem: AbstractFileSystem, root: str, added: Mapping[str, Path], deleted: Sequence[str]) -> None:
    """Add files to a repository and then delete others, in as few commits as possible.

    Args:
        filesystem: that of the hub.
        root: folder in the repository, as the filesystem names it.
        added: local files by their names in this folder.
        deleted: names of files that are there.

    Raises:
        TypeError: the folder is in no repository.
        Exception: what the hub's client raises.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfFileSystem
    from huggingface_hub.hf_file_system import HfFileSystemResolvedRepositoryPath

    place = filesystem.resolve_path(root) if isinstance(filesystem, HfFileSystem) else None
    if not isinstance(filesystem, HfFileSystem) or not isinstance(place, HfFileSystemResolvedRepositoryPath):
        raise TypeError(f"expected a folder in a repository of the Hugging Face hub, got {root}")
    inside = f"{place.path_in_repo}/" if place.path_in_repo else ""
    changes = [
        *(CommitOperationAdd(f"{inside}{name}", str(added[name])) for name in sorted(added)),
        *(CommitOperationDelete(f"{inside}{name}", is_folder=False) for name in sorted(deleted)),
    ]
    for first in range(0, len(changes), FILES_PER_COMMIT):
        some = changes[first : first + FILES_PER_COMMIT]
        filesystem._api.create_commit(
            place.repo_id,
            some,
            commit_message=_message(sum(isinstance(one, CommitOperationAdd) for one in some), len(some)),
            repo_type=place.repo_type,
            revision=place.revision,
        )


def _message(n_added: int, n_files: int) -> str:
    """Return the message of a commit.

    >>> _message(2, 3), _message(0, 1)
    ('Add 2 files measured with repdyn, delete 1', 'Delete 1 files measured with repdyn')
    """
    n_deleted = n_files - n_added
    if not n_added:
        return f"Delete {n_deleted} files measured with repdyn"
    return f"Add {n_added} files measured with repdyn" + (f", delete {n_deleted}" if n_deleted else "")

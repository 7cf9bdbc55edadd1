"""Commits to repositories of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from repdyn.store.remote_errors import ConflictError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from huggingface_hub import HfApi
    from huggingface_hub.hf_file_system import HfFileSystemResolvedRepositoryPath

FILES_PER_COMMIT = 500
_CHANGED_MEANWHILE = 412  # the status of such a commit


def last_commit(filesystem: AbstractFileSystem, root: str) -> str:
    """Return the last commit of the branch that a folder is in, as hexadecimal digits.

    Raises:
        TypeError: the folder is in no repository.
        Exception: what the hub's client raises.
    """
    api, place = _repository(filesystem, root)
    return str(api.repo_info(place.repo_id, repo_type=place.repo_type, revision=place.revision).sha)


def commit(
    filesystem: AbstractFileSystem, root: str, added: Mapping[str, Path], deleted: Sequence[str], parent: str | None
) -> None:
    """Add files to a repository and then delete others, in as few commits as possible.

    Args:
        filesystem: that of the hub.
        root: folder in the repository, as the filesystem names it.
        added: local files by their names in this folder; the hub's client leaves out those that are there unchanged.
        deleted: names of files that are there.
        parent: the last commit known; a commit to anything else is refused, including a late one of an attempt that
            was given up. None to commit to whatever is there.

    Raises:
        TypeError: the folder is in no repository.
        ConflictError: the last commit is another one.
        Exception: what the hub's client raises.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete
    from huggingface_hub.errors import HfHubHTTPError

    api, place = _repository(filesystem, root)
    inside = f"{place.path_in_repo}/" if place.path_in_repo else ""
    changes = [
        *(CommitOperationAdd(f"{inside}{name}", str(added[name])) for name in sorted(added)),
        *(CommitOperationDelete(f"{inside}{name}", is_folder=False) for name in sorted(deleted)),
    ]
    for first in range(0, len(changes), FILES_PER_COMMIT):
        some = changes[first : first + FILES_PER_COMMIT]
        try:
            with _without_progress_bars():
                made = api.create_commit(
                    place.repo_id,
                    some,
                    commit_message=_message(sum(isinstance(one, CommitOperationAdd) for one in some), len(some)),
                    repo_type=place.repo_type,
                    revision=place.revision,
                    parent_commit=parent,
                )
        except HfHubHTTPError as error:
            if parent is not None and error.response.status_code == _CHANGED_MEANWHILE:
                raise ConflictError("another commit was made meanwhile; repeat the command") from error
            raise
        parent = made.oid if parent is not None else None


def _repository(filesystem: AbstractFileSystem, root: str) -> tuple[HfApi, HfFileSystemResolvedRepositoryPath]:
    from huggingface_hub import HfFileSystem
    from huggingface_hub.hf_file_system import HfFileSystemResolvedRepositoryPath

    place = filesystem.resolve_path(root) if isinstance(filesystem, HfFileSystem) else None
    if not isinstance(filesystem, HfFileSystem) or not isinstance(place, HfFileSystemResolvedRepositoryPath):
        raise TypeError(f"expected a folder in a repository of the Hugging Face hub, got {root}")
    return filesystem._api, place


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Keep the client's bars for large files out of the output of a training, which goes on meanwhile."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _message(n_added: int, n_files: int) -> str:
    """Return the message of a commit.

    >>> _message(2, 3), _message(0, 1)
    ('Add 2 files measured with repdyn, delete 1', 'Delete 1 files measured with repdyn')
    """
    n_deleted = n_files - n_added
    if not n_added:
        return f"Delete {n_deleted} files measured with repdyn"
    return f"Add {n_added} files measured with repdyn" + (f", delete {n_deleted}" if n_deleted else "")

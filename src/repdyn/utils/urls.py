"""URLs of remote stores, where a path may be given too."""

# Imports only what loads quickly.
from __future__ import annotations

from pathlib import Path


def is_url(path: str | Path) -> bool:
    """Return whether a store is named by a URL; a path object never is, since it cannot hold two slashes.

    >>> is_url("s3://bucket/prefix"), is_url("runs/mine"), is_url(Path("runs"))
    (True, False, False)
    """
    return isinstance(path, str) and "://" in path


def folder_path(path: str | Path) -> Path:
    """Return the path of a store's folder, which need not exist yet.

    Raises:
        NotADirectoryError: it is a file.
    """
    path = Path(path)
    if path.is_file():
        raise NotADirectoryError(
            f"expected the folder of a store, got the file {str(path)!r}; name a folder, which is created if needed"
        )
    return path


def path_or_url(text: str) -> str | Path:
    """Return a URL as it is, and anything else as a path; the type of an option that names a store.

    >>> path_or_url("hf://datasets/me/sweep")
    'hf://datasets/me/sweep'
    """
    return text if is_url(text) else Path(text)

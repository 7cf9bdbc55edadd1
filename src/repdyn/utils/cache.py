"""The folder of everything that can be fetched or made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of downloads and processed text: ``cache_dir``, else $REPDYN_CACHE, else ~/.cache/repdyn."""
    return expand_user(cache_dir or os.environ.get("REPDYN_CACHE") or "~/.cache/repdyn")


def expand_user(path: str | os.PathLike[str]) -> Path:
    """Return a path with the home directory in place of ~.

    Raises:
        FileNotFoundError: there is no such user, or none with a home directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise FileNotFoundError(
            f"expected ~ or ~NAME of a user with a home directory, got {os.fspath(path)!r}: {error} Set HOME, or "
            "REPDYN_CACHE to a folder"
        ) from error

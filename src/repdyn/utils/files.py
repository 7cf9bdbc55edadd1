"""Files: the folder of the cache, names, and writing in one step."""

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4


def cache_directory() -> Path:
    """Return the folder of downloads and processed text: $REPDYN_CACHE, else ~/.cache/repdyn."""
    return Path(os.environ.get("REPDYN_CACHE") or "~/.cache/repdyn").expanduser()


def is_url(path: str | Path) -> bool:
    """Return whether a store is named by a URL; a path object never is, since it cannot hold two
    slashes.

    >>> is_url("s3://bucket/prefix"), is_url("runs/mine"), is_url(Path("runs"))
    (True, False, False)
    """
    return isinstance(path, str) and "://" in path


def absolute_place(store: str | Path) -> str | Path:
    """Return the URL of a store as it is, or its folder as a path that a change of the working
    folder leaves alone.
    """
    return store if is_url(store) else Path(store).expanduser().absolute()


_LONGEST_STEM = 200
_DIGEST_DIGITS = 16
AT_ITS_ENDS = r"^\.|[ .]$|^(?=(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$))\w"
"""A leading dot, which hides a file, and what Windows refuses at the beginning or the end of a
name.
"""
_NOT_IN_FILES = rf"[^\w .,=@+()\[\]-]|{AT_ITS_ENDS}"


def escaped(name: str, pattern: str) -> str:
    """Return a name with percent signs and digits in place of what a pattern matches, in
    any case.
    """
    return re.sub(
        pattern,
        lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass")),
        name,
        flags=re.ASCII | re.IGNORECASE,
    )


def safe_file_name(name: str) -> str:
    """Return a name as one part of a path, without separators, at most 200 characters long; most
    stay as they are.

    >>> (safe_file_name("profile_two_nn[discard=0.8]"), safe_file_name("x/../../y"),
    ...     safe_file_name("aux"))
    ('profile_two_nn[discard=0.8]', 'x%2F..%2F..%2Fy', '%61ux')
    """
    stem = escaped(name, _NOT_IN_FILES)
    return shortened(stem, name, _LONGEST_STEM) or "%"


def shortened(stem: str, name: str, longest: int) -> str:
    """Return a stem; of one that is too long the beginning, and a digest of the whole name behind a
    plus sign.
    """
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_DIGITS]
    return stem if len(stem) <= longest else f"{stem[: longest - 1 - _DIGEST_DIGITS]}+{digest}"


def write_atomically(target: Path, write: Callable[[Path], object]) -> None:
    """Let ``write(path)`` fill a temporary file in the target's folder, then replace the target
    with it in one step.

    A process killed meanwhile leaves the target unchanged, and at most a hidden file beside it. A
    missing folder is created.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # not tempfile: its files are readable by their owner alone, and a store is to be shared
    temporary = target.with_name(f".repdyn-{uuid4().hex}{target.suffix}")
    try:
        write(temporary)
        # on the disk before the name points to it: a crash of the machine leaves the old or the new
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)

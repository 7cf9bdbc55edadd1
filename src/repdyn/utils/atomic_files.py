"""Atomic writing of files."""

import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4


def write_atomically(target: Path, write: Callable[[Path], object]) -> None:
    """Let ``write(path)`` fill a temporary file in the target's folder, then replace the target with it in one step.

    A process killed meanwhile leaves the target unchanged, and at most a file whose name begins with a dot. A missing
    folder is created.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # not tempfile: its files are readable by their owner alone, and a store is to be shared
    temporary = target.with_name(f".{uuid4().hex}{target.suffix}")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)

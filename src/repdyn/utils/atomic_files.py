"""Atomic writing of files."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from repdyn.utils.ownership import locked_file

TEMPORARY_FILE = re.compile(r"\.repdyn-[0-9a-f]{32}(\..*)?")
"""Names of the temporary files of :func:`write_atomically`."""


def write_atomically(target: Path, write: Callable[[Path], object]) -> None:
    """Let ``write(path)`` fill a temporary file in the target's folder, then replace the target with it in one step.

    A process killed meanwhile leaves the target unchanged, and at most a file whose name matches
    :data:`TEMPORARY_FILE`; as long as the process lives, this file is locked. A missing folder is created.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # not tempfile: its files are readable by their owner alone, and a store is to be shared
    temporary = target.with_name(f".repdyn-{uuid4().hex}{target.suffix}")
    with locked_file(temporary):
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)

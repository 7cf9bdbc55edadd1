"""Files that appear whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4


def write_atomically(target: Path, write: Callable[[Path], object]) -> None:
    """Let ``write(path)`` fill a temporary file beside the target, then put it in the target's place in one step.

    A process killed meanwhile leaves the target as it was, and at most a file whose name begins with a dot. The folder
    is made where it is missing.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # not tempfile: what it makes is for its owner alone, and a store is there to be shared
    temporary = target.with_name(f".{uuid4().hex}{target.suffix}")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)

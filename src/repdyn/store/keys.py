"""Keys of measurements, and the names of folders and files that they are stored under."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, unquote

STATES_FOLDER = "kept_states"
"""Name of the folder of cached states within a run's folder."""
_FAILED = "failed"
"""Suffix of the name of a file with the rows of a failed measurement."""
_STEP = re.compile(r"step([0-9]+)(?:-.*)?\.parquet", re.DOTALL)
_CHECKPOINT_DIGITS = 12
# Common file systems limit names to 255 bytes.
_MAX_NAME_BYTES = 255
_DIGEST_DIGITS = 16


@dataclass(frozen=True)
class MeasurementKey:
    """The key of one file of a store: a checkpoint, a probe and a set of metrics."""

    run: str
    """Id of the run."""
    step: int
    probe: str
    metrics: str
    checkpoint: str = ""
    """Commit of a published checkpoint, since a step may be published twice; "" for a live run."""

    @property
    def failed(self) -> MeasurementKey:
        """The key under which a failed measurement is stored."""
        return replace(self, metrics=f"{self.metrics}-{_FAILED}")

    @property
    def filename(self) -> str:
        """The path relative to the store: FOLDER/FILE, whatever characters the key contains.

        Raises:
            ValueError: the step is negative.
        """
        if self.step < 0:
            raise ValueError(f"expected a step >= 0, got {self.step}")
        parts = [f"step{self.step:09d}", *map(quoted, (self.checkpoint[:_CHECKPOINT_DIGITS], self.probe, self.metrics))]
        return f"{folder_name(self.run)}/{'-'.join(filter(None, parts))}.parquet"


def folder_name(run: str) -> str:
    """Return a folder name that is unique to a run: without separators or leading dot, and not too long."""
    if not run:
        raise ValueError("expected a run name, got an empty string")
    folder = quoted(run)
    folder = folder.replace(".", "%2E", 1) if folder.startswith(".") else folder
    if len(folder) <= _MAX_NAME_BYTES:
        return folder
    # quoted names contain no plus sign, so no other run has this folder
    digest = hashlib.sha256(run.encode()).hexdigest()[:_DIGEST_DIGITS]
    return f"{folder[: _MAX_NAME_BYTES - 1 - _DIGEST_DIGITS]}+{digest}"


def run_of(folder: str) -> str | None:
    """Return the id of the run whose folder has this name; None if the id was too long to be kept whole.

    >>> run_of(folder_name("lab/a")), run_of(folder_name("a" * 300))
    ('lab/a', None)
    """
    run = unquote(folder)
    return run if run and folder_name(run) == folder else None


def quoted(name: str) -> str:
    """Percent-encode a name for use in a file name: ASCII without separators.

    Raises:
        ValueError: the name contains surrogates, as the name of a folder that is not in UTF-8 does.
    """
    try:
        return quote(name, safe=" ")
    except UnicodeEncodeError as error:
        raise ValueError(f"expected a name that UTF-8 can encode, got {name!r}; choose another one") from error


def is_failure(name: str) -> bool:
    """Return whether the file of a name holds a failed measurement."""
    return name.endswith(f"-{_FAILED}.parquet")


def step_of(name: str) -> int | None:
    """Return the step that the name of a file begins with; None for a file with rows of many steps.

    >>> step_of("step000000008-3f2a-9c41.parquet"), step_of("rows.parquet")
    (8, None)
    """
    found = _STEP.fullmatch(name)
    return int(found[1]) if found else None


def own_folder(folder: Path) -> Path:
    """Return the folder of a run for something to be written to it.

    Raises:
        ValueError: it is a symbolic link, so that the files of another place would be changed.
    """
    if folder.is_symlink():
        raise ValueError(
            f"expected a folder for the run {unquote(folder.name)!r} in {folder.parent}, got a symbolic link, "
            f"{folder}, through which nothing is written; replace it by a folder, or give another --store"
        )
    return folder


def folder_inside(parent: Path, name: str, *, deep: bool = True) -> Path:
    """Return the path of a folder in a store, for files that nobody named another folder for.

    Args:
        parent: the store, or the folder for its views.
        name: of the folder, which may be missing.
        deep: check what is in the folder too.

    Raises:
        ValueError: a symbolic link, which may come from others, leads out of ``parent``.
    """
    folder, inside = parent / name, parent.resolve()
    for path in (folder, *(folder.rglob("*") if deep else ())):
        if path.is_symlink() and not path.resolve().is_relative_to(inside):
            raise ValueError(
                f"expected no symbolic link out of {parent}, got {path}, through which nothing is written; remove it, "
                "or name another folder for figures and exports with -o"
            )
    return folder

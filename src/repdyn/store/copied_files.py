"""The files of a run and of a copy of it, which may have been made compact at different times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from repdyn.store.compact_files import compact_parts, read_parts
from repdyn.store.parquet_files import write_single
from repdyn.store.run_files import RunFiles
from repdyn.store.schema import COLUMNS


def superseded_files(folder: Path, source: Path) -> dict[Path, list[str]]:
    """Return the files of a copied run whose rows its source has under another file name.

    These are single files that the source has joined, and compact files that it has joined again or divided. In the
    copy they would count in place of newer rows, or be read twice by other programs.

    Args:
        folder: of the run in the copy, which has all files of the source.
        source: folder of the run there.

    Returns:
        The parts of each file that the source lacks.

    Raises:
        ValueError: a compact file cannot be read.
    """
    theirs, ours = RunFiles(source), RunFiles(folder)
    joined, known = set(chain(*theirs.compact.values())), set(theirs.names)
    found: dict[Path, list[str]] = {path: [] for name, path in ours.single.items() if name in joined}
    for path, names in ours.compact.items():
        if path.name not in theirs.files and not known.isdisjoint(compact_parts(path)):
            found[path] = [name for name in names if name not in known]
    return found


def delete_superseded(files: Mapping[Path, Sequence[str]], mark: Callable[[Path, bool], object]) -> None:
    """Delete files of :func:`superseded_files`; the parts that the source lacks become single files.

    Args:
        files: with these parts.
        mark: called before a file is written or deleted, with its path and whether it is deleted.
    """
    for path, names in files.items():
        for name, table in read_parts(path, names, COLUMNS) if names else ():
            mark(path.with_name(name), False)
            write_single(path.with_name(name), table)
        mark(path, True)
        path.unlink(missing_ok=True)

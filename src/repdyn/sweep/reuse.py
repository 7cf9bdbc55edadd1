"""Measurements that a published store has already, taken over instead of measured again."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from repdyn.checkpoints.plan import Settings, Task
from repdyn.store import MeasurementKey, Store
from repdyn.store.parquet_files import to_rows
from repdyn.store.run_files import read_file, with_run_files
from repdyn.store.schema import Row
from repdyn.utils.atomic_files import write_atomically

CERTIFICATES = "certificates"


@dataclass
class Reused:
    """The numbers of checkpoints that were reused from a published store, and of those that were not."""

    n_taken: int = 0
    n_other_version: int = 0
    """Checkpoints that were measured with another version of repdyn, and are measured again."""

    def described(self, source: str | Path) -> str:
        """Return a line for people."""
        others = f"; {self.n_other_version} there have another version of repdyn" if self.n_other_version else ""
        return f"{self.n_taken} checkpoints are taken from {source}{others}"


def reuse(tasks: Iterable[Task], store: Store, published: Store, settings: Settings) -> Reused:
    """Copy the rows of tasks from a published store, as they are, together with their probes and its certificates.

    Rows are taken if they are of the same commit of the same repository, probe, metrics, settings, layers and
    precision, and were measured with this version of repdyn. They keep the time and the versions of their measurement.

    Args:
        tasks: checkpoints that the store lacks; local ones are never taken.
        store: for the rows.
        published: where they are looked for, under any name of the run.
        settings: of the sweep.
    """
    reused, current, places = Reused(), version("repdyn"), _places(published)
    for task in tasks:
        if task.target.path is not None or not task.target.commit:
            continue
        key = settings.key(task)
        rows = _published_rows(task, key, places)
        if not rows:
            continue
        if any(row.repdyn_version != current for row in rows):
            reused.n_other_version += 1
            continue
        store.save_probe(task.probe)
        store.write(key, [replace(row, run=key.run) for row in rows])
        store.discard_failures(key)
        reused.n_taken += 1
    if reused.n_taken:
        _copy_certificates(published, store)
    return reused


def _places(published: Store) -> dict[str, list[Path]]:
    """Return the folders of runs that have rows under a name, single or in a compact file; unreadable ones are left."""
    places: dict[str, list[Path]] = {}
    for folder in sorted({path.parent for path in published.path.glob("*/step*.parquet")}):
        with suppress(ValueError):  # what cannot be read is measured
            for name in with_run_files(folder, lambda files: files.names):
                places.setdefault(name, []).append(folder)
    return places


def _published_rows(task: Task, key: MeasurementKey, places: dict[str, list[Path]]) -> list[Row]:
    """Return the rows of one task; none if there are none, or they are of another checkpoint."""
    folder, _, name = key.filename.rpartition("/")
    for place in sorted(places.get(name, ()), key=lambda path: path.name != folder):
        with suppress(ValueError):  # what cannot be read is measured
            table = read_file(place, name)
            rows = [] if table is None else to_rows(table)
            if rows and all(row.checkpoint == task.target.origin and row.probe == task.probe.hash for row in rows):
                return rows
    return []


def _copy_certificates(published: Store, store: Store) -> None:
    """Copy who measured the rows; a remote store uploads what it finds in its copy."""
    for source in (published.path / CERTIFICATES).glob("*.json"):
        target: Path = store.path / CERTIFICATES / source.name
        if not target.exists():
            write_atomically(target, lambda temporary, source=source: shutil.copyfile(source, temporary))

"""Stored steps that a resumed training has gone back from: kept in a folder that no view reads."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from repdyn.store import MeasurementKey, Store
from repdyn.store.files import read_rows, read_tables

ABANDONED_FOLDER = "abandoned"
"""In the folder of the run: in it, one folder for each time that the training went back."""


class AbandonedSteps:
    """The steps of a run that were measured after the step where the training goes on.

    Views must not draw them as a part of the new course of the training. They are moved back if the training passes
    through the same weights again, as one that repeats the same steps exactly does.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._moved: list[Path] = []

    def set_aside(self, run: str, *, after: int) -> Path | None:
        """Move the live measurements of later steps out of the way.

        Returns:
            The folder they are in now; None where there are none.
        """
        files = sorted(self._store.folder_of(run).glob("step*.parquet"))
        later = [path for path in files if _step_of(path) > after and _is_live(path)]
        if not later:
            return None
        parent = self._store.folder_of(run) / ABANDONED_FOLDER
        folder = next(path for number in count(1) if not (path := parent / f"{number:03d}").exists())
        folder.mkdir(parents=True)
        self._moved = [path.rename(folder / path.name) for path in later]
        return folder

    def restore(self, key: MeasurementKey, weights: str | None) -> bool | None:
        """Move all steps back, if the measurement of a key is among them and was made on these weights.

        Returns:
            Whether it was; None where it is not among them.
        """
        name = Path(key.filename).name
        found = next((path for path in self._moved if path.name == name), None)
        if found is None:
            return None
        if read_rows(found)[0].weights not in {None, weights}:
            return False
        for path in self._moved:
            target = self._store.folder_of(key.run) / path.name
            if not target.exists():
                path.rename(target)
        self._moved = []
        return True


def _step_of(path: Path) -> int:
    digits = path.stem.removeprefix("step").partition("-")[0]
    return int(digits) if digits.isdecimal() else -1


def _is_live(path: Path) -> bool:
    """Return whether a file holds measurements of the live model, rather than of a saved checkpoint."""
    return read_tables([path], ["checkpoint"])["checkpoint"].null_count > 0

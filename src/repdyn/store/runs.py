"""Runs that only ever grow, and the histories that views show of them.

Each start of a training is a run of its own, in a folder of its own with a ``run.json``. A resumed
training, a branch or a notebook cell that runs twice is another run, perhaps with a parent. What a
curve shows is a path: a run and its ancestors, each up to the step at which the next one left it,
which is a segment of the path. A folder without ``run.json`` is a run without a parent.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from repdyn.store.files import (
    copy_folder,
    folder_name,
    has_row_files,
    is_failure,
    read_tables,
    row_files,
    run_of,
    step_of,
)
from repdyn.utils.files import is_url

RUN_FILE = "run.json"


@dataclass(frozen=True)
class Run:
    """One start of a training, or the checkpoints that a sweep has measured."""

    id: str
    """``NAME--`` and random digits; the name alone for a folder without :data:`RUN_FILE`."""
    name: str
    started: str = ""
    """UTC time, ISO 8601; "" if unknown."""
    parent: str | None = None
    """Id of the run that it goes on from."""
    parent_step: int | None = None
    """Step at which it left its parent."""
    parent_store: str | None = None
    """Store of the parent if that is another one: a URL, or a path relative to the folder of this
    store.
    """
    configuration: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Segment:
    """The steps of one run in a path: all of them, or those up to the step at which the next run
    left it.
    """

    folder: Path
    last_step: int | None
    """The step at which the next run left it; None for the last run of a path."""

    def files(self) -> list[Path]:
        """Return the files that may have rows of these steps, in ascending order of their names."""
        names = row_files(self.folder)
        return [self.folder / name for name in names if self.has_step(step_of(name))]

    def until(self, step: int | None) -> Segment:
        """Return the segment up to a step; all of it where that is None."""
        ends = [end for end in (self.last_step, step) if end is not None]
        return Segment(self.folder, min(ends, default=None))

    def has_step(self, step: int | None) -> bool:
        """Return whether a step belongs to the segment; True for a step that is unknown."""
        return step is None or self.last_step is None or step <= self.last_step


@dataclass(frozen=True)
class RunPath:
    """A history: a run and its ancestors, the first of them first."""

    name: str
    """The name under which views show it."""
    run: Run
    segments: Sequence[Segment]
    missing: str | None = None
    """What is missing of the history, if anything."""

    def steps(self) -> list[int]:
        """Return the measured steps in ascending order, without those at which measuring failed."""
        steps: set[int] = set()
        for segment in self.segments:
            # by the names of the files, which is far quicker than to read them
            for path in segment.files():
                step = step_of(path.name)
                if step is None:  # a file of many measurements
                    table = read_tables([path], ["step", "layer"])
                    measured = table.filter(table["layer"].is_valid())["step"].to_pylist()
                    steps.update(filter(segment.has_step, measured))
                elif not is_failure(path.name):
                    steps.add(step)
        return sorted(steps)

    def files(self) -> list[Path]:
        """Return the files that may have rows of the history."""
        return [file for segment in self.segments for file in segment.files()]


class History:
    """The runs of the store in a folder as they are at one moment, and the paths through them."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self.runs = {run.id: run for run in filter(None, map(run_in, sorted(store.glob("[!.]*/"))))}
        """All runs by id, also those without rows."""
        self._children: dict[str, list[Run]] = {}
        for run in sorted(self.runs.values(), key=lambda run: (run.started, run.id)):
            if run.parent is not None:
                self._children.setdefault(run.parent, []).append(run)

    def paths(self) -> list[RunPath]:
        """Return the paths that views show, by name and then in the order in which they began.

        These end in runs that no other one continues, and in those that have measured more steps
        than the point at which each other one left them, unless that one has measured the same
        steps with the same weights.
        """
        shown = [
            run
            for run in self.runs.values()
            if has_row_files(self.folder(run))
            and not any(self._is_continued(run, child) for child in self._children.get(run.id, ()))
        ]
        # numbered by the first run that is theirs alone, so that a path keeps its number when its
        # training is resumed
        ends = {run.id for run in shown}
        began = {run.id: self._began(run, ends) for run in shown}
        paths = []
        in_order = sorted(shown, key=lambda run: (run.name, began[run.id], run.id))
        for name, of_name in groupby(in_order, key=lambda run: run.name):
            for number, run in enumerate(of_name, 1):
                start = began[run.id][:16].replace("T", " ")
                which = ", ".join(filter(None, [str(number), start]))
                paths.append(self.path_to(run, name if number == 1 else f"{name} ({which})"))
        return paths

    def path_to(self, run: Run, name: str) -> RunPath:
        """Return the path that ends in a run, under a name."""
        ancestors, missing = self._ancestors(run, frozenset({run.id}))
        segments = (*ancestors, Segment(self.folder(run), None))
        return RunPath(name=name, run=run, segments=segments, missing=missing)

    def family(self, run: Run) -> Iterator[Path]:
        """Yield the folders of a run, of its ancestors and of all that descend from one of
        these.
        """
        yield from (segment.folder for segment in reversed(self.path_to(run, run.name).segments))
        root = run
        seen = {run.id}  # files that were changed by hand may make a circle
        while (parent := self.runs.get(root.parent or "")) is not None and parent.id not in seen:
            seen.add(parent.id)
            root = parent
        yield from map(self.folder, self._descendants(root))

    def folder(self, run: Run) -> Path:
        """Return the folder of a run."""
        return self._store / folder_name(run.id)

    def _ancestors(self, run: Run, seen: frozenset[str]) -> tuple[list[Segment], str | None]:
        """Return the segments of a run's ancestors, and what is missing of them."""
        if run.parent is None or run.parent in seen:
            return [], None
        history = self
        parent = self.runs.get(run.parent)
        # of a remote store its copy, if there is one
        if parent is None and run.parent_store is not None:
            elsewhere = run.parent_store
            history = History(
                copy_folder(elsewhere) if is_url(elsewhere) else self._store / elsewhere
            )
            parent = history.runs.get(run.parent)
        if parent is None:
            where = run.parent_store if is_url(run.parent_store or "") else history._store
            return [], (
                f"the run {run.parent}, which {run.name} goes on from, is not in {where}; its "
                "steps are not shown: had it moved, store= at the resume would have named its new "
                "place"
            )
        # of the store that has the parent, whose own parent may be in a third one
        earlier, missing = history._ancestors(parent, seen | {parent.id})
        segments = [*earlier, Segment(history.folder(parent), None)]
        # a run may have left its parent before the step at which that left its own
        return [segment.until(run.parent_step) for segment in segments], missing

    def _began(self, run: Run, ends: Collection[str]) -> str:
        """Return when the first run of a path began that is part of no path before it."""
        parent = self.runs.get(run.parent or "")
        if parent is None or parent.id in ends or self._children[parent.id][0] != run:
            return run.started
        return self._began(parent, ends)

    def _is_continued(self, run: Run, child: Run) -> bool:
        """Return whether a child, or one that descends from it, has the steps that a run measured
        after it left.
        """
        folders = [self.folder(descendant) for descendant in self._descendants(child)]
        folders = [folder for folder in folders if has_row_files(folder)]
        # a child that has measured nothing yet hides nothing of its parent
        if not folders:
            return False
        before = Segment(self.folder(run), child.parent_step)
        for name in row_files(before.folder):
            # steps before the child left are shown in its path too
            if is_failure(name) or before.has_step(step_of(name)):
                continue
            # the name says step, probe and metrics: the same measurement has the same name
            weights = weights_of(before.folder / name)
            if weights is None or all(weights_of(folder / name) != weights for folder in folders):
                return False
        return True

    def _descendants(self, run: Run) -> Iterator[Run]:
        """Yield a run and all that go on from it, those of fewer generations first."""
        waiting = [run]
        seen = {run.id}
        while waiting:
            descendant = waiting.pop(0)
            yield descendant
            for child in self._children.get(descendant.id, ()):
                if child.id not in seen:
                    seen.add(child.id)
                    waiting.append(child)


def weights_of(path: Path) -> str | None:
    """Return the fingerprint of the weights that a file was measured on; None if unknown, or if
    there is no file.
    """
    try:
        # read once as long as the file is the same
        stat = path.stat()
        return _weights(path, stat.st_mtime_ns, stat.st_size)
    except (FileNotFoundError, ValueError):  # damaged: it is named where its rows are read
        return None


@lru_cache(maxsize=4096)
def _weights(path: Path, mtime_ns: int, size: int) -> str | None:
    return read_tables([path], ["weights"])["weights"][0].as_py()


def run_in(folder: Path) -> Run | None:
    """Return the run in a folder with a :data:`RUN_FILE` or rows; None for any other folder.

    The name of the folder says which run it is, also if the folder is a copy of another one.
    """
    has_file = (folder / RUN_FILE).exists()
    if not has_file and not has_row_files(folder):
        return None
    run_id = run_of(folder.name)
    # of a sweep, or damaged: its rows are shown nevertheless
    with suppress(OSError, ValueError, TypeError):
        values = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
        names = [column.name for column in fields(Run)]
        # a later version of this package may have written more
        run = Run(**{name: values[name] for name in names if name in values})
        return run if run_id is None else replace(run, id=run_id)
    name = run_id or folder.name
    if run_id is None:  # too long for the name of the folder
        with suppress(IndexError, ValueError):
            name = read_tables([folder / row_files(folder)[0]], ["run"])["run"][0].as_py()
    return Run(name, name)

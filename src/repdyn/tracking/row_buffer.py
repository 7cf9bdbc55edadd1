"""A buffer of rows in front of a store that may be full, slow or gone, so that none is lost."""

from __future__ import annotations

import logging
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Literal, TypeAlias

from repdyn.probe import Probe
from repdyn.store import MeasurementKey, Store, open_store
from repdyn.store.keys import own_folder
from repdyn.store.remote import RefusedError, RemoteError
from repdyn.store.schema import Row
from repdyn.store.unfinished import remove_unfinished_files
from repdyn.tracking.abandoned_steps import AbandonedSteps
from repdyn.tracking.kept_files import KeptFiles
from repdyn.utils.addresses import is_url
from repdyn.utils.attempts import TimeoutRunner
from repdyn.utils.redaction import redacted

log = logging.getLogger(__name__)

STORE_SECONDS = 60.0
"""How long a training waits for one access to the disk."""

Existing: TypeAlias = Literal["refuse", "continue", "replace", "number"]
"""What to do with a run of the same name in the store: raise an error, go on from it, set it aside, or add a number."""


class RowBuffer:
    """A buffer of rows that the store has not accepted yet.

    Args:
        store: None stores nothing.
        probe: stored with the rows.
        seconds: how long one access to the store may take.
    """

    def __init__(self, store: Store | None, probe: Probe, seconds: float = STORE_SECONDS) -> None:
        self._store = store
        self._probe = probe
        self._with_timeout = TimeoutRunner(seconds)
        self._waiting: dict[MeasurementKey, list[Row]] = {}
        self._path = str(store.path) if store else "(none)"
        self._abandoned = AbandonedSteps(store) if store else None
        # what a remote store has lost locally is there remotely
        self._kept = KeptFiles(store.path) if store and not is_url(store.location) else None
        self._is_lost = False
        # a trainer that fails without notice leaves rows here until the process ends
        weakref.finalize(self, _rescue_at_exit, self._waiting, probe, self._path)

    def begin(self, run: str, resumed: bool, existing: Existing = "refuse") -> str:
        """Prepare the store: continue it for a resumed run, but never put a new run on top of another.

        Args:
            run: name of the run.
            resumed: whether it goes on.
            existing: what to do with a run of this name that does not go on.

        Returns:
            The name of the run, with a number ("name-2") under "number".

        Raises:
            ValueError: the store holds another run of this name, under "refuse"; or its folder is a symbolic link.
            OSError: it cannot be written.
        """
        store = self._store
        if store is None:
            return run
        for line in self._with_timeout(f"reading {self._path}", lambda: remove_unfinished_files(store)):
            log.warning(line)
        refresh(store, self._with_timeout.seconds)
        if existing == "number" and not resumed:
            names = chain([run], (f"{run}-{number}" for number in count(2)))
            run = next(name for name in names if not self.steps(name))
        own_folder(store.folder_of(run))
        stored = bool(self.steps(run))
        if stored and not resumed and existing == "replace":
            self.go_back(run, -1)
            self._abandoned, stored = AbandonedSteps(store), False  # another run takes none of them back
        if stored and not resumed:
            raise ValueError(
                f"expected a new run, but the store {store.location} already holds steps of {run!r}; resume it, or "
                f"choose another run= or store=, or delete {store.folder_of(run)}"
            )
        if stored:
            self._check_same_probe(store, run)
        self._with_timeout(f"writing the probe to {store.path}", lambda: store.save_probe(self._probe))
        return run

    def _check_same_probe(self, store: Store, run: str) -> None:
        from repdyn.tables.designs import design_names  # with pandas, which only a run that goes on waits for

        rows = self._with_timeout(f"reading {store.path}", lambda: store.to_pandas(run, columns=["probe", "design"]))
        known = {str(found): ", ".join(design_names(part)) for found, part in rows.groupby("probe")}
        if self._probe.hash not in known:
            design = self._probe.design.name
            if set(known.values()) == {design}:
                probes, got = ", ".join(known), self._probe.name
            else:
                probes = ", ".join(f"{found} (sampling design {name})" for found, name in known.items())
                got = f"{self._probe.name}, sampling design {design}"
            raise ValueError(
                f"expected the probe that the resumed run was measured on, {probes}, got {self._probe.hash} "
                f"({got}); take that one, Probe.load({str(store.path)!r} + "
                "'/probes/HASH.safetensors'), or choose another run="
            )

    def steps(self, run: str) -> list[int]:
        """Return the steps of a run that are stored.

        Raises:
            OSError: the store does not answer.
        """
        store = self._store
        return self._with_timeout(f"reading {self._path}", lambda: store.steps(run)) if store else []

    def rows(self, key: MeasurementKey) -> list[Row]:
        """Return the rows under a key, buffered or stored; none where there are none.

        Raises:
            OSError: the store does not answer.
        """
        store = self._store
        if key in self._waiting or store is None:
            return self._waiting.get(key, [])
        return self._with_timeout(f"reading {store.path}", lambda: store.read(key) if key in store else [])

    def go_back(self, run: str, step: int) -> Path | None:
        """Set aside what is stored of later steps than the one where a training goes on.

        Returns:
            The folder that they are in now; None where there are none.

        Raises:
            OSError: the store does not answer.
        """
        moving = self._abandoned
        if moving is None:
            return None
        folder = self._with_timeout(f"moving files in {self._path}", lambda: moving.set_aside(run, after=step))
        if folder is not None and self._kept is not None:
            self._kept.forget_missing()
        return folder

    def rows_on(self, key: MeasurementKey, weights: str | None) -> tuple[list[Row], bool]:
        """Return the rows under a key that were measured on these weights, and whether there are others.

        Steps that the training had gone back from are stored again if they were; those measured on other weights are
        set aside.

        Raises:
            OSError: the store does not answer.
        """
        moving, restored = self._abandoned, None
        if moving is not None and key not in self._waiting:
            restored = self._with_timeout(f"reading {self._path}", lambda: moving.restore(key, weights))
        rows = self.rows(key)
        if not rows or rows[0].weights in {None, weights}:
            return rows, restored is False
        self.go_back(key.run, key.step - 1)
        return [], True

    def add(self, key: MeasurementKey, rows: Sequence[Row]) -> None:
        """Buffer rows for :meth:`flush`, in place of any under this key."""
        self._waiting[key] = list(rows)

    def flush(self) -> Iterator[list[Row]]:
        """Write the buffered rows step by step, and yield those that have been written.

        Raises:
            OSError: the store cannot be written, or does not answer; the rest stays buffered.
        """
        for key, rows in list(self._waiting.items()):
            if self._store is not None:
                write = partial(self._write, self._store, key, rows)
                self._with_timeout(f"writing step {key.step} to {self._path}", write)
            del self._waiting[key]
            yield rows

    def _write(self, store: Store, key: MeasurementKey, rows: list[Row]) -> None:
        kept, folder = self._kept, store.folder_of(key.run)
        if kept is not None and kept.names and (self._is_lost or not folder.exists()):
            self._is_lost = True  # until all of it is there again
            n_files = kept.restore()
            store.save_probe(self._probe)
            self._is_lost = False
            log.warning("%s was deleted; the %d files of this process are written again", folder, n_files)
        path = store.write(key, rows)
        if kept is not None:
            with suppress(OSError):  # a copy that there is no space for is not worth an error
                kept.keep(path)
                kept.keep_once(store.alerts_path(key.run))

    def flush_to(self, log_rows: Callable[[list[Row]], None]) -> None:
        """Write the buffered rows, then log those that have been written; the rest is tried again next time.

        Raises:
            OSError: as :meth:`flush` does.
        """
        stored = []
        try:
            for rows in self.flush():
                stored.append(rows)
        finally:
            for rows in stored:
                log_rows(rows)

    def flush_or_rescue(self, log_rows: Callable[[list[Row]], None], seconds: float | None = None) -> None:
        """Write the buffered rows and log them at the end; what the store does not accept goes to a temporary folder.

        Args:
            log_rows: called with the rows of each step that has been written.
            seconds: how long one access to the store may take; None for as long as ever.

        Raises:
            Exception: as :meth:`rescue` does.
        """
        usual = self._with_timeout.seconds
        self._with_timeout.seconds = usual if seconds is None else seconds
        try:
            self.flush_to(log_rows)
        except Exception as error:
            self.rescue(error)
        finally:
            self._with_timeout.seconds = usual

    def store_failure(self, key: MeasurementKey, rows: Sequence[Row]) -> None:
        """Store why a step is missing, or log that this is impossible; a resumed run measures the step again."""
        store = self._store
        if store is None:
            return
        try:
            self._with_timeout(f"writing to {store.path}", lambda: store.write(key.failed, rows))
        except OSError as error:
            log.warning("the failure at step %d could not be stored: %s", key.step, redacted(str(error)))

    def rescue(self, error: Exception) -> None:
        """Write the rows that are still buffered at the end to a temporary folder, which the error names.

        Raises:
            OSError: naming the folder.
            Exception: ``error``, where nothing is buffered.
        """
        if not self._waiting:
            raise error
        raise OSError(_rescue_rows(self._waiting, self._probe, self._path, redacted(str(error)))) from error


def refresh(store: Store, seconds: float = STORE_SECONDS) -> bool:
    """Download what is new in a remote store, and return whether it answers; if not, the training goes on.

    Raises:
        RefusedError: credentials, permissions, or no such bucket.
    """
    try:
        TimeoutRunner(seconds)(f"reading {store.location}", lambda: store.refresh())
    except RefusedError:
        raise
    except (RemoteError, TimeoutError) as error:
        log.warning("%s; the rows are stored in %s and uploaded when it answers", error, store.path)
        return False
    return True


def _rescue_at_exit(waiting: dict[MeasurementKey, list[Row]], probe: Probe, path: str) -> None:
    if waiting:
        log.warning(_rescue_rows(waiting, probe, path, "the training ended before it did"))


def _rescue_rows(waiting: dict[MeasurementKey, list[Row]], probe: Probe, path: str, reason: str) -> str:
    """Write rows to a folder of their own, and return a message that names it."""
    rescued = open_store(tempfile.mkdtemp(prefix="repdyn-rescued-"))
    for key, rows in waiting.items():
        rescued.write(key, rows)
    rescued.save_probe(probe)
    steps = ", ".join(str(key.step) for key in waiting)
    waiting.clear()
    return (
        f"expected {path} to take the rows of steps {steps}, but {reason}; they are in "
        f"{rescued.path}, from where their folder may be copied"
    )

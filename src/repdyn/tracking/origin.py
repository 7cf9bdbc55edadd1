"""The run that a training goes on from, and what it and its own ancestors measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repdyn.store import MeasurementKey, Store
from repdyn.store.files import STATES_FOLDER
from repdyn.store.runs import run_in
from repdyn.store.schema import Row
from repdyn.store.state_cache import StateCache
from repdyn.tracking.weights import AVERAGED
from repdyn.utils.files import is_url


@dataclass(frozen=True)
class Origin:
    """The run that a training goes on from, as a checkpoint remembers it."""

    run_id: str
    store: str | None = None
    """Where its rows are; None for the store of the run that goes on."""
    averaged: str | None = None
    """Id of the run of its averaged weights, if it has one."""

    @classmethod
    def of(cls, state: Mapping[str, Any] | None) -> Origin | None:
        """Return the run of a state that ``TrackedTraining.state`` returned; None where the state
        names no run.
        """
        if not state or not state.get("run"):
            return None
        return cls(state["run"], state["store"], state.get(AVERAGED))

    def store_in(self, folders: Iterable[Path]) -> str | Path | None:
        """Return the store if it is in one of these folders, moved or not; None if it is not. A URL
        is everywhere.

        A job may have been moved to another machine as a whole: of the remembered path, the longest
        ending that exists below one of the folders, and holds the run, is the store.
        """
        if self.store is None or is_url(self.store):
            return self.store
        parts = Path(self.store).parts
        tops = [folder.absolute() for folder in folders]
        # the longest ending first: a short one, such as "repdyn", fits many folders
        for n_parts in range(len(parts) - 1, 0, -1):
            for top in tops:
                candidate = top.joinpath(*parts[-n_parts:])
                if Store(candidate).find_run(self.run_id) is not None:
                    return candidate
        return None

    def near(self, checkpoint: str | Path | None) -> Origin:
        """Return the origin with the place of its store where that was moved together with a
        checkpoint.
        """
        if (
            self.store is None
            or is_url(self.store)
            or checkpoint is None
            or Store(self.store).find_run(self.run_id)
        ):
            return self
        moved = self.store_in(Path(checkpoint).absolute().parents)
        return self if moved is None else replace(self, store=str(moved))


@dataclass(frozen=True)
class EarlierStep:
    """A step that an earlier run has measured on the same weights."""

    rows: list[Row]
    has_states: bool
    """True if its states are still stored, so that the next step can be compared with them."""


class EarlierSteps:
    """Finds the steps that the runs before this one have measured, and the states that they kept.

    A training that goes on from an older checkpoint, or is started again, comes by steps that were
    measured before: these are not measured twice.

    Args:
        store: of the run.
        run_id: its id.
        probe: hash of the probe.
        layers: the choice of layers.
        compares: whether a metric compares steps.
    """

    def __init__(
        self, store: Store, run_id: str, probe: str, layers: Any, *, compares: bool
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._probe = probe
        self._layers = layers
        self._compares = compares

    def cache(self, *, goes_on: bool) -> StateCache | None:
        """Return the cache for the states of the run itself; None where no metric compares steps.

        Where the training ``goes_on`` from another run, the first step is compared with the last
        one of that run.
        """
        if not self._compares:
            return None
        folder = self._store.folder_of(self._run_id)
        earlier = self._last_of_ancestors() if goes_on else None
        return self._states_in(folder, self._run_id, earlier=earlier)

    def find(
        self, key: MeasurementKey, weights: str | None, cache: StateCache | None
    ) -> EarlierStep | None:
        """Return a step if an earlier run has measured it on these weights."""
        measurement = self._store.find_measurement(key, weights)
        if measurement is None:
            return None
        rows, folder = measurement
        measured_by = rows[0].run_id
        # no metric compares steps, so that nothing is missing
        if cache is None:
            return EarlierStep(rows, has_states=True)
        # states are kept by the id of a run, which these rows do not name
        if measured_by is None:
            return EarlierStep(rows, has_states=False)
        has_states = cache.take_over(key.step, self._states_in(folder, measured_by))
        return EarlierStep(rows, has_states)

    def _states_in(self, folder: Path, run: str, **others: Any) -> StateCache:
        """Return the states that a run keeps in its folder."""
        return StateCache(
            folder / STATES_FOLDER, run=run, probe=self._probe, layers=self._layers, **others
        )

    def _last_of_ancestors(self) -> StateCache | None:
        """Return the states of the last step before this run that its ancestors have measured, if
        they have kept them.
        """
        path = self._store.path_of(self._run_id)
        if path is None:
            return None
        # the last segment is this run's own; an ancestor may have ended before it measured anything
        for segment in reversed(path.segments[:-1]):
            run = run_in(segment.folder)
            steps = replace(path, segments=[segment]).steps()
            if run is not None and steps:
                return self._states_in(segment.folder, run.id, last_step=steps[-1])
        return None

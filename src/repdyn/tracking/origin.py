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
        """Return the run of a state that ``TrackedTraining.state`` returned; None where that is of
        no run.
        """
        return (
            cls(state["run"], state["store"], state.get(AVERAGED))
            if state and state.get("run")
            else None
        )

    def found_in(self, folders: Iterable[Path]) -> str | Path | None:
        """Return the store if it is in one of these folders, moved or not; None if it is not. A URL
        is everywhere.
        """
        if self.store is None or is_url(self.store):
            return self.store
        parts, places = Path(self.store).parts, [folder.absolute() for folder in folders]
        found = (
            place.joinpath(*parts[-n:]) for n in range(len(parts) - 1, 0, -1) for place in places
        )
        return next(
            (store for store in found if Store(store).find_run(self.run_id) is not None), None
        )

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
        moved = self.found_in(Path(checkpoint).absolute().parents)
        return self if moved is None else replace(self, store=str(moved))


@dataclass(frozen=True)
class EarlierStep:
    """A step that a relative of a run has measured on the same weights."""

    rows: list[Row]
    has_states: bool
    """Whether the next step can be compared with this one."""


class EarlierSteps:
    """Finds the steps that earlier runs of a lineage measured, and the states that they kept.

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
        """Return the states of the run itself; None where no metric compares steps."""
        if not self._compares:
            return None
        folder = self._store.folder_of(self._run_id)
        earlier = self._last_of_ancestors() if goes_on else None
        return self._states_in(folder, self._run_id, earlier=earlier)

    def find(
        self, key: MeasurementKey, weights: str | None, cache: StateCache | None
    ) -> EarlierStep | None:
        """Return a step if a relative has measured it on these weights."""
        found = self._store.find_measurement(key, weights)
        if found is None:
            return None
        rows, folder = found
        measured_by = rows[0].run_id
        if cache is None:
            return EarlierStep(rows, has_states=True)
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
        """Return the states of the last step that ancestors of the run have measured before it:
        those that its first step is compared with, if they are still there."""
        path = self._store.path_of(self._run_id)
        if path is None:
            return None
        for segment in reversed(path.segments[:-1]):
            run = run_in(segment.folder)
            steps = replace(path, segments=[segment]).steps()
            if run is not None and steps:
                return self._states_in(segment.folder, run.id, last_step=steps[-1])
        return None

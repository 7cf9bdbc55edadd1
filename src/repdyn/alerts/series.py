"""The values of a metric at all layers, step by step, and what was known before each step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

Layers: TypeAlias = tuple[int | None, ...]
"""Indices of layers, ascending; (None,) for a scalar."""

HISTORY = 8
"""Largest number of earlier changes with which a change of a profile is compared."""
MIN_STDS = 2.0
"""Distance beyond which two values differ, in standard deviations of their difference."""


class StoredRow(Protocol):
    """The fields of :class:`repdyn.store.schema.Row` that a course is taken from."""

    @property
    def metric(self) -> str: ...
    @property
    def subset(self) -> str | None: ...
    @property
    def stack(self) -> str | None: ...
    @property
    def layer(self) -> int | None: ...
    @property
    def head(self) -> int | None: ...
    @property
    def step(self) -> int: ...
    @property
    def value(self) -> float: ...
    @property
    def std(self) -> float: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def compared_to(self) -> int | None: ...


@dataclass(frozen=True)
class SeriesKey:
    """The identity of a series within a run."""

    metric: str
    subset: str | None
    stack: str | None


@dataclass(frozen=True, eq=False)
class Course:
    """The values of a metric for one subset and one stack; or those of a scalar of the run, with the layer None."""

    steps: np.ndarray
    """(n_steps,) ascending."""
    layers: Layers
    """(n_layers,) ascending; (None,) for a scalar."""
    values: np.ndarray
    """(n_steps, n_layers) NaN if undefined, not comparable or not measured."""
    stds: np.ndarray
    """(n_steps, n_layers) standard deviation over batches; NaN if unknown."""
    reasons: np.ndarray
    """(n_steps, n_layers) why a value is NaN; None if there is no reason."""
    compares_checkpoints: np.ndarray
    """(n_steps,) whether any value compares the checkpoint with an earlier one."""


COLUMNS = ["metric", "subset", "stack", "layer", "step", "value", "std", "reason", "compared_to"]
"""Columns of the rows that a course is taken from, apart from the head."""
_KEY = ["metric", "subset", "stack"]


@dataclass(frozen=True, eq=False)
class Past:
    """Summaries of what was observed before each of several steps, layer by layer."""

    layers: Layers
    values: np.ndarray
    """(n_steps, n_layers) the last value that was not NaN."""
    stds: np.ndarray
    """(n_steps, n_layers) standard deviation over batches of this value."""
    steps: np.ndarray
    """(n_steps, n_layers) the step of this value; -1 if there was none."""
    is_missing: np.ndarray
    """(n_steps, n_layers) whether the previous observation had no value."""
    is_empty: np.ndarray
    """(n_steps,) whether there was no observation."""
    compares_checkpoints: np.ndarray
    """(n_steps,) whether any value compared two checkpoints."""
    changes: tuple[tuple[float, ...], ...]
    """(n_steps,) the last nonzero changes of the profile, at most :data:`HISTORY`."""

    @classmethod
    def empty(cls, layers: Layers) -> Past:
        """Return the summary before the first step."""
        shape = 1, len(layers)
        missing = np.full(shape, np.nan), np.full(shape, np.nan), np.full(shape, -1), np.full(shape, True)
        return cls(layers, *missing, np.array([True]), np.array([False]), ((),))

    def at(self, place: int) -> Past:
        """Return the summary before a single step."""
        one = slice(place, place + 1)
        return replace(self, **{name: getattr(self, name)[one] for name in _OF_STEPS})

    def change(self, now: Course) -> np.ndarray:
        """Return the mean over layers of |value - previous| / max(|value|, |previous|), in [0, 2]; NaN if none has
        both.

        Changes that do not exceed their noise count as 0. Shape (n_steps,).
        """
        difference = self.difference(now)
        known = np.isfinite(difference)
        larger = np.fmax(np.abs(now.values), np.abs(self.values))
        differs = known & (difference > MIN_STDS * self.noise(now))
        relative = np.divide(difference, larger, out=np.zeros_like(difference), where=differs)
        found = relative.mean(axis=1)
        for place in np.flatnonzero(~known.all(axis=1)):
            found[place] = relative[place, known[place]].mean() if known[place].any() else np.nan
        return found

    def difference(self, now: Course) -> np.ndarray:
        """Return |value - previous| of shape (n_steps, n_layers); NaN if one of them is missing."""
        with np.errstate(invalid="ignore"):  # inf - inf
            return np.abs(now.values - self.values)

    def noise(self, now: Course) -> np.ndarray:
        """Return the standard deviation of the difference, of shape (n_steps, n_layers); 0 if unknown."""
        return np.nan_to_num(np.hypot(now.stds, self.stds))

    def select(self, layers: Layers) -> Past:
        """Return the summaries of the given layers, in their order; unknown ones are empty."""
        if layers == self.layers:
            return self
        return Past.empty(layers)._with(self)

    def before(self, now: Course) -> tuple[Past, Past, Past]:
        """Return what was known before each step of a course, given one summary before its first.

        Returns:
            The summaries before each step; that before the last step and that after it, with the layers of both.
        """
        known = self.select(now.layers)
        has_value = ~np.isnan(now.values)
        # row 0 is what was known at first, row i + 1 the i-th observation
        values, stds = np.vstack([known.values, now.values]), np.vstack([known.stds, now.stds])
        steps = np.vstack([known.steps, np.broadcast_to(now.steps[:, None], has_value.shape)])
        rows = np.vstack([np.zeros_like(known.steps), np.where(has_value, np.arange(1, len(steps))[:, None], 0)])
        last = np.maximum.accumulate(rows, axis=0), np.arange(len(now.layers))
        compares = np.logical_or.accumulate(np.concatenate([known.compares_checkpoints, now.compares_checkpoints]))
        whole = Past(
            now.layers,
            values[last],
            stds[last],
            steps[last],
            np.vstack([known.is_missing, ~has_value]),
            np.concatenate([known.is_empty, np.full(len(now.steps), False)]),
            compares,
            ((),) * len(steps),
        )
        past = replace(whole.at(0), **{name: getattr(whole, name)[:-1] for name in _OF_STEPS})
        found, changes = list(known.changes[0]), [known.changes[0]]
        for change in past.change(now).tolist():
            found += [change] if change > 0 else []
            changes.append(tuple(found[-HISTORY:]))
        whole = replace(whole, changes=tuple(changes))
        everything = tuple(sorted({*self.layers, *now.layers}, key=lambda layer: -1 if layer is None else layer))
        last_two = [self.select(everything)._with(whole.at(len(now.steps) + end)) for end in (-1, 0)]
        return replace(past, changes=tuple(changes[:-1])), last_two[0], last_two[1]

    def _with(self, other: Past) -> Past:
        """Return one summary that is replaced by another one at the layers of that."""
        if other.layers == self.layers:
            return other
        places = {layer: place for place, layer in enumerate(self.layers)}
        shared = [place for place, layer in enumerate(other.layers) if layer in places]
        at = [places[other.layers[place]] for place in shared]
        changed = {}
        for name in ("values", "stds", "steps", "is_missing"):
            changed[name] = getattr(self, name).copy()
            changed[name][:, at] = getattr(other, name)[:, shared]
        return replace(other, layers=self.layers, **changed)


_OF_STEPS = ("values", "stds", "steps", "is_missing", "is_empty", "compares_checkpoints", "changes")


def courses(frame: pd.DataFrame) -> Iterator[tuple[SeriesKey, Course]]:
    """Yield the values of each metric and scalar of a run, by step; values of single heads are ignored.

    Args:
        frame: rows of one run on one probe; columns as the fields of :class:`repdyn.store.schema.Row`.
    """
    failed = frame["layer"].isna() & frame["reason"].notna()
    # the other columns are many, and copied by each selection of rows
    rows = frame.loc[frame["head"].isna() & ~failed, COLUMNS]
    # numbered in the order of their first rows; frames of the groups would copy all columns again
    number = rows.groupby(_KEY, sort=False, dropna=False, observed=True).ngroup().to_numpy()
    order = np.argsort(number, kind="stable")
    columns = _Columns.of(rows)
    for members in np.split(order, np.flatnonzero(np.diff(number[order])) + 1) if len(rows) else ():
        metric, subset, stack = (rows[name].iat[members[0]] for name in _KEY)
        yield SeriesKey(str(metric), _text(subset), _text(stack)), columns.course(members)


def courses_of_rows(rows: Iterable[StoredRow]) -> Iterator[tuple[SeriesKey, Course]]:
    """Yield what :func:`courses` does, from few rows: a data frame of them takes most of the time."""
    found: dict[SeriesKey, list[StoredRow]] = {}
    for row in rows:
        if row.head is None and not (row.layer is None and row.reason is not None):
            found.setdefault(SeriesKey(row.metric, row.subset, row.stack), []).append(row)
    for key, members in found.items():
        columns = _Columns(
            np.array([row.step for row in members]),
            np.array([-1 if row.layer is None else row.layer for row in members]),
            np.array([row.value for row in members], float),
            np.array([row.std for row in members], float),
            np.array([row.reason for row in members], object),
            np.array([row.reason is not None for row in members]),
            np.array([row.compared_to is not None for row in members]),
        )
        yield key, columns.course(np.arange(len(members)))


@dataclass(frozen=True, eq=False)
class _Columns:
    """The columns of all rows as arrays."""

    step: np.ndarray
    layer: np.ndarray
    value: np.ndarray
    std: np.ndarray
    reason: np.ndarray
    has_reason: np.ndarray
    compares: np.ndarray

    @classmethod
    def of(cls, rows: pd.DataFrame) -> _Columns:
        step, layer = rows["step"].to_numpy(int), rows["layer"].fillna(-1).to_numpy(int)
        value, std, reason = rows["value"].to_numpy(float), rows["std"].to_numpy(float), rows["reason"]
        texts, compares = reason.astype(object).to_numpy(object), rows["compared_to"].notna().to_numpy(bool)
        return cls(step, layer, value, std, texts, reason.notna().to_numpy(bool), compares)

    def course(self, members: np.ndarray) -> Course:
        """Return the values of one series, by the places of its rows."""
        layers, layer = np.unique(self.layer[members], return_inverse=True)
        steps, step = np.unique(self.step[members], return_inverse=True)
        values, stds = (np.full((len(steps), len(layers)), np.nan) for _ in range(2))
        values[step, layer], stds[step, layer] = self.value[members], self.std[members]
        reasons, explained = np.full(values.shape, None, object), self.has_reason[members]
        reasons[step[explained], layer[explained]] = self.reason[members[explained]]
        compares = np.zeros(len(steps), bool)
        compares[step[self.compares[members]]] = True
        numbers = tuple(None if number < 0 else int(number) for number in layers)
        return Course(steps, numbers, values, stds, reasons, compares)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None

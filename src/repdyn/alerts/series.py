"""The values that rules watch: one metric at one step, layer by layer, and what came before."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd

Layers: TypeAlias = tuple[int | None, ...]
"""Numbers of layers, ascending; (None,) for a scalar."""

HISTORY = 8
"""Earlier changes of a profile that a change is compared with, at most."""
SPREADS = 2.0
"""Standard deviations of their difference by which two values must lie apart to count as different."""


@dataclass(frozen=True)
class SeriesKey:
    """What identifies a series of a run."""

    metric: str
    subset: str | None
    stack: str | None


@dataclass(frozen=True, eq=False)
class Observation:
    """One metric on one subset of tokens at one step, of one stack; or a scalar of the run: one layer of no number."""

    step: int
    layers: Layers
    """(n_layers) ascending; (None,) for a scalar."""
    values: np.ndarray
    """(n_layers) NaN where there is none, or none that compares with others."""
    spreads: np.ndarray
    """(n_layers) standard deviation over batches; NaN where it is not known."""
    reasons: tuple[str | None, ...]
    """(n_layers) why a value is NaN."""
    compares: bool
    """Whether a value compares this checkpoint with an earlier one."""


class PastObservations:
    """What was observed before a step, layer by layer; nothing at first."""

    def __init__(self, layers: Layers) -> None:
        self.layers = layers
        self.values = np.full(len(layers), np.nan)
        """(n_layers) the last value there was."""
        self.spreads = np.full(len(layers), np.nan)
        self.steps = np.full(len(layers), -1)
        """(n_layers) the step of that value; -1 where there was none."""
        self.lost = np.full(len(layers), True)
        """(n_layers) whether the measurement before had no value."""
        self.is_empty = True
        self.compares = False
        self.changes: deque[float] = deque(maxlen=HISTORY)
        """The last changes of the profile above 0."""

    def change(self, now: Observation) -> float:
        """Return the mean over layers of |value - before| / max(|value|, |before|), in [0, 2]; NaN where none has both.

        Changes that do not exceed their noise count as none.
        """
        difference = self.difference(now)
        known = np.isfinite(difference)
        if not known.any():
            return float("nan")
        larger = np.fmax(np.abs(now.values), np.abs(self.values))
        differs = known & (difference > SPREADS * self.noise(now))
        relative = np.divide(difference, larger, out=np.zeros_like(difference), where=differs)
        return float(relative[known].mean())

    def difference(self, now: Observation) -> np.ndarray:
        """Return |value - before| of shape (n_layers,); NaN where one of them is missing."""
        with np.errstate(invalid="ignore"):  # between two that are infinite
            return np.abs(now.values - self.values)

    def noise(self, now: Observation) -> np.ndarray:
        """Return the standard deviation of the difference, of shape (n_layers,); 0 where it is not known."""
        return np.nan_to_num(np.hypot(now.spreads, self.spreads))

    def after(self, now: Observation) -> PastObservations:
        """Return the past of the next observation."""
        known = self.of(now.layers)
        past = known if self.layers == now.layers else self.of(_united(self.layers, now.layers))
        change, there = known.change(now), ~np.isnan(now.values)
        at = np.array([past.layers.index(layer) for layer in now.layers])
        past.values[at[there]] = now.values[there]
        past.spreads[at[there]] = now.spreads[there]
        past.steps[at[there]] = now.step
        past.lost[at] = ~there
        past.is_empty, past.compares = False, past.compares or now.compares
        if change > 0:
            past.changes.append(change)
        return past

    def of(self, layers: Layers) -> PastObservations:
        """Return the past of these layers, in their order; unknown ones have none."""
        past = PastObservations(layers)
        if layers == self.layers:
            new = old = slice(None)
        else:
            places = {layer: place for place, layer in enumerate(self.layers)}
            at = [(place, places[layer]) for place, layer in enumerate(layers) if layer in places]
            new, old = map(list, zip(*at, strict=True)) if at else ([], [])
        past.values[new], past.spreads[new] = self.values[old], self.spreads[old]
        past.steps[new], past.lost[new] = self.steps[old], self.lost[old]
        past.is_empty, past.compares, past.changes = self.is_empty, self.compares, self.changes.copy()
        return past


def _united(some: Layers, others: Layers) -> Layers:
    return tuple(sorted({*some, *others}, key=lambda layer: -1 if layer is None else layer))


def observations(frame: pd.DataFrame) -> Iterator[tuple[SeriesKey, list[Observation]]]:
    """Yield the observations of each metric and scalar of a run, by step; values of single heads are left out.

    Args:
        frame: rows of one run on one probe; columns as the fields of :class:`repdyn.store.schema.Row`.
    """
    failed = frame["layer"].isna() & frame["reason"].notna()
    rows = frame.loc[frame["head"].isna() & ~failed]
    for (metric, subset, stack), of_one in rows.groupby(["metric", "subset", "stack"], sort=False, dropna=False):
        yield SeriesKey(str(metric), _text(subset), _text(stack)), _moments(of_one)


def _moments(rows: pd.DataFrame) -> list[Observation]:
    numbers = rows["layer"].fillna(-1).to_numpy(int)
    (layers, at), (steps, when) = (np.unique(of, return_inverse=True) for of in (numbers, rows["step"].to_numpy(int)))
    values, spreads = (np.full((len(steps), len(layers)), np.nan) for _ in range(2))
    reasons = np.full((len(steps), len(layers)), None, object)
    values[when, at] = rows["value"].to_numpy(float)
    spreads[when, at] = rows["std"].to_numpy(float)
    told = rows["reason"]
    reasons[when, at] = told.astype(object).where(told.notna(), None).to_numpy(object)
    compares = np.zeros(len(steps), bool)
    np.logical_or.at(compares, when, rows["compared_to"].notna().to_numpy(bool))
    named = tuple(None if layer < 0 else int(layer) for layer in layers)
    return [
        Observation(int(step), named, values[place], spreads[place], tuple(reasons[place]), bool(compares[place]))
        for place, step in enumerate(steps)
    ]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None

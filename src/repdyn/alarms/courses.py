"""What a rule looks at: the values of one metric by layer and measured step, each with the one before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from repdyn.records import is_thin

THIN = "fewer than half of the vectors are distinct"


@dataclass(frozen=True, eq=False)
class Course:
    """One metric on one subset of tokens, of one stack of blocks; or a scalar of the run, as one layer of no number."""

    metric: str
    subset: str | None
    stack: str | None
    layers: tuple[int | None, ...]
    """(n_layers) ascending; (None,) for a scalar."""
    steps: tuple[int, ...]
    """(n_steps) ascending: those at which the metric was measured."""
    values: np.ndarray
    """(n_layers, n_steps); NaN where there is none, or none that compares with others."""
    spreads: np.ndarray
    """(n_layers, n_steps) standard deviation over batches; NaN where it is not known."""
    reasons: dict[tuple[int, int], str]
    """Why a value is NaN, by place in ``values``."""

    @cached_property
    def places_before(self) -> np.ndarray:
        """(n_layers, n_steps) place in ``steps`` of the last value before each; -1 where there is none."""
        known = np.where(np.isnan(self.values), -1, np.arange(len(self.steps)))
        last = np.maximum.accumulate(known, axis=1)
        return np.concatenate([np.full((len(self.layers), 1), -1), last[:, :-1]], axis=1)

    @cached_property
    def before(self) -> np.ndarray:
        """(n_layers, n_steps) the last value before each; NaN where there is none."""
        return self._taken(self.values)

    @cached_property
    def noise(self) -> np.ndarray:
        """(n_layers, n_steps) standard deviation of the difference to the value before; 0 where it is not known."""
        return np.nan_to_num(np.hypot(self.spreads, self._taken(self.spreads)))

    def _taken(self, of: np.ndarray) -> np.ndarray:
        there = self.places_before >= 0
        return np.where(there, np.take_along_axis(of, np.where(there, self.places_before, 0), axis=1), np.nan)


def courses_of(frame: pd.DataFrame) -> Iterator[Course]:
    """The courses of a run's metrics and scalars, in the order of their first rows; those of single heads are left out.

    Args:
        frame: rows of one run on one probe; columns as the fields of :class:`repdyn.records.Row`.
    """
    failed = frame["layer"].isna() & frame["reason"].notna()
    rows = frame.loc[frame["head"].isna() & ~failed]
    by_course = rows.groupby(["metric", "subset", "stack"], sort=False, dropna=False)
    for (metric, subset, stack), of_one in by_course:
        yield _course(of_one, str(metric), _text(subset), _text(stack))


def _course(rows: pd.DataFrame, metric: str, subset: str | None, stack: str | None) -> Course:
    numbers = rows["layer"].fillna(-1).to_numpy(int)
    (layers, at), (steps, when) = (np.unique(of, return_inverse=True) for of in (numbers, rows["step"].to_numpy(int)))
    values, spreads = (np.full((len(layers), len(steps)), np.nan) for _ in range(2))
    values[at, when] = rows["value"].to_numpy(float)
    spreads[at, when] = rows["std"].to_numpy(float)
    counted = (rows[column].to_numpy() for column in ("on_distinct", "n_unique", "n_vectors"))
    thin = np.fromiter((is_thin(*counts) for counts in zip(*counted, strict=True)), bool, len(rows))
    values[at[thin], when[thin]] = np.nan
    reasons = {(at[row], when[row]): THIN for row in np.flatnonzero(thin)}
    for row in np.flatnonzero(rows["reason"].notna().to_numpy()):
        reasons[at[row], when[row]] = str(rows["reason"].iloc[row])
    named = tuple(None if layer < 0 else int(layer) for layer in layers)
    return Course(metric, subset, stack, named, tuple(map(int, steps)), values, spreads, reasons)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None

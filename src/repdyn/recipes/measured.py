"""The measurements of one model in a store, as profiles over depth and courses over training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from repdyn.metrics.metric import parsed
from repdyn.probe import Probe
from repdyn.tables.effects import CONFIDENCE, CannotBeJudgedError, Estimate, mean_estimate
from repdyn.tables.frames import measurements, of_metric

Step: TypeAlias = Literal["first", "last"]
"""A measured step."""
Layers: TypeAlias = Literal["mean", "last", "lowest", "highest"]
"""Which blocks make up the value of a step: their mean, the last one, or the one with the lowest or highest value."""
Profile: TypeAlias = dict[float, Estimate]
"""A metric of the blocks at one step, by relative depth: 0 is the first, 1 the last."""
Course: TypeAlias = dict[int, Estimate]
"""A metric over training, by ascending step."""


class NotMeasuredError(Exception):
    """Carries the reason why a published value has nothing to be compared with."""


@dataclass(frozen=True, eq=False)
class Measured:
    """The rows of one model on one probe.

    Args:
        name: of the run.
        frame: all rows, scalars among them.
        by_values: take every value as exact, whatever its standard error; for designs whose batches share windows.
        probe: the probe of the rows, if the store has it.
        deviations: how the sampling differs from the recipe's.
    """

    name: str
    frame: pd.DataFrame
    by_values: bool = False
    probe: Probe | None = None
    deviations: tuple[str, ...] = ()

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The measured rows of layers."""
        return measurements(self.judged_frame)

    @cached_property
    def judged_frame(self) -> pd.DataFrame:
        """All rows, with standard errors of 0 if values are taken as exact."""
        if not self.by_values:
            return self.frame
        return self.frame.assign(std_error=0.0, n_batches=self.frame["n_batches"].clip(lower=2))

    def profile(self, name: str, step: Step) -> tuple[int, Profile]:
        """Return the first or last step at which a metric was measured, and the blocks with a value at it."""
        cells = self.cells(name)
        chosen = (min if step == "first" else max)(cells["step"].tolist())
        cells = cells.loc[(cells["step"] == chosen) & np.isfinite(cells["value"])]
        if len(cells) < 3:
            raise CannotBeJudgedError(f"needs 3 blocks with a value at step {chosen:,}, got {len(cells)}")
        last = round(float(cells["layer"].iloc[0] / cells["depth"].iloc[0]))
        positions = ((cells["layer"] - 1) / max(1, last - 1)).tolist()
        return chosen, dict(zip(positions, _estimates(cells), strict=True))

    def course(self, name: str, layers: Layers) -> Course:
        """Return the value at each step at which any block has one."""
        cells = self.cells(name)
        last = cells["layer"].max()
        cells = cells.loc[np.isfinite(cells["value"])]
        if cells.empty:
            raise CannotBeJudgedError(f"no value of {name}")
        if layers in {"mean", "last"}:
            complete = cells.groupby("layer")["step"].transform("size") == cells["step"].nunique()
            cells = cells.loc[complete & ((cells["layer"] == last) | (layers == "mean"))]
            if cells.empty:
                raise CannotBeJudgedError(f"no block has a value of {name} at every measured step")
        by_step = {step: _estimates(cells.loc[cells["step"] == step]) for step in sorted(set(cells["step"].tolist()))}
        if layers in {"mean", "last"}:
            return {step: mean_estimate(blocks) for step, blocks in by_step.items()}
        extreme = min if layers == "lowest" else max
        return {step: extreme(blocks, key=lambda block: block.value) for step, blocks in by_step.items()}

    def has(self, name: str) -> bool:
        """Return whether a metric was measured, by its name as for :meth:`profile`."""
        return not of_metric(self.rows, *split(name)).empty

    def cells(self, name: str) -> pd.DataFrame:
        """Return the rows of a metric at the blocks, layers 1 to L."""
        found = of_metric(self.rows, *split(name))
        if found.empty:
            raise NotMeasuredError(f"{name} was not measured")
        return found.loc[found["layer"] >= 1]


def split(name: str) -> tuple[str, str]:
    """Return the name of a metric in rows, and the subset, "all" where none is given.

    >>> split("two_nn"), split("two_nn[discard=0.8]@no_sink")
    (('two_nn', 'all'), ('two_nn[discard=0.8]', 'no_sink'))
    """
    return name.partition("@")[0], parsed(name).subset or "all"


def _estimates(cells: pd.DataFrame) -> list[Estimate]:
    columns = (cells[column].tolist() for column in ("value", "std_error", "n_batches"))
    return [Estimate(value, math.nan if error is None else error, n) for value, error, n in zip(*columns, strict=True)]


def half_width(estimate: Estimate) -> float:
    """Return half of the 95% interval of a value."""
    return float(stdtrit(estimate.n_batches - 1, (1 + CONFIDENCE) / 2)) * estimate.std_error

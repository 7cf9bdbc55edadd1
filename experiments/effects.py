"""The preregistered statistics of one run, from its rows; docs/experiment.md defines them.

A course is a table of one metric of one run on one probe: a row for each measured step, a column
for each block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from experiments import inference
from experiments.inference import NO_SINK, tested_statistics
from repdyn.store.schema import PROBE_LOSS

ANISOTROPY, DIMENSION = "anisotropy", "two_nn"
STATISTICS = ("bell", "growth", "late anisotropy", "rise", "fall", "late dimension")
COLUMNS = ("run", "step", "layer", "metric", "subset", "value", "near_duplicate_share")
"""Columns of a store that the analysis reads."""
MAX_LOSS_RATIO = 1.1
"""A run whose last loss is higher than its lowest by more than this factor is excluded."""
MAX_NEAR_DUPLICATES = 0.1
"""A dimension counts where no larger share of the vectors has a near duplicate; else it is that of
small clusters.
"""


@dataclass(frozen=True)
class Variant:
    """The probe and the subset whose rows the statistics are computed from."""

    name: str
    probe: str = "a"
    subset: str = "all"
    peak_probe: str = "b"
    """Probe on which the step of the highest dimension is found."""


PRIMARY = Variant(inference.PRIMARY)
VARIANTS = (
    PRIMARY,
    Variant(NO_SINK, subset="no_sink"),
    Variant("probe b", probe="b", peak_probe="a"),
    Variant("dense windows", probe="dense", peak_probe="dense"),
)


@dataclass(frozen=True)
class RunRows:
    """The rows of one run on all probes."""

    arm: str
    seed: int
    frame: pd.DataFrame

    def course(self, metric: str, probe: str, subset: str = "all") -> pd.DataFrame:
        """Return the course of a metric, without dimensions of clouds with too many near
        duplicates.

        Returns:
            (n_steps, n_blocks) values, indexed by step, with the blocks 1 to L as columns.
        """
        rows = self.frame
        rows = rows[
            (rows["probe_name"] == probe) & (rows["metric"] == metric) & (rows["subset"] == subset)
        ]
        rows = rows.query("layer >= 1")
        if metric == DIMENSION:
            rows = rows.assign(
                value=rows["value"].mask(rows["near_duplicate_share"] > MAX_NEAR_DUPLICATES)
            )
        return (
            rows.pivot(index="step", columns="layer", values="value")
            .sort_index()
            .sort_index(axis=1)
        )

    def losses(self) -> pd.Series:
        """Return the loss on probe a by step."""
        rows = self.frame[(self.frame["probe_name"] == "a") & (self.frame["metric"] == PROBE_LOSS)]
        return rows.set_index("step")["value"].sort_index()

    def reason_to_exclude(self) -> str | None:
        """Return why the run is excluded, or None."""
        losses = self.losses()
        if losses.empty or not math.isfinite(losses.iloc[-1]):
            return "the last loss is not finite"
        if losses.iloc[-1] > MAX_LOSS_RATIO * losses.min():
            return (
                f"the last loss, {losses.iloc[-1]:.3f}, is more than 10% above the lowest, "
                f"{losses.min():.3f}"
            )
        tested = tested_statistics(self.arm)
        missing = [
            name
            for name, value in self.statistics(PRIMARY).items()
            if name in tested and math.isnan(value)
        ]
        return f"{', '.join(missing)} cannot be computed" if missing else None

    def statistics(self, variant: Variant) -> dict[str, float]:
        """Return each of STATISTICS, NaN where it cannot be computed."""
        anisotropy = self.course(ANISOTROPY, variant.probe, variant.subset)
        dimension = self.course(DIMENSION, variant.probe, variant.subset)
        peak_on = self.course(DIMENSION, variant.peak_probe, variant.subset)
        if anisotropy.empty:
            return dict.fromkeys(STATISTICS, math.nan)
        return {"bell": bell(anisotropy), **_changes(anisotropy, dimension, peak_on)}

    def block_statistics(self) -> dict[int, dict[str, float]]:
        """Return each of STATISTICS but the bell for each block by itself, from probe a and all
        tokens.
        """
        anisotropy = self.course(ANISOTROPY, PRIMARY.probe)
        dimension = self.course(DIMENSION, PRIMARY.probe)
        peak_on = self.course(DIMENSION, PRIMARY.peak_probe)
        return {
            int(block): _changes(anisotropy[[block]], dimension[[block]], peak_on[[block]])
            for block in anisotropy.columns
        }


def split_runs(frame: pd.DataFrame) -> Iterator[RunRows]:
    """Yield the rows of each run of a store with the columns of COLUMNS.

    Raises:
        ValueError: a run is not named seedN/ARM.PROBE, as those of a plan are.
    """
    parts = frame["run"].astype(str).str.extract(r"^seed(\d+)/(.+)\.([^.]+)$")
    if parts[0].isna().any():
        name = frame["run"].astype(str)[parts[0].isna()].iloc[0]
        raise ValueError(f"expected runs named seedN/ARM.PROBE, as a plan's are, got {name!r}")
    frame = frame.assign(seed=parts[0].astype(int), arm=parts[1], probe_name=parts[2])
    for (arm, seed), rows in frame.groupby(["arm", "seed"], sort=True):
        yield RunRows(str(arm), int(seed), rows)


def bell(course: pd.DataFrame) -> float:
    """Return log(mean of the middle blocks / mean of the first and the last block) at the last
    step.

    >>> round(bell(pd.DataFrame([[1.0, 2.0, 4.0, 4.0, 2.0, 1.0]], columns=range(1,
    ...     7))) / math.log(2), 12)
    2.0
    """
    last = course.iloc[-1].to_numpy()
    depth = np.arange(len(last)) / (len(last) - 1)
    middle = last[(depth >= 1 / 3) & (depth <= 2 / 3)]
    return _log(middle.mean() / (0.5 * (last[0] + last[-1])))


def change(course: pd.DataFrame, base: int | None, step: int | None) -> float:
    """Return log(mean over blocks at ``step`` / mean over blocks at ``base``); NaN where one is
    missing.
    """
    means = course.mean(axis=1, skipna=False)
    return (
        math.nan
        if base is None or step is None
        else _log(means.get(step, math.nan) / means.get(base, math.nan))
    )


def late_change(course: pd.DataFrame) -> float:
    """Return the change of the log of the mean over blocks in the last half of the training, by its
    least-squares line.

    >>> course = pd.DataFrame({1: [5.0, 4.0, 2.0, 1.0]}, index=[0, 500, 750, 1000])
    >>> round(late_change(course) / math.log(2), 12)
    -2.0
    """
    means = course.mean(axis=1, skipna=False)
    half = means.index[-1] / 2
    is_late = means.index >= half
    late = means[is_late]
    if len(late) < 2 or not (late > 0).all():
        return math.nan
    slope, _ = np.polyfit(late.index.to_numpy(float), np.log(late.to_numpy()), 1)
    return float(slope * half)


def _changes(
    anisotropy: pd.DataFrame, dimension: pd.DataFrame, peak_on: pd.DataFrame
) -> dict[str, float]:
    """Return the statistics of change over training; the step of the peak is found on
    ``peak_on``.
    """
    of_anisotropy = {
        "growth": change(anisotropy, anisotropy.index[0], anisotropy.index[-1]),
        "late anisotropy": late_change(anisotropy),
    }
    if dimension.empty or peak_on.empty:
        return {**of_anisotropy, **dict.fromkeys(("rise", "fall", "late dimension"), math.nan)}
    start = start_step(dimension, peak_on)
    peak = peak_step(peak_on, start)
    return {
        **of_anisotropy,
        "rise": change(dimension, start, peak),
        "fall": change(dimension, dimension.index[-1], peak),
        "late dimension": late_change(dimension),
    }


def start_step(*courses: pd.DataFrame) -> int | None:
    """Return the first step at which all courses have a mean over blocks; None if there is none."""
    known = [set(course.index[course.notna().all(axis=1)]) for course in courses]
    return min(set.intersection(*known), default=None)


def peak_step(course: pd.DataFrame, start: int | None) -> int | None:
    """Return the first step, from ``start`` on, at which the mean over blocks is highest; None
    without a start.
    """
    return None if start is None else int(course.loc[start:].mean(axis=1, skipna=False).idxmax())


def _log(ratio: float) -> float:
    return math.log(ratio) if math.isfinite(ratio) and ratio > 0 else math.nan

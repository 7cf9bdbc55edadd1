"""A run of one's own against seeds of a model: is it outside of where one more seed would lie?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from repdyn.tables.effects import CONFIDENCE
from repdyn.tables.runs import MeasuredRun
from repdyn.tables.seeds import SeedGroup
from repdyn.tables.style import metric_title, subset_title

_MAX_STEPS = 6


@dataclass(frozen=True)
class Prediction:
    """The means over layers of a run, beside the 95 % prediction intervals of the seeds."""

    seeds: SeedGroup
    run: MeasuredRun
    metric: str
    subset: str
    steps: tuple[int, ...]
    """Those that the run and all seeds have."""
    values: np.ndarray
    """(n_steps,) of the run."""
    low: np.ndarray
    high: np.ndarray

    @property
    def outside(self) -> tuple[int, ...]:
        """The steps at which the run lies outside."""
        is_outside = (self.values < self.low) | (self.values > self.high)
        return tuple(step for step, found in zip(self.steps, is_outside.tolist(), strict=True) if found)

    @property
    def text(self) -> str:
        """Say at how many of the common steps the run lies outside; one in twenty does by chance."""
        return (
            f"{self.run.label}, {metric_title(self.metric)}, {subset_title(self.subset)}: outside the 95 % prediction "
            f"interval of {self.seeds.label} at {self.count}"
        )

    @property
    def count(self) -> str:
        """The number of steps outside, and these steps."""
        listed = ", ".join(f"{step:,}" for step in self.outside[:_MAX_STEPS]) + " .." * (len(self.outside) > _MAX_STEPS)
        where = f": {listed}" if self.outside and len(self.outside) < len(self.steps) else ""
        return f"{len(self.outside)} of {len(self.steps)} steps{where}"


def prediction_margin(values: np.ndarray) -> np.ndarray:
    """Return half of the 95 % prediction interval for one more seed, around the mean: t(n - 1) s sqrt(1 + 1/n).

    Args:
        values: shape (n_seeds, ...), with at least two seeds.

    >>> round(float(prediction_margin(np.array([1.0, 2.0, 3.0]))), 3)
    4.968
    """
    n_seeds = len(values)
    quantile = float(stdtrit(n_seeds - 1, (1 + CONFIDENCE) / 2))
    return quantile * values.std(axis=0, ddof=1) * np.sqrt(1 + 1 / n_seeds)


def predictions(groups: Sequence[SeedGroup], runs: Sequence[MeasuredRun]) -> Iterator[Prediction]:
    """Compare each run that is no seed with each group of seeds of the same architecture, metric by metric.

    Means over layers are compared, at the steps that the run and all seeds have. Where the run and the seeds are
    averaged over different layers, the metric is left out.

    Args:
        groups: of seeds.
        runs: all runs, those of the groups among them.
    """
    grouped = {member.key for group in groups for member in group.members}
    for group in groups:
        for run in runs:
            first = group.members[0]
            alike = (run.stack, run.causal, run.parameters) == (first.stack, first.causal, first.parameters)
            if run.key not in grouped and alike and run.finished == group.finished:
                yield from _of_run(group, run)


def prediction_table(found: Sequence[Prediction]) -> pd.DataFrame:
    """Return a row for each run, metric, token subset and common step: ``value``, ``low``, ``high`` and ``outside``."""
    columns = ["seeds", "n_seeds", "run", "stack", "metric", "subset", "step", "value", "low", "high", "outside"]
    rows = [
        (
            *(each.seeds.name, len(each.seeds.members), each.run.name, each.run.stack, each.metric, each.subset),
            *(step, value, low, high, step in each.outside),
        )
        for each in found
        for step, value, low, high in zip(each.steps, each.values, each.low, each.high, strict=True)
    ]
    return pd.DataFrame(rows, columns=columns)


def _of_run(group: SeedGroup, run: MeasuredRun) -> Iterator[Prediction]:
    for key, series in group.series.items():
        if key not in run.series:
            continue
        own, by_seed = run.series[key].layer_mean, series.means_by_seed
        same_layers = run.series[key].layers == series.layers and own.n_used == series.layer_mean.n_used
        steps = [step for step in by_seed.columns.tolist() if step in own.mean.index]
        if not steps or not same_layers or own.n_used == 0:
            continue
        values = by_seed[steps].to_numpy(float)
        middle, margin = values.mean(axis=0), prediction_margin(values)
        of_run = own.mean.loc[steps].to_numpy(float)
        yield Prediction(group, run, *key, tuple(steps), of_run, middle - margin, middle + margin)

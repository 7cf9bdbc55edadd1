"""The values of one metric over the seeds of one model: their mean with its interval.

The unit is the seed: an interval is for the mean over trainings that differ in their seed alone, all measured on one
probe. It does not contain the interval for another probe.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from repdyn.tables.effects import CONFIDENCE
from repdyn.tables.frames import LayerMean
from repdyn.tables.series import MetricSeries

INTERVAL = "95 % interval over seeds"
"""What a band of seeds means."""


def mean_over_seeds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over seeds and half of its 95 % interval, by Student's t with n - 1 degrees of freedom.

    Args:
        values: shape (n_seeds, ...), with at least two seeds.

    Returns:
        Two arrays of shape (...); NaN where a seed has no value.

    Raises:
        ValueError: fewer than two seeds.
    """
    n_seeds = len(values)
    if n_seeds < 2:
        raise ValueError(f"expected at least 2 seeds, got {n_seeds}; one run has no spread over seeds")
    quantile = float(stdtrit(n_seeds - 1, (1 + CONFIDENCE) / 2))
    return values.mean(axis=0), quantile * values.std(axis=0, ddof=1) / np.sqrt(n_seeds)


@dataclass(frozen=True, eq=False)
class SeedSeries:
    """One metric on one token subset over the seeds of one model, at the steps at which all of them have it.

    It is drawn like a :class:`~repdyn.tables.series.MetricSeries`: its values are means over seeds, and its margins
    halves of their intervals. A value that one seed lacks is missing.
    """

    members: tuple[MetricSeries, ...]
    """Of each seed, with the same layers."""

    @property
    def metric(self) -> str:
        return self.members[0].metric

    @property
    def subset(self) -> str:
        return self.members[0].subset

    @property
    def layers(self) -> tuple[int, ...]:
        return self.members[0].layers

    @property
    def places(self) -> np.ndarray:
        return self.members[0].places

    @property
    def depths(self) -> np.ndarray:
        return self.members[0].depths

    @cached_property
    def steps(self) -> tuple[int, ...]:
        return tuple(sorted(set.intersection(*(set(member.steps) for member in self.members))))

    @cached_property
    def by_seed(self) -> np.ndarray:
        """Shape (n_seeds, n_layers, n_steps)."""
        chosen = [[member.steps.index(step) for step in self.steps] for member in self.members]
        return np.stack([member.values[:, columns] for member, columns in zip(self.members, chosen, strict=True)])

    @property
    def values(self) -> np.ndarray:
        """Shape (n_layers, n_steps): means over seeds."""
        return mean_over_seeds(self.by_seed)[0]

    @property
    def margins(self) -> np.ndarray:
        """Shape (n_layers, n_steps): halves of the 95 % intervals of the means over seeds."""
        return mean_over_seeds(self.by_seed)[1]

    @cached_property
    def _complete(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the layers and of the steps at which every seed has a value.

        They are chosen as in :func:`repdyn.tables.frames.layer_mean`: first the steps at which every seed has some
        value, then the layers without a gap at these.
        """
        missing = np.isnan(self.by_seed)
        steps = np.flatnonzero(~missing.all(axis=1).any(axis=0))
        layers = np.flatnonzero(~missing[:, :, steps].any(axis=(0, 2)) & (steps.size > 0))
        return layers, steps if layers.size else layers

    @cached_property
    def means_by_seed(self) -> pd.DataFrame:
        """Means over layers by seed (index) and step (columns), over the same layers in all seeds at all steps."""
        layers, steps = self._complete
        values = self.by_seed[:, layers][:, :, steps]
        return pd.DataFrame(values.sum(axis=1) / max(1, len(layers)), columns=np.asarray(self.steps)[steps])

    @cached_property
    def layer_mean(self) -> LayerMean:
        """The mean over seeds of their means over layers; the margin is half of its interval over seeds."""
        steps = self.means_by_seed.columns
        mean, margin = (pd.Series(found, steps) for found in mean_over_seeds(self.means_by_seed.to_numpy(float)))
        return LayerMean(mean, margin, len(self._complete[0]), len(self.layers))

    @property
    def interval(self) -> str:
        """Describe what a band means."""
        return f"band of seeds: {INTERVAL}, each a thin line"

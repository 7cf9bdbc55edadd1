"""How the values of a metric change from one measurement to the next, and the conditions that rules
set on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeAlias

import numpy as np

from repdyn.store.schema import ReasonCode
from repdyn.views.grid import NO_LAYER, Grid, layers_in_means

Key: TypeAlias = tuple[str, str | None, str | None]
"""Metric, subset and stack."""

HISTORY = 8
"""Largest number of earlier changes with which a change of a profile is compared."""
MIN_HISTORY = 4
"""Least number of them."""
MIN_STDS = 2.0
"""Distance beyond which two values differ, in standard deviations of their difference."""
MIN_JUMP = 0.2
"""Smallest jump of a profile, as mean relative change over layers."""
UNUSUAL = 2.0
"""How many times the largest of its last changes a scalar must change, on a logarithmic scale, to
be said to fall or rise."""


class Changes:
    """The changes of a metric on one subset and one stack, or of a scalar of the run.

    Grids have the shape (n_steps, n_layers): a condition compares a step with those before. A layer
    that the model lacks at a step has neither value nor reason there.
    """

    def __init__(self, key: Key, grid: Grid) -> None:
        self.metric, self.subset, self.stack = key
        self.steps = grid.steps
        self.layers = grid.layers
        self.is_scalar = int(grid.layers[0]) == NO_LAYER
        # copied: the order in memory decides how sums over layers are rounded
        self.values = np.ascontiguousarray(grid.numbers("value").T)
        self.stds = np.ascontiguousarray(grid.numbers("std").T)
        self.reasons = grid.texts("reason").T
        """Why there is no value, as it is told; "" where there is one."""
        self.codes = grid.texts("reason_code").T
        self.compares = (grid.numbers("compares") == 1).any(axis=0)
        """(n_steps,) whether any value compares the checkpoint with an earlier one."""

    @cached_property
    def in_means(self) -> np.ndarray:
        """Return (n_layers,): whether a layer enters means over layers."""
        return layers_in_means(self.metric, self.layers.tolist())

    @cached_property
    def before(self) -> np.ndarray:
        """Return the place of the last defined value before each step; -1 if there was none."""
        places = np.where(np.isnan(self.values), -1, np.arange(len(self.steps))[:, None])
        return np.vstack([np.full_like(places[:1], -1), np.maximum.accumulate(places, axis=0)[:-1]])

    def _at_previous(self, grid: np.ndarray) -> np.ndarray:
        return np.where(
            self.before < 0, np.nan, np.take_along_axis(grid, self.before.clip(0), axis=0)
        )

    @cached_property
    def previous(self) -> np.ndarray:
        """Return the last defined value before each step; NaN if there was none."""
        return self._at_previous(self.values)

    @cached_property
    def difference(self) -> np.ndarray:
        """Return |value - previous|; NaN if one of them is missing."""
        with np.errstate(invalid="ignore"):  # inf - inf
            return np.abs(self.values - self.previous)

    @cached_property
    def exceeds_noise(self) -> np.ndarray:
        """Return whether a value differs from the previous one by more than both vary over
        batches.
        """
        return self.difference > MIN_STDS * np.nan_to_num(
            np.hypot(self.stds, self._at_previous(self.stds)), posinf=np.inf
        )

    @cached_property
    def relative(self) -> np.ndarray:
        """Return |value - previous| / max(|value|, |previous|), in [0, 2]; 0 for a change that does
        not exceed its noise.
        """
        larger = np.fmax(np.abs(self.values), np.abs(self.previous))
        counts = np.isfinite(self.difference) & self.exceeds_noise
        return np.divide(self.difference, larger, out=np.zeros_like(larger), where=counts)

    @cached_property
    def changes(self) -> np.ndarray:
        """Return (n_steps,): the mean of the relative changes over the layers in means, or that of
        a scalar; NaN if none of them has both values.
        """
        n_known = np.isfinite(self.difference[:, self.in_means]).sum(axis=1)
        with np.errstate(invalid="ignore"):  # 0 / 0
            return self.relative[:, self.in_means].sum(axis=1) / n_known

    def usual_change(self, statistic: Callable[..., np.ndarray], *, at_least: int) -> np.ndarray:
        """Return a statistic of the last nonzero changes before each step, at most :data:`HISTORY`;
        NaN where there are fewer than ``at_least``."""
        is_change = self.changes > 0
        padded = np.concatenate([np.full(HISTORY, np.nan), self.changes[is_change]])
        windows = np.lib.stride_tricks.sliding_window_view(padded, HISTORY)
        by_number = np.full(len(windows), np.nan)  # of changes that there were
        by_number[at_least:] = statistic(windows[at_least:], axis=1)
        return by_number[np.cumsum(is_change) - is_change]

    @cached_property
    def usual_jump(self) -> np.ndarray:
        """Return (2, n_steps): the median and the largest of the last nonzero changes before each
        step, over at least half as many steps; NaN where there are fewer than :data:`MIN_HISTORY`.

        From a change over few steps nothing follows for one over many, as where the distance
        between measurements doubles.
        """
        usual = np.full((2, len(self.steps)), np.nan)
        stretches = np.diff(self.steps, prepend=self.steps[0])
        for row, stretch in enumerate(stretches):
            compares = (self.changes[:row] > 0) & (2 * stretches[:row] >= stretch)
            earlier = np.compress(compares, self.changes[:row])[-HISTORY:]
            if len(earlier) >= MIN_HISTORY:
                usual[:, row] = np.median(earlier), earlier.max()
        return usual

    @cached_property
    def is_doubling(self) -> np.ndarray:
        """Return where a value has at least twice the steps of the one that it is compared with:
        there a sound training changes more than ever after.
        """
        before = np.where(self.before < 0, 0, self.steps[self.before])
        return self.steps[:, None] >= 2 * before

    @cached_property
    def is_established(self) -> np.ndarray:
        """Return where a layer had a value at each of the last :data:`MIN_HISTORY` measurements."""
        has_value = ~np.isnan(self.values)
        n_before = np.zeros(self.values.shape, int)
        for row in range(1, len(self.steps)):
            n_before[row] = np.where(has_value[row - 1], n_before[row - 1] + 1, 0)
        return n_before >= MIN_HISTORY

    def holds(self, when: str, bound: float) -> np.ndarray:
        """Return where a condition holds, bools of shape (n_steps, n_layers), or (n_steps, 1) for a
        whole profile.
        """
        if when == "undefined":
            # missing although the previous observation had a value, or at first because of NaN or
            # inf
            missing = np.isnan(self.values)
            appears = missing & ~np.vstack([missing[:1], missing[:-1]]) & self.reasons.astype(bool)
            appears[0] = missing[0] & (self.codes[0] == ReasonCode.NOT_FINITE)
            # metrics that compare checkpoints have no value if the earlier checkpoint is not
            # available
            appears[np.logical_or.accumulate(self.compares)] = False
            return appears
        if when == "above":
            return (self.values > bound) & ~(self.previous > bound)
        if when == "below":
            return (self.values < bound) & ~(self.previous < bound)
        if when == "jumps":
            # steps without a change are ignored: the first ones, at a low learning rate, are not
            # representative
            median, largest = self.usual_jump
            least = np.maximum(MIN_JUMP, np.maximum(bound * median, UNUSUAL * largest))
            return (self.changes > least)[:, None]
        reached = (
            self.values <= bound * self.previous
            if when == "falls"
            else self.values >= bound * self.previous
        )
        appears = reached & (self.previous > 0) & self.exceeds_noise
        if not self.is_scalar or not appears.any():
            return appears
        # the loss of a batch fluctuates, so a scalar must change more than usual, too: else a sound
        # training with small batches has an alert every few steps; a relative change c = 1 - 1 /
        # ratio is that of a ratio whose logarithm is -log(1 - c), and the first change has nothing
        # to be compared with
        with np.errstate(divide="ignore", invalid="ignore"):
            usual = -np.log1p(-np.minimum(self.usual_change(np.nanmax, at_least=1), 1.0))
            change = np.abs(np.log(self.values / self.previous))
        return appears & ((change > UNUSUAL * usual[:, None]) | ~np.isfinite(change))

    def is_judged(self, when: str) -> np.ndarray:
        """Return where it is known whether a condition holds, as :meth:`holds`: there is a value,
        and what it is compared with."""
        if when == "jumps":
            return (np.isfinite(self.changes) & np.isfinite(self.usual_jump[0]))[:, None]
        return np.isfinite(self.difference if when in {"falls", "rises"} else self.values)

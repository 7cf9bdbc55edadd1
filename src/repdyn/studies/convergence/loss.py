"""Whether a profile's summary goes with the training loss, over the checkpoints of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from repdyn.figures.run import LOSS
from repdyn.tables.alignment_profile import average_rate, gradient
from repdyn.tables.frames import grid, measurements, scalar

FEWEST = 4
"""Checkpoints; three points lie on a line of ranks in a third of all cases."""


def middle_rate(alignment: np.ndarray) -> float:
    """Mean of the gradient over the middle third of the steps, at least one of them.

    >>> middle_rate(np.array([0.0, 0.5, 0.75, 1.0]))
    0.25
    """
    steps = gradient(alignment)
    third = len(steps) // 3
    return float(steps[third : len(steps) - third].mean())


SUMMARIES: dict[str, Callable[[np.ndarray], float]] = {
    "mean alignment": lambda alignment: float(alignment.mean()),
    "average rate": lambda alignment: float(average_rate(alignment)),
    "rate of the middle third": middle_rate,
    "last step": lambda alignment: float(gradient(alignment)[-1]),
}
"""What a profile A_0 ... A_L, (L + 1,), is reduced to."""


@dataclass(frozen=True)
class Correlation:
    """How a summary goes with the loss over ``n`` checkpoints.

    There is no p-value: checkpoints of one training are no independent draws, and anything that moves in one direction
    while the loss falls correlates with it.
    """

    summary: str
    n: int
    spearman: float
    pearson: float


def summaries_with_loss(rows: pd.DataFrame, subset: str = "all") -> pd.DataFrame:
    """Each summary of the alignment profile beside the loss, at every step that has both.

    Args:
        rows: of one run, or of one of its stacks (:func:`repdyn.tables.frames.by_stack`), with the metric "alignment"
            and the scalar "train/loss".
        subset: of tokens.

    Returns:
        Index step, ascending; columns those of :data:`SUMMARIES`, and "loss". Steps where a layer has no value are
        left out.

    Raises:
        ValueError: no measured row, or no such metric or subset; see :func:`repdyn.tables.frames.grid`.
    """
    profiles = grid(measurements(rows), "alignment", subset).dropna(axis="columns")
    loss = scalar(rows, LOSS)
    steps = [step for step in profiles.columns if step in loss.index]
    table = {name: [of(profiles[step].to_numpy(float)) for step in steps] for name, of in SUMMARIES.items()}
    return pd.DataFrame({**table, "loss": loss.loc[steps].to_numpy(float)}, index=pd.Index(steps, name="step"))


def loss_correlations(table: pd.DataFrame) -> list[Correlation]:
    """The correlation of each summary with the loss.

    Args:
        table: from :func:`summaries_with_loss`.

    Returns:
        One for each summary, coefficients in [-1, 1]; NaN for a summary or loss that is the same at every step.

    Raises:
        ValueError: fewer than four checkpoints.
    """
    n = len(table)
    if n < FEWEST:
        raise ValueError(
            f"expected at least {FEWEST} checkpoints with both an alignment profile and {LOSS}, got {n}; measure the "
            "metric alignment at more steps of the training"
        )
    loss = table["loss"].to_numpy(float)
    found = []
    for name in SUMMARIES:
        values = table[name].to_numpy(float)
        if np.ptp(values) == 0 or np.ptp(loss) == 0:
            found.append(Correlation(name, n, np.nan, np.nan))
            continue
        ranks = _pearson(stats.rankdata(values), stats.rankdata(loss))
        found.append(Correlation(name, n, ranks, _pearson(values, loss)))
    return found


def _pearson(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.corrcoef(one, other)[0, 1])

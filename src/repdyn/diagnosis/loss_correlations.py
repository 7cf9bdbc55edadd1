"""Correlation of each metric with the loss, over the checkpoints of a run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from repdyn.diagnosis.curves import at_shared_steps, best_covered_mean
from repdyn.diagnosis.insight import LossCorrelation, LossCorrelations
from repdyn.tables.correlation import rank_correlation
from repdyn.tables.frames import is_finished
from repdyn.tables.losses import loss_of_run
from repdyn.tables.series import MetricSeries

MIN_CHECKPOINTS = 8
"""Least number of checkpoints with both a value of the metric and a loss."""
CAVEAT = (
    "Two trends correlate whatever drives them, so look at the changes. Checkpoints of one run are not independent, so "
    "that the intervals of the values are too narrow."
)


def loss_correlations(frame: pd.DataFrame, series: Mapping[tuple[str, str], MetricSeries]) -> LossCorrelations:
    """Return Spearman's correlation of each metric with the loss, over checkpoints and over the changes between them.

    The mean of a metric is over the layers of :func:`repdyn.diagnosis.curves.best_covered_mean`, the loss that of
    :func:`repdyn.tables.losses.loss_of_run`. The intervals assume independent pairs, which checkpoints of one training
    are not.

    Args:
        frame: rows of one run on one probe, or of one of its stacks, scalars among them.
        series: its metrics, by name and token subset.

    Returns:
        A correlation for each metric and subset with at least :data:`MIN_CHECKPOINTS` checkpoints.
    """
    if is_finished(frame.loc[frame["layer"].notna(), ["stage"]]):
        return LossCorrelations(None, reason="a finished model has no checkpoints to correlate over")
    loss = loss_of_run(frame)
    if loss.values.empty:
        return LossCorrelations(None, reason="no loss is stored with the measurements")
    means = {key: best_covered_mean(one).mean for key, one in series.items()}
    pairs = {key: at_shared_steps(mean, loss.values).to_numpy(float) for key, mean in means.items()}
    found = tuple(
        LossCorrelation(*key, rank_correlation(*both.T), rank_correlation(*np.diff(both, axis=0).T))
        for key, both in pairs.items()
        if len(both) >= MIN_CHECKPOINTS
    )
    most = max(map(len, pairs.values()), default=0)
    reason = f"{most} checkpoints have both a value and a loss, and {MIN_CHECKPOINTS} are needed"
    return LossCorrelations(loss.title, found, None if found else reason)

"""Loss, accuracy and calibration of the predictions of an output head."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from repdyn.kernels.lens import Head, rows_per_tile
from repdyn.kernels.undefined import Undefined

CALIBRATION_BINS = 15


class Predictions(NamedTuple):
    """Predictions of tokens, a row for each token."""

    loss: Tensor
    """(n,) float64: negative log-probability of the token, in nats."""
    confidence: Tensor
    """(n,) float64: probability of the most probable token, in (0, 1]."""
    is_correct: Tensor
    """(n,) bool: whether that is the token."""


def predict_targets(states: Tensor, targets: Tensor, head: Head) -> Predictions:
    """Predict tokens from states of the last layer.

    Args:
        states: (n, dim) states of the last layer.
        targets: (n,) int64 tokens to predict, one from each state.
        head: the model's output head.

    Raises:
        Undefined: there is nothing to predict, a token is not in the head's vocabulary, or a logit is not finite.
    """
    if not len(states):
        raise Undefined("there are no tokens to predict")
    n_logits = head(states[:1]).shape[1]
    if int(targets.max()) >= n_logits:
        raise Undefined(f"the output head has {n_logits} logits, the probe a token {int(targets.max())}")
    n_rows = rows_per_tile(n_logits)
    tiles = [_predict(*tile, head) for tile in zip(states.split(n_rows), targets.split(n_rows), strict=True)]
    predictions = Predictions(*map(torch.cat, zip(*tiles, strict=True)))
    if not bool(predictions.loss.isfinite().all()):
        raise Undefined("a logit is not finite")
    return predictions


def calibration_error(predictions: Predictions, n_bins: int = CALIBRATION_BINS) -> Tensor:
    """Compute the expected calibration error of the most probable tokens.

    The predictions are grouped by confidence into ``n_bins`` intervals of equal width. The error is the absolute
    difference of accuracy and mean confidence in each, weighted by the number of predictions in it. It is biased
    upwards for few predictions: a calibrated model has about sqrt(n_bins / n) / 2, at most.

    Args:
        predictions: of n > 0 tokens.
        n_bins: number of intervals.

    Returns:
        0-d float64 tensor in [0, 1].

    Source: Guo et al. 2017, On Calibration of Modern Neural Networks (ICML).
    """
    confidence = predictions.confidence
    # intervals are open below and closed above, as in the source
    bins = (confidence * n_bins).ceil().long().clamp(1, n_bins) - 1
    gaps = confidence.new_zeros(n_bins).index_add_(0, bins, predictions.is_correct.double() - confidence)
    return gaps.abs().sum() / len(confidence)


def _predict(states: Tensor, targets: Tensor, head: Head) -> Predictions:
    log_probabilities = head(states).double().log_softmax(1)
    highest, best = log_probabilities.max(1)
    loss = -log_probabilities.gather(1, targets.unsqueeze(1)).squeeze(1)
    return Predictions(loss, highest.exp(), best == targets)

"""Predictions read from layers: the logit lens, and how calibrated they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from repdyn.kernels.kernel import UndefinedError

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
    """Predict tokens, int64 (n,), one from each state of the last layer, (n, dim).

    Raises:
        UndefinedError: there is nothing to predict, a token is not in the head's vocabulary, or a
            logit is not finite.
    """
    if not len(states):
        raise UndefinedError("there are no tokens to predict")
    n_logits = head(states[:1]).shape[1]
    if int(targets.max()) >= n_logits:
        raise UndefinedError(
            f"the output head has {n_logits} logits, the probe a token {int(targets.max())}"
        )
    predictions = Predictions(*_by_tiles(partial(_predict, head=head), n_logits, states, targets))
    if not bool(predictions.loss.isfinite().all()):
        raise UndefinedError("a logit is not finite", "not_finite")
    return predictions


def calibration_error(predictions: Predictions) -> Tensor:
    """Compute the expected calibration error of the most probable of n > 0 tokens: 0-d float64
    tensor in [0, 1].

    The predictions are grouped by confidence into 15 intervals of equal width. The error is the
    absolute difference of accuracy and mean confidence in each, weighted by the number of
    predictions in it. It is biased upwards for few predictions: a calibrated model has about
    sqrt(15 / n) / 2, at most.

    Source: Guo et al. 2017, On Calibration of Modern Neural Networks (ICML).
    """
    confidence, n_bins = predictions.confidence, CALIBRATION_BINS
    # intervals are open below and closed above, as in the source
    bins = (confidence * n_bins).ceil().long().clamp(1, n_bins) - 1
    gaps = confidence.new_zeros(n_bins).index_add_(
        0, bins, predictions.is_correct.double() - confidence
    )
    return gaps.abs().sum() / len(confidence)


def _predict(states: Tensor, targets: Tensor, head: Head) -> Predictions:
    log_probabilities = head(states).double().log_softmax(1)
    highest, best = log_probabilities.max(1)
    loss = -log_probabilities.gather(1, targets.unsqueeze(1)).squeeze(1)
    return Predictions(loss, highest.exp(), best == targets)


Head: TypeAlias = Callable[[Tensor], Tensor]
"""From states (n, dim) to logits (n, vocabulary), row by row."""

# logits in memory at once: memory is bounded by tiles of rows, whatever the vocabulary
_LOGITS = 1 << 22


class LensReading(NamedTuple):
    """Predictions read from the states of a layer, a row for each state."""

    ids: Tensor
    """(n, k) the most probable tokens, in descending order."""
    probabilities: Tensor
    """(n, k) float64: their probabilities."""
    entropy: Tensor
    """(n,) float64: entropy of the prediction, in nats."""
    kl: Tensor
    """(n,) float64: KL(final || layer) in nats, the divergence of the layer's prediction from the
    final one.
    """
    final_rank: Tensor
    """(n,) how many tokens are more probable here than the one that is the most probable in the
    end; 0 where the predictions agree."""


def read_predictions(x: Tensor, last: Tensor, head: Head, k: int = 1) -> LensReading:
    """Read the prediction of each state through the output head, and compare it with the final one.

    Args:
        x: (n, dim) states of a layer, n > 0.
        last: (n, dim) states of the last layer at the same positions.
        head: the model's output head.
        k: how many tokens of the vocabulary to return, at most all of them.
    """
    return LensReading(*_by_tiles(partial(_read, head=head, k=k), head(x[:1]).shape[1], x, last))


def _by_tiles(
    read: Callable[..., tuple[Tensor, ...]], n_logits: int, *rows: Tensor
) -> Iterator[Tensor]:
    """Return what ``read`` returns for some rows, of which each has so many logits, for all of
    them.
    """
    tiles = zip(*(each.split(max(1, _LOGITS // n_logits)) for each in rows), strict=True)
    return map(torch.cat, zip(*(read(*tile) for tile in tiles), strict=True))


def lens_kl(reading: LensReading) -> Tensor:
    """Compute the mean over n > 0 vectors of KL(final || layer).

    Returns:
        0-d float64 tensor in [0, inf), in nats; 0 where the layer's predictions are the final ones.

    Source: nostalgebraist, interpreting GPT: the logit lens, 2020.
    """
    return reading.kl.mean()


def lens_agreement(reading: LensReading) -> Tensor:
    """Compute the share of n > 0 vectors from which the layer predicts the token that the model
    predicts in the end: 0-d float64 tensor in [0, 1].

    Source: as :func:`lens_kl`.
    """
    return (reading.final_rank == 0).double().mean()


def _read(x: Tensor, last: Tensor, head: Head, k: int) -> LensReading:
    here, final = (head(states).double().log_softmax(1) for states in (x, last))
    probabilities, ids = here.exp().topk(min(k, here.shape[1]), dim=1)
    kl = _expected(final, final - here)
    # the exact value is never negative, its rounding may be
    final_rank = (here > here.gather(1, final.argmax(1).unsqueeze(1))).sum(1)
    return LensReading(
        ids=ids,
        probabilities=probabilities,
        entropy=_expected(here, -here),
        kl=kl.clamp(min=0),
        final_rank=final_rank,
    )


def _expected(log_probabilities: Tensor, values: Tensor) -> Tensor:
    """Return expectations of values; a token of probability 0 adds nothing, whatever its value."""
    probabilities = log_probabilities.exp()
    return torch.where(probabilities > 0, probabilities * values, 0.0).sum(1)

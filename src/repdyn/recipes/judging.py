"""What criteria share: values as other probes could give them, whether models are trained, rank correlations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from repdyn.probe import Probe
from repdyn.recipes.measured import Measured
from repdyn.store.schema import PROBE_LOSS
from repdyn.tables.effects import (
    CONFIDENCE,
    MIN_PAIRS,
    CannotBeJudgedError,
    Correlation,
    Estimate,
    Verdict,
    rank_correlation,
)

QUANTILES = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
"""Ends of an interval over draws."""
_N_DRAWS = 4000


def redrawn(estimates: Sequence[Estimate]) -> np.ndarray:
    """Draw values as other probes could give them, by Student's t of each standard error, always the same.

    Args:
        estimates: n values.

    Returns:
        (n_draws, n) values.

    Raises:
        CannotBeJudgedError: a standard error is not known.
    """
    if any(math.isnan(estimate.std_error) for estimate in estimates):
        raise CannotBeJudgedError("no interval: a single batch, or batches that share windows")
    generator, n = np.random.default_rng(0), len(estimates)
    freedom = np.array([estimate.n_batches - 1 for estimate in estimates])
    noise = generator.standard_t(freedom, size=(_N_DRAWS, n))
    values, errors = ([getattr(each, name) for each in estimates] for name in ("value", "std_error"))
    return np.asarray(values) + np.asarray(errors) * noise


def unigram_entropy(probe: Probe) -> float:
    """Return the entropy of the text tokens of a probe in nats: the loss of a model that knows their frequencies alone.

    >>> tokens = [[0, 1, 2, 3] * 8] * 8
    >>> round(unigram_entropy(Probe.from_tokens(tokens, max_vectors=64)) / torch.log(torch.tensor(4.0)).item(), 6)
    1.0
    """
    tokens = probe.tokens[~torch.isin(probe.tokens, torch.tensor(probe.special_ids, dtype=torch.int64))]
    shares = torch.unique(tokens, return_counts=True)[1].double() / len(tokens)
    return float(-(shares * shares.log()).sum())


def require_trained(models: Iterable[Measured]) -> list[str]:
    """Return why it cannot be told of some models whether they have learned anything.

    A model has learned something if its last loss on the probe is below the entropy of the probe's tokens.

    Raises:
        CannotBeJudgedError: a model has not.
    """
    unknown, untrained = [], []
    for each in models:
        losses = each.scalar(PROBE_LOSS)
        if not losses or each.probe is None:
            missing = "copy of the probe" if losses else "loss on the probe"
            unknown.append(f"{each.name} has no {missing} in the store")
            continue
        last, entropy = [*losses.values()][-1], unigram_entropy(each.probe)
        if last >= entropy:
            untrained.append(f"{each.name} ({last:.3g} and {entropy:.3g})")
    if untrained:
        raise CannotBeJudgedError(
            "nothing was learned, since the last loss on the probe is not below the entropy of its tokens: "
            f"{', '.join(untrained)}"
        )
    return [f"whether it has learned anything cannot be told: {', '.join(unknown)}"] if unknown else []


@dataclass(frozen=True)
class RhoBound:
    """A claimed bound of a rank correlation: at least a value, or at most one."""

    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("expected either at_least or at_most, got both or neither; keep one")

    def __str__(self) -> str:
        return f"at most {self.at_most:g}" if self.at_least is None else f"at least {self.at_least:g}"

    def judge(self, low: float, high: float) -> Verdict:
        """Judge the bound by an interval, which must lie on the claimed side with its whole length.

        >>> [RhoBound(at_least=0.5).judge(*pair) for pair in ((0.6, 0.9), (0.3, 0.9), (-0.2, 0.4))]
        ['shown', 'cannot be judged', 'not shown']
        """
        if self.at_least is not None:
            return "shown" if low >= self.at_least else "not shown" if high < self.at_least else "cannot be judged"
        bound = math.inf if self.at_most is None else self.at_most
        return "shown" if high <= bound else "not shown" if low > bound else "cannot be judged"


def correlate(x: Sequence[float], y: Sequence[float], what: str) -> Correlation:
    """Return Spearman's correlation with its interval, which a perfect order of a few pairs does not shrink to a point.

    A correlation of 1 or -1 takes the other end of its interval from the next lower one that as many pairs can have.

    Raises:
        CannotBeJudgedError: fewer than four pairs, or one variable is constant; ``what`` names the pairs.
    """
    if len(x) < MIN_PAIRS:
        raise CannotBeJudgedError(f"needs {MIN_PAIRS} {what} for a correlation with an interval, got {len(x)}")
    found = rank_correlation(np.asarray(x, float), np.asarray(y, float))
    if math.isnan(found.value):
        raise CannotBeJudgedError(f"one of the two is the same at all {len(x)} {what}")
    if not math.isclose(abs(found.value), 1.0):
        return found
    ranks = np.arange(len(x), dtype=float)
    next_lower = rank_correlation(ranks, np.array([1, 0, *ranks[2:]]))
    if found.value > 0:
        return found._replace(low=next_lower.low, high=1.0)
    return found._replace(low=-1.0, high=-next_lower.low)


def rho_text(value: float, low: float, high: float, over: str) -> str:
    """Return a correlation with its interval as text.

    >>> rho_text(-0.9, -0.98, -0.6, "8 checkpoints")
    'rho -0.90 [-0.98, -0.60] over 8 checkpoints'
    """
    return f"rho {value:.2f} [{low:.2f}, {high:.2f}] over {over}"

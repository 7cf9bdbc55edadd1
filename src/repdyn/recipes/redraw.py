"""Values as other probes could give them, for intervals of what is computed from several of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from repdyn.tables.effects import CONFIDENCE, CannotBeJudgedError, Estimate

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

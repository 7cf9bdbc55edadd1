"""The token subset ``no_massive``: all sampled vectors of a layer but those of massive norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MASSIVE_NORM = 10.0
"""Times the median norm of a layer's vectors, above which a norm is massive. Sun et al. 2024 (Massive Activations in
Large Language Models, COLM) find a few activations orders of magnitude above the median, on delimiters as well as on
first tokens, and hardly any in between; norms of other vectors stay within a small multiple of their median."""


def are_massive(batches: Sequence[Tensor]) -> list[Tensor]:
    """Find the vectors whose Euclidean norm, without centring, exceeds :data:`MASSIVE_NORM` times the median.

    Args:
        batches: the vectors of one layer, each (n_vectors, dim); the median is taken over all of them.

    Returns:
        For each batch (n_vectors,) bool. Vectors with NaN or inf are not massive: they are not to be hidden.
    """
    norms = [torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64) for vectors in batches]
    every = torch.cat(norms)
    bound = MASSIVE_NORM * every[every.isfinite()].quantile(0.5) if every.isfinite().any() else torch.inf
    return [(of_batch > bound) & of_batch.isfinite() for of_batch in norms]

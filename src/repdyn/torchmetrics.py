"""Metrics of torchmetrics for embeddings that a training computes anyway: no probe, no capture.

    self.two_nn = repdyn.torchmetrics.TwoNN()  # in the LightningModule
    ...
    self.two_nn.update(embeddings)             # (n, dim) in validation_step
    self.log("val/two_nn", self.two_nn)

Values are those of :mod:`repdyn.kernels` on all the vectors of an epoch, of all ranks together.
They depend on the number of vectors, so compare those of equally many.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repdyn.kernels import Cloud, UndefinedError, anisotropy, effective_rank, two_nn
from repdyn.utils.extras import with_extra

try:
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat
except ModuleNotFoundError as error:
    raise with_extra(error, "repdyn.torchmetrics") or error from error

__all__ = ["Anisotropy", "EffectiveRank", "RankMe", "TwoNN"]

RANK_ME_EPSILON = 1e-7
"""The constant that Garrido et al. add to each normalised singular value."""


class _FeatureMetric(Metric):
    """A metric of all the vectors since the last reset, of all ranks together."""

    is_differentiable = False
    full_state_update = False
    features: list[Tensor]

    def __init__(self, *, max_vectors: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        if max_vectors is not None and max_vectors < 3:
            raise ValueError(f"expected max_vectors >= 3, got {max_vectors}; leave it out for all")
        self.max_vectors = max_vectors
        self.add_state("features", default=[], dist_reduce_fx="cat")

    def update(self, features: Tensor) -> None:
        """Add vectors, (n, dim) or more dimensions before the last, of any floating dtype."""
        if not isinstance(features, Tensor) or features.ndim < 2:
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features)
            raise ValueError(
                f"expected features of shape (n, dim), got {shape}; of a single vector pass x[None]"
            )
        self.features.append(features.detach().flatten(0, -2))

    def compute(self) -> Tensor:
        """Return the value as a 0-d float64 tensor; NaN where it is not defined."""
        vectors = dim_zero_cat(self.features)
        if self.max_vectors is not None and len(vectors) > self.max_vectors:
            rows = np.linspace(0, len(vectors) - 1, self.max_vectors).round().astype(np.int64)
            vectors = vectors[torch.from_numpy(rows).to(vectors.device)]
        if len(vectors) < 3:
            return torch.full((), torch.nan, dtype=torch.float64, device=vectors.device)
        return self.value_of(vectors)

    @abstractmethod
    def value_of(self, vectors: Tensor) -> Tensor:
        """Return the value of vectors (n, dim) as a 0-d float64 tensor."""


class TwoNN(_FeatureMetric):
    """The TwoNN intrinsic dimension, as :func:`repdyn.kernels.two_nn`.

    Args:
        max_vectors: of more vectors so many, evenly spaced, are used, because the time of a
            neighbour search grows with the square of their number; None for all.
        discard: as for the kernel.
        settings: those of every ``torchmetrics.Metric``.
    """

    def __init__(
        self, *, max_vectors: int | None = 4096, discard: float = 0.1, **settings: Any
    ) -> None:
        super().__init__(max_vectors=max_vectors, **settings)
        self.discard = discard

    def value_of(self, vectors: Tensor) -> Tensor:
        return two_nn(vectors, discard=self.discard)


class Anisotropy(_FeatureMetric):
    """The share of the variance along the first principal direction, in [0, 1], as
    :func:`repdyn.kernels.anisotropy`.

    Args:
        max_vectors: of more vectors so many, evenly spaced, are used; None for all.
        settings: those of every ``torchmetrics.Metric``.
    """

    def value_of(self, vectors: Tensor) -> Tensor:
        return anisotropy(vectors)


class EffectiveRank(_FeatureMetric):
    """The exponential of the entropy of the normalised singular values of the centred vectors, as
    :func:`repdyn.kernels.effective_rank`.

    Args:
        max_vectors: of more vectors so many, evenly spaced, are used; None for all.
        settings: those of every ``torchmetrics.Metric``.
    """

    def value_of(self, vectors: Tensor) -> Tensor:
        return effective_rank(vectors)


class RankMe(_FeatureMetric):
    """RankMe as published: ``exp(-sum(p_k log p_k))``, ``p_k = s_k / sum(s) + 1e-7``, of the
    singular values of the vectors as they are, not centred.

    Args:
        max_vectors: of more vectors so many, evenly spaced, are used; None for all.
        settings: those of every ``torchmetrics.Metric``.

    Source: Garrido, Balestriero, Najman, LeCun, RankMe, ICML 2023, equations 2 and 3.
    """

    def value_of(self, vectors: Tensor) -> Tensor:
        undefined = torch.full((), torch.nan, dtype=torch.float64, device=vectors.device)
        try:
            Cloud(vectors).require_defined()
        except UndefinedError:
            return undefined
        # by a QR decomposition, not the eigenvalues of the Gram matrix: their rounding, of the
        # order of epsilon times the largest, is more than many small singular values squared
        triangle = torch.linalg.qr(vectors.double(), mode="r").R
        singular_values = torch.linalg.svdvals(triangle)
        shares = singular_values / singular_values.sum() + RANK_ME_EPSILON
        return torch.special.entr(shares).sum().exp()

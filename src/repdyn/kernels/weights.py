"""The weights of a block, their gradients and what a training step changes."""

import math

import torch
from torch import Tensor

from repdyn.kernels.anisotropy import anisotropy
from repdyn.kernels.kernel import UndefinedError, nan_if_undefined

# norms between which no square that counts has left the range of float64
_SMALLEST, _LARGEST = 1e-140, 1e140


@nan_if_undefined
def weight_norm(x: Tensor) -> Tensor:
    """Compute the Euclidean norm of weights, or of gradients.

    Args:
        x: shape (n_weights,), any floating dtype, any device.

    Returns:
        0-d float64 tensor in [0, inf), in the unit of the weights; NaN, as undefined, if one of
        them is not finite.

    Example:
        >>> weight_norm(torch.tensor([3.0, 4.0])).item()
        5.0
    """
    # summed in float64 without a copy of that type
    norm = torch.linalg.vector_norm(x.flatten(), dtype=torch.float64)
    size = norm.item()
    if not _SMALLEST < size < _LARGEST and x.any():
        largest = x.abs().amax().double()
        norm = torch.linalg.vector_norm(x.flatten() / largest, dtype=torch.float64) * largest
        size = norm.item()
    if not math.isfinite(size):
        raise UndefinedError("not all weights or gradients are finite", "not_finite")
    return norm


@nan_if_undefined
def update_ratio(x: Tensor, before: Tensor) -> Tensor:
    """Compute the size of an update relative to the weights: ``|x - before| / |before|``.

    Args:
        x: (n_weights,) after a step.
        before: (n_weights,) before it.

    Returns:
        0-d float64 tensor in [0, inf), a pure number; NaN, as undefined, if weights are not finite
        or all were 0.

    Example:
        >>> update_ratio(torch.tensor([1.0, 0.5]), torch.tensor([1.0, 0.0])).item()
        0.5
    """
    whole = weight_norm.or_raise(before)
    if not whole:
        raise UndefinedError("all weights were 0")
    return weight_norm.or_raise(x.double() - before.double()) / whole


@nan_if_undefined
def weight_stable_rank(*matrices: Tensor) -> Tensor:
    """Compute the mean stable rank of matrices: squared Frobenius norm over squared spectral norm.

    Args:
        matrices: each (n, m) or with more dimensions, which are joined behind the first; any
            floating dtype.

    Returns:
        0-d float64 tensor in [1, min(n, m)], in directions, accurate to a relative 1e-6; NaN, as
        undefined, if a matrix is 0 or not finite.

    Source: Rudelson, Vershynin, Sampling from large matrices, JACM 54(4), 2007.

    Example:
        >>> weight_stable_rank(torch.eye(4), torch.ones(2, 3)).item()
        2.5
    """
    # with its negative a matrix has the mean 0, and is a cloud of the same directions; 0 is a third
    # point of equal rows
    flat = (matrix.flatten(1) for matrix in matrices)
    clouds = (torch.cat([each, -each, each.new_zeros(1, each.shape[1])]) for each in flat)
    return torch.stack([1 / anisotropy.or_raise(cloud) for cloud in clouds]).mean()

"""Vectors of attention heads, queries or keys, head by head: :func:`head_anisotropy` and
:func:`head_cosine`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from repdyn.kernels.anisotropy import anisotropy
from repdyn.kernels.cloud import Cloud
from repdyn.kernels.cosines import mean_cosine
from repdyn.kernels.kernel import UndefinedError, nan_if_undefined


@nan_if_undefined
def head_anisotropy(vectors: Tensor) -> Tensor:
    """Compute the anisotropy of the vectors of each attention head: the share of variance along the
    first principal direction.

    Args:
        vectors: queries or keys, shape (n_heads, n_vectors, dim), any floating dtype, any device.

    Returns:
        (n_heads,) float64 tensor on the device of ``vectors``, each of which is
        :func:`repdyn.kernels.anisotropy` of a head's vectors, with its range and accuracy; NaN when
        that of one head is undefined.

    Invariant and undefined as :func:`repdyn.kernels.anisotropy`, head by head.

    Source: the share of variance is that of Razzhigaev et al., The Shape of Learning, Findings of
    EACL 2024; that queries and keys are anisotropic, Godey, de la Clergerie, Sagot, Anisotropy Is
    Inherent to Self-Attention in Transformers, EACL 2024.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> head_anisotropy(torch.stack([square, square * torch.tensor([3.0, 1.0])])).tolist()
        [0.5, 0.9]
    """
    return _of_each_head(anisotropy.or_raise, vectors)


@nan_if_undefined
def head_cosine(vectors: Tensor) -> Tensor:
    """Compute the mean cosine between two vectors of an attention head, for each head.

    Args:
        vectors: as for :func:`head_anisotropy`.

    Returns:
        (n_heads,) float64 tensor on the device of ``vectors``, each of which is
        :func:`repdyn.kernels.mean_cosine` of a head's vectors, with its range and accuracy; NaN
        when that of one head is undefined.

    Invariant and undefined as :func:`repdyn.kernels.mean_cosine`, head by head.

    Source: Godey, de la Clergerie, Sagot, Anisotropy Is Inherent to Self-Attention in Transformers,
    EACL 2024, who use the mean cosine of Ethayarajh, EMNLP 2019.

    Example:
        >>> apart = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
        >>> [round(of_head, 9) for of_head in head_cosine(apart[None]).tolist()]
        [0.333333333]
    """
    return _of_each_head(mean_cosine.or_raise, vectors)


def _of_each_head(kernel: Callable[[Cloud], Tensor], vectors: Tensor) -> Tensor:
    if vectors.ndim != 3:
        raise ValueError(
            "expected vectors of shape (n_heads, n_vectors, dim), got shape "
            f"{tuple(vectors.shape)}; give one head as vectors[None]"
        )
    values = []
    for head, of_head in enumerate(vectors):
        try:
            values.append(kernel(Cloud(of_head)))
        except UndefinedError as error:
            raise UndefinedError(f"head {head}: {error.reason}", error.code) from error
    return torch.stack(values)

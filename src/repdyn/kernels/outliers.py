"""Few vectors or few coordinates that carry much of a cloud."""

import math
from fractions import Fraction

import torch
from torch import Tensor

from repdyn.kernels.cloud import RESOLUTION, Cloud, as_cloud, row_chunks
from repdyn.kernels.cosines import lengths
from repdyn.kernels.kernel import UndefinedError, nan_if_undefined
from repdyn.kernels.spectrum import gram_matrix


@nan_if_undefined
def massive_activation_share(
    x: Tensor | Cloud, *, magnitude: float = 100.0, ratio: float = 1000.0
) -> Tensor:
    """Compute the share of the sum of squares that massive activations carry.

    ``sum(x_ij**2, massive) / sum(x_ij**2)``.

    An activation, a single coordinate of a single vector, is massive when its magnitude exceeds
    ``magnitude`` and is at least ``ratio`` times the median magnitude of all activations of the
    cloud (of an even number, the lower of the two in the middle). The points are not centred.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        magnitude: in the unit of ``x``, >= 0.
        ratio: to the median, >= 0.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [0, 1], 0 where none is massive;
        NaN when undefined.

    Invariant to order of the points and of their coordinates, signs, and repetition of the cloud as
    a whole; not to rotation, translation or, for ``magnitude`` > 0, scaling.
    Undefined when the points contain NaN or inf, or fewer than 3 of them differ.

    Source: Sun, Chen, Kolter, Liu, Massive Activations in Large Language Models, COLM 2024, section
    2, whose criterion it is ("at least or around 1,000 times"); the share is ours.

    Example:
        >>> states = torch.full((4, 8), 0.125)
        >>> states[0, 5], states[1, 2] = 200.0, 99.0
        >>> round(massive_activation_share(states).item(), 4)
        0.8032
    """
    cloud = as_cloud(x)
    for name, value in {"magnitude": magnitude, "ratio": ratio}.items():
        if not 0 <= value < math.inf:
            raise ValueError(
                f"expected a finite {name} >= 0, got {value}; the criterion of the source is 100 "
                "and 1000"
            )
    cloud.require_defined()
    # torch's median is the lower of the two in the middle
    at_least = ratio * cloud.x.abs().flatten().median().double()
    massive, total = torch.zeros(2, dtype=torch.float64, device=cloud.x.device).unbind()
    for rows in row_chunks(cloud.x):
        sizes = rows.double().abs()
        is_massive = (sizes > magnitude) & (sizes >= at_least)
        squares = sizes.mul_(cloud.scale).square_()
        total += squares.sum()
        massive += squares.mul_(is_massive).sum()
    return massive / total


@nan_if_undefined
def outlier_kurtosis(x: Tensor | Cloud) -> Tensor:
    """Compute the kurtosis of the coordinates' root mean squares: how far a few coordinates are
    larger than the rest.

    ``mean_j(s_j**4) / mean_j(s_j**2)**2`` with ``s_j = sqrt(mean_i(x_ij**2))``, without centring.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [1, dim]: 1 where all
        coordinates have the same root mean square, dim where a single one is not zero; NaN when
        undefined.

    Invariant and undefined as :func:`massive_activation_share`, and invariant to uniform scaling.

    Source: He, Noci, Paliotta, Schlag, Hofmann, Understanding and Minimising Outlier Features in
    Neural Network Training, arXiv 2405.19279, 2024.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> outlier_kurtosis(square).item()
        1.0
        >>> outlier_kurtosis(torch.nn.functional.pad(square, (0, 6))).item()
        4.0
    """
    cloud = as_cloud(x)
    cloud.require_defined()
    squares = torch.zeros(cloud.x.shape[1], dtype=torch.float64, device=cloud.x.device)
    for rows in row_chunks(cloud.x):
        squares += rows.double().mul(cloud.scale).square_().sum(0)
    # divided by the largest first: squares of sums need not be representable
    squares /= squares.max()
    return squares.square().mean() / squares.mean().square()


# difference of the two largest eigenvalues, as a share of the largest, up to which they count as
# equal
_EQUAL = 1e-6


@nan_if_undefined
def top_norm_variance_share(x: Tensor | Cloud, *, share: float = 0.01) -> Tensor:
    """Compute the share of the variance along the first principal direction that the points of the
    largest norms carry.

    ``sum((v_1 . (x_i - mean))**2 : i among the longest) / sum((v_1 . (x_i - mean))**2)``, the
    latter over all points. v_1 is the first eigenvector of the covariance, and the longest are the
    ``ceil(share * n_vectors)`` points of the largest Euclidean length, before centring; of points
    of equal length at the limit each counts in part. Near 1, the anisotropy of the cloud is that of
    a few vectors, as attention sinks are; without any it is a few times ``share``.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        share: of the points, in (0, 1).

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [0, 1]; NaN when undefined.

    Invariant to rotation, uniform scaling, order of the points and columns of zeros; not to
    translation, which changes the lengths. Repeated points count as often as they occur.
    Undefined when the points contain NaN or inf, when fewer than 3 of them differ, when the two
    largest eigenvalues are equal to a millionth: there is no first direction then; or when all
    points are equally long to the precision of their coordinates, as after a LayerNorm: rounding
    alone would choose the longest.

    Source: the definition is ours. The few vectors it is made for are those of Sun, Chen, Kolter,
    Liu, Massive Activations in Large Language Models, COLM 2024.

    Example:
        >>> x = torch.tensor([[9.0, 0.0], [-1.0, 1.0], [-1.0, -1.0], [-1.0, 0.0]])
        >>> round(top_norm_variance_share(x, share=0.25).item(), 6)
        0.75
    """
    cloud = as_cloud(x)
    if not 0 < share < 1:
        raise ValueError(
            f"expected a share 0 < share < 1, got {share}; the longest 1% of the points are "
            "share=0.01"
        )
    squares = cloud.once(_squares_along_first)
    norms = torch.cat([lengths(rows) for rows in row_chunks(cloud.x)])
    shortest, longest = norms.aminmax()
    if longest - shortest <= RESOLUTION[cloud.x.dtype] * longest:
        raise UndefinedError(
            f"all vectors are equally long to the precision of {cloud.x.dtype}: none are the "
            "longest"
        )
    # exactly: in binary 100 * 0.07 is more than 7
    n_longest = math.ceil(cloud.n_vectors * Fraction(str(float(share))))
    limit = norms.topk(n_longest).values[-1]
    # points of equal length share the places that are left, whatever their order
    longer = norms > limit
    at_limit = norms == limit
    weights = longer.double().add_(
        at_limit, alpha=((n_longest - longer.sum()) / at_limit.sum()).item()
    )
    return (weights @ squares / squares.sum()).clamp_max(1)


def _squares_along_first(cloud: Cloud) -> Tensor:
    """Return the squared coordinate of each point along the first principal direction, (n,)
    float64, in any unit.
    """
    cloud.require_defined()
    values, vectors = torch.linalg.eigh(gram_matrix(cloud))
    if len(values) > 1 and values[-1] - values[-2] <= _EQUAL * values[-1]:
        raise UndefinedError(
            "the two largest eigenvalues are equal to a millionth: no direction is the first"
        )
    first = vectors[:, -1]
    if cloud.x.shape[0] < cloud.x.shape[1]:
        return first.square()  # that of the points' inner products holds their coordinates
    return torch.cat([cloud.frame.transform(rows) @ first for rows in row_chunks(cloud.x)]).square()

"""Directions and lengths: of one cloud, and of the same tokens at two layers.

Vectors are not centred here: what they have in common is part of what is measured. Those of
float64 are divided by their largest coordinate first, so that no square leaves the range.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud, row_chunks
from repdyn.kernels.kernel import UndefinedError, mean_over_vectors, nan_if_undefined

# difference of two cosines that counts as none
_ROUNDING = 1e-12
COMPARED_WITH = "compared with: "
"""Prefix of a reason that concerns another cloud than the first."""


def matched(
    check: Callable[[Cloud], object], *points: Tensor | Cloud, one_space: bool = False
) -> list[Cloud]:
    """Return points as clouds; raise ValueError unless they are as many (and have as many
    coordinates, if of ``one_space``), and UndefinedError unless each cloud passes a check; the
    reason says if it is not the first."""
    cloud, *others = clouds = [as_cloud(each) for each in points]
    for other in others:
        if other.n_vectors != cloud.n_vectors:
            raise ValueError(
                "expected clouds of as many points, row by row of the same tokens, got "
                f"{cloud.n_vectors} and {other.n_vectors}; take both from one probe"
            )
        if one_space and other.x.shape[1] != cloud.x.shape[1]:
            raise ValueError(
                f"expected points of one dimension, got {cloud.x.shape[1]} and {other.x.shape[1]}; "
                "across dimensions take linear_cka or linearity"
            )
    # a row's reason is about its own layer unless it says otherwise
    check(cloud)
    for other in others:
        try:
            check(other)
        except UndefinedError as undefined:
            raise UndefinedError(COMPARED_WITH + undefined.reason) from undefined
    return clouds


def require_numbers(cloud: Cloud) -> None:
    """Raise UndefinedError for a cloud without points, or with NaN or inf among them."""
    if cloud.n_vectors == 0:
        raise UndefinedError("0 points, at least 1 needed")
    if not math.isfinite(cloud.scale):
        raise UndefinedError(
            f"the points contain {'NaN' if cloud.x.isnan().any() else 'inf'}", "not_finite"
        )


def cosines(cloud: Cloud, other: Cloud) -> Tensor:
    """Return the cosine of the two vectors of each row, (n,) float64 in [-1, 1]; raise
    UndefinedError if a vector is 0.
    """
    products = []
    norms_of_x = []
    others = []
    for rows, other_rows in zip(row_chunks(cloud.x), row_chunks(other.x), strict=True):
        wide = _scaled(rows)[0]
        other_wide = _scaled(other_rows)[0]
        products.append(torch.linalg.vecdot(wide, other_wide))
        norms_of_x.append(torch.linalg.vector_norm(wide, dim=1))
        others.append(torch.linalg.vector_norm(other_wide, dim=1))
    for prefix, norms in (("", torch.cat(norms_of_x)), (COMPARED_WITH, torch.cat(others))):
        if n_zero := int((norms == 0).sum()):
            raise UndefinedError(
                f"{prefix}{n_zero} of {cloud.n_vectors} vectors are zero and have no direction"
            )
    # by one norm after the other: the product of both need not be representable
    return (torch.cat(products) / torch.cat(norms_of_x) / torch.cat(others)).clamp(-1, 1)


def lengths(rows: Tensor) -> Tensor:
    """Return the Euclidean length of each row, (n,) float64."""
    wide, factor = _scaled(rows)
    return torch.linalg.vector_norm(wide, dim=1) * factor


def _scaled(rows: Tensor) -> tuple[Tensor, Tensor | float]:
    """Return rows in float64 whose squares do not overflow, and the factor divided out: (n,), or
    one for all.
    """
    # the square of the largest float32 is far below the largest float64
    if rows.dtype != torch.float64:
        return rows.double(), 1.0
    largest = rows.abs().amax(1).clamp_min(torch.finfo(torch.float64).tiny)
    return rows / largest[:, None], largest


@nan_if_undefined
def mean_cosine(x: Tensor | Cloud) -> Tensor:
    """Compute the mean cosine between the vectors of a cloud, over all pairs of different rows.

    With u_i the rows divided by their lengths, ``(|sum(u_i)|**2 - n) / (n * (n - 1))``. The points
    are not centred: a common offset is what it measures most of all.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.

    Returns:
        0-d float64 tensor on the device of ``x``, a cosine in [-1 / (n_vectors - 1), 1]; NaN when
        undefined. Absolute error below 1e-14.

    Invariant to rotation about the origin, positive scaling of each vector, order of the points and
    columns of zeros; not to translation. Repeated points count as often as they occur.
    Undefined when the points contain NaN, inf or a vector of zeros, or fewer than 3 of them differ.

    Source: Ethayarajh, How Contextual are Contextualized Word Representations?, EMNLP 2019, its
    measure of anisotropy, there taken over random pairs.

    Example:
        >>> mean_cosine(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])).item()
        0.3333333333333333
    """
    cloud = as_cloud(x)
    cloud.require_defined()
    n = cloud.n_vectors
    total = torch.zeros(cloud.x.shape[1], dtype=torch.float64, device=cloud.x.device)
    n_zero = torch.zeros((), dtype=torch.int64, device=cloud.x.device)
    for rows in row_chunks(cloud.x):
        wide = rows.double()
        largest = wide.abs().amax(1, keepdim=True)
        n_zero += (largest == 0).sum()
        # divided by its largest coordinate first, no vector has squares that leave the range of
        # float64
        wide = wide / largest
        total += (wide / torch.linalg.vector_norm(wide, dim=1, keepdim=True)).sum(0)
    if n_zero:
        raise UndefinedError(f"{int(n_zero)} of {n} vectors are zero and have no direction")
    # |sum(u_i)|**2 is the sum of the cosines of all n**2 pairs, n of which are a vector with itself
    return ((total @ total - n) / (n * (n - 1))).clamp_max(1)


@mean_over_vectors
def alignment(x: Tensor | Cloud, last: Tensor | Cloud) -> Tensor:
    """Compute the mean cosine of a layer's vectors with another's: ``A_l = mean_t cos(h_l(t),
    h_L(t))`` of the last.

    Args:
        x: points of the layer, shape (n_vectors, dim), any floating dtype, any device; or a Cloud
            of them.
        last: points of the last layer of its stack, or for the metric ``step_cosine`` of the next
            one; the same tokens in the same order, the same shape.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [-1, 1], 1 for the layer itself;
        NaN when undefined. Accurate to 1e-14: all sums are in float64.

    Invariant to a rotation that turns both, to a positive factor of either, also one for each
    token, and to the order of the tokens. Not to translation: a mean that all vectors of both
    layers share raises it. Undefined when a point contains NaN or inf, when one is zero, or when
    there are none.

    Example:
        >>> last = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> alignment(torch.tensor([[3.0, 0.0], [5.0, 0.0]]), last).item()
        0.5
    """
    cloud, last = matched(require_numbers, x, last, one_space=True)
    return cosines(cloud, last)


@mean_over_vectors
def alignment_gradient(
    x: Tensor | Cloud, following: Tensor | Cloud, last: Tensor | Cloud
) -> Tensor:
    """Compute what one block adds to the alignment with the last layer: ``G_l = A_{l+1} - A_l``.

    Args:
        x, last: as for :func:`alignment`.
        following: points of layer l + 1, likewise.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [-2, 2], positive where the
        block turns the vectors towards the last layer; NaN when undefined. Accurate to 1e-14. All
        of a stack's add up to ``1 - A_0``.

    Invariant and undefined as :func:`alignment`.

    Example:
        >>> first, second = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> alignment_gradient(first, second, last=second).item()
        1.0
    """
    cloud, following, last = matched(require_numbers, x, following, last, one_space=True)
    return cosines(following, last) - cosines(cloud, last)


@mean_over_vectors
def alignment_falls(
    x: Tensor | Cloud, following: Tensor | Cloud, last: Tensor | Cloud, *, more_than: float = 0.0
) -> Tensor:
    """Compute the share of vectors whose cosine with the last layer falls from a layer to the next.

    Args:
        x, following, last: as for :func:`alignment_gradient`.
        more_than: fall of the cosine that is not counted yet, >= 0; less than 1e-12 counts as
            rounding.

    Returns:
        0-d float64 tensor on the device of ``x``, in [0, 1]: 0 where assumption 1 of the source,
        that every token comes closer to its final vector, holds for all; NaN when undefined.

    Invariant and undefined as :func:`alignment`.

    Source: Lee, Fractal Self-Similarity in Semantic Convergence, Fractal Fract. 8(10):552, 2024,
    assumption 1.

    Example:
        >>> first, second = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 1.0],
        ...     [1.0, 1.0]])
        >>> alignment_falls(first, second, last=torch.tensor([[1.0, 0.0], [1.0, 0.0]])).item()
        0.5
    """
    if not more_than >= 0:
        raise ValueError(f"expected more_than >= 0, got {more_than}")
    cloud, following, last = matched(require_numbers, x, following, last, one_space=True)
    return (cosines(cloud, last) - cosines(following, last) > max(more_than, _ROUNDING)).double()


@mean_over_vectors
def norm(x: Tensor | Cloud) -> Tensor:
    """Compute the mean Euclidean length of a layer's vectors: ``mean_t |h_l(t)|``.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.

    Returns:
        0-d float64 tensor on the device of ``x``, >= 0, in the units of the states; NaN when
        undefined. Accurate to a relative 1e-14: all sums are in float64.

    Invariant to rotation, to the order of the points and to columns of zeros; a factor of all
    points is one of the result. Undefined when a point contains NaN or inf, or when there are none.

    Example:
        >>> norm(torch.tensor([[3.0, 4.0], [0.0, 1.0]])).item()
        3.0
    """
    cloud = as_cloud(x)
    require_numbers(cloud)
    return torch.cat([lengths(rows) for rows in row_chunks(cloud.x)])


@mean_over_vectors
def step_length(x: Tensor | Cloud, following: Tensor | Cloud) -> Tensor:
    """Compute the mean Euclidean distance that one block moves the vectors: ``mean_t |h_{l+1}(t) -
    h_l(t)|``.

    Args:
        x: points of layer l, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of
            them.
        following: points of layer l + 1, the same tokens in the same order, the same shape.

    Returns:
        0-d float64 tensor on the device of ``x``, >= 0, in the units of the states; NaN when
        undefined. Accurate to a relative 1e-14 of what the two layers, as they were captured,
        differ by.

    Invariant to a rotation or a translation of both, and to the order of the tokens; a factor of
    both is one of the result. Undefined when a point contains NaN or inf, or when there are none.

    Example:
        >>> step_length(torch.zeros(2, 2), torch.tensor([[3.0, 4.0], [0.0, 1.0]])).item()
        3.0
    """
    cloud, following = matched(require_numbers, x, following, one_space=True)
    pairs = zip(row_chunks(cloud.x), row_chunks(following.x), strict=True)
    return torch.cat([lengths(after.double() - before) for before, after in pairs])

"""How alike two clouds of the same tokens are: by all similarities, :func:`linear_cka`, or by the
best rotation, :func:`procrustes_distance`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, product, row_chunks
from repdyn.kernels.cosines import COMPARED_WITH, matched
from repdyn.kernels.kernel import UndefinedError, nan_if_undefined

# total dimension of both clouds, relative to the number of points, up to which products of features
# are cheaper
_FEW_FEATURES = 0.25
# points up to which similarities are computed in float64: if a few of them are huge, float32 has an
# error of 1e-3 for five points, 1e-5 for five hundred
_FEW_POINTS = 1024
# length of the longest point, in those of the median, from which on float32 loses the sixth digit
_HUGE = 300
# rows that are multiplied at once, to features and to similarities
_ROWS, _BLOCK = 1024, 256
# similarities below this share of the points' squared lengths are rounding errors
_NEGLIGIBLE = 1e-6


@nan_if_undefined
def linear_cka(a: Tensor | Cloud, b: Tensor | Cloud, *, debiased: bool = True) -> Tensor:
    """Compute linear centred kernel alignment: how the similarities within one cloud correlate with
    another's.

    ``HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L))`` with ``K = A A.T`` and ``L = B B.T``. Debiased,
    HSIC is the unbiased estimate: without the diagonals, and centred so that it is zero on average
    for independent clouds. Otherwise it is ``|A.T B|**2`` of the centred points, which for such
    clouds is about ``d / (n + d)``.

    Args:
        a: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        b: points of the same tokens in the same order, shape (n_vectors, any dim).
        debiased: compare across numbers of points and dimensions; False gives the published form of
            2019.

    Returns:
        0-d float64 tensor on the device of ``a``, a pure number in [-1, 1] ([0, 1] where not
        debiased), 1 for the same cloud rotated, shifted or scaled; NaN when undefined. Accurate to
        1e-6, to 1e-12 for float64 points.

    Invariant to translation, rotation, uniform scaling and columns of zeros, of either alone, and
    to the order of the tokens. Not to other linear maps: directions count by their variance, so
    that a few large ones decide. Undefined when the points contain NaN or inf, when fewer than 3 of
    them differ, or fewer than 4 are given; debiased also when no two points of a cloud are more
    alike than any other two.

    Source: Kornblith, Norouzi, Lee, Hinton, Similarity of Neural Network Representations Revisited,
    ICML 2019; the estimate of HSIC is equation 5 of Song, Smola, Gretton, Bedo, Borgwardt, JMLR 13,
    2012, in the form of inner products of U-centred matrices (Székely, Rizzo, Annals of Statistics
    42, 2014). Why it is the default: Murphy, Zylberberg, Fyshe, Correcting Biased Centered Kernel
    Alignment Measures, arXiv 2405.01012, 2024.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> turned = square @ torch.tensor([[0.0, 3.0], [-3.0, 0.0]]) + 7
        >>> round(linear_cka(square, turned).item(), 9)
        1.0
        >>> round(linear_cka(square, square[:, :1], debiased=False).item(), 6)
        0.707107
    """
    a, b = matched(Cloud.require_defined, a, b)
    if a.n_vectors < 4:
        raise UndefinedError(f"{a.n_vectors} points, at least 4 needed")
    few = a.x.shape[1] + b.x.shape[1] <= _FEW_FEATURES * a.n_vectors
    if few or a.n_vectors <= _FEW_POINTS or _has_huge_points(a) or _has_huge_points(b):
        x, y = Cloud(a.x.double()).centred, Cloud(b.x.double()).centred
    else:
        x, y = a.centred, b.centred
    products = _by_features if few else _by_similarities
    hsic_x, common, other = products(x, y, debiased)
    for prefix, similarity, points in (("", hsic_x, x), (COMPARED_WITH, other, y)):
        # nothing is left of the squared lengths: rounding would be divided by rounding
        if (
            similarity
            <= (_NEGLIGIBLE * torch.linalg.vector_norm(points, dtype=torch.float64).square()) ** 2
        ):
            raise UndefinedError(f"{prefix}no two points are more alike than any other two")
    return (common / hsic_x.sqrt() / other.sqrt()).clamp(-1, 1)


def _has_huge_points(cloud: Cloud) -> bool:
    """Return whether a point is so much longer than most, as an attention sink may be, that the
    rounding of its similarities in float32 hides what the others have in common.
    """
    lengths = torch.linalg.vector_norm(cloud.centred, dim=1)
    return bool(lengths.max() > _HUGE * lengths.median())


class _Similarities(NamedTuple):
    """The similarities of the points of a cloud, without the matrix of all."""

    points: Tensor
    """(n, dim), centred."""
    squares: Tensor
    """(n,) float64: the diagonal of the matrix."""
    sums: Tensor
    """(n,) float64: the sum of each row; debiased, without the diagonal."""


def _by_features(x: Tensor, y: Tensor, debiased: bool) -> Tensor:
    """Return <K, K>, <K, L> and <L, L> of the centred matrices of similarities, (3,) float64.

    ``<A A.T, B B.T> = |A.T B|**2``; what the diagonals and the centring take away is known from
    sums over the points.
    """
    of_x, of_y = (
        _Similarities(points, _squares(points), _sums(points, debiased)) for points in (x, y)
    )
    pairs = ((of_x, of_x), (of_x, of_y), (of_y, of_y))
    return torch.stack([_inner_product(k, l_, debiased) for k, l_ in pairs])


def _inner_product(k: _Similarities, l_: _Similarities, debiased: bool) -> Tensor:
    """Return <K, L> of two centred matrices of similarities, 0-d float64, by products of
    features.
    """
    features = torch.zeros(
        k.points.shape[1], l_.points.shape[1], dtype=torch.float64, device=k.points.device
    )
    for rows, others in zip(k.points.split(_ROWS), l_.points.split(_ROWS), strict=True):
        features.addmm_(rows.double().mT, others.double())
    per_row, in_all = _divisors(len(k.points), debiased)
    diagonal = k.squares @ l_.squares if debiased else 0.0
    centring = k.sums.sum() * l_.sums.sum() / in_all - 2 / per_row * (k.sums @ l_.sums)
    return features.square().sum() - diagonal + centring


def _divisors(n: int, debiased: bool) -> tuple[int, int]:
    """Return what the sum of a row, and that of all rows, are divided by to centre n points."""
    return (n - 2, (n - 1) * (n - 2)) if debiased else (n, n**2)


def _by_similarities(x: Tensor, y: Tensor, debiased: bool) -> Tensor:
    """Return the same as :func:`_by_features`, from blocks of rows of the matrices on and above the
    diagonal.
    """
    n = len(x)
    per_row, in_all = _divisors(n, debiased)
    sums = (_sums(points, debiased) for points in (x, y))
    # subtracted from each row and each column, these make all sums zero
    offsets = [of_rows / per_row - of_rows.sum() / (2 * in_all) for of_rows in sums]
    totals = torch.zeros(3, dtype=torch.float64, device=x.device)
    for start in range(0, n, _BLOCK):
        k, l_ = (
            product(points[start : start + _BLOCK], points[start:])
            .double()
            .sub_(offset[start : start + _BLOCK, None])
            .sub_(offset[start:])
            for points, offset in zip((x, y), offsets, strict=True)
        )
        if debiased:
            k.diagonal().zero_()
            l_.diagonal().zero_()
        side = len(k)
        for number, (factor, other) in enumerate(((k, k), (k, l_), (l_, l_))):
            # blocks off the diagonal count twice, for their mirror images
            on_diagonal = factor[:, :side].flatten() @ other[:, :side].flatten()
            totals[number] += 2 * (factor.flatten() @ other.flatten()) - on_diagonal
    return totals


def _squares(points: Tensor) -> Tensor:
    """Return the diagonal of the similarities, (n,) float64."""
    return torch.cat([rows.double().square().sum(1) for rows in row_chunks(points)])


def _sums(points: Tensor, debiased: bool) -> Tensor:
    """Return the sum of each row of the similarities, (n,) float64; debiased, without the
    diagonal.
    """
    total = sum((rows.double().sum(0) for rows in row_chunks(points)), torch.zeros(()))
    sums = torch.cat([rows.double() @ total for rows in row_chunks(points)])
    return sums - _squares(points) if debiased else sums


@nan_if_undefined
def procrustes_distance(a: Tensor | Cloud, b: Tensor | Cloud) -> Tensor:
    """Compute the squared distance between two clouds after the rotation that brings them closest
    to each other.

    ``min_R |A - B R|**2 = 2 - 2 * nuclear_norm(A.T B)``, with A and B centred and divided by their
    Frobenius norms, and R orthogonal.

    Args:
        a, b: as for :func:`linear_cka`. The narrower cloud counts as if it had columns of zeros.

    Returns:
        0-d float64 tensor on the device of ``a``, a pure number in [0, 2]: 0 for the same cloud
        rotated, shifted or scaled, 2 where no coordinate of one correlates with one of the other;
        NaN when undefined. The error is below 1e-12. Unrelated clouds lie below 2, the more so the
        more dimensions they have for their points.

    Invariant to translation, rotation, reflection, uniform scaling and columns of zeros, of either
    alone, to the order of the tokens, and to the order of the clouds. Its square root satisfies the
    triangle inequality. Undefined when the points contain NaN or inf, or fewer than 3 of them
    differ.

    Source: Ding, Denain, Steinhardt, Grounding Representation Similarity Through Statistical
    Testing, NeurIPS 34, 2021, section 2; the minimum is Schönemann's, Psychometrika 31:1, 1966.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> turned = square @ torch.tensor([[0.0, 3.0], [-3.0, 0.0]]) + 7
        >>> round(procrustes_distance(square, turned).item(), 9)
        0.0
        >>> round(procrustes_distance(square, square[:, :1]).item(), 6)
        0.585786
    """
    a, b = matched(Cloud.require_defined, a, b)
    products = torch.zeros(a.x.shape[1], b.x.shape[1], dtype=torch.float64, device=a.x.device)
    squares = torch.zeros(2, dtype=torch.float64, device=a.x.device)
    for pair in zip(a.x.split(_ROWS), b.x.split(_ROWS), strict=True):
        rows_x, other = (
            cloud.frame.transform(rows) for cloud, rows in zip((a, b), pair, strict=True)
        )
        products.addmm_(rows_x.mT, other)
        squares += torch.stack([rows_x.square().sum(), other.square().sum()])
    # one norm after the other: their product need not be representable
    correlations = torch.linalg.svdvals(products / squares[0].sqrt() / squares[1].sqrt())
    return (2 - 2 * correlations.sum()).clamp(0, 2)

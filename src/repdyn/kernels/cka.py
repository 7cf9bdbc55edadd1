"""Linear centred kernel alignment (CKA) of two clouds of the same tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud, centre, full_precision, product, row_chunks
from repdyn.kernels.matched import COMPARED_WITH, require_matched
from repdyn.kernels.undefined import Undefined, nan_if_undefined

# total dimension of both clouds, relative to the number of points, up to which products of features are cheaper
_FEW_FEATURES = 0.25
# points up to which similarities are computed in float64: if a few of them are huge, float32 has an error of 1e-3 for
# five points, 1e-5 for five hundred
_FEW_POINTS = 1024
# rows that are multiplied at once, to features and to similarities
_ROWS, _BLOCK = 1024, 256
# similarities below this share of the points' squared lengths are rounding errors
_NEGLIGIBLE = 1e-6


@nan_if_undefined
def linear_cka(a: Tensor | Cloud, b: Tensor | Cloud, *, debiased: bool = True) -> Tensor:
    """Compute linear centred kernel alignment: the correlation of the similarities within one cloud with those within
    another.

    ``HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L))`` with ``K = A A.T`` and ``L = B B.T``. Debiased, HSIC is the unbiased
    estimate: without the diagonals, and centred so that it is zero on average for independent clouds. Otherwise it is
    ``|A.T B|**2`` of the centred points, which for such clouds is about ``d / (n + d)``.

    Args:
        a: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        b: points of the same tokens in the same order, shape (n_vectors, any dim).
        debiased: compare across numbers of points and dimensions; False gives the published form of 2019.

    Returns:
        0-d float64 tensor on the device of ``a``, a pure number in [-1, 1] ([0, 1] where not debiased), 1 for the same
        cloud rotated, shifted or scaled; NaN when undefined. Accurate to 1e-6, to 1e-12 for float64 points.

    Raises:
        ValueError: for another shape or dtype, or other numbers of points.

    Invariant to translation, rotation, uniform scaling and columns of zeros, of either alone, and to the order of the
    tokens. Not to other linear maps: directions count by their variance, so that a few large ones decide.
    Undefined when the points contain NaN or inf, when fewer than 3 of them differ, or fewer than 4 are given; debiased
    also when no two points of a cloud are more alike than any other two.

    Source: Kornblith, Norouzi, Lee, Hinton, Similarity of Neural Network Representations Revisited, ICML 2019; the
    estimate of HSIC is equation 5 of Song, Smola, Gretton, Bedo, Borgwardt, JMLR 13, 2012, in the form of inner
    products of U-centred matrices (Székely, Rizzo, Annals of Statistics 42, 2014). Why it is the default: Murphy,
    Zylberberg, Fyshe, Correcting Biased Centered Kernel Alignment Measures, arXiv 2405.01012, 2024.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> turned = square @ torch.tensor([[0.0, 3.0], [-3.0, 0.0]]) + 7
        >>> round(linear_cka(square, turned).item(), 9)
        1.0
        >>> round(linear_cka(square, square[:, :1], debiased=False).item(), 6)
        0.707107
    """
    a, b = as_cloud(a), as_cloud(b)
    require_matched(Cloud.require_defined, a, b)
    if a.n_vectors < 4:
        raise Undefined(f"{a.n_vectors} points, at least 4 needed")
    with full_precision(a.x.device):
        few = a.x.shape[1] + b.x.shape[1] <= _FEW_FEATURES * a.n_vectors
        if few or a.n_vectors <= _FEW_POINTS:
            x, y = centre(a.x, torch.float64), centre(b.x, torch.float64)
        else:
            x, y = a.centred, b.centred
        own, common, other = (_by_features if few else _by_similarities)(x, y, debiased)
        for prefix, similarity, points in (("", own, x), (COMPARED_WITH, other, y)):
            if similarity <= (_NEGLIGIBLE * torch.linalg.vector_norm(points, dtype=torch.float64).square()) ** 2:
                raise Undefined(f"{prefix}no two points are more alike than any other two")
        return (common / own.sqrt() / other.sqrt()).clamp(-1, 1)


def _by_features(x: Tensor, y: Tensor, debiased: bool) -> Tensor:
    """Return <K, K>, <K, L> and <L, L> of the centred matrices of similarities, (3,) float64.

    ``<A A.T, B B.T> = |A.T B|**2``; what the diagonals and the centring take away is known from sums over the points.
    """
    n = len(x)
    per_row, in_all = (n - 2, (n - 1) * (n - 2)) if debiased else (n, n**2)
    of_x, of_y = ((points, _squares(points), _sums(points, debiased)) for points in (x, y))
    products = []
    for (one, squares, sums), (another, others, other_sums) in ((of_x, of_x), (of_x, of_y), (of_y, of_y)):
        features = torch.zeros(one.shape[1], another.shape[1], dtype=torch.float64, device=x.device)
        for rows, other_rows in zip(one.split(_ROWS), another.split(_ROWS), strict=True):
            features.addmm_(rows.double().mT, other_rows.double())
        diagonal = squares @ others if debiased else 0.0
        centring = sums.sum() * other_sums.sum() / in_all - 2 / per_row * (sums @ other_sums)
        products.append(features.square().sum() - diagonal + centring)
    return torch.stack(products)


def _by_similarities(x: Tensor, y: Tensor, debiased: bool) -> Tensor:
    """Return the same as :func:`_by_features`, from blocks of rows of the matrices on and above the diagonal."""
    n = len(x)
    per_row, in_all = (n - 2, (n - 1) * (n - 2)) if debiased else (n, n**2)
    sums = (_sums(points, debiased) for points in (x, y))
    # subtracted from each row and each column, these make all sums zero
    offsets = [of_rows / per_row - of_rows.sum() / (2 * in_all) for of_rows in sums]
    totals = torch.zeros(3, dtype=torch.float64, device=x.device)
    for start in range(0, n, _BLOCK):
        own, other = (
            product(points[start : start + _BLOCK], points[start:])
            .double()
            .sub_(offset[start : start + _BLOCK, None])
            .sub_(offset[start:])
            for points, offset in zip((x, y), offsets, strict=True)
        )
        if debiased:
            own.diagonal().zero_()
            other.diagonal().zero_()
        side = len(own)
        for number, (one, another) in enumerate(((own, own), (own, other), (other, other))):
            # blocks off the diagonal count twice, for their mirror images
            square = one[:, :side].flatten() @ another[:, :side].flatten()
            totals[number] += 2 * (one.flatten() @ another.flatten()) - square
    return totals


def _squares(points: Tensor) -> Tensor:
    """Return the diagonal of the similarities, (n,) float64."""
    return torch.cat([rows.double().square().sum(1) for rows in row_chunks(points)])


def _sums(points: Tensor, debiased: bool) -> Tensor:
    """Return the sum of each row of the similarities, (n,) float64; debiased, without the diagonal."""
    total = sum((rows.double().sum(0) for rows in row_chunks(points)), torch.zeros(()))
    sums = torch.cat([rows.double() @ total for rows in row_chunks(points)])
    return sums - _squares(points) if debiased else sums

"""How alike two clouds of the same tokens are by canonical correlations: :func:`svcca`."""

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, Frame, row_chunks
from repdyn.kernels.cosines import COMPARED_WITH, matched
from repdyn.kernels.kernel import UndefinedError, nan_if_undefined
from repdyn.kernels.spectrum import gram_matrix

# tolerance on the share of variance: sums of equal eigenvalues are rounded
_ROUNDING = 1e-10
# eigenvalue, relative to the largest, whose direction is known to nine digits from products of
# float64
_LEAST_EIGENVALUE = 1e-7
# difference of the last kept eigenvalue and the next, relative to the largest, up to which rounding
# decides which of the two directions is kept
_LEAST_GAP = 1e-9


@nan_if_undefined
def svcca(a: Tensor | Cloud, b: Tensor | Cloud, *, variance: float = 0.99) -> Tensor:
    """Compute the mean canonical correlation of two clouds, each reduced to its leading principal
    directions (singular vector canonical correlation analysis).

    Of each centred cloud the fewest principal directions that hold the share ``variance`` are kept,
    p and q of them; U and V are the coordinates of the points along them, each of length 1. The
    canonical correlations are the singular values of ``U.T V``, and the value is the sum of the
    min(p, q) of them over min(p, q). A direction that is kept counts as much as any other, whatever
    its variance, where :func:`repdyn.kernels.linear_cka` weighs them by it.

    Args:
        a: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        b: points of the same tokens in the same order, shape (n_vectors, any dim).
        variance: share of the variance that the directions of each cloud hold, in (0, 1).

    Returns:
        0-d float64 tensor on the device of ``a``, a pure number in [0, 1]: 1 where the kept
        directions of one cloud are linear maps of the other's; NaN when undefined. The error is
        below 1e-6, and below 1e-8 where the last kept direction has more variance than the next by
        1e-6 of the first one's. Unrelated clouds have up to sqrt(max(p, q) / (n_vectors - 1)) on
        average, so that values compare at one number of vectors, and say little where directions
        are not far fewer than vectors.

    Invariant to translation, rotation, uniform scaling and columns of zeros, of either alone, to
    the order of the tokens, and to the order of the clouds. Not to other linear maps, which change
    what directions are kept. Undefined when the points contain NaN or inf, when fewer than 3 of
    them differ, when p + q exceeds n_vectors - 1, where any two clouds have correlations of 1, when
    ``variance`` is so near 1 that a kept direction has less than 1e-7 of the first one's, or when
    the last kept direction has as much variance as the next, to 1e-9 of the first one's.

    Source: Raghu, Gilmer, Yosinski, Sohl-Dickstein, SVCCA: Singular Vector Canonical Correlation
    Analysis for Deep Learning Dynamics and Interpretability, NeurIPS 30, 2017. The average of
    unrelated clouds follows from the squared multiple correlation, q / (n - 1) for normal ones.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]).repeat(2, 1)
        >>> stretched = square @ torch.tensor([[0.0, 2.0], [-3.0, 0.0]]) + 7
        >>> round(svcca(square, stretched).item(), 9)
        1.0
        >>> grid = torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0))
        >>> round(svcca(grid[:, :1], grid[:, 1:]).item(), 9)
        0.0
    """
    if not 0 < variance < 1:
        raise ValueError(
            f"expected 0 < variance < 1, got {variance}; 99% of the variance is variance=0.99"
        )
    a, b = matched(Cloud.require_defined, a, b)
    of_a = _coordinates(a, variance, "")
    of_b = _coordinates(b, variance, COMPARED_WITH)
    p = of_a.shape[1]
    q = of_b.shape[1]
    if p + q > a.n_vectors - 1:
        raise UndefinedError(
            f"{p} and {q} directions hold {variance:.6g} of the variance, together more than the "
            f"{a.n_vectors - 1} that {a.n_vectors} centred points have; take more vectors"
        )
    correlations = torch.linalg.svdvals(of_a.mT @ of_b)
    return correlations.mean().clamp(0, 1)


def _coordinates(cloud: Cloud, variance: float, prefix: str) -> Tensor:
    """Return the points along the principal directions that hold a share of the variance,
    (n_vectors, n_directions) float64, each column of length 1.
    """
    values, vectors = cloud.once(_principal)
    cumulative = values.cumsum(0)
    n_kept = int((cumulative[:-1] < (variance - _ROUNDING) * cumulative[-1]).sum()) + 1
    if values[n_kept - 1] < _LEAST_EIGENVALUE * values[0]:
        raise UndefinedError(
            f"{prefix}direction {n_kept} of those that hold {variance:.6g} of the variance has "
            f"less than {_LEAST_EIGENVALUE:g} of the first one's; take a smaller share",
            "rounding",
        )
    if n_kept < len(values) and values[n_kept - 1] - values[n_kept] <= _LEAST_GAP * values[0]:
        raise UndefinedError(
            f"{prefix}directions {n_kept} and {n_kept + 1} have the same variance, and only one of "
            f"them is among those that hold {variance:.6g} of it; take another share",
            "rounding",
        )
    leading = vectors[:, :n_kept]
    if cloud.n_vectors < cloud.x.shape[1]:
        return leading
    frame: Frame = cloud.frame
    along = torch.cat([frame.transform(rows) @ leading for rows in row_chunks(cloud.x)])
    return along / torch.linalg.vector_norm(along, dim=0)


def _principal(cloud: Cloud) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues of the products of rows or columns, whichever are fewer, and the
    eigenvectors, both float64 and in descending order of the eigenvalues.
    """
    values, vectors = torch.linalg.eigh(gram_matrix(cloud))
    return values.flip(0).clamp_min(0), vectors.flip(1)

"""How much of a layer is a linear map of the one before it: :func:`linearity`."""

from collections.abc import Iterator
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud
from repdyn.kernels.cosines import matched, require_numbers
from repdyn.kernels.kernel import UndefinedError, nan_if_undefined

Of: TypeAlias = Literal["state", "step"]

# rows that are multiplied at once
_ROWS = 1024
# Smallest squared pivot of the Cholesky factor of columns of unit length: above the first, the
# residual is accurate as a difference; above the second, the solve is accurate; below, the smallest
# eigenvalues are cut off.
_WELL_CONDITIONED, _SOLVABLE = 1e-6, 1e-9
# eigenvalues up to this are rounding errors of float32 states
_NOISE = 1e-11
# deviation from the mean, relative to the largest magnitude, that counts as none
_CONSTANT = 1e-12


@nan_if_undefined
def linearity(
    x: Tensor | Cloud, following: Tensor | Cloud, *, of: Of = "state", adjusted: bool = False
) -> Tensor:
    """Compute the share of the variance of a layer that the best linear map of the layer before it
    explains.

    ``1 - min_A |X~ A - Y~|_F**2`` with ``X~, Y~`` centred and divided by their Frobenius norms.

    Args:
        x: points of layer l, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of
            them.
        following: points of layer l + 1, the same tokens in the same order, shape (n_vectors, any
            dim).
        of: what is explained: "state", the next layer itself; or "step", what the block adds, ``Y -
            X``, which leaves out the share that comes by the residual stream.
        adjusted: the fit uses up one point for each dimension, so that unrelated clouds have a
            linearity of ``rank / (n_vectors - 1)``. True takes that off, as the adjusted R squared
            does: 0 on average for these.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [0, 1] (adjusted, at most 1, and
        below 0 for a fit worse than by chance); NaN when undefined. Accurate to 1e-9. Directions
        that carry less than 1e-11 of the variance of a column, all of them scaled alike, count as
        rounding and are not used.

    Invariant to translation and to the order of the tokens; to any invertible linear map of ``x``
    (of "state"), and to rotation and uniform scaling of ``following``.
    Undefined when the points contain NaN or inf, when fewer than dim + 2 of ``x`` differ (any next
    layer would be a linear map of it), or when what is to be explained is constant. Of a constant
    next layer the step is -X and a constant, which is linear: 1.

    Source: Razzhigaev et al., Your Transformer is Secretly Linear, ACL 2024, section 3; their
    similarity without the residual is that of "step".

    Example:
        >>> x = torch.tensor([[-3.0], [-1.0], [1.0], [3.0]])
        >>> round(linearity(x, 2 * x + 5).item(), 9), round(linearity(x, x**3).item(), 6)
        (1.0, 0.921096)
    """
    cloud = as_cloud(x)
    following = as_cloud(following)
    if of not in ("state", "step"):
        raise ValueError(f'expected of="state" or of="step", got {of!r}')
    if of == "step":
        # the next layer may be constant: the step is then -X and a constant
        matched(require_numbers, cloud, following, one_space=True)
        cloud.require_defined()
    else:
        matched(Cloud.require_defined, cloud, following)
    dim = cloud.x.shape[1]
    if cloud.n_unique < dim + 2:
        raise UndefinedError(
            f"{cloud.n_unique} distinct of {cloud.n_vectors} points in {dim} dimensions, at least "
            f"{dim + 2} needed",
            "few_distinct",
        )
    if of == "step" and following.n_unique == 1:
        return torch.ones((), dtype=torch.float64, device=cloud.x.device)
    residual, totals, rank = cloud.once(_fit, following)
    total = totals[of]
    if total <= _CONSTANT**2 * following.x.numel():
        raise UndefinedError(f"the {of} to be explained is the same for all points")
    freedom = (cloud.n_vectors - 1) / (cloud.n_vectors - 1 - rank) if adjusted else 1.0
    return 1 - residual / total * freedom


def _fit(cloud: Cloud, following: Cloud) -> tuple[Tensor, dict[str, Tensor], int]:
    """Return, of the least squares in float64 that explain a following layer by a cloud: the sum of
    the squared residuals, the same for state and step; the sums of squares about the mean of both;
    the number of directions used.
    """
    totals: dict[str, Tensor] = {}
    for _, explained in _blocks(cloud, following):
        totals = {of: totals.get(of, 0.0) + rows.square().sum() for of, rows in explained.items()}
    # both have the same residual; the smaller one has less cancellation
    of = min(totals, key=lambda of: totals[of].item())
    gram = torch.zeros(
        cloud.x.shape[1], cloud.x.shape[1], dtype=torch.float64, device=cloud.x.device
    )
    cross = gram.new_zeros(cloud.x.shape[1], following.x.shape[1])
    for x, explained in _blocks(cloud, following):
        gram.addmm_(x.mT, x)
        cross.addmm_(x.mT, explained[of])
    # columns of unit length, for accuracy; a constant one, up to the rounding of its mean, explains
    # nothing and is replaced by one orthogonal to all others
    lengths = gram.diagonal().sqrt()
    constant = lengths <= _CONSTANT * len(cloud.x) ** 0.5 * cloud.frame.mean.abs()
    weights = (1 / lengths).masked_fill(constant, 0)[:, None]
    gram = gram * weights * weights.mT
    cross = cross * weights
    gram.diagonal()[constant] = 1
    n_constant = int(constant.sum())
    factor, failed = torch.linalg.cholesky_ex(gram)
    pivot = 0.0 if failed else factor.diagonal().min().square().item()
    if pivot > _WELL_CONDITIONED:
        # with G = L L.T, the squares that the best map explains are |L**-1 C|**2: it is not needed
        explained_squares = torch.linalg.solve_triangular(factor, cross, upper=False).square().sum()
        return (totals[of] - explained_squares).clamp_min(0), totals, len(gram) - n_constant
    if pivot > _SOLVABLE:
        best = torch.cholesky_solve(cross, factor)
        rank = len(gram)
    else:  # the map of least norm without noise directions
        values, vectors = torch.linalg.eigh(gram)
        above_noise = values > _NOISE
        vectors = vectors[:, above_noise]
        rank = int(above_noise.sum())
        best = vectors @ ((vectors.mT @ cross) / values[above_noise, None])
    # computed from the residuals: the error of the map enters squared
    residuals = [
        (explained[of] - x @ (best * weights)).square().sum()
        for x, explained in _blocks(cloud, following)
    ]
    return torch.stack(residuals).sum(), totals, rank - n_constant


def _blocks(cloud: Cloud, following: Cloud) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Yield rows of the layer and of what it explains, centred, in float64."""
    frame, following_frame = cloud.frame, following.frame
    for before, after in zip(cloud.x.split(_ROWS), following.x.split(_ROWS), strict=True):
        x = frame.transform(before)
        y = following_frame.transform(after)
        explained = {"state": y}
        if x.shape == y.shape:
            explained["step"] = y - x * (following_frame.scale / frame.scale)
        yield x, explained

"""Linearity: how much of a layer a linear map of the layer before it explains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, Frame, as_cloud, full_precision
from repdyn.kernels.matched import require_matched, require_numbers
from repdyn.kernels.undefined import Undefined, nan_if_undefined

Of: TypeAlias = Literal["state", "step"]

# rows that are multiplied at once: enough to be worth a product, few enough to be held in float64
_ROWS = 1024
# of columns of unit length, what those before one leave unexplained of it, squared: where all have more, products
# and differences do; where all have more than the second, the map can be told at all
_APART, _TOLD = 1e-6, 1e-9
# and the variance along a direction up to which it is what rounding of float32 states leaves
_NOISE = 1e-11
# deviation from the mean, as a share of the largest magnitude, that is taken for none
_CONSTANT = 1e-12


@nan_if_undefined
def linearity(x: Tensor | Cloud, following: Tensor | Cloud, *, of: Of = "state", adjusted: bool = False) -> Tensor:
    """Compute the share of the variance of a layer that the best linear map of the layer before it explains.

    ``1 - min_A |X~ A - Y~|_F**2`` with ``X~, Y~`` centred and divided by their Frobenius norms.

    Args:
        x: points of layer l, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        following: points of layer l + 1, the same tokens in the same order, shape (n_vectors, any dim).
        of: what is explained: "state", the next layer itself; or "step", what the block adds, ``Y - X``, which leaves
            out the share that comes by the residual stream.
        adjusted: the fit uses up one point for each dimension, so that unrelated clouds have a linearity of
            ``rank / (n_vectors - 1)``. True takes that off, as the adjusted R squared does: 0 on average for these.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [0, 1] (adjusted, at most 1, and below 0 for a fit
        worse than by chance); NaN when undefined. Accurate to 1e-9. Directions that carry less than 1e-11 of the
        variance of a column, all of them scaled alike, count as rounding and are not used.

    Raises:
        ValueError: for another shape or dtype, other numbers of points, or another ``of``.

    Invariant to translation and to the order of the tokens; to any invertible linear map of ``x`` (of "state"), and to
    rotation and uniform scaling of ``following``.
    Undefined when the points contain NaN or inf, when fewer than dim + 2 of ``x`` differ (any next layer would be a
    linear map of it), or when what is to be explained is constant. Of a constant next layer the step is -X and a
    constant, which is linear: 1.

    Source: Razzhigaev et al., Your Transformer is Secretly Linear, ACL 2024, section 3; their similarity without
    the residual is that of "step".

    Example:
        >>> x = torch.tensor([[-3.0], [-1.0], [1.0], [3.0]])
        >>> round(linearity(x, 2 * x + 5).item(), 9), round(linearity(x, x**3).item(), 6)
        (1.0, 0.921096)
    """
    cloud, following = as_cloud(x), as_cloud(following)
    if of not in ("state", "step"):
        raise ValueError(f'expected of="state" or of="step", got {of!r}')
    if of == "step":
        # what takes the layer away is a step too: the next one may be constant
        require_matched(require_numbers, cloud, following, one_space=True)
        cloud.require_defined()
        if following.n_unique == 1:
            return torch.ones((), dtype=torch.float64, device=cloud.x.device)
    else:
        require_matched(Cloud.require_defined, cloud, following)
    dim = cloud.x.shape[1]
    if cloud.n_unique < dim + 2:
        raise Undefined(
            f"{cloud.n_unique} distinct of {cloud.n_vectors} points in {dim} dimensions, at least {dim + 2} needed"
        )
    fit = cloud.once(_Fit(following))
    total = fit.totals[of]
    if total <= _CONSTANT**2 * following.x.numel():
        raise Undefined(f"the {of} to be explained is the same for all points")
    freedom = (cloud.n_vectors - 1) / (cloud.n_vectors - 1 - fit.rank) if adjusted else 1.0
    return 1 - fit.left / total * freedom


class _Fitted(NamedTuple):
    left: Tensor
    """Sum of the squares that the best map leaves, of the state and of the step alike."""
    totals: dict[str, Tensor]
    """Sum of the squares of either, about their means."""
    rank: int
    """Number of directions that the map uses."""


@dataclass(frozen=True)
class _Fit:
    """Least squares in float64, as a function of the layer that explains."""

    following: Cloud

    def __call__(self, cloud: Cloud) -> _Fitted:
        with full_precision(cloud.x.device):
            totals: dict[str, Tensor] = {}
            for _, explained in self._blocks(cloud):
                totals = {of: totals.get(of, 0.0) + rows.square().sum() for of, rows in explained.items()}
            # either leaves the same; of the smaller one there is less to cancel
            return self._fitted(cloud, min(totals, key=lambda of: totals[of].item()), totals)

    def _fitted(self, cloud: Cloud, of: str, totals: dict[str, Tensor]) -> _Fitted:
        gram = torch.zeros(cloud.x.shape[1], cloud.x.shape[1], dtype=torch.float64, device=cloud.x.device)
        cross = gram.new_zeros(cloud.x.shape[1], self.following.x.shape[1])
        for x, explained in self._blocks(cloud):
            gram.addmm_(x.mT, x)
            cross.addmm_(x.mT, explained[of])
        # columns of unit length, lest a wide one drown the others; a constant one, but for the rounding of its mean,
        # explains nothing and takes up no point: it is made one that stands apart from all
        lengths = gram.diagonal().sqrt()
        constant = lengths <= _CONSTANT * len(cloud.x) ** 0.5 * cloud.once(_frame).mean.abs()
        weights = (1 / lengths).masked_fill(constant, 0)[:, None]
        gram, cross = gram * weights * weights.mT, cross * weights
        gram.diagonal()[constant] = 1
        n_constant = int(constant.sum())
        factor, failed = torch.linalg.cholesky_ex(gram)
        apart = 0.0 if failed else factor.diagonal().min().square().item()
        if apart > _APART:
            by_map = torch.linalg.solve_triangular(factor, cross, upper=False).square().sum()
            return _Fitted((totals[of] - by_map).clamp_min(0), totals, len(gram) - n_constant)
        best, rank = (torch.cholesky_solve(cross, factor), len(gram)) if apart > _TOLD else _least_norm(gram, cross)
        # measured, not subtracted: off by the square of the error of a map that is hard to tell
        rest = [(explained[of] - x @ (best * weights)).square().sum() for x, explained in self._blocks(cloud)]
        return _Fitted(torch.stack(rest).sum(), totals, rank - n_constant)

    def _blocks(self, cloud: Cloud) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Yield rows of the layer, and of what it may explain, centred, in float64."""
        frame, following_frame = cloud.once(_frame), self.following.once(_frame)
        for before, after in zip(cloud.x.split(_ROWS), self.following.x.split(_ROWS), strict=True):
            x, y = frame.place(before), following_frame.place(after)
            explained = {"state": y}
            if x.shape == y.shape:
                explained["step"] = y - x * (following_frame.scale / frame.scale)
            yield x, explained


def _frame(cloud: Cloud) -> Frame:
    return Frame.of(cloud.x)


def _least_norm(gram: Tensor, cross: Tensor) -> tuple[Tensor, int]:
    """Return the map that uses no direction that is noise, and how many it uses."""
    values, vectors = torch.linalg.eigh(gram)
    kept = values > _NOISE
    vectors = vectors[:, kept]
    return vectors @ ((vectors.mT @ cross) / values[kept, None]), int(kept.sum())

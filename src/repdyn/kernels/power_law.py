"""How fast the eigenvalues of a cloud's covariance decay."""

from __future__ import annotations

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud
from repdyn.kernels.spectrum import spectrum_of
from repdyn.kernels.undefined import Undefined, nan_if_undefined

# eigenvalues that a slope is fitted to, at least
_LEAST = 10
# Share of the largest eigenvalue down to which one is variance. Rounding makes up some 1e-14 of it, whether the points
# are float32 or float64, and moves what is kept by less than a thousandth.
_ROUNDING = 1e-12


@nan_if_undefined
def alpha_req(x: Tensor | Cloud, *, first: int = 11, last: int = 100) -> Tensor:
    """Compute the exponent of the power law ``l_i ~ i**-alpha`` by which a covariance's eigenvalues decay.

    Minus the slope of the least-squares line of ``log(l_i)`` on ``log(i)`` over the ranks i from ``first`` to ``last``,
    each weighted by ``1 / i`` because ranks crowd along a logarithmic axis. The largest eigenvalues, which seldom
    follow the law of the rest, are left out by ``first``.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        first: rank of the first eigenvalue of the fit, the largest being 1.
        last: rank of the last one. Where fewer than that stand above rounding (1e-12 of the largest), the fit ends with
            them: compare clouds of at least ``last`` directions, or of one width.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number >= 0; NaN when undefined.

    Raises:
        ValueError: for another shape or dtype, or for ranks that leave fewer than 10 eigenvalues.

    Invariant to translation, rotation, uniform scaling, order of the points and columns of zeros. Repeated points
    count as often as they occur.
    Undefined when the points contain NaN or inf, when fewer than 3 of them differ, or when fewer than 10 eigenvalues
    from ``first`` on stand above rounding.

    Source: Agrawal, Mondal, Ghosh, Richards, alpha-ReQ: Assessing Representation Quality in Self-Supervised Learning by
    measuring eigenspectrum decay, NeurIPS 35, 2022. Ranks and weights are the defaults of its authors' package, reptrix
    0.1.0; the code of its experiments, fastssl, took ranks 4 to 100. The fit is that of Stringer et al., Nature
    571:361, 2019.

    Example:
        >>> spokes = torch.arange(1.0, 65.0).rsqrt().diag()
        >>> round(alpha_req(torch.cat([spokes, -spokes])).item(), 6)
        1.0
    """
    cloud = as_cloud(x)
    if not (isinstance(first, int) and isinstance(last, int) and 1 <= first <= last + 1 - _LEAST):
        raise ValueError(
            f"expected ranks first >= 1 and last >= first + {_LEAST - 1}, got first = {first} and last = {last}; "
            f"a slope is fitted to {_LEAST} eigenvalues or more"
        )
    values = cloud.once(spectrum_of)
    n_above = int((values > _ROUNDING * values[0]).sum())
    if n_above < first + _LEAST - 1:
        raise Undefined(f"{n_above} eigenvalues stand above rounding, at least {first + _LEAST - 1} needed")
    return -_slope(values[first - 1 : min(last, n_above)].log(), first)


def _slope(heights: Tensor, first: int) -> Tensor:
    """Return the slope of the weighted least-squares line through the heights over the logarithms of their ranks."""
    ranks = torch.arange(first, first + len(heights), dtype=heights.dtype, device=heights.device)
    weights = 1 / (ranks * (1 / ranks).sum())
    steps = ranks.log() - weights @ ranks.log()
    return (weights * steps) @ (heights - weights @ heights) / (weights @ steps.square())

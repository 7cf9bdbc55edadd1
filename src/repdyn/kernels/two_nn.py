"""Intrinsic dimension from the distances to the two nearest neighbours."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, Undefined, exact_arithmetic, or_nan
from repdyn.kernels.neighbours import nearest_of

Estimator = Literal["regression", "maximum_likelihood"]
# log(r2 / r1) up to which two distances count as equal: the accuracy that nearest promises
TIE = 1e-10


def two_nn(x: Tensor | Cloud, *, discard: float = 0.1, estimator: Estimator = "regression") -> Tensor:
    """Intrinsic dimension of a point cloud, from the ratio ``mu = r2 / r1`` of each point's two nearest distances.

    In d dimensions ``P(mu <= m) = 1 - m**-d``. Over the n distinct points, sorted by mu, with ``F_i = i / n``:

    - regression: slope of the least-squares line through the origin of ``-log(1 - F_i)`` on ``log(mu_i)``, over the
      first ``int(n * (1 - discard))`` points (the convention of scikit-dimension and DADApy);
    - maximum likelihood: ``(n - 1) / sum(log(mu_i))`` over all points: ``discard`` does not enter.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        discard: share of the points, those with the largest ratios, left out of the regression: in (0, 1).
        estimator: "regression" or "maximum_likelihood".

    Returns:
        0-d float64 tensor on the device of ``x``, a number of dimensions > 0; NaN when undefined.

    Raises:
        ValueError: for another shape or dtype, or for ``discard`` or ``estimator`` out of range.

    Invariant to translation, rotation, uniform scaling, order and repetition of the points and columns of zeros.
    Undefined when the points contain NaN or inf, when fewer than 3 of them differ, when ``discard`` leaves fewer than
    2, when every ratio kept is 1 (tied distances, as on a grid), or when distances leave the range of float64.

    Source: Facco, d'Errico, Rodriguez, Laio, Estimating the intrinsic dimension of datasets by a minimal neighborhood
    information, Scientific Reports 7:12140, 2017, equations 3 to 5. Estimates of high dimensions are biased low.

    Example:
        >>> line = torch.rand(1000, 1, generator=torch.Generator().manual_seed(0)) * torch.ones(1, 8)
        >>> round(two_nn(line).item())
        1
    """
    return or_nan(two_nn_of, x, discard=discard, estimator=estimator)


def two_nn_of(cloud: Cloud, *, discard: float = 0.1, estimator: Estimator = "regression") -> Tensor:
    """As ``two_nn``, but raises Undefined with the reason instead of returning NaN."""
    if not 0 < discard < 1:
        raise ValueError(
            f"expected a share 0 < discard < 1, got {discard}; to use every point, take "
            'estimator="maximum_likelihood" (the largest ratio has no place on the regression line: F = 1)'
        )
    if estimator not in get_args(Estimator):
        raise ValueError(f"expected estimator to be one of {', '.join(get_args(Estimator))}, got {estimator!r}")
    log_ratios = cloud.once(_sorted_log_ratios)
    with exact_arithmetic(cloud.x.device):
        return _regression(log_ratios, discard) if estimator == "regression" else _maximum_likelihood(log_ratios)


def _sorted_log_ratios(cloud: Cloud) -> Tensor:
    cloud.require_defined()
    with exact_arithmetic(cloud.x.device):
        first, second = nearest_of(cloud, 2).unbind(1)
        log_ratios = (second / first).log().sort().values
    if not log_ratios.isfinite().all():
        raise Undefined("nearest-neighbour distances leave the range of float64; rescale the points")
    return log_ratios


def _regression(log_ratios: Tensor, discard: float) -> Tensor:
    n = len(log_ratios)
    n_kept = int(n * (1 - discard))
    if n_kept < 2:
        raise Undefined(f"discard = {discard} keeps {n_kept} of {n} distinct points, at least 2 needed")
    x = _not_all_tied(log_ratios[:n_kept])
    # -log(1 - i / n), the largest of which is finite because n_kept < n
    y = -torch.log1p(-torch.arange(1, n_kept + 1, dtype=torch.float64, device=x.device) / n)
    return (x @ y) / (x @ x)


def _maximum_likelihood(log_ratios: Tensor) -> Tensor:
    return (len(log_ratios) - 1) / _not_all_tied(log_ratios).sum()


def _not_all_tied(log_ratios: Tensor) -> Tensor:
    if log_ratios[-1] <= TIE:
        raise Undefined(f"the two nearest distances are equal for each of the {len(log_ratios)} points used")
    return log_ratios

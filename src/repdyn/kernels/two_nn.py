"""Intrinsic dimension from the distances to the two nearest neighbours.

- :func:`two_nn` fits a dimension to the ratios of the two distances.
- :func:`_std_error` repeats the fit without some of the windows of text, a jackknife.
- :func:`_ratios_with_duplicates` and :func:`_regression_with_duplicates` are the convention of the
  package llm_microscope, in which every copy of a point is a point.
"""

import math
from fractions import Fraction
from functools import lru_cache, partial
from typing import Literal, get_args

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud, row_chunks
from repdyn.kernels.kernel import UndefinedError, nan_if_undefined
from repdyn.kernels.neighbours import cloud_neighbours, require_in_range, resolved
from repdyn.kernels.search import TIE, Neighbours

# nearest distance, relative to the mean length of the centred points, that counts as zero; also a
# ratio's excess over 1
_EPSILON = 1e-8


def _ratios_with_duplicates(cloud: Cloud) -> tuple[Tensor, int]:
    """Return the log-ratios of the distances to the two nearest points, duplicates included:
    float64, ascending, of the points used in the fit; and the number of those that are not fitted
    but counted in the cumulative distribution."""
    cloud.require_defined()
    if cloud.groups is None or cloud.n_unique == cloud.n_vectors:
        neighbours, inverse = cloud_neighbours(cloud, 2), cloud.distinct.inverse
        n_points = (
            torch.ones_like(inverse) if cloud.n_unique == cloud.n_vectors else inverse.bincount()
        )
        has_copy = n_points > 1
        n_nearest = n_points[neighbours.indices[:, 0]]
    else:
        neighbours, has_copy, n_points, n_nearest = _value_neighbours_in_groups(cloud, cloud.groups)
    first, second = neighbours.distances.unbind(1)
    lengths = torch.cat(
        [
            torch.linalg.vector_norm(cloud.frame.transform(rows), dim=1)
            for rows in row_chunks(cloud.x)
        ]
    )
    coincides = has_copy | (first * cloud.scale < _EPSILON * lengths.mean())
    # the nearest distinct point stands for several equal ones: both neighbours are equally far
    ratios = torch.where(n_nearest > 1, 1.0, second / first)
    require_in_range(ratios.masked_fill(coincides, 1.0))
    used = ~coincides & (ratios > 1 + _EPSILON)
    # each distinct point as often as it occurs
    log_ratios = ratios[used].log().repeat_interleave(n_points[used]).sort().values
    return log_ratios, cloud.n_vectors - len(log_ratios)


def _value_neighbours_in_groups(
    cloud: Cloud, groups: Tensor
) -> tuple[Neighbours, Tensor, Tensor, Tensor]:
    """Return for each distinct value, which equal points share: its two nearest others, whether its
    points have an equal one as a neighbour, how many points it has, and how many points of the
    nearest value are neighbours.

    A value that occurs in several groups is a possible neighbour of every point, and each of its
    points has a copy in another group. For the search such a value is a group of its own.
    """
    groups, (points, _, first, inverse) = groups.unique(return_inverse=True)[1], cloud.distinct
    n_groups = int(groups.max()) + 1
    own_groups = groups[first]
    # value and group in one number, and how many points have it
    kinds, n_of_kind = (inverse * n_groups + groups).unique(return_counts=True)
    has_copy = (kinds // n_groups).bincount() > 1
    n_points = inverse.bincount()
    # names that no other group has
    alone = n_groups + torch.arange(len(points), device=own_groups.device)
    neighbours = cloud_neighbours(Cloud(points, groups=own_groups.where(~has_copy, alone)), 2)
    nearest = neighbours.indices[:, 0]
    # points of the nearest value that are in the own group are no neighbours
    sought = nearest * n_groups + own_groups
    place = torch.searchsorted(kinds, sought).clamp_max(len(kinds) - 1)
    hidden = n_of_kind[place].where(kinds[place] == sought, 0)
    return neighbours, has_copy, n_points, n_points[nearest] - hidden


Estimator = Literal["regression", "maximum_likelihood"]
Duplicates = Literal["collapse", "count"]
JACKKNIFE_GROUPS = 64
"""Largest number of groups of windows that are left out in turn to estimate the standard error."""
SHARED_NEIGHBOURS = 1.2
"""Factor by which the spread over fresh probes exceeds a jackknife that keeps the ratios; see
docs/sampling.md.
"""


def _std_error(
    x: Tensor | Cloud,
    windows: Tensor,
    *,
    discard: float = 0.1,
    estimator: Estimator = "regression",
    duplicates: Duplicates = "collapse",
) -> Tensor:
    """Compute the standard error of :func:`two_nn` for a cloud whose vectors come from windows of
    text.

    A jackknife over 64 groups of windows (each window is one, if they are fewer): the fit is
    repeated without the points of each group, while the ratios of the others stay as they are.
    Points share neighbours, which this leaves out; the factor ``SHARED_NEIGHBOURS`` corrects it.
    NaN where duplicates count.
    """
    cloud = as_cloud(x)
    if duplicates == "count":
        return cloud.x.new_full((), math.nan, dtype=torch.float64)
    # on the CPU: a device is waited for in each of the fits, which are small
    part, rows = resolved(cloud)
    log_ratios, order = (of_points.cpu() for of_points in part.once(_sorted_log_ratios))
    names, number = windows[rows].cpu()[order].unique(return_inverse=True)
    n_groups = min(JACKKNIFE_GROUPS, len(names))
    # random groups, so that no order of the windows, such as that of a text, makes groups alike
    generator = torch.Generator().manual_seed(0)
    group = (torch.randperm(len(names), generator=generator) % n_groups)[number]
    fits = []
    for left_out in range(n_groups):
        is_kept = group != left_out
        fits.append(_fitted(log_ratios[is_kept], discard, estimator))
    without = torch.stack(fits)
    # the jackknife's variance of g fits is (g - 1) / g times their sum of squares about their mean
    return (SHARED_NEIGHBOURS * ((n_groups - 1) * without.var(correction=0)).sqrt()).to(
        cloud.x.device
    )


@partial(nan_if_undefined, std_error=_std_error)
def two_nn(
    x: Tensor | Cloud,
    *,
    discard: float = 0.1,
    estimator: Estimator = "regression",
    duplicates: Duplicates = "collapse",
) -> Tensor:
    """Estimate the intrinsic dimension of a cloud from each point's ratio ``mu = r2 / r1`` of its
    nearest distances.

    In d dimensions ``P(mu <= m) = 1 - m**-d``. Over the n distinct points, sorted by mu, with ``F_i
    = i / n``:

    - regression: slope of the least-squares line through the origin of ``-log(1 - F_i)`` on
      ``log(mu_i)``, over the first ``floor(n * (1 - discard))`` points (the convention of
      scikit-dimension and DADApy);
    - maximum likelihood: ``(n - 1) / sum(log(mu_i))`` over all points: ``discard`` does not enter.

    By default duplicates collapse: exact copies are one point. The package of Razzhigaev et al.,
    llm_microscope, counts them and uses the lowest fifth of the ratios: ``discard=0.8,
    duplicates="count"`` equals its 0.0.7 with ``reduction_factor=5`` to 1e-9, and to 2e-8 on
    processors where a float32 logarithm is not correctly rounded. In that mode every copy is a
    point and a neighbour. A point whose nearest neighbour lies within 1e-8 of the mean length of
    the centred points, or whose ratio is at most 1 + 1e-8, is not fitted but counted in ``F_i = (i
    + removed) / (n + removed)``, n being the number of fitted points.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them, with
            or without groups: points of one group are not each other's neighbours. Where duplicates
            count, each has its own group.
        discard: share of the points, those with the largest ratios, left out of the regression: in
            (0, 1).
        estimator: "regression" or "maximum_likelihood".
        duplicates: "collapse" or "count"; the latter is a convention of the regression alone.

    Returns:
        0-d float64 tensor on the device of ``x``, a number of dimensions > 0; NaN when undefined.

    Invariant to translation, rotation, uniform scaling, order of the points, columns of zeros,
    names of the groups and, where duplicates collapse, repetition of the points.
    Undefined when the points contain NaN or inf, when fewer than 3 of them differ, when one has
    fewer than 2 distinct others outside its group, when ``discard`` leaves fewer than 2 (1 where
    duplicates count), when every ratio kept is 1 (tied distances, as on a grid), or when distances
    leave the range of float64.

    Source: Facco, d'Errico, Rodriguez, Laio, Estimating the intrinsic dimension of datasets by a
    minimal neighborhood information, Scientific Reports 7:12140, 2017, equations 3 to 5. Estimates
    of high dimensions are biased low. The convention of "count": Razzhigaev et al., The Shape of
    Learning, Findings of EACL 2024, whose package it is.

    Example:
        >>> line = torch.rand(1000, 1, generator=torch.Generator().manual_seed(0)) * torch.ones(1,
        ...     8)
        >>> round(two_nn(line).item())
        1
    """
    cloud = as_cloud(x)
    if not 0 < discard < 1:
        raise ValueError(
            f"expected a share 0 < discard < 1, got {discard}; to use every point, take "
            'estimator="maximum_likelihood" (the largest ratio has no place on the regression '
            "line: F = 1)"
        )
    for name, value, choices in (
        ("estimator", estimator, Estimator),
        ("duplicates", duplicates, Duplicates),
    ):
        if value not in get_args(choices):
            raise ValueError(
                f"expected {name} to be one of {', '.join(get_args(choices))}, got {value!r}"
            )
    if duplicates == "count" and estimator != "regression":
        raise ValueError(
            f'expected estimator="regression" where duplicates count, got {estimator!r}; equal '
            "points have no ratio, "
            'so take duplicates="collapse"'
        )
    if duplicates == "count":
        return _regression_with_duplicates(*cloud.once(_ratios_with_duplicates), discard)
    part, _ = resolved(cloud)
    return _fitted(part.once(_sorted_log_ratios)[0], discard, estimator).to(cloud.x.device)


def _sorted_log_ratios(cloud: Cloud) -> tuple[Tensor, Tensor]:
    """Return the log-ratios of the distinct points, ascending, on the CPU, and which point each
    belongs to.
    """
    cloud.require_defined()
    first, second = cloud_neighbours(cloud, 2).distances.unbind(1)
    log_ratios, order = (second / first).log().sort()
    # the fits are small: a device would be waited for at each of them
    log_ratios = log_ratios.cpu()
    require_in_range(log_ratios)
    return log_ratios, order


def _fitted(log_ratios: Tensor, discard: float, estimator: Estimator) -> Tensor:
    heights = (
        _heights(len(log_ratios), discard, log_ratios.device)
        if estimator == "regression"
        else log_ratios
    )
    x = log_ratios[: len(heights)]
    # they ascend: the last one is the largest
    if x[-1] <= TIE:
        raise UndefinedError(
            f"the two nearest distances are equal for each of the {len(x)} points used"
        )
    return (x @ heights) / (x @ x) if estimator == "regression" else (len(x) - 1) / x.sum()


@lru_cache(maxsize=16)  # most groups that a jackknife leaves out are of one size
def _heights(n: int, discard: float, device: torch.device) -> Tensor:
    """Return -log(1 - F_i) of the ratios that are kept, the largest of which is finite because some
    are not.
    """
    n_kept = n_kept_of(n, discard)
    if n_kept < 2:
        raise UndefinedError(
            f"discard = {discard} keeps {n_kept} of {n} distinct points, at least 2 needed",
            "few_distinct",
        )
    return -torch.log1p(-torch.arange(1, n_kept + 1, dtype=torch.float64, device=device) / n)


def _regression_with_duplicates(x: Tensor, n_removed: int, discard: float) -> Tensor:
    n_kept = n_kept_of(len(x), discard)
    if n_kept < 1:
        raise UndefinedError(
            f"discard = {discard} keeps {n_kept} of {len(x)} points that have a ratio ({n_removed} "
            "removed), at least 1 needed"
        )
    # The package computes F and its logarithm in float32, which is off by as much as 1e-4 of a
    # small F and 1e-6 of the dimension. The last bit of a float32 logarithm depends on the
    # processor, one rounded from float64 does not.
    f = torch.arange(n_removed + 1, n_removed + len(x) + 1, dtype=torch.float32) / (
        n_removed + len(x)
    )
    y = -(1 - f).double().log()[:n_kept].float().double().to(x.device)
    x = x[:n_kept]
    return (x @ y) / (x @ x)


def n_kept_of(n: int, discard: float) -> int:
    """Return the largest whole number up to ``n * (1 - discard)``; in binary 5 * (1 - 0.8) is less
    than 1.
    """
    return math.floor(n * (1 - Fraction(str(float(discard)))))

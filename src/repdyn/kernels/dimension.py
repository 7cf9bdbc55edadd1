"""Intrinsic dimension by other estimators than :func:`repdyn.kernels.two_nn.two_nn`.

- :func:`gride`: ratios of distances to neighbours of any rank, at one scale after another.
- :func:`levina_bickel`: the likelihood of the distances to the k nearest neighbours.
- :func:`local_dimension`: TwoNN inside of the neighbourhoods of single points.
- :func:`ph_dimension`: how the length of a minimum spanning tree grows with the points.

All of them see a cloud without near duplicates, :func:`repdyn.kernels.neighbours.resolved`.
"""

import math

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud
from repdyn.kernels.kernel import UndefinedError, nan_if_undefined
from repdyn.kernels.neighbours import cloud_neighbours, require_in_range, resolved
from repdyn.kernels.search import TIE
from repdyn.kernels.two_nn import n_kept_of

_MOST_NEIGHBOURS = 256
# the solution is bracketed within a factor of k - 1: so many halvings of its logarithm leave less
# than the precision of float64
_HALVINGS = 60


@nan_if_undefined
def gride(x: Tensor | Cloud, *, k: int = 4) -> Tensor:
    """Estimate the intrinsic dimension of a cloud at one scale, from the ratio ``mu = r_k /
    r_(k/2)`` of each point's distances to its k-th and its (k/2)-th neighbour.

    The d that makes the ratios of the n distinct points likeliest, which solves
    ``n / d + (k/2 - 1) sum(log(mu_i) / (1 - mu_i**-d)) = (k - 1) sum(log(mu_i))``. With k = 2 this
    is TwoNN by maximum likelihood, but for its factor (n - 1) / n. Doubling k about doubles the
    volume that is looked at: an estimate that falls as k grows speaks of noise at small scales, one
    that rises of a curved or folded cloud.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them, with
            or without groups: points of one group are not each other's neighbours.
        k: rank of the farther neighbour, an even number from 2 to 256.

    Returns:
        0-d float64 tensor on the device of ``x``, a number of dimensions > 0; NaN when undefined.

    Invariant to translation, rotation, uniform scaling, order and repetition of the points, columns
    of zeros and names of the groups.
    Undefined when the points contain NaN or inf, when no more than k of them differ, when one has
    fewer than k others outside its group, when every ratio is 1, or when distances leave the range
    of float64.

    Source: Denti, Doimo, Laio, Mira, The generalized ratios intrinsic dimension estimator,
    Scientific Reports 12:20005, 2022, equations 5 and 8.

    Example:
        >>> line = torch.rand(1000, 1, generator=torch.Generator().manual_seed(0)) * torch.ones(1,
        ...     8)
        >>> round(gride(line, k=8).item(), 1)
        1.0
    """
    cloud = as_cloud(x)
    if not isinstance(k, int) or k not in range(2, _MOST_NEIGHBOURS + 1, 2):
        raise ValueError(
            f"expected an even k from 2 to {_MOST_NEIGHBOURS}, got {k}; the ratio is that of r_k "
            "and r_(k/2)"
        )
    cloud = resolved(cloud, k + 1)[0]
    distances = cloud_neighbours(cloud, k).distances
    # r_k is in column k - 1
    log_ratios = (distances[:, k - 1] / distances[:, k // 2 - 1]).log()
    require_in_range(log_ratios)
    if log_ratios.max() <= TIE:
        raise UndefinedError(
            f"the distances r_{k} and r_{k // 2} are equal for each of the {len(log_ratios)} points"
        )
    return _likeliest(log_ratios, k)


def _likeliest(log_ratios: Tensor, k: int) -> Tensor:
    total = log_ratios.sum()
    n = len(log_ratios)
    # the left side less the right one falls from one end of this range to the other
    low = n / ((k - 1) * total)
    high = n / total
    for _ in range(_HALVINGS):
        middle = (low * high).sqrt()
        # log(mu) / (1 - mu**-d), which tends to 1 / d as the ratio tends to 1
        within = (-torch.expm1(-middle * log_ratios)).clamp_min(torch.finfo(torch.float64).tiny)
        share = torch.where(log_ratios > 0, log_ratios / within, 1 / middle).sum()
        too_small = n / middle + (k / 2 - 1) * share > (k - 1) * total
        low = torch.where(too_small, middle, low)
        high = torch.where(too_small, high, middle)
    return high


@nan_if_undefined
def levina_bickel(x: Tensor | Cloud, *, k: int = 20) -> Tensor:
    """Estimate the intrinsic dimension of a cloud from each point's distances to its k nearest
    neighbours, r_1 to r_k.

    In d dimensions ``log(r_k / r_j)`` averages 1 / d over the neighbours j < k. Over the n distinct
    points ``n * (k - 1) / sum_i(sum_j(log(r_k(i) / r_j(i))))``: the inverse of the mean of the
    points' inverse estimates, which is the likeliest d for all of them together (MacKay and
    Ghahramani). Levina and Bickel took the mean of the estimates instead, which is biased upwards
    for small k.

    Args:
        x: as for :func:`gride`.
        k: number of neighbours, 2 to 256.

    Returns:
        0-d float64 tensor on the device of ``x``, a number of dimensions > 0; NaN when undefined.

    Invariant and undefined as :func:`gride`.

    Source: Levina, Bickel, Maximum Likelihood Estimation of Intrinsic Dimension, NeurIPS 17, 2004,
    equation 8; combined over the points as in MacKay, Ghahramani, Comments on "Maximum Likelihood
    Estimation of Intrinsic Dimension", 2005. Estimates of high dimensions are biased low, the more
    so the larger k.

    Example:
        >>> line = torch.rand(1000, 1, generator=torch.Generator().manual_seed(0)) * torch.ones(1,
        ...     8)
        >>> round(levina_bickel(line).item(), 1)
        1.0
    """
    cloud = as_cloud(x)
    if not isinstance(k, int) or not 2 <= k <= _MOST_NEIGHBOURS:
        raise ValueError(
            f"expected k from 2 to {_MOST_NEIGHBOURS}, got {k}; it counts the neighbours of each "
            "point"
        )
    cloud = resolved(cloud, k + 1)[0]
    distances = cloud_neighbours(cloud, k).distances
    log_ratios = (distances[:, -1:] / distances[:, :-1]).log()
    require_in_range(log_ratios)
    if log_ratios.max() <= TIE:
        raise UndefinedError(
            f"the distances r_1 to r_{k} are equal for each of the {cloud.n_unique} points"
        )
    # one mean over points and ranks: each point has k - 1 ratios
    return 1 / log_ratios.mean()


_FEWEST, _MOST = 3, 1024
# share of the largest ratios that TwoNN leaves out, as by default over the whole cloud
_DISCARD = 0.1
# coordinates of the neighbourhoods whose distances are computed at once
_CHUNK = 1 << 22


@nan_if_undefined
def local_dimension(x: Tensor | Cloud, *, k: int = 64, points: int = 256) -> Tensor:
    """Estimate the mean intrinsic dimension of neighbourhoods, each by TwoNN among the k nearest of
    a point.

    For each of the chosen points the k nearest neighbours, without the point itself, are a cloud of
    their own; its dimension is that of :func:`two_nn` by regression with ``discard=0.1``, the two
    nearest neighbours of each being sought among the k. The value is the mean of these estimates.
    It lies below :func:`two_nn` of the whole cloud where that has many dimensions, because an
    estimate from k points is biased lower than one from n.

    Args:
        x: as for :func:`gride`; nor are points of one group neighbours inside a neighbourhood of
            another point.
        k: number of points of a neighbourhood, 3 to 1024.
        points: number of neighbourhoods, >= 1: those of this many distinct points, at equal
            distances in their order, or of all of them if there are fewer.

    Returns:
        0-d float64 tensor on the device of ``x``, a number of dimensions > 0; NaN when undefined.
        Of points equally far from a chosen one, to 1e-10, either may be the last of its
        neighbourhood.

    Invariant as :func:`gride`, to the order of the points only where ``points`` is not smaller than
    their number. Undefined as :func:`gride`, and when one of a neighbourhood has fewer than 2
    others outside its group there, or the two nearest distances of a neighbourhood are tied
    throughout.

    Source: Ruppik, Heck, van Niekerk, Vukovic, Lin, Feng, Zibrowius, Gasic, Less is More: Local
    Intrinsic Dimensions of Contextual Language Models, arXiv 2506.01034, 2025; the estimator is
    that of Facco et al., Scientific Reports 7:12140, 2017.

    Example:
        >>> line = torch.rand(1000, 1, generator=torch.Generator().manual_seed(0)) * torch.ones(1,
        ...     8)
        >>> round(local_dimension(line).item())
        1
    """
    cloud, members = neighbourhoods(x, k, points)
    return _slopes(_sorted_log_ratios(cloud, members)).mean()


def neighbourhoods(x: Tensor | Cloud, k: int, points: int) -> tuple[Cloud, Tensor]:
    """Return the cloud without near duplicates, and the k nearest neighbours of ``points`` of its
    distinct points, (n_chosen, k) indices of distinct points, without the points themselves.
    """
    cloud = as_cloud(x)
    if not isinstance(k, int) or not _FEWEST <= k <= _MOST:
        raise ValueError(
            f"expected k from {_FEWEST} to {_MOST}, got {k}; it counts the points of a "
            "neighbourhood"
        )
    if not isinstance(points, int) or points < 1:
        raise ValueError(f"expected points >= 1, got {points}; it counts the neighbourhoods")
    cloud = resolved(cloud, k + 1)[0]
    n_chosen = min(points, cloud.n_unique)
    chosen = torch.arange(n_chosen, device=cloud.x.device) * cloud.n_unique // n_chosen
    return cloud, cloud_neighbours(cloud, k, chosen).indices


def _sorted_log_ratios(cloud: Cloud, members: Tensor) -> Tensor:
    """Return log(r2 / r1) of each point among those of its row, (n, k) float64, ascending along
    each row.
    """
    (n, k), ratios, n_lonely = members.shape, [], 0
    for rows in members.split(max(1, _CHUNK // (k * cloud.x.shape[1]))):
        first, second = _direct_distances(cloud, rows).topk(2, largest=False).values.unbind(2)
        n_lonely += second.isinf().any(1).sum()
        ratios.append((second / first).log())
    if n_lonely:
        raise UndefinedError(
            f"in {n_lonely} of {n} neighbourhoods a point has fewer than 2 others outside its group"
        )
    log_ratios = torch.cat(ratios)
    require_in_range(log_ratios)
    return log_ratios.sort(1).values


def _direct_distances(cloud: Cloud, members: Tensor) -> Tensor:
    """Return the distances among sets of distinct points, (n_sets, k) indices: (n_sets, k, k)
    float64, infinite of a point and itself and of points of one group."""
    points, groups, *_ = cloud.distinct
    near = points[members].double().mul(cloud.scale)
    # from differences of coordinates: products would cancel
    distances = torch.cdist(near, near, compute_mode="donot_use_mm_for_euclid_dist")
    distances.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    if groups is not None:
        distances.masked_fill_(groups[members][:, :, None] == groups[members][:, None], torch.inf)
    return distances


def _slopes(log_ratios: Tensor) -> Tensor:
    """Return the dimension of each neighbourhood, (n,): the slope of -log(1 - i / k) on its i-th
    smallest ratio.
    """
    n, k = log_ratios.shape
    x = log_ratios[:, : n_kept_of(k, _DISCARD)]
    if n_tied := int((x[:, -1] <= TIE).sum()):
        raise UndefinedError(
            f"in {n_tied} of {n} neighbourhoods the two nearest distances are equal for each point "
            "used"
        )
    y = -torch.log1p(-torch.arange(1, x.shape[1] + 1, dtype=torch.float64, device=x.device) / k)
    return (x @ y) / x.square().sum(1)


# numbers of disjoint subsets that the points are divided into
_DIVISIONS = (1, 2, 4, 8)
# points of the smallest subsets
_FEWEST_POINTS = 8


@nan_if_undefined
def ph_dimension(x: Tensor | Cloud, *, points: int = 512, alpha: float = 1.0) -> Tensor:
    """Estimate the persistent-homology dimension of degree 0 of a cloud.

    Components of the cloud merge at the lengths of the edges of its minimum spanning tree. For m
    points of a d-dimensional set, the sum of these lengths to the power alpha grows as ``m**((d -
    alpha) / d)``. The sums are taken over trees of all N points and of N / 2, N / 4 and N / 8 of
    them, averaged over 2, 4 and 8 disjoint subsets; with s the least-squares slope of the logarithm
    of the sum on log(m), the estimate is ``alpha / (1 - s)``.

    The N points are the first ``points`` distinct ones, rounded down to a multiple of 8; a subset
    takes every second, fourth or eighth of them. Nothing is random.

    Args:
        x: as for :func:`gride`; points of one group are never joined by an edge.
        points: largest number of points, >= 64. Time and memory grow with its square.
        alpha: power of the lengths, > 0.

    Returns:
        0-d float64 tensor on the device of ``x``, a number of dimensions > 0; NaN when undefined.

    Invariant as :func:`gride`, but not to the order of the points.
    Undefined when the points contain NaN or inf, when fewer than 64 of them differ, when all points
    of a subset are of one group, when the sum grows as fast as the number of points, or when
    distances leave the range of float64.

    Source: Schweinhart, Fractal dimension and the persistent homology of random geometric
    complexes, Advances in Mathematics 372, 2020; for language models Tulchinskii et al., Intrinsic
    Dimension Estimation for Robust Detection of AI-Generated Texts, NeurIPS 36, 2023. That lengths
    of a minimum spanning tree grow so is Steele's theorem, Annals of Probability 16:1767, 1988.
    Estimates of high dimensions are biased low.

    Example:
        >>> line = torch.rand(1000, 1, generator=torch.Generator().manual_seed(0)) * torch.ones(1,
        ...     8)
        >>> round(ph_dimension(line).item())
        1
    """
    cloud = as_cloud(x)
    fewest = _FEWEST_POINTS * _DIVISIONS[-1]
    if not isinstance(points, int) or points < fewest:
        raise ValueError(
            f"expected points >= {fewest}, got {points}; the smallest trees have an eighth of them"
        )
    if not 0 < alpha < math.inf:
        raise ValueError(
            f"expected a finite alpha > 0, got {alpha}; it is the power of the lengths"
        )
    cloud = resolved(cloud, fewest)[0]
    n = min(points, cloud.n_unique) // _DIVISIONS[-1] * _DIVISIONS[-1]
    distances = _direct_distances(cloud, torch.arange(n, device=cloud.x.device)[None])[0]
    sums = torch.stack([_mean_sum(distances, division, alpha) for division in _DIVISIONS])
    if not bool((sums.isfinite() & (sums > 0)).all()):
        raise UndefinedError(
            "a subset of the points is all of one group, or distances leave the range of float64"
        )
    slope = _slope(sums.new_tensor([n // division for division in _DIVISIONS]).log(), sums.log())
    if (power := slope.item()) >= 1:
        raise UndefinedError(
            f"the sum of the lengths grows with power {power:.3g} of the number of points, not "
            "below 1"
        )
    return alpha / (1 - slope)


def _mean_sum(distances: Tensor, division: int, alpha: float) -> Tensor:
    """Return the mean over disjoint subsets of the sum of the tree's lengths to the power alpha,
    0-d float64.
    """
    subsets = torch.stack(
        [distances[start::division, start::division] for start in range(division)]
    )
    return _tree_lengths(subsets).pow(alpha).sum(1).mean()


def _tree_lengths(distances: Tensor) -> Tensor:
    """Return the lengths of the edges of minimum spanning trees, (n_trees, m - 1), by Prim's
    algorithm; of distances (n_trees, m, m), inf where no edge may be."""
    tree = torch.arange(len(distances), device=distances.device)
    # all trees grow by one point a step, each from its point 0; ``to_tree`` is the distance of each
    # point to its tree
    to_tree = distances[:, 0].clone()
    is_in_tree = torch.zeros_like(distances[:, 0], dtype=torch.bool)
    is_in_tree[:, 0] = True
    lengths = []
    for _ in range(distances.shape[1] - 1):
        length, nearest = to_tree.masked_fill(is_in_tree, torch.inf).min(1)
        lengths.append(length)
        is_in_tree[tree, nearest] = True
        to_tree = torch.minimum(to_tree, distances[tree, nearest])
    return torch.stack(lengths, 1)


def _slope(x: Tensor, y: Tensor) -> Tensor:
    centred = x - x.mean()
    return (centred @ y) / (centred @ centred)

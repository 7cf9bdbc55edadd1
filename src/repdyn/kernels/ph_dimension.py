"""Persistent-homology dimension, from the growth of minimum spanning trees with the number of points."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud, full_precision, unit_scale
from repdyn.kernels.neighbours import resolved
from repdyn.kernels.undefined import Undefined, nan_if_undefined

# numbers of disjoint subsets that the points are divided into
_DIVISIONS = (1, 2, 4, 8)
# points of the smallest subsets
_FEWEST = 8


@nan_if_undefined
def ph_dimension(x: Tensor | Cloud, groups: Tensor | None = None, *, points: int = 512, alpha: float = 1.0) -> Tensor:
    """Estimate the persistent-homology dimension of degree 0 of a point cloud.

    Components of the cloud merge at the lengths of the edges of its minimum spanning tree. For m points of a
    d-dimensional set, the sum of these lengths to the power alpha grows as ``m**((d - alpha) / d)``. The sums are taken
    over trees of all N points and of N / 2, N / 4 and N / 8 of them, averaged over 2, 4 and 8 disjoint subsets; with s
    the least-squares slope of the logarithm of the sum on log(m), the estimate is ``alpha / (1 - s)``.

    The N points are the first ``points`` distinct ones, rounded down to a multiple of 8; a subset takes every second,
    fourth or eighth of them. Nothing is random.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        groups: integers, shape (n_vectors,): points of one group are never joined by an edge (see ``Cloud``, which
            takes them itself).
        points: largest number of points, >= 64. Time and memory grow with its square.
        alpha: power of the lengths, > 0.

    Returns:
        0-d float64 tensor on the device of ``x``, a number of dimensions > 0; NaN when undefined.

    Raises:
        ValueError: for another shape or dtype, or for ``points`` or ``alpha`` out of range.

    Invariant to translation, rotation, uniform scaling, repetition of the points, columns of zeros and names of the
    groups; not to the order of the points.
    Undefined when the points contain NaN or inf, when fewer than 64 of them differ, when all points of a subset are of
    one group, when the sum grows in proportion to the number of points or faster, or when distances leave the range of
    float64.

    Source: Schweinhart, Fractal dimension and the persistent homology of random geometric complexes, Advances in
    Mathematics 372, 2020; for language models Tulchinskii et al., Intrinsic Dimension Estimation for Robust Detection
    of AI-Generated Texts, NeurIPS 36, 2023. That lengths of a minimum spanning tree grow so is Steele's theorem, Annals
    of Probability 16:1767, 1988. Estimates of high dimensions are biased low.

    Example:
        >>> line = torch.rand(1000, 1, generator=torch.Generator().manual_seed(0)) * torch.ones(1, 8)
        >>> round(ph_dimension(line).item())
        1
    """
    cloud = as_cloud(x, groups)
    fewest = _FEWEST * _DIVISIONS[-1]
    if not isinstance(points, int) or points < fewest:
        raise ValueError(f"expected points >= {fewest}, got {points}; the smallest trees have an eighth of them")
    if not 0 < alpha < math.inf:
        raise ValueError(f"expected a finite alpha > 0, got {alpha}; it is the power of the lengths")
    cloud = resolved(cloud)
    if cloud.n_unique < fewest:
        raise Undefined(f"{cloud.n_unique} distinct of {cloud.n_vectors} points, at least {fewest} needed")
    n = min(points, cloud.n_unique) // _DIVISIONS[-1] * _DIVISIONS[-1]
    with full_precision(cloud.x.device):
        distances = _distances(cloud, n)
        sums = torch.stack([_mean_sum(distances, division, alpha) for division in _DIVISIONS])
        if not bool((sums.isfinite() & (sums > 0)).all()):
            raise Undefined("a subset of the points is all of one group, or distances leave the range of float64")
        slope = _slope(sums.new_tensor([n // division for division in _DIVISIONS]).log(), sums.log())
        if (power := slope.item()) >= 1:
            raise Undefined(f"the sum of the lengths grows with power {power:.3g} of the number of points, not below 1")
        return alpha / (1 - slope)


def _distances(cloud: Cloud, n: int) -> Tensor:
    """Return the distances between the first n distinct points, (n, n) float64, inf where no edge may be."""
    taken = cloud.distinct[:n].double() * unit_scale(cloud.x)
    # from differences of coordinates: products would cancel
    distances = torch.cdist(taken, taken, compute_mode="donot_use_mm_for_euclid_dist")
    if cloud.distinct_groups is not None:
        groups = cloud.distinct_groups[:n]
        distances.masked_fill_(groups[:, None] == groups, torch.inf)
    return distances.fill_diagonal_(torch.inf)


def _mean_sum(distances: Tensor, division: int, alpha: float) -> Tensor:
    """Return the mean over disjoint subsets of the sum of the tree's lengths to the power alpha, 0-d float64."""
    subsets = torch.stack([distances[start::division, start::division] for start in range(division)])
    return _tree_lengths(subsets).pow(alpha).sum(1).mean()


def _tree_lengths(distances: Tensor) -> Tensor:
    """Return the lengths of the edges of minimum spanning trees, (n_trees, m - 1), by Prim's algorithm.

    Args:
        distances: (n_trees, m, m), inf where no edge may be.
    """
    tree = torch.arange(len(distances), device=distances.device)
    to_tree, is_in_tree = distances[:, 0].clone(), torch.zeros_like(distances[:, 0], dtype=torch.bool)
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

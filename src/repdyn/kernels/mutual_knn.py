"""Overlap of the nearest neighbours of the same tokens in two point clouds."""

from __future__ import annotations

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud, full_precision
from repdyn.kernels.matched import require_matched
from repdyn.kernels.neighbours import cloud_neighbours
from repdyn.kernels.undefined import Undefined, nan_if_undefined

_MOST = 63
# relative difference up to which two distances count as equal: ten times the accuracy of the neighbour search
_TIE = 1e-9
# tokens whose neighbours are compared at once
_ROWS = 4096


@nan_if_undefined
def mutual_knn(a: Tensor | Cloud, b: Tensor | Cloud, *, k: int = 10, calibrated: bool = True) -> Tensor:
    """Compute the share of common tokens among each token's k nearest neighbours in two clouds, calibrated by chance.

    With N_a(i), N_b(i) the k nearest neighbours of token i, the overlap is ``mean_i(|N_a(i) & N_b(i)|) / k``. If those
    of b were k tokens at random, out of the m_i that may be neighbours of i, its expectation would be
    ``chance = mean_i(k / m_i)``; calibrated, the value is ``(overlap - chance) / (1 - chance)``.

    Without groups m_i = n - 1, and ``chance`` is the exact mean of the overlap over all permutations of the rows of b.
    With groups, m_i leaves out the own group of i; for groups of equal size ``chance`` is the exact mean over all
    permutations that keep groups together. A permutation across groups would pair a token with neighbours from its own
    group, which neither cloud allows, and thus understate chance.

    Args:
        a: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them, with or without groups.
        b: points of the same tokens in the same order, shape (n_vectors, any dim), with the same groups.
        k: number of neighbours, 1 to 63.
        calibrated: False gives the overlap itself, which grows with k / n for unrelated clouds.

    Returns:
        0-d float64 tensor on the device of ``a``, a pure number in [-1, 1] ([0, 1] where not calibrated): 1 for the
        same neighbours, 0 on average for unrelated clouds; NaN when undefined. Tokens whose k-th and next neighbour are
        equally far in either cloud, to 1e-9, are left out of the mean: which of them is nearer is not determined.

    Raises:
        ValueError: for another shape or dtype, other numbers of points, other groups, or another ``k``.

    Invariant to translation, rotation, uniform scaling and columns of zeros, of either alone, to the order of the
    tokens, and to names of the groups. A token whose vector equals an earlier one in either cloud is left out of both.
    Undefined when the points contain NaN or inf, when fewer than 3 of them differ, when a token has fewer than k
    and one others outside its group that are left, or when ties leave out more than half of the tokens.

    Source: Huh, Cheung, Wang, Isola, The Platonic Representation Hypothesis, ICML 2024, appendix A (the overlap, with
    k = 10). The calibration has the form of Cohen's kappa (Educational and Psychological Measurement 20:37, 1960).

    Example:
        >>> line = torch.arange(100.0)[:, None] ** 1.1
        >>> mutual_knn(line, -3 * line).item()
        1.0
    """
    a, b = as_cloud(a), as_cloud(b)
    if not isinstance(k, int) or not 1 <= k <= _MOST:
        raise ValueError(f"expected k from 1 to {_MOST}, got {k}; it counts the neighbours of each token")
    _require_same_groups(a, b)
    require_matched(Cloud.require_defined, a, b)
    with full_precision(a.x.device):
        kept = _distinct_in_both(a, b)
        a, b = _restricted(a, kept), _restricted(b, kept)
        n_possible = _n_possible(a)
        if k >= (fewest := int(n_possible.min())):
            raise Undefined(
                f"a token has {fewest} others that it could be next to, distinct in both clouds and outside its group, "
                f"at least {k + 1} needed"
            )
        (own, is_determined), (other, is_also) = (_nearest_sets(cloud, k) for cloud in (a, b))
        compared = is_determined & is_also
        if 2 * (n_compared := int(compared.sum())) < a.n_unique:
            raise Undefined(f"for {a.n_unique - n_compared} of {a.n_unique} tokens neighbours {k} and {k + 1} are tied")
        overlap = _n_shared(own[compared], other[compared]) / (k * n_compared)
        if not calibrated:
            return overlap
        chance = (k / n_possible[compared].double()).mean()
        return (overlap - chance) / (1 - chance)


def _require_same_groups(a: Cloud, b: Cloud) -> None:
    if a.groups is b.groups:
        return
    if a.groups is None or b.groups is None or not torch.equal(a.groups, b.groups):
        raise ValueError(
            "expected both clouds to have the same groups, row by row, or none; give the groups of one to the other"
        )


def _distinct_in_both(a: Cloud, b: Cloud) -> Tensor | None:
    """Return the rows that are the first of their kind in both clouds, ascending; None if all are."""
    if a.repeats is None and b.repeats is None:
        return None
    is_first = torch.zeros(2, a.n_vectors, dtype=torch.bool, device=a.x.device)
    for mask, cloud in zip(is_first, (a, b), strict=True):
        mask[... if cloud.repeats is None else cloud.repeats.first] = True
    return is_first.all(0).nonzero().flatten()


def _restricted(cloud: Cloud, kept: Tensor | None) -> Cloud:
    """Return the cloud of these rows; the cloud itself if they are its distinct ones."""
    if kept is None or len(kept) == cloud.n_unique:  # whose neighbours may be known
        return cloud
    return Cloud(cloud.x[kept], groups=None if cloud.groups is None else cloud.groups[kept])


def _n_possible(cloud: Cloud) -> Tensor:
    """Return for each distinct point the number of others outside its group, (n_unique,) int64."""
    groups = cloud.distinct_groups
    if groups is None:
        return torch.full((cloud.n_unique,), cloud.n_unique - 1, device=cloud.x.device)
    _, group, sizes = groups.unique(return_inverse=True, return_counts=True)
    return cloud.n_unique - sizes[group]


def _nearest_sets(cloud: Cloud, k: int) -> tuple[Tensor, Tensor]:
    """Return the k nearest neighbours, (n_unique, k) indices, and whether the next one is farther, (n_unique,) bool."""
    distances, indices = cloud_neighbours(cloud, k + 1)
    return indices[:, :k], distances[:, k] > distances[:, k - 1] * (1 + _TIE)


def _n_shared(neighbours: Tensor, others: Tensor) -> Tensor:
    """Return how many entries of each row are in the same row of the other, 0-d float64; both (n, k)."""
    pairs = zip(neighbours.split(_ROWS), others.split(_ROWS), strict=True)
    return torch.stack([(own[:, :, None] == other[:, None]).sum() for own, other in pairs]).sum().double()

"""How alike two clouds of the same tokens are by neighbours alone: :func:`mutual_knn`,
:func:`information_imbalance`, and :func:`token_imbalance` against the identity of the tokens.
"""

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud
from repdyn.kernels.cosines import matched
from repdyn.kernels.kernel import UndefinedError, nan_if_undefined
from repdyn.kernels.neighbours import cloud_neighbours, resolved
from repdyn.kernels.search import pair_distances

_MOST = 63
# rows whose distances to all points are held at once
_ROWS = 1024
# relative difference up to which two distances count as equal: ten times the accuracy of the
# neighbour search
_TIE = 1e-9
# relative difference of two distances, from differences of coordinates, that counts as none
_EQUAL = 1e-12


@nan_if_undefined
def mutual_knn(
    a: Tensor | Cloud, b: Tensor | Cloud, *, k: int = 10, calibrated: bool = True
) -> Tensor:
    """Compute the share of common tokens among each token's k nearest neighbours in two clouds,
    calibrated by chance.

    With N_a(i), N_b(i) the k nearest neighbours of token i, the overlap is ``mean_i(|N_a(i) &
    N_b(i)|) / k``. If those of b were k tokens at random, out of the m_i that may be neighbours of
    i, its expectation would be ``chance = mean_i(k / m_i)``; calibrated, the value is ``(overlap -
    chance) / (1 - chance)``.

    Without groups m_i = n - 1, and ``chance`` is the exact mean of the overlap over all
    permutations of the rows of b. With groups, m_i leaves out the own group of i; for groups of
    equal size ``chance`` is the exact mean over all permutations that keep groups together. A
    permutation across groups would pair a token with neighbours from its own group, which neither
    cloud allows, and thus understate chance.

    Args:
        a: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them, with
            or without groups.
        b: points of the same tokens in the same order, shape (n_vectors, any dim), with the same
            groups.
        k: number of neighbours, 1 to 63.
        calibrated: False gives the overlap itself, which grows with k / n for unrelated clouds.

    Returns:
        0-d float64 tensor on the device of ``a``, a pure number in [-1, 1] ([0, 1] where not
        calibrated): 1 for the same neighbours, 0 on average for unrelated clouds; NaN when
        undefined. Tokens whose k-th and next neighbour are equally far in either cloud, to 1e-9,
        are left out of the mean: which of them is nearer is not determined.

    Invariant to translation, rotation, uniform scaling and columns of zeros, of either alone, to
    the order of the tokens, and to names of the groups. A token whose vector equals an earlier one
    in either cloud is left out of both. Undefined when the points contain NaN or inf, when fewer
    than 3 of them differ, when a token has fewer than k and one others outside its group that are
    left, or when ties leave out more than half of the tokens.

    Source: Huh, Cheung, Wang, Isola, The Platonic Representation Hypothesis, ICML 2024, appendix A
    (the overlap, with k = 10). The calibration has the form of Cohen's kappa (Educational and
    Psychological Measurement 20:37, 1960).

    Example:
        >>> line = torch.arange(100.0)[:, None] ** 1.1
        >>> mutual_knn(line, -3 * line).item()
        1.0
    """
    if not isinstance(k, int) or not 1 <= k <= _MOST:
        raise ValueError(
            f"expected k from 1 to {_MOST}, got {k}; it counts the neighbours of each token"
        )
    a, b = _distinct_in_both(*_of_same_groups(a, b))
    if k >= a.n_candidates:
        raise UndefinedError(
            f"a token has {a.n_candidates} others that it could be next to, distinct in both "
            f"clouds and outside its group, at least {k + 1} needed"
        )
    nearest_in_a, is_determined_in_a = _nearest_sets(a, k)
    nearest_in_b, is_determined_in_b = _nearest_sets(b, k)
    compared = is_determined_in_a & is_determined_in_b
    n_compared = int(compared.sum())
    if 2 * n_compared < a.n_unique:
        raise UndefinedError(
            f"for {a.n_unique - n_compared} of {a.n_unique} tokens neighbours {k} and {k + 1} are "
            "tied"
        )
    # a token and its neighbour in one number, so that one call compares the sets of all tokens
    row = a.n_unique * torch.arange(n_compared, device=nearest_in_a.device)[:, None]
    is_common = torch.isin(nearest_in_a[compared] + row, nearest_in_b[compared] + row)
    overlap = is_common.sum().double() / (k * n_compared)
    if not calibrated:
        return overlap
    chance = (k / a.n_possible[compared].double()).mean()
    return (overlap - chance) / (1 - chance)


def _of_same_groups(a: Tensor | Cloud, b: Tensor | Cloud) -> tuple[Cloud, Cloud]:
    """Return both as clouds; raise ValueError for other groups or numbers of points, UndefinedError
    for no clouds.
    """
    a = as_cloud(a)
    b = as_cloud(b)
    groups, others = a.groups, b.groups
    if groups is not others and (
        groups is None or others is None or not torch.equal(groups, others)
    ):
        raise ValueError(
            "expected both clouds to have the same groups, row by row, or none; give the groups of "
            "one to the other"
        )
    matched(Cloud.require_defined, a, b)
    return a, b


def _distinct_in_both(a: Cloud, b: Cloud) -> tuple[Cloud, Cloud]:
    """Return two clouds without the tokens whose vector equals an earlier one in either."""
    remaining = a.distinct.first
    if b.n_unique < b.n_vectors:
        is_first_in_b = torch.zeros(b.n_vectors, dtype=torch.bool, device=b.x.device)
        is_first_in_b[b.distinct.first] = True
        remaining = remaining[is_first_in_b[remaining]]
    return _restricted(a, remaining), _restricted(b, remaining)


def _restricted(cloud: Cloud, remaining: Tensor) -> Cloud:
    """Return the cloud of these rows; the cloud itself if they are its distinct ones."""
    if len(remaining) == cloud.n_unique:  # whose neighbours may be known
        return cloud
    return Cloud(
        cloud.x[remaining], groups=None if cloud.groups is None else cloud.groups[remaining]
    )


def _nearest_sets(cloud: Cloud, k: int) -> tuple[Tensor, Tensor]:
    """Return the k nearest neighbours, (n_unique, k) indices, and whether the next one is farther,
    (n_unique,) bool.
    """
    distances, indices = cloud_neighbours(cloud, k + 1)
    return indices[:, :k], distances[:, k] > distances[:, k - 1] * (1 + _TIE)


@nan_if_undefined
def information_imbalance(
    a: Tensor | Cloud, b: Tensor | Cloud, *, reverse: bool = False, points: int = 2048
) -> Tensor:
    """Compute how little the distances in one cloud tell of those in another: the mean rank, in b,
    of each token's nearest neighbour in a.

    ``mean_i(2 r_i / (m_i + 1))`` with r_i the rank, 1 for the nearest, among the m_i tokens that
    may be neighbours of i; without groups ``2 / n**2 * sum_i(r_i)``. Equal distances share their
    mean rank. It has a direction: a cloud that holds all that another does and more predicts it,
    and not the other way round.

    Args:
        a, b: as for :func:`mutual_knn`.
        reverse: from b to a.
        points: largest number of tokens, >= 3, taken at equal distances in their order.

    Returns:
        0-d float64 tensor on the device of ``a``, a pure number in (0, 2): about 2 / n where a
        determines the neighbours in b, 1 on average for unrelated clouds; NaN when undefined.

    Invariant as :func:`mutual_knn`, to the order of the tokens only where ``points`` is not smaller
    than their number. Of near duplicates in either cloud one counts.
    Undefined when the points contain NaN or inf, or fewer than 3 of them differ in both clouds by
    more than rounding.

    Source: Glielmo, Zeni, Cheng, Csanyi, Laio, Ranking the information content of distance
    measures, PNAS Nexus 1, 2022, equation 2.

    Example:
        >>> x = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
        >>> [round(information_imbalance(x, x[:, :2], reverse=back).item(), 1) for back in (False,
        ...     True)]
        [0.1, 0.5]
    """
    if not isinstance(points, int) or points < 3:
        raise ValueError(f"expected points >= 3, got {points}; it counts the tokens")
    a, b = reversed(_of_same_groups(a, b)) if reverse else _of_same_groups(a, b)
    # near duplicates have no order of distances: what is left in both clouds
    remaining, also = (resolved(cloud)[1] for cloud in (a, b))
    remaining = remaining[torch.isin(remaining, also)]
    if len(remaining) > points:
        remaining = remaining[
            torch.arange(points, device=remaining.device) * len(remaining) // points
        ]
    if len(remaining) < 3:
        raise UndefinedError(f"{len(remaining)} points differ in both clouds, at least 3 needed")
    a, b = (
        Cloud(cloud.x[remaining], groups=None if cloud.groups is None else cloud.groups[remaining])
        for cloud in (a, b)
    )
    ranks = _ranks(b, cloud_neighbours(a, 1).indices[:, 0])
    return (2 * ranks / (b.n_possible + 1)).mean()


def _ranks(cloud: Cloud, others: Tensor) -> Tensor:
    """Return for each of distinct points (n,) float64 the rank by distance that another one has
    among its possible neighbours, 1 for the nearest; equal distances share their mean rank.

    A product in float64 compares the distances. Where they differ by less than its rounding, which
    is large where the cloud is wide, they are computed from the coordinates.
    """
    wide = cloud.frame.transform(cloud.x)
    squares = wide.square().sum(1)
    numbers = torch.arange(len(wide), device=wide.device)
    # of two sums of dim products, and of their factors
    relative = 8 * (wide.shape[1] + 8) * 2.0**-53
    ranks = []
    for rows in numbers.split(_ROWS):
        distances = squares[rows, None] + squares - 2 * wide[rows] @ wide.mT
        limits = distances.gather(1, others[rows, None])
        may_be = rows[:, None] != numbers
        if cloud.groups is not None:
            may_be &= cloud.groups[rows, None] != cloud.groups
        longest = torch.maximum(squares, squares[others[rows], None])
        rounding = relative * (squares[rows, None] + longest)
        is_open = ((distances - limits).abs() <= rounding) & may_be
        n_nearer = ((distances < limits) & may_be & ~is_open).sum(1)
        of_row, column = is_open.nonzero().unbind(1)
        first = rows[of_row]
        exact = pair_distances(cloud.x, first, column)
        limit = pair_distances(cloud.x, rows, others[rows])[of_row]
        is_nearer = exact < limit * (1 - _EQUAL)
        is_equal = (exact <= limit * (1 + _EQUAL)) & ~is_nearer
        n_nearer += of_row[is_nearer].bincount(minlength=len(rows))
        n_equal = of_row[is_equal].bincount(minlength=len(rows))
        # the other point is one of the equal ones
        ranks.append(n_nearer + (n_equal.double() + 1) / 2)
    return torch.cat(ranks)


@nan_if_undefined
def token_imbalance(x: Tensor | Cloud, ids: Tensor) -> Tensor:
    """Compute the information imbalance from a cloud to the identity of its tokens, of which two
    are at distance 0 if they are the same and at distance 1 if not.

    As :func:`information_imbalance`: of m_i tokens that may be neighbours of i, s_i are the same
    one. If the nearest vector is of one of these, its rank is ``(s_i + 1) / 2``, otherwise ``s_i +
    (m_i - s_i + 1) / 2``.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them, with
            or without groups.
        ids: token of each point, shape (n_vectors,), integers.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in (0, 2): small where the nearest
        vectors are those of the same token, 1 or so where they are of others; NaN when undefined.

    Invariant to translation, rotation, uniform scaling, columns of zeros and order of the points,
    and to names of tokens and groups. Of near duplicates one counts.
    Undefined when the points contain NaN or inf, or fewer than 3 of them differ by more than
    rounding.

    Source: as :func:`information_imbalance`; the distance of labels is that of Acevedo et al.,
    arXiv 2505.17101.

    Example:
        >>> x = torch.tensor([[0.0], [0.1], [5.0], [5.3]])
        >>> round(token_imbalance(x, torch.tensor([0, 0, 1, 1])).item(), 9)
        0.5
    """
    remaining, rows = resolved(as_cloud(x))
    token, groups = (
        ids.to(remaining.x.device)[rows].unique(return_inverse=True)[1],
        remaining.distinct.groups,
    )
    nearest = cloud_neighbours(remaining, 1).indices[:, 0]
    in_group = (
        token if groups is None else groups.unique(return_inverse=True)[1] * len(token) + token
    )
    alike, kind = in_group.unique(return_inverse=True, return_counts=True)[1:]
    # others of the same token that may be neighbours: not those of the own group, nor itself
    same = token.bincount()[token] - (kind[alike] if groups is not None else 1)
    rank = torch.where(
        token[nearest] == token, (same + 1) / 2, same + (remaining.n_possible - same + 1) / 2
    )
    return (2 * rank.double() / (remaining.n_possible + 1)).mean()

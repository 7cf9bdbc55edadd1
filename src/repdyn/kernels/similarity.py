"""How alike two clouds of the same tokens are.

- By all similarities: :func:`linear_cka`; by the best rotation: :func:`procrustes_distance`.
- By neighbours alone: :func:`mutual_knn`, :func:`information_imbalance`, and
  :func:`token_imbalance` against the identity of the tokens.
- By the best linear map, from a layer to the next: :func:`linearity`.
"""

from collections.abc import Iterator
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from repdyn.kernels.cloud import (
    Cloud,
    UndefinedError,
    as_cloud,
    nan_if_undefined,
    product,
    row_chunks,
)
from repdyn.kernels.cosines import COMPARED_WITH, matched, require_numbers
from repdyn.kernels.neighbours import cloud_neighbours, pair_distances, resolved

# total dimension of both clouds, relative to the number of points, up to which products of features
# are cheaper
_FEW_FEATURES = 0.25
# points up to which similarities are computed in float64: if a few of them are huge, float32 has an
# error of 1e-3 for five points, 1e-5 for five hundred
_FEW_POINTS = 1024
# length of the longest point, in those of the median, from which on float32 loses the sixth digit
_HUGE = 300
# rows that are multiplied at once, to features and to similarities
_ROWS, _BLOCK = 1024, 256
# similarities below this share of the points' squared lengths are rounding errors
_NEGLIGIBLE = 1e-6


@nan_if_undefined
def linear_cka(a: Tensor | Cloud, b: Tensor | Cloud, *, debiased: bool = True) -> Tensor:
    """Compute linear centred kernel alignment: how the similarities within one cloud correlate with
    another's.

    ``HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L))`` with ``K = A A.T`` and ``L = B B.T``. Debiased,
    HSIC is the unbiased estimate: without the diagonals, and centred so that it is zero on average
    for independent clouds. Otherwise it is ``|A.T B|**2`` of the centred points, which for such
    clouds is about ``d / (n + d)``.

    Args:
        a: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        b: points of the same tokens in the same order, shape (n_vectors, any dim).
        debiased: compare across numbers of points and dimensions; False gives the published form of
            2019.

    Returns:
        0-d float64 tensor on the device of ``a``, a pure number in [-1, 1] ([0, 1] where not
        debiased), 1 for the same cloud rotated, shifted or scaled; NaN when undefined. Accurate to
        1e-6, to 1e-12 for float64 points.

    Invariant to translation, rotation, uniform scaling and columns of zeros, of either alone, and
    to the order of the tokens. Not to other linear maps: directions count by their variance, so
    that a few large ones decide. Undefined when the points contain NaN or inf, when fewer than 3 of
    them differ, or fewer than 4 are given; debiased also when no two points of a cloud are more
    alike than any other two.

    Source: Kornblith, Norouzi, Lee, Hinton, Similarity of Neural Network Representations Revisited,
    ICML 2019; the estimate of HSIC is equation 5 of Song, Smola, Gretton, Bedo, Borgwardt, JMLR 13,
    2012, in the form of inner products of U-centred matrices (Székely, Rizzo, Annals of Statistics
    42, 2014). Why it is the default: Murphy, Zylberberg, Fyshe, Correcting Biased Centered Kernel
    Alignment Measures, arXiv 2405.01012, 2024.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> turned = square @ torch.tensor([[0.0, 3.0], [-3.0, 0.0]]) + 7
        >>> round(linear_cka(square, turned).item(), 9)
        1.0
        >>> round(linear_cka(square, square[:, :1], debiased=False).item(), 6)
        0.707107
    """
    a, b = matched(Cloud.require_defined, a, b)
    if a.n_vectors < 4:
        raise UndefinedError(f"{a.n_vectors} points, at least 4 needed")
    few = a.x.shape[1] + b.x.shape[1] <= _FEW_FEATURES * a.n_vectors
    if few or a.n_vectors <= _FEW_POINTS or _has_huge_points(a) or _has_huge_points(b):
        x, y = Cloud(a.x.double()).centred, Cloud(b.x.double()).centred
    else:
        x, y = a.centred, b.centred
    products = _by_features if few else _by_similarities
    hsic_x, common, other = products(x, y, debiased)
    for prefix, similarity, points in (("", hsic_x, x), (COMPARED_WITH, other, y)):
        # nothing is left of the squared lengths: rounding would be divided by rounding
        if (
            similarity
            <= (_NEGLIGIBLE * torch.linalg.vector_norm(points, dtype=torch.float64).square()) ** 2
        ):
            raise UndefinedError(f"{prefix}no two points are more alike than any other two")
    return (common / hsic_x.sqrt() / other.sqrt()).clamp(-1, 1)


def _has_huge_points(cloud: Cloud) -> bool:
    """Return whether a point is so much longer than most, as an attention sink may be, that the
    rounding of its similarities in float32 hides what the others have in common.
    """
    lengths = torch.linalg.vector_norm(cloud.centred, dim=1)
    return bool(lengths.max() > _HUGE * lengths.median())


def _by_features(x: Tensor, y: Tensor, debiased: bool) -> Tensor:
    """Return <K, K>, <K, L> and <L, L> of the centred matrices of similarities, (3,) float64.

    ``<A A.T, B B.T> = |A.T B|**2``; what the diagonals and the centring take away is known from
    sums over the points.
    """
    n = len(x)
    per_row, in_all = (n - 2, (n - 1) * (n - 2)) if debiased else (n, n**2)
    of_x, of_y = ((points, _squares(points), _sums(points, debiased)) for points in (x, y))
    products = []
    for (these, squares, sums), (another, others, other_sums) in (
        (of_x, of_x),
        (of_x, of_y),
        (of_y, of_y),
    ):
        features = torch.zeros(
            these.shape[1], another.shape[1], dtype=torch.float64, device=x.device
        )
        for rows, other_rows in zip(these.split(_ROWS), another.split(_ROWS), strict=True):
            features.addmm_(rows.double().mT, other_rows.double())
        diagonal = squares @ others if debiased else 0.0
        centring = sums.sum() * other_sums.sum() / in_all - 2 / per_row * (sums @ other_sums)
        products.append(features.square().sum() - diagonal + centring)
    return torch.stack(products)


def _by_similarities(x: Tensor, y: Tensor, debiased: bool) -> Tensor:
    """Return the same as :func:`_by_features`, from blocks of rows of the matrices on and above the
    diagonal.
    """
    n = len(x)
    per_row, in_all = (n - 2, (n - 1) * (n - 2)) if debiased else (n, n**2)
    sums = (_sums(points, debiased) for points in (x, y))
    # subtracted from each row and each column, these make all sums zero
    offsets = [of_rows / per_row - of_rows.sum() / (2 * in_all) for of_rows in sums]
    totals = torch.zeros(3, dtype=torch.float64, device=x.device)
    for start in range(0, n, _BLOCK):
        similarities_x, other = (
            product(points[start : start + _BLOCK], points[start:])
            .double()
            .sub_(offset[start : start + _BLOCK, None])
            .sub_(offset[start:])
            for points, offset in zip((x, y), offsets, strict=True)
        )
        if debiased:
            similarities_x.diagonal().zero_()
            other.diagonal().zero_()
        side = len(similarities_x)
        for number, (factor, another) in enumerate(
            ((similarities_x, similarities_x), (similarities_x, other), (other, other))
        ):
            # blocks off the diagonal count twice, for their mirror images
            square = factor[:, :side].flatten() @ another[:, :side].flatten()
            totals[number] += 2 * (factor.flatten() @ another.flatten()) - square
    return totals


def _squares(points: Tensor) -> Tensor:
    """Return the diagonal of the similarities, (n,) float64."""
    return torch.cat([rows.double().square().sum(1) for rows in row_chunks(points)])


def _sums(points: Tensor, debiased: bool) -> Tensor:
    """Return the sum of each row of the similarities, (n,) float64; debiased, without the
    diagonal.
    """
    total = sum((rows.double().sum(0) for rows in row_chunks(points)), torch.zeros(()))
    sums = torch.cat([rows.double() @ total for rows in row_chunks(points)])
    return sums - _squares(points) if debiased else sums


@nan_if_undefined
def procrustes_distance(a: Tensor | Cloud, b: Tensor | Cloud) -> Tensor:
    """Compute the squared distance between two clouds after the rotation that brings them closest
    to each other.

    ``min_R |A - B R|**2 = 2 - 2 * nuclear_norm(A.T B)``, with A and B centred and divided by their
    Frobenius norms, and R orthogonal.

    Args:
        a, b: as for :func:`linear_cka`. The narrower cloud counts as if it had columns of zeros.

    Returns:
        0-d float64 tensor on the device of ``a``, a pure number in [0, 2]: 0 for the same cloud
        rotated, shifted or scaled, 2 where no coordinate of one correlates with one of the other;
        NaN when undefined. The error is below 1e-12. Unrelated clouds lie below 2, the more so the
        more dimensions they have for their points.

    Invariant to translation, rotation, reflection, uniform scaling and columns of zeros, of either
    alone, to the order of the tokens, and to the order of the clouds. Its square root satisfies the
    triangle inequality. Undefined when the points contain NaN or inf, or fewer than 3 of them
    differ.

    Source: Ding, Denain, Steinhardt, Grounding Representation Similarity Through Statistical
    Testing, NeurIPS 34, 2021, section 2; the minimum is Schönemann's, Psychometrika 31:1, 1966.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> turned = square @ torch.tensor([[0.0, 3.0], [-3.0, 0.0]]) + 7
        >>> round(procrustes_distance(square, turned).item(), 9)
        0.0
        >>> round(procrustes_distance(square, square[:, :1]).item(), 6)
        0.585786
    """
    a, b = matched(Cloud.require_defined, a, b)
    products = torch.zeros(a.x.shape[1], b.x.shape[1], dtype=torch.float64, device=a.x.device)
    squares = torch.zeros(2, dtype=torch.float64, device=a.x.device)
    for pair in zip(a.x.split(_ROWS), b.x.split(_ROWS), strict=True):
        rows_x, other = (
            cloud.frame.transform(rows) for cloud, rows in zip((a, b), pair, strict=True)
        )
        products.addmm_(rows_x.mT, other)
        squares += torch.stack([rows_x.square().sum(), other.square().sum()])
    # one norm after the other: their product need not be representable
    correlations = torch.linalg.svdvals(products / squares[0].sqrt() / squares[1].sqrt())
    return (2 - 2 * correlations.sum()).clamp(0, 2)


_MOST = 63
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
    a, b = _of_same_groups(a, b)
    is_first = torch.zeros(a.n_vectors, dtype=torch.bool, device=a.x.device)
    is_first[b.distinct.first] = True
    remaining = (
        a.distinct.first
        if b.n_unique == b.n_vectors
        else a.distinct.first[is_first[a.distinct.first]]
    )
    a = _restricted(a, remaining)
    b = _restricted(b, remaining)
    if k >= (fewest := a.n_candidates):
        raise UndefinedError(
            f"a token has {fewest} others that it could be next to, distinct in both clouds and "
            f"outside its group, at least {k + 1} needed"
        )
    (neighbours_x, is_determined), (other, is_also) = (_nearest_sets(cloud, k) for cloud in (a, b))
    compared = is_determined & is_also
    if 2 * (n_compared := int(compared.sum())) < a.n_unique:
        raise UndefinedError(
            f"for {a.n_unique - n_compared} of {a.n_unique} tokens neighbours {k} and {k + 1} are "
            "tied"
        )
    # a token and its neighbour in one number, so that one call compares the sets of all tokens
    row = a.n_unique * torch.arange(n_compared, device=neighbours_x.device)[:, None]
    overlap = torch.isin(neighbours_x[compared] + row, other[compared] + row).sum().double() / (
        k * n_compared
    )
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


Of: TypeAlias = Literal["state", "step"]

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

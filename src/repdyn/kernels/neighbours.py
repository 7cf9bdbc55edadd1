"""Exact nearest-neighbour search by matrix products.

A matrix product gives all squared distances as |x|^2 + |y|^2 - 2 x.y, as fast as the device can
multiply, but with rounding errors that grow with the norms: of two near points nothing is left.
So products only *choose* candidates; distances are computed from the coordinates of the candidates
(:func:`pair_distances`), and a bound on the product's rounding *proves* for each point that no
other point can be nearer (a certificate). Points without a proof are searched again with more
candidates, at last with all. There are three searches of this kind:

- :func:`nearest_neighbours`, of all points: candidates by a product in low precision
  (:mod:`repdyn.kernels.candidates`);
- :func:`neighbours_of`, of some points, and of those that the first has left open: by a float64
  product, proven by :func:`_is_proven`;
- :mod:`repdyn.kernels.few_launches`, on an accelerator, by few operations.

:func:`cloud_neighbours` is the way in: it searches once for each cloud. :func:`resolved` takes near
duplicates out, whose distances mean nothing. The kernels at the end are shares of such points.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from repdyn.kernels import few_launches
from repdyn.kernels.candidates import find_candidates
from repdyn.kernels.cloud import (
    RESOLUTION,
    Cloud,
    Distinct,
    Frame,
    UndefinedError,
    in_full_precision,
    nan_if_undefined,
    row_chunks,
    unit_scale,
)

# candidates per row beyond k, tried in turn; the last try computes all distances and needs no proof
_N_EXTRA = (30, 1022, None)
_ROUNDOFF = 2.0**-53
# rows of the distance matrix held at a time in float64
_TILE = 512
# No bound distinguishes a point tied with the last neighbour from a nearer one. Differences below
# this are accepted, so nothing is nearer than (1 - 5e-11) r_k.
_TIE = 1e-10
_MIN_DISTANCE = few_launches.SMALLEST_DISTANCE
# coordinates gathered at a time for direct distances: they stay in the cache of a CPU, or keep an
# accelerator busy
_CPU_CHUNK = 1 << 15
_DEVICE_CHUNK = 1 << 25
# groups of at most this many points are compared pair by pair; larger ones are searched
_MAX_PAIRWISE = 64
# iterations in which the centre of a cloud moves to where most of its points are
_N_ITERATIONS = 3
# a search of single points costs this many times its share of a search of all
_MANY = 8
# neighbours beyond which most pairs would be candidates of an approximate search
_MOST_BY_CANDIDATES = 64


class Neighbours(NamedTuple):
    """The nearest neighbours of some points, by ascending distance."""

    distances: Tensor
    """float64, shape (n, k)."""
    indices: Tensor
    """int64, shape (n, k)"""


def cloud_neighbours(cloud: Cloud, k: int, rows: Tensor | None = None) -> Neighbours:
    """Return the k nearest neighbours of each distinct point of a cloud, (n_unique, k), cached.

    Args:
        cloud: the points.
        k: number of neighbours.
        rows: numbers of some distinct points, int64 (m,), of which alone the neighbours are
            returned, (m, k), not cached; None for all.

    Raises:
        UndefinedError: a point has fewer than k distinct others outside its group.
    """
    points, groups, *_ = cloud.distinct
    if k > cloud.n_candidates and groups is not None:
        raise UndefinedError(
            f"{cloud.n_candidates} of {cloud.n_unique} distinct points lie outside the largest of "
            f"the groups, at least {k} needed",
            "few_distinct",
        )
    if rows is not None:
        return neighbours_of(rows, points, k, groups=groups)
    n_shared = min(cloud.n_neighbours, cloud.n_candidates)
    if k > n_shared:
        return nearest_neighbours(points, k, groups=groups)
    if cloud.is_on_accelerator:
        cloud.once(_survey_neighbours)
    if cloud_neighbours not in cloud.results:
        cloud.results[cloud_neighbours] = nearest_neighbours(points, n_shared, groups=groups)
    distances, indices = cloud.results[cloud_neighbours]
    return Neighbours(distances[:, :k], indices[:, :k])


@in_full_precision
def resolved(cloud: Cloud, fewest: int = 3) -> tuple[Cloud, Tensor]:
    """Return the cloud with one of each set of near duplicates, for use by all estimators of
    neighbours, and which points its distinct ones are, int64; raise UndefinedError if fewer than 3
    points, or than ``fewest``, are left.

    Two points closer than the precision of their coordinates, ``RESOLUTION`` of the cloud's radius,
    have no distance that means anything. A pair of them gives two ratios without bound, and a ratio
    of 1 to every point that has both as its nearest. They may be of one group. Points that are
    joined in several steps count as one, the first of them: they are the clusters of single
    linkage.
    """
    cloud.require_defined()
    if cloud.is_on_accelerator:
        cloud.once(_survey_neighbours)
    remaining, rows = cloud.results.get(resolved, (None, cloud.distinct.first))
    remaining = remaining or cloud
    if resolved not in cloud.results:
        cluster = _clusters(cloud, RESOLUTION[cloud.x.dtype] * cloud.once(radius))
        stays = cluster == torch.arange(len(cluster), device=cluster.device)
        rows = rows[stays]
        if len(rows) < 3:
            raise UndefinedError(
                f"{len(rows)} of {cloud.n_vectors} points differ by more than the precision of "
                f"{cloud.x.dtype}, at least 3 needed",
                "few_distinct",
            )
        if len(rows) < len(stays):
            remaining = _part(cloud, stays)
        # not the cloud, which would stay in memory
        cloud.results[resolved] = ((None if remaining is cloud else remaining), rows)
    if remaining.n_unique < fewest:
        raise UndefinedError(
            f"{remaining.n_unique} distinct of {remaining.n_vectors} points, "
            f"at least {fewest} needed",
            "few_distinct",
        )
    return remaining, rows


def require_in_range(ratios: Tensor) -> None:
    """Raise UndefinedError unless all ratios of distances are finite."""
    if not ratios.isfinite().all():
        raise UndefinedError(
            "nearest-neighbour distances leave the range of float64; rescale the points"
        )


def _part(cloud: Cloud, stays: Tensor) -> Cloud:
    """Return a cloud of some of the distinct points, with their neighbours searched anew for those
    that lost one.
    """
    points, groups, *_ = cloud.distinct
    groups = None if groups is None else groups[stays]
    remaining = Cloud(points[stays], groups=groups, n_neighbours=cloud.n_neighbours)
    every = torch.arange(len(remaining.x), device=points.device)
    # what is left of distinct points is distinct: no search for duplicates
    remaining.distinct = Distinct(points=remaining.x, groups=groups, first=every, inverse=every)
    number = stays.cumsum(0) - 1
    if len(pairs := cloud.once(_pairs_in_groups)) == 1:
        left = (stays[pairs[0][0]] & stays[pairs[0][1]]).nonzero().flatten()
        first, second, distances = (each[left] for each in pairs[0])
        remaining.results[_pairs_in_groups] = [(number[first], number[second], distances)]
    k = min(remaining.n_neighbours, remaining.n_candidates)
    if k < 1:
        return remaining
    distances, indices = (neighbours[stays] for neighbours in cloud_neighbours(cloud, k))
    # a point that lost none of its neighbours keeps them: others that went were farther
    incomplete = (~stays[indices]).any(1).nonzero().flatten()
    # else the whole part is searched, when its neighbours are asked for
    if _MANY * len(incomplete) < len(indices):
        neighbours = Neighbours(distances, number[indices])
        neighbours.distances[incomplete], neighbours.indices[incomplete] = cloud_neighbours(
            remaining, k, incomplete
        )
        remaining.results[cloud_neighbours] = neighbours
    return remaining


def _clusters(cloud: Cloud, limit: float) -> Tensor:
    """Return the first member of the cluster of each distinct point: (n_unique,) int64. Points
    closer than a limit are of one cluster, and so are those that others join in several steps.

    As Boruvka's algorithm for the shortest spanning tree: the nearest point outside of each
    cluster is searched until all of them are farther than the limit.
    """
    points = cloud.distinct.points
    cluster = torch.arange(len(points), device=points.device)
    if not bool((torch.minimum(*cloud.once(nearest_by_origin)) < limit).any()):
        return cluster
    pairs = list(cloud.once(_pairs_in_groups))
    if cloud.n_candidates > 0:
        distances, indices = cloud_neighbours(cloud, 1)
        pairs.append((cluster, indices[:, 0], distances[:, 0]))
    links = [
        torch.stack([first, second])[:, distances < limit] for first, second, distances in pairs
    ]
    cluster = _joined(cluster, torch.cat(links, 1))
    # a link joins two points that have a neighbour within the limit
    close = torch.cat(links, 1).unique()
    while len(cluster[close].unique()) > 1:
        distances, indices = nearest_neighbours(points[close], 1, groups=cluster[close])
        is_link = distances[:, 0] < limit
        if not bool(is_link.any()):
            break
        cluster = _joined(cluster, torch.stack([close, close[indices[:, 0]]])[:, is_link])
    return cluster


def _joined(cluster: Tensor, links: Tensor) -> Tensor:
    """Return clusters, each by its first member, after those of linked points, (2, n_links), are
    joined.
    """
    while True:
        first = cluster[links].amin(0)
        joined = cluster
        for ends in links:
            # by the members that stand for the clusters, of which all others hear below
            joined = joined.scatter_reduce(0, cluster[ends], first, "amin")
        joined = joined[joined]
        if torch.equal(joined, cluster):
            return cluster
        cluster = joined


def nearest_by_origin(cloud: Cloud) -> tuple[Tensor, Tensor]:
    """Return the distance of each distinct point to the nearest one outside its group, and to the
    nearest one of its
    group: (n_unique,) float64, infinite where there is none."""
    outside = torch.full((cloud.n_unique,), torch.inf, dtype=torch.float64, device=cloud.x.device)
    if cloud.n_candidates > 0:
        outside = cloud_neighbours(cloud, 1).distances[:, 0]
    return _by_origin(outside, cloud.once(_pairs_in_groups))


def _pairs_in_groups(cloud: Cloud) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return pairs of distinct points of one group, with their distances: all of a small group, of
    a larger one each point with its nearest."""
    points, groups, *_ = cloud.distinct
    if groups is None:
        return []
    pairs = []
    groups, order = groups.sort(stable=True)
    _, group_index, sizes = groups.unique_consecutive(return_inverse=True, return_counts=True)
    n = len(points)
    largest = int(sizes.max())
    if largest > _MAX_PAIRWISE:
        for group in (sizes > _MAX_PAIRWISE).nonzero().flatten():
            is_member = group_index == group
            members = order[is_member]
            distances, indices = nearest_neighbours(points[members], 1)
            pairs.append((members, members[indices[:, 0]], distances[:, 0]))
    # all pairs at once, since a device is waited for at every nonzero
    left = torch.arange(n, device=points.device)
    right = left + torch.arange(1, min(_MAX_PAIRWISE, largest), device=points.device)[:, None]
    together = (
        (group_index[right.clamp(max=n - 1)] == group_index)
        & (right < n)
        & (sizes[group_index] <= _MAX_PAIRWISE)
    )
    apart, left = together.nonzero(as_tuple=True)
    first = order[left]
    second = order[left + apart + 1]
    return [*pairs, (first, second, pair_distances(points, first, second))]


def _survey_neighbours(cloud: Cloud) -> None:
    """Search at once, on an accelerator, what all estimators of neighbours need, so that the host
    waits for the device once.

    The neighbours, the pairs in groups and the radius are left in ``cloud.results``, and that there
    are no near duplicates, if so. Points whose neighbours are not proven are searched as on a CPU.
    Nothing is done where the search is too large or a group has many points.
    """
    if cloud_neighbours in cloud.results:  # of a part, which has those of the whole
        return
    points, groups, *_ = cloud.distinct
    k = min(cloud.n_neighbours, cloud.n_candidates)
    largest = cloud.n_unique - cloud.n_candidates
    is_too_large = points.numel() > few_launches.LARGEST or largest > _MAX_PAIRWISE
    if is_too_large or not 1 <= k <= _MOST_BY_CANDIDATES:
        return
    searched = few_launches.SearchedPoints(points, groups, cloud.scale)
    distances, indices, proven = searched.nearest(k, tie=_TIE)
    pairs = []
    if groups is not None and largest > 1:
        pairs.append(searched.pairs_in_groups(largest))
    by_origin = _by_origin(distances[:, 0], pairs)
    distance = _median_distance(searched.rounded)
    del searched
    limit = RESOLUTION[cloud.x.dtype] * distance / cloud.scale
    is_close = (torch.minimum(*by_origin) < limit).any()
    # one tensor, for which the host waits once
    answers = torch.stack([(~proven).sum().double(), is_close.double(), distance.double()])
    n_open, has_close, distance = answers.tolist()
    if n_open:
        rows = (~proven).nonzero().flatten()
        distances[rows], indices[rows] = neighbours_of(rows, points, k, groups=groups)
        by_origin = _by_origin(distances[:, 0], pairs)
    results = cloud.results
    results[cloud_neighbours] = Neighbours(distances, indices)
    results[_pairs_in_groups] = pairs
    results[nearest_by_origin] = by_origin
    results[radius] = distance / cloud.scale
    # a distance that is not proven is only ever too large
    if not (has_close or n_open):
        results[resolved] = None, cloud.distinct.first


def _by_origin(
    outside: Tensor, pairs: list[tuple[Tensor, Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Return distances to the nearest point outside the group, and those to the nearest one inside,
    infinite where there is none, from the pairs in groups.
    """
    inside = torch.full_like(outside, torch.inf)
    for first, second, distances in pairs:
        inside.scatter_reduce_(0, first, distances, "amin").scatter_reduce_(
            0, second, distances, "amin"
        )
    return outside, inside


def radius(cloud: Cloud) -> float:
    """Return the median distance of the distinct points from their centre: from the mean of all of
    them, then three times from the mean of the nearer half."""
    points = (
        cloud.centred if cloud.n_unique == cloud.n_vectors else cloud.centred[cloud.distinct.first]
    )
    return _median_distance(points).item() / cloud.scale


def _median_distance(points: Tensor) -> Tensor:
    """Return the median distance of points from their centre, as :func:`radius` finds it."""
    centre = points.mean(0)
    distances = points.new_empty(0)
    for iteration in range(_N_ITERATIONS + 1):
        if iteration:
            nearer = (distances <= distances.median()).to(points.dtype)
            centre = (nearer @ points) / nearer.sum()
        lengths = [torch.linalg.vector_norm(rows - centre, dim=1) for rows in row_chunks(points)]
        distances = lengths[0] if len(lengths) == 1 else torch.cat(lengths)
    return distances.median()


def nearest_neighbours(points: Tensor, k: int, *, groups: Tensor | None = None) -> Neighbours:
    """Find the k >= 1 nearest neighbours of each point; ties are broken arbitrarily.

    Args:
        points: *distinct* finite points, shape (n, dim) with n > k, any floating dtype, any origin.
        groups: integers, shape (n,), of which each point needs k others outside its own: points of
            one group are not each other's neighbours.

    Returns:
        Distances ascending along each row, in the unit of ``points``; the relative error is below
        1e-10, and a point's values do not depend on ``k``. Distances below 1e-145 of the largest
        coordinate become 0.
    """
    # groups of one exclude no pair
    if groups is not None and len(groups.unique()) == len(groups):
        groups = None
    if k > _MOST_BY_CANDIDATES:
        return neighbours_of(
            torch.arange(len(points), device=points.device), points, k, groups=groups
        )
    pairs = find_candidates(points, k, groups)
    n, first, second = len(points), pairs.first, pairs.second
    # the place of each pair among those of its point, which are sorted by score
    rank = torch.arange(len(first), device=points.device) - torch.searchsorted(first, first)
    distances = torch.full(first.shape, torch.inf, dtype=torch.float64, device=points.device)
    # The distances of the k best scores come first: they rule out most of the other pairs. All
    # selections are by numbers, because a device is waited for at every use of a mask.
    best = (rank < k).nonzero().flatten()
    distances[best] = pair_distances(points, first[best], second[best])
    reach = distances.new_zeros(n).scatter_reduce(0, first[best], distances[best], "amax")
    limit = pairs.rounded.max_score(reach * pairs.rounded.scale, slice(n))
    rest = (pairs.scores <= limit[first]).index_fill_(0, best, False).nonzero().flatten()
    distances[rest] = pair_distances(points, first[rest], second[rest])
    # a point has the same stretch of pairs before and after the sort, and so its k nearest are at
    # the places of its k best scores
    order = _nearest_first(first, second, distances)
    result = Neighbours(distances.new_full((n, k), torch.nan), first.new_zeros(n, k))
    result.distances[first[best], rank[best]] = distances[order[best]]
    result.indices[first[best], rank[best]] = second[order[best]]
    rows = (~pairs.complete).nonzero().flatten()
    if len(rows):
        result.distances[rows], result.indices[rows] = neighbours_of(rows, points, k, groups=groups)
    return result


def _nearest_first(first: Tensor, second: Tensor, distances: Tensor) -> Tensor:
    """Return the order of pairs, sorted by their first point, that sorts them by distance too, and
    pairs of one distance by their second point: by nothing that depends on a product's rounding.
    """
    order = distances.argsort()
    order = order[first[order].argsort(stable=True)]
    # ties are rare: a CPU is asked for them and spared the sorts; for a device's answer the host
    # would wait
    if distances.device.type == "cpu":
        ascending = distances[order]
        is_tied = (ascending[1:] == ascending[:-1]) & (first[1:] == first[:-1])
        if not bool((is_tied & ascending[1:].isfinite()).any()):
            return order
    order = second.argsort()
    order = order[distances[order].argsort(stable=True)]
    return order[first[order].argsort(stable=True)]


def neighbours_of(
    rows: Tensor, points: Tensor, k: int, *, groups: Tensor | None = None
) -> Neighbours:
    """Return the k nearest neighbours of some points, int64 (m,): :func:`nearest_neighbours` by
    float64 products.
    """
    result = Neighbours(
        torch.full((len(rows), k), torch.nan, dtype=torch.float64, device=points.device),
        torch.zeros(len(rows), k, dtype=torch.int64, device=points.device),
    )
    pending = torch.arange(len(rows), device=points.device)
    frame = Frame.fit(points, unit_scale(points))
    for n_extra in _N_EXTRA:
        if not len(pending):
            break
        n_candidates = len(points) - 1 if n_extra is None else min(k + n_extra, len(points) - 1)
        proven = []
        # fewer rows where each has many candidates, whose distances are held at a time
        for rows_at_once in pending.split(max(1, min(_TILE, (1 << 16) // n_candidates))):
            neighbours, is_proven = _search(
                rows[rows_at_once], points, k, n_candidates, frame, groups
            )
            result.distances[rows_at_once], result.indices[rows_at_once] = neighbours
            proven.append(is_proven)
        pending = pending[~torch.cat(proven)]
    return result


def pair_distances(points: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Compute distances between pairs of points from the original coordinates, without
    cancellation.

    A distance so small relative to the coordinates that its square loses digits becomes 0.
    """
    at_a_time = max(
        1, (_CPU_CHUNK if points.device.type == "cpu" else _DEVICE_CHUNK) // points.shape[1]
    )
    # only in float64 can squares leave the range
    scale = unit_scale(points) if points.dtype == torch.float64 else 1.0
    # written in place: results kept between the rows that are gathered would scatter the freed
    # memory of these
    result = torch.empty(first.shape, dtype=torch.float64, device=points.device)
    for a, b, target in zip(
        first.split(at_a_time), second.split(at_a_time), result.split(at_a_time), strict=True
    ):
        difference = embedding(a, points).double().sub_(embedding(b, points))
        difference = difference if scale == 1 else difference.mul_(scale)
        torch.linalg.vector_norm(difference, dim=1, out=target)
    return result.where(result > _MIN_DISTANCE, 0).div_(scale)


def _search(
    rows: Tensor,
    points: Tensor,
    k: int,
    n_candidates: int,
    frame: Frame,
    groups: Tensor | None = None,
) -> tuple[Neighbours, Tensor]:
    """Return the k nearest neighbours of some rows by a float64 product, and for which of them they
    are proven.
    """
    left = frame.transform(points[rows])
    # converted in chunks: all points in float64 would take twice the memory of the points
    # themselves
    scores = torch.cat([_scores(left, frame.transform(right)) for right in row_chunks(points)], 1)
    scores[torch.arange(len(rows), device=rows.device), rows] = torch.inf
    if groups is not None:
        scores.masked_fill_(groups[rows, None] == groups, torch.inf)
    # the column of the point itself, infinite, is the last one where nothing was left out
    values, candidates = scores.topk(n_candidates + 1, largest=False)
    first = rows.repeat_interleave(n_candidates)
    # in order of their numbers, which decides among points of one distance
    candidates, by_number = candidates[:, :-1].sort(1)
    distances = pair_distances(points, first, candidates.flatten()).view(len(rows), -1)
    # a group may leave fewer real candidates than columns
    distances.masked_fill_(values.gather(1, by_number).isinf(), torch.inf)
    ascending, order = distances.sort(dim=1, stable=True)
    nearest = ascending[:, :k]
    proven = _is_proven(
        points.shape[1], _squares(left), nearest[:, -1] * frame.scale, values[:, -1]
    )
    return Neighbours(nearest, candidates.gather(1, order[:, :k])), proven


def _is_proven(dim: int, square: Tensor, reach: Tensor, best_left_out: Tensor) -> Tensor:
    """Return True where no point that was left out can be nearer than ``reach`` (in units of the
    frame).

    Such a point y would have |y| <= Y = |x| + r, and its computed score would stay below r^2 -
    |x|^2 plus

    - the rounding of both points, which moves their distance by u (|x| + |y|);
    - the rounding of a sum of d + 1 terms in any order, gamma_(d+1) (2 |x| |y| + |y|^2), gamma_k =
      k u / (1 - k u) (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1),
      that of the squared norms, and underflow.
    """
    u = _ROUNDOFF
    norm = square.sqrt()
    span = (2 * norm + reach) * (1 + 4 * u)
    terms = (dim + 8) * u
    gamma = terms / (1 - terms) + 2 * dim * u
    rounding = gamma * span.square() + 16 * (dim + 8) * torch.finfo(torch.float64).tiny
    return best_left_out + square - rounding >= (reach + 2 * u * span).square() * (1 - _TIE)


def _scores(left: Tensor, right: Tensor) -> Tensor:
    """Return |y|^2 - 2 x.y, which orders the points y as their distances from x do."""
    return torch.addmm(_squares(right), left, right.T, alpha=-2)


def _squares(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1).square()


# Share of the radius of a cloud below which two points count as nearly the same. At initialisation
# the blocks of a byte-level encoder add so little that its 4096 vectors lie in 87 clusters, one for
# each token: 99% of them are closer than this to another one, at step 64 still 95%; in a trained
# decoder's first block, of dimension 2, 14% are. A cloud of dimension 1 counts as nearly the same
# throughout: so close do 4096 points lie on a line.
NEAR_DUPLICATE = 1e-2


@nan_if_undefined
def same_group_share(cloud: Cloud) -> Tensor:
    """Compute the share of the distinct points whose nearest other distinct point is of their own
    group.

    These are the neighbours that a dimension with groups leaves out; if the share is near 1, the
    dimension without groups would be that of the groups, not of the cloud. A tie counts for the
    other groups.

    Returns:
        0-d float64 tensor in [0, 1]; 0 for groups of one, 1 for a single group; NaN when undefined.

    Invariant to translation, rotation, uniform scaling, order of the points, columns of zeros and
    names of the groups. Undefined when the cloud has no groups, contains NaN or inf, or fewer than
    3 distinct points.
    """
    cloud.require_defined()
    if cloud.groups is None:
        raise UndefinedError("the points have no groups")
    outside, inside = cloud.once(nearest_by_origin)
    return (inside < outside).double().mean()


@nan_if_undefined
def same_label_fraction(cloud: Cloud, labels: Tensor) -> Tensor:
    """Compute the fraction of all points whose nearest neighbour, outside their group, has their
    label.

    The nearest neighbour of a point with an exact copy outside its group is this copy. Where
    several points are equally near because they are equal, one with the same label counts.

    Args:
        cloud: n points.
        labels: integers >= 0, shape (n,), such as token ids.

    Returns:
        0-d float64 tensor in [0, 1]; 0 where all labels differ; NaN when undefined.

    Invariant to translation, rotation, uniform scaling, order of the points, columns of zeros and
    names of labels and groups. Undefined when the cloud contains NaN or inf, or a point has no
    other one outside its group.
    """
    cloud.require_defined()
    # numbers from 0 on, so that a value and a label fit into one integer below
    labels = labels.unique(return_inverse=True)[1]
    if cloud.groups is None:
        # each point alone, so that it is not its own neighbour
        groups = torch.arange(cloud.n_vectors, device=labels.device)
    else:
        groups = cloud.groups.unique(return_inverse=True)[1]
    # the value of a point is the number of its distinct point: equal points have one value
    values = cloud.distinct.inverse
    has_copy = _n_outside(values, groups, values) > 0
    # the value of the nearest neighbour: an exact copy is nearer than any other point
    target = torch.where(has_copy, values, cloud_neighbours(cloud, 1).indices[values, 0])
    n_labels = int(labels.max()) + 1
    n_alike = _n_outside(values * n_labels + labels, groups, target * n_labels + labels)
    return (n_alike > 0).double().mean()


def _n_outside(kinds: Tensor, groups: Tensor, sought: Tensor) -> Tensor:
    """Return for each point how many points outside its group are of the kind that it wants, (n,)
    int64.

    Args:
        kinds: (n,) int64, the kind of each point.
        groups: (n,) int64 >= 0, the group of each point.
        sought: (n,) int64, a kind for each point.
    """
    n_groups = int(groups.max()) + 1
    n_anywhere = _n_equal(kinds, sought)
    n_inside = _n_equal(kinds * n_groups + groups, sought * n_groups + groups)
    return n_anywhere - n_inside


def _n_equal(values: Tensor, sought: Tensor) -> Tensor:
    """Return how many of the values equal each of those that are wanted."""
    ascending = values.sort().values
    last = torch.searchsorted(ascending, sought, right=True)
    return last - torch.searchsorted(ascending, sought)


@nan_if_undefined
def near_duplicate_share(cloud: Cloud) -> Tensor:
    """Compute the share of all points whose nearest other point, of any group, is an exact or a
    near duplicate.

    Near means closer than ``NEAR_DUPLICATE`` times the radius, the median distance of the distinct
    points from their centre: from the mean of all of them, then three times from the mean of the
    nearer half. This is robust to a few huge points, such as attention sinks, which would dominate
    the mean and any mean square.

    Returns:
        0-d float64 tensor in [0, 1]; NaN when undefined.

    Invariant to translation, rotation, uniform scaling, order of the points, columns of zeros and
    to groups. Undefined when the cloud contains NaN or inf, or fewer than 3 distinct points.
    """
    cloud.require_defined()
    is_near = torch.minimum(*cloud.once(nearest_by_origin)) < NEAR_DUPLICATE * cloud.once(radius)
    # of the distinct points, each counted as often as it occurs
    inverse = cloud.distinct.inverse
    return (is_near | (inverse.bincount() > 1))[inverse].double().mean()

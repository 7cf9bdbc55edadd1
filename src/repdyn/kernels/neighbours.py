"""The nearest neighbours of a cloud's points, searched once, and the cloud without near duplicates.

- :func:`cloud_neighbours` is the way in to the search of :mod:`repdyn.kernels.search`.
- :func:`resolved` takes near duplicates out, whose distances mean nothing: by pairs of one group
  (:func:`_pairs_in_groups`), by the cloud's :func:`radius`, joined in :func:`_clusters`.
- On an accelerator :func:`_survey_neighbours` finds all of this at once.
"""

import torch
from torch import Tensor

from repdyn.kernels import few_launches
from repdyn.kernels.cloud import RESOLUTION, Cloud, Distinct, Frame, row_chunks, sample
from repdyn.kernels.kernel import UndefinedError, in_full_precision
from repdyn.kernels.search import (
    MOST_BY_CANDIDATES,
    TIE,
    Neighbours,
    nearest_neighbours,
    neighbours_of,
    pair_distances,
)

# groups of at most this many points are compared pair by pair; larger ones are searched
_MAX_PAIRWISE = 64
# iterations in which the centre of a cloud moves to where most of its points are
_N_ITERATIONS = 3
# a search of single points costs this many times its share of a search of all
_MANY = 8


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
    if is_too_large or not 1 <= k <= MOST_BY_CANDIDATES:
        return
    searched = few_launches.SearchedPoints(points, groups, cloud.scale)
    distances, indices, proven = searched.nearest(k, tie=TIE)
    pairs = []
    if groups is not None and largest > 1:
        pairs.append(searched.pairs_in_groups(largest))
    by_origin = _by_origin(distances[:, 0], pairs)
    is_wide = points.dtype == torch.float64
    about_median = _about_median(points, cloud.scale) if is_wide else searched.rounded
    distance = _median_distance(about_median)
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
    points = _about_median(cloud.distinct.points, cloud.scale)
    return _median_distance(points).item() / cloud.scale


def _about_median(points: Tensor, scale: float) -> Tensor:
    """Return points times ``scale``, about the median of a sample in each coordinate: float64 for
    float64 points, otherwise float32.

    Most points are near it whatever a few huge ones do, so that rounding costs them no digits.
    """
    frame = Frame(scale, sample(points).double().mul(scale).median(0).values)
    dtype = torch.float64 if points.dtype == torch.float64 else torch.float32
    return torch.cat([frame.transform(rows).to(dtype) for rows in row_chunks(points)])


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

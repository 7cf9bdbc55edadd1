"""Shares of points whose nearest neighbour is of one kind: of the same group, with the same label,
or nearly the point itself. They say what a dimension from neighbours is a dimension of.
"""

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud
from repdyn.kernels.kernel import UndefinedError, nan_if_undefined
from repdyn.kernels.neighbours import cloud_neighbours, nearest_by_origin, radius

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

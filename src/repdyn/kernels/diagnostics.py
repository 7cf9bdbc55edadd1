"""Diagnostics of dependence between the points of a cloud, which biases nearest-neighbour dimensions.

Both are functions of a cloud, for use with ``cloud.once``; they share their neighbour search with the dimensions.
"""

from __future__ import annotations

import math

from repdyn.kernels.cloud import Cloud, full_precision
from repdyn.kernels.neighbours import nearest_in_group, nearest_outside, radius
from repdyn.kernels.undefined import Undefined

# Share of the radius of a cloud below which two points count as nearly the same. At initialisation the blocks of a
# byte-level encoder add so little that its 4096 vectors lie in 87 clusters, one for each token: 99 % of them are closer
# than this to another one, at step 64 still 95 %; in a trained decoder's first block, of dimension 2, 14 % are. A cloud
# of dimension 1 counts as nearly the same throughout: so close do 4096 points lie on a line.
NEAR_DUPLICATE = 1e-2


def same_group_share(cloud: Cloud) -> float:
    """Compute the share of the distinct points whose nearest other distinct point is of their own group.

    These are the neighbours that a dimension with groups leaves out; if the share is near 1, the dimension without
    groups would be that of the groups, not of the cloud. A tie counts for the other groups.

    Returns:
        In [0, 1]; 0 for groups of one, 1 for a single group. NaN when the cloud has no groups, contains NaN or inf, or
        fewer than 3 distinct points.

    Invariant to translation, rotation, uniform scaling, order of the points, columns of zeros and names of the groups.
    """
    if cloud.groups is None or not _is_defined(cloud):
        return math.nan
    own, other = cloud.once(nearest_in_group), cloud.once(nearest_outside)
    return (own < other).double().mean().item()


def near_duplicate_share(cloud: Cloud) -> float:
    """Compute the share of all points whose nearest other point, of any group, is an exact or a near duplicate.

    Near means closer than ``NEAR_DUPLICATE`` times the radius, the median distance of the distinct points from their
    centre: from the mean of all of them, then three times from the mean of the nearer half. This is robust to a few
    huge points, such as attention sinks, which would dominate the mean and any mean square.

    Returns:
        In [0, 1]; NaN when the cloud contains NaN or inf, or fewer than 3 distinct points.

    Invariant to translation, rotation, uniform scaling, order of the points, columns of zeros and to groups.
    """
    if not _is_defined(cloud):
        return math.nan
    with full_precision(cloud.x.device):
        nearest_any = cloud.once(nearest_outside)
        if cloud.groups is not None:
            nearest_any = nearest_any.minimum(cloud.once(nearest_in_group))
        is_near = nearest_any < NEAR_DUPLICATE * cloud.once(radius)
        if cloud.repeats is not None:
            is_near = (is_near | (cloud.repeats.inverse.bincount() > 1))[cloud.repeats.inverse]
        return is_near.double().mean().item()


def _is_defined(cloud: Cloud) -> bool:
    try:
        cloud.require_defined()
    except Undefined:
        return False
    return True

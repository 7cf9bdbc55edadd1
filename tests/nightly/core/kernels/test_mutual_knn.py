import numpy as np
import pytest
import torch
from grouped import GROUPINGS, n_outside
from hostile import HOSTILE
from pairs import INVARIANCES, after_a_block, normal, pair

from repdyn.kernels import Cloud, mutual_knn


def naive_neighbours(points, k, groups=None):
    """A set for each point, from all distances in float64."""
    x = points.double().numpy()
    neighbours = []
    for i, row in enumerate(x):
        distances = np.sqrt(((x - row) ** 2).sum(1))
        distances[i] = np.inf
        if groups is not None:
            in_own_group = groups.numpy() == groups[i].item()
            distances[in_own_group] = np.inf
        neighbours.append(set(np.argsort(distances, kind="stable")[:k].tolist()))
    return neighbours


def naive_overlap(neighbours, others, k):
    return sum(len(own & other) for own, other in zip(neighbours, others, strict=True)) / (
        k * len(neighbours)
    )


def naive(a, b, k, groups=None):
    """The overlap, and the overlap above chance."""
    overlap = naive_overlap(naive_neighbours(a, k, groups), naive_neighbours(b, k, groups), k)
    n = len(a)
    groups = torch.arange(n) if groups is None else groups
    possible = [n - (groups == of_point).sum().item() for of_point in groups]
    chance = sum(k / n_others for n_others in possible) / n
    return overlap, (overlap - chance) / (1 - chance)


def compared(a, b, groups=None, **settings):
    return mutual_knn(Cloud(a, groups=groups), Cloud(b, groups=groups), **settings).item()


# without ties, where which point counts as a neighbour is arbitrary, and without repeated points
CLOUDS = [
    *(
        "gaussian",
        "low_rank",
        "offset_3000",
        "std_500_offset_3000",
        "scale_1e-30",
        "scale_1e30",
        "d_1",
        "d_gt_n",
    ),
    *("float64_offset", "transposed", "bimodal_1000", "heavy_tail", "sinks", "rank_1"),
]


@pytest.mark.parametrize("k", [1, 10, 33])
@pytest.mark.parametrize("name", CLOUDS)
def test_sets_of_neighbours_in_float64(name, k):
    a, b = pair(name)
    overlap, calibrated = naive(a, b, k)
    assert compared(a, b, k=k) == pytest.approx(calibrated, abs=1e-12)
    assert compared(a, b, k=k, calibrated=False) == pytest.approx(overlap, abs=1e-12)


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("name", ["gaussian", "low_rank", "sinks"])
def test_neighbours_outside_of_the_group(name, grouping):
    a, b = pair(name)
    groups = GROUPINGS[grouping](len(a))
    k = min(10, n_outside(groups) - 1)
    overlap, calibrated = naive(a, b, k, groups)
    assert compared(a, b, groups, k=k) == pytest.approx(calibrated, abs=1e-12)
    assert compared(a, b, groups, k=k, calibrated=False) == pytest.approx(overlap, abs=1e-12)


@pytest.mark.parametrize("change", INVARIANCES)
@pytest.mark.parametrize("name", ["gaussian", "low_rank", "d_gt_n"])
def test_invariances(name, change):
    a = HOSTILE[name]().double()
    b = after_a_block(a)
    groups = torch.arange(len(a)) // 8
    expected = compared(a, b, groups)
    assert 0 < expected < 1
    assert compared(INVARIANCES[change](a), b, groups) == expected
    assert compared(a, INVARIANCES[change](b), groups) == expected
    assert compared(b, a, groups) == expected
    assert compared(a.flip(0), b.flip(0), groups.flip(0)) == pytest.approx(expected, rel=1e-12)
    assert compared(a, b, 1000 - 3 * groups) == expected


def test_a_token_repeated_in_either_cloud_is_left_out_of_both():
    a, b = pair("low_rank")
    more_a, more_b = (torch.cat([x, 2 * x[:40]]) for x in (a, b))
    more_a[400:420] = a[:20]  # these repeat in the first cloud, the others in the second
    more_b[420:440] = b[20:40]
    assert compared(more_a, more_b) == compared(a, b)
    groups = torch.arange(440) // 8
    assert compared(more_a, more_b, groups) == compared(a, b, groups[:400])
    # where both repeat the same, the clouds' own neighbours serve
    assert compared(torch.cat([a, a[:40]]), torch.cat([b, b[:40]])) == compared(a, b)


def test_tokens_whose_last_neighbour_is_tied_are_left_out():
    """On a line of pairs each token has one nearest neighbour, but the one in the middle of two
    pairs has two.
    """
    pairs = torch.arange(40.0)[:, None] + 0.2 * (torch.arange(40)[:, None] % 2)
    tied = torch.cat([pairs, pairs[19:21].mean(0, keepdim=True)])
    other = torch.cat([pairs + 0.01 * normal(40, 1).float(), tied[-1:] + 100])
    expected = naive_overlap(naive_neighbours(tied, 1)[:-1], naive_neighbours(other, 1)[:-1], 1)
    assert compared(tied, other, k=1, calibrated=False) == pytest.approx(expected, abs=1e-12)

"""The candidate search is never wrong about a row that it calls complete, however inaccurate its
product may be.
"""

import pytest
import torch
from grouped import GROUPINGS
from hostile import HOSTILE

from repdyn.kernels import candidates, full_precision

DTYPES = [torch.bfloat16, torch.float32]


def missed(points, k, pairs, groups=None):
    """How many complete rows lack one of their k nearest outside of their group."""
    exact = torch.cdist(
        points.double(), points.double(), compute_mode="donot_use_mm_for_euclid_dist"
    )
    exact.fill_diagonal_(torch.inf)
    if groups is not None:
        in_one_group = groups[:, None] == groups
        exact[in_one_group] = torch.inf
        assert (groups[pairs.first] != groups[pairs.second]).all()
    listed = torch.full_like(exact, torch.inf)
    listed[pairs.first, pairs.second] = exact[pairs.first, pairs.second]
    wrong = listed.topk(k, largest=False).values > exact.topk(k, largest=False).values * (1 + 1e-12)
    return int((wrong.any(1) & pairs.complete).sum())


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request, monkeypatch):
    monkeypatch.setattr(candidates, "fastest_dtype", lambda points: request.param)
    return request.param


def listed(points, k=2, groups=None):
    with full_precision("cpu"):
        return candidates.find_candidates(points, k, groups)


def in_order(groups):
    return groups.sort().values.unique_consecutive(return_inverse=True)[1]


@pytest.mark.parametrize("grouping", [None, "eights", "half_in_one", "doubling"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "name",
    ["gaussian", "low_rank", "std_500", "heavy_tail", "near_duplicates_1e-4", "bimodal_1000"],
)
def test_not_even_the_least_accurate_product_misleads(name, seed, grouping, dtype, monkeypatch):
    """Scores are moved as far as the bound on their rounding allows, in the direction that hides
    the nearest.
    """
    points = HOSTILE[name]()
    groups = None if grouping is None else in_order(GROUPINGS[grouping](len(points)))
    generator = torch.Generator().manual_seed(seed)
    exact = torch.cdist(points.double(), points.double()).fill_diagonal_(torch.inf)
    if groups is not None:
        in_one_group = groups[:, None] == groups
        exact[in_one_group] = torch.inf
    near = exact <= exact.topk(2, largest=False).values[:, -1:]
    n_points = len(points)
    update = candidates._CandidateLists.update

    def misled(self, scores, *, points, others):
        norm = self.rounded.norms
        span = (norm[others, None] + norm[points]).square() * self.rounded.gamma
        hidden = torch.zeros(norm.shape[0], norm.shape[0], dtype=torch.bool)
        hidden[:n_points, :n_points] = near.T
        direction = torch.where(
            hidden[others, points], 1.0, torch.rand(span.shape, generator=generator) * -1
        )
        scores = scores.double() + span * direction
        # rounding to the dtype of the product comes last
        update(self, scores.to(self.rounded.right.dtype), points=points, others=others)

    monkeypatch.setattr(candidates._CandidateLists, "update", misled)
    found = listed(points, groups=groups)
    assert missed(points, 2, found, groups) == 0


@pytest.mark.parametrize("n", [127, 128, 129, 1000, 1024, 1025, 5000])
def test_tiles_of_all_shapes(n, dtype):
    points = torch.randn(n, 6, generator=torch.Generator().manual_seed(n))
    pairs = listed(points)
    assert pairs.complete.float().mean() > 0.99
    assert missed(points, 2, pairs) == 0
    assert (pairs.first != pairs.second).all()
    assert pairs.second.max() < n


@pytest.mark.parametrize("k", [32, 64])
def test_many_neighbours_are_found_too(k, dtype):
    points = torch.randn(4096, 64, generator=torch.Generator().manual_seed(0))
    assert listed(points, k).complete.float().mean() > 0.99


def test_pairs_that_fell_behind_the_limit_are_dropped(monkeypatch):
    """Points in the order of their distance: each tile holds nearer ones than those before it."""
    n = 8192
    points = torch.linspace(2, 1, n).pow(20).unsqueeze(1) + 0.01 * torch.rand(
        n, 2, generator=torch.Generator()
    )
    numbers = []
    update = candidates._CandidateLists.update

    def update_and_count(self, scores, **tile):
        update(self, scores, **tile)
        numbers.append(sum(len(first) for first, _, _ in self.pairs))

    monkeypatch.setattr(candidates._CandidateLists, "update", update_and_count)
    pairs = listed(points)
    assert max(numbers) <= 64 * n
    assert missed(points, 2, pairs) == 0


def test_wide_coordinates_do_not_widen_the_margin(dtype):
    """A few coordinates of standard deviation 100 times the rest, as real models have."""
    points = torch.randn(1500, 256, generator=torch.Generator().manual_seed(0))
    points[:, [3, 77, 200]] *= 100
    pairs = listed(points)
    assert pairs.complete.all()
    assert len(pairs.first) < 12 * len(points)


def test_points_that_rounding_swallows_are_left_open(dtype):
    """Coordinates below the smallest numbers of the product: its scores are all zero."""
    points = (
        torch.randn(300, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 1e-60
    )
    points[0] = 1
    pairs = listed(points)
    assert not pairs.complete[1:].any()
    assert missed(points, 2, pairs) == 0

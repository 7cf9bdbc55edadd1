"""The path of accelerators: the values of a CPU in few operations, each row proven or searched as
there.
"""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from hostile import HOSTILE, naive_anisotropy, naive_two_nn
from pretend_cuda import PretendCuda

from repdyn.kernels import (
    Cloud,
    anisotropy,
    few_launches,
    near_duplicate_share,
    neighbours,
    same_group_share,
    same_label_fraction,
    two_nn,
)


def spread(n: int, dim: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, dim, generator=generator) * torch.linspace(1, 0.05, dim)


def windows(n: int) -> torch.Tensor:
    return torch.arange(n) // 8


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_cloud_has_its_values_by_this_path_too(name):
    points = HOSTILE[name]()
    with PretendCuda():
        on_device = points.to("cuda")
        values = anisotropy(on_device).item(), two_nn(on_device).item()
    assert values[0] == pytest.approx(naive_anisotropy(points), rel=1e-7)
    assert values[1] == pytest.approx(naive_two_nn(points), rel=1e-9)


@pytest.mark.parametrize(
    ("dim", "first", "second"),
    [(128, two_nn, anisotropy), (128, anisotropy, two_nn), (4096, two_nn, anisotropy)],
)
def test_both_default_metrics_launch_little_and_wait_rarely(dim, first, second):
    """They launched 2,460 operations of 4,096 x 128, and waited 71 times."""
    with PretendCuda() as cuda:
        cloud = Cloud(spread(4096, dim).to("cuda"), groups=windows(4096).to("cuda"))
        cuda.launches.clear()
        cuda.syncs.clear()
        first(cloud)
        second(cloud)
        assert 20 < cuda.launches.total() <= 150
        assert 1 < cuda.syncs.total() <= 5


def with_near_duplicates() -> torch.Tensor:
    points = spread(600, 96)
    points[100:140] = points[:40] * (1 + 1e-7)
    return points


def with_repeats() -> torch.Tensor:
    points = spread(600, 96)
    points[300:420] = points[:120]
    return points


GROUPED = {
    "windows": (spread(600, 96), windows(600)),
    "unequal windows": (spread(600, 96), (torch.arange(600.0) ** 0.7).long()),
    "a large window": (spread(600, 96), (torch.arange(600) - 200).clamp_min(0)),
    "windows of one": (spread(600, 96), torch.arange(600)),
    "no windows": (spread(600, 96), None),
    "near duplicates": (with_near_duplicates(), windows(600)),
    "repeats": (with_repeats(), windows(600)),
    "shuffled windows": (spread(600, 96), windows(600)[(torch.arange(600) * 7) % 600]),
    "bfloat16": (spread(600, 96).bfloat16(), windows(600)),
    "float64 far from the origin": (spread(600, 96).double() + 1e6, windows(600)),
    "two modes": (spread(600, 96) + 1000.0 * (torch.arange(600) % 2)[:, None], windows(600)),
}


def described(points: torch.Tensor, groups: torch.Tensor | None, device: str) -> list[float]:
    """Return the dimension and all that rows say on the basis of neighbours, then the anisotropy
    and its standard error, which are accurate to 1e-6.
    """
    groups = None if groups is None else groups.to(device)
    cloud = Cloud(points.to(device), groups=groups)
    labels = torch.arange(len(points)) % 7
    of_windows = windows(len(points)).to(device)
    values = [
        two_nn(cloud),
        two_nn(cloud, estimator="maximum_likelihood"),
        near_duplicate_share(cloud),
        same_label_fraction(cloud, labels.to(device)),
        two_nn.std_error(cloud, windows=of_windows),
    ]
    if groups is not None:
        values.append(same_group_share(cloud))
    values += [anisotropy(cloud), anisotropy.std_error(cloud, windows=of_windows)]
    return [value.item() for value in values]


@pytest.mark.parametrize("name", GROUPED)
def test_all_that_a_row_says_of_neighbours_is_that_of_a_cpu(name):
    points, groups = GROUPED[name]
    with PretendCuda():
        on_device = described(points, groups, "cuda")
    on_cpu = described(points, groups, "cpu")
    assert on_device[:-2] == pytest.approx(on_cpu[:-2], rel=1e-9)
    assert on_device[-2:] == pytest.approx(on_cpu[-2:], rel=1e-6)


@pytest.mark.parametrize("name", ["windows", "two modes", "no windows"])
def test_a_row_that_is_not_proven_is_searched_as_on_a_cpu(name, monkeypatch):
    """On a device whose sums are off by a tenth, almost no row can be proven."""
    points, groups = GROUPED[name]
    monkeypatch.setattr(few_launches, "_TRUNCATION", 0.1 / points.shape[1])
    searched = Mock(wraps=neighbours.neighbours_of)
    monkeypatch.setattr(neighbours, "neighbours_of", searched)
    with PretendCuda():
        on_device = described(points, groups, "cuda")
    assert len(searched.call_args_list[0].args[0]) > 100
    on_cpu = described(points, groups, "cpu")
    assert on_device[:-2] == pytest.approx(on_cpu[:-2], rel=1e-9)


def test_no_row_is_proven_whose_nearest_neighbours_were_left_out():
    """Points of which half differ by less than float32 can tell, so far from the origin they are:
    their scores are rounding alone, and their candidates any of the near points.
    """
    points = spread(400, 32).double() * 1e-6
    points[::2] += 1.0
    points[1::2] -= 1.0
    searched = few_launches.SearchedPoints(points, None, 0.5)
    distances, _, proven = searched.nearest(2, tie=1e-10)
    exact = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    exact = exact.fill_diagonal_(torch.inf).topk(2, largest=False).values
    is_right = ((distances - exact).abs() <= 1e-9 * exact).all(1)
    assert not is_right.all()
    assert not (proven & ~is_right).any()


@pytest.mark.parametrize("name", ["unequal windows", "no windows"])
def test_points_in_several_tiles_and_pieces_have_the_same_neighbours(name, monkeypatch):
    points, groups = GROUPED[name]
    searched = few_launches.SearchedPoints(points, groups, 0.25)
    pairs = [] if groups is None else [int(groups.bincount().max())]

    def results() -> list[torch.Tensor]:
        of_groups = [found for largest in pairs for found in searched.pairs_in_groups(largest)]
        return [*searched.nearest(2, tie=1e-10), *of_groups]

    whole = results()
    monkeypatch.setattr(few_launches, "_SCORES", 100 * len(points))
    monkeypatch.setattr(few_launches, "_GATHERED", 1 << 14)
    for pieces, expected in zip(results(), whole, strict=True):
        torch.testing.assert_close(pieces, expected, rtol=1e-12, atol=0.0)

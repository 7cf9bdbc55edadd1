"""Points closer than the precision of their coordinates count as one: a pair of them would decide
an estimate.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from repdyn.kernels import (
    Cloud,
    gride,
    levina_bickel,
    local_dimension,
    near_duplicate_share,
    ph_dimension,
    two_nn,
)
from repdyn.kernels.neighbours import radius, resolved

ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "two_nn": two_nn,
    "maximum_likelihood": lambda x: two_nn(x, estimator="maximum_likelihood"),
    "gride_2": lambda x: gride(x, k=2),
    "gride_8": lambda x: gride(x, k=8),
    "levina_bickel": levina_bickel,
    "local_dimension": lambda x: local_dimension(x, k=32, points=64),
    "ph_dimension": ph_dimension,
}
N, DIM = 1200, 24


def clean(dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    curved = torch.randn(N, 8, generator=generator) @ torch.randn(8, DIM, generator=generator)
    return (torch.tanh(curved / 3) + 1).to(dtype)


def with_near_duplicates(x: Tensor, share: float, noise: float) -> Tensor:
    """Append copies of the first points, each moved by a noise relative to the radius of the
    cloud.
    """
    n = int(share * N)
    direction = torch.randn(n, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    radius = (x.double() - x.double().mean(0)).norm(dim=1).median()
    moved = x[:n].double() + noise * radius * direction / DIM**0.5
    return torch.cat([x, moved.to(x.dtype)])


@pytest.mark.parametrize(
    ("dtype", "noise"), [(torch.float32, 1e-7), (torch.float32, 3e-6), (torch.float64, 3e-15)]
)
@pytest.mark.parametrize("share", [0.02, 0.5])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimate_is_that_of_the_cloud_without_them(
    name: str, share: float, dtype: torch.dtype, noise: float
):
    """2% of such pairs would take gride_2 from 9.7 to 2.7 and the likelihood of TwoNN from 10.1 to
    2.7.
    """
    x = clean(dtype)
    estimate = ESTIMATORS[name](with_near_duplicates(x, share, noise))
    expected = ESTIMATORS[name](x)
    assert estimate.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_cloud_without_them_is_used_as_it_is(name: str):
    cloud = Cloud(clean(torch.float32))
    assert resolved(cloud)[0] is cloud


def test_of_each_set_one_is_left_whatever_its_group():
    x = clean(torch.float32)
    tripled = torch.cat(
        [x, with_near_duplicates(x, 0.1, 1e-6)[N:], with_near_duplicates(x, 0.1, 2e-6)[N:]]
    )
    for groups in (None, torch.arange(len(tripled)) % N, torch.arange(len(tripled)) // 8):
        cloud = Cloud(tripled, groups=groups)
        apart, _ = resolved(cloud)
        assert torch.equal(apart.x, x)
        assert near_duplicate_share(cloud) == pytest.approx(3 * 0.1 / 1.2, abs=2e-3)


def naive_first_members(x: Tensor, limit: float) -> list[int]:
    """The first point of each connected component of all pairs closer than a limit."""
    distances = torch.cdist(x.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
    n_clusters, cluster = connected_components((distances < limit).numpy(), directed=False)
    return [int((cluster == number).argmax()) for number in range(n_clusters)]


def in_chains(x: Tensor, n_chains: int, length: int) -> Tensor:
    """Replace points by chains whose neighbours, but not whose ends, are nearly the same, all in a
    random order.
    """
    generator = torch.Generator().manual_seed(3)
    radius = (x.double() - x.double().mean(0)).norm(dim=1).median()
    limit = 64 * torch.finfo(x.dtype).eps * radius
    steps = torch.randn(n_chains, length, DIM, generator=generator, dtype=torch.float64)
    # an even and an odd pair are nearer to one another than two pairs, so that the nearest
    # neighbour of a point alone joins no chain
    size = torch.where(torch.arange(length) % 2 == 0, 0.8, 0.6)[:, None] * limit
    chains = x[:n_chains, None].double() + (steps / steps.norm(dim=2, keepdim=True) * size).cumsum(
        1
    )
    joined = torch.cat([chains.flatten(0, 1).to(x.dtype), x[n_chains:]])
    return joined[torch.randperm(len(joined), generator=generator)]


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("length", [3, 20])
def test_a_chain_of_near_duplicates_is_one_point(length: int, grouped: bool):
    """Several points of a chain were left, each beyond the limit from the others: gride_16 3.3 for
    14.8.
    """
    x = in_chains(clean(torch.float64), 120, length)
    groups = torch.arange(len(x)) // 8 if grouped else None
    cloud = Cloud(x, groups=groups)
    limit = 64 * torch.finfo(x.dtype).eps * radius(cloud)
    expected = sorted(naive_first_members(x, limit))
    assert N - 5 <= len(expected) <= N + 5
    assert resolved(cloud)[1].tolist() == expected
    apart = gride(x[expected], k=16).item()
    assert gride(x, k=16).item() == pytest.approx(apart, rel=1e-9)
    assert apart == pytest.approx(gride(clean(torch.float64), k=16).item(), rel=0.02)


@pytest.mark.parametrize("on_a_device", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_few_huge_points_make_no_duplicates_of_the_others(dtype, on_a_device, monkeypatch):
    """About a mean that they drag away, the others were equal in float32: a dimension of 7 for 40,
    and only without an accelerator.
    """
    monkeypatch.setattr(Cloud, "is_on_accelerator", on_a_device)
    generator = torch.Generator().manual_seed(0)
    most = 1e-20 * torch.randn(400, 64, dtype=dtype, generator=generator)
    huge = 1e18 * torch.randn(100, 64, dtype=dtype, generator=generator)
    cloud = Cloud(torch.cat([most, huge]))
    distances = (most.double() - most.double().mean(0)).norm(dim=1).sort().values
    assert radius(cloud) == pytest.approx(distances[250].item(), rel=0.05)
    assert len(resolved(cloud)[1]) == 500

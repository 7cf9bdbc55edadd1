"""Duplicates that count: against the published package's outputs, and its procedure written out in
float64.
"""

from pathlib import Path

import pytest
import torch
from grouped import GROUPED, GROUPINGS, n_outside
from hostile import HOSTILE
from reference.clouds import REPEATING

from repdyn.kernels import Cloud, two_nn

REFERENCE = [
    line.split()
    for line in (Path(__file__).parents[3] / "reference")
    .joinpath("llm_microscope.txt")
    .read_text()
    .splitlines()
    if not line.startswith("#")
]


def published(x, groups=None):
    return two_nn(Cloud(x, groups=groups), discard=0.8, duplicates="count").item()


def naive(points, reduction_factor=5, groups=None):
    """As llm_microscope 0.0.7 does it, but for its loop over distances and for neighbours of the
    same group.
    """
    x = points.double()
    x = x - x.mean(0)
    x = x / x.norm(dim=1).mean()
    groups = torch.arange(len(x)) if groups is None else groups
    distances = torch.stack([(x - row).square().sum(1).sqrt() for row in x])
    in_one_group = groups[:, None] == groups
    distances[in_one_group] = torch.inf
    r1, r2 = distances.topk(2, largest=False).values.unbind(1)
    mu = torch.where(r1 < 1e-8, -1, r2 / r1).sort().values
    n_useless = int((mu <= 1 + 1e-8).sum())
    mu = mu[n_useless:]
    f = torch.arange(1 + n_useless, len(mu) + 1 + n_useless) / (len(mu) + n_useless)
    assert f.dtype == torch.float32
    n_used = min(len(mu) // reduction_factor, len(mu) - 1)
    # a float32 logarithm that is correctly rounded, as torch's is on processors by Intel
    x = mu.log()[:n_used]
    y = -(1 - f).double().log().float()[:n_used]
    return float((x * y).sum() / (x * x).sum())


@pytest.mark.parametrize(
    ("package", "version", "cloud", "dimension"),
    REFERENCE,
    ids=["-".join(line[:3]) for line in REFERENCE],
)
def test_committed_outputs_of_the_package(package, version, cloud, dimension):
    assert package == "llm_microscope"
    assert version == "0.0.7"
    points = torch.from_numpy(REPEATING[cloud]())
    assert published(points) == pytest.approx(float(dimension), rel=1e-9)
    if len(points) < 4096:  # the others show as well that the procedure is that of the package
        assert naive(points) == pytest.approx(float(dimension), rel=1e-9)


# huge or tiny points: squares leave float64's range in the naive form; near ties and clusters: its
# rounding decides
WITHOUT = {
    "n_3",
    "underflowing",
    "tight_cluster",
    "float64_offset",
    "integer_grid",
    "duplicates_95_percent",
}


@pytest.mark.parametrize(
    ("name", "grouping"),
    [pair for pair in [*((name, None) for name in HOSTILE), *GROUPED] if pair[0] not in WITHOUT],
)
def test_against_the_procedure_written_out(name, grouping):
    points = HOSTILE[name]()
    groups = None if grouping is None else GROUPINGS[grouping](len(points))
    if groups is not None and n_outside(groups) < 20:
        pytest.skip("too few neighbours")
    assert published(points, groups=groups) == pytest.approx(naive(points, groups=groups), rel=1e-8)


@pytest.mark.parametrize("grouping", [None, *GROUPINGS])
@pytest.mark.parametrize("cloud", ["copies_30_percent", "triples", "near_copies_1e-10"])
def test_copies_within_groups_and_across(cloud, grouping):
    points = torch.from_numpy(REPEATING[cloud]())
    groups = None if grouping is None else GROUPINGS[grouping](len(points))
    assert published(points, groups=groups) == pytest.approx(naive(points, groups=groups), rel=1e-9)


def test_copies_of_a_points_own_group_are_no_neighbours():
    points = torch.from_numpy(REPEATING["no_copies"]()).repeat_interleave(2, 0)
    groups = torch.arange(700).repeat_interleave(2)
    assert published(points, groups=groups) == pytest.approx(
        naive(points, groups=groups), rel=1e-9, nan_ok=True
    )
    some = torch.cat([points[::2], points[:100:2]])
    groups = torch.cat([torch.arange(700), torch.arange(50)])
    assert published(some, groups=groups) == pytest.approx(naive(some, groups=groups), rel=1e-9)


@pytest.mark.parametrize("n", range(5, 60, 5))
def test_a_fifth_is_a_fifth(n):
    """In binary ``int(n * (1 - 0.8))`` is one less."""
    points = torch.from_numpy(REPEATING["n_4096"]()[:n])
    assert published(points) == pytest.approx(naive(points), rel=1e-9)
    collapsed = two_nn(points, discard=0.8)
    assert (
        collapsed.isnan() if n < 10 else collapsed.item() == pytest.approx(naive(points), rel=1e-4)
    )

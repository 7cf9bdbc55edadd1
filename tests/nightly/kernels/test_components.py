import importlib

import numpy as np
import pytest
import torch
from hostile import HOSTILE

from repdyn.kernels import Cloud, Undefined, spectrum
from repdyn.kernels.components import components

# the package exports the function under the module's name
module = importlib.import_module("repdyn.kernels.components")
SHARES = (0.5, 0.9, 0.95, 0.99)


def naive_components(points, share):
    x = points.double().numpy()
    values = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2
    held = 0
    for n, value in enumerate(values, 1):
        held += value
        if held >= share * values.sum() * (1 - 1e-10):
            return n
    raise AssertionError


@pytest.mark.slow
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", HOSTILE)
def test_counted_one_by_one_on_a_float64_svd(name, share):
    assert components(HOSTILE[name](), share=share).item() == naive_components(HOSTILE[name](), share)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian", "heavy_tail", "sinks", "d_gt_n", "n_3"])
def test_a_larger_share_takes_no_fewer_and_never_all_of_the_space(name):
    points = HOSTILE[name]()
    counts = [components(points, share=share).item() for share in np.linspace(0.001, 0.999, 50)]
    assert counts == sorted(counts)
    assert counts[0] >= 1
    assert counts[-1] <= min(len(points) - 1, points.shape[1])
    assert all(count == int(count) for count in counts)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 3, 7, 10, 30, 100])
def test_equal_directions_are_counted_exactly(dim, dtype):
    """A share that is reached exactly is reached, however sums of equal parts are rounded."""
    cross = torch.cat([torch.eye(dim, dtype=dtype), -torch.eye(dim, dtype=dtype)])
    for held in range(1, dim):
        assert components(cross, share=held / dim).item() == held


def test_directions_of_known_variance():
    arms = torch.tensor([8.0, 4.0, 2.0, 1.0, 1.0], dtype=torch.float64).sqrt().diag()
    points = torch.cat([arms, -arms])
    expected = {0.1: 1, 0.49: 1, 0.5: 1, 0.51: 2, 0.75: 2, 0.76: 3, 0.875: 3, 0.9: 4, 0.95: 5}
    assert {share: components(points, share=share).item() for share in expected} == expected
    assert components(points).item() == 1


def test_one_decomposition_serves_all_shares(monkeypatch):
    calls = []
    eigenvalues = spectrum.eigenvalues
    monkeypatch.setattr(spectrum, "eigenvalues", lambda tall: calls.append(1) or eigenvalues(tall))
    cloud = Cloud(HOSTILE["gaussian"]())
    assert len({components.or_raise(cloud, share=share).item() for share in SHARES}) == 4
    assert calls == [1]


@pytest.mark.parametrize("name", ["gaussian", "low_rank", "heavy_tail", "d_gt_n"])
def test_invariances(name):
    points = HOSTILE[name]().double()
    dim = points.shape[1]
    rotation = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).Q
    padded = torch.nn.functional.pad(points, (3, 40))
    for changed in (points * 7, points + 5, points @ rotation, points.flip(0), points.repeat(2, 1), padded):
        assert components(changed, share=0.9).item() == components(points, share=0.9).item()


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        (torch.zeros(10, 4), "1 distinct of 10 points, at least 3 needed"),
        (torch.full((10, 4), torch.inf), "the points contain inf"),
    ],
)
def test_undefined_is_nan_with_a_reason(points, reason):
    assert components(points).isnan()
    with pytest.raises(Undefined) as caught:
        components.or_raise(Cloud(points))
    assert caught.value.reason == reason

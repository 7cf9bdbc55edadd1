import numpy as np
import pytest
import torch
from hostile import HOSTILE

from repdyn.kernels.spectrum import components

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


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", HOSTILE)
def test_counted_one_by_one_on_a_float64_svd(name, share):
    assert components(HOSTILE[name](), share=share).item() == naive_components(HOSTILE[name](), share)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 3, 7, 10, 30, 100])
def test_equal_directions_are_counted_exactly(dim, dtype):
    """A share that is reached exactly is reached, however sums of equal parts are rounded."""
    cross = torch.cat([torch.eye(dim, dtype=dtype), -torch.eye(dim, dtype=dtype)])
    for held in range(1, dim):
        assert components(cross, share=held / dim).item() == held

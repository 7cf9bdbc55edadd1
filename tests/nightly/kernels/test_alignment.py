"""Alignment with the last layer: against cosines in plain numpy, and what it must and must not depend on."""

import numpy as np
import pytest
import torch
from hostile import HOSTILE
from pairs import DEVICES, NUMBERS, SCALES, normal, pair

from repdyn.kernels import Cloud, Undefined
from repdyn.kernels.cosines import alignment, alignment_gradient


def naive_cosines(x, y):
    x, y = (points.double().numpy().astype(np.longdouble) for points in (x, y))
    return (x * y).sum(1) / np.sqrt((x**2).sum(1)) / np.sqrt((y**2).sum(1))


# all but one whose points are partly at the origin
NONZERO = sorted(set(HOSTILE) - {"blocks"})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NONZERO)
def test_against_cosines_in_numpy(name, device):
    x, last = pair(name)
    found = alignment(x.to(device), last.to(device))
    assert (found.shape, found.dtype, found.device.type) == ((), torch.float64, device)
    assert found.item() == pytest.approx(float(naive_cosines(x, last).mean()), abs=1e-14)


@pytest.mark.parametrize("device", DEVICES)
def test_gradient_is_the_difference_of_alignments(device):
    x, following, last = (normal(300, 20, seed=seed).float() for seed in range(3))
    found = alignment_gradient(x.to(device), following.to(device), last.to(device))
    expected = float((naive_cosines(following, last) - naive_cosines(x, last)).mean())
    assert found.item() == pytest.approx(expected, abs=1e-15)
    assert (found.shape, found.dtype, found.device.type) == ((), torch.float64, device)


def test_vectors_of_very_different_lengths_count_alike():
    """As those of attention sinks and of all other tokens do."""
    x, last = normal(90, 20), normal(90, 20, seed=1)
    factors = 10.0 ** torch.arange(-45, 45).double()[:, None]
    assert alignment(x * factors, last).item() == pytest.approx(alignment(x, last).item(), abs=1e-14)


@pytest.mark.parametrize(("dtype", "scale"), SCALES.values(), ids=SCALES)
def test_scales_whose_squares_are_no_numbers(dtype, scale):
    x, last = normal(90, 20).to(dtype), normal(90, 20, seed=1).to(dtype)
    expected = float(naive_cosines(x, last).mean())
    assert alignment(x * scale, last).item() == pytest.approx(expected, abs=1e-6 if dtype == torch.float32 else 1e-14)


def test_zero_has_no_direction():
    with_zeros = NUMBERS * torch.tensor([1.0, 0, 1, 0, 1])[:, None]
    reason = "2 of 5 vectors are zero and have no direction"
    with pytest.raises(Undefined, match=f"^{reason}$"):
        alignment.or_raise(Cloud(with_zeros), Cloud(NUMBERS))
    with pytest.raises(Undefined, match=f"^compared with: {reason}$"):
        alignment.or_raise(Cloud(NUMBERS), Cloud(with_zeros))
    assert alignment(with_zeros, NUMBERS).isnan()

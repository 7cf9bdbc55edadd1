"""Alignment with the last layer: against cosines in plain numpy, and what it must and must not depend on."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hostile import HOSTILE
from pairs import DEVICES, NO_NUMBERS, NUMBERS, SCALES, normal, pair, rotation

from repdyn.kernels import Cloud, Undefined
from repdyn.kernels.alignment import alignment, alignment_gradient


def naive_cosines(x, y):
    x, y = (points.double().numpy().astype(np.longdouble) for points in (x, y))
    return (x * y).sum(1) / np.sqrt((x**2).sum(1)) / np.sqrt((y**2).sum(1))


# all but one whose points are partly at the origin
NONZERO = sorted(set(HOSTILE) - {"blocks"})


@pytest.mark.slow
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


def test_gradients_add_up_to_what_is_left_of_one():
    layers = [normal(50, 8, seed=seed) for seed in range(5)]
    gradients = [alignment_gradient(layer, following, layers[-1]) for layer, following in pairwise(layers)]
    assert alignment(layers[-1], layers[-1]).item() == pytest.approx(1, abs=1e-15)
    assert (alignment(layers[0], layers[-1]) + sum(gradients)).item() == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize(
    ("turn", "expected"), {"same": (1, 1), "opposite": (-1, -1)}.values(), ids=["same", "opposite"]
)
def test_bounds_are_reached_and_not_passed(turn, expected):
    x = normal(200, 33).float()
    found = alignment(x, turn * 3 * x).item()
    assert found == pytest.approx(expected, abs=1e-15)
    assert abs(found) <= 1


def test_perpendicular_layers():
    assert alignment(torch.tensor([[1.0, 0.0], [0.0, 3.0]]), torch.tensor([[0.0, 2.0], [1.0, 0.0]])).item() == 0


INVARIANCES = {
    "rotation_of_both": lambda x, y: (x @ rotation(20), y @ rotation(20)),
    "a_factor_for_each_token": lambda x, y: (x * normal(90, 1, seed=3).exp(), y * normal(90, 1, seed=4).exp()),
    "order_of_the_tokens": lambda x, y: (x.flip(0), y.flip(0)),
    "columns_of_zeros": lambda x, y: (torch.nn.functional.pad(x, (3, 4)), torch.nn.functional.pad(y, (3, 4))),
}


@pytest.mark.parametrize("change", INVARIANCES)
def test_invariances(change):
    x, last = normal(90, 20), normal(90, 20, seed=1)
    assert alignment(*INVARIANCES[change](x, last)).item() == pytest.approx(alignment(x, last).item(), abs=1e-14)


def test_a_common_offset_raises_it():
    x, last = normal(90, 20), normal(90, 20, seed=1)
    assert alignment(x + 10, last + 10).item() > 0.9 > alignment(x, last).item()


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


@pytest.mark.parametrize(("points", "reason"), NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_what_is_no_number_has_no_direction(points, reason):
    for kernel, others in ((alignment.or_raise, 1), (alignment_gradient.or_raise, 2)):
        good = [NUMBERS] * others
        with pytest.raises(Undefined, match=f"^{reason}$"):
            kernel(*map(Cloud, (points, *good)))
        for place in range(others):
            wrong = [*good[:place], points, *good[place + 1 :]]
            with pytest.raises(Undefined, match=f"^compared with: {reason}$"):
                kernel(*map(Cloud, (NUMBERS, *wrong)))
    assert alignment(points, NUMBERS).isnan()
    assert alignment_gradient(NUMBERS, NUMBERS, points).isnan()


def test_zero_has_no_direction():
    with_zeros = NUMBERS * torch.tensor([1.0, 0, 1, 0, 1])[:, None]
    reason = "2 of 5 vectors are zero and have no direction"
    with pytest.raises(Undefined, match=f"^{reason}$"):
        alignment.or_raise(Cloud(with_zeros), Cloud(NUMBERS))
    with pytest.raises(Undefined, match=f"^compared with: {reason}$"):
        alignment.or_raise(Cloud(NUMBERS), Cloud(with_zeros))
    assert alignment(with_zeros, NUMBERS).isnan()

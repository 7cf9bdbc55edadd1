"""Lengths, steps and turns from layer to layer: against plain numpy, and at scales that squares do not reach."""

import numpy as np
import pytest
import torch
from hostile import HOSTILE
from pairs import DEVICES, NUMBERS, SCALES, normal, pair
from test_alignment import NONZERO, naive_cosines

from repdyn.kernels import Cloud, Undefined
from repdyn.kernels.cosines import norm, step_cosine, step_length


def naive_norm(x):
    return np.sqrt((x.double().numpy().astype(np.longdouble) ** 2).sum(1)).mean()


def naive_step_length(x, y):
    x, y = (points.double().numpy().astype(np.longdouble) for points in (x, y))
    return np.sqrt(((y - x) ** 2).sum(1)).mean()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", HOSTILE)
def test_lengths_against_numpy(name, device):
    x, following = pair(name)
    found = norm(x.to(device)), step_length(x.to(device), following.to(device))
    assert all((one.shape, one.dtype, one.device.type) == ((), torch.float64, device) for one in found)
    assert found[0].item() == pytest.approx(float(naive_norm(x)), rel=1e-13)
    assert found[1].item() == pytest.approx(float(naive_step_length(x, following)), rel=1e-13)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NONZERO)
def test_turns_against_numpy(name, device):
    x, following = pair(name)
    found = step_cosine(x.to(device), following.to(device))
    assert found.item() == pytest.approx(float(naive_cosines(x, following).mean()), abs=1e-14)


def test_a_small_step_of_long_vectors_keeps_its_digits():
    x = normal(400, 30).float() * 1000
    moved = x.clone()
    moved[:, 0] += 0.5
    assert step_length(x, moved).item() == pytest.approx(float(naive_step_length(x, moved)), rel=1e-14)
    assert step_length(x, x).item() == 0
    assert step_cosine(x, x).item() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize(("dtype", "scale"), SCALES.values(), ids=SCALES)
def test_scales_whose_squares_are_no_numbers(dtype, scale):
    x, following = (normal(90, 20, seed=seed).to(dtype) * scale for seed in (0, 1))
    assert norm(x).item() == pytest.approx(float(naive_norm(x)), rel=1e-13)
    assert step_length(x, following).item() == pytest.approx(float(naive_step_length(x, following)), rel=1e-13)
    assert step_cosine(x, following).item() == pytest.approx(float(naive_cosines(x, following).mean()), abs=1e-14)


def test_zero_has_no_direction():
    with pytest.raises(Undefined, match="^compared with: 5 of 5 vectors are zero and have no direction$"):
        step_cosine.or_raise(Cloud(NUMBERS), Cloud(0 * NUMBERS))

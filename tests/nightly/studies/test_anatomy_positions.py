"""Positions: similarity against offset, turns of a known period, and where order ends."""

from __future__ import annotations

import math

import numpy as np
import torch

from repdyn.studies.anatomy.positions import (
    find_order_end,
    find_rotation,
    principal,
)


def helix(n=512, period=22.0, dim=32, noise=0.1, ends=None, clockwise=False, seed=0) -> torch.Tensor:
    """One turn per ``period`` positions, rising, in a rotated frame; nothing but noise of its size from ``ends`` on."""
    random = np.random.default_rng(seed)
    angle = 2 * math.pi * np.arange(n) / period * (-1 if clockwise else 1)
    points = np.stack([np.cos(angle), np.sin(angle), 3 * np.arange(n) / n], axis=1)
    if ends is not None:
        points[ends:] = random.normal(size=(n - ends, 3)) * 0.7
    frame = np.linalg.qr(random.normal(size=(dim, 3)))[0]
    return torch.from_numpy(points @ frame.T + noise * random.normal(size=(n, dim)) / math.sqrt(dim))


def test_components_are_those_of_the_covariance():
    x = np.random.default_rng(0).normal(size=(60, 9)) * np.arange(1, 10) + 5
    found = principal(torch.from_numpy(x), 4)
    values, vectors = np.linalg.eigh(np.cov(x.T))
    np.testing.assert_allclose(found.shares, values[::-1][:4] / values.sum(), rtol=1e-9)
    expected = (x - x.mean(0)) @ vectors[:, ::-1][:, :4]
    np.testing.assert_allclose(np.abs(found.scores), np.abs(expected), atol=1e-9)


def test_windows_cover_all_positions():
    turn = find_rotation(principal(helix(n=500)))
    assert turn is not None
    assert turn.windows["start"].iloc[0] == 0
    assert turn.windows["stop"].iloc[-1] == 500
    assert (turn.windows["start"].to_numpy()[1:] <= turn.windows["stop"].to_numpy()[:-1]).all()
    assert ((turn.windows["stop"] - turn.windows["start"]) == 66).all()


def test_noise_has_no_order():
    assert find_order_end(torch.from_numpy(np.random.default_rng(0).normal(size=(512, 64)))) <= 64

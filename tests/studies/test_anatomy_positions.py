"""Positions: similarity against offset, turns of a known period, and where order ends."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from repdyn.studies.anatomy.positions import (
    by_offset,
    cosine_matrix,
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


def walk(kept: float, n=512, dim=64, seed=0) -> torch.Tensor:
    """A random walk that is drawn back to the origin, more so the less is kept."""
    random, at, points = np.random.default_rng(seed), np.zeros(dim), []
    for _ in range(n):
        at = kept * at + random.normal(size=dim)
        points.append(at)
    return torch.from_numpy(np.stack(points))


# cosines and offsets


def test_cosines_of_a_circle_fall_off_as_the_cosine():
    angle = 2 * math.pi * np.arange(66) / 22
    points = torch.from_numpy(np.stack([np.cos(angle), np.sin(angle)], axis=1))
    offsets = by_offset(cosine_matrix(points))
    np.testing.assert_allclose(offsets["mean"], np.cos(2 * math.pi * offsets["offset"] / 22), atol=1e-12)
    np.testing.assert_allclose(offsets["std"], 0, atol=1e-12)
    np.testing.assert_array_equal(offsets["n"], 66 - offsets["offset"])


def test_means_by_offset_one_by_one():
    matrix = cosine_matrix(torch.from_numpy(np.random.default_rng(0).normal(size=(9, 4))))
    offsets = by_offset(matrix)
    values = np.array([matrix[place, place + 3] for place in range(6)])
    line = offsets.loc[3]
    assert line["mean"] == pytest.approx(values.mean())
    assert line["std"] == pytest.approx(values.std())
    assert (line["q05"], line["q95"]) == tuple(np.quantile(values, [0.05, 0.95]))


# principal components


def test_components_are_those_of_the_covariance():
    x = np.random.default_rng(0).normal(size=(60, 9)) * np.arange(1, 10) + 5
    found = principal(torch.from_numpy(x), 4)
    values, vectors = np.linalg.eigh(np.cov(x.T))
    np.testing.assert_allclose(found.shares, values[::-1][:4] / values.sum(), rtol=1e-9)
    expected = (x - x.mean(0)) @ vectors[:, ::-1][:, :4]
    np.testing.assert_allclose(np.abs(found.scores), np.abs(expected), atol=1e-9)


# turns


@pytest.mark.slow
@pytest.mark.parametrize("clockwise", [False, True])
@pytest.mark.parametrize("period", [22, 22.4, 5.8, 3, 60])
def test_a_helix_turns_once_per_its_period(period, clockwise):
    turn = find_rotation(principal(helix(period=period, clockwise=clockwise)))
    assert turn is not None
    assert turn.is_clear
    assert turn.period == pytest.approx(period, rel=1e-3)
    assert turn.purity > 0.99
    assert turn.ends == 512
    # a circle of radius 1 has a variance of 1, the rise from 0 to 3 one of 3/4
    assert turn.share == pytest.approx(1 / 1.75, abs=0.01)
    np.testing.assert_allclose(turn.windows["period"], period, rtol=0.05)
    assert (turn.windows["ordered"] > 0.95).all()


@pytest.mark.parametrize("n", [200, 300, 1024])
def test_a_period_of_22_at_other_lengths(n):
    turn = find_rotation(principal(helix(n=n)))
    assert turn is not None
    assert turn.period == pytest.approx(22, rel=2e-3)


@pytest.mark.parametrize("ends", [320, 384, 448])
def test_where_the_turn_ends(ends):
    turn = find_rotation(principal(helix(ends=ends)))
    assert turn is not None
    assert turn.is_clear
    assert turn.period == pytest.approx(22, rel=0.01)
    # a window of three turns, half overlapping
    assert abs(turn.ends - ends) <= 33


def test_windows_cover_all_positions():
    turn = find_rotation(principal(helix(n=500)))
    assert turn is not None
    assert turn.windows["start"].iloc[0] == 0
    assert turn.windows["stop"].iloc[-1] == 500
    assert (turn.windows["start"].to_numpy()[1:] <= turn.windows["stop"].to_numpy()[:-1]).all()
    assert ((turn.windows["stop"] - turn.windows["start"]) == 66).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "make",
    [
        lambda seed: torch.from_numpy(np.random.default_rng(seed).normal(size=(512, 64))),
        lambda seed: walk(1.0, seed=seed),
        lambda seed: walk(0.97, seed=seed),
        lambda seed: walk(0.9, seed=seed),
        lambda seed: helix(noise=0.02)[np.random.default_rng(seed).permutation(512)],
    ],
    ids=["noise", "walk", "slow walk", "fast walk", "shuffled helix"],
)
def test_what_does_not_turn_is_not_said_to(make, seed):
    turn = find_rotation(principal(make(seed)))
    assert turn is not None
    assert not turn.is_clear


@pytest.mark.parametrize("rows", [helix(n=40), torch.arange(100.0)[:, None]], ids=["short", "a line"])
def test_nothing_to_look_for_a_turn_in(rows):
    assert find_rotation(principal(rows)) is None


# order


@pytest.mark.parametrize("rows", [helix(), helix(period=3), walk(1.0), walk(0.97)], ids=["22", "3", "walk", "slow"])
def test_order_to_the_end(rows):
    assert find_order_end(rows) == 512


@pytest.mark.parametrize("ends", [128, 200, 384])
def test_where_order_ends(ends):
    assert abs(find_order_end(helix(ends=ends)) - ends) <= 24


def test_noise_has_no_order():
    assert find_order_end(torch.from_numpy(np.random.default_rng(0).normal(size=(512, 64)))) <= 64


def test_too_few_positions_for_an_order():
    with pytest.raises(ValueError, match=r"^expected at least 48 positions, got 20; too few to tell where order ends$"):
        find_order_end(helix(n=20))

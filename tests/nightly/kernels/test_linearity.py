"""Linearity: against least squares by singular values, and on layers whose linearity is known beforehand."""

import sys

import numpy as np
import pytest
import scipy.linalg
import torch
from hostile import HOSTILE
from pairs import DEVICES, SCALES, after_a_block, normal, pair, rotation
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from repdyn.kernels import Cloud, Undefined
from repdyn.kernels.similarity import linearity

MODULE = sys.modules["repdyn.kernels.similarity"]


def naive_unexplained(x, y):
    """By the singular value decomposition of columns of one length, without directions of which float32 is unsure."""
    x, y = (points.double().numpy() for points in (x, y))
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    x, y = x - x.mean(0), y - y.mean(0)
    lengths = np.linalg.norm(x, axis=0)
    vectors, values, _ = np.linalg.svd(x[:, lengths > 0] / lengths[lengths > 0], full_matrices=False)
    vectors = vectors[:, values > 1e-11**0.5]
    return (np.linalg.norm(y - vectors @ (vectors.T @ y)) / np.linalg.norm(y)) ** 2, vectors.shape[1]


def fits(name):
    return torch.unique(HOSTILE[name](), dim=0).shape[0] >= HOSTILE[name]().shape[1] + 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", filter(fits, HOSTILE))
def test_against_singular_values(name, device):
    x, following = pair(name)
    unexplained, rank = naive_unexplained(x, following)
    found = linearity(x.to(device), following.to(device))
    assert (found.shape, found.dtype, found.device.type) == ((), torch.float64, device)
    assert found.item() == pytest.approx(1 - unexplained, abs=1e-9)
    adjusted = linearity(x.to(device), following.to(device), adjusted=True).item()
    n = len(x)
    assert 1 - adjusted == pytest.approx(unexplained * (n - 1) / (n - 1 - rank), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("dims", [(20, 20), (20, 7), (7, 20), (1, 30), (30, 1)])
def test_against_scipy_and_scikit_learn(dims):
    x = normal(300, dims[0])
    y = torch.tanh(x) @ normal(*dims, seed=1) + 3
    centred, target = (x - x.mean(0)).numpy(), (y - y.mean(0)).numpy()
    residues = scipy.linalg.lstsq(centred, target)[1]
    expected = 1 - residues.sum() / (target**2).sum()
    assert linearity(x, y).item() == pytest.approx(expected, abs=1e-13)
    predicted = LinearRegression().fit(x.numpy(), y.numpy()).predict(x.numpy())
    assert expected == pytest.approx(r2_score(y.numpy(), predicted, multioutput="variance_weighted"), abs=1e-12)


def test_of_the_step_alone():
    """The same residual, as a share of less: what the residual stream brings along is left out."""
    x, following = normal(300, 20), after_a_block(normal(300, 20))
    step = following - x
    expected = linearity(x, step).item()
    assert linearity(x, following, of="step").item() == pytest.approx(expected, abs=1e-13)
    left = 1 - linearity(x, following).item()
    shrunk = (following - following.mean(0)).square().sum() / (step - step.mean(0)).square().sum()
    assert expected == pytest.approx(1 - left * shrunk.item(), abs=1e-12)
    assert expected < linearity(x, following).item()


@pytest.mark.parametrize("share", [1e-3, 1e-6, 1e-9])
def test_near_one_what_is_missing_keeps_its_digits(share):
    """By Pythagoras: what is added is perpendicular to the layer, and to a constant."""
    x = normal(500, 30)
    basis = torch.linalg.qr(torch.cat([torch.ones(500, 1).double(), x, normal(500, 30, seed=1)], 1)).Q
    linear, rest = x @ normal(30, 30, seed=2), basis[:, 31:]
    linear = linear - linear.mean(0)
    factor = (share / (1 - share) * linear.square().sum() / rest.square().sum()).sqrt()
    assert 1 - linearity(x, linear + factor * rest).item() == pytest.approx(share, abs=1e-13)


@pytest.mark.parametrize(("of_layer", "of_step"), [(1, 1e-4), (1e4, 1), (1, 1e4)], ids=["small", "undone", "large"])
def test_steps_of_any_size_keep_their_digits(of_layer, of_step):
    """A block that adds little, one that takes away nearly all there was, and one that drowns it."""
    x = of_layer * normal(500, 30)
    added = of_step * (torch.tanh(normal(500, 30) @ normal(30, 30, seed=1)) @ normal(30, 30, seed=2))
    following = added + (0 if of_layer > of_step else x)
    for of, explained in (("state", following), ("step", following - x)):
        found = 1 - linearity(x, following, of=of).item()
        assert found == pytest.approx(naive_unexplained(x, explained)[0], rel=1e-6, abs=1e-14)


def test_state_and_step_share_one_fit(monkeypatch):
    fits = []
    solve = torch.linalg.cholesky_ex
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda gram: fits.append(1) or solve(gram))
    cloud, following = map(Cloud, pair("gaussian"))
    for of in ("state", "step"):
        for adjusted in (True, False):
            linearity.or_raise(cloud, following, of=of, adjusted=adjusted)
    assert fits == [1]
    linearity.or_raise(cloud, Cloud(following.x))
    assert fits == [1, 1]


@pytest.mark.parametrize("condition", [1e2, 1e4, 3e5])
def test_directions_that_are_hard_to_tell(condition):
    """Whatever is computed: the wanted one is told by singular values of the points themselves."""
    x = normal(400, 25) * torch.logspace(0, -np.log10(condition), 25).double() @ rotation(25)
    y = torch.tanh(normal(400, 25)) @ normal(25, 25, seed=1)
    assert linearity(x, y).item() == pytest.approx(1 - naive_unexplained(x, y)[0], abs=1e-9)


@pytest.mark.parametrize("apart", [0, 1e-3, 1], ids=["by_products", "by_the_map", "by_eigenvalues"])
def test_all_ways_to_compute_it_agree(apart, monkeypatch):
    x, following = pair("gaussian")
    expected = 1 - naive_unexplained(x, following)[0]
    monkeypatch.setattr(MODULE, "_WELL_CONDITIONED", 0 if apart == 0 else 2)
    monkeypatch.setattr(MODULE, "_SOLVABLE", apart)
    assert linearity(x, following).item() == pytest.approx(expected, abs=1e-12)


def test_states_after_a_layer_norm_lack_a_direction():
    """It holds rounding alone; taken for a direction it would explain a share of anything, here of what is random."""
    x = torch.nn.functional.layer_norm(normal(400, 40).float(), (40,))
    y = normal(400, 40, seed=1).float()
    full, rank = naive_unexplained(x, y)
    assert rank == 39
    assert linearity(x, y).item() == pytest.approx(1 - full, abs=1e-9)
    # the same layer, rounded otherwise
    turned = (x.double() @ rotation(40)).float()
    assert linearity(turned, y).item() == pytest.approx(linearity(x, y).item(), abs=1e-6)


@pytest.mark.parametrize("constant", [0.0, 1.0, 1000.1, 1e-20, 1e20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_columns_take_up_no_point(constant, dtype):
    x, y = normal(60, 5).to(dtype), normal(60, 4, seed=1)
    with_constants = torch.cat([x, torch.full((60, 20), constant, dtype=dtype)], 1)
    unexplained, rank = naive_unexplained(x, y)
    assert rank == 5
    expected = 1 - unexplained * 59 / (59 - rank)
    assert linearity(with_constants, y, adjusted=True).item() == pytest.approx(expected, abs=1e-9)


def test_a_small_column_is_none_that_is_constant():
    x, y = normal(60, 5), normal(60, 4, seed=1)
    small = x * torch.tensor([1, 1e-20, 1, 1e-13, 1e13], dtype=torch.float64)
    assert linearity(small, y, adjusted=True).item() == pytest.approx(linearity(x, y, adjusted=True).item(), abs=1e-9)


@pytest.mark.parametrize(("dtype", "scale"), SCALES.values(), ids=SCALES)
def test_scales_whose_squares_are_no_numbers(dtype, scale):
    x, following = normal(90, 20).to(dtype), after_a_block(normal(90, 20)).to(dtype)
    for of in ("state", "step"):
        expected = linearity(x, following, of=of).item()
        found = linearity(x * scale, following * scale, of=of).item()
        assert found == pytest.approx(expected, abs=1e-6 if dtype == torch.float32 else 1e-12)
    assert linearity(x * scale, following).item() == pytest.approx(linearity(x, following).item(), abs=1e-6)


def test_points_that_any_map_fits():
    with pytest.raises(Undefined, match="^21 distinct of 21 points in 20 dimensions, at least 22 needed$"):
        linearity.or_raise(Cloud(normal(21, 20)), Cloud(normal(21, 20, seed=1)))
    assert linearity(normal(22, 20), normal(22, 20, seed=1)).isfinite()
    repeating = normal(15, 20).repeat(4, 1)
    with pytest.raises(Undefined, match="^15 distinct of 60 points in 20 dimensions, at least 22 needed$"):
        linearity.or_raise(Cloud(repeating), Cloud(normal(60, 20, seed=1)))


@pytest.mark.parametrize("added", [0.0, 1.0, 1e-3])
def test_a_block_that_adds_the_same_to_all(added):
    x = normal(100, 20)
    with pytest.raises(Undefined, match="^the step to be explained is the same for all points$"):
        linearity.or_raise(Cloud(x), Cloud(x + added), of="step")
    assert linearity(x, x + added).item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("adjusted", [True, False])
@pytest.mark.parametrize("constant", [0.0, 7.3, 1e-30, 1e30])
def test_a_block_that_takes_everything_away_is_linear(constant, adjusted):
    x = normal(100, 20).float()
    assert linearity(x, torch.full((100, 20), constant), of="step", adjusted=adjusted).item() == 1
    two_points = torch.full((100, 20), 7.3)
    two_points[:30, 0] += 1
    unexplained, rank = naive_unexplained(x, two_points - x)
    expected = 1 - unexplained * (99 / (99 - rank) if adjusted else 1)
    assert linearity(x, two_points, of="step", adjusted=adjusted).item() == pytest.approx(expected, abs=1e-6)

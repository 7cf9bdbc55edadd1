"""Linearity: against least squares by singular values, and on layers whose linearity is known
beforehand.
"""

import sys

import numpy as np
import pytest
import scipy.linalg
import torch
from hostile import HOSTILE
from pairs import DEVICES, after_a_block, normal, pair, rotation
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from repdyn.kernels.linear_map import linearity

MODULE = sys.modules["repdyn.kernels.linear_map"]


def naive_unexplained(x, y):
    """By the singular value decomposition of columns of one length, without directions of which
    float32 is unsure.
    """
    x, y = (points.double().numpy() for points in (x, y))
    x = x / np.abs(x).max()
    y = y / np.abs(y).max()
    x = x - x.mean(0)
    y = y - y.mean(0)
    lengths = np.linalg.norm(x, axis=0)
    varies = lengths > 0
    vectors, values, _ = np.linalg.svd(x[:, varies] / lengths[varies], full_matrices=False)
    vectors = vectors[:, values > 1e-11**0.5]
    return (np.linalg.norm(y - vectors @ (vectors.T @ y)) / np.linalg.norm(y)) ** 2, vectors.shape[
        1
    ]


def fits(name):
    return torch.unique(HOSTILE[name](), dim=0).shape[0] >= HOSTILE[name]().shape[1] + 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", filter(fits, HOSTILE))
def test_against_singular_values(name, device):
    x, following = pair(name)
    unexplained, rank = naive_unexplained(x, following)
    value = linearity(x.to(device), following.to(device))
    assert value.shape == ()
    assert value.dtype == torch.float64
    assert value.device.type == device
    assert value.item() == pytest.approx(1 - unexplained, abs=1e-9)
    adjusted = linearity(x.to(device), following.to(device), adjusted=True).item()
    n = len(x)
    assert 1 - adjusted == pytest.approx(unexplained * (n - 1) / (n - 1 - rank), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("dims", [(20, 20), (20, 7), (7, 20), (1, 30), (30, 1)])
def test_against_scipy_and_scikit_learn(dims):
    x = normal(300, dims[0])
    y = torch.tanh(x) @ normal(*dims, seed=1) + 3
    centred = (x - x.mean(0)).numpy()
    target = (y - y.mean(0)).numpy()
    residues = scipy.linalg.lstsq(centred, target)[1]
    expected = 1 - residues.sum() / (target**2).sum()
    assert linearity(x, y).item() == pytest.approx(expected, abs=1e-13)
    predicted = LinearRegression().fit(x.numpy(), y.numpy()).predict(x.numpy())
    assert expected == pytest.approx(
        r2_score(y.numpy(), predicted, multioutput="variance_weighted"), abs=1e-12
    )


def test_of_the_step_alone():
    """The same residual, as a share of less: what the residual stream brings along is left out."""
    x = normal(300, 20)
    following = after_a_block(normal(300, 20))
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
    basis = torch.linalg.qr(
        torch.cat([torch.ones(500, 1).double(), x, normal(500, 30, seed=1)], 1)
    ).Q
    linear = x @ normal(30, 30, seed=2)
    rest = basis[:, 31:]
    linear = linear - linear.mean(0)
    factor = (share / (1 - share) * linear.square().sum() / rest.square().sum()).sqrt()
    assert 1 - linearity(x, linear + factor * rest).item() == pytest.approx(share, abs=1e-13)


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
    """It holds rounding alone; taken for a direction it would explain a share of anything, here of
    what is random.
    """
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
    x = normal(60, 5).to(dtype)
    y = normal(60, 4, seed=1)
    with_constants = torch.cat([x, torch.full((60, 20), constant, dtype=dtype)], 1)
    unexplained, rank = naive_unexplained(x, y)
    assert rank == 5
    expected = 1 - unexplained * 59 / (59 - rank)
    assert linearity(with_constants, y, adjusted=True).item() == pytest.approx(expected, abs=1e-9)

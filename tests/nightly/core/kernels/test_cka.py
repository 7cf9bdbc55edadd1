"""Linear CKA: against matrices of similarities written out in float64, and against what is known of
unrelated clouds.
"""

import sys

import metric_oracles as oracles
import pytest
import torch
from hostile import HOSTILE
from pairs import DEVICES, normal, pair

from repdyn.kernels.similarity import linear_cka

# what is multiplied: features where they are few, similarities elsewhere; or one of them alone
WAYS = {"features": torch.inf, "similarities": 0.0}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    monkeypatch.setattr(
        sys.modules["repdyn.kernels.similarity"], "_FEW_FEATURES", WAYS[request.param]
    )


FOUR_POINTS = sorted(set(HOSTILE) - {"n_3"})


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("debiased", [True, False], ids=["debiased", "biased"])
@pytest.mark.parametrize("name", FOUR_POINTS)
def test_against_matrices_in_float64(name, debiased, device):
    x, y = pair(name)
    value = linear_cka(x.to(device), y.to(device), debiased=debiased)
    assert value.shape == ()
    assert value.dtype == torch.float64
    assert value.device.type == device
    # the contract is 1e-6; what holds on all of these is 2e-8
    assert value.item() == pytest.approx(
        oracles.linear_cka(x.double().numpy(), y.double().numpy(), debiased), abs=2e-8
    )


def test_debiased_does_not_depend_on_the_number_of_points():
    """Two layers that share half of their variance, at 200 and at 2000 points in 300 dimensions."""
    shared, x, y = (normal(2000, 300, seed=seed) for seed in range(3))
    a = shared + x
    b = shared + y
    few = linear_cka(a[:200], b[:200]).item()
    many = linear_cka(a, b).item()
    # of the inner product of round clouds, E[(s + x)(s + y)]**2 / E[(s + x)**2]**2
    assert few == pytest.approx(0.25, abs=0.02)
    assert many == pytest.approx(0.25, abs=0.005)
    assert linear_cka(a[:200], b[:200], debiased=False).item() > 0.6


def test_perpendicular_points_have_a_biased_similarity():
    assert linear_cka(torch.eye(5), torch.eye(5), debiased=False).item() == pytest.approx(
        1, abs=1e-12
    )

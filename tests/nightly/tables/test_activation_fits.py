"""The published formula of the largest activation: courses with known parameters, and courses without it."""

import numpy as np
import pytest
from scipy.optimize import curve_fit
from scipy.stats import f as f_distribution

from repdyn.tables.activation_fits import fit_activations

STEPS = np.array([0, *(2**k for k in range(10)), *range(1000, 143_001, 1000)], float)


# A, lambda, gamma, t0, K: of the first layer's median activation in Pythia-410m, as published, and of other shapes
KNOWN = {
    "published": (0.1991413262927913, 0.1245164347289605, 0.00011243504071098889, 0.6212193145868949, 0.12193486521),
    "early peak": (300.0, 0.05, 1e-3, 1.0, 2.0),
    "peak in the first steps": (50.0, 0.3, 5e-2, 1.0, 1.0),
    "no peak yet": (100.0, 0.02, 2e-5, 1.0, 5.0),
    "a trough": (-30.0, 0.2, 1e-4, 0.9, 80.0),
    "large": (5e6, 0.5, 1e-4, 0.9, 2e7),
}


def curve(t, amplitude, decay, time_scale, time_offset, baseline):
    x = time_scale * t + time_offset
    return amplitude * np.exp(-decay * x) * np.log(x) + baseline


def noisy(values, share, seed=0):
    return values + share * np.ptp(values) * np.random.default_rng(seed).standard_normal(len(values))


@pytest.mark.parametrize("name", ["published", "early peak", "no peak yet", "a trough"])
def test_no_curve_nearby_is_better(name):
    values = noisy(curve(STEPS, *KNOWN[name]), 0.02)
    fit = fit_activations(STEPS, values)
    ours = np.square(fit.at(STEPS) - values).sum()
    total = np.square(values - values.mean()).sum()
    assert fit.r_squared == pytest.approx(1 - ours / total, abs=1e-9)
    ratio = (total - ours) / 4 / (ours / (len(STEPS) - 5))
    assert fit.p_value == pytest.approx(f_distribution.sf(ratio, 4, len(STEPS) - 5), rel=1e-6)
    with np.errstate(over="ignore"):
        theirs = curve_fit(curve, STEPS, values, p0=KNOWN[name], maxfev=20_000)[0]
    assert ours <= np.square(curve(STEPS, *theirs) - values).sum() * (1 + 1e-3)


def test_few_noisy_steps_are_rarely_reported():
    steps = STEPS[-12:]
    noise = np.random.default_rng(0)
    reported = sum(fit_activations(steps, noise.standard_normal(12)).is_reported for _ in range(60))
    assert reported <= 1


@pytest.mark.parametrize(("steps", "n_walks", "most"), [(STEPS[::14], 200, 0.12), (STEPS, 100, 0.08)])
def test_how_often_a_random_walk_is_reported(steps, n_walks, most):
    random = np.random.default_rng(0)
    walks = [random.standard_normal(len(steps)).cumsum() for _ in range(n_walks)]
    share = np.mean([fit_activations(steps, walk).is_reported for walk in walks])
    print(f"{share:.1%} of {n_walks} random walks of {len(steps)} steps")
    assert share <= most

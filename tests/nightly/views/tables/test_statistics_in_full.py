"""Fits of the largest activation, steps out of line, and rank correlations: how often they are
wrong.
"""

import math

import numpy as np
import pandas as pd
import pytest
from fitted_courses import (
    IN_LINE,
    KNOWN,
    STEPS_OF_ACTIVATION_FITS,
    STEPS_OF_CONTINUITY,
    curve,
    history,
    noisy,
    replaced,
    steps_of,
)
from scipy.optimize import curve_fit

from repdyn.views.judging.effects import rank_correlation
from repdyn.views.judging.fits import fit_activations
from repdyn.views.tables.continuity import (
    losses_out_of_line,
)


@pytest.mark.parametrize("name", ["published", "early peak", "no peak yet", "a trough"])
def test_no_curve_nearby_is_better(name):
    values = noisy(curve(STEPS_OF_ACTIVATION_FITS, *KNOWN[name]), 0.02)
    fit = fit_activations(STEPS_OF_ACTIVATION_FITS, values)
    ours = np.square(fit.at(STEPS_OF_ACTIVATION_FITS) - values).sum()
    total = np.square(values - values.mean()).sum()
    assert fit.r_squared == pytest.approx(1 - ours / total, abs=1e-9)
    with np.errstate(over="ignore"):
        theirs = curve_fit(curve, STEPS_OF_ACTIVATION_FITS, values, p0=KNOWN[name], maxfev=20_000)[
            0
        ]
    assert ours <= np.square(curve(STEPS_OF_ACTIVATION_FITS, *theirs) - values).sum() * (1 + 1e-3)


def test_few_noisy_steps_are_rarely_reported():
    steps = STEPS_OF_ACTIVATION_FITS[-12:]
    noise = np.random.default_rng(0)
    reported = sum(fit_activations(steps, noise.standard_normal(12)).is_reported for _ in range(60))
    assert reported <= 1


@pytest.mark.parametrize(
    ("steps", "n_walks", "most"),
    [(STEPS_OF_ACTIVATION_FITS[::14], 200, 0.12), (STEPS_OF_ACTIVATION_FITS, 100, 0.08)],
)
def test_how_often_a_random_walk_is_reported(steps, n_walks, most):
    random = np.random.default_rng(0)
    walks = [random.standard_normal(len(steps)).cumsum() for _ in range(n_walks)]
    share = np.mean([fit_activations(steps, walk).is_reported for walk in walks])
    print(f"{share:.1%} of {n_walks} random walks of {len(steps)} steps")
    assert share <= most


EVERY_1000 = [0, *(2**power for power in range(10)), *range(1000, 144000, 1000)]


def test_sound_steps_are_rarely_accused():
    """Of wrong blocks at random places, with the final weights. The rule that takes out one step
    after the other, with no view of the others, says so of more sound steps than wrong ones."""
    generator = np.random.default_rng(0)
    sound = 0
    wrong = 0
    n_wrong = 0
    for seed in range(100):
        losses = history(0.002, seed)
        places = [
            start + at
            for start in generator.choice(range(2, 26, 7), 2, replace=False)
            for at in range(2)
        ]
        steps = {
            STEPS_OF_CONTINUITY[index]
            for index in places
            if losses.iloc[index] - losses.iloc[-1] > 0.3
        }
        accused = set(
            steps_of(
                replaced(
                    losses, {STEPS_OF_CONTINUITY[index]: float(losses.iloc[-1]) for index in places}
                )
            )
        )
        sound = sound + len(accused - steps)
        wrong = wrong + len(accused & steps)
        n_wrong = n_wrong + len(steps)
    assert sound <= 0.02 * n_wrong
    assert wrong >= 0.95 * n_wrong


def test_a_narrow_peak_is_in_line_where_curves_may_turn():
    places = np.log1p(EVERY_1000)
    curve = pd.Series(np.exp(-(((places - 5) / 1.2) ** 2)), EVERY_1000)
    assert losses_out_of_line(curve, may_turn=True) == IN_LINE
    assert losses_out_of_line(curve) != IN_LINE
    (found,) = losses_out_of_line(replaced(curve, {50_000: 0.5}), may_turn=True)
    assert found.step == 50_000


def test_the_interval_covers_the_correlation_of_independent_pairs():
    # Spearman's correlation of a bivariate normal distribution
    rho = 0.6
    expected = 6 / math.pi * math.asin(rho / 2)
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        x, y = generator.multivariate_normal([0, 0], [[1, rho], [rho, 1]], size=25).T
        found = rank_correlation(x, y)
        covered += found.low <= expected <= found.high
    assert 0.93 <= covered / 2000 <= 0.97

import doctest
import math

import pytest
from scipy.stats import t as student_t

from repdyn.tables import effects
from repdyn.tables.effects import CannotBeJudgedError, Effect, Estimate, conjunction, majority, mean_estimate

SHOWN, NOT_SHOWN, UNJUDGED = "shown", "not shown", "cannot be judged"


def test_examples():
    assert doctest.testmod(effects).failed == 0


def test_an_interval_by_hand():
    effect = Effect.of(Estimate(3.0, 0.06, 8), Estimate(2.0, 0.03, 4))
    half = student_t.ppf(0.975, 3) * math.sqrt(0.02**2 + 0.015**2)
    assert effect.log_ratio == pytest.approx(math.log(1.5), rel=1e-12)
    assert (effect.low, effect.high) == pytest.approx((math.log(1.5) - half, math.log(1.5) + half), rel=1e-9)


def test_the_mean_takes_the_bound_for_correlated_values():
    assert mean_estimate([Estimate(1.0, 0.1, 8), Estimate(2.0, 0.3, 4)]) == Estimate(1.5, 0.2, 4)
    assert math.isnan(mean_estimate([Estimate(1.0, 0.1, 8), Estimate(2.0, math.nan, 8)]).std_error)


@pytest.mark.parametrize(
    ("above", "below", "verdict"),
    [
        (0.1, None, SHOWN),
        (0.2, None, UNJUDGED),
        (0.3, None, NOT_SHOWN),
        (None, 0.3, SHOWN),
        (None, 0.2, UNJUDGED),
        (None, 0.1, NOT_SHOWN),
        (0.1, 0.3, SHOWN),
        (0.1, 0.2, UNJUDGED),
        (0.2, 0.3, UNJUDGED),
        (0.3, 0.4, NOT_SHOWN),
        (-0.1, 0.1, NOT_SHOWN),
    ],
)
def test_a_change_of_20_percent_known_to_5(above, below, verdict):
    assert Effect(math.log1p(0.2), 0.05).judge(above=above, below=below) == verdict


def test_a_claim_is_strict():
    assert Effect(math.log1p(0.1), 0.0).judge(above=0.1) == NOT_SHOWN
    assert Effect(math.log1p(0.1), 0.0).judge(below=0.1) == NOT_SHOWN


@pytest.mark.parametrize(
    ("verdicts", "together"),
    [
        ([SHOWN, SHOWN], SHOWN),
        ([SHOWN, UNJUDGED], UNJUDGED),
        ([SHOWN, NOT_SHOWN], NOT_SHOWN),
        ([UNJUDGED, NOT_SHOWN], NOT_SHOWN),
    ],
)
def test_conjunction(verdicts, together):
    assert conjunction(verdicts) == together


@pytest.mark.parametrize(
    ("shown", "unclear", "not_shown", "verdict"),
    [(4, 0, 2, SHOWN), (3, 0, 3, NOT_SHOWN), (3, 1, 2, UNJUDGED), (0, 2, 4, NOT_SHOWN), (3, 2, 0, SHOWN)],
)
def test_majority(shown, unclear, not_shown, verdict):
    assert majority([SHOWN] * shown + [UNJUDGED] * unclear + [NOT_SHOWN] * not_shown) == verdict


@pytest.mark.parametrize(
    ("estimate", "reason"),
    [
        (Estimate(1.0, math.nan, 1), "^a single batch, so no spread to judge by; enlarge the probe$"),
        (Estimate(1.0, math.nan, 8), "^the batches share windows, so their spread says nothing of another probe$"),
        (Estimate(0.0, 0.1, 8), "^a ratio needs values above 0, got 0$"),
        (Estimate(-1.5, 0.1, 8), "^a ratio needs values above 0, got -1.5$"),
    ],
)
def test_values_without_an_effect(estimate, reason):
    for pair in ((estimate, Estimate(1.0, 0.1, 8)), (Estimate(1.0, 0.1, 8), estimate)):
        with pytest.raises(CannotBeJudgedError, match=reason):
            Effect.of(*pair)


def test_an_interval_too_wide_for_floating_point_is_still_told():
    assert str(Effect(0.0, 1000.0)).startswith("+0.0% [-100, 1")

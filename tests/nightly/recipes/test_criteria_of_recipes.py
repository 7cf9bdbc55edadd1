"""Criteria on synthetic stores whose answer is known: reproduced, not reproduced, cannot be judged."""

from __future__ import annotations

from itertools import combinations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import make_row, to_frame

from repdyn.recipes.criteria_training import turning_points
from repdyn.recipes.measured import Measured, NotMeasuredError
from repdyn.recipes.recipe import KINDS
from repdyn.tables.effects import CannotBeJudgedError

STEPS = (0, 1, 8, 64, 500, 4000, 32000, 143000)


def measured(curve, *, metric="rank_me", steps=STEPS, n_blocks=9, noise=0.01, name="lab/a", **given):
    """One metric whose value at a place in training and a relative depth is ``curve(number of the step, depth)``."""
    rows = [
        make_row(
            run=name,
            metric=metric,
            step=step,
            layer=layer,
            depth=layer / n_blocks,
            value=(value := curve(number, (layer - 1) / (n_blocks - 1))),
            std=noise * abs(value),
            **given,
        )
        for number, step in enumerate(steps)
        for layer in range(1, n_blocks + 1)
    ]
    return Measured(name, to_frame(rows))


def judge(kind, models, metric="rank_me", **settings):
    given = models if isinstance(models, list) else [models]
    return KINDS[kind](**settings).judge(given, metric)[0]


@given(
    st.lists(st.integers(-9, 9).map(float), min_size=4, max_size=9),
    st.lists(st.sampled_from(["rise", "fall"]), min_size=1, max_size=3),
)
def test_turning_points_are_the_best_of_all(values, phases):
    def gain(places):
        signs = [1 if phase == "rise" else -1 for phase in phases]
        pairs = zip(places, places[1:], signs, strict=False)
        return sum(sign * (values[end] - values[begin]) for begin, end, sign in pairs)

    last = len(values) - 1
    every = [(0, *inner, last) for inner in combinations(range(1, last), len(phases) - 1)]
    found = turning_points(values, phases)
    assert tuple(found) in every
    assert gain(found) == max(map(gain, every))


@pytest.mark.parametrize(("n", "verdict"), [(5, "cannot be judged"), (12, "shown")])
def test_a_perfect_order_of_few_checkpoints_is_no_certainty(n, verdict):
    steps = [0, *(2**power for power in range(7, 6 + n))]
    frames = [
        measured(lambda number, depth, sign=sign: 50.0 + sign * number, metric=metric, steps=steps).frame
        for metric, sign in (("rank_me", 1), ("alpha_req", -1))
    ]
    both = Measured("a", pd.concat(frames, ignore_index=True))
    assert judge("correlation", both, "alpha_req", other="rank_me", at_most=-0.5) == verdict


def test_halfway_within_the_noise():
    # half of the change is made at step 500 or 4000, which the noise does not tell apart
    curve = (0.0, 0.0, 0.0, 0.0, 0.45, 0.9, 0.9, 0.9)
    noisy = measured(lambda number, depth: curve[number], noise=0.1)
    assert judge("halfway", noisy, steps=(256, 1000), least=0.2) == "cannot be judged"
    assert judge("halfway", noisy, steps=(256, 4000), least=0.2) == "shown"
    assert judge("halfway", noisy, steps=(256, 4000), least=0.88) == "cannot be judged"
    with pytest.raises(CannotBeJudgedError, match="no interval"):
        judge("halfway", measured(lambda number, depth: curve[number], n_batches=1), steps=(256, 4000), least=0.2)


def test_a_trend_that_is_weaker_in_larger_models():
    shares = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    models = [
        measured(
            lambda number, depth, share=share: 1 + depth * (1 - share) + share * ((depth * 29) % 1),
            parameters=10 ** (6 + number),
            name=f"lab/{number}",
        )
        for number, share in enumerate(shares)
    ]
    weaker = {"feature": "trend", "against": "parameters"}
    assert judge("across", models, **weaker, at_most=0.0) == "shown"
    assert judge("across", models, **weaker, at_least=0.0) == "not shown"


def stages(*values, noise=0.001, **given):
    return [
        measured(lambda number, depth, value=value: value, name=f"lab/{place}", steps=(0,), noise=noise, **given)
        for place, value in enumerate(values)
    ]


def test_stages_that_are_missing_or_read_other_tokens():
    settings = {"phases": ("rise", "fall"), "more": (0.0, 0.1)}
    with pytest.raises(NotMeasuredError, match="needs 3 models, got 2 in the store"):
        judge("stages", stages(10.0, 12.0), **settings)
    models = [*stages(10.0, 12.0), stages(1.0, 1.0, 9.0, probe="f" * 16)[2]]
    with pytest.raises(CannotBeJudgedError, match="needs models on one probe, got 2"):
        judge("stages", models, **settings)
    with pytest.raises(ValueError, match="expected one value of more for each of 2 phases, got 1"):
        KINDS["stages"](phases=("rise", "fall"), more=(0.1,))

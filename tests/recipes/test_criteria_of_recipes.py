"""Criteria on synthetic stores whose answer is known: reproduced, not reproduced, cannot be judged."""

from __future__ import annotations

import math
import re
from itertools import combinations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import make_row, make_rows, make_scalar, to_frame

from repdyn import Probe
from repdyn.recipes.criteria_training import turning_points
from repdyn.recipes.measured import Measured, NotMeasuredError
from repdyn.recipes.recipe import KINDS
from repdyn.store.scalars import PROBE_LOSS
from repdyn.tables.effects import CannotBeJudgedError

STEPS = (0, 1, 8, 64, 500, 4000, 32000, 143000)
RANKS = (100.0, 90.0, 60.0, 40.0, 80.0, 120.0, 90.0, 70.0)
"""Falls to step 64, rises to step 4000, falls."""


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


def bump(height):
    return lambda number, depth: 10 + height * math.exp(-(((depth - 0.5) / 0.2) ** 2))


@pytest.mark.parametrize(("height", "peak", "valley"), [(5, "shown", "not shown"), (-5, "not shown", "shown")])
def test_peak_and_valley(height, peak, valley):
    of_bump = measured(bump(height))
    assert judge("peak", of_bump) == peak
    assert judge("valley", of_bump) == valley
    assert judge("peak", of_bump, absent=True) == valley
    assert judge("valley", of_bump, absent=True) == peak


def test_a_peak_elsewhere_is_not_the_published_one():
    of_bump = measured(lambda number, depth: 10 + 5 * math.exp(-(((depth - 0.125) / 0.1) ** 2)))
    assert judge("peak", of_bump, depth=(0.1, 0.2)) == "shown"
    assert judge("peak", of_bump) == "not shown"


def test_a_peak_at_the_first_step_only():
    of_bump = measured(lambda number, depth: bump(5)(number, depth) if number == 0 else 10.0)
    assert judge("peak", of_bump, step="first") == "shown"
    assert judge("peak", of_bump, step="last") == "not shown"


def test_an_interval_that_leaves_a_peak_open():
    assert judge("peak", measured(bump(1.2), noise=0.1)) == "cannot be judged"


def test_a_peak_needs_the_ends():
    of_bump = measured(bump(5))
    without = Measured("a", of_bump.frame[of_bump.frame["layer"] > 1])
    with pytest.raises(CannotBeJudgedError, match=r"needs the first block, the last and one at 0\.25 to 0\.75"):
        judge("peak", without)


def test_phases():
    course = measured(lambda number, depth: RANKS[number])
    three = {"phases": ("fall", "rise", "fall"), "more": (0.1, 0.5, 0.1)}
    assert judge("phases", course, **three) == "shown"
    assert judge("phases", course, **three | {"more": (0.1, 2.5, 0.1)}) == "not shown"
    # from the first step to the highest, whatever lies between
    assert judge("phases", course, phases=("rise", "fall"), more=(0.1, 0.1)) == "shown"
    assert judge("phases", course, phases=("rise",), more=(0.1,)) == "not shown"
    _, evidence = KINDS["phases"](**three).judge([course], "rank_me")
    assert evidence.startswith("fall to step 64 -60% [-60, -60], rise to step 4,000 +200%")


def test_phases_within_the_noise():
    course = measured(lambda number, depth: 100.0 + RANKS[number] / 100, noise=0.05)
    assert judge("phases", course, phases=("fall", "rise"), more=(0.0, 0.0)) == "cannot be judged"


def test_a_course_that_begins_late():
    course = measured(lambda number, depth: RANKS[number], steps=(20000, *range(30000, 100000, 10000)))
    with pytest.raises(CannotBeJudgedError, match="no value before step 20,000 of 90,000"):
        judge("phases", course, phases=("fall",), more=(0.1,))


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


@pytest.mark.parametrize(("layers", "verdict"), [("lowest", "shown"), ("highest", "not shown")])
def test_which_blocks_are_judged(layers, verdict):
    course = measured(lambda number, depth: 100.0 if depth > 0.1 else RANKS[number])
    assert judge("phases", course, phases=("fall",), more=(0.2,), layers=layers) == verdict


def test_the_last_block():
    course = measured(lambda number, depth: RANKS[number] if depth == 1 else 100.0)
    assert judge("phases", course, phases=("fall", "rise"), more=(0.5, 0.5), layers="last") == "shown"
    assert judge("phases", course, phases=("fall", "rise"), more=(0.5, 0.5)) == "not shown"


def test_halfway():
    course = measured(lambda number, depth: 0.0 if number < 4 else 0.9)
    assert judge("halfway", course, steps=(256, 1000), least=0.2) == "shown"
    assert judge("halfway", course, steps=(1000, 4000), least=0.2) == "not shown"
    assert judge("halfway", course, steps=(256, 1000), least=0.95) == "not shown"


def test_between():
    course = measured(lambda number, depth: 0.9, noise=0.02)
    assert judge("between", course, bounds=(0.8, 1.0)) == "shown"
    assert judge("between", course, bounds=(0.0, 0.8)) == "not shown"
    assert judge("between", course, bounds=(0.9, 1.0)) == "cannot be judged"


def test_correlation():
    falls = measured(lambda number, depth: -RANKS[number], metric="alpha_req")
    rises = measured(lambda number, depth: RANKS[number])
    both = Measured("a", pd.concat([falls.frame, rises.frame], ignore_index=True))
    assert judge("correlation", both, "alpha_req", other="rank_me", at_most=-0.5) == "shown"
    assert judge("correlation", both, "alpha_req", other="rank_me", at_least=0.5) == "not shown"


def test_the_loss_on_the_probe_as_the_other_metric():
    falls = measured(lambda number, depth: -RANKS[number], metric="alpha_req")
    losses = [make_scalar(step, RANKS[number], PROBE_LOSS, run="lab/a") for number, step in enumerate(STEPS)]
    both = Measured("a", pd.concat([falls.frame, to_frame(losses)], ignore_index=True))
    assert judge("correlation", both, "alpha_req", other=PROBE_LOSS, at_most=-0.5) == "shown"
    with pytest.raises(NotMeasuredError, match="no loss on the probe was measured"):
        judge("correlation", falls, "alpha_req", other=PROBE_LOSS, at_most=-0.5)


def test_a_correlation_whose_interval_leaves_it_open():
    y = [1, 3, 2, 5, 4, 6, 8, 7]
    one = measured(lambda number, depth: RANKS[number], metric="alpha_req")
    other = measured(lambda number, depth: float(RANKS[number] + 25 * y[number]))
    both = Measured("a", pd.concat([one.frame, other.frame], ignore_index=True))
    verdict, evidence = KINDS["correlation"](other="rank_me", at_least=0.2).judge([both], "alpha_req")
    assert verdict == "cannot be judged"
    assert re.fullmatch(r"rho 0\.\d+ \[-0\.\d+, 0\.\d+\] over 8 checkpoints; whether it has learned .*", evidence)


@pytest.mark.parametrize(("n", "verdict"), [(5, "cannot be judged"), (12, "shown")])
def test_a_perfect_order_of_few_checkpoints_is_no_certainty(n, verdict):
    steps = [0, *(2**power for power in range(7, 6 + n))]
    frames = [
        measured(lambda number, depth, sign=sign: 50.0 + sign * number, metric=metric, steps=steps).frame
        for metric, sign in (("rank_me", 1), ("alpha_req", -1))
    ]
    both = Measured("a", pd.concat(frames, ignore_index=True))
    assert judge("correlation", both, "alpha_req", other="rank_me", at_most=-0.5) == verdict


def with_loss(loss, value=10.0, *, name="lab/a", **given):
    """A model whose last loss on a probe of four equally frequent tokens is given; their entropy is log 4, 1.386."""
    probe = Probe.from_tokens([[0, 1, 2, 3] * 4] * 16, max_vectors=64, batch_vectors=32)
    rows = measured(lambda number, depth: value, name=name, steps=(0, 8), **given).frame
    losses = to_frame([make_scalar(step, loss, PROBE_LOSS, run=name) for step in (0, 8)])
    return Measured(name, pd.concat([rows, losses], ignore_index=True), probe=probe)


def test_models_that_have_learned_nothing_are_not_judged():
    widths = (64, 128, 256, 512)
    trained = [with_loss(1.2, 0.1 * dim, dim=dim, name=f"lab/{dim}") for dim in widths]
    verdict, evidence = KINDS["scaling"](exponent=(0.9, 1.1)).judge(trained, "rank_me")
    assert (verdict, evidence) == ("shown", "exponent 1.00 [1.00, 1.00] over 4 models")
    models = [*trained[:3], with_loss(1.4, 51.2, dim=512, name="lab/512")]
    with pytest.raises(CannotBeJudgedError, match=r"nothing was learned, .*: lab/512 \(1\.4 and 1\.39\)"):
        judge("scaling", models, exponent=(0.9, 1.1))
    models[3] = measured(lambda number, depth: 51.2, dim=512, name="lab/512")
    _, evidence = KINDS["scaling"](exponent=(0.9, 1.1)).judge(models, "rank_me")
    assert evidence.endswith(
        "whether it has learned anything cannot be told: lab/512 has no loss on the probe in the store"
    )


def test_an_exponent_whose_interval_leaves_it_open():
    noisy = zip((64, 128, 256), (9.0, 14.0, 27.0), strict=True)
    models = [measured(lambda number, depth, v=value: v, dim=dim, name=f"lab/{dim}") for dim, value in noisy]
    assert judge("scaling", models, exponent=(0.5, 1.1)) == "cannot be judged", "one degree of freedom"
    assert judge("scaling", models, exponent=(5, 6)) == "not shown"


def test_halfway_within_the_noise():
    # half of the change is made at step 500 or 4000, which the noise does not tell apart
    curve = (0.0, 0.0, 0.0, 0.0, 0.45, 0.9, 0.9, 0.9)
    noisy = measured(lambda number, depth: curve[number], noise=0.1)
    assert judge("halfway", noisy, steps=(256, 1000), least=0.2) == "cannot be judged"
    assert judge("halfway", noisy, steps=(256, 4000), least=0.2) == "shown"
    assert judge("halfway", noisy, steps=(256, 4000), least=0.88) == "cannot be judged"
    with pytest.raises(CannotBeJudgedError, match="no interval"):
        judge("halfway", measured(lambda number, depth: curve[number], n_batches=1), steps=(256, 4000), least=0.2)


def test_trend():
    rises = measured(lambda number, depth: 1 + depth)
    assert judge("trend", rises, at_least=0.5) == "shown"
    assert judge("trend", rises, at_most=0.0) == "not shown"
    assert (
        judge("trend", measured(lambda number, depth: 10 + 0.1 * depth, noise=0.1), at_least=0.5) == "cannot be judged"
    )
    assert judge("trend", measured(lambda number, depth: 1.0, noise=0.0), at_least=0.5) == "not shown"


def peaking(at, loss, name):
    model = with_loss(loss, name=name)
    curve = measured(lambda number, depth: 10 + 5 * math.exp(-(((depth - at) / 0.2) ** 2)), name=name, steps=(0, 8))
    scalars = model.frame[model.frame["layer"].isna()]
    return Measured(name, pd.concat([curve.frame, scalars], ignore_index=True), probe=model.probe)


def test_an_earlier_onset_goes_with_a_lower_loss():
    peaks = (0.3, 0.4, 0.55, 0.65, 0.8, 0.9)
    models = [peaking(at, 0.2 + at, f"lab/{number}") for number, at in enumerate(peaks)]
    onset = {"feature": "onset", "against": "loss"}
    assert judge("across", models, **onset, at_least=0.0) == "shown"
    assert judge("across", models, **onset, at_most=0.0) == "not shown"
    with pytest.raises(CannotBeJudgedError, match="needs 4 models, got 3"):
        judge("across", models[:3], **onset, at_least=0.0)
    flat = [measured(lambda number, depth: 2 - depth, name=f"lab/{number}") for number in range(4)]
    with pytest.raises(CannotBeJudgedError, match="does not rise above the first block"):
        judge("across", flat, feature="onset", against="width", at_least=0.0)


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


def test_scaling():
    models = [
        measured(lambda number, depth, dim=dim: 0.1 * dim, dim=dim, name=f"lab/{dim}", steps=(0,))
        for dim in (64, 128, 256)
    ]
    assert judge("scaling", models, exponent=(0.9, 1.1)) == "shown"
    assert judge("scaling", models, exponent=(-0.3, 0.3)) == "not shown"
    with pytest.raises(CannotBeJudgedError, match="needs models of 3 widths, got 2"):
        judge("scaling", models[:2], exponent=(0, 1))


@pytest.mark.parametrize(("finding", "verdict"), [("bell", "shown"), ("uniform", "not shown"), ("growth", "shown")])
def test_findings(finding, verdict):
    run = Measured("a", to_frame(make_rows(n_blocks=6, steps=(0, 256, 512))))
    assert judge("finding", run, "anisotropy", finding=finding) == verdict


def test_values_without_an_interval_are_judged_where_the_recipe_says_so():
    course = measured(lambda number, depth: RANKS[number], design="paper", n_batches=4)
    phases = {"phases": ("fall",), "more": (0.1,)}
    with pytest.raises(CannotBeJudgedError, match="the batches share windows"):
        judge("phases", course, **phases)
    assert judge("phases", Measured("a", course.frame, by_values=True), **phases) == "shown"


def test_a_metric_that_was_not_measured():
    with pytest.raises(NotMeasuredError, match="two_nn@no_sink was not measured"):
        judge("phases", measured(lambda number, depth: 1.0), "two_nn@no_sink", phases=("fall",), more=(0.1,))


def stages(*values, noise=0.001, **given):
    return [
        measured(lambda number, depth, value=value: value, name=f"lab/{place}", steps=(0,), noise=noise, **given)
        for place, value in enumerate(values)
    ]


def test_stages():
    settings = {"phases": ("rise", "fall"), "more": (0.0, 0.1)}
    assert judge("stages", stages(10.0, 12.0, 9.0), **settings) == "shown"
    assert judge("stages", stages(10.0, 9.5, 8.0), **settings) == "not shown"
    assert judge("stages", stages(10.0, 12.0, 11.5), **settings) == "not shown"
    assert judge("stages", stages(10.0, 12.0, 9.0, noise=0.2), **settings) == "cannot be judged"
    _, evidence = KINDS["stages"](**settings).judge(stages(10.0, 12.0, 9.0), "rank_me")
    assert evidence.startswith("rise to lab/1 +20%")


def test_stages_that_are_missing_or_read_other_tokens():
    settings = {"phases": ("rise", "fall"), "more": (0.0, 0.1)}
    with pytest.raises(NotMeasuredError, match="needs 3 models, got 2 in the store"):
        judge("stages", stages(10.0, 12.0), **settings)
    models = [*stages(10.0, 12.0), stages(1.0, 1.0, 9.0, probe="f" * 16)[2]]
    with pytest.raises(CannotBeJudgedError, match="needs models on one probe, got 2"):
        judge("stages", models, **settings)
    with pytest.raises(ValueError, match="expected one value of more for each of 2 phases, got 1"):
        KINDS["stages"](phases=("rise", "fall"), more=(0.1,))


def with_control(own, control, **given):
    one, other = (measured(lambda number, depth, level=level: level, **given) for level in (own, control))
    return Measured("lab/a", one.frame, control=other)


@pytest.mark.parametrize(
    ("control", "change", "verdict"),
    [(12.0, "rise", "shown"), (12.0, "fall", "not shown"), (8.0, "fall", "shown"), (10.5, "rise", "not shown")],
)
def test_a_control(control, change, verdict):
    assert judge("control", with_control(10.0, control, noise=0.001), change=change, more=0.1) == verdict


def test_a_control_at_another_step_or_none():
    alone = measured(lambda number, depth: 10.0)
    with pytest.raises(NotMeasuredError, match="the control was not measured"):
        judge("control", alone, change="rise", more=0.1)
    later = Measured("lab/a", alone.frame, control=measured(lambda number, depth: 10.0, steps=STEPS[:-1]))
    with pytest.raises(CannotBeJudgedError, match="needs one step on both, got"):
        judge("control", later, change="rise", more=0.1)

"""Conditions of alerts on synthetic series, step by step and over a whole run."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_runs import make_failures, make_row, make_run, make_scalar, to_frame

from repdyn.alerts import RULES, AlertEvaluator, Rule, find_alerts
from repdyn.alerts.series import Past, courses
from repdyn.store.schema import too_few_distinct


def series(values, metric="two_nn", std=0.0, layer=1, subset="all", **more):
    """Return the rows of one layer at steps 0, 10, 20, ..."""
    return [
        make_row(step=10 * place, layer=layer, metric=metric, subset=subset, value=value, std=std, **more)
        for place, value in enumerate(values)
    ]


def steps_and_layers(rows, *rules):
    return [(alert.step, alert.layer) for alert in find_alerts(to_frame(rows), rules)]


def rule(when, bound=None, metrics=("two_nn",), **more):
    return Rule(name=when, when=when, bound=bound, metrics=metrics, **more)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ([8, 4], [10]),
        ([8, 4.01], []),
        ([8, 5, 2.5], [20]),
        ([8, 5, 4], []),  # compared with the previous value, not with the highest
        ([8, math.nan, 4], [20]),  # compared with the last defined value
        ([8, 4, 4, 4], [10]),  # at the step of the change only
        ([8], []),
        ([0.0, 0.0], []),
    ],
)
def test_falls(values, steps):
    assert [step for step, _ in steps_and_layers(series(values), rule("falls", 0.5))] == steps


@pytest.mark.parametrize(("std", "steps"), [(1.0, [10]), (2.0, [])])
def test_a_fall_within_the_variation_over_batches_is_no_alert(std, steps):
    """The difference is 4, its standard deviation sqrt(2) * std."""
    assert [step for step, _ in steps_and_layers(series([8, 4], std=std), rule("falls", 0.5))] == steps


def test_rises():
    assert steps_and_layers(series([1, 1.4, 2.1, 2.2]), rule("rises", 1.5)) == [(20, 1)]


def test_above_and_below_hold_at_the_crossing():
    values = [0.5, 0.95, 0.96, 0.5, 0.99]
    assert steps_and_layers(series(values), rule("above", 0.9)) == [(10, 1), (40, 1)]
    assert steps_and_layers(series(values), rule("below", 0.9)) == [(0, 1), (30, 1)]


def test_a_lost_value_is_one_alert_with_the_reason():
    rows = series([8, math.nan, math.nan], reason="the points contain NaN")
    (alert,) = find_alerts(to_frame(rows), [rule("undefined")])
    assert (alert.step, alert.layer, alert.message) == (
        10,
        1,
        "two_nn (all) of layer 1 has no value any more: the points contain NaN",
    )


def test_a_value_missing_from_the_start_is_an_alert_only_if_not_finite():
    assert (
        steps_and_layers(
            series([math.nan, math.nan], reason="the input embeddings have 3 dimensions"), rule("undefined")
        )
        == []
    )
    assert steps_and_layers(series([math.nan, math.nan], reason="the points contain inf"), rule("undefined")) == [
        (0, 1)
    ]


def test_a_scalar_that_is_nan_at_first():
    (alert,) = find_alerts(to_frame([make_scalar(0, math.nan)]))
    assert alert.message == "train/loss has no value: NaN"


def test_a_comparison_without_its_earlier_checkpoint_is_no_alert():
    rows = [
        make_row(
            step=0, metric="cka_previous", layer=1, value=math.nan, reason="no states of a step before 0 are stored"
        ),
        make_row(step=10, metric="cka_previous", layer=1, value=0.9, compared_to=0),
        make_row(
            step=20, metric="cka_previous", layer=1, value=math.nan, reason="the states of step 10 could not be saved"
        ),
    ]
    assert find_alerts(to_frame(rows)) == []


def test_a_step_given_again_with_more_rows():
    evaluator = AlertEvaluator([rule("falls", 0.5), rule("rises", 1.25, metrics=("train/loss",))])
    rows = [*series([8, 4]), make_scalar(0, 2.0)]
    assert len(evaluator.update(to_frame(rows))) == 1
    again = [*(row for row in rows if row.step == 10), make_scalar(10, 3.0)]
    assert [alert.metric for alert in evaluator.update(to_frame(again))] == ["two_nn", "train/loss"]
    assert evaluator.update(to_frame([make_row(step=20, layer=1, metric="two_nn", value=3.9, std=0.0)])) == []


def test_layers_missing_at_some_steps_keep_their_past():
    evaluator = AlertEvaluator([rule("falls", 0.5)])
    evaluator.update(to_frame(series([8], layer=1) + series([3], layer=2)))
    assert evaluator.update(to_frame([make_row(step=10, layer=2, metric="two_nn", value=3.0, std=0.0)])) == []
    found = evaluator.update(
        to_frame([make_row(step=20, layer=n, metric="two_nn", value=2.0, std=0.0) for n in (1, 2)])
    )
    assert [(alert.layer, alert.previous_step) for alert in found] == [(1, 0)]


def test_collapsed_vectors_are_an_alert():
    counts = {"on_distinct": True, "n_vectors": 4096}
    reason = too_few_distinct(True, 2047, 4096)
    gone = make_row(step=10, layer=1, metric="two_nn", n_unique=2047, value=math.nan, reason=reason, **counts)
    (alert,) = find_alerts(to_frame([*series([8], n_unique=4000, **counts), gone]))
    assert (alert.rule, alert.detail) == ("no value", "fewer than half of the vectors are distinct: 2047 of 4096")


def profile(levels, layers=4):
    return [row for layer in range(layers) for row in series([level * (layer + 1) for level in levels], layer=layer)]


def test_a_profile_jumps_relative_to_its_history():
    steady = [1, 1.05, 1.1, 1.16, 1.22]
    jumps = rule("jumps", 5)
    assert steps_and_layers(profile([*steady, 2.4]), jumps) == [(50, None)]
    assert steps_and_layers(profile([*steady, 1.4]), jumps) == []  # a change of 13 %, too small for any profile
    assert steps_and_layers(profile([*steady[:4], 2.4]), jumps) == []  # three changes are too few
    assert steps_and_layers(profile([1, 1.5, 2.3, 3.4, 5.1, 8.2]), jumps) == []  # its usual change
    assert steps_and_layers(profile([1, 1, 1, 1, 1, 1, 2.4]), jumps) == []  # steps without a change are ignored


def test_a_jump_names_the_layer_that_changed_most():
    (alert,) = find_alerts(to_frame(profile([1, 1.05, 1.1, 1.16, 1.22, 2.4])), [rule("jumps", 5)])
    assert alert.message == (
        "two_nn (all) jumped: a change 5 times the usual one or more: most in layer 3, 4.88 at step 40, now 9.6"
    )


def test_changes_of_a_profile_are_means_over_layers():
    ((_, course),) = courses(to_frame(profile([1, 2, 2])))
    first, second, third = Past.empty(course.layers).before(course)[0].change(course)
    assert math.isnan(first)
    assert second == pytest.approx(0.5)
    assert third == 0.0


@pytest.mark.parametrize("spread", [0.05, 0.2, 0.4])
def test_the_loss_of_a_sound_training_with_small_batches_has_hardly_an_alert(spread):
    """2,000 measurements of a loss whose batches vary; 430 of them are 1.25 times the one before at a spread of 0.2."""
    losses = np.exp(spread * np.random.default_rng(0).standard_normal(2000)) * (2 + 8 / np.arange(1, 2001) ** 0.5)
    found = find_alerts(to_frame([make_scalar(step, loss) for step, loss in enumerate(losses)]))
    assert len(found) <= 15
    diverging = [*losses[:1990], *losses[1990:] * 10.0]
    found = find_alerts(to_frame([make_scalar(step, loss) for step, loss in enumerate(diverging)]))
    assert 1990 in [alert.step for alert in found]


def test_scalars_and_heads_and_failures():
    rows = [make_scalar(0, 2.0), make_scalar(10, 3.0), *make_failures(20, run="decoder-quickstart", revision=None)]
    rows += series([8, 1], head=0)
    (alert,) = find_alerts(to_frame(rows))
    assert alert.message == "train/loss rose to 1.25 times what it was or more: 2 at step 0, now 3"
    assert (alert.layer, alert.subset) == (None, None)


def test_a_rule_on_subsets():
    rows = series([8, 1]) + series([8, 1], subset="no_sink")
    found = find_alerts(to_frame(rows), [rule("falls", 0.5, subsets=("no_sink",))])
    assert [alert.subset for alert in found] == ["no_sink"]


def test_stacks_are_evaluated_separately():
    rows = series([8, 4], stack="encoder") + series([8, 8], stack="decoder")
    (alert,) = find_alerts(to_frame(rows), [rule("falls", 0.5)])
    assert alert.message.startswith("two_nn (encoder, all) of layer 1 fell to 0.5 of what it was or less: ")


def test_no_alerts_in_a_normal_run():
    assert find_alerts(make_run()) == []


def test_the_order_of_the_rows_does_not_matter():
    rows = to_frame(profile([1, 1.05, 1.1, 1.16, 1.22, 2.4, 1]) + series([8, 1], subset="no_sink"))
    alerts = find_alerts(rows, RULES)
    shuffled = find_alerts(rows.sample(frac=1, random_state=0), RULES)
    assert [*map(str, shuffled)] == [*map(str, alerts)] != []  # their missing values are NaN, which equals nothing


@pytest.mark.extended
@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([math.nan, 0.0, 0.3, 1.0, 1.1, 2.5, 9.0]), min_size=3, max_size=3),
        min_size=1,
        max_size=9,
    )
)
def test_alerts_depend_only_on_the_steps_so_far(profiles):
    """Evaluation step by step gives the same alerts as over the whole run."""
    every = [
        rule("undefined"),
        rule("falls", 0.5),
        rule("rises", 2),
        rule("above", 1),
        rule("below", 1),
        rule("jumps", 2),
    ]
    frame = to_frame(
        [
            make_row(step=step, layer=layer, metric="two_nn", value=value, std=0.01)
            for step, values in enumerate(profiles)
            for layer, value in enumerate(values)
        ]
    )
    whole = find_alerts(frame, every)
    evaluator = AlertEvaluator(every)
    live = [alert for step in range(len(profiles)) for alert in evaluator.update(frame.loc[frame["step"] == step])]
    assert [repr(alert) for alert in live] == [repr(alert) for alert in whole]


def test_rows_give_the_alerts_of_their_data_frame():
    state = np.random.RandomState(0)
    values = [0.1, 0.3, 1.0, 8.0, math.nan]
    frames, plain = AlertEvaluator(RULES), AlertEvaluator(RULES)
    found = []
    for step in range(40):
        rows = [
            make_row(step=step, layer=layer, metric=metric, stack=stack, subset=subset, head=head, value=value, std=0.1)
            for metric in ("two_nn", "anisotropy", "token_change")
            for stack in (None, "encoder")
            for subset in ("all", "no_sink")
            for layer, head in ((2, None), (0, None), (1, None), (1, 0))
            for value in [float(state.choice(values))]
        ]
        missing = {"value": math.nan, "reason": "constant cloud"}
        rows += [replace(row, **missing) for row in rows[:1]] if step % 3 == 0 else []
        rows = [replace(row, compared_to=0) if row.metric == "token_change" else row for row in rows]
        rows += [make_scalar(step, float(state.choice(values))), *make_failures(step)][: step % 3]
        live = plain.update_with_rows(rows)
        assert repr(live) == repr(frames.update(to_frame(rows)))
        found += live
    assert {alert.rule for alert in found} >= {rule.name for rule in RULES} - {"profile jumps"}


def test_against_a_naive_reference():
    """Falls of a whole run, value by value."""
    state = np.random.RandomState(0)
    rows = [
        make_row(step=step, layer=layer, metric="two_nn", value=float(state.choice([1.0, 2.0, 3.0, math.nan])), std=0.0)
        for step in range(12)
        for layer in range(5)
    ]
    expected = []
    for row in rows:
        before = [r.value for r in rows if r.layer == row.layer and r.step < row.step and not math.isnan(r.value)]
        if before and row.value <= 0.5 * before[-1]:
            expected.append((row.step, row.layer))
    assert steps_and_layers(rows, rule("falls", 0.5)) == expected != []

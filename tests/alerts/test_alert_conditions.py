"""What raises an alert and what does not, on made-up courses; the same live as over the whole history."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_runs import make_failures, make_row, make_run, make_scalar, to_frame

from repdyn.alerts import RULES, Rule, Watcher, alerts_of
from repdyn.alerts.series import PastObservations, observations
from repdyn.store.schema import too_few_distinct


def course(values, metric="two_nn", std=0.0, layer=1, subset="all", **more):
    """One layer at steps 0, 10, 20, ..."""
    return [
        make_row(step=10 * place, layer=layer, metric=metric, subset=subset, value=value, std=std, **more)
        for place, value in enumerate(values)
    ]


def raised(rows, *rules):
    return [(alert.step, alert.layer) for alert in alerts_of(to_frame(rows), rules)]


def rule(when, bound=None, metrics=("two_nn",), **more):
    return Rule(name=when, when=when, bound=bound, metrics=metrics, **more)


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ([8, 4], [10]),
        ([8, 4.01], []),
        ([8, 5, 2.5], [20]),
        ([8, 5, 4], []),  # against the measurement before, not against the highest
        ([8, math.nan, 4], [20]),  # against the last value there was
        ([8, 4, 4, 4], [10]),  # where it happens, not as long as it lasts
        ([8], []),
        ([0.0, 0.0], []),
    ],
)
def test_falls(values, steps):
    assert [step for step, _ in raised(course(values), rule("falls", 0.5))] == steps


@pytest.mark.parametrize(("std", "steps"), [(1.0, [10]), (2.0, [])])
def test_what_the_spread_over_batches_explains_is_no_fall(std, steps):
    """The difference of 4 against twice the root of the sum of both squares."""
    assert [step for step, _ in raised(course([8, 4], std=std), rule("falls", 0.5))] == steps


def test_rises():
    assert raised(course([1, 1.4, 2.1, 2.2]), rule("rises", 1.5)) == [(20, 1)]


def test_above_and_below_tell_of_the_crossing():
    values = [0.5, 0.95, 0.96, 0.5, 0.99]
    assert raised(course(values), rule("above", 0.9)) == [(10, 1), (40, 1)]
    assert raised(course(values), rule("below", 0.9)) == [(0, 1), (30, 1)]


def test_a_layer_that_loses_its_value_is_told_once_with_the_reason():
    rows = course([8, math.nan, math.nan], reason="the points contain NaN")
    (alert,) = alerts_of(to_frame(rows), [rule("undefined")])
    assert (alert.step, alert.layer, alert.message) == (
        10,
        1,
        "two_nn (all) of layer 1 has no value any more: the points contain NaN",
    )


def test_a_layer_that_never_had_a_value_is_not_told_unless_it_is_not_finite():
    assert (
        raised(course([math.nan, math.nan], reason="the input embeddings have 3 dimensions"), rule("undefined")) == []
    )
    assert raised(course([math.nan, math.nan], reason="the points contain inf"), rule("undefined")) == [(0, 1)]


def test_what_is_not_finite_from_the_first_on_has_no_value():
    (alert,) = alerts_of(to_frame([make_scalar(0, math.nan)]))
    assert alert.message == "train/loss has no value: NaN"


def test_a_comparison_without_its_earlier_checkpoint_is_no_alert():
    rows = [
        make_row(
            step=0, metric="cka_previous", layer=1, value=math.nan, reason="no states of a step before 0 are stored"
        ),
        make_row(step=10, metric="cka_previous", layer=1, value=0.9, compared_to=0),
        make_row(step=20, metric="cka_previous", layer=1, value=math.nan, reason="the states of step 10 could not be saved"),
    ]
    assert alerts_of(to_frame(rows)) == []


def test_a_step_that_comes_again_with_more_is_seen_once():
    watcher = Watcher([rule("falls", 0.5), rule("rises", 1.25, metrics=("train/loss",))])
    rows = [*course([8, 4]), make_scalar(0, 2.0)]
    assert len(watcher.see(to_frame(rows))) == 1
    again = [*(row for row in rows if row.step == 10), make_scalar(10, 3.0)]
    assert [alert.metric for alert in watcher.see(to_frame(again))] == ["two_nn", "train/loss"]
    assert watcher.see(to_frame([make_row(step=20, layer=1, metric="two_nn", value=3.9, std=0.0)])) == []


def test_layers_that_come_and_go_keep_their_own_past():
    watcher = Watcher([rule("falls", 0.5)])
    watcher.see(to_frame(course([8], layer=1) + course([3], layer=2)))
    assert watcher.see(to_frame([make_row(step=10, layer=2, metric="two_nn", value=3.0, std=0.0)])) == []
    found = watcher.see(to_frame([make_row(step=20, layer=n, metric="two_nn", value=2.0, std=0.0) for n in (1, 2)]))
    assert [(alert.layer, alert.since) for alert in found] == [(1, 0)]


def test_a_layer_whose_vectors_become_the_same_is_dead():
    counts = {"on_distinct": True, "n_vectors": 4096}
    reason = too_few_distinct(True, 2047, 4096)
    gone = make_row(step=10, layer=1, metric="two_nn", n_unique=2047, value=math.nan, reason=reason, **counts)
    (alert,) = alerts_of(to_frame([*course([8], n_unique=4000, **counts), gone]))
    assert (alert.rule, alert.detail) == ("no value", "fewer than half of the vectors are distinct: 2047 of 4096")


def profile(levels, layers=4):
    return [row for layer in range(layers) for row in course([level * (layer + 1) for level in levels], layer=layer)]


def test_a_profile_jumps_against_its_own_history():
    steady = [1, 1.05, 1.1, 1.16, 1.22]
    jumps = rule("jumps", 5)
    assert raised(profile([*steady, 2.4]), jumps) == [(50, None)]
    assert raised(profile([*steady, 1.4]), jumps) == []  # a change of 13 %, too small for any profile
    assert raised(profile([*steady[:4], 2.4]), jumps) == []  # three changes are no history
    assert raised(profile([1, 1.5, 2.3, 3.4, 5.1, 8.2]), jumps) == []  # as it always does
    assert raised(profile([1, 1, 1, 1, 1, 1, 2.4]), jumps) == []  # that it did not change says nothing


def test_a_jump_names_the_layer_that_moved_most():
    (alert,) = alerts_of(to_frame(profile([1, 1.05, 1.1, 1.16, 1.22, 2.4])), [rule("jumps", 5)])
    assert alert.message == (
        "two_nn (all) jumped: a change 5 times the usual one or more: most in layer 3, 4.88 at step 40, now 9.6"
    )


def test_changes_of_a_profile_are_means_over_layers():
    ((_, moments),) = observations(to_frame(profile([1, 2, 2])))
    first, second, third = moments
    past = PastObservations(first.layers)
    assert math.isnan(past.change(first))
    past = past.after(first)
    assert past.change(second) == pytest.approx(0.5)
    assert past.after(second).change(third) == 0.0


def test_scalars_and_heads_and_failures():
    rows = [make_scalar(0, 2.0), make_scalar(10, 3.0), *make_failures(20, run="decoder-quickstart", revision=None)]
    rows += course([8, 1], head=0)
    (alert,) = alerts_of(to_frame(rows))
    assert alert.message == "train/loss rose to 1.25 times what it was or more: 2 at step 0, now 3"
    assert (alert.layer, alert.subset) == (None, None)


def test_a_rule_on_subsets_is_on_these_alone():
    rows = course([8, 1]) + course([8, 1], subset="no_sink")
    found = alerts_of(to_frame(rows), [rule("falls", 0.5, subsets=("no_sink",))])
    assert [alert.subset for alert in found] == ["no_sink"]


def test_each_stack_is_looked_at_for_itself():
    rows = course([8, 4], stack="encoder") + course([8, 8], stack="decoder")
    (alert,) = alerts_of(to_frame(rows), [rule("falls", 0.5)])
    assert alert.message.startswith("two_nn (encoder, all) of layer 1 fell to 0.5 of what it was or less: ")


def test_a_sound_run_raises_none():
    assert alerts_of(make_run()) == []


def test_the_order_of_the_rows_does_not_matter():
    rows = to_frame(profile([1, 1.05, 1.1, 1.16, 1.22, 2.4, 1]) + course([8, 1], subset="no_sink"))
    assert alerts_of(rows.sample(frac=1, random_state=0), RULES) == alerts_of(rows, RULES) != []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([math.nan, 0.0, 0.3, 1.0, 1.1, 2.5, 9.0]), min_size=3, max_size=3),
        min_size=1,
        max_size=9,
    )
)
def test_what_is_found_at_a_step_rests_on_the_steps_up_to_it(profiles):
    """So that a run, which knows its past alone, raises the alerts that its store raises afterwards."""
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
    whole = alerts_of(frame, every)
    watcher = Watcher(every)
    live = [alert for step in range(len(profiles)) for alert in watcher.see(frame.loc[frame["step"] == step])]
    assert [repr(alert) for alert in live] == [repr(alert) for alert in whole]


def test_against_a_naive_reference():
    """Falls and crossings of a whole run, cell by cell."""
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
    assert raised(rows, rule("falls", 0.5)) == expected != []

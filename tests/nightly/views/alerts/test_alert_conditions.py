"""Conditions of alerts on synthetic series, step by step and over a whole run."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_runs import make_failures, make_row, make_scalar, to_frame

from repdyn.views.alerts import (
    RULES,
    AlertEvaluator,
    Rule,
    find_alerts,
)


def rule(when, bound=None, metrics=("two_nn",), **more):
    return Rule(name=when, when=when, bound=bound, metrics=metrics, **more)


@pytest.mark.parametrize("spread", [0.05, 0.2, 0.4])
def test_the_loss_of_a_sound_training_with_small_batches_has_hardly_an_alert(spread):
    """2,000 measurements of a loss whose batches vary; 430 of them are 1.25 times the one before at
    a spread of 0.2.
    """
    losses = np.exp(spread * np.random.default_rng(0).standard_normal(2000)) * (
        2 + 8 / np.arange(1, 2001) ** 0.5
    )
    found = find_alerts(to_frame([make_scalar(step, loss) for step, loss in enumerate(losses)]))
    assert len(found) <= 15
    diverging = [*losses[:1990], *losses[1990:] * 10.0]
    found = find_alerts(to_frame([make_scalar(step, loss) for step, loss in enumerate(diverging)]))
    assert 1990 in [alert.step for alert in found]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([math.nan, 0.0, 0.3, 1.0, 1.1, 2.5, 9.0]), min_size=1, max_size=3),
        min_size=1,
        max_size=9,
    )
)
def test_alerts_depend_only_on_the_steps_so_far(profiles):
    """Evaluation step by step gives the same alerts as over the whole run, also after the number of
    layers changes.
    """
    bounds = {"undefined": None, "falls": 0.5, "rises": 2, "above": 1, "below": 1, "jumps": 2}
    every = [rule(when, bound) for when, bound in bounds.items()]
    frame = to_frame(
        [
            make_row(step=step, layer=layer, metric="two_nn", value=value, std=0.01)
            for step, values in enumerate(profiles)
            for layer, value in enumerate(values)
        ]
    )
    whole = find_alerts(frame, every)
    evaluator = AlertEvaluator(every)
    live = [
        alert
        for step in range(len(profiles))
        for alert in evaluator.update(frame.loc[frame["step"] == step])
    ]
    assert [repr(alert) for alert in live] == [repr(alert) for alert in whole]


def test_rows_give_the_alerts_of_their_data_frame():
    state = np.random.RandomState(0)
    values = [0.1, 0.3, 1.0, 8.0, math.nan]
    frames = AlertEvaluator(RULES)
    plain = AlertEvaluator(RULES)
    found = []
    for step in range(40):
        rows = [
            make_row(
                step=step,
                layer=layer,
                metric=metric,
                stack=stack,
                subset=subset,
                head=head,
                value=value,
                std=0.1,
            )
            for metric in ("two_nn", "anisotropy", "token_change")
            for stack in (None, "encoder")
            for subset in ("all", "no_sink")
            for layer, head in ((2, None), (0, None), (1, None), (1, 0))
            for value in [float(state.choice(values))]
        ]
        missing = {"value": math.nan, "reason": "constant cloud"}
        rows += [row.with_columns(**missing) for row in rows[:1]] if step % 3 == 0 else []
        rows = [
            row.with_columns(compared_to=0) if row.metric == "token_change" else row for row in rows
        ]
        rows += [make_scalar(step, float(state.choice(values))), *make_failures(step)][: step % 3]
        live = plain.update(rows)
        assert repr(live) == repr(frames.update(to_frame(rows)))
        found += live
    assert {alert.rule for alert in found} >= {rule.name for rule in RULES} - {"profile jumps"}

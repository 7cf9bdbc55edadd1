"""Conditions of alerts on synthetic series, step by step and over a whole run."""

import math
from itertools import product

import numpy as np
import pytest
from alert_rules import rule
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_runs import make_failures, make_row, make_scalar, to_frame

from repdyn.views.alerts import (
    RULES,
    AlertEvaluator,
    find_alerts,
)


@pytest.mark.parametrize("spread", [0.05, 0.2, 0.4])
def test_the_loss_of_a_sound_training_with_small_batches_has_hardly_an_alert(spread):
    """2,000 measurements of a loss whose batches vary; 430 of them are 1.25 times the one before at
    a spread of 0.2.
    """
    losses = np.exp(spread * np.random.default_rng(0).standard_normal(2000)) * (
        2 + 8 / np.arange(1, 2001) ** 0.5
    )
    alerts = find_alerts(to_frame([make_scalar(step, loss) for step, loss in enumerate(losses)]))
    assert len(alerts) <= 15
    diverging = [*losses[:1990], *losses[1990:] * 10.0]
    alerts = find_alerts(to_frame([make_scalar(step, loss) for step, loss in enumerate(diverging)]))
    assert 1990 in [alert.step for alert in alerts]


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
        for alert in evaluator.update(frame.query("step == @step"))
    ]
    assert [repr(alert) for alert in live] == [repr(alert) for alert in whole]


def test_rows_give_the_alerts_of_their_data_frame():
    state = np.random.RandomState(0)
    values = [0.1, 0.3, 1.0, 8.0, math.nan]
    frames = AlertEvaluator(RULES)
    plain = AlertEvaluator(RULES)
    alerts = []
    columns = ("metric", "stack", "subset", "place")
    series = product(
        ("two_nn", "anisotropy", "token_change"),
        (None, "encoder"),
        ("all", "no_sink"),
        ((2, None), (0, None), (1, None), (1, 0)),
    )
    kinds = [dict(zip(columns, kind, strict=True)) for kind in series]
    for step in range(40):
        rows = []
        for kind in kinds:
            layer, head = kind["place"]
            fields = {name: kind[name] for name in ("metric", "stack", "subset")}
            if kind["metric"] == "token_change":
                fields["compared_to"] = 0
            value = float(state.choice(values))
            rows.append(make_row(step=step, layer=layer, head=head, value=value, std=0.1, **fields))
        if step % 3 == 0:
            rows.append(rows[0].with_columns(value=math.nan, reason="constant cloud"))
        rows += [make_scalar(step, float(state.choice(values))), *make_failures(step)][: step % 3]
        live = plain.update(rows)
        assert repr(live) == repr(frames.update(to_frame(rows)))
        alerts += live
    assert {alert.rule for alert in alerts} >= {rule.name for rule in RULES} - {"profile jumps"}

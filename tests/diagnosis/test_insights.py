"""Statements on synthetic runs whose story is known, and on the runs of the documentation."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from synthetic_runs import make_failures, make_row, make_rows, make_scalar, to_frame

from repdyn import insights, open_store
from repdyn.alerts import find_alerts
from repdyn.diagnosis import RunInsights, describe_run
from repdyn.diagnosis.curves import _hinge, _knots, _squares
from repdyn.store.scalars import EMBEDDING_NORM, PROBE_LOSS

RUNS = Path(__file__).parents[2] / "docs" / "runs"
STEPS = tuple(range(0, 240, 10))


def described(rows) -> RunInsights:
    frame = to_frame(rows)
    return describe_run(frame, find_alerts(frame))


def layers_at(values_by_step, metric="two_nn", subset="all", noise=0.0, n_layers=6, **more):
    """Return rows of layers that all have the value of their step."""
    return [
        make_row(step=step, layer=layer, depth=layer / 5, metric=metric, subset=subset, value=value, std=noise, **more)
        for step, value in values_by_step.items()
        for layer in range(n_layers)
    ]


def losses(values):
    return [make_scalar(10 * place, value) for place, value in enumerate(values)]


def curve(function, steps=STEPS):
    return {step: float(function(step)) for step in steps}


def flat(step: int) -> float:
    """Return almost the same value at all of STEPS, though not to the last bit, and without a trend."""
    return 5.0 + 1e-9 * (7 * step // 10 % len(STEPS))


def kinds(found: RunInsights) -> list[str]:
    return [statement.kind for statement in found.statements]


def only(found: RunInsights, kind: str):
    (statement,) = [statement for statement in found.statements if statement.kind == kind]
    return statement


def test_a_healthy_run():
    found = described([*layers_at(curve(flat)), *losses(np.linspace(5, 2, 24))])
    assert (found.status, found.headline) == (
        "healthy",
        "healthy: The training loss fell from 5 at step 0 to 2.13 at step 230.",
    )
    assert found.reason == "No alert in the second half of the run, and the loss has not diverged."


def test_repeated_checkpoints():
    by_step = curve(lambda step: 5.0 + 0.01 * (step if step not in {50, 80} else 120))
    (statement,) = [each for each in described(layers_at(by_step)).statements if "repeated" in each.kind]
    assert (statement.severity, statement.kind, statement.steps) == ("watch", "repeated checkpoint", (50, 80, 120))
    assert statement.sentence.startswith("Steps 50, 80 and 120 have the same values to the last bit: copies of one")
    mixed = [make_scalar(step, 1.0 if step in {50, 80} else 2.0 + step, EMBEDDING_NORM) for step in STEPS]
    found = described([*layers_at(curve(lambda step: 5.0 + 0.01 * step)), *mixed])
    assert only(found, "repeated embeddings").steps == (50, 80)
    found = described([*layers_at(by_step), *mixed])
    assert "repeated embeddings" not in kinds(found)  # these steps repeat each other altogether


def test_the_first_two_steps_may_be_the_same():
    assert "repeated checkpoint" not in kinds(described(layers_at(curve(lambda step: max(step, 10)))))
    steps = only(described(layers_at(curve(lambda step: max(step, 20)))), "repeated checkpoint").steps
    assert steps == (0, 10, 20)


def test_a_loss_that_diverged():
    values = [*np.linspace(5, 2, 12), *np.linspace(2, 4, 12)]
    found = described([*layers_at(curve(lambda step: 5.0)), *losses(values)])
    assert found.status == "failed"
    assert found.statements[0].kind == "loss diverged"
    assert found.reason == found.statements[0].sentence
    assert found.statements[0].evidence["ratio"] == pytest.approx(
        np.median(values[-3:]) / min(np.median(values[i : i + 3]) for i in range(22))
    )


@pytest.mark.parametrize(("last", "status"), [(2.45, "healthy"), (2.55, "failed")])
def test_the_bound_of_a_diverged_loss_is_a_quarter_above_its_lowest_level(last, status):
    found = described([*layers_at(curve(lambda step: 5.0)), *losses([5, 4, 3, 2, 2, 2, 2.3, last, last, last])])
    assert found.status == status


def test_a_single_high_loss_is_no_divergence():
    found = described([*layers_at(curve(lambda step: 5.0)), *losses([5, 4, 3, 2, 2, 2, 2, 2, 2, 9])])
    assert "loss diverged" not in kinds(found)


@pytest.mark.parametrize(("value", "word"), [(math.nan, "NaN"), (math.inf, "infinite")])
def test_a_loss_that_is_not_finite(value, word):
    found = described([*layers_at(curve(lambda step: 5.0)), *losses([5, 4, value, 3, 2, value, value])])
    assert (found.status, found.statements[0].kind) == ("failed", "loss not finite")
    assert found.statements[0].sentence == f"The training loss has been {word} since step 50."


def test_states_that_are_not_finite():
    rows = [*layers_at(curve(lambda step: 5.0))]
    broken = [
        replace(row, value=math.nan, low=None, high=None, reason="the points contain NaN")
        if row.step == STEPS[-1] and row.layer == 3
        else row
        for row in rows
    ]
    found = described(broken)
    assert (found.status, only(found, "missing values").layers) == ("failed", (3,))


def test_overfitting():
    validation = {0: 5.0, 50: 3.0, 100: 2.5, 150: 2.7, 200: 3.1}
    rows = [*layers_at(curve(flat)), *losses(np.linspace(5, 1.5, 24))]
    found = described([*rows, *(make_scalar(step, value, "validation/loss") for step, value in validation.items())])
    assert (found.status, found.statements[0].kind) == ("watch", "overfitting")
    assert found.statements[0].steps == (100, 200)
    assert "validation loss rose from 2.5 at step 100 to 3.1" in found.statements[0].sentence
    # as long as both fall, it is no overfitting, however far apart they are
    falling = {0: 5.0, 50: 4.0, 100: 3.5, 150: 3.2, 200: 3.1}
    found = described([*rows, *(make_scalar(step, value, "validation/loss") for step, value in falling.items())])
    assert (found.status, only(found, "generalisation gap").evidence["last_validation_loss"]) == ("healthy", 3.1)


def test_a_peak_is_described_with_both_ends():
    found = described(layers_at(curve(lambda step: 20 - abs(step - 100) / 10)))
    peak = only(found, "peak")
    assert peak.sentence == (
        "Intrinsic dimension (TwoNN) (mean over 6 layers) rose from 10 at step 0 to 19 near step 90, then fell to 7 (-63%)."
    )
    assert peak.evidence["peak"] == 19.0  # the running median flattens a tip
    assert "step=90" in peak.link
    assert "turn" not in kinds(found)


def test_a_single_outlier_is_no_peak():
    found = described(layers_at(curve(lambda step: 50.0 if step == 100 else 10.0)))
    assert not {"peak", "trough", "change"} & set(kinds(found))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_change_is_described(sign):
    found = described(layers_at(curve(lambda step: 20 + sign * step / 20), metric="effective_rank"))
    change = only(found, "change")
    assert (change.evidence["first"], change.evidence["last"]) == (20.0, 20 + sign * 11.5)
    assert ("rose" if sign > 0 else "fell") in change.sentence


def test_a_change_within_the_noise_is_not_described():
    values = curve(lambda step: 10 + step / 100)
    assert "change" in kinds(described(layers_at(values, noise=0.01)))
    assert "change" not in kinds(described(layers_at(values, noise=8.0)))


def test_a_turn_is_found_where_it_is():
    steps = [0, *(2**k for k in range(14))]
    at = 64
    found = described(
        layers_at(curve(lambda step: 20 - 5 * min(math.log10(1 + step), math.log10(1 + at)), steps), noise=0.01)
    )
    turn = only(found, "turn")
    assert turn.steps == (at,)
    assert turn.evidence["slope_before"] == pytest.approx(-5.0)
    assert turn.evidence["slope_after"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.extended
def test_noise_alone_turns_rarely():
    generator = np.random.default_rng(0)
    found = sum(
        "turn" in kinds(described(layers_at(curve(lambda step: generator.normal(10, 1)), n_layers=1, noise=1.0)))
        for _ in range(60)
    )
    assert found <= 1


def test_coupling_is_that_of_changes_not_of_trends():
    generator = np.random.default_rng(1)
    steps = range(0, 400, 10)
    wiggle = generator.normal(size=len(steps))
    loss = [3 - 0.01 * place + 0.2 * each for place, each in enumerate(wiggle)]
    dimension = {step: 30 - 0.1 * place + 3 * wiggle[place] for place, step in enumerate(steps)}
    found = described([*layers_at(dimension), *losses(loss)])
    coupling = only(found, "coupling")
    assert float(coupling.evidence["low"]) > 0.5
    assert "the same direction as the training loss" in coupling.sentence
    assert coupling.evidence["loss"] == "train/loss"
    on_probe = [make_scalar(10 * place, value, PROBE_LOSS) for place, value in enumerate(loss)]
    of_a_sweep = only(described([*layers_at(dimension), *on_probe]), "coupling")
    assert of_a_sweep.sentence == coupling.sentence.replace("training loss", "loss on the probe")
    trends = described([*layers_at(curve(lambda step: 30 - step / 20, steps)), *losses(loss)])
    assert "coupling" not in kinds(trends)  # both fall, and that is all


def test_a_layer_that_stands_out():
    rows = [
        make_row(step=step, layer=layer, depth=layer / 6, metric="anisotropy", subset="no_sink", value=value, std=0.0)
        for step in STEPS
        for layer, value in enumerate([0.2, 0.22, 0.21, 0.9, 0.2, 0.19, 0.2])
    ]
    found = described(rows)
    layer = only(found, "layer")
    assert (layer.layers, layer.steps) == ((3,), (STEPS[-1],))
    assert layer.sentence == (
        "Anisotropy of layer 3 is 0.9 at step 230, above 0.21 and 0.2 in the layers before and after it."
    )


def test_a_smooth_profile_has_no_layer_that_stands_out():
    assert "layer" not in kinds(described(make_rows()))


def test_many_neighbours_in_the_own_window():
    shares = {"design": "dense", "own_window_excluded": False}
    rows = [
        replace(row, same_window_share=0.3 + row.step / 500)
        for row in layers_at(curve(lambda step: 5.0), **shares)
    ]  # fmt: skip
    statement = only(described(rows), "own window")
    assert (statement.evidence["first_share"], statement.evidence["last_share"]) == pytest.approx((0.3, 0.76))
    assert "76%" in statement.sentence
    assert "up from 30%" in statement.sentence


def test_checkpoints_that_failed():
    found = described(
        [*make_rows(), *(row for step in (1024, 2048) for row in make_failures(step, run="decoder-quickstart"))]
    )
    statement = only(found, "failed measurement")
    assert (found.status, statement.steps) == ("watch", (1024, 2048))


def test_alerts_of_the_first_half_do_not_make_a_run_watched():
    falls = {step: 8.0 if step < 30 else 3.0 for step in STEPS}
    early = described([*layers_at(falls), *losses(np.linspace(5, 2, 24))])
    late = described([*layers_at({step: 8.0 if step < 200 else 3.0 for step in STEPS}), *losses(np.linspace(5, 2, 24))])
    assert (early.status, late.status) == ("healthy", "watch")
    assert only(early, "alert").sentence.startswith("Alert (dimension halved) at step 30: two_nn (all) of layers 0-5")


def test_too_few_steps_and_finished_models_have_no_status():
    assert described(layers_at({0: 5.0, 10: 4.0})).status == "unknown"
    found = described([replace(row, stage="finished") for row in layers_at({0: 5.0})])
    assert (found.status, found.reason) == ("unknown", "A finished model has no course of training to judge.")


@pytest.mark.extended
@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.5, 100) | st.just(math.nan), min_size=7, max_size=12), st.integers(0, 2**16))
@example([1.0] * 8, 0)  # a constant correlates with nothing
def test_any_course_gives_the_same_statements_for_any_order_of_its_rows(values, seed):
    rows = layers_at({10 * place: value for place, value in enumerate(values)}, reason=None)
    rows = [replace(row, reason="too few vectors") if math.isnan(row.value or 0.0) else row for row in rows]
    frame = to_frame([*rows, *losses(np.linspace(5, 2, len(values)))])
    shuffled = frame.sample(frac=1.0, random_state=seed)
    first, second = (describe_run(of, find_alerts(of)).as_dict() for of in (frame, shuffled))
    assert json.dumps(first, allow_nan=False) == json.dumps(second, allow_nan=False)


def test_severity_ranks_before_weight():
    found = described([*layers_at({s: 8.0 if s < 200 else 3.0 for s in STEPS}), *losses([5, 2, 2, 2, 2, 2, 9, 9, 9])])
    ranks = [("failed", "watch", "note").index(statement.severity) for statement in found.statements]
    assert ranks == sorted(ranks)
    assert ranks[0] == 0
    assert found.statements[0].sentence in found.headline


@pytest.mark.parametrize(
    ("folder", "statuses"),
    [
        ("decoder", ["healthy"]),
        ("encoder", ["healthy"]),
        ("diverging", ["failed"]),
        ("finished", ["unknown", "unknown"]),
        ("topics", ["healthy", "healthy"]),
    ],
)
def test_the_runs_of_the_documentation(folder, statuses):
    store = open_store(RUNS / folder)
    found = insights(store)
    assert [run.status for run in found] == statuses
    for run in found:
        assert run.as_dict() == json.loads(json.dumps(run.as_dict(), allow_nan=False))
        assert all(statement.sentence.endswith(".") for statement in run.statements)
        assert all(statement.link.startswith("#run=") for statement in run.statements)
        steps = set(store.to_pandas(run.run)["step"])
        assert all(set(statement.steps) <= steps for statement in run.statements)


def test_the_diverging_run_is_told_from_its_loss_and_its_collapse():
    (found,) = insights(open_store(RUNS / "diverging"))
    assert found.headline.startswith("failed: The training loss diverged")
    peak = next(each for each in found.statements if each.metric == "two_nn" and each.kind == "peak")
    assert peak.evidence["last"] == pytest.approx(0.999, abs=0.001)


def test_the_knots_that_are_tried_contain_that_of_least_squares():
    random = np.random.default_rng(0)
    for number in range(40):
        steps = np.unique(random.integers(0, 10 ** random.integers(2, 6), random.integers(12, 200)))
        places = np.log10(1.0 + steps - steps[0])
        values = (
            random.normal(size=len(places)).cumsum() if number % 2 else np.maximum(0.0, places - places[5]) + places
        )
        values += 1e-3 * random.normal(size=len(places)) + 10.0 ** (number % 8)
        left = {
            knot: _squares(np.column_stack([np.ones_like(places), places, _hinge(places, knot)]), values)[0]
            for knot in range(2, len(places) - 2)
        }
        tried = _knots(places, values).tolist()
        assert min(left, key=lambda knot: left[knot]) in tried
        assert len(tried) < len(left)


def test_each_dimension_below_one_is_told_with_its_layers_steps_and_share():
    steps = (0, 10, 20)
    rows = [
        *layers_at({step: 0.5 + step / 10 for step in steps}, "two_nn"),
        *layers_at({step: 3.0 - step / 8 for step in steps}, "levina_bickel", n_layers=4),
        *layers_at(dict.fromkeys(steps, 0.5), "anisotropy"),  # no dimension
        *layers_at(dict.fromkeys(steps, math.nan), "local_dimension", reason="none"),
    ]
    found = [each for each in described(rows).statements if each.kind == "below 1"]
    assert {(each.metric, each.layers, each.steps, each.severity) for each in found} == {
        ("two_nn", tuple(range(6)), (0,), "note"),
        ("levina_bickel", tuple(range(4)), (20,), "watch"),
    }
    assert {each.metric: (each.evidence["lowest"], each.evidence["share"]) for each in found} == {
        "two_nn": (0.5, 1 / 3),
        "levina_bickel": (0.5, 1 / 3),
    }

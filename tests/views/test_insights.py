"""The status of a run and the statements on it: said where they hold, and where they do not,
not.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from judged_runs import layers_at, losses
from scipy import stats
from scipy.stats import spearmanr
from small import HandWritten
from synthetic_runs import make_failures, make_row, make_rows, make_scalar, to_frame

from repdyn import Metric, Tracker
from repdyn.store.schema import PROBE_LOSS, ReasonCode, code_of_text
from repdyn.views.judging import RunInsights, described_runs, stacks_of_run

STEPS = tuple(range(0, 240, 10))


def of_one(frame, *rules) -> RunInsights:
    return stacks_of_run(frame, *rules)[0].insights


def described(rows) -> RunInsights:
    frame = to_frame(rows)
    return of_one(frame)


def curve(function, steps=STEPS):
    return {step: float(function(step)) for step in steps}


def flat(step: int) -> float:
    """Return almost the same value at all of STEPS, though not to the last bit, and without a
    trend.
    """
    return 5.0 + 1e-9 * (7 * step // 10 % len(STEPS))


def kinds(found: RunInsights) -> list[str]:
    return [statement.kind for statement in found.statements]


def only(found: RunInsights, kind: str):
    (statement,) = [statement for statement in found.statements if statement.kind == kind]
    return statement


def test_a_healthy_run():
    insights = described([*layers_at(curve(flat)), *losses(np.linspace(5, 2, 24))])
    assert insights.status == "healthy"
    assert (
        insights.headline
        == f"healthy: {insights.reason} The training loss fell from 5 at step 0 to 2 at step 230."
    )
    assert (
        insights.reason == "No alert in the second half of the run, and the loss has not diverged."
    )


def test_a_loss_that_prints_the_same_twice_did_not_fall():
    """It said: fell from 5.31 at step 0 to 5.31 at step 230."""
    insights = described([*layers_at(curve(flat)), *losses(np.linspace(5.312, 5.309, 24))])
    assert (
        only(insights, "loss").sentence == "The training loss was 5.31 at step 0 and at step 230."
    )


def test_repeated_checkpoints():
    by_step = curve(lambda step: 5.0 + 0.01 * (step if step not in {50, 80} else 120))
    insights = described(layers_at(by_step))
    (statement,) = [each for each in insights.statements if "repeated" in each.kind]
    assert insights.status == "watch"
    assert insights.reason == statement.sentence  # it was healthy, above such statements
    assert statement.severity == "watch"
    assert statement.kind == "repeated checkpoint"
    assert statement.steps == (50, 80, 120)
    assert statement.sentence.startswith(
        "Steps 50, 80 and 120 have the same values to the last bit: copies of one"
    )


def replaced(row, **changes):
    """Return a row with other values, and with the code of its reason."""
    reason = changes.get("reason")
    code = None if reason is None else code_of_text(reason)
    return row.with_columns(**changes, reason_code=code)


def with_layers(change, metrics=("anisotropy", "two_nn"), steps=STEPS):
    """Describe five layers with values of their own, but for what ``change`` returns of a step,
    layer and metric.
    """
    rows = []
    for step, layer, metric in itertools.product(steps, range(5), metrics):
        row = make_row(
            step=step, layer=layer, depth=layer / 4, module=f"h.{layer - 1}", metric=metric
        )
        value = 0.3 + layer / 30 + step / 7e3 + (metric == "two_nn")
        rows.append(replaced(row, **({"value": value} | change(step, layer, metric))))
    return described(rows)


def test_a_block_that_changes_nothing():
    def repeat(step, layer, metric, bit=0.0, anisotropy=0.43):
        value = (anisotropy if metric == "anisotropy" else 2.3) + step / 7e3
        return {"value": value + bit * layer} if layer in {2, 3} and step >= 100 else {}

    insights = with_layers(repeat)
    sentence = "Layer 3 (h.2) has the values of the layer before since step 100: its block changes"
    assert insights.status == "watch"
    assert insights.reason == f"{sentence} nothing that was measured."
    assert (
        with_layers(lambda *cell: repeat(*cell, bit=1e-8)).reason == insights.reason
    )  # one step after it was set to 0
    near = with_layers(lambda *cell: repeat(*cell, bit=1e-5))
    # vectors on a line stay there, and the block that made the line was not the one that was named
    on_a_line = with_layers(lambda *cell: repeat(*cell, anisotropy=0.99))
    undefined = with_layers(lambda *_: {"value": math.nan, "reason": "none"})
    single = with_layers(repeat, metrics=["two_nn"])
    before_training = with_layers(repeat, steps=[0])
    assert not any(
        "idle block" in kinds(other)
        for other in (near, on_a_line, undefined, single, before_training)
    )


def test_a_layer_that_collapsed_is_named_before_its_missing_values():
    equal = {
        "value": math.nan,
        "n_unique": 1,
        "reason": "batch 0: 1 distinct of 4096 points, at least 3 needed",
    }
    near = equal | {
        "n_unique": 9,
        "reason": "batch 0: the 4096 points differ by less than rounding",
    }
    insights = with_layers(
        lambda step, layer, _: {3: equal, 4: near}.get(layer, {}) if step >= 200 else {}
    )
    equal_up_to = "all vectors of each are equal up to rounding; the first may explain the others"
    sentence = f"Layers 3-4 (h.2 to h.3) collapsed since step 200: {equal_up_to}."
    assert insights.status == "watch"
    assert insights.reason == sentence
    assert insights.statements[0].sentence == sentence
    assert [each.severity for each in insights.statements].count(
        "watch"
    ) == 1  # one collapse was told four times
    assert (
        "has no value any more: in layer 3, all 4096 vectors are equal."
        in insights.statements[1].sentence
    )


def test_a_loss_that_diverged():
    values = [*np.linspace(5, 2, 12), *np.linspace(2, 4, 12)]
    insights = described([*layers_at(curve(lambda step: 5.0)), *losses(values)])
    assert insights.status == "failed"
    assert insights.statements[0].kind == "loss diverged"
    assert insights.reason == insights.statements[0].sentence
    assert insights.statements[0].evidence["ratio"] == pytest.approx(
        np.median(values[-3:]) / min(np.median(values[i : i + 3]) for i in range(22))
    )


def test_a_single_high_loss_is_no_divergence():
    insights = described(
        [*layers_at(curve(lambda step: 5.0)), *losses([5, 4, 3, 2, 2, 2, 2, 2, 2, 9])]
    )
    assert "loss diverged" not in kinds(insights)


@pytest.mark.parametrize(("value", "word"), [(math.nan, "NaN"), (math.inf, "infinite")])
def test_a_loss_that_is_not_finite(value, word):
    insights = described(
        [*layers_at(curve(lambda step: 5.0)), *losses([5, 4, value, 3, 2, value, value])]
    )
    assert insights.status == "failed"
    assert insights.statements[0].kind == "loss not finite"
    assert insights.statements[0].sentence == f"The training loss has been {word} since step 50."


@pytest.mark.parametrize(
    ("since", "reason", "status"),
    [
        pytest.param(STEPS[-1], "the points contain NaN", "failed", id="NaN"),
        pytest.param(
            0,
            "more than half of the vectors (99%) are nearly the same as another one",
            "healthy",
            id="few",
        ),
        pytest.param(
            10,
            "more than half of the vectors (99%) are nearly the same as another one",
            "watch",
            id="lost",
        ),
        pytest.param(0, "out of memory", "watch", id="other reason"),
    ],
)
def test_missing_values(since, reason, status):
    """What has few distinct vectors from the first step on says nothing of the training."""
    rows = [
        replaced(row, value=math.nan, low=None, high=None, reason=reason)
        if row.step >= since and row.layer == 3
        else row
        for row in layers_at(curve(flat))
    ]
    insights = described(rows)
    assert insights.status == status
    assert only(insights, "missing values").layers == (3,)
    assert ("as at every step before" in only(insights, "missing values").sentence) == (
        status == "healthy"
    )


@pytest.mark.parametrize(("at", "severity"), [(60, "note"), (200, "watch")])
def test_an_alert_calls_for_attention_in_the_second_half_of_the_run(at, severity):
    """One of the first steps had every long run watched for ever."""
    insights = described(layers_at(curve(lambda step: 20.0 if step < at else 4.0)))
    assert only(insights, "alert").severity == severity


def test_overfitting():
    validation = {0: 5.0, 50: 3.0, 100: 2.5, 150: 2.7, 200: 3.1}
    rows = [*layers_at(curve(flat)), *losses(np.linspace(5, 1.5, 24))]
    insights = described(
        [*rows, *(make_scalar(step, value, "val/loss") for step, value in validation.items())]
    )
    assert insights.status == "watch"
    assert insights.statements[0].kind == "overfitting"
    assert insights.statements[0].steps == (100, 200)
    assert "validation loss grew from 2.5 at step 100 to 3.1" in insights.statements[0].sentence
    # where the training loss rises too, the model unlearns what it had
    rows_of_rise = [*layers_at(curve(flat)), *losses(np.linspace(2, 2.4, 24))]
    insights = described(
        [
            *rows_of_rise,
            *(make_scalar(step, value, "val/loss") for step, value in validation.items()),
        ]
    )
    assert "overfitting" not in kinds(insights)
    # as long as both fall, it is no overfitting, however far apart they are
    falling = {0: 5.0, 50: 4.0, 100: 3.5, 150: 3.2, 200: 3.1}
    insights = described(
        [*rows, *(make_scalar(step, value, "val/loss") for step, value in falling.items())]
    )
    assert insights.status == "healthy"
    assert only(insights, "generalisation gap").evidence["last_validation_loss"] == 3.1


def test_a_peak_is_described_with_both_ends():
    found = described(layers_at(curve(lambda step: 20 - abs(step - 100) / 10)))
    peak = only(found, "peak")
    assert peak.sentence == (
        "On all vectors, intrinsic dimension (TwoNN), mean over 5 layers, grew from 10 at "
        "step 0 to 19 near step 90, then fell to 7 (by 63%)."
    )
    assert peak.evidence["peak"] == 19.0  # the running median flattens a tip
    assert "step=90" in peak.link


def test_a_single_outlier_is_no_peak():
    found = described(layers_at(curve(lambda step: 50.0 if step == 100 else 10.0)))
    assert not {"peak", "trough", "change"} & set(kinds(found))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_change_is_described(sign):
    found = described(layers_at(curve(lambda step: 20 + sign * step / 20), metric="effective_rank"))
    change = only(found, "change")
    assert change.evidence["first"] == 20.0
    assert change.evidence["last"] == 20 + sign * 11.5
    assert ("grew" if sign > 0 else "fell") in change.sentence
    assert change.sentence.endswith(
        f", and was still {'growing' if sign > 0 else 'falling'} at the end."
    )
    ended = described(
        layers_at(curve(lambda step: 20 + sign * min(step, 90) / 20), metric="effective_rank")
    )
    assert "at the end" not in only(ended, "change").sentence
    fell_back = curve(lambda step: 20 + sign * (0 if step < 120 else 9 - step / 99))
    assert (
        "at the end"
        not in only(described(layers_at(fell_back, metric="effective_rank")), "change").sentence
    )


def test_a_change_within_the_noise_is_not_described():
    values = curve(lambda step: 10 + step / 100)
    assert "change" in kinds(described(layers_at(values, noise=0.01)))
    assert "change" not in kinds(described(layers_at(values, noise=8.0)))


def test_coupling_is_that_of_changes_not_of_trends():
    generator = np.random.default_rng(1)
    steps = range(0, 400, 10)
    wiggle = generator.normal(size=len(steps))
    loss = [3 - 0.01 * number + 0.2 * each for number, each in enumerate(wiggle)]
    dimension = {step: 30 - 0.1 * number + 3 * wiggle[number] for number, step in enumerate(steps)}
    found = described([*layers_at(dimension), *losses(loss)])
    coupling = only(found, "coupling")
    assert float(coupling.evidence["low"]) > 0.5
    assert "the same direction as the training loss" in coupling.sentence
    on_probe = [make_scalar(10 * number, value, PROBE_LOSS) for number, value in enumerate(loss)]
    of_a_sweep = only(described([*layers_at(dimension), *on_probe]), "coupling")
    assert of_a_sweep.sentence == coupling.sentence.replace("training loss", "loss on the probe")
    trends = described([*layers_at(curve(lambda step: 30 - step / 20, steps)), *losses(loss)])
    assert "coupling" not in kinds(trends)  # both fall, and that is all


def test_a_layer_that_stands_out():
    rows = [
        make_row(
            step=step,
            layer=layer,
            depth=layer / 6,
            metric="anisotropy",
            subset="no_sink",
            value=value,
            std=0.0,
        )
        for step in STEPS
        for layer, value in enumerate([0.2, 0.22, 0.21, 0.9, 0.2, 0.19, 0.2])
    ]
    found = described(rows)
    layer = only(found, "layer")
    assert layer.layers == (3,)
    assert layer.steps == (STEPS[-1],)
    assert layer.sentence == (
        "Anisotropy of layer 3 is 0.9 at step 230, above 0.21 and 0.2 in the layers before "
        "and after it."
    )


def test_many_neighbours_in_the_own_window():
    shares = {"design": "dense", "own_window_excluded": False}
    rows = [
        row.with_columns(same_window_share=0.3 + row.step / 500)
        for row in layers_at(curve(lambda step: 5.0), **shares)
    ]  # fmt: skip
    statement = only(described(rows), "own window")
    assert (statement.evidence["first_share"], statement.evidence["last_share"]) == pytest.approx(
        (0.3, 0.76)
    )
    assert "76%" in statement.sentence
    assert "up from 30%" in statement.sentence


def test_checkpoints_that_failed():
    insights = described(
        [
            *make_rows(),
            *(
                row
                for step in (1024, 2048)
                for row in make_failures(step, run="decoder-quickstart")
            ),
        ]
    )
    statement = only(insights, "failed measurement")
    assert insights.status == "watch"
    assert statement.steps == (1024, 2048)


def test_too_few_steps_and_finished_models_have_no_status():
    assert described(layers_at({0: 5.0, 10: 4.0})).status == "unknown"
    insights = described([row.with_columns(stage="finished") for row in layers_at({0: 5.0})])
    assert insights.status == "unknown"
    assert insights.reason == "A finished model has no course of training to judge."


def test_severity_ranks_before_weight():
    insights = described(
        [
            *layers_at({s: 8.0 if s < 200 else 3.0 for s in STEPS}),
            *losses([5, 2, 2, 2, 2, 2, 9, 9, 9]),
        ]
    )
    ranks = [
        ("failed", "watch", "note").index(statement.severity) for statement in insights.statements
    ]
    assert ranks == sorted(ranks)
    assert ranks[0] == 0
    assert insights.statements[0].sentence in insights.headline


def test_each_dimension_below_one_is_told_with_its_layers_steps_and_share():
    steps = (0, 10, 20)
    rows = [
        *layers_at({step: 0.5 + step / 10 for step in steps}, "two_nn"),
        *layers_at({step: 3.0 - step / 8 for step in steps}, "levina_bickel", n_layers=4),
        *layers_at(dict.fromkeys(steps, 0.5), "anisotropy"),  # no dimension
        *layers_at(dict.fromkeys(steps, math.nan), "local_dimension", reason="none"),
    ]
    told = [
        statement
        for statement in described(rows).statements
        if statement.kind == "nearest neighbour"
    ]
    assert {
        (statement.metric, statement.layers, statement.steps, statement.severity)
        for statement in told
    } == {
        ("two_nn", tuple(range(6)), (0,), "note"),
        ("levina_bickel", tuple(range(4)), (20,), "watch"),
    }
    assert {
        statement.metric: (statement.evidence["lowest"], statement.evidence["share"])
        for statement in told
    } == {
        "two_nn": (0.5, 1 / 3),
        "levina_bickel": (0.5, 1 / 3),
    }


STEPS_OF_ACTIVATION_STATEMENTS = np.array([0, 100, 200, 500, *range(1000, 40_001, 1000)], float)


def grows(amplitude, decay, time_scale, baseline):
    x = time_scale * STEPS_OF_ACTIVATION_STATEMENTS + 1
    return amplitude * np.exp(-decay * x) * np.log(x) + baseline


COURSES = [
    np.full(len(STEPS_OF_ACTIVATION_STATEMENTS), 3.0),
    grows(90, 0.05, 1e-3, 2),
    grows(200, 0.01, 5e-5, 4),
    np.sin(STEPS_OF_ACTIVATION_STATEMENTS / 2e3),
]


def fits_told(courses, metric="largest_activation", **changes):
    rows = [
        make_row(
            step=int(step),
            layer=layer,
            depth=layer / 3,
            metric=metric,
            value=float(value),
            std=0.0,
            **changes,
        )
        for layer, values in enumerate(courses)
        for step, value in zip(STEPS_OF_ACTIVATION_STATEMENTS, values, strict=True)
    ]
    return [
        each for each in of_one(to_frame(rows), []).statements if each.kind == "activation growth"
    ]


def test_the_layers_that_follow_the_formula():
    (statement,) = fits_told(COURSES)
    assert statement.sentence == (
        "Largest activation follows A exp(-lambda x) log(x) + K with x = gamma step + t0 in 2 of "
        "4 layers (mean R² 1.000), with a "
        "maximum within the run in layer 1; in layer 2 A 200, lambda 0.01, gamma 5e-05, t0 1, K "
        "4 (R² 1.000, 44 steps)."
    )
    assert statement.layers == (1, 2)
    assert statement.steps == (0, 40_000)
    assert statement.evidence["amplitude"] == pytest.approx(200, rel=1e-2)
    assert statement.evidence["n_steps"] == 44
    assert statement.evidence["layers"] == 2
    assert statement.severity == "note"


def test_nothing_is_said_of_other_courses_and_metrics():
    assert fits_told([COURSES[0], COURSES[3]]) == []
    assert fits_told(COURSES, metric="norm") == []
    assert (
        fits_told(
            [np.where(STEPS_OF_ACTIVATION_STATEMENTS < 5000, course, np.nan) for course in COURSES]
        )
        == []
    )


STEPS_OF_LOSS_CORRELATIONS = tuple(range(0, 120, 10))


GENERATOR = np.random.default_rng(0)


WIGGLE = GENERATOR.normal(size=len(STEPS_OF_LOSS_CORRELATIONS))


LOSSES = 5 - np.arange(len(STEPS_OF_LOSS_CORRELATIONS)) / 4 + WIGGLE / 10


DIMENSION = (
    20 - np.arange(len(STEPS_OF_LOSS_CORRELATIONS)) - WIGGLE
)  # falls as the loss does, while its changes oppose those of the loss


def correlations(values=DIMENSION, losses=LOSSES, scalar=PROBE_LOSS, **changes):
    rows = [
        make_row(
            step=step,
            layer=layer,
            depth=layer / 2,
            metric="two_nn",
            value=float(value) + layer,
            **changes,
        )
        for step, value in zip(STEPS_OF_LOSS_CORRELATIONS, values, strict=False)
        for layer in range(3)
    ]
    scalars = [
        make_scalar(step, float(loss), scalar, **changes)
        for step, loss in zip(STEPS_OF_LOSS_CORRELATIONS, losses, strict=False)
    ]
    return of_one(to_frame([*rows, *scalars]), []).loss_correlations


def test_values_and_changes_are_correlated_apart():
    correlated = correlations()
    (of_metric,) = correlated.of_metrics
    assert correlated.loss == "loss on the probe"
    assert correlated.reason is None
    assert of_metric.metric == "two_nn"
    assert of_metric.subset == "all"
    assert of_metric.values.value == pytest.approx(stats.spearmanr(DIMENSION, LOSSES)[0])
    assert of_metric.changes.value == pytest.approx(
        stats.spearmanr(np.diff(DIMENSION), np.diff(LOSSES))[0]
    )
    assert of_metric.values.n == 12
    assert of_metric.changes.n == 11
    assert of_metric.values.low > 0.7
    assert of_metric.changes.high < -0.5


def test_eight_checkpoints_are_needed():
    assert correlations(DIMENSION[:8]).of_metrics
    correlated = correlations(DIMENSION[:7])
    assert correlated.of_metrics == ()
    assert correlated.loss == "loss on the probe"
    assert correlated.reason == "7 checkpoints have both a value and a loss, and 8 are needed"


STEPS_OF_OUT_OF_LINE_STATEMENTS = range(45_000, 66_000, 1000)


def swept(changed, noise=0.002, **changes):
    """Two layers whose anisotropy rises slowly, with other values at some steps."""
    value = {step: 0.3 + step / 1e6 for step in STEPS_OF_OUT_OF_LINE_STATEMENTS} | changed
    return to_frame(
        [
            make_row(step=step, layer=layer, value=value[step] + 0.01 * layer, std=noise, **changes)
            for step in STEPS_OF_OUT_OF_LINE_STATEMENTS
            for layer in (0, 1)
        ]
    )


def geometry_statements_of(frame):
    return [each for each in of_one(frame, []).statements if each.kind == "geometry out of line"]


def test_the_geometry_of_another_step():
    (statement,) = geometry_statements_of(swept({50_000: 0.8, 58_000: 0.7}))
    assert statement.sentence == (
        "Anisotropy, mean over layers, is 0.81 at step 50,000, out of line with 0.359 at step "
        "49,000 and 0.361 at step "
        "51,000: a spike of the training, or the weights of another step. The same holds at step "
        "58,000."
    )
    assert statement.metric == "anisotropy"
    assert statement.steps == (50_000, 58_000)


STEPS_OF_PROBE_LOSS_STATEMENTS = (0, *(2**exponent for exponent in range(14)))


LOSSES_OF_PROBE_LOSS_STATEMENTS = dict(
    zip(
        STEPS_OF_PROBE_LOSS_STATEMENTS,
        np.linspace(10.0, 3.0, len(STEPS_OF_PROBE_LOSS_STATEMENTS)).tolist(),
        strict=True,
    )
)


def described_of_probe_loss_statements(values: dict[int, float], loss: bool = False, **given):
    rows = [make_scalar(step, value, PROBE_LOSS, **given) for step, value in values.items()]
    return of_one(
        to_frame([*make_rows(n_blocks=2, steps=STEPS_OF_PROBE_LOSS_STATEMENTS, loss=loss), *rows]),
        [],
    )


def of_kind(found, kind: str):
    return [each for each in found.statements if each.kind == kind]


def test_a_sweep_says_how_far_the_loss_on_the_probe_fell():
    (statement,) = of_kind(
        described_of_probe_loss_statements(LOSSES_OF_PROBE_LOSS_STATEMENTS), "loss"
    )
    assert statement.sentence == "The loss on the probe fell from 10 at step 0 to 3 at step 8,192."
    assert statement.severity == "note"
    assert dict(statement.evidence) == {"first": 10.0, "last": 3.0}


@pytest.mark.parametrize("loss", [False, True])
def test_a_step_with_the_final_weights(loss):
    insights = described_of_probe_loss_statements(
        {**LOSSES_OF_PROBE_LOSS_STATEMENTS, 64: 3.0}, loss
    )
    (statement,) = of_kind(insights, "loss out of line")
    assert statement.sentence == (
        "The loss on the probe is 3 at step 64, out of line with 7 at step 32 and 6 at step 128: "
        "the weights of another "
        "step (3 at step 8,192)."
    )
    assert statement.severity == "watch"
    assert statement.steps == (64,)
    assert statement.evidence["jump"] == pytest.approx(3.0)
    assert insights.status == "healthy"  # a fault of the published checkpoints, not of the training


def test_a_loss_within_its_standard_error_is_in_line():
    assert of_kind(
        described_of_probe_loss_statements(
            {**LOSSES_OF_PROBE_LOSS_STATEMENTS, 64: 5.0}, std_error=0.1
        ),
        "loss out of line",
    )
    assert not of_kind(
        described_of_probe_loss_statements(
            {**LOSSES_OF_PROBE_LOSS_STATEMENTS, 64: 5.0}, std_error=0.3
        ),
        "loss out of line",
    )


def described_of_sequence_statements(rows) -> RunInsights:
    return of_one(to_frame(rows), [])


def over_depth(metric, profiles, std=0.0):
    """Return rows of profiles over depth by step."""
    return [
        make_row(
            step=step,
            layer=layer,
            depth=layer / (len(values) - 1),
            metric=metric,
            value=value,
            std=std,
        )
        for step, values in profiles.items()
        for layer, value in enumerate(values)
    ]


RISING = [0.1, 0.2, 0.15, 0.4, 0.5, 0.6, 0.7]


def test_condensation_is_the_rank_correlation_with_depth():
    statement = only(
        described_of_sequence_statements(
            over_depth("sequence_cosine", {0: RISING[::-1], 5: RISING})
        ),
        "condensation",
    )
    expected = float(spearmanr(RISING, range(7)).statistic)
    assert statement.evidence == {
        "correlation": pytest.approx(expected),
        "first_correlation": pytest.approx(-expected),
        "layers": 7.0,
    }
    assert statement.sentence == (
        "Mean cosine within a sequence rises with depth at step 5 (rank correlation 0.96 "
        "over 7 layers; -0.96 at step 0)."
    )
    falling = only(
        described_of_sequence_statements(
            over_depth("sequence_cosine", {0: RISING, 5: RISING[::-1]})
        ),
        "condensation",
    )
    assert "falls with depth" in falling.sentence
    constant = described_of_sequence_statements(
        over_depth("sequence_cosine", {0: [0.3] * 7, 5: RISING})
    )
    assert only(constant, "condensation").sentence.endswith(
        "(rank correlation 0.96 over 7 layers)."
    )


def test_a_compression_valley():
    statement = only(
        described_of_sequence_statements(
            over_depth("sequence_entropy", {5: [0.8, 0.9, 0.3, 0.1, 0.2, 0.6, 0.5]})
        ),
        "compression valley",
    )
    assert statement.layers == (1, 3, 5)
    assert statement.evidence == {"lowest": 0.1, "before": 0.9, "after": 0.6}
    assert statement.sentence == (
        "Entropy of a sequence has a valley: 0.1 in layer 3, between 0.9 in layer 1 and 0.6 "
        "in layer 5."
    )


def test_a_metric_of_ones_own_that_returns_nan_does_not_make_the_run_failed(tmp_path, small_probe):
    """The word NaN in its reason did."""
    metric = Metric("mine", lambda cloud: torch.tensor(math.nan))
    options = {"store": tmp_path / "store", "report": False}
    with Tracker(
        HandWritten(), small_probe, 1, metrics=["anisotropy", metric], **options
    ) as tracker:
        tracker.step()
    (run,) = described_runs([tracker.store]).runs
    rows = run.frame.query("metric == 'mine'")
    assert set(rows["reason_code"]) == {ReasonCode.NO_REASON}
    assert run.status[0] != "failed"
    assert run.alerts == []


def test_a_state_that_is_not_finite_makes_the_run_failed_whatever_its_reason_says():
    rows = [
        make_row(
            step=step,
            layer=layer,
            value=math.nan,
            reason="unwell",
            reason_code=ReasonCode.NOT_FINITE,
        )
        for step, layer in itertools.product((0, 1), (1, 2))
    ]
    assert described(rows).status == "failed"
    others = [
        row.with_columns(reason="NaN and inf", reason_code=ReasonCode.UNDEFINED) for row in rows
    ]
    assert described(others).status != "failed"


def norms(on_all, without, **more):
    """Rows of anisotropy over depth at one step, on all vectors and without massive norms."""
    return [
        make_row(
            step=0, layer=layer, depth=layer / 5, subset=subset, value=value, std=0.001, **more
        )
        for subset, values in (("all", on_all), ("no_massive", without))
        for layer, value in enumerate(values)
    ]


def test_one_sentence_says_that_massive_norms_make_the_anisotropy():
    """The profile alone read as a bell, of which a few vectors were the whole cause."""
    told = described(
        norms([0.1, 0.97, 0.99, 0.98, 0.1, 0.1], [0.1, 0.09, 0.09, 0.08, 0.1, 0.1])
    ).statements
    (massive,) = [each for each in told if each.kind == "massive norms"]
    assert massive.sentence == (
        "Anisotropy is 0.97 to 0.99 in layers 1-3, 0.08 to 0.09 without a few vectors of massive "
        "norm."
    )
    assert massive.layers == (1, 2, 3)


def test_nothing_is_said_of_massive_norms_where_there_are_none():
    values = [0.1, 0.5, 0.6, 0.5, 0.3, 0.2]
    told = described(norms(values, values)).statements
    assert "massive norms" not in {each.kind for each in told}

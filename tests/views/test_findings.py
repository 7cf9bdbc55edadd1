"""The published findings, the criteria that judge them, and the statistics they rest on."""

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
from hypothesis import given
from hypothesis import strategies as st
from judged_runs import (
    NAN,
    NOT_SHOWN,
    SHOWN,
    T7,
    UNJUDGED,
    course,
    judged,
    profile,
    warmed_up,
)
from scipy import stats
from scipy.stats import t as student_t
from synthetic_runs import make_published, make_row, make_scalar, measured_runs, to_frame

from repdyn.views.judging import stacks_of_run
from repdyn.views.judging.effects import (
    Effect,
    Estimate,
    conjunction,
    mean_estimate,
    rank_correlation,
)
from repdyn.views.judging.findings import (
    BELL,
    DIMENSION,
    GROWTH,
    MEANINGS,
    UNIFORM,
    JudgedRun,
    findings,
    findings_over_seeds,
)
from repdyn.views.judging.fits import MIN_STEPS, fit_activations, fits_of
from repdyn.views.tables.continuity import (
    losses_out_of_line,
    repeated_values,
)
from repdyn.views.tables.frames import by_stack
from repdyn.views.tables.seeds import mean_over_seeds, model_of, seed_groups


def test_an_interval_by_hand():
    effect = Effect.of(Estimate(3.0, 0.06, 8), Estimate(2.0, 0.03, 4))
    half = student_t.ppf(0.975, 3) * math.sqrt(0.02**2 + 0.015**2)
    assert effect.log_ratio == pytest.approx(math.log(1.5), rel=1e-12)
    assert (effect.low, effect.high) == pytest.approx(
        (math.log(1.5) - half, math.log(1.5) + half), rel=1e-9
    )


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


SEEDS = st.integers(0, 2**32 - 1)


def pairs(seed: int, n: int = 20) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=n)
    return x, x + generator.normal(size=n)


@given(SEEDS)
def test_scipy_finds_the_same(seed):
    x, y = (np.round(values, 1) for values in pairs(seed))  # with ties
    assert rank_correlation(x, y).value == pytest.approx(stats.spearmanr(x, y)[0], abs=1e-12)


def test_no_correlation_of_a_constant_and_no_interval_of_three_pairs():
    constant = rank_correlation(np.arange(6.0), np.ones(6))
    assert all(map(math.isnan, (constant.value, constant.low, constant.high)))
    assert constant.n == 6
    few = rank_correlation(np.arange(3.0), np.array([1.0, 3.0, 2.0]))
    assert few.value == pytest.approx(0.5)
    assert math.isnan(few.low)
    assert math.isnan(few.high)


def test_a_textbook_run_shows_everything(run):
    judged_findings = findings(run())
    assert [(finding.title, finding.verdict) for finding in judged_findings] == [
        ("bell-shaped anisotropy over depth (decoders), all", SHOWN),
        ("bell-shaped anisotropy over depth (decoders), no_sink", SHOWN),
        ("uniform anisotropy over depth (encoders), all", NOT_SHOWN),
        ("uniform anisotropy over depth (encoders), no_sink", NOT_SHOWN),
        ("anisotropy grows, then stabilises (decoders), all", SHOWN),
        ("anisotropy grows, then stabilises (decoders), no_sink", SHOWN),
        ("intrinsic dimension rises, then declines (decoders), all", SHOWN),
    ]
    assert [finding.criterion for finding in judged_findings] == [
        BELL,
        BELL,
        UNIFORM,
        UNIFORM,
        GROWTH,
        GROWTH,
        DIMENSION,
    ]
    assert list(dict.fromkeys(finding.name for finding in judged_findings)) == list(MEANINGS)
    assert not any("\n" in finding.evidence for finding in judged_findings)


def test_growth_evidence(run):
    evidence = judged(
        course(run, "anisotropy", {0: 0.1, 500: 0.5, 1000: 0.5}, error=0.0), "growth"
    ).evidence
    assert evidence == (
        "anisotropy grew by 400% (interval 400 to 400); "
        "since half of the training (step 500) anisotropy grew by 0.0% (interval 0.0 to 0.0)"
    )


def test_the_error_of_a_mean_is_the_mean_of_the_errors(run):
    frame = course(run, "anisotropy", {0: 1.0, 50: 2.0, 100: 2.0}, error=0.0)
    last = frame["layer"].notna() & (frame["step"] == 100)
    frame.loc[last & (frame["layer"] == 1), "std_error"] = 0.4
    frame.loc[last & (frame["layer"] == 2), "std_error"] = 0.0
    half = T7 * 0.2 / 2
    low, high = (f"{100 * (2 * math.exp(sign * half) - 1):.0f}" for sign in (-1, 1))
    assert f"anisotropy grew by 100% (interval {low} to {high})" in judged(frame, "growth").evidence


def test_dimension_evidence(run):
    evidence = judged(
        course(run, "dimension", {0: 10, 1000: 20, 2000: 16, 4000: 12}, error=0.0), "dimension"
    ).evidence
    assert evidence == (
        "from the start to step 1,000, the highest in between, the dimension of all vectors grew "
        "by 100% (interval 100 to 100); "
        "the dimension at step 1,000 exceeds the last by 67% (interval 67 to 67); "
        "since half of the training (step 2,000) the dimension fell by 25% "
        "(interval 25 to 25); 2 of 2 blocks fall; warm-up not known"
    )


@pytest.mark.parametrize(
    ("values", "error", "verdict", "sentence"),
    [
        (
            {0: 0.1, 500: 0.5, 1000: 0.525},
            0.03,
            UNJUDGED,
            "since half of the training (step 500) anisotropy grew by 5.0% (interval -5.0 to 16), "
            "which leaves open whether by less than 10% either way; anisotropy grew by 425%",
        ),
        (
            {0: 0.1, 500: 0.3, 1000: 0.6},
            0.0,
            NOT_SHOWN,
            "since half of the training (step 500) anisotropy grew by 100% (interval 100 to 100), "
            "not by less than 10% either way; anisotropy grew by 500%",
        ),
        (
            {0: 0.5, 500: 0.5, 1000: 0.51},
            0.0,
            NOT_SHOWN,
            "anisotropy grew by 2.0% (interval 2.0 to 2.0), not by more than 10%; "
            "since half of the training (step 500) anisotropy grew by 2.0%",
        ),
    ],
)
def test_a_sentence_begins_with_what_decides_the_verdict(run, values, error, verdict, sentence):
    finding = judged(course(run, "anisotropy", values, error=error), "growth")
    assert finding.verdict == verdict
    assert finding.sentence == sentence


def test_blocks_that_do_not_fall_and_an_early_peak_decide_first(run):
    falling = course(run, "dimension", {0: 10, 100: 20, 200: 16, 400: 12})
    peak = judged(warmed_up(falling, {0: 0.0, 200: 1.0, 400: 1.0}), "dimension")
    assert peak.sentence.startswith("highest within 1.5 times the warm-up; from the start")
    # both blocks have errors that leave open whether they fall
    shown = judged(falling, "dimension").sentence
    assert shown.endswith("2 of 2 blocks fall, where more than half must")
    is_layer = falling["layer"].notna()
    rises = is_layer & (falling["layer"] == 1) & (falling["step"] == 400)
    falling.loc[rises, "value"] = 16.0
    falling.loc[is_layer & (falling["layer"] == 2) & (falling["step"] == 400), "value"] = 8.0
    one_block = judged(falling, "dimension")
    assert one_block.verdict != SHOWN
    assert one_block.sentence.startswith("1 of 2 blocks fall")


WARM_UPS = {
    "long before the peak": ({0: 0.0, 10: 1.0, 100: 1.0, 400: 0.1}, SHOWN, "; warm-up to step 10"),
    "just before the peak": ({0: 0.0, 66: 1.0, 400: 0.1}, SHOWN, "; warm-up to step 66"),
    "peak at 1.5 times": (
        {0: 0.0, 64: 0.9, 67: 1.0, 400: 0.1},
        UNJUDGED,
        "; warm-up to step 67; highest within 1.5 times the warm-up",
    ),
    "longer than the peak": (
        {0: 0.0, 200: 1.0, 400: 1.0},
        UNJUDGED,
        "highest within 1.5 times the warm-up",
    ),
    "none": ({0: 1.0, 100: 1.0, 400: 1.0}, SHOWN, "; warm-up to step 0"),
    "not stored": ({}, SHOWN, "; warm-up not known"),
    "not a number": ({0: NAN}, SHOWN, "; warm-up not known"),
}


@pytest.mark.parametrize(("rates", "verdict", "told"), WARM_UPS.values(), ids=WARM_UPS)
def test_a_peak_within_the_warm_up_may_be_that_of_the_schedule(run, rates, verdict, told):
    frame = course(run, "dimension", {0: 10, 100: 20, 200: 16, 400: 12})
    finding = judged(warmed_up(frame, rates) if rates else frame, "dimension")
    assert finding.verdict == verdict
    assert finding.evidence.endswith(told)


FAILURES = {
    "still near its lowest": ({0: 5.0, 100: 2.0, 512: 2.19}, None),
    "above its lowest": ({0: 5.0, 100: 2.0, 512: 2.5}, "2.5, is 25% above the lowest"),
    "not a number": ({0: 5.0, 100: 2.0, 512: NAN}, "is nan"),
    "infinite": ({0: 5.0, 512: math.inf}, "is inf"),
    "not a number in between": ({0: 5.0, 100: NAN, 512: 2.0}, None),
    "never a number": ({0: NAN}, "is nan"),
    "below 0": ({0: 5.0, 100: -2.0, 512: -1.0}, None),
    "stored out of order": ({512: 2.0, 100: 3.0, 0: 5.0}, None),
    "not stored": ({}, None),
}


@pytest.mark.parametrize(("losses", "failure"), FAILURES.values(), ids=FAILURES)
def test_nothing_is_judged_on_a_run_that_failed(run, losses, failure):
    scalars = [make_scalar(step, loss) for step, loss in losses.items()]
    frame = run(loss=False)
    judged_findings = findings(
        pd.concat([frame, to_frame(scalars)], ignore_index=True) if scalars else frame
    )
    if failure is None:
        assert judged_findings == findings(frame)
    else:
        assert {finding.verdict for finding in judged_findings} == {UNJUDGED}
        (evidence,) = {finding.evidence for finding in judged_findings}
        assert evidence.startswith(
            ("the training failed: its last stored loss", "the loss rose again: its last")
        )
        assert evidence.endswith(failure)


def test_each_stack_is_judged_for_itself(two_stacks, frame_of):
    found = {stack: findings(rows) for stack, rows in by_stack(frame_of(two_stacks())).items()}
    assert {stack: [one.verdict for one in judgements] for stack, judgements in found.items()} == {
        "encoder": [UNJUDGED, UNJUDGED, SHOWN, SHOWN, NOT_SHOWN, NOT_SHOWN, SHOWN],  # of 4 blocks
        "decoder": [SHOWN, SHOWN, NOT_SHOWN, NOT_SHOWN, SHOWN, SHOWN, SHOWN],
    }


def test_bell_evidence(run):
    evidence = judged(profile(run, [0.2, 0.4, 0.5, 0.3, 0.1], error=0.01), "bell").evidence
    # the mean of the middle blocks has the mean of their errors: a hundredth of it
    half = T7 * math.sqrt(2) * 0.01
    ends = [
        f"{100 * math.expm1(math.log(ratio) + sign * half):.0f}"
        for ratio in (2, 4)
        for sign in (-1, 1)
    ]
    first = f"the middle of the blocks exceeds the first by 100% (interval {ends[0]} to {ends[1]})"
    assert evidence == (
        f"{first}; the middle of the blocks exceeds the last by 300% (interval {ends[2]} to "
        f"{ends[3]})"
    )
    dim = judged(profile(run, [1.0, 1.2, 1.2, 1.2, 1.0], error=0.03), "bell").evidence
    assert dim.count("), which leaves open whether by more than 10%") == 2


def test_each_verdict_is_also_given_with_the_embeddings_as_first_layer(run):
    frame = profile(run, [0.2, 0.4, 0.5, 0.3, 0.2], error=0.001)
    is_first = frame["layer"] == 0
    for at_layer_0, verdict in ((0.2, SHOWN), (0.6, NOT_SHOWN)):
        finding = judged(frame.assign(value=frame["value"].mask(is_first, at_layer_0)), "bell")
        assert finding.verdict == SHOWN
        assert finding.with_embeddings == verdict
        assert ("layer 0" in finding.summary) == (verdict != SHOWN)
    assert "layer 0" not in finding.evidence, "the evidence is about blocks"


def test_bell_is_judged_at_the_last_step(run):
    def bell_at_step_0(step, depth):
        return 0.1 + math.sin(math.pi * depth) if step == 0 else 0.1

    assert judged(run(steps=(0, 8), anisotropy=bell_at_step_0), "bell").verdict == NOT_SHOWN
    assert judged(run(steps=(0,), anisotropy=bell_at_step_0), "bell").verdict == SHOWN


def test_uniform_evidence(run):
    evidence = judged(profile(run, [0.8, 1.0, 1.6], error=0.0), "uniform").evidence
    assert evidence == (
        "the highest block exceeds the lowest by 100% (interval 100 to 100), not by less "
        "than 50%; blocks 3 and 1"
    )


STEPS = (0, 1, 8, 64)


def seed(number, *, factor=None, name="lab/m-seed{}", **changes):
    """A seed whose dimension is a multiple of the layer's number plus one, the same at every
    step.
    """
    factor = number if factor is None else factor
    fields = {"steps": STEPS, "n_blocks": 2, "probe": "0123456789abcdef"} | changes
    fields.setdefault("dimension", lambda step, depth: factor * (2 * depth + 1.0))
    return make_published(name.format(number), **fields)


def runs_of(*rows):
    return measured_runs(to_frame([row for of_one in rows for row in of_one]))


def groups_of(*rows, patterns=None):
    return seed_groups(runs_of(*rows), patterns)


def naive_margin(values):
    values = [float(value) for value in values]
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return student_t.ppf(0.975, len(values) - 1) * math.sqrt(variance / len(values))


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("EleutherAI/pythia-160m-data-seed2", "EleutherAI/pythia-160m-data"),
        ("google/multiberts-seed_0", "google/multiberts"),
        ("tiny-Seed-12/2026-11-23_09-03-01_2", "tiny"),
        ("seed1/2026-11-23_09-03-01", "seed*"),
        ("lab/m-seed1 (probe 3f2ab1c0)", "lab/m (probe 3f2ab1c0)"),
        ("lab/seeds", None),
        ("lab/reseed1", None),
        ("lab/m-seed", None),
        ("lab/m-seed1-long", None),
    ],
)
def test_the_name_of_a_run_tells_which_model_it_is_a_seed_of(name, model):
    assert model_of(name) == model


@pytest.mark.parametrize("n_seeds", [2, 3, 9])
def test_the_interval_is_that_of_student_over_seeds(n_seeds):
    values = np.random.default_rng(n_seeds).normal(3.0, 0.5, (n_seeds, 4, 5))
    mean, margin = mean_over_seeds(values)
    for index in np.ndindex(4, 5):
        of_one = values[(slice(None), *index)]
        np.testing.assert_allclose(mean[index], sum(of_one) / n_seeds, rtol=1e-12)
        np.testing.assert_allclose(margin[index], naive_margin(of_one), rtol=1e-12)


def test_values_are_means_over_seeds_whatever_the_noise_of_the_batches():
    (group,) = groups_of(seed(1), seed(2), seed(6, noise=0.5))
    series = group.series["two_nn", "all"]
    np.testing.assert_allclose(series.values, [[3.0] * 4, [6.0] * 4, [9.0] * 4])
    np.testing.assert_allclose(
        series.margins[:, 0], [naive_margin(np.array([1, 2, 6]) * k) for k in (1, 2, 3)]
    )
    # over layers first, then over seeds: the interval of the means, not the mean of the intervals
    np.testing.assert_allclose(series.layer_mean.mean, [7.5] * 4)
    np.testing.assert_allclose(series.layer_mean.margin, [naive_margin([2.5, 5, 15])] * 4)
    assert series.layer_mean.n_used == 2
    assert series.layer_mean.n_layers == 2
    assert group.label == "m (3 seeds)"
    assert group.steps == list(STEPS)
    assert group.parameters == 1_234_567


def test_steps_are_those_of_all_seeds():
    (group,) = groups_of(seed(1), seed(2, steps=(1, 8, 32)), seed(3, steps=(0, 1, 8)))
    assert group.steps == [1, 8]
    assert group.series["two_nn", "all"].values.shape == (3, 2)
    assert set(group.at_end()["step"]) == {8}
    with pytest.raises(ValueError, match="step in common, got none"):
        groups_of(seed(1, steps=(1, 2)), seed(2, steps=(4, 8)))


def growing(*ends, noise=0.5, **changes):
    """Seeds whose anisotropy grows from 0.1 to these values by half of the training, and stays."""
    frames = []
    for number, end in enumerate(ends):
        rows = seed(
            number,
            anisotropy=lambda step, depth, end=end: end if step > 8 else 0.1,
            noise=noise,
            **changes,
        )
        frames.append(to_frame(rows))
    return frames


def judged_of_seeds(frames, name="growth"):
    return next(
        finding
        for finding in findings_over_seeds([*map(JudgedRun, frames)])
        if (finding.name, finding.subset) == (name, "all")
    )


TIMES = {"steps": (0, 8, 32, 64)}


def test_an_effect_is_judged_by_its_interval_over_seeds():
    finding = judged_of_seeds(growing(0.2, 0.21, 0.22, **TIMES))
    logs = np.log([2.0, 2.1, 2.2])
    low, high = (math.exp(logs.mean() + sign * naive_margin(logs)) - 1 for sign in (-1, 1))
    change = math.exp(logs.mean()) - 1
    # the noise of the batches, half of the values, has no part in it
    assert finding.verdict == SHOWN
    assert finding.evidence == (
        f"over 3 seeds: anisotropy grew by {100 * change:.0f}% (interval {100 * low:.0f} to "
        f"{100 * high:.0f}); "
        "since half of the training (step 32) anisotropy grew by 0.0% (interval 0.0 to 0.0)"
    )


def profile_of_continuity(step: int, *values: float, **fields):
    return [
        make_row(step=step, layer=layer, value=value, **fields)
        for layer, value in enumerate(values)
    ]


def test_values_that_are_the_same_to_the_last_bit():
    rows = [
        *profile_of_continuity(0, 0.5, 0.25),
        *profile_of_continuity(8, 0.5, 0.25 + 2**-53),
        *profile_of_continuity(16, 0.5, 0.25),
        *profile_of_continuity(32, 0.25, 0.5),
    ]
    assert repeated_values(to_frame(rows)) == [(0, 16)]
    assert repeated_values(to_frame(rows[:4])) == []


def errors(size: float) -> pd.Series:
    return pd.Series(size, STEPS_OF_CONTINUITY)


@pytest.mark.parametrize("step", [2, 128, 1000])
def test_a_step_with_the_final_weights_is_out_of_line(step):
    losses = history(0.002)
    final = float(losses.iloc[-1])
    (outlier,) = losses_out_of_line(replaced(losses, {step: final}), errors(0.01))
    index = STEPS_OF_CONTINUITY.index(step)
    neighbours = [(STEPS_OF_CONTINUITY[at], losses.iloc[at]) for at in (index - 1, index + 1)]
    assert outlier.step == step
    assert outlier.loss == final
    assert outlier.neighbours == tuple(neighbours)
    assert outlier.size == pytest.approx(losses.iloc[index + 1] - final)


def test_a_smooth_history_is_in_line():
    for seed in range(20):
        assert losses_out_of_line(history(0.002, seed), errors(0.01)) == IN_LINE
    assert losses_out_of_line(history()) == IN_LINE
    assert losses_out_of_line(-history()) == IN_LINE  # nor one that only rises


def test_an_end_is_out_of_line_only_where_it_explains_the_jump_of_another_step():
    losses = history()
    assert steps_of(replaced(losses, {0: 2.5, 20000: 9.0}), errors(0.2)) == []
    assert steps_of(replaced(losses, {0: 2.5, 20000: 9.0}), errors(0.02)) == [
        0
    ]  # above it, and above those after
    (outlier,) = losses_out_of_line(
        replaced(losses, {0: 2.5})
    )  # step 1 is above both of its neighbours
    assert outlier.step == 0
    assert [step for step, _ in outlier.neighbours] == [1, 2]
    assert outlier.is_end is True
    (outlier,) = losses_out_of_line(replaced(losses, {1: 2.5}))
    assert outlier.step == 1
    assert [step for step, _ in outlier.neighbours] == [0, 2]
    assert outlier.is_end is False
    assert sorted(steps_of(replaced(losses, {0: 2.5, 1: 2.5}))) == [0, 1]
    assert (
        sorted(steps_of(replaced(losses, dict.fromkeys((19000, 20000), 9.0)))) == []
    )  # no other step jumps


@pytest.mark.parametrize("name", KNOWN)
def test_known_parameters_are_found(name):
    fit = fit_activations(STEPS_OF_ACTIVATION_FITS, curve(STEPS_OF_ACTIVATION_FITS, *KNOWN[name]))
    assert fit[:5] == pytest.approx(KNOWN[name], rel=1e-3)
    assert fit.r_squared == pytest.approx(1, abs=1e-10)
    assert fit.n_steps == len(STEPS_OF_ACTIVATION_FITS)
    assert fit.is_reported
    assert fit.at(STEPS_OF_ACTIVATION_FITS) == pytest.approx(
        curve(STEPS_OF_ACTIVATION_FITS, *KNOWN[name]), rel=1e-5, abs=1e-5 * abs(KNOWN[name][0])
    )


RANDOM = np.random.default_rng(5)


OTHERS = {
    "noise": RANDOM.standard_normal(len(STEPS_OF_ACTIVATION_FITS)),
    "a wave": np.sin(STEPS_OF_ACTIVATION_FITS / 8e3) + 3,
    "a sudden step": (STEPS_OF_ACTIVATION_FITS > 40_000).astype(float),
    "the formula in twice its noise": noisy(
        curve(STEPS_OF_ACTIVATION_FITS, *KNOWN["early peak"]), 0.5
    ),
    "one outlier": (STEPS_OF_ACTIVATION_FITS == 50_000).astype(float),
    "two peaks": np.exp(-((STEPS_OF_ACTIVATION_FITS / 1e4 - 3) ** 2))
    + np.exp(-((STEPS_OF_ACTIVATION_FITS / 1e4 - 11) ** 2)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_courses_are_not_reported(name):
    fit = fit_activations(STEPS_OF_ACTIVATION_FITS, OTHERS[name])
    assert not fit.is_reported
    assert all(map(math.isfinite, fit))
    assert fit.r_squared == pytest.approx(
        1 - np.var(fit.at(STEPS_OF_ACTIVATION_FITS) - OTHERS[name]) / np.var(OTHERS[name]), abs=1e-6
    )


@pytest.mark.parametrize("n_steps", [MIN_STEPS - 1, 3, 1, 0])
def test_too_few_steps_have_no_fit(n_steps):
    assert (
        fit_activations(
            STEPS_OF_ACTIVATION_FITS[-n_steps:] if n_steps else [],
            curve(STEPS_OF_ACTIVATION_FITS, *KNOWN["published"])[:n_steps],
        )
        is None
    )


def test_the_fits_of_a_run():
    rows = [
        make_row(
            step=int(step), layer=layer, metric="largest_activation", value=float(value), std=0.0
        )
        for layer, name in ((1, "early peak"), (3, "no peak yet"))
        for step, value in zip(
            STEPS_OF_ACTIVATION_FITS, curve(STEPS_OF_ACTIVATION_FITS, *KNOWN[name]), strict=True
        )
    ]
    rows += [
        make_row(step=int(step), layer=2, metric="largest_activation", value=3.0)
        for step in STEPS_OF_ACTIVATION_FITS
    ]
    (run,) = measured_runs(to_frame(rows))
    fits = fits_of(run.series["largest_activation", "all"])
    assert list(fits) == [1, 3]
    assert [fit.amplitude for fit in fits.values()] == pytest.approx([300, 100], rel=1e-3)
    assert [fit.peak_step for fit in fits.values()] == pytest.approx([8070.28, 823_854], rel=1e-3)
    assert all(fit.is_reported for fit in fits.values())


def test_a_run_is_shown_the_findings_on_its_kind_of_model(run):
    """A verdict on encoders says nothing of a decoder, nor the other way round."""
    shown = {}
    for causal in (True, False, None):
        (described,) = stacks_of_run(run().assign(causal=causal))
        shown[causal] = {finding.name for finding in described.findings}
    assert shown == {
        True: {"bell", "growth", "dimension"},
        False: {"uniform"},
        None: set(MEANINGS),
    }


def test_values_by_the_design_of_the_paper_are_judged_by_its_bands(run):
    """Every verdict on them was "cannot be judged", since their batches share windows; a standard
    error of the mean would be too narrow."""
    clear = profile(run, [0.3, 0.6, 0.7, 0.6, 0.3], error=NAN, design="paper", n_batches=4)
    of_layer = clear["layer"].notna()
    clear.loc[of_layer, "std"] = 0.02 * clear.loc[of_layer, "value"]
    finding = judged(clear, "bell")
    assert finding.verdict == SHOWN
    assert finding.evidence.startswith("by the paper's bands")
    # the middle exceeds the ends by 17 %, and the bands are 10 % wide on each side
    close = profile(run, [0.3, 0.35, 0.35, 0.35, 0.3], error=NAN, design="paper", n_batches=4)
    close.loc[of_layer, "std"] = 0.1 * close.loc[of_layer, "value"]
    assert judged(close, "bell").verdict == UNJUDGED
    assert judged(close.assign(design="dense"), "bell").evidence.startswith("the batches share")

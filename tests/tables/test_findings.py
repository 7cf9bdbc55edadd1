import math

import pandas as pd
import pytest
from judged_runs import (
    NAN,
    NARROW,
    NOT_SHOWN,
    SHOWN,
    T7,
    UNJUDGED,
    by_block,
    course,
    judged,
    warmed_up,
    with_error,
)
from synthetic_runs import make_scalar, to_frame

from repdyn.tables.criteria import BELL, DIMENSION, GROWTH, MEANINGS, PAPER, UNIFORM, VERSION
from repdyn.tables.findings import COLOURS, findings
from repdyn.tables.frames import by_stack


def test_a_textbook_run_shows_everything(run):
    found = findings(run())
    assert [(finding.title, finding.verdict) for finding in found] == [
        ("bell-shaped anisotropy over depth (decoders), all", SHOWN),
        ("bell-shaped anisotropy over depth (decoders), no_sink", SHOWN),
        ("uniform anisotropy over depth (encoders), all", NOT_SHOWN),
        ("uniform anisotropy over depth (encoders), no_sink", NOT_SHOWN),
        ("anisotropy grows, then stabilises (decoders), all", SHOWN),
        ("anisotropy grows, then stabilises (decoders), no_sink", SHOWN),
        ("intrinsic dimension rises, then declines (decoders), all", SHOWN),
    ]
    assert {(finding.source, finding.version) for finding in found} == {(PAPER, "2, 2026-11-22")}
    assert [finding.criterion for finding in found] == [BELL, BELL, UNIFORM, UNIFORM, GROWTH, GROWTH, DIMENSION]
    assert list(dict.fromkeys(finding.name for finding in found)) == list(MEANINGS)
    assert not any("\n" in finding.evidence for finding in found)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False, None], ids=["decoder", "encoder", "unknown"])
def test_every_kind_of_model_is_judged_on_both_shapes_and_the_growth(run, causal):
    assert [finding.verdict for finding in findings(run(causal=causal))] == [
        *(SHOWN, SHOWN, NOT_SHOWN, NOT_SHOWN, SHOWN, SHOWN, SHOWN)
    ]
    flat = {"anisotropy": lambda step, depth: 0.3, "no_sink": lambda step, depth: 0.2}
    assert [finding.verdict for finding in findings(run(causal=causal, **flat))] == [
        *(NOT_SHOWN, NOT_SHOWN, SHOWN, SHOWN, NOT_SHOWN, NOT_SHOWN, SHOWN)
    ]


GROWTHS = {
    "grows and settles": ({0: 0.1, 10: 0.4, 50: 0.5, 100: 0.5}, NARROW, SHOWN),
    "still growing": ({0: 0.1, 50: 0.3, 100: 0.5}, NARROW, NOT_SHOWN),
    "grows and falls back": ({0: 0.1, 50: 0.6, 100: 0.3}, NARROW, NOT_SHOWN),
    "constant": ({0: 0.3, 50: 0.3, 100: 0.3}, NARROW, NOT_SHOWN),
    "shrinks": ({0: 0.5, 50: 0.3, 100: 0.3}, NARROW, NOT_SHOWN),
    "9 % in all": ({0: 1.0, 50: 1.09, 100: 1.09}, NARROW, NOT_SHOWN),
    "11 % in all": ({0: 1.0, 50: 1.11, 100: 1.11}, NARROW, SHOWN),
    "9 % in the second half": ({0: 1.0, 50: 2.0, 100: 2.18}, NARROW, SHOWN),
    "11 % in the second half": ({0: 1.0, 50: 2.0, 100: 2.22}, NARROW, NOT_SHOWN),
    "loses 9 % in the second half": ({0: 1.0, 50: 2.0, 100: 1.82}, NARROW, SHOWN),
    "loses 11 % in the second half": ({0: 1.0, 50: 2.0, 100: 1.78}, NARROW, NOT_SHOWN),
    "second half not seen clearly": ({0: 1.0, 50: 2.0, 100: 2.18}, 0.01, UNJUDGED),
    "growth not seen clearly": ({0: 1.0, 50: 1.12, 100: 1.12}, 0.01, UNJUDGED),
    "growth not seen clearly, second half not shown": ({0: 1.0, 50: 2.0, 100: 1.12}, 0.01, NOT_SHOWN),
    "starts in time": ({1: 0.1, 50: 0.5, 100: 0.5}, NARROW, SHOWN),
    "starts too late": ({2: 0.1, 50: 0.5, 100: 0.5}, NARROW, UNJUDGED),
    "half at 40 %": ({0: 0.1, 40: 0.5, 100: 0.5}, NARROW, SHOWN),
    "nothing near half": ({0: 0.1, 39: 0.5, 61: 0.5, 100: 0.5}, NARROW, UNJUDGED),
    "two steps": ({0: 0.1, 100: 0.5}, NARROW, UNJUDGED),
    "one step": ({0: 0.1}, NARROW, UNJUDGED),
    "no value": ({0: NAN, 50: NAN, 100: NAN}, NARROW, UNJUDGED),
    "no value at first": ({0: NAN, 20: 0.1, 50: 0.5, 100: 0.5}, NARROW, UNJUDGED),
    "no value but at the last step": ({0: NAN, 50: NAN, 100: 0.5}, NARROW, UNJUDGED),
}


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "subset"), [("anisotropy", "all"), ("no_sink", "no_sink")], ids=["all", "no_sink"])
@pytest.mark.parametrize(("values", "error", "verdict"), GROWTHS.values(), ids=GROWTHS)
def test_growth(run, values, error, verdict, metric, subset):
    assert judged(course(run, metric, values, error=error), "growth", subset).verdict == verdict


def test_growth_evidence(run):
    evidence = judged(course(run, "anisotropy", {0: 0.1, 500: 0.5, 1000: 0.5}, error=0.0), "growth").evidence
    assert evidence == "last/first +400% [400, 400], last/half +0.0% [0.0, 0.0]; half 500"


def test_the_error_of_a_mean_is_the_mean_of_the_errors(run):
    frame = course(run, "anisotropy", {0: 1.0, 50: 2.0, 100: 2.0}, error=0.0)
    last = frame["layer"].notna() & (frame["step"] == 100)
    frame.loc[last & (frame["layer"] == 1), "std_error"] = 0.4
    frame.loc[last & (frame["layer"] == 2), "std_error"] = 0.0
    half = T7 * 0.2 / 2
    low, high = (f"{100 * (2 * math.exp(sign * half) - 1):.0f}" for sign in (-1, 1))
    assert f"last/first +100% [{low}, {high}]" in judged(frame, "growth").evidence


def test_the_fewest_batches_decide(run):
    frame = course(run, "anisotropy", {0: 1.0, 50: 2.0, 100: 2.0}, error=0.01)
    frame.loc[(frame["step"] == 100) & (frame["layer"] == 1), "n_batches"] = 2
    half = 12.706204736432095 * math.sqrt(2) * 0.01
    low, high = (f"{100 * (2 * math.exp(sign * half) - 1):.0f}" for sign in (-1, 1))
    assert f"last/first +100% [{low}, {high}]" in judged(frame, "growth").evidence


def test_a_block_without_a_value_somewhere_is_left_out_everywhere(run):
    blocks = {0: [1.0, 1.0, 1.0], 50: [2.0, 2.0, NAN], 100: [2.0, 2.0, 90.0]}
    finding = judged(by_block(run, "anisotropy", blocks), "growth")
    assert finding.verdict == SHOWN
    assert finding.evidence.endswith("; over 2 of 3 blocks")


RISES = {
    "rises and falls": ({0: 10, 10: 20, 50: 16, 100: 15}, NARROW, SHOWN),
    "highest at half": ({0: 10, 50: 20, 100: 15}, NARROW, SHOWN),
    "highest after half": ({0: 10, 50: 19, 70: 20, 100: 15}, NARROW, SHOWN),
    "only rises": ({0: 10, 50: 15, 100: 20}, NARROW, NOT_SHOWN),
    "only falls": ({0: 20, 50: 15, 100: 10}, NARROW, NOT_SHOWN),
    "constant": ({0: 10, 50: 10, 100: 10}, NARROW, NOT_SHOWN),
    "falls and rises": ({0: 20, 50: 10, 100: 15}, NARROW, NOT_SHOWN),
    "rises early, then stays": ({0: 10, 10: 20, 50: 15, 100: 15}, NARROW, NOT_SHOWN),
    "falls by 4 % in the second half": ({0: 10, 10: 20, 50: 15, 100: 14.4}, NARROW, NOT_SHOWN),
    "falls by 6 % in the second half": ({0: 10, 10: 20, 50: 15, 100: 14.1}, NARROW, SHOWN),
    "rise of 9 %": ({0: 10, 50: 10.9, 100: 5}, NARROW, NOT_SHOWN),
    "rise of 11 %": ({0: 10, 50: 11.1, 100: 5}, NARROW, SHOWN),
    "fall of 9 %": ({0: 5, 50: 10.9, 100: 10}, NARROW, NOT_SHOWN),
    "rise not seen clearly": ({0: 10, 50: 12, 100: 5}, 0.03, UNJUDGED),
    "fall not seen clearly": ({0: 5, 50: 12, 100: 10}, 0.03, UNJUDGED),
    "late fall not seen clearly": ({0: 5, 10: 20, 50: 11, 100: 10}, 0.02, UNJUDGED),
    "rise not seen clearly, no fall": ({0: 10, 50: 12, 100: 20}, 0.03, NOT_SHOWN),
    "starts too late": ({2: 10, 10: 20, 50: 16, 100: 15}, NARROW, UNJUDGED),
    "first step without a value": ({0: NAN, 1: 10, 10: 20, 50: 16, 100: 15}, NARROW, SHOWN),
    "nothing near half": ({0: 10, 39: 20, 100: 15}, NARROW, UNJUDGED),
    "two steps": ({0: 10, 100: 20}, NARROW, UNJUDGED),
    "spread not known": ({0: 10, 50: 20, 100: 15}, NAN, UNJUDGED),
}


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False, None], ids=["decoder", "encoder", "unknown"])
@pytest.mark.parametrize(("values", "error", "verdict"), RISES.values(), ids=RISES)
def test_dimension(run, values, error, verdict, causal):
    assert judged(course(run, "dimension", values, error=error, causal=causal), "dimension").verdict == verdict


LATE = {
    # the mean falls by a tenth or more in each
    "all blocks fall": ([20, 20, 20, 20], [18, 18, 18, 18], SHOWN, "4 of 4 blocks fall"),
    "three of four fall": ([20, 20, 20, 20], [16, 16, 16, 21], SHOWN, "3 of 4 blocks fall"),
    "half of them fall": ([20, 20, 20, 20], [10, 10, 21, 21], NOT_SHOWN, "2 of 4 blocks fall"),
    "the mean alone falls": ([50, 20, 20, 20], [10, 21, 21, 21], NOT_SHOWN, "1 of 4 blocks fall"),
    "one falls, the others stay": ([50, 20, 20, 20], [10, 20, 20, 20], UNJUDGED, "1 of 4 blocks fall, 3 may"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("half", "last", "verdict", "told"), LATE.values(), ids=LATE)
def test_a_late_decline_is_one_of_most_blocks(run, half, last, verdict, told):
    blocks = {0: [8.0] * 4, 10: [60.0] * 4, 50: half, 100: last}
    finding = judged(by_block(run, "dimension", blocks), "dimension")
    assert finding.verdict == verdict
    assert f"; {told};" in finding.evidence


def test_dimension_evidence(run):
    evidence = judged(course(run, "dimension", {0: 10, 1000: 20, 2000: 16, 4000: 12}, error=0.0), "dimension").evidence
    assert evidence == (
        "highest/first +100% [100, 100], highest/last +67% [67, 67], last/half -25% [-25, -25]; 2 of 2 blocks fall; "
        "highest at step 1,000, half 2,000; warm-up not known"
    )


WARM_UPS = {
    "long before the peak": ({0: 0.0, 10: 1.0, 100: 1.0, 400: 0.1}, SHOWN, "; warm-up to step 10"),
    "just before the peak": ({0: 0.0, 66: 1.0, 400: 0.1}, SHOWN, "; warm-up to step 66"),
    "peak at 1.5 times": (
        {0: 0.0, 64: 0.9, 67: 1.0, 400: 0.1},
        UNJUDGED,
        "; warm-up to step 67; highest within 1.5 times the warm-up",
    ),
    "longer than the peak": ({0: 0.0, 200: 1.0, 400: 1.0}, UNJUDGED, "highest within 1.5 times the warm-up"),
    "none": ({0: 1.0, 100: 1.0, 400: 1.0}, SHOWN, "; warm-up to step 0"),
    "not stored": ({}, SHOWN, "; warm-up not known"),
    "not a number": ({0: NAN}, SHOWN, "; warm-up not known"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("rates", "verdict", "told"), WARM_UPS.values(), ids=WARM_UPS)
def test_a_peak_within_the_warm_up_may_be_that_of_the_schedule(run, rates, verdict, told):
    frame = course(run, "dimension", {0: 10, 100: 20, 200: 16, 400: 12})
    finding = judged(warmed_up(frame, rates) if rates else frame, "dimension")
    assert finding.verdict == verdict
    assert finding.evidence.endswith(told)


def test_a_warm_up_does_not_excuse_what_is_not_shown(run):
    frame = warmed_up(course(run, "dimension", {0: 10, 100: 20, 200: 12, 400: 12}), {0: 0.0, 200: 1.0})
    assert judged(frame, "dimension").verdict == NOT_SHOWN


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


@pytest.mark.slow
@pytest.mark.parametrize(("losses", "failure"), FAILURES.values(), ids=FAILURES)
def test_nothing_is_judged_on_a_run_that_failed(run, losses, failure):
    scalars = [make_scalar(step, loss) for step, loss in losses.items()]
    frame = run(loss=False)
    found = findings(pd.concat([frame, to_frame(scalars)], ignore_index=True) if scalars else frame)
    if failure is None:
        assert found == findings(frame)
    else:
        assert {finding.verdict for finding in found} == {UNJUDGED}
        (evidence,) = {finding.evidence for finding in found}
        assert evidence.startswith("the training failed: its last stored loss")
        assert evidence.endswith(failure)


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"stage": "finished"}, {"stage": "finished", "causal": False}], ids=str)
def test_one_checkpoint_is_judged_by_its_profile_alone(run, given):
    found = findings(run(steps=(0,), **given))
    assert [finding.evidence for finding in found[4:]] == ["one checkpoint"] * 3
    assert {finding.verdict for finding in found[:4]} <= {SHOWN, NOT_SHOWN}


@pytest.mark.slow
def test_reasons_for_no_verdict(run):
    one_batch = with_error(run(n_batches=1), NAN)
    assert {finding.evidence for finding in findings(one_batch)} == {
        "a single batch, so no spread to judge by; enlarge the probe"
    }
    pooled = with_error(run(design="dense"), NAN)
    assert {finding.evidence for finding in findings(pooled)} == {
        "the batches share windows, so their spread says nothing of another probe"
    }
    without = findings(run().query("metric != 'anisotropy'"))
    assert [finding.evidence for finding in without[:2]] == [
        "anisotropy was not measured on all",
        "anisotropy was not measured on no_sink",
    ]
    neither = run().assign(metric="mean_norm").drop_duplicates(["step", "layer"])
    assert {finding.verdict for finding in findings(neither)} == {UNJUDGED}


def test_rows_from_before_designs_cannot_be_judged(run):
    frame = with_error(run(design=None), NAN).assign(low=NAN, high=NAN)
    assert {finding.verdict for finding in findings(frame)} == {UNJUDGED}


@pytest.mark.slow
def test_other_subsets_and_settings_are_not_judged(run):
    frame = run()
    others = [
        frame[frame["metric"] == "anisotropy"].drop_duplicates(["step", "layer"]).assign(subset="no_massive"),
        frame[frame["metric"] == "two_nn"].assign(metric="two_nn[discard=0.8]"),
    ]
    assert findings(pd.concat([frame, *others], ignore_index=True)) == findings(frame)


def test_verdicts_have_no_colours_of_health():
    assert not {"green", "yellow", "red"} & set(COLOURS.values())


def test_the_version_is_that_of_the_page():
    assert VERSION == "2, 2026-11-22"


def test_two_runs_are_an_error(run):
    with pytest.raises(ValueError, match="^expected the rows of one run, got 2: 'a', 'b'"):
        findings(pd.concat([run(steps=(0,), run="a"), run(steps=(0,), run="b")]))


@pytest.mark.slow
def test_each_stack_is_judged_for_itself(two_stacks, frame_of):
    found = {stack: findings(rows) for stack, rows in by_stack(frame_of(two_stacks())).items()}
    assert {stack: [one.verdict for one in judgements] for stack, judgements in found.items()} == {
        "encoder": [UNJUDGED, UNJUDGED, SHOWN, SHOWN, NOT_SHOWN, NOT_SHOWN, SHOWN],  # of 4 blocks
        "decoder": [SHOWN, SHOWN, NOT_SHOWN, NOT_SHOWN, SHOWN, SHOWN, SHOWN],
    }


def test_two_stacks_are_not_judged_as_one(two_stacks, frame_of):
    with pytest.raises(ValueError, match="^expected the rows of one stack of blocks, got 2"):
        findings(frame_of(two_stacks()))

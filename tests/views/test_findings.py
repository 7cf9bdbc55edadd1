import math

import pandas as pd
import pytest

from repdyn.views.findings import BELL, GROWTH, MEANINGS, PAPER, RISE_AND_FALL, UNIFORM_PROFILE, findings
from repdyn.views.frames import by_stack

NAN = math.nan
SHOWN, NOT_SHOWN, UNJUDGED = "shown", "not shown", "cannot be judged"


def profile(run, values, *, subset="all", std=0.0, **given):
    """One step; ``values`` over the layers of one subset, the other subset uniform."""

    def from_values(step, depth):
        return values[round(depth * (len(values) - 1))]

    curves = {"anisotropy": lambda step, depth: 0.3, "no_sink": lambda step, depth: 0.3}
    curves["anisotropy" if subset == "all" else "no_sink"] = from_values
    return with_std(run(n_blocks=len(values) - 1, steps=(100,), **curves, **given), std)


def course(run, metric, values, *, std=0.0, **given):
    """Every layer of ``metric`` at the same value, by step."""
    return with_std(run(n_blocks=2, steps=tuple(values), **{metric: lambda step, depth: values[step]}, **given), std)


def with_std(frame, std):
    frame.loc[frame["layer"].notna(), "std"] = std
    return frame


def judged(frame, words, subset):
    (finding,) = [found for found in findings(frame) if words in found.title and found.title.endswith(f", {subset}")]
    return finding


def test_a_textbook_run_shows_everything(run):
    found = findings(run())
    assert [(finding.title, finding.verdict) for finding in found] == [
        ("bell-shaped anisotropy over depth (decoders), all", SHOWN),
        ("bell-shaped anisotropy over depth (decoders), no_sink", SHOWN),
        ("anisotropy grows, then stabilises (decoders), all", SHOWN),
        ("anisotropy grows, then stabilises (decoders), no_sink", SHOWN),
        ("intrinsic dimension rises, then declines, all", SHOWN),
    ]
    assert {finding.source for finding in found} == {PAPER}
    assert [finding.criterion for finding in found] == [BELL, BELL, GROWTH, GROWTH, RISE_AND_FALL]
    assert not any("\n" in finding.evidence for finding in found)


BELLS = {
    "bell": ([0.1, 0.4, 0.5, 0.4, 0.1], 0.01, SHOWN),
    "flat": ([0.3, 0.3, 0.3, 0.3, 0.3], 0.01, NOT_SHOWN),
    "rising": ([0.1, 0.2, 0.3, 0.4, 0.5], 0.01, NOT_SHOWN),
    "falling": ([0.5, 0.4, 0.3, 0.2, 0.1], 0.01, NOT_SHOWN),
    "valley": ([0.5, 0.2, 0.1, 0.2, 0.5], 0.01, NOT_SHOWN),
    "11 % above both ends": ([1.0, 1.05, 1.11, 1.05, 1.0], 0.01, SHOWN),
    "9 % above the first": ([1.0, 1.05, 1.09, 1.05, 0.5], 0.01, NOT_SHOWN),
    "9 % above the last": ([0.5, 1.05, 1.09, 1.05, 1.0], 0.01, NOT_SHOWN),
    # 2 sqrt(2) std = 0.283 std against a difference of 0.1
    "just beyond the spread": ([0.1, 0.15, 0.2, 0.15, 0.1], 0.0353, SHOWN),
    "just within the spread": ([0.1, 0.15, 0.2, 0.15, 0.1], 0.0354, NOT_SHOWN),
    "a spike outside the middle": ([0.3, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.3], 0.01, NOT_SHOWN),
    "two layers": ([0.1, 0.5], 0.01, UNJUDGED),
}


@pytest.mark.parametrize("subset", ["all", "no_sink"])
@pytest.mark.parametrize(("values", "std", "verdict"), BELLS.values(), ids=BELLS)
def test_bell(run, values, std, verdict, subset):
    frame = profile(run, values, subset=subset, std=std)
    assert judged(frame, "bell", subset).verdict == verdict
    other = {"all": "no_sink", "no_sink": "all"}[subset]
    assert judged(frame, "bell", other).verdict == (UNJUDGED if len(values) < 3 else NOT_SHOWN)


def test_bell_evidence(run):
    evidence = judged(profile(run, [0.1, 0.4, 0.5, 0.4, 0.2], std=0.01), "bell", "all").evidence
    assert evidence == "0.5±0.01 at layer 2; ends 0.1±0.01, 0.2±0.01; middle/rest 2.89"


def test_bell_is_judged_at_the_last_step(run):
    def bell_at_step_0(step, depth):
        return 0.1 + (step == 0) * math.sin(math.pi * depth)

    assert judged(run(steps=(0, 8), anisotropy=bell_at_step_0), "bell", "all").verdict == NOT_SHOWN
    assert judged(run(steps=(0,), anisotropy=bell_at_step_0), "bell", "all").verdict == SHOWN


def test_bell_needs_both_ends(run):
    frame = profile(run, [0.1, 0.4, 0.5, 0.4, 0.1])
    for missing, there in ((0, "1, 2, 3, 4"), (4, "0, 1, 2, 3")):
        finding = judged(frame[frame["layer"] != missing], "bell", "all")
        assert finding.verdict == UNJUDGED
        assert finding.evidence == f"needs the embedding output, a middle and the last layer; got layers {there}"


def test_bell_needs_every_value(run):
    finding = judged(profile(run, [NAN, 0.4, 0.5, 0.4, 0.1]), "bell", "all")
    assert finding.verdict == UNJUDGED
    assert finding.evidence == "no value at layer 0: 2 distinct vectors, 3 needed"


UNIFORMS = {
    "flat": ([0.9, 0.3, 0.3, 0.3, 0.3], 0.01, SHOWN),
    "range 0.49 of the mean": ([0.9, 0.755, 1.0, 1.245], 0.01, SHOWN),
    "range 0.51 of the mean": ([0.9, 0.745, 1.0, 1.255], 0.01, NOT_SHOWN),
    "bell": ([0.1, 0.4, 0.5, 0.4, 0.1], 0.01, NOT_SHOWN),
    # 2 sqrt(2) 0.1767 = 0.4998 of a mean of 1
    "spread just below the bound": ([0.9, 1.0, 1.0, 1.0], 0.1767, SHOWN),
    "spread as wide as the bound": ([0.9, 1.0, 1.0, 1.0], 0.1768, UNJUDGED),
    "two blocks": ([0.9, 1.0, 1.0], 0.01, UNJUDGED),
    "no value in a block": ([0.9, 1.0, NAN, 1.0], 0.01, UNJUDGED),
    "no value in the embedding": ([NAN, 1.0, 1.0, 1.0], 0.01, SHOWN),
}


@pytest.mark.parametrize("subset", ["all", "no_sink"])
@pytest.mark.parametrize(("values", "std", "verdict"), UNIFORMS.values(), ids=UNIFORMS)
def test_uniform(run, values, std, verdict, subset):
    finding = judged(profile(run, values, subset=subset, std=std, causal=False), "uniform", subset)
    assert (finding.verdict, finding.criterion) == (verdict, UNIFORM_PROFILE)


def test_uniform_evidence(run):
    evidence = judged(profile(run, [0.9, 0.8, 1.0, 1.2], std=0.01, causal=False), "uniform", "all").evidence
    assert evidence == "range/mean 0.40: 0.8±0.01 (layer 1) to 1.2±0.01 (layer 3)"


GROWTHS = {
    "grows and settles": ({0: 0.1, 10: 0.4, 50: 0.5, 100: 0.5}, 0.01, SHOWN),
    "still growing": ({0: 0.1, 50: 0.3, 100: 0.5}, 0.01, NOT_SHOWN),
    "grows and falls back": ({0: 0.1, 50: 0.6, 100: 0.3}, 0.01, NOT_SHOWN),
    "constant": ({0: 0.3, 50: 0.3, 100: 0.3}, 0.01, NOT_SHOWN),
    "shrinks": ({0: 0.5, 50: 0.3, 100: 0.3}, 0.01, NOT_SHOWN),
    "9 % in all": ({0: 1.0, 50: 1.09, 100: 1.09}, 0.01, NOT_SHOWN),
    "11 % in all": ({0: 1.0, 50: 1.11, 100: 1.11}, 0.01, SHOWN),
    "19 % of it in the second half": ({0: 1.0, 50: 2.62, 100: 3.0}, 0.01, SHOWN),
    "21 % of it in the second half": ({0: 1.0, 50: 2.58, 100: 3.0}, 0.01, NOT_SHOWN),
    "loses 21 % of it in the second half": ({0: 1.0, 50: 3.42, 100: 3.0}, 0.01, NOT_SHOWN),
    "second half within the spread": ({0: 1.0, 50: 1.2, 100: 1.3}, 0.036, SHOWN),
    "growth within the spread": ({0: 0.1, 50: 0.2, 100: 0.2}, 0.0354, NOT_SHOWN),
    "starts in time": ({10: 0.1, 50: 0.5, 100: 0.5}, 0.01, SHOWN),
    "starts too late": ({11: 0.1, 50: 0.5, 100: 0.5}, 0.01, UNJUDGED),
    "nothing near half": ({0: 0.1, 24: 0.5, 76: 0.5, 100: 0.5}, 0.01, UNJUDGED),
    "two steps": ({0: 0.1, 100: 0.5}, 0.01, UNJUDGED),
    "one step": ({0: 0.1}, 0.01, UNJUDGED),
    "no value": ({0: NAN, 50: NAN, 100: NAN}, 0.01, UNJUDGED),
}


@pytest.mark.parametrize(("metric", "subset"), [("anisotropy", "all"), ("no_sink", "no_sink")], ids=["all", "no_sink"])
@pytest.mark.parametrize(("values", "std", "verdict"), GROWTHS.values(), ids=GROWTHS)
def test_growth(run, values, std, verdict, metric, subset):
    assert judged(course(run, metric, values, std=std), "grows", subset).verdict == verdict


def test_growth_evidence(run):
    evidence = judged(course(run, "anisotropy", {0: 0.1, 500: 0.45, 1000: 0.5}, std=0.01), "grows", "all").evidence
    assert evidence == "0.1±0.01 at step 0, 0.5±0.01 at 1,000 (+12% of the growth after 500)"


@pytest.mark.parametrize(
    ("causal", "why"), [(False, "a finding on decoders"), (None, "not known whether this is a decoder")], ids=str
)
def test_growth_is_for_decoders(run, causal, why):
    frame = course(run, "anisotropy", {0: 0.1, 50: 0.5, 100: 0.5}, std=0.01, causal=causal)
    finding = judged(frame, "grows", "all")
    assert finding.verdict == UNJUDGED
    assert finding.evidence == f"{why}; here 0.1±0.01 at step 0, 0.5±0.01 at 100"


RISES = {
    "rises and falls": ({0: 10, 10: 20, 100: 15}, 0.1, SHOWN),
    "only rises": ({0: 10, 10: 15, 100: 20}, 0.1, NOT_SHOWN),
    "only falls": ({0: 20, 10: 15, 100: 10}, 0.1, NOT_SHOWN),
    "falls from a late first step": ({5: 20, 10: 15, 100: 10}, 0.1, UNJUDGED),
    "constant": ({0: 10, 10: 10, 100: 10}, 0.1, NOT_SHOWN),
    "falls and rises": ({0: 20, 10: 10, 100: 15}, 0.1, NOT_SHOWN),
    "rise of 9 %": ({0: 10, 10: 10.9, 100: 5}, 0.1, NOT_SHOWN),
    "rise of 11 %": ({0: 10, 10: 11.1, 100: 5}, 0.1, SHOWN),
    "fall of 9 %": ({0: 5, 10: 10.9, 100: 10}, 0.1, NOT_SHOWN),
    "fall within the spread": ({0: 5, 10: 12, 100: 10}, 0.708, NOT_SHOWN),
    "fall beyond the spread": ({0: 5, 10: 12, 100: 10}, 0.706, SHOWN),
    "highest at half": ({0: 10, 50: 20, 100: 10}, 0.1, SHOWN),
    "highest after half": ({0: 10, 51: 20, 100: 10}, 0.1, NOT_SHOWN),
    "first step without a value": ({0: NAN, 1: 10, 10: 20, 100: 15}, 0.1, SHOWN),
    "two steps": ({0: 10, 100: 20}, 0.1, UNJUDGED),
    "spread not known": ({0: 10, 10: 20, 100: 15}, NAN, UNJUDGED),
}


@pytest.mark.parametrize("causal", [True, False, None], ids=["decoder", "encoder", "unknown"])
@pytest.mark.parametrize(("values", "std", "verdict"), RISES.values(), ids=RISES)
def test_rise_and_fall(run, values, std, verdict, causal):
    assert judged(course(run, "dimension", values, std=std, causal=causal), "dimension", "all").verdict == verdict


def test_rise_and_fall_evidence(run):
    evidence = judged(course(run, "dimension", {0: 10, 1000: 20, 3000: 15}, std=0.1), "dimension", "all").evidence
    assert evidence == "10±0.1 at step 0, highest 20±0.1 at 1,000, 15±0.1 at 3,000"


@pytest.mark.parametrize("given", [{}, {"stage": "finished"}, {"stage": "finished", "causal": False}], ids=str)
def test_one_checkpoint_is_judged_by_its_profile_alone(run, given):
    found = findings(run(steps=(0,), **given))
    assert [finding.evidence for finding in found if finding.name != "shape"] == ["one checkpoint"] * 3
    assert {finding.verdict for finding in found if finding.name == "shape"} <= {SHOWN, NOT_SHOWN}


def test_findings_are_named(run):
    assert [(finding.name, finding.subset) for finding in findings(run())] == [
        ("shape", "all"),
        ("shape", "no_sink"),
        ("growth", "all"),
        ("growth", "no_sink"),
        ("dimension", "all"),
    ]
    assert [finding.name for finding in findings(run())][::2] == list(MEANINGS)


def test_reasons_for_no_verdict(run):
    one_batch = {finding.evidence for finding in findings(with_std(run(), NAN))}
    assert one_batch == {"a single batch, so no spread to judge by; enlarge the probe"}
    without = findings(run().query("metric != 'anisotropy'"))
    assert [finding.evidence for finding in without[:2]] == [
        "anisotropy was not measured on all",
        "anisotropy was not measured on no_sink",
    ]
    unknown = findings(run(causal=None))
    assert unknown[0].evidence == "not known whether this is a decoder"


def test_the_criteria_name_the_numbers_the_tests_above_use():
    differences = "more than 2 combined standard deviations over batches and more than 10%"
    assert all(differences in criterion for criterion in (BELL, GROWTH, RISE_AND_FALL))
    assert "relative depth 0.25 to 0.75" in BELL
    assert "is at most 0.5; cannot be judged where 2 combined" in UNIFORM_PROFILE
    assert "no more than 20% of this growth or 2 combined" in GROWTH
    assert "beyond 10% of the last, or none between 25% and 75% of it" in GROWTH
    assert "no later than half of the last one" in RISE_AND_FALL


def test_two_runs_are_an_error(run):
    with pytest.raises(ValueError, match="^expected the rows of one run, got 2: 'a', 'b'"):
        findings(pd.concat([run(steps=(0,), run="a"), run(steps=(0,), run="b")]))


def test_each_stack_is_judged_as_what_it_is(two_stacks, frame_of):
    found = {stack: findings(rows) for stack, rows in by_stack(frame_of(two_stacks())).items()}
    assert {stack: [one.verdict for one in judgements] for stack, judgements in found.items()} == {
        "encoder": [SHOWN, SHOWN, UNJUDGED, UNJUDGED, SHOWN],
        "decoder": [SHOWN] * 5,
    }
    assert [judgements[0].criterion for judgements in found.values()] == [UNIFORM_PROFILE, BELL]


def test_two_stacks_are_not_judged_as_one(two_stacks, frame_of):
    with pytest.raises(ValueError, match="^expected the rows of one stack of blocks, got 2"):
        findings(frame_of(two_stacks()))

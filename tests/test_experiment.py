"""The preregistered experiment: its plan, its statistics, its tests over seeds, its published
results.
"""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from experiment_plans import materials as materials
from experiment_plans import plan_file as plan_file
from experiment_rows import BLOCKS, STEPS, made_up_rows
from scipy import stats

from experiments.analyze import analyze
from experiments.clouds import of_run
from experiments.effects import PRIMARY, RunRows, split_runs
from experiments.inference import MARGIN, equivalence_p, holm, interval, permutation_p
from experiments.materials import unigram_entropy
from experiments.plan import Plan

PLAN = Path(__file__).parents[1] / "experiments" / "plans" / "matched_pair.yaml"


@pytest.fixture
def changed(tmp_path):
    """Write the shipped plan with some of its content replaced."""

    def write(**changes) -> Path:
        path = tmp_path / "plan.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(PLAN.read_text()), **changes}))
        return path

    return write


def test_the_matched_pair_is_what_the_page_says():
    plan = Plan.read(PLAN)
    page = (PLAN.parents[2] / "docs" / "experiment.md").read_text()
    assert "--text TEXT" in page
    assert "experiments/plans/matched_pair.yaml" in page
    assert [run.name for run in plan.runs] == [
        f"seed{seed}/{arm}" for seed in range(2, 7) for arm in ("causal", "masked")
    ]
    for run in plan.runs:
        assert run.model["hidden_size"] == 128
        assert run.model["n_layers"] == 6
        assert run.model["n_heads"] == 2
        assert run.data["sequence_length"] * run.data["batch_size"] == 8192
        assert run.training["max_steps"] == 2000
        assert run.weights_seed == run.seed + (1000 if run.arm == "masked" else 0)
    assert {name: (probe.split, probe.design) for name, probe in plan.probes.items()} == {
        "a": ("validation", "independent"),
        "b": ("test", "independent"),
        "dense": ("validation", "dense"),
    }
    measured = [step for step in range(2001) if step in plan.schedule]
    assert {0, 1, 2, 4, 8, *range(16, 513, 16), *range(0, 2001, 250)} == set(measured)


def test_the_digest_depends_on_everything_but_the_seeds(changed):
    plan = Plan.read(PLAN)
    arms = yaml.safe_load(PLAN.read_text())["arms"]
    more = {name: {**arm, "seeds": [1, 2, 3, 4, 5, 6]} for name, arm in arms.items()}
    assert plan.digest == "be9eeff12a42fb38"  # rows of another digest are another experiment
    assert Plan.read(changed(arms=more)).digest == plan.digest
    assert Plan.read(changed(vocab_size=2048)).digest != plan.digest
    assert Plan.read(changed(schedule={"every": 100})).digest != plan.digest
    metrics = ["anisotropy", "two_nn", "two_nn@types"]
    with_types = Plan.read(changed(metrics=metrics))
    assert with_types.metrics == tuple(metrics)
    assert with_types.digest != plan.digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabsize": 1}, "unknown field 'vocabsize'; did you mean 'vocab_size'?"),
        (
            {"probes": {"a": {"split": "held out", "design": "dense"}}},
            "expected the split of a probe to be one of train",
        ),
        ({"probes": {"a": {"split": "test", "design": "denser"}}}, "expected a design among"),
        (
            {"arms": {"causal": {"seeds": [1, 1]}}},
            "expected different seeds, at least one, got [1, 1]",
        ),
        ({"arms": {"causal": {"seeds": [1], "family": "bert"}}}, "unknown field 'family'"),
        ({"schedule": {"early_every": 3}}, "expected early_every and early_until together"),
        ({"probes": ["a"]}, "items"),
        (
            {"tokenizer": "bytes"},
            (
                "expected tokenizer: bpe with a vocab_size, or tokenizer: bytes without, got "
                "bytes with"
            ),
        ),
    ],
)
def test_a_mistake_is_named(changed, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Plan.read(changed(**changes))


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return made_up_rows()


@pytest.fixture(scope="module")
def run(rows) -> RunRows:
    return next(run for run in split_runs(rows) if (run.arm, run.seed) == ("causal", 3))


def value(rows: pd.DataFrame, probe: str, metric: str, step: int, block: int) -> float:
    cells = rows[
        (rows["run"] == f"seed3/causal.{probe}")
        & (rows["metric"] == metric)
        & (rows["subset"] == "all")
        & (rows["step"] == step)
        & (rows["layer"] == block)
    ]
    (one,) = cells["value"]
    return one


def mean(rows: pd.DataFrame, probe: str, metric: str, step: int) -> float:
    return sum(value(rows, probe, metric, step, block) for block in BLOCKS) / 6


def test_the_statistics_are_those_of_the_page(rows, run):
    statistics = run.statistics(PRIMARY)
    at_end = [value(rows, "a", "anisotropy", 2000, block) for block in BLOCKS]
    assert statistics["bell"] == pytest.approx(
        math.log((at_end[2] + at_end[3]) / (at_end[0] + at_end[5])), rel=1e-12
    )
    ends = [mean(rows, "a", "anisotropy", step) for step in (0, 2000)]
    assert statistics["growth"] == pytest.approx(math.log(ends[1] / ends[0]), rel=1e-12)
    peak = max(STEPS[1:], key=lambda step: mean(rows, "b", "two_nn", step))
    heights = {step: mean(rows, "a", "two_nn", step) for step in (16, peak, 2000)}
    assert statistics["rise"] == pytest.approx(math.log(heights[peak] / heights[16]), rel=1e-12)
    assert statistics["fall"] == pytest.approx(math.log(heights[peak] / heights[2000]), rel=1e-12)
    late = [step for step in STEPS if step >= 1000]
    for name, metric in (("late anisotropy", "anisotropy"), ("late dimension", "two_nn")):
        y = [math.log(mean(rows, "a", metric, step)) for step in late]
        x = [step - sum(late) / len(late) for step in late]
        slope = sum(a * b for a, b in zip(x, y, strict=True)) / sum(a * a for a in x)
        assert statistics[name] == pytest.approx(1000 * slope, rel=1e-9)


def test_the_dimension_starts_where_both_probes_have_it(rows, run):
    """On probe b block 2 has no value at step 16, so that the dimension starts at step 64, where it
    is highest.
    """
    frame = run.frame.copy()
    missing = (
        (frame["probe_name"] == "b")
        & (frame["metric"] == "two_nn")
        & (frame["step"] == 16)
        & (frame["layer"] == 2)
    )
    frame.loc[missing, "value"] = np.nan
    assert missing.sum() == 2
    later = RunRows("causal", 3, frame).statistics(PRIMARY)
    assert run.statistics(PRIMARY)["rise"] > 0.3
    assert later["rise"] == 0.0
    assert later["fall"] == run.statistics(PRIMARY)["fall"]


def test_dimensions_of_near_duplicates_do_not_count(run):
    frame = run.frame.copy()
    early = (frame["metric"] == "two_nn") & (frame["step"] == 16)
    frame.loc[early & (frame["layer"] == 2), "near_duplicate_share"] = 0.11
    later = RunRows("causal", 3, frame)
    assert math.isnan(later.course("two_nn", "a").loc[16, 2])
    assert later.course("two_nn", "a").loc[16, 3] == run.course("two_nn", "a").loc[16, 3]
    assert later.statistics(PRIMARY)["rise"] == 0.0
    frame.loc[early, "near_duplicate_share"] = 0.1
    assert RunRows("causal", 3, frame).statistics(PRIMARY) == run.statistics(PRIMARY)


def test_runs_are_excluded_for_their_loss_or_missing_values(run):
    assert run.reason_to_exclude() is None
    frame = run.frame.copy()
    last = (frame["metric"] == "probe/loss") & (frame["step"] == 2000)
    frame.loc[last, "value"] = 6.0
    assert "more than 10% above the lowest" in RunRows("causal", 3, frame).reason_to_exclude()
    frame.loc[last, "value"] = np.inf
    assert RunRows("causal", 3, frame).reason_to_exclude() == "the last loss is not finite"
    frame = run.frame.copy()
    frame.loc[
        (frame["metric"] == "anisotropy") & (frame["step"] == 2000) & (frame["layer"] == 6), "value"
    ] = np.nan
    reason = RunRows("causal", 3, frame).reason_to_exclude()
    assert reason == "bell, growth, late anisotropy cannot be computed"


ENTROPY = 6.9


def test_the_permutation_test_counts_all_divisions():
    first = [0.3, 0.5, 0.1, 0.9, 0.4]
    other = [0.2, 0.35, 0.05, 0.0, 0.6]
    values = np.array(first + other)
    observed = abs(np.mean(first) - np.mean(other))
    differences = []
    for chosen in itertools.combinations(range(10), 5):
        mask = np.isin(np.arange(10), chosen)
        differences.append(abs(values[mask].mean() - values[~mask].mean()))
    assert len(differences) == 252
    expected = sum(difference >= observed - 1e-12 for difference in differences) / 252
    assert permutation_p(first, other) == pytest.approx(expected, rel=1e-12)
    assert permutation_p([10, 11, 12, 13, 14], [0, 1, 2, 3, 4]) == pytest.approx(2 / 252, rel=1e-12)


def test_equivalence_needs_the_90_percent_interval_within_the_margin():
    generator = np.random.default_rng(1)
    outcomes = set()
    for centre in np.linspace(0, 0.15, 40):
        values = centre + 0.03 * generator.standard_normal(5)
        low, high = interval(values, 0.90)
        inside = low > -MARGIN and high < MARGIN
        assert (equivalence_p(values) < 0.05) == inside
        outcomes.add(inside)
    assert outcomes == {True, False}


def test_the_interval_is_students():
    values = [0.1, 0.4, 0.2, 0.25, 0.3]
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert interval(values) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert all(math.isnan(bound) for bound in interval([0.1]))


def test_holm_rejects_what_its_definition_rejects():
    generator = np.random.default_rng(2)
    for _ in range(50):
        p = generator.uniform(0, 0.1, 8).tolist()
        rejected = set()
        for rank, index in enumerate(np.argsort(p)):
            if p[index] > 0.05 / (8 - rank):
                break
            rejected.add(int(index))
        assert {index for index, corrected in enumerate(holm(p)) if corrected <= 0.05} == rejected
    assert holm([0.01, math.nan])[0] == 0.01


def verdicts(**made_up) -> dict[str, str]:
    return {
        test.hypothesis.name: test.verdict
        for test in analyze(made_up_rows(**made_up), ENTROPY).tests
    }


def test_an_experiment_with_every_published_effect():
    assert verdicts() == {
        "H1": "supported",
        "H2": "supported",
        "H3": "supported",
        "H4": "supported",
        "H5": "contradicted",  # it grows until the end
        "H6": "supported",
        "H7": "supported",
        "H8": "absent",  # it has fallen by then
        "H9": "contradicted",  # the made-up rows are the same without first positions
        "H10": "contradicted",
    }


def test_an_experiment_without_a_bell():
    analysis = verdicts(bell=0.0)
    assert analysis["H1"] == "absent"
    assert analysis["H2"] == "absent"
    assert analysis["H3"] == "supported"
    assert analysis["H4"] == "absent"


def test_the_probes_share_no_window(materials):
    probes = materials.probes()
    texts = [
        {tuple(window.tolist()) for window in probe.tokens.split(probe.lengths.tolist())}
        for probe in probes.values()
    ]
    assert not texts[0] & texts[1]


def test_the_entropy_is_that_of_the_counted_tokens(materials):
    probe = materials.probes()["a"]
    tokens = [
        int(token) for token, sink in zip(probe.tokens, probe.is_sink, strict=True) if not sink
    ]
    p = torch.bincount(torch.tensor(tokens)).double() / len(tokens)
    expected = -torch.special.xlogy(p, p).sum()
    assert unigram_entropy(probe) == pytest.approx(float(expected), rel=1e-12)


def test_a_cloud_is_compared_with_all_vectors_from_its_own_first_value():
    # types have no value at step 0, where all vectors have one that is half of the later ones
    values = {"all": (4.0, 8.0, 16.0), "types": (math.nan, 20.0, 10.0)}
    cells = itertools.product(("a", "b"), (1, 2, 3), values, range(3))
    rows = [
        {
            "run": f"seed1/base.{probe}",
            "step": 100 * number,
            "layer": block,
            "metric": "two_nn",
            "subset": subset,
            "value": values[subset][number],
            "near_duplicate_share": 0.0,
        }
        for probe, block, subset, number in cells
    ]
    (run,) = split_runs(pd.DataFrame(rows))
    by_cloud = {row["cloud"]: row for row in of_run(run)}
    assert by_cloud["all"]["rise"] == pytest.approx(math.log(4))
    assert by_cloud["types"]["fall"] == pytest.approx(math.log(2))
    assert by_cloud["types"]["start"] == 100
    assert by_cloud["all, from the first value of types"]["rise"] == pytest.approx(math.log(2))

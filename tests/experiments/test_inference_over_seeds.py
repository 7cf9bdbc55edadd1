"""Tests over seeds, against naive computations, and the verdicts of made-up experiments."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from experiment_rows import BLOCKS, made_up_rows
from scipy import stats

from experiments.analyze import analyze, results
from experiments.effects import VARIANTS
from experiments.figures import FIGURES, draw_figures
from experiments.inference import MARGIN, equivalence_p, holm, interval, permutation_p

ENTROPY = 6.9


def test_the_permutation_test_counts_all_divisions():
    one, other = [0.3, 0.5, 0.1, 0.9, 0.4], [0.2, 0.35, 0.05, 0.0, 0.6]
    values = np.array(one + other)
    observed = abs(np.mean(one) - np.mean(other))
    differences = []
    for chosen in itertools.combinations(range(10), 5):
        mask = np.isin(np.arange(10), chosen)
        differences.append(abs(values[mask].mean() - values[~mask].mean()))
    assert len(differences) == 252
    expected = sum(difference >= observed - 1e-12 for difference in differences) / 252
    assert permutation_p(one, other) == pytest.approx(expected, rel=1e-12)
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
    return {test.hypothesis.name: test.verdict for test in analyze(made_up_rows(**made_up), ENTROPY).tests}


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


def test_hypotheses_without_first_positions_are_tested_on_those_rows():
    rows, other = made_up_rows(), made_up_rows(bell=-0.5)
    without = (rows["subset"] == "no_sink") & (rows["metric"] == "anisotropy")
    rows.loc[without, "value"] = other.loc[without, "value"]
    found = {test.hypothesis.name: test.verdict for test in analyze(rows, ENTROPY).tests}
    assert (found["H2"], found["H9"]) == ("supported", "supported")


def test_an_experiment_without_a_bell():
    found = verdicts(bell=0.0)
    assert (found["H1"], found["H2"], found["H3"], found["H4"]) == ("absent", "absent", "supported", "absent")


def test_a_valley_contradicts_a_bell():
    found = verdicts(bell=-0.5)
    assert (found["H1"], found["H2"], found["H4"], found["H9"]) == ("contradicted",) * 3 + ("supported",)


def test_three_seeds_give_no_verdict_and_models_that_learned_nothing_none_either():
    assert set(verdicts(seeds=3).values()) == {"undecided"}
    assert set(verdicts(last_loss=6.5).values()) == {"untestable"}


def test_the_page_names_every_number():
    found = analyze(made_up_rows(), ENTROPY)
    page = results(found)
    assert "5 causal and 5 masked runs. Loss of the causal runs on probe a at the last step: 4.000" in page
    (row,) = [line for line in page.splitlines() if line.startswith("| H1 |")]
    assert "| 5 | +6" in row
    assert "| 0.0079 |" in row
    assert "**supported**" in row
    assert page.count("| causal | ") == page.count("| masked | ") == len(VARIANTS) + len(BLOCKS)
    assert "## Excluded runs\n\nNone." in page
    rows = made_up_rows()
    broken = rows.copy()
    broken.loc[
        (rows["run"] == "seed2/causal.a") & (rows["metric"] == "probe/loss") & (rows["step"] == 2000), "value"
    ] = 9
    found = analyze(broken, ENTROPY)
    assert "- seed2/causal: the last loss, 9.000, is more than 10 % above the lowest" in results(found)
    assert [test.n for test in found.tests] == [4, 4, 5, 4, 4, 4, 4, 4, 4, 4]


def test_the_first_finished_run_can_be_analysed():
    rows = made_up_rows(seeds=1)
    found = analyze(rows[rows["run"].str.startswith("seed1/causal")], ENTROPY)
    assert "1 causal and 0 masked runs" in results(found)
    assert {test.verdict for test in found.tests} == {"undecided"}
    assert set(draw_figures(found.runs, found.tests)) == set(FIGURES)

"""The arms of several experiments side by side, and the plans of those that follow the matched
pair.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from experiment_rows import made_up_rows

from experiments.analyze import analyze
from experiments.compare import COMPARED, differences, forest
from experiments.effects import PRIMARY
from experiments.materials import Materials
from experiments.plan import Plan

PLANS = Path(__file__).parents[3] / "experiments" / "plans"


@pytest.fixture(scope="module")
def statistics() -> pd.DataFrame:
    by_arm = []
    for arm, bell, seeds in (("causal", 0.5, 3), ("wide", 1.0, 2), ("long", 0.0, 1)):
        rows = made_up_rows(seeds, bell=bell)
        rows = rows[rows["run"].str.contains("causal")]
        every = analyze(rows, 6.9).statistics
        is_primary = every["variant"] == PRIMARY.name
        by_arm.append(every[is_primary].assign(arm=arm, sink=0.0))
    return pd.concat(by_arm, ignore_index=True)


def test_three_seeds_give_no_verdict_and_models_that_learned_nothing_none_either():
    few, untrained = (
        analyze(made_up_rows(**made_up), 6.9).tests
        for made_up in ({"seeds": 3}, {"last_loss": 6.5})
    )
    assert {test.verdict for test in few} == {"undecided"}
    assert {test.verdict for test in untrained} == {"untestable"}


def test_the_figure_has_a_panel_for_each_statistic(statistics):
    figure = forest(statistics)
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(COMPARED)
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == [
        "long",
        "wide",
        "causal",
    ]


@pytest.mark.parametrize("name", ["ablations", "no_bos", "bytes"])
def test_a_plan_that_follows_differs_from_the_matched_pair_as_it_says(name, tmp_path):
    matched = Plan.read(PLANS / "matched_pair.yaml")
    plan = Plan.read(PLANS / f"{name}.yaml")
    assert plan.name == name
    assert plan.digest != matched.digest
    assert plan.text == matched.text
    assert plan.schedule == matched.schedule
    assert plan.probes == {probe: matched.probes[probe] for probe in "ab"}
    causal = matched.runs[0]
    for run in plan.runs:
        data = Materials(plan, "builtin", tmp_path)
        assert data.run_folder(run).name == f"seed{run.seed}"
        ours = run.model | run.data | run.training
        theirs = causal.model | causal.data | causal.training
        keys = {*ours, *theirs} - {"mask_probability"}
        changed = {key for key in keys if ours.get(key) != theirs.get(key)}
        expected = {
            "depth_12": {"n_layers"},
            "width_256": {"hidden_size", "n_heads"},
            "warmup_400": {"warmup_steps"},
            "warmup_1600": {"warmup_steps"},
            "quarter_rate": {"learning_rate"},
            "constant_rate": {"cooldown_steps"},
            "steps_16000": {"cooldown_steps", "max_steps"},
            "no_bos": {"bos"},
            "bytes": {"bos"},
        }
        assert changed == expected[run.arm]


def test_the_small_arms_differ_from_their_base_in_what_they_are_named_after():
    small = Plan.read(PLANS / "small.yaml")
    without = Plan.read(PLANS / "small_no_bos.yaml")
    base, constant = small.runs[:2]
    assert {**base.model, "cooldown_steps": 300} == constant.model
    assert without.data == {**small.data, "bos": False}
    assert without.model == small.model
    assert without.text == small.text
    assert without.training == small.training
    assert without.vocab_size == small.vocab_size
    assert without.schedule == small.schedule
    assert without.probes == small.probes


def test_differences_are_those_of_equal_seeds():
    rows = [
        ("base", 1, 1.0),
        ("base", 2, 5.0),
        ("base", 3, 7.0),
        ("other", 2, 4.0),
        ("other", 1, 3.0),
    ]
    compared = differences(
        pd.DataFrame(
            [(arm, seed, *(value for _ in COMPARED)) for arm, seed, value in rows],
            columns=["arm", "seed", *COMPARED],
        )
    )
    assert compared.set_index("seed")["sink"].to_dict() == {2: -1.0, 1: 2.0}
    assert set(compared["arm"]) == {"other - base"}

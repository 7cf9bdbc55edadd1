"""Plans of experiments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from experiments.plan import Plan

PLAN = Path(__file__).parents[2] / "experiments" / "plans" / "matched_pair.yaml"


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
        assert (run.model["hidden_size"], run.model["n_layers"], run.model["n_heads"]) == (128, 6, 2)
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabsize": 1}, "unknown field 'vocabsize'; did you mean 'vocab_size'?"),
        (
            {"probes": {"a": {"split": "held out", "design": "dense"}}},
            "expected the split of a probe to be one of train",
        ),
        ({"probes": {"a": {"split": "test", "design": "denser"}}}, "expected a design among"),
        ({"arms": {"causal": {"seeds": [1, 1]}}}, "expected different seeds, at least one, got [1, 1]"),
        ({"arms": {"causal": {"seeds": [1], "family": "bert"}}}, "unknown field 'family'"),
        ({"schedule": {"early_every": 3}}, "expected early_every and early_until together"),
        ({"probes": ["a"]}, "items"),
        (
            {"tokenizer": "bytes"},
            "expected tokenizer: bpe with a vocab_size, or tokenizer: bytes without, got bytes with",
        ),
    ],
)
def test_a_mistake_is_named(changed, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Plan.read(changed(**changes))

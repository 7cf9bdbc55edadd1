"""A recipe judged on stores: which rows count, and what is not run."""

from __future__ import annotations

import pytest
from synthetic_runs import DENSE, fill, make_finished, make_published, make_two_stacks

from repdyn.recipes import evaluate, read_recipe
from repdyn.recipes.evaluation import count_verdicts
from repdyn.recipes.figure import draw_recipe

RECIPE = """
title: A paper
paper: '2311.05928'
address: https://arxiv.org/abs/2311.05928
stated: 2026-11-23
models: [lab/a, lab/b, lab/bert]
metrics: [anisotropy, two_nn]
differs: [nothing]
published:
  - {claim: bell, source: figure 1, models: [lab/a, lab/b], metric: anisotropy, criterion: {kind: finding, finding: bell}}
  - {claim: flat, source: figure 1, models: [lab/bert], metric: anisotropy, criterion: {kind: finding, finding: uniform}}
  - {claim: width, source: figure 2, metric: two_nn, criterion: {kind: scaling, exponent: [0, 1]}}
  - {claim: rank, source: figure 3, models: [lab/a], metric: two_nn@no_sink, criterion: {kind: peak}}
  - {claim: tasks, source: table 1, not_run: no tasks}
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE.replace("metrics: [anisotropy, two_nn]", "metrics: [anisotropy, two_nn, two_nn@no_sink]"))
    return read_recipe(path)


@pytest.fixture
def store(tmp_path):
    return fill(tmp_path / "store", make_published("lab/a"), make_finished("lab/bert"))


def verdicts(outcomes):
    return {(outcome.published.claim, outcome.run): (outcome.verdict, outcome.ours) for outcome in outcomes}


def test_every_verdict(recipe, store):
    outcomes, measured = evaluate(recipe, store)
    found = verdicts(outcomes)
    assert found["bell", "lab/a"][0] == "reproduced"
    assert found["bell", "lab/b"] == ("not run", "not in the store")
    assert found["flat", "lab/bert"][0] == "reproduced"
    assert found["width", ""] == ("cannot be judged", "needs models of 3 widths, got 1")
    assert found["rank", "lab/a"] == ("not run", "two_nn@no_sink was not measured")
    assert found["tasks", ""] == ("not run", "no tasks")
    assert [each.name for each in measured] == ["lab/a", "lab/bert"]
    assert count_verdicts(outcomes) == "2 reproduced, 1 cannot be judged, 3 not run"


def test_the_control_of_a_cloud(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        RECIPE.partition("published")[0].replace("metrics: [", "cloud: {control: shuffled}\nmetrics: [")
        + "published: [{claim: a, source: b, models: [lab/a], metric: two_nn, "
        "criterion: {kind: control, change: fall, more: 0.1}}]"
    )
    recipe = read_recipe(path)
    lower = {"dimension": lambda step, depth: 1.0 + depth, "design": "shuffled", "probe": "5" * 16}
    store = fill(tmp_path / "store", make_published("lab/a"))
    assert verdicts(evaluate(recipe, store)[0])["a", "lab/a"] == ("not run", "the control was not measured")
    store = fill(tmp_path / "store", make_published("lab/a", **lower))
    outcomes, measured = evaluate(recipe, store)
    verdict, ours = verdicts(outcomes)["a", "lab/a"]
    assert verdict == "reproduced"
    assert "control/text -" in ours
    assert draw_recipe(recipe, outcomes, measured) is not None


def test_own_runs_are_judged_on_everything(recipe, tmp_path):
    store = fill(tmp_path / "store", make_published("my/run"))
    outcomes, measured = evaluate(recipe, store, runs=["my/run"])
    found = verdicts(outcomes)
    assert found["bell", "my/run"][0] == "reproduced"
    assert found["flat", "my/run"][0] == "not reproduced", "its profile is a bell"
    assert found["rank", "my/run"] == ("not run", "two_nn@no_sink was not measured")
    assert [each.name for each in measured] == ["my/run"]
    with pytest.raises(ValueError, match=r"expected a run of .*, got 'lab/a'; it has my/run"):
        evaluate(recipe, store, runs=["lab/a"])
    with pytest.raises(ValueError, match=r"got 'my/rum'; did you mean 'my/run'\?"):
        evaluate(recipe, store, runs=["my/run", "my/rum"])


def test_a_flat_profile_is_no_bell(recipe, tmp_path):
    store = fill(tmp_path / "store", make_published("lab/a", anisotropy=lambda step, depth: 0.3))
    found = verdicts(evaluate(recipe, store)[0])
    assert found["bell", "lab/a"][0] == "not reproduced"


def test_rows_of_another_design_do_not_count(recipe, tmp_path):
    store = fill(tmp_path / "store", make_published("lab/a", **DENSE))
    assert verdicts(evaluate(recipe, store)[0])["bell", "lab/a"] == (
        "not run",
        "no checkpoint measured by the independent design",
    )


def test_two_probes_of_the_design(recipe, tmp_path):
    store = fill(tmp_path / "store", make_published("lab/a", probe="a1"), make_published("lab/a", probe="b2"))
    with pytest.raises(ValueError, match="expected lab/a on one probe, got a1, b2; choose one with --probe"):
        evaluate(recipe, store)
    assert verdicts(evaluate(recipe, store, probe="b")[0])["bell", "lab/a"][0] == "reproduced"
    with pytest.raises(
        ValueError, match="expected the beginning of the hash of a probe of independent design, got 'c'"
    ):
        evaluate(recipe, store, probe="c")


def test_a_model_that_was_measured_on_another_probe(recipe, store, tmp_path):
    (probe,) = store.to_pandas("lab/a")["probe"].unique()
    found = verdicts(evaluate(recipe, store, probe=probe)[0])
    assert found["bell", "lab/a"][0] == "reproduced"
    assert found["flat", "lab/bert"] == ("not run", "no checkpoint measured by the independent design")


def test_other_models_stand_in(recipe, store):
    found = verdicts(evaluate(recipe, store, ["lab/a"])[0])
    assert found["flat", ""] == ("not run", "no model among lab/bert")
    assert found["bell", "lab/a"][0] == "reproduced"


def test_a_model_of_two_stacks(recipe, tmp_path):
    store = fill(tmp_path / "store", make_two_stacks("lab/a"))
    assert verdicts(evaluate(recipe, store)[0])["bell", "lab/a"] == (
        "not run",
        "has 2 stacks of blocks, and a recipe is about one",
    )

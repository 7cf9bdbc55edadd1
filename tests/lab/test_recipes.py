"""Recipes: what they may say, and how each kind of published value is judged."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pandas as pd
import pytest
import yaml
from reproducing import command as command
from synthetic_runs import (
    SAMPLED,
    fill,
    make_finished,
    make_published,
    make_row,
    make_rows,
    to_frame,
)

from repdyn import Probe, open_store
from repdyn.data.tokens import byte_tokenizer
from repdyn.lab.recipes.cells import Cell
from repdyn.lab.recipes.criteria import Measured, NotMeasuredError
from repdyn.lab.recipes.evaluation import count_verdicts, evaluate
from repdyn.lab.recipes.page import write_results
from repdyn.lab.recipes.recipe import (
    AnyCriterion,
    find_models_of,
    find_recipe,
    read_recipe,
    shipped_recipes,
)
from repdyn.probe.corpus import builtin_corpus
from repdyn.probe.design import MAX_VECTORS
from repdyn.utils.records import validated
from repdyn.views.judging.effects import CannotBeJudgedError, Estimate
from repdyn.views.judging.surrogates import against_drift

STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000)
ENTROPY = (
    0.833,
    0.833,
    0.833,
    0.833,
    0.832,
    0.77,
    0.702,
    0.698,
    0.698,
    0.744,
    0.821,
    0.829,
    0.803,
    0.75,
    0.701,
    0.631,
    0.576,
    0.517,
)
"""Of Pythia-410m, published: falls to step 128, rises to step 2000, falls."""


def rows_of(
    curve,
    *,
    metric="effective_rank_of_variance",
    steps=STEPS,
    n_blocks=9,
    noise=0.01,
    name="lab/a",
    **fields,
):
    """One metric whose value at a place in training and a relative depth is ``curve(number of the
    step, depth)``.
    """
    return [
        make_row(
            run=name,
            metric=metric,
            step=step,
            layer=layer,
            depth=layer / n_blocks,
            value=(value := curve(number, (layer - 1) / (n_blocks - 1))),
            std=noise * abs(value),
            **fields,
        )
        for number, step in enumerate(steps)
        for layer in range(1, n_blocks + 1)
    ]


def measured(curve, *, name="lab/a", **given):
    return Measured(name, to_frame(rows_of(curve, name=name, **given)))


def criterion(**settings):
    return validated(AnyCriterion, settings, "a test")


def judge(kind, model, metric="effective_rank_of_variance", **settings):
    return criterion(kind=kind, **settings).judge(model, metric)[0]


def bump(height):
    return lambda number, depth: 10 + height * math.exp(-(((depth - 0.5) / 0.2) ** 2))


@pytest.mark.parametrize(
    ("height", "peak", "valley"), [(5, "shown", "not shown"), (-5, "not shown", "shown")]
)
def test_peak_and_valley(height, peak, valley):
    of_bump = measured(bump(height))
    assert judge("peak", of_bump) == peak
    assert judge("valley", of_bump) == valley
    assert judge("peak", of_bump, absent=True) == valley
    assert judge("valley", of_bump, absent=True) == peak


def test_a_peak_elsewhere_is_not_the_published_one():
    of_bump = measured(lambda number, depth: 10 + 5 * math.exp(-(((depth - 0.125) / 0.1) ** 2)))
    assert judge("peak", of_bump, depth=(0.1, 0.2)) == "shown"
    assert judge("peak", of_bump) == "not shown"


def test_phases():
    course = measured(lambda number, depth: ENTROPY[number], noise=0.001)
    three = {"phases": ("fall", "rise", "fall"), "more": (0.1, 0.1, 0.1)}
    assert judge("phases", course, **three) == "shown"
    assert judge("phases", course, **three | {"more": (0.1, 0.5, 0.1)}) == "not shown"
    assert judge("phases", course, phases=("rise",), more=(0.1,)) == "not shown"
    _, evidence = criterion(kind="phases", **three).judge(course, "effective_rank_of_variance")
    assert evidence.startswith(
        "to step 128 it falls by 16% (interval 16 to 16); to step 2,000 it rises by 19%"
    )
    assert "; sharper than drift: 0.4" in evidence
    # the same changes in four steps may be chance
    assert (
        judge(
            "phases",
            measured(lambda number, depth: (0.83, 0.7, 0.83, 0.5)[number], steps=(0, 1, 2, 3)),
            **three,
        )
        == "cannot be judged"
    )


def test_phases_of_drift():
    """By size alone, two thirds of random walks rise and fall."""
    walks = np.random.default_rng(0).standard_normal((12, 24)).cumsum(axis=1)
    assert sum(against_drift(walk, ["rise", "fall"]).is_exceeded for walk in walks) <= 2


def test_a_published_value_is_judged_on_each_of_the_runs_that_are_named(tmp_path):
    changed = with_criterion(kind="phases", phases=["fall", "rise", "fall"], more=[0.1] * 3)
    sampled = {"cloud": {"vectors_per_dimension": 20}}
    recipe = read_recipe(write(tmp_path / "mine.yaml", models=["lab/a"], **changed, **sampled))
    runs = {f"lab/a-seed{seed}": course for seed, course in enumerate((ENTROPY, sorted(ENTROPY)))}
    fields = {"metric": "anisotropy", "noise": 0.001, "n_blocks": 3, "dim": 768}
    rows = [
        rows_of(lambda number, _, of=of: of[number], name=name, **fields)
        for name, of in runs.items()
    ]
    store = fill(tmp_path / "store", *rows)
    both, _ = evaluate(recipe, store, runs=list(runs))
    assert [each.verdict for each in both] == ["reproduced", "not reproduced"]
    assert "4,096 vectors of 768 dimensions, not 15,360" in both[0].deviations


def test_between():
    course = measured(lambda number, depth: 0.9, noise=0.02)
    assert judge("between", course, bounds=(0.8, 1.0)) == "shown"
    assert judge("between", course, bounds=(0.0, 0.8)) == "not shown"
    assert judge("between", course, bounds=(0.9, 1.0)) == "cannot be judged"


def test_between_of_a_single_batch():
    """Its interval was NaN, so that no such claim could be judged, and no picture showed it."""
    of_one = {"n_batches": 1, "std_error": 0.01, "low": 0.87, "high": 0.93}
    course = measured(lambda number, depth: 0.9, **of_one)
    assert judge("between", course, bounds=(0.85, 0.95)) == "shown"
    assert judge("between", course, bounds=(0.885, 0.95)) == "cannot be judged"
    assert judge("between", course, bounds=(0.0, 0.8)) == "not shown"
    assert Estimate(0.9, 0.01, 1).half_width == pytest.approx(1.96 * 0.01, rel=1e-3)
    assert Estimate(0.9, 0.01, 3).half_width == pytest.approx(4.303 * 0.01, rel=1e-3)


@pytest.mark.parametrize(
    ("finding", "verdict"), [("bell", "shown"), ("uniform", "not shown"), ("growth", "shown")]
)
def test_findings(finding, verdict):
    run = Measured("a", to_frame(make_rows(n_blocks=6, steps=(0, 256, 512))))
    assert judge("finding", run, "anisotropy", finding=finding) == verdict


def test_a_metric_that_was_not_measured():
    with pytest.raises(NotMeasuredError, match="two_nn@no_sink was not measured"):
        judge(
            "phases",
            measured(lambda number, depth: 1.0),
            "two_nn@no_sink",
            phases=("fall",),
            more=(0.1,),
        )


TABLE = pd.DataFrame(
    {
        "layer": [0, 1, 2, 0],
        "class": ["all", "all", "all", "rare"],
        "alignment": [0.10, 0.50, 1.0, 0.3],
        "alignment_low": [0.08, 0.45, 1.0, 0.3],
        "alignment_high": [0.12, 0.55, 1.0, 0.3],
    }
)


@pytest.mark.parametrize(
    ("row", "bounds", "verdict"),
    [
        ({"layer": 0, "class": "all"}, {"value": 0.11, "within": 0.05}, "shown"),
        ({"layer": 0, "class": "all"}, {"value": 0.11, "within": 0.02}, "cannot be judged"),
        ({"layer": 0, "class": "rare"}, {"value": 0.1, "within": 0.1}, "not shown"),
        ({"layer": -2, "class": "all"}, {"at_least": 0.4}, "shown"),
        ({"layer": -2, "class": "all"}, {"at_most": 0.4}, "not shown"),
    ],
)
def test_a_cell_is_judged_with_its_whole_interval(row, bounds, verdict):
    cell = criterion(
        kind="cell", study="convergence", table="profiles", column="alignment", row=row, **bounds
    )
    assert cell.judge(TABLE)[0] == verdict


def test_a_cell_that_the_table_does_not_have():
    cell = criterion(
        kind="cell",
        study="convergence",
        table="profiles",
        column="alignment",
        row={"layer": 0},
        at_least=0,
    )
    with pytest.raises(CannotBeJudgedError, match="2 rows with layer 0"):
        cell.judge(TABLE)
    with pytest.raises(NotMeasuredError, match="alignment"):
        cell.judge(TABLE.drop(columns="alignment"))


OF_STUDIES = """
title: A paper
paper: A. Author, 2024
address: https://example.org
stated: 2026-11-27
models: [lab/a]
studies: {convergence: {sentences: 0}}
differs: [nothing]
published:
  - {claim: first, source: figure 1,
     criterion: {kind: cell, study: convergence, table: profiles, column: alignment,
                 row: {layer: 0, class: all}, value: 0.1, within: 0.05}}
"""


def test_published_values_in_tables_of_studies(tmp_path):
    """A study with other options, or of a stand-in, is no reproduction."""
    (tmp_path / "mine.yaml").write_text(OF_STUDIES)
    recipe = read_recipe(tmp_path / "mine.yaml")
    folder = tmp_path / "tables"
    store = open_store(tmp_path / "store")
    outcomes, _ = evaluate(recipe, store, tables=folder)
    assert [outcome.verdict for outcome in outcomes] == ["not run"]
    done = folder / "convergence" / "lab_a"
    done.mkdir(parents=True)
    TABLE.to_csv(done / "profiles.csv", index=False)
    for options, deviations in (
        ({"sentences": 0}, ()),
        ({"sentences": 9}, ("sentences 9, not 0",)),
    ):
        (done / "options.json").write_text(json.dumps(options))
        ((outcome,), _) = evaluate(recipe, store, tables=folder)
        assert outcome.verdict == "reproduced"
        assert outcome.deviations == deviations
    page = write_results(recipe, [outcome], [], tmp_path).read_text()
    assert "data:image/png" in page
    assert "0.1 [0.08, 0.12]" in page


RECIPE = """
title: A paper
paper: '2311.05928'
address: https://arxiv.org/abs/2311.05928
stated: 2026-11-23
models: [lab/a, lab/b, lab/bert]
metrics: [anisotropy, two_nn]
differs: [nothing]
published:
  - {claim: bell, source: figure 1, models: [lab/a, lab/b], metric: anisotropy,
     criterion: {kind: finding, finding: bell}}
  - {claim: flat, source: figure 1, models: [lab/bert], metric: anisotropy,
     criterion: {kind: finding, finding: uniform}}
  - {claim: width, source: figure 2, models: [lab/bert], metric: two_nn,
     criterion: {kind: between, step: first, bounds: [0, 0.1]}}
  - {claim: rank, source: figure 3, models: [lab/a], metric: two_nn@no_sink,
     criterion: {kind: peak}}
  - {claim: tasks, source: table 1, not_run: no tasks}
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        RECIPE.replace(
            "metrics: [anisotropy, two_nn]", "metrics: [anisotropy, two_nn, two_nn@no_sink]"
        )
    )
    return read_recipe(path)


@pytest.fixture
def store(tmp_path):
    return fill(tmp_path / "store", make_published("lab/a"), make_finished("lab/bert"))


def verdicts(outcomes):
    return {
        (outcome.published.claim, outcome.run): (outcome.verdict, outcome.ours)
        for outcome in outcomes
    }


def test_every_verdict(recipe, store):
    outcomes, measured = evaluate(recipe, store)
    by_claim = verdicts(outcomes)
    assert by_claim["bell", "lab/a"][0] == "reproduced"
    assert by_claim["bell", "lab/b"] == ("not run", "not in the store")
    assert by_claim["flat", "lab/bert"][0] == "reproduced"
    assert by_claim["width", "lab/bert"][0] == "not reproduced"
    assert by_claim["rank", "lab/a"] == ("not run", "two_nn@no_sink was not measured")
    assert by_claim["tasks", ""] == ("not run", "no tasks")
    assert [each.name for each in measured] == ["lab/a", "lab/bert"]
    assert count_verdicts(outcomes) == "2 reproduced, 1 not reproduced, 3 not run"


def saved_probe(store, text, sequence_length=80, max_vectors=MAX_VECTORS):
    """Save a probe of the builtin text under the name of a text, and return its hash."""
    settings = {"sequence_length": sequence_length, "max_vectors": max_vectors}
    probe = Probe.from_texts(
        [builtin_corpus().data.decode()], byte_tokenizer(), name=text, **settings
    )
    store.save_probe(probe)
    return probe.hash


def test_rows_of_another_protocol_are_named(recipe, tmp_path):
    sampled = {"window_tokens": 32, "vectors_per_window": 12}
    store = open_store(tmp_path / "store")
    probe = saved_probe(store, "another text (sha256 0123)", max_vectors=256)
    fill(store.path, make_published("lab/a", probe=probe, **sampled))
    (outcome,) = [
        candidate
        for candidate in evaluate(recipe, store)[0]
        if candidate.run == "lab/a" and candidate.published.claim == "bell"
    ]
    assert outcome.deviations == (
        "text another text (sha256 0123), not enwik8",
        "windows of 32 tokens, not 80",
        "1 batch of 256 vectors, not 1 of 4,096",
        "up to 12 vectors of a window, not 8",
    )
    assert "; measured otherwise: text another text" in outcome.text


def test_the_page_states_what_was_measured(recipe, store, tmp_path):
    page = write_results(recipe, *evaluate(recipe, store), tmp_path).read_text()
    assert f"lab/a at 11 steps (0 to 512): {SAMPLED}" in page
    assert f"lab/bert at 1 step (0): {SAMPLED}" in page
    assert "text not recorded: the store has no copy of the probe" in page
    assert "measured otherwise: windows of 64 tokens, not 80" in page


VALID = {
    "title": "A paper",
    "paper": "2311.05928",
    "address": "https://arxiv.org/abs/2311.05928",
    "models": ["pythia-70m"],
    "metrics": ["anisotropy", "two_nn[discard=0.8]"],
    "differs": ["everything"],
    "published": [
        {
            "claim": "a peak",
            "source": "figure 1",
            "metric": "anisotropy",
            "criterion": {"kind": "peak", "depth": [0.2, 0.8]},
        }
    ],
}


def write(path: Path, **changed) -> Path:
    content = {name: value for name, value in (VALID | changed).items() if value is not None}
    text = yaml.safe_dump(content, sort_keys=False)
    path.write_text(text if "stated" in changed else f"{text}stated: 2026-11-23\n")
    return path


OF_CELL = {
    "claim": "a",
    "source": "b",
    "criterion": {
        "kind": "cell",
        "study": "topics",
        "table": "t",
        "column": "c",
        "value": 1,
        "within": 1,
    },
}


def with_criterion(**criterion):
    return {"published": [VALID["published"][0] | {"criterion": criterion}]}


SHIPPED = shipped_recipes()
EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "recipes").glob("*.yaml"))
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "reproduce.md"


@pytest.mark.parametrize("name", [*SHIPPED, *map(str, EXAMPLES)], ids=lambda name: Path(name).stem)
def test_shipped_recipes(name):
    recipe = find_recipe(name)
    assert "arxiv" not in recipe.address or recipe.address.endswith(recipe.paper)
    models = find_models_of(recipe.models)
    assert models
    for published in recipe.published:
        # every pattern is of some model, and what is measured is of at least one
        for pattern in published.models:
            assert any(fnmatchcase(model.name, pattern) for model in models), pattern
        if published.criterion is not None:
            assert any(published.is_about(model) for model in models)
            assert published.criterion.text.endswith((".", ")"))
        else:
            assert published.not_run
    assert any(published.criterion for published in recipe.published)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"titel": "A"}, "did you mean 'title'?"),
        ({"paper": 2311.05928}, "got 2311.05928"),
        ({"models": ["pythia-71m"]}, "did you mean 'pythia-"),
        ({"metrics": ["anisotropie"]}, "did you mean 'anisotropy'?"),
        ({"metrics": ["anisotropy@nowhere"]}, "expected a subset among all, no_sink"),
        (
            {"cloud": {"design": "sparse"}},
            "expected a design among independent, dense, paper, shuffled",
        ),
        ({"metrics": None}, "metrics or studies"),
        ({"published": [{"claim": "a", "source": "b"}]}, "or not_run"),
        (
            with_criterion(kind="hill"),
            "does not match any of the expected tags: 'finding', 'peak', 'valley'",
        ),
        ({"published": [OF_CELL]}, "add it to studies"),
        (
            {"published": [OF_CELL | {"criterion": OF_CELL["criterion"] | {"at_least": 0}}]},
            "keep one kind",
        ),
        (with_criterion(kind="peak", depth=[0.8, 0.2]), "the lower bound first"),
        (
            with_criterion(kind="phases", phases=["fall", "rise"], more=[0.1]),
            "one value of more for each of 2 phases",
        ),
    ],
)
def test_mistakes_in_a_recipe(changed, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_recipe(write(tmp_path / "mine.yaml", **changed))


def test_every_recipe_and_kind_is_documented():
    text = DOCUMENTATION.read_text()
    kinds = get_args(get_args(AnyCriterion)[0])
    of_kinds = {name: kind for kind in kinds for name in get_args(get_type_hints(kind)["kind"])}
    assert set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)) == {*SHIPPED, *of_kinds}
    for kind, settings in re.findall(r"^\| `([a-z]+)` \|.*\| (.*) \|$", text, re.MULTILINE):
        named = set(re.findall(r"`([a-z_]+)`", settings)) | {"kind"}
        assert kind in {*SHIPPED, "valley"} or named == {
            each.name for each in fields(of_kinds[kind])
        }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected the name of a recipe, or --list, got neither; see --help"),
        (("shape-of-learnin",), "got 'shape-of-learnin'; did you mean 'shape-of-learning'?"),
        (("shape-of-learning", "--models", "pythia-71m"), "did you mean"),
        (("shape-of-learning", "--evaluate-only"), "reproductions/shape-of-learning"),
    ],
)
def test_mistakes_on_the_command_line(command, arguments, message):
    status, out, err = command(*arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("error: ")
    assert message in err


def test_cells_of_all_layers():
    """ "The first step is the largest" was judged by the size of the first step alone."""
    table = pd.DataFrame(
        {
            "class": ["complex"] * 4,
            "layer": [0, 1, 2, 3],
            "gradient": [0.26, 0.1, 0.12, math.nan],
            "gradient_low": [0.25, 0.09, 0.11, math.nan],
            "gradient_high": [0.27, 0.11, 0.13, math.nan],
        }
    )

    def judged(over_layers, of=table, **bounds):
        cell = Cell(
            study="convergence",
            table="classes",
            column="gradient",
            row={"class": "complex"},
            over_layers=over_layers,
            **bounds,
        )
        return cell.judge(of)[0]

    first = {"value": 0.0, "within": 0.0}
    assert judged("layer of the largest", **first) == "shown"
    assert judged("layer of the largest", value=2.0, within=0.0) == "not shown"
    unclear = table.assign(gradient_high=[0.27, 0.11, 0.26, math.nan])
    assert judged("layer of the largest", unclear, **first) == "cannot be judged"
    assert judged("mean", value=0.16, within=0.011) == "shown"
    assert judged("largest", at_most=0.26) == "cannot be judged"
    with pytest.raises(CannotBeJudgedError, match="several rows of a layer"):
        judged("mean", pd.concat([table, table]), at_most=1.0)

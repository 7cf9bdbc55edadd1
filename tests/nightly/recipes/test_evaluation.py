"""A recipe judged on stores: which rows count, and what is not run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_runs import fill, make_finished, make_published, make_two_stacks

from repdyn import Probe, open_store
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.probe.design import MAX_VECTORS
from repdyn.recipes import evaluate, read_recipe
from repdyn.recipes.figure import draw_recipe
from repdyn.text.corpus import builtin_corpus

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


def saved_probe(store, text, sequence_length=80, max_vectors=MAX_VECTORS):
    """Save a probe of the builtin text under the name of a text, and return its hash."""
    settings = {"sequence_length": sequence_length, "max_vectors": max_vectors}
    probe = Probe.from_texts([builtin_corpus().data.decode()], byte_tokenizer(), name=text, **settings)
    store.save_probe(probe)
    return probe.hash


AS_ASKED = {"window_tokens": 80, "n_batches": 1}


def test_the_probe_that_was_asked_for_is_found_among_several(recipe, tmp_path):
    store = open_store(tmp_path / "store")
    as_asked, other = saved_probe(store, "enwik8, cleaned"), saved_probe(store, builtin_corpus().name, 40)
    fill(store.path, *(make_published("lab/a", probe=probe, **AS_ASKED) for probe in (as_asked, other)))
    (found,) = evaluate(recipe, store)[1]
    assert found.rows["probe"].unique().tolist() == [as_asked]
    outcomes, (found,) = evaluate(recipe, store, cloud=replace(recipe.cloud, text="builtin"))
    assert found.rows["probe"].unique().tolist() == [other]
    assert outcomes[0].deviations == (f"text {builtin_corpus().name}, not enwik8",)


def test_other_models_stand_in(recipe, store):
    found = verdicts(evaluate(recipe, store, ["lab/a"])[0])
    assert found["flat", ""] == ("not run", "no model among lab/bert")
    assert found["bell", "lab/a"][0] == "reproduced"


def test_a_panel_has_the_models_that_were_judged_and_no_others(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        RECIPE.partition("models:")[0] + "models: [lab/a, lab/stage-0, lab/stage-1]\nmetrics: [anisotropy]\n"
        "differs: [nothing]\npublished:\n"
        "  - {claim: grows, source: a, models: [lab/a], metric: anisotropy, criterion: {kind: finding, finding: growth}}\n"
        "  - {claim: from base to chat, source: b, models: [lab/stage-*], metric: anisotropy, "
        "criterion: {kind: stages, phases: [rise], more: [0]}}\n"
    )
    recipe = read_recipe(path)
    store = fill(tmp_path / "store", make_published("lab/a"), *(make_published(f"lab/stage-{n}") for n in (0, 1)))
    figure = draw_recipe(recipe, *evaluate(recipe, store))
    training, stages = figure.axes
    assert training.get_title(loc="left").splitlines()[0] == "1. grows"
    assert stages.get_title(loc="left").startswith("2. from base to chat\n1 ")
    assert [label.get_text() for label in stages.get_xticklabels()] == ["stage-0", "stage-1"]
    assert sorted({round(float(x)) for line in stages.get_lines() for x in line.get_xdata()}) == [0, 1]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["lab/a"]
    assert not any(axes.get_legend() for axes in figure.axes), "no legend over curves"


def test_no_label_of_a_figure_is_cut_off(tmp_path):
    path = tmp_path / "mine.yaml"
    long = "alpha_req[first=12]@last_token.normed"
    path.write_text(
        RECIPE.partition("models:")[0] + f"models: [lab/a]\nmetrics: [anisotropy, '{long}']\ndiffers: [nothing]\n"
        f"published: [{{claim: {'many words ' * 20}, source: a, metric: anisotropy, "
        f"criterion: {{kind: correlation, other: '{long}', at_least: 0}}}}]"
    )
    recipe = read_recipe(path)
    rows = make_published("lab/a")
    other = {"metric": "alpha_req[first=12]", "subset": "last_token.normed"}
    rows += [replace(row, **other) for row in rows if row.metric == "anisotropy" and row.subset == "all" and row.layer]
    figure = draw_recipe(recipe, *evaluate(recipe, fill(tmp_path / "store", rows)))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    for text in (axes.xaxis.label, axes.yaxis.label, axes._left_title, *figure.legends[0].get_texts()):
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0, text.get_text()
        assert box.x1 <= figure.bbox.x1, text.get_text()


def test_a_model_of_two_stacks(recipe, tmp_path):
    store = fill(tmp_path / "store", make_two_stacks("lab/a"))
    assert verdicts(evaluate(recipe, store)[0])["bell", "lab/a"] == (
        "not run",
        "has 2 stacks of blocks, and a recipe is about one",
    )

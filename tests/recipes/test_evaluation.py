"""A recipe judged on stores: which rows count, and what is not run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_runs import DENSE, SAMPLED, fill, make_finished, make_published, make_two_stacks

from repdyn import Probe, open_store
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.probe.design import MAX_VECTORS
from repdyn.recipes import evaluate, find_models_of, missing_metrics, read_recipe, shortfalls
from repdyn.recipes.evaluation import count_verdicts
from repdyn.recipes.figure import draw_recipe
from repdyn.recipes.page import write_page
from repdyn.recipes.recipe import KINDS
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


def test_metrics_that_a_run_of_ones_own_lacks(recipe, tmp_path):
    store = fill(tmp_path / "store", make_published("my/run"))
    assert missing_metrics(recipe, evaluate(recipe, store, runs=["my/run"])[1]) == [
        "my/run was not measured with two_nn@no_sink; track them, or sweep its checkpoints with --design independent "
        "--metrics anisotropy two_nn two_nn@no_sink"
    ]


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


def saved_probe(store, text, sequence_length=80, max_vectors=MAX_VECTORS):
    """Save a probe of the builtin text under the name of a text, and return its hash."""
    settings = {"sequence_length": sequence_length, "max_vectors": max_vectors}
    probe = Probe.from_texts([builtin_corpus().data.decode()], byte_tokenizer(), name=text, **settings)
    store.save_probe(probe)
    return probe.hash


AS_ASKED = {"window_tokens": 80, "n_batches": 4}


def test_rows_of_another_protocol_are_named(recipe, tmp_path):
    sampled = {"window_tokens": 32, "vectors_per_window": 12}
    store = open_store(tmp_path / "store")
    probe = saved_probe(store, "another text (sha256 0123)", max_vectors=256)
    fill(store.path, make_published("lab/a", probe=probe, **sampled))
    (found,) = [each for each in evaluate(recipe, store)[0] if each.run == "lab/a" and each.published.claim == "bell"]
    assert found.deviations == (
        "text another text (sha256 0123), not enwik8",
        "windows of 32 tokens, not 80",
        "4 batches of 64 vectors, not 4 of 4,096",
        "up to 12 vectors of a window, not 8",
    )
    assert "; measured otherwise: text another text" in found.text


def test_rows_of_the_recipes_protocol(recipe, tmp_path):
    store = open_store(tmp_path / "store")
    rows = make_published("lab/a", probe=saved_probe(store, "enwik8, cleaned"), **AS_ASKED)
    # a metric of whole windows has batches of its own
    whole = {"metric": "sink_rate", "n_batches": 25, "n_vectors": 4096, "vectors_per_window": 80}
    fill(store.path, [*rows, *(replace(row, **whole) for row in rows if row.metric == "two_nn")])
    assert not any(outcome.deviations for outcome in evaluate(recipe, store)[0])


def test_the_probe_that_was_asked_for_is_found_among_several(recipe, tmp_path):
    store = open_store(tmp_path / "store")
    as_asked, other = saved_probe(store, "enwik8, cleaned"), saved_probe(store, builtin_corpus().name, 40)
    fill(store.path, *(make_published("lab/a", probe=probe, **AS_ASKED) for probe in (as_asked, other)))
    (found,) = evaluate(recipe, store)[1]
    assert found.rows["probe"].unique().tolist() == [as_asked]
    outcomes, (found,) = evaluate(recipe, store, cloud=replace(recipe.cloud, text="builtin"))
    assert found.rows["probe"].unique().tolist() == [other]
    assert outcomes[0].deviations == (f"text {builtin_corpus().name}, not enwik8",)


def test_the_page_states_what_was_measured(recipe, store, tmp_path):
    page = write_page(recipe, *evaluate(recipe, store), tmp_path / "page.html", None).read_text()
    measured, _, asked = page.partition("<h2>The recipe</h2>")
    assert f"lab/a at 11 steps (0 to 512), lab/bert at 1 step (0): {SAMPLED}" in measured
    assert "text not recorded, since the store has no copy of the probe" in measured
    assert "measured otherwise: windows of 64 tokens, not 80" in measured
    assert "sampling: independent design, text enwik8" in asked


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


def test_models_that_no_value_is_about_stand_in(recipe, tmp_path):
    store = fill(tmp_path / "store", make_published("my/model", **AS_ASKED))
    outcomes, _ = evaluate(recipe, store, ["my/model"])
    found = {outcome.published.claim: outcome for outcome in outcomes}
    assert found["bell"].verdict == "reproduced"
    assert found["bell"].deviations == ("my/model stands in for lab/a, lab/b",)
    assert found["flat"].verdict == "not reproduced"
    assert found["width"].deviations == ("my/model stands in for lab/a, lab/b, lab/bert",)


def test_what_a_choice_leaves_unjudged(recipe):
    phases = KINDS["phases"](phases=("rise", "fall"), more=(0.1, 0.1))
    recipe = replace(recipe, published=(*recipe.published, replace(recipe.published[0], criterion=phases)))
    models = find_models_of(["lab/a"])
    assert shortfalls(recipe, models, {"lab/a": 2}) == [
        "published value 2 is not run: no model among lab/bert",
        "published value 3 cannot be judged: it needs 3 models, got lab/a; choose more with --models",
        "lab/a has 2 chosen checkpoints, and needs 3 for value 6; choose more with --revisions",
    ]
    (_, stand_in, *_) = shortfalls(recipe, find_models_of(["my/model"]), {"my/model": 9})
    assert stand_in == "my/model stands in for lab/a, lab/b: published values 1, 6"


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

"""Recipes as files: the shipped ones, and what is wrong with others."""

from __future__ import annotations

import re
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml

from repdyn.recipes import find_models_of, find_recipe, read_recipe, shipped_recipes
from repdyn.recipes.recipe import KINDS

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


def with_criterion(**criterion):
    return {"published": [VALID["published"][0] | {"criterion": criterion}]}


SHIPPED = shipped_recipes()
VALUES = {"peak", "onset", "trend", "value", "loss", "bits_per_byte", "parameters", "width"}
"""What the table of criteria names beside their settings."""
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "reproduce.md"


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipes(name):
    recipe = find_recipe(name)
    assert recipe == SHIPPED[name]
    assert recipe.address.endswith(recipe.paper)
    models = find_models_of(recipe.models)
    assert models
    for published in recipe.published:
        # every pattern is of some model, and what is measured is of at least one
        for pattern in published.models:
            assert any(fnmatchcase(model.name, pattern) for model in models), pattern
        if published.criterion is not None:
            assert any(published.is_about(model) for model in models)
            assert published.criterion.short
            assert published.criterion.text.endswith((".", ")"))
        else:
            assert published.not_run
    assert any(published.criterion for published in recipe.published)


def test_what_is_shipped():
    papers = {recipe.paper for recipe in SHIPPED.values()}
    assert papers == {"2311.05928", "2509.23024", "2405.15471", "2410.01444", "2510.06477", "2502.02013", "2602.00217"}
    used = {type(published.criterion) for recipe in SHIPPED.values() for published in recipe.published}
    assert used - {type(None)} == set(KINDS.values())


def test_a_recipe_of_ones_own(tmp_path):
    (tmp_path / "suite.yaml").write_text(
        "title: ours\ncard: https://example.org\nmodels:\n"
        "  - {name: ours, repository: lab/ours, revisions: 'step(?P<step>\\d+)'}\n"
    )
    recipe = read_recipe(write(tmp_path / "mine.yaml", models=["suite.yaml", "lab/other", "pythia-70m"]))
    assert recipe.name == "mine"
    assert [model.run for model in find_models_of(recipe.models)] == ["lab/ours", "lab/other", "EleutherAI/pythia-70m"]
    assert (recipe.revisions, recipe.cloud.design, recipe.by_values) == ("all", "independent", False)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"titel": "A"}, "got 'titel'; did you mean 'title'?"),
        ({"title": None}, "expected the key title"),
        ({"paper": 2311.05928}, "got 2311.05928; put it in quotes"),
        ({"paper": "Razzhigaev 2024"}, "expected an arXiv number under paper"),
        ({"address": "arxiv.org"}, "begin it with https://"),
        ({"stated": "today"}, "expected the date of the criteria under stated"),
        ({"models": ["pythia-71m"]}, "did you mean pythia-"),
        ({"metrics": ["anisotropie"]}, "did you mean 'anisotropy'?"),
        ({"metrics": ["two_nn[discrd=1]"]}, "did you mean 'discard'?"),
        ({"metrics": ["anisotropy@nowhere"]}, "expected a subset among all, no_sink"),
        ({"metrics": ["two_nn"]}, "expected a metric that the recipe measures under metric"),
        ({"judged_by": "eye"}, "expected judged_by among intervals, values"),
        ({"cloud": {"design": "sparse"}}, "expected a design among independent, dense, paper, shuffled"),
        ({"cloud": {"windows": 3}}, "expected keys among design, text, sequence_length, max_vectors, control"),
        ({"cloud": {"control": "sparse"}}, "expected a design among independent, dense, paper, shuffled"),
        ({"cloud": {"control": "independent"}}, "expected another design under control"),
        (with_criterion(kind="control", change="rise", more=0), "expected a cloud with a control"),
        (with_criterion(kind="stages", phases=["rise"], more=[0, 0]), "one value of more for each of 1 phases"),
        ({"differs": []}, "expected a list under differs"),
        ({"published": [{"claim": "a", "source": "b"}]}, "expected either criterion or not_run"),
        ({"published": ["a"]}, "expected a mapping with keys among claim"),
        (with_criterion(kind="hill"), "expected a criterion with a kind among finding, peak, valley"),
        (with_criterion(kind="peak", width=1), "expected keys among kind, depth, more, step, absent"),
        (with_criterion(kind="peak", depth=[0.8, 0.2]), "expected the lower bound first under depth"),
        (with_criterion(kind="peak", depth=0.5), "expected a list of 2 values under depth"),
        (with_criterion(kind="peak", more="much"), "expected a finite number under more"),
        (with_criterion(kind="peak", more=float("nan")), "expected a finite number under more"),
        (with_criterion(kind="peak", step="middle"), "expected step among first, last"),
        (with_criterion(kind="peak", absent="no"), "expected true or false under absent"),
        (with_criterion(kind="phases", more=[0.1]), "expected the key phases"),
        (with_criterion(kind="phases", phases=["fall", "rise"], more=[0.1]), "one value of more for each of 2 phases"),
        (with_criterion(kind="phases", phases=["sink"], more=[0.1]), "expected phases among rise, fall"),
        (with_criterion(kind="correlation", other="anisotropy"), "expected either at_least or at_most"),
        (with_criterion(kind="correlation", other="rank_me", at_least=0), "expected a metric that the recipe measures"),
        ({"published": [VALID["published"][0] | {"points": [[1, 2, 3]]}]}, "expected pairs of a place and a value"),
    ],
)
def test_mistakes_in_a_recipe(changed, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read_recipe(write(tmp_path / "mine.yaml", **changed))
    assert "docs/suites.md" not in str(error.value)


def test_an_unknown_recipe():
    with pytest.raises(ValueError, match="got 'shape-of-learnin'; did you mean 'shape-of-learning'"):
        find_recipe("shape-of-learnin")


def test_the_documented_recipe(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    (tmp_path / "mine.yaml").write_text(text)
    suite = "title: ours\ncard: https://example.org\nmodels: [{name: ours, repository: lab/ours, revisions: 'step(?P<step>\\d+)'}]"
    (tmp_path / "my_suite.yaml").write_text(suite)
    recipe = read_recipe(tmp_path / "mine.yaml")
    assert len(recipe.published) == 3
    assert recipe.published[0].points == ((1000.0, 40.0), (64000.0, 90.0), (143000.0, 70.0))


def test_every_recipe_and_kind_is_documented():
    text = DOCUMENTATION.read_text()
    assert set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)) == {*SHIPPED, *KINDS}
    for kind, settings in re.findall(r"^\| `([a-z]+)` \|.*\| (.*) \|$", text, re.MULTILINE):
        if kind in SHIPPED:
            continue
        named = set(re.findall(r"`([a-z_]+)`", settings)) - VALUES
        assert kind == "valley" or named == {each.name for each in fields(KINDS[kind])}

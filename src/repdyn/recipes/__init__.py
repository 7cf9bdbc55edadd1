"""Recipes: published measurements described in YAML, with what counts as reproduced; see docs/reproduce.md."""

from repdyn.recipes.evaluation import Outcome, evaluate, missing_metrics, shortfalls
from repdyn.recipes.recipe import Cloud, Published, Recipe, find_models_of, find_recipe, read_recipe, shipped_recipes

__all__ = [
    "Cloud",
    "Outcome",
    "Published",
    "Recipe",
    "evaluate",
    "find_models_of",
    "find_recipe",
    "missing_metrics",
    "read_recipe",
    "shipped_recipes",
    "shortfalls",
]

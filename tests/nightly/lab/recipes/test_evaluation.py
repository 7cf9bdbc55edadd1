"""A recipe judged on stores: which rows count, and what is not run."""

from __future__ import annotations

from synthetic_runs import fill, make_published

from repdyn.lab.recipes.evaluation import evaluate
from repdyn.lab.recipes.page import draw_recipe
from repdyn.lab.recipes.recipe import read_recipe

RECIPE = """
title: A paper
paper: '2311.05928'
address: https://arxiv.org/abs/2311.05928
stated: 2026-11-23
"""


def test_no_label_of_a_figure_is_cut_off(tmp_path):
    path = tmp_path / "mine.yaml"
    long = "alpha_req[first=12]@last_token.normed"
    path.write_text(
        RECIPE + f"models: [lab/a]\nmetrics: [anisotropy, '{long}']\ndiffers: [nothing]\n"
        f"published: [{{claim: {'many words ' * 20}, source: a, metric: '{long}', "
        "criterion: {kind: between, bounds: [0, 1]}}]"
    )
    recipe = read_recipe(path)
    rows = make_published("lab/a")
    other = {"metric": "alpha_req[first=12]", "subset": "last_token.normed"}
    rows += [
        row.with_columns(**other)
        for row in rows
        if row.metric == "anisotropy" and row.subset == "all" and row.layer
    ]
    figure = draw_recipe(recipe, *evaluate(recipe, fill(tmp_path / "store", rows)))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    for text in (
        axes.xaxis.label,
        axes.yaxis.label,
        axes._left_title,
        *figure.legends[0].get_texts(),
    ):
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0, text.get_text()
        assert box.x1 <= figure.bbox.x1, text.get_text()

"""What a report holds: every number of the store, the words around them, and nothing that others could make it do."""

from __future__ import annotations

import math

import pytest
from pages import read_page
from synthetic_runs import (
    fill,
    make_row,
    make_rows,
)

from repdyn.report import write_report

STEPS = (0, 1, 8, 64)


def test_many_runs_make_one_page(tmp_path):
    names = [f"lab/seed{number:02d}" for number in range(26)]
    made = [make_rows(run=name, n_blocks=2, steps=(0, 8), loss=False) for name in names]
    store = fill(tmp_path, *([row for row in rows if row.metric == "two_nn"] for rows in made))
    page = read_page(write_report(store, tmp_path / "page.html"))
    assert [run["label"] for run in page.tree["runs"]] == [name.removeprefix("lab/") for name in names]
    compared = page.tree["comparisons"]["two_nn"]["all"]
    assert {trace["meta"]["run"] for trace in compared["profiles"]["data"]} == set(range(26))
    assert len(compared["heatmaps"]["data"]) == 24
    assert compared["heatmaps_note"] == "; the first 24 runs"


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_metrics_that_are_infinite_everywhere_make_a_page(tmp_path, value):
    metrics = ("anisotropy", "two_nn", "token_rank")
    cells = [(metric, step, layer) for metric in metrics for step in STEPS for layer in range(3)]
    rows = [make_row(metric=m, step=step, layer=layer, depth=layer / 2, value=value) for m, step, layer in cells]
    tree = read_page(write_report(fill(tmp_path, rows), tmp_path / "page.html")).tree
    assert set(tree["runs"][0]["metrics"]) == set(metrics)


def test_signs_that_turn_the_order_of_letters_are_shown_as_signs(tmp_path):
    rows = make_rows(run="gpt\u202eexe", steps=STEPS, n_blocks=2)
    page = read_page(write_report(fill(tmp_path, rows), tmp_path / "page.html", title="a\u2066b"))
    assert page.tree["runs"][0]["label"] == "gpt\ufffdexe"
    assert "a\ufffdb" in page.text
    assert not set("\u202e\u2066") & set(page.text)

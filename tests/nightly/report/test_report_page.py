"""What a report holds: every number of the store, the words around them, and nothing that others could make it do."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from pages import Outline, read_page
from synthetic_families import make_everything
from synthetic_runs import (
    DENSE,
    fill,
    make_row,
    make_rows,
)

from repdyn.alerts import Rule, write_rules
from repdyn.report import write_report

STEPS = (0, 1, 8, 64)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A store of one run of every metric, and its page."""
    folder = tmp_path_factory.mktemp("everything")
    store = fill(folder, make_everything(n_blocks=3, steps=STEPS, n_heads=2))
    return store, read_page(write_report(store, folder / "report.html"))


def test_heads_are_there_by_step(everything):
    store, page = everything
    of_heads = store.to_pandas().dropna(subset="head")
    values = page.array(page.tree["runs"][0]["metrics"]["attention_topic_gap"]["all"]["by_head"])
    one = of_heads.query("metric == 'attention_topic_gap' and step == 8 and layer == 2 and head == 1")["value"]
    assert values.shape == (len(STEPS), 3, 2)
    assert values[2, 1, 1] == np.float32(one.item())


def test_runs_of_one_name_in_several_stores_are_told_apart_by_their_stores(tmp_path):
    stores = [fill(tmp_path / seed / "repdyn", make_rows(run="quick", steps=STEPS)) for seed in ("one", "two")]
    page = read_page(write_report(stores, tmp_path / "page.html"))
    assert sorted(run["label"] for run in page.tree["runs"]) == ["one/repdyn/quick", "two/repdyn/quick"]
    assert set(page.tree["comparisons"]["two_nn"]["all"]) == {
        "note",
        "profiles",
        "training",
        "heatmaps",
        "heatmaps_note",
    }


def test_a_run_by_two_designs_is_there_once_for_each_and_named_by_them(tmp_path):
    rows = make_rows(run="quick", probe="ab" * 8, steps=STEPS), make_rows(run="quick", probe="cd" * 8, **DENSE)
    path = write_report(fill(tmp_path, *rows), tmp_path / "page.html")
    page = read_page(path)
    labels = sorted(run["label"] for run in page.tree["runs"])
    assert labels == ["quick (probe abababab, design independent)", "quick (probe cdcdcdcd, design dense)"]
    assert "different sampling designs: " in page.tree["comparisons"]["two_nn"]["all"]["note"]
    text = Outline(path.read_text()).text
    assert "These runs do not all compare: different sampling designs" in text
    assert "dense design: 8 batches of 4,096 vectors, up to 76 of each of 80 windows of 256 tokens" in text


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


def test_the_rules_that_a_run_was_watched_by_raise_its_alerts(tmp_path):
    store = fill(tmp_path, make_rows(steps=STEPS))
    rule = Rule(name="too high", when="above", bound=16.0, metrics=("two_nn",))
    write_rules([rule], store.alerts_path("decoder-quickstart"))
    text = Outline(write_report(store, tmp_path / "page.html").read_text()).text
    assert "too high : step 64: two_nn (all) of layers 0" in text


def test_writing_draws_no_random_number_and_leaves_no_other_file(tmp_path):
    store = fill(tmp_path / "store", make_rows(steps=STEPS))
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert write_report(store, tmp_path / "pages" / "page.html") == tmp_path / "pages" / "page.html"
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["page.html"]

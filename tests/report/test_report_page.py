"""What a report holds: every number of the store, the words around them, and nothing that others could make it do."""

from __future__ import annotations

import base64
import hashlib
import math
import random
import re

import numpy as np
import pytest
import torch
from report.pages import Outline, read_page
from synthetic_families import make_everything
from synthetic_runs import (
    DENSE,
    fill,
    make_failures,
    make_finished,
    make_published,
    make_row,
    make_rows,
    make_scalar,
    make_two_stacks,
)

from repdyn.alerts import Rule, write_rules
from repdyn.report import write_report
from repdyn.tables.findings import findings
from repdyn.tables.frames import by_stack, grid, layer_mean, measurements

STEPS = (0, 1, 8, 64)
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A store of one run of every metric, and its page."""
    folder = tmp_path_factory.mktemp("everything")
    store = fill(folder, make_everything(n_blocks=3, steps=STEPS, n_heads=2))
    return store, read_page(write_report(store, folder / "report.html"))


@pytest.mark.slow
def test_every_number_of_the_store_is_in_the_page(everything):
    store, page = everything
    rows = measurements(store.to_pandas())
    metrics = page.tree["runs"][0]["metrics"]
    stored = {(metric, subset) for metric, subset in rows[["metric", "subset"]].drop_duplicates().to_numpy()}
    assert {(metric, subset) for metric, of_metric in metrics.items() for subset in of_metric} == stored
    for metric, subset in stored:
        series = metrics[metric][subset]
        for name, column in (("values", "value"), ("margins", "margin")):
            wanted = grid(rows, metric, subset, column)
            np.testing.assert_array_equal(page.array(series[name]), wanted.to_numpy(np.float32), err_msg=metric)
        assert series["layers"] == wanted.index.tolist()
        assert series["steps"] == wanted.columns.tolist()


def test_every_metric_and_subset_can_be_chosen(everything):
    _, page = everything
    listed = [metric for _, members in page.tree["families"] for metric in members]
    assert sorted(listed) == sorted(page.tree["runs"][0]["metrics"]) == sorted(page.tree["metrics"])
    assert {subset for of in page.tree["runs"][0]["metrics"].values() for subset in of} == set(page.tree["subsets"])


def test_a_mean_is_that_over_layers(everything):
    store, page = everything
    course = page.tree["runs"][0]["metrics"]["two_nn"]["all"]["course"]
    line = next(trace for trace in course["data"] if trace["meta"].get("role") == "value")
    wanted = layer_mean(measurements(store.to_pandas()), "two_nn", "all").mean
    np.testing.assert_allclose(page.array(line["y"]), wanted, rtol=1e-6)


def test_heads_are_there_by_step(everything):
    store, page = everything
    of_heads = store.to_pandas().dropna(subset="head")
    values = page.array(page.tree["runs"][0]["metrics"]["attention_topic_gap"]["all"]["by_head"])
    one = of_heads.query("metric == 'attention_topic_gap' and step == 8 and layer == 2 and head == 1")["value"]
    assert values.shape == (len(STEPS), 3, 2)
    assert values[2, 1, 1] == np.float32(one.item())


def test_a_page_is_small_asks_nothing_and_runs_its_own_scripts_alone(everything):
    _, page = everything
    outline = Outline(page.text)
    assert len(page.text) < 2.5e6
    assert not [of for _, of in outline.elements if (of.get("src") or "").startswith("http")]
    policy = outline.named("meta")[1]["content"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    scripts = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.partition("style-src")[0]


@pytest.mark.slow
def test_the_findings_stand_there_with_their_verdicts_and_evidence(tmp_path):
    store = fill(tmp_path, make_rows())
    text = Outline(write_report(store, tmp_path / "page.html").read_text()).text
    judged = findings(store.to_pandas())
    signs = {"shown": "+", "not shown": "\u2212"}
    assert {finding.verdict for finding in judged} == set(signs)
    for finding in judged:
        assert f"{finding.title} {signs[finding.verdict]} {finding.verdict} {finding.evidence}" in text
        assert finding.criterion in text
    assert "criteria version 2, 2026-11-22" in text


@pytest.mark.slow
def test_what_others_wrote_cannot_break_out(tmp_path):
    name = f"lab/{EVIL}"
    rows = make_rows(run=name, model=EVIL, steps=STEPS)
    rows[0] = make_row(run=name, model=EVIL, value=math.nan, std=math.nan, reason=EVIL)
    store = fill(tmp_path, rows, make_failures(128, reason=EVIL, run=name, model=EVIL))
    path = write_report(store, tmp_path / "page.html", title=EVIL)
    outline = Outline(path.read_text())
    assert len(outline.named("script")) == 5
    assert not outline.named("img")
    assert outline.text.count("alert(1)") >= 4
    page = read_page(path)
    series = page.tree["runs"][0]["metrics"]["anisotropy"]["all"]
    assert series["reasons"][0][0] == EVIL
    # what Plotly takes for markup
    assert "&lt;/script&gt;" in series["heatmap"]["data"][1]["text"][0][0]


@pytest.mark.slow
def test_failed_checkpoints_and_missing_values_are_listed_with_their_reasons(tmp_path):
    rows = make_rows(run="lab/model-70m", steps=STEPS, dimension=lambda step, depth: math.nan if not depth else 9.0)
    store = fill(tmp_path, rows, make_failures(512, reason="the hub has no such revision"))
    text = Outline(write_report(store, tmp_path / "page.html").read_text()).text
    assert "1 checkpoint failed: step 512: the hub has no such revision" in text
    assert "lab/model-70m 512 step512 anisotropy the hub has no such revision" in text
    assert "4 of 28 2 distinct vectors, 3 needed" in text


def test_a_finished_model_has_a_profile_and_no_course(tmp_path):
    page = read_page(write_report(fill(tmp_path, make_finished()), tmp_path / "page.html"))
    (run,) = page.tree["runs"]
    assert run["finished"]
    for of_metric in run["metrics"].values():
        for series in of_metric.values():
            assert series["profile"]
            assert series["heatmap"] is series["course"] is series["lines"] is None


@pytest.mark.slow
def test_each_stack_of_a_model_is_there_for_itself(tmp_path):
    store = fill(tmp_path, make_two_stacks())
    page = read_page(write_report(store, tmp_path / "page.html"))
    labels = {run["label"]: run["metrics"]["two_nn"]["all"]["layers"] for run in page.tree["runs"]}
    assert labels == {"lab/t5 (decoder)": list(range(7)), "lab/t5 (encoder)": list(range(5))}
    rows = measurements(by_stack(store.to_pandas())["encoder"])
    encoder = next(run for run in page.tree["runs"] if "encoder" in run["label"])
    values = page.array(encoder["metrics"]["two_nn"]["all"]["values"])
    np.testing.assert_array_equal(values, grid(rows, "two_nn", "all").to_numpy(np.float32))


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_run_on_two_probes_is_there_once_for_each(tmp_path):
    store = fill(tmp_path, *(make_rows(run="quick", probe=probe * 8, steps=STEPS) for probe in ("ab", "cd")))
    page = read_page(write_report(store, tmp_path / "page.html"))
    labels = sorted(run["label"] for run in page.tree["runs"])
    assert labels == ["quick (probe abababab)", "quick (probe cdcdcdcd)"]
    one = read_page(write_report(store, tmp_path / "page.html", probe="cd"))
    assert [run["label"] for run in one.tree["runs"]] == ["quick"]


@pytest.mark.slow
def test_runs_that_do_not_compare_are_said_not_to(tmp_path):
    store = fill(tmp_path, make_rows(run="a", steps=STEPS), make_rows(run="b", steps=STEPS, n_vectors=512))
    text = Outline(write_report(store, tmp_path / "page.html").read_text()).text
    assert "These runs do not all compare: batches of different numbers of vectors" in text


@pytest.mark.slow
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


@pytest.mark.slow
def test_bands_are_intervals_or_said_to_be_missing(tmp_path):
    store = fill(tmp_path, make_rows(run="a", steps=STEPS), make_rows(run="b", steps=STEPS, **DENSE, probe="d" * 16))
    page = read_page(write_report(store, tmp_path / "page.html"))
    told = {run["label"]: run["metrics"]["two_nn"]["all"] for run in page.tree["runs"]}
    assert told["a"]["interval"] == "band: 95 % interval over probes"
    assert told["b"]["interval"] == "no interval: batches share windows"
    assert np.isnan(page.array(told["b"]["margins"])).all()
    low = next(trace for trace in told["a"]["course"]["data"] if trace["meta"].get("role") == "low")
    wanted = layer_mean(measurements(store.to_pandas("a")), "two_nn", "all")
    np.testing.assert_allclose(page.array(low["y"]), wanted.mean - wanted.margin, rtol=1e-5)


@pytest.mark.extended
@pytest.mark.slow
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


@pytest.mark.slow
def test_alerts_are_listed_and_marked(tmp_path):
    rows = make_rows(steps=STEPS, dimension=lambda step, depth: 2.0 if step == 8 and depth == 0.5 else 9.0)
    page = read_page(write_report(fill(tmp_path, rows), tmp_path / "page.html"))
    text = Outline(page.text).text
    assert "Alerts (1) dimension halved : step 8: two_nn (all) of layer 3" in text
    series = page.tree["runs"][0]["metrics"]["two_nn"]["all"]
    (mark,) = [trace for trace in series["heatmap"]["data"] if trace.get("name") == "alerts"]
    assert (mark["x"], mark["y"]) == (["8"], ["3"])
    on_the_mean, below = [trace for trace in series["course"]["data"] if trace.get("name") == "alerts"]
    assert on_the_mean["x"] == below["x"] == [8]
    assert not [t for t in page.tree["runs"][0]["metrics"]["anisotropy"]["all"]["heatmap"]["data"] if "name" in t]


@pytest.mark.slow
def test_an_alert_on_the_loss_is_marked_on_the_loss(tmp_path):
    rows = make_rows(steps=STEPS, loss=False) + [make_scalar(step, 9.0 if step == 8 else 2.0) for step in STEPS]
    page = read_page(write_report(fill(tmp_path, rows), tmp_path / "page.html"))
    course = page.tree["runs"][0]["metrics"]["two_nn"]["all"]["course"]
    on_the_loss, below = [trace for trace in course["data"] if trace.get("name") == "alerts"]
    assert (on_the_loss["x"], on_the_loss["y"], on_the_loss["yaxis"]) == ([8], [9.0], "y")
    assert below["x"] == [8]


@pytest.mark.slow
def test_values_that_are_not_finite_are_no_reason_to_fail(tmp_path):
    rows = make_rows(steps=STEPS, dimension=lambda step, depth: math.inf if step == 8 and not depth else 9.0)
    page = read_page(write_report(fill(tmp_path, rows), tmp_path / "page.html"))
    profile = page.tree["runs"][0]["metrics"]["two_nn"]["all"]["profile"]
    assert all(math.isfinite(end) for end in profile["layout"]["yaxis"]["range"])


@pytest.mark.slow
def test_an_infinite_loss_and_an_infinite_mean_leave_their_marks_out(tmp_path):
    rows = make_rows(steps=STEPS, loss=False, dimension=lambda step, depth: math.inf if step == 8 else 9.0)
    store = fill(tmp_path, rows, [make_scalar(step, math.inf if step == 8 else 2.0) for step in STEPS])
    page = read_page(write_report(store, tmp_path / "page.html"))
    course = page.tree["runs"][0]["metrics"]["two_nn"]["all"]["course"]
    *on_lines, below = [trace for trace in course["data"] if trace.get("name") == "alerts"]
    assert 8 not in [step for mark in on_lines for step in mark["x"]]
    assert 8 in below["x"]
    assert "train/loss" in Outline(page.text).text


@pytest.mark.slow
@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_metrics_that_are_infinite_everywhere_make_a_page(tmp_path, value):
    metrics = ("anisotropy", "two_nn", "token_rank")
    cells = [(metric, step, layer) for metric in metrics for step in STEPS for layer in range(3)]
    rows = [make_row(metric=m, step=step, layer=layer, depth=layer / 2, value=value) for m, step, layer in cells]
    tree = read_page(write_report(fill(tmp_path, rows), tmp_path / "page.html")).tree
    assert set(tree["runs"][0]["metrics"]) == set(metrics)


@pytest.mark.slow
def test_signs_that_turn_the_order_of_letters_are_shown_as_signs(tmp_path):
    rows = make_rows(run="gpt\u202eexe", steps=STEPS, n_blocks=2)
    page = read_page(write_report(fill(tmp_path, rows), tmp_path / "page.html", title="a\u2066b"))
    assert page.tree["runs"][0]["label"] == "gpt\ufffdexe"
    assert "a\ufffdb" in page.text
    assert not set("\u202e\u2066") & set(page.text)


@pytest.mark.slow
def test_a_store_that_is_given_twice_is_there_once(tmp_path):
    store = fill(tmp_path / "store", make_rows(run="quick", steps=STEPS, n_blocks=2))
    page = read_page(write_report([store, store], tmp_path / "page.html"))
    assert [run["label"] for run in page.tree["runs"]] == ["quick"]


@pytest.mark.slow
def test_the_rules_that_a_run_was_watched_by_raise_its_alerts(tmp_path):
    store = fill(tmp_path, make_rows(steps=STEPS))
    rule = Rule(name="too high", when="above", bound=16.0, metrics=("two_nn",))
    write_rules([rule], store.alerts_path("decoder-quickstart"))
    text = Outline(write_report(store, tmp_path / "page.html").read_text()).text
    assert "too high : step 64: two_nn (all) of layers 0" in text


@pytest.mark.slow
def test_a_quiet_run_says_that_there_was_no_alert(tmp_path):
    text = Outline(write_report(fill(tmp_path, make_rows()), tmp_path / "page.html").read_text()).text
    assert "No alert: no rule was broken at any step." in text


@pytest.mark.slow
def test_what_it_cost_is_told(tmp_path):
    text = Outline(write_report(fill(tmp_path, make_published()), tmp_path / "page.html").read_text()).text
    assert "per checkpoint: download 3.1 s, load 0.5 s, forward 2.1 s, kernels 1.4 s" in text
    assert "repdyn 0.1.0, torch 2.13.0, transformers 5.23.0" in text


@pytest.mark.slow
def test_writing_draws_no_random_number_and_leaves_no_other_file(tmp_path):
    store = fill(tmp_path / "store", make_rows(steps=STEPS))
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert write_report(store, tmp_path / "pages" / "page.html") == tmp_path / "pages" / "page.html"
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["page.html"]


@pytest.mark.slow
def test_only_a_run_that_goes_on_refreshes(tmp_path):
    store = fill(tmp_path, make_rows(steps=STEPS))
    assert read_page(write_report(store, tmp_path / "page.html")).tree["live"] is None
    live = read_page(write_report(store, tmp_path / "page.html", refresh_seconds=900)).tree["live"]
    assert (live["every"], live["stale"]) == (900, 2700)


@pytest.mark.slow
def test_a_first_checkpoint_alone_makes_a_page(tmp_path):
    store = fill(tmp_path, [*make_rows(steps=(0,), loss=False), make_scalar(0, math.nan)])
    series = read_page(write_report(store, tmp_path / "page.html")).tree["runs"][0]["metrics"]["two_nn"]["all"]
    assert series["heatmap"] is None
    assert series["steps"] == [0]


@pytest.mark.slow
@pytest.mark.parametrize("refresh_seconds", [0, -1.0, math.nan])
def test_a_time_to_refresh_is_positive(tmp_path, refresh_seconds):
    with pytest.raises(ValueError, match=r"^expected refresh_seconds > 0, got .*; leave it out for a page that stays$"):
        write_report(fill(tmp_path, make_rows()), tmp_path / "page.html", refresh_seconds=refresh_seconds)


@pytest.mark.slow
def test_no_store_and_no_such_run_are_refused(tmp_path):
    with pytest.raises(ValueError, match="^expected at least one store, got none$"):
        write_report([], tmp_path / "page.html")
    stores = [fill(tmp_path / name, make_rows(run=name, steps=STEPS)) for name in ("a", "b")]
    with pytest.raises(ValueError, match="^expected runs of these stores, got 'c'; they have a, b$"):
        write_report(stores, tmp_path / "page.html", runs=["a", "c"])
    one = read_page(write_report(stores, tmp_path / "page.html", runs=["b"]))
    assert [run["label"] for run in one.tree["runs"]] == ["b"]


def test_a_store_of_failures_alone_is_refused(tmp_path):
    with pytest.raises(ValueError, match="^expected runs with measurements, got none; measure at least one checkpoint"):
        write_report(fill(tmp_path, make_failures(1)), tmp_path / "page.html")

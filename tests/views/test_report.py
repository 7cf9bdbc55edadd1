"""The report is one page with every number of its stores, in which nothing of others runs."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pages import Outline, read_page
from scipy.stats import t as student_t
from synthetic_families import make_everything
from synthetic_runs import (
    DENSE,
    fill,
    make_failures,
    make_finished,
    make_published,
    make_row,
    make_rows,
    make_run,
    make_scalar,
    make_two_stacks,
    measured_runs,
    to_frame,
)

from repdyn.cli.main import main
from repdyn.store import Store
from repdyn.store.schema import LEARNING_RATE, LOSS, PROBE_LOSS, VALIDATION_LOSS
from repdyn.views.charts.axes import value_axis
from repdyn.views.charts.on_plotly import colour_axis, coloured, plotly_axis
from repdyn.views.judging import DescribedRuns, described_runs
from repdyn.views.judging import findings as findings_module
from repdyn.views.judging.findings import findings, on_kind
from repdyn.views.plots import heatmap, means, profile
from repdyn.views.report import write_report
from repdyn.views.report.plots import LOSS as LOSS_COLOUR
from repdyn.views.report.plots import course_plot
from repdyn.views.report.sections import course_of_training
from repdyn.views.report.write import as_text, packed, page_tree
from repdyn.views.tables import frames
from repdyn.views.tables.frames import grid, measurements

STEPS = (0, 1, 8, 64)


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A store of one run of every metric, and its page."""
    folder = tmp_path_factory.mktemp("everything")
    store = fill(folder, make_everything(n_blocks=3, steps=STEPS, n_heads=2))
    return store, read_page(write_report(store, folder / "report.html"))


def test_every_number_of_the_store_is_in_the_page(everything):
    store, page = everything
    rows = measurements(store.to_pandas())
    metrics = page.tree["runs"][0]["metrics"]
    stored = {
        (metric, subset)
        for metric, subset in rows[["metric", "subset"]].drop_duplicates().to_numpy()
    }
    assert {
        (metric, subset) for metric, of_metric in metrics.items() for subset in of_metric
    } == stored
    for metric, subset in stored:
        series = metrics[metric][subset]
        for name, column in (("values", "value"), ("lows", "low"), ("highs", "high")):
            expected = grid(rows, metric, subset, column)
            np.testing.assert_array_equal(
                page.array(series[name]), expected.to_numpy(np.float32), err_msg=metric
            )
        assert series["layers"] == expected.index.tolist()
        assert series["steps"] == expected.columns.tolist()


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


def test_the_findings_stand_there_with_their_verdicts_and_evidence(tmp_path):
    store = fill(tmp_path, make_rows())
    text = Outline(write_report(store, tmp_path / "page.html").read_text(encoding="utf-8")).text
    judged = on_kind(findings(store.to_pandas()), causal=True)
    signs = {"shown": "+", "not shown": "\u2212"}
    assert {finding.verdict for finding in judged} <= set(signs)
    for finding in judged:
        verdict = f"{signs[finding.verdict]} {finding.verdict}"
        numbers = " numbers" if finding.evidence != finding.sentence else ""
        assert f"{finding.title} {verdict} {finding.sentence}{numbers}" in text
        assert finding.evidence in text
        assert finding.criterion in text
    assert "criteria version 2, 2026-11-22" in text


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


def test_failed_checkpoints_and_missing_values_are_listed_with_their_reasons(tmp_path):
    rows = make_rows(
        run="lab/model-70m",
        steps=STEPS,
        dimension=lambda step, depth: math.nan if not depth else 9.0,
    )
    store = fill(tmp_path, rows, make_failures(512, reason="the hub has no such revision"))
    text = Outline(write_report(store, tmp_path / "page.html").read_text()).text
    assert "1 checkpoint failed: step 512: the hub has no such revision" in text
    assert "lab/model-70m 512 step512 anisotropy the hub has no such revision" in text
    assert "4 of 28 2 distinct vectors, 3 needed" in text


def test_alerts_are_listed_and_marked(tmp_path):
    rows = make_rows(
        steps=STEPS, dimension=lambda step, depth: 2.0 if step == 8 and depth == 0.5 else 9.0
    )
    page = read_page(write_report(fill(tmp_path, rows), tmp_path / "page.html"))
    text = Outline(page.text).text
    assert "Alerts (1) Alert (dimension halved) at step 8: two_nn (all vectors) of layer 3" in text
    # at the last step, whenever the alert was
    assert page.tree["runs"][0]["start"] == {"metric": "two_nn", "subset": "all"}
    series = page.tree["runs"][0]["metrics"]["two_nn"]["all"]
    (mark,) = [trace for trace in series["heatmap"]["data"] if trace.get("name") == "alerts"]
    assert mark["x"] == ["8"]
    assert mark["y"] == ["3"]
    on_the_mean, below = [
        trace for trace in series["course"]["data"] if trace.get("name") == "alerts"
    ]
    assert on_the_mean["x"] == below["x"] == [8]
    assert not [
        t
        for t in page.tree["runs"][0]["metrics"]["anisotropy"]["all"]["heatmap"]["data"]
        if "name" in t
    ]


def test_an_infinite_loss_and_an_infinite_mean_leave_their_marks_out(tmp_path):
    rows = make_rows(
        steps=STEPS, loss=False, dimension=lambda step, depth: math.inf if step == 8 else 9.0
    )
    store = fill(
        tmp_path, rows, [make_scalar(step, math.inf if step == 8 else 2.0) for step in STEPS]
    )
    page = read_page(write_report(store, tmp_path / "page.html"))
    course = page.tree["runs"][0]["metrics"]["two_nn"]["all"]["course"]
    *on_lines, below = [trace for trace in course["data"] if trace.get("name") == "alerts"]
    assert 8 not in [step for mark in on_lines for step in mark["x"]]
    assert 8 in below["x"]
    assert "train/loss" in Outline(page.text).text


def test_no_store_and_no_such_run_are_refused(tmp_path):
    with pytest.raises(
        ValueError,
        match="^expected runs with measurements, got none; measure at least one checkpoint",
    ):
        write_report([], tmp_path / "page.html")
    stores = [fill(tmp_path / name, make_rows(run=name, steps=STEPS)) for name in ("a", "b")]
    with pytest.raises(
        ValueError, match="^expected runs of these stores, got 'c'; they have a, b$"
    ):
        write_report(stores, tmp_path / "page.html", runs=["a", "c"])
    one = read_page(write_report(stores, tmp_path / "page.html", runs=["b"]))
    assert [run["label"] for run in one.tree["runs"]] == ["b"]


def test_a_heatmap_shows_the_values_of_the_store(everything):
    values = grid(measurements(everything[0].to_pandas()), "anisotropy", "all")
    (cells,) = heatmap(everything[0], "anisotropy").data
    np.testing.assert_array_equal(cells.z, values)
    assert cells.x == ("0", "1", "8", "64")
    assert cells.y == ("0", "1", "2", "3")


def test_logarithmic_colours_keep_a_place_for_zero():
    values = np.array([[0.0, 1.0], [10.0, 1000.0]])
    axis = value_axis("token_rank", values)
    np.testing.assert_allclose(coloured(values, axis), [[-0.4, 0], [1, 3]], atol=1e-6)
    bar = colour_axis(axis)["colorbar"]
    assert bar["ticktext"] == ["0", "1", "10", "100", "1k"]
    np.testing.assert_allclose(bar["tickvals"], [-0.4, 0, 1, 2, 3], atol=1e-12)


def test_an_axis_of_values_holds_the_bands_and_starts_a_share_at_zero():
    values = np.array([[0.4, 0.6]])
    ends = np.array([0.3, np.nan, 0.5, np.nan])
    assert plotly_axis(value_axis("anisotropy", values, ends))["range"] == [
        0,
        pytest.approx(0.63),
    ]
    low, high = plotly_axis(value_axis("two_nn", values, ends))["range"]
    assert low == pytest.approx(0.285)
    assert high == pytest.approx(0.615)


def test_hovering_over_a_cell_tells_its_interval_where_there_is_one(tmp_path):
    (cells,) = heatmap(fill(tmp_path / "one", make_rows(steps=STEPS)), "two_nn").data
    assert "95% interval: %{customdata[0]:.4~g} to %{customdata[1]:.4~g}" in cells.hovertemplate
    for number, end in enumerate(("low", "high")):
        wanted = grid(measurements(make_run(steps=STEPS)), "two_nn", "all", end)
        np.testing.assert_array_equal(np.asarray(cells.customdata)[..., number], wanted)
    (cells,) = heatmap(fill(tmp_path / "dense", make_rows(steps=STEPS, **DENSE)), "two_nn").data
    assert "interval" not in cells.hovertemplate


def test_charts_of_what_is_not_there_are_refused(everything, tmp_path):
    with pytest.raises(
        ValueError,
        match=r"^expected a metric and a subset it was measured on, got two_nn \(nouns\); there",
    ):
        heatmap(everything[0], "two_nn", "nouns")
    with pytest.raises(
        ValueError,
        match=r"^expected checkpoints of a training, got the finished model 'lab/bert'.*",
    ):
        means(fill(tmp_path / "finished", make_finished()), "two_nn")
    with pytest.raises(ValueError, match=r"^expected one run, got 2: .*\(encoder\).*stack="):
        profile(fill(tmp_path / "stacks", make_two_stacks()), "two_nn")


def test_an_array_is_stored_once_and_nan_is_no_json():
    shared = np.arange(6, dtype=np.float64).reshape(2, 3)
    assert packed({"a": shared, "b": [shared, 1, "c"], "d": np.zeros(2)})[0] == {
        "a": {"$": [0, 2, 3]},
        "b": [{"$": [0, 2, 3]}, 1, "c"],
        "d": {"$": [6, 2]},
    }
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        as_text({"a": float("nan")})


STEPS_OF_REPORT_GLANCE = tuple(range(0, 120, 10))


def run(name, losses, dimension=lambda step, depth: 9 + depth, **more):
    rows = make_rows(
        run=name, steps=STEPS_OF_REPORT_GLANCE, n_blocks=4, dimension=dimension, loss=False, **more
    )
    return [
        *rows,
        *(
            make_scalar(step, loss, run=name)
            for step, loss in zip(STEPS_OF_REPORT_GLANCE, losses, strict=True)
        ),
    ]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """A run that goes well, and one that fails after its dimension has halved in one layer."""
    folder = tmp_path_factory.mktemp("glance")
    well = run("well", np.linspace(5, 2, 12))
    failed = run(
        "failed",
        [*np.linspace(5, 2, 6), *np.linspace(2, 6, 6)],
        dimension=lambda step, depth: 2.0 if step >= 80 and depth == 0.5 else 9 + depth,
    )
    return write_report(fill(folder / "store", well, failed), folder / "report.html")


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_statuses_come_first_and_provenance_last(path):
    page = text(path)
    places = [
        page.index(part)
        for part in ('id="glance"', 'id="charts"', "Published findings", 'id="provenance"')
    ]
    assert places == sorted(places)
    assert page.index('class="status failed"') < page.index('class="status healthy"')


def test_statements_of_names_from_a_store_are_escaped(tmp_path):
    rows = run("<img src=x onerror=alert(1)>", [*np.linspace(5, 2, 11), math.nan])
    page = text(write_report(fill(tmp_path / "store", rows), tmp_path / "report.html"))
    assert "<img src=x" not in page


STEPS_OF_REPORT_LOSS = (0, 8, 64)


def course(*scalars):
    """Return the title and the lines of the row of losses in the course of a run that has these
    scalars.
    """
    rows = [
        make_scalar(step, 5.0 - step / 100, name)
        for name in scalars
        for step in STEPS_OF_REPORT_LOSS
    ]
    frame = to_frame([*make_rows(steps=STEPS_OF_REPORT_LOSS, n_blocks=2, loss=False), *rows])
    (run,) = measured_runs(frame)
    plot = course_plot(run, run.series["two_nn", "all"])
    lines = [trace for trace in plot["data"] if trace["yaxis"] == "y" and "dash" in trace["line"]]
    return plot["layout"]["annotations"][0]["text"], lines


@pytest.mark.parametrize(
    ("scalars", "title", "dashes"),
    [
        ([PROBE_LOSS], "loss on the probe", ["solid"]),
        ([LOSS, PROBE_LOSS], "training loss and loss on the probe (dotted)", ["solid", "dot"]),
        (
            [LOSS, VALIDATION_LOSS, PROBE_LOSS],
            "training loss, validation loss (dashed) and loss on the probe (dotted)",
            ["solid", "dash", "dot"],
        ),
        ([LOSS], "training loss", ["solid"]),
    ],
)
def test_the_losses_that_are_stored_share_a_row(scalars, title, dashes):
    found, lines = course(*scalars)
    assert found == title
    assert [trace["line"]["dash"] for trace in lines] == dashes
    assert lines[-1]["line"]["color"] == LOSS_COLOUR
    assert list(lines[-1]["y"]) == [5.0 - step / 100 for step in STEPS_OF_REPORT_LOSS]


def tables(steps, **fields):
    losses = [make_scalar(step, 5.0 - step / 100, PROBE_LOSS) for step in steps]
    return course_of_training(
        data_of(to_frame([*make_rows(steps=steps, n_blocks=2, loss=False, **fields), *losses]))
    )


def data_of(frame):
    return DescribedRuns(measured_runs(frame), {})


def test_the_correlation_with_the_loss_is_a_table():
    steps = tuple(range(0, 90, 10))
    page = tables(steps, dimension=lambda step, depth: 9.0 - step / 100)
    assert "<summary>Correlation with the loss</summary>" in page
    assert "<caption>Correlation with the loss on the probe, decoder-quickstart</caption>" in page
    assert "|1.00|1.00 to 1.00|9|" in "|".join(re.findall(r'class="number">([^<]*)</td>', page))
    assert "Two trends correlate whatever drives them" in page
    assert page.count("<tr>") == 4  # the heading, anisotropy on two subsets, TwoNN


HALF = student_t.ppf(0.975, 2) * np.std([1, 2, 6], ddof=1) / np.sqrt(3)


def rows(name, dimension, **given):
    fields = {"steps": (0, 1, 8, 64), "n_blocks": 2, "probe": "0" * 16} | given
    return make_published(name, dimension=lambda step, depth: float(dimension), **fields)


@pytest.fixture
def stores(tmp_path):
    """A store for each of three seeds, and one of another run, which comes first in a
    comparison.
    """
    seeds = [
        fill(tmp_path / f"seed{number}", rows(f"lab/m-seed{number}", number))
        for number in (1, 2, 6)
    ]
    return [*seeds, fill(tmp_path / "own", rows("lab/own", 4, parameters=10))]


def named(traces):
    return {trace["name"]: trace for trace in traces if trace["showlegend"]}


def test_a_page_reads_the_rows_of_a_run_once_and_looks_through_a_store_once(tmp_path, monkeypatch):
    """Hundreds of short runs would take a multiple of the time otherwise."""
    runs = [rows(f"lab/m-seed{number}", number) for number in range(4)]
    store = fill(tmp_path, *runs)
    calls = Counter()

    def count(owner, name):
        counted = getattr(owner, name)

        def counting(*arguments, **options):
            calls[name] += 1
            return counted(*arguments, **options)

        monkeypatch.setattr(owner, name, counting)

    count(frames, "_checked")
    count(findings_module, "_failure")
    count(Store, "paths")
    write_report(store, tmp_path / "report.html")
    assert (calls["_checked"], calls["_failure"]) == (len(runs), len(runs))
    assert calls["paths"] <= 3  # however many runs there are


@pytest.mark.parametrize(("what", "points"), [("profiles", 3), ("training", 4)])
def test_seeds_are_one_line_with_a_band(stores, what, points):
    tree = page_tree(described_runs(stores))
    comparison = tree["comparisons"]["two_nn"]["all"]
    traces = comparison[what]["data"]
    assert list(named(traces)) == ["own", "m (3 seeds)"]
    mean = named(traces)["m (3 seeds)"]
    of_group = [trace for trace in traces if trace.get("legendgroup") == "m (3 seeds)"]
    thin = of_group[:3]
    np.testing.assert_allclose(mean["customdata"], np.full(points, 3.0))
    for end, expected in (("low", 3.0 - HALF), ("high", 3.0 + HALF)):
        np.testing.assert_allclose(mean["meta"][end], np.full(points, expected))
    assert [trace["y"].tolist() for trace in thin] == [
        np.full(points, value).tolist() for value in (1.0, 2.0, 6.0)
    ]
    # the runs of the page: own, then the seeds
    assert [trace["meta"]["run"] for trace in thin] == [1, 2, 3]
    assert (mean["meta"]["run"], *mean["meta"]["seeds"]) == (1, 1, 2, 3)
    assert named(traces)["own"]["meta"]["run"] == 0
    assert comparison["note"].startswith(
        "4 of 4 runs; a hue for each class of models; band of seeds: 95% interval"
    )
    assert {trace["line"]["color"] for trace in of_group[:3]} <= tree["dark_colours"].keys()


def asked(*arguments: str) -> None:
    main(["report", *map(str, arguments)])


@pytest.fixture
def store(tmp_path):
    return fill(tmp_path / "store", *(make_rows(run=name, steps=(0, 8)) for name in ("a", "b")))


def test_what_two_runs_differ_in_and_whose_they_are(tmp_path):
    stores = [
        fill(
            tmp_path / name / "repdyn",
            [
                *make_rows(
                    run=name, steps=(0, 8), dtype=dtype, dimension=lambda *_, high=high: high
                ),
                make_scalar(8, rate, LEARNING_RATE, run=name),
            ],
        )
        for name, rate, dtype, high in (("a", 1e-3, "float32", 8.0), ("b", 1e-2, "bfloat16", 12.0))
    ]
    page = text(write_report(stores, tmp_path / "report.html"))
    assert "One seed each: this holds for these runs, not for their configurations" in page
    rate = "largest learning rate measured 0.001 (a), 0.01 (b)"
    assert f"These runs differ in: {rate}; states in float32 (a), bfloat16 (b).<" in page
    # t of 7 degrees of freedom times sqrt(2 / 8) for both values, whose deviations are 1%
    assert (
        "Intrinsic dimension (TwoNN), mean over layers, is higher in b (12) than in a (8) by 50% "
        "(interval 48 to 53) "
        "at step 8, and since step 0, most in layer 0 (12 and 8)." in page
    )
    assert (
        "No difference between these runs exceeds 10% and its interval at step 8: Anisotropy."
        in page
    )
    assert re.search(r"Made by repdyn \S+ from a, b\.", page)


def test_the_page_is_made_inside_the_first_store_and_named_with_its_size(store, capsys):
    asked(store.path)
    path = store.path / "report.html"
    assert re.fullmatch(
        rf"{re.escape(str(path))}: \d\.\d MB in \d+\.\d s\n", capsys.readouterr().out
    )
    assert [trace["name"] for trace in read_page(path).tree["losses"]["data"]] == ["a", "b"]
    assert store.runs() == ["a", "b"]


def test_alerts_are_counted_as_they_are_marked(tmp_path):
    """A statement on a rule that held at three steps stands for three marks in the chart."""
    fallen = {0: 90.0, 8: 20.0, 64: 4.9, 512: 1.2}
    rows = make_rows(steps=tuple(fallen), dimension=lambda step, depth: fallen[step])
    page = write_report(fill(tmp_path, rows), tmp_path / "page.html")
    text = Outline(page.read_text(encoding="utf-8")).text
    assert re.search(r"Alerts \(3\) Alert \(dimension halved\) at step 8, and at 2 later", text)

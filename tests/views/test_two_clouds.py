"""What is said of a dimension on two clouds: all vectors, and one vector of each distinct input."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from judged_runs import NOT_SHOWN, SHOWN, judged
from judged_runs import course as course_of
from printed_runs import lines_of, printed
from synthetic_runs import LOG_STEPS, fill, make_row, make_rows, measured_runs, to_frame

import repdyn
from repdyn.metrics.logged import logged_values
from repdyn.views import plots
from repdyn.views.alerts import RULES, AlertEvaluator, Rule, find_alerts
from repdyn.views.charts.axes import heatmap_scale
from repdyn.views.figures.panes import APART, LARGE
from repdyn.views.figures.run import all_figures, over_depth
from repdyn.views.judging import comparison_statements, stacks_of_run
from repdyn.views.judging.findings import findings
from repdyn.views.publish.loggers import WandbTarget, layout_of
from repdyn.views.publish.results import log_pictures
from repdyn.views.report.plots import course_plot, layers_plot, profile_plot
from repdyn.views.tables.words import alert_lines
from repdyn.views.watch.index import Index


class Recording(WandbTarget):
    """W&B, of which only the charts of lines are kept."""

    def __init__(self) -> None:
        super().__init__(None)
        self.charts: dict[str, dict[str, Sequence[float]]] = {}

    def log_lines(self, name, x, at, lines, step) -> None:
        self.charts[name] = dict(lines)

    def log_media(self, media, step) -> None:
        """Nothing is sent."""

    def log_images(self, figures, step) -> None:
        """Nothing is sent."""


TITLES = {
    "types": "one vector of each distinct token",
    "distinct_inputs": "one vector of each distinct input",
}
SHORT = {"types": "distinct tokens", "distinct_inputs": "distinct inputs"}
of_each_cloud = pytest.mark.parametrize("cloud", list(TITLES))
"""The subset that stands beside all vectors, whichever it is."""
PAGE = (Path(__file__).parents[2] / "docs" / "neighbours.md").read_text()
STEPS = tuple(range(0, 240, 10))


def block(name: str) -> str:
    """Return the code of the page between two comments of this name."""
    match = re.search(rf"<!-- {name} -->\n```python\n(.*?)```\n<!-- /{name} -->", PAGE, re.DOTALL)
    assert match, name
    return match.group(1)


def clouds(
    on_all,
    on_distinct=None,
    same_input: float | None = 0.8,
    steps=STEPS,
    reason=None,
    n_layers=5,
    cloud="distinct_inputs",
    **more,
):
    """Return rows of some layers; each curve is a function of step and layer, with 0.9 or none of
    the nearest neighbours the same token."""
    rows = []
    for step in steps:
        for layer in range(n_layers):
            for subset, curve in (("all", on_all), (cloud, on_distinct)):
                if curve is None and not (subset == cloud and reason):
                    continue
                fields = {"value": float("nan"), "std": float("nan"), "reason": reason}
                if curve is not None:
                    fields = {"value": float(curve(step, layer)), "std": 0.01}
                is_all = subset == "all"
                of_inputs = same_input if is_all or same_input is None else 0.0
                row = make_row(
                    step=step,
                    layer=layer,
                    depth=layer / (n_layers - 1),
                    metric="two_nn",
                    subset=subset,
                    same_token_fraction=None if same_input is None else 0.9,
                    same_input_fraction=of_inputs,
                    **fields | more,
                )
                rows.append(row)
    return rows


def test_the_page_checks_a_store_as_printed(tmp_path, monkeypatch, capsys):
    """The code of the page fails on a column that is not there, or prints one curve alone."""
    rows = clouds(lambda step, layer: 2 + step, lambda step, layer: 300 - step)
    fill(tmp_path / "runs" / "mine", rows)
    monkeypatch.chdir(tmp_path)
    namespace = {"repdyn": repdyn}
    exec(compile(block("check a store"), "neighbours.md", "exec"), namespace)
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("distinct_inputs", "same_input_fraction", "n_vectors"))
    assert len(block("check a store").splitlines()) == 3
    means = namespace["rows"].groupby(["step", "subset"])["value"].mean().unstack()
    assert means.loc[[0, 230]].to_numpy().tolist() == [[2, 300], [232, 70]]


@pytest.mark.filterwarnings("ignore:.*windows")
def test_the_page_checks_a_model_as_printed(hand_written, capsys):
    """The code of the page asks for a metric or a column that is not there."""
    from small import random_tokens

    probe = repdyn.Probe.from_tokens(random_tokens(64, 12), max_vectors=256)
    namespace = {"repdyn": repdyn, "model": hand_written, "probe": probe}
    exec(compile(block("check a model"), "neighbours.md", "exec"), namespace)
    frame = namespace["frame"]
    assert isinstance(frame, pd.DataFrame)
    assert set(frame["subset"]) == {"all", "distinct_inputs", "types"}
    assert "same_token_fraction" in capsys.readouterr().out


def statements(rows):
    (run,) = stacks_of_run(to_frame(rows))
    return run.insights.statements


def only(rows, kind: str):
    """Return the only statement of a kind."""
    (statement,) = [each for each in statements(rows) if each.kind == kind]
    return statement


def rising(step, layer):
    return 4 + step / 40 + 0.1 * (layer % 2)


def falling(step, layer):
    return 22 - step / 20 + 0.1 * (layer % 2)


def level(step, layer):
    return 9 + 0.1 * (layer % 2) + 1e-9 * step


COURSES = {"peak", "trough", "change", "clouds differ"}


def course(rows):
    """Return the only statement on a course."""
    (statement,) = [
        each for each in statements(rows) if each.kind in COURSES and each.steps[0] == 0
    ]
    return statement


def numbers(statement, *names):
    return tuple(round(float(statement.evidence[name]), 3) for name in names)


ENDS = ("first", "last", "distinct_first", "distinct_last")


def test_a_course_that_both_curves_have_is_claimed():
    """It is claimed of one curve, or the numbers of distinct inputs are lost."""
    both = course(clouds(rising, lambda step, layer: 2 * rising(step, layer)))
    assert both.severity == "note"
    assert both.kind == "change"
    assert both.subset == "all"
    assert both.steps == (0, 230)
    assert numbers(both, *ENDS) == (4.05, 9.8, 8.1, 19.6)
    assert "alone" not in both.sentence


@of_each_cloud
@pytest.mark.parametrize(
    ("on_all", "on_distinct", "has_all", "ends"),
    [
        pytest.param(rising, falling, True, (4.05, 9.8, 22.05, 10.55), id="opposite"),
        pytest.param(rising, level, True, (4.05, 9.8, 9.05, 9.05), id="only all"),
        pytest.param(level, rising, False, (9.05, 9.05, 4.05, 9.8), id="only distinct"),
    ],
)
def test_a_course_of_one_curve_is_not_claimed(on_all, on_distinct, has_all, ends, cloud):
    """A rise of all vectors is told as that of the layer."""
    statement = course(clouds(on_all, on_distinct, cloud=cloud))
    subset = "all" if has_all else cloud
    assert SHORT[cloud] in statement.sentence
    assert statement.severity == "watch"
    assert statement.kind == "clouds differ"
    assert statement.subset == subset
    assert statement.steps == (0, 230)
    assert numbers(statement, *ENDS) == ends
    assert "alone" in statement.sentence


def test_a_peak_and_a_rise_are_not_the_same_course():
    bump = lambda step, layer: 20 - abs(step - 110) / 10  # noqa: E731
    statement = course(clouds(rising, bump))
    assert statement.kind == "clouds differ"
    assert statement.steps == (0, 230)
    assert numbers(statement, "distinct_peak")[0] == 19
    both = course(clouds(bump, lambda step, layer: 2 * bump(step, layer)))
    assert both.kind == "peak"
    assert both.severity == "note"


def test_distinct_inputs_that_are_too_few_leave_a_statement_on_all_vectors():
    """Nothing is said, or both curves are said to rise."""
    reason = "the text has 118 distinct tokens at a position, at least 512 needed"
    alone = course(clouds(rising, reason=reason))
    assert alone.severity == "note"
    assert alone.kind == "change"
    assert reason in alone.sentence
    assert not any(name.startswith("distinct") for name in alone.evidence)
    assert "all vectors" in course(clouds(rising)).sentence


@pytest.mark.parametrize(
    ("same_input", "beginning", "fractions"),
    [
        pytest.param(0.8, "The nearest neighbour of 80% of the vectors is", (0.8, 0.9), id="input"),
        pytest.param(0.1, "The nearest neighbour of 90% of the vectors is", (0.1, 0.9), id="token"),
    ],
)
def test_a_statement_begins_with_the_nearest_neighbour(same_input, beginning, fractions):
    """The same input is nearest, and the dimension is told without it."""
    statement = course(clouds(rising, falling, same_input=same_input))
    assert statement.sentence.startswith(beginning)
    assert ("at the same position" in statement.sentence) == (same_input > 0.5)
    assert numbers(statement, "same_input_fraction", "same_token_fraction") == fractions
    level_one = only(clouds(level, level, same_input=same_input), "nearest neighbour")
    assert level_one.severity == "note"
    assert level_one.steps == (230,)


def test_images_have_no_tokens_to_name():
    """Fractions that are empty are read as numbers, or all vectors as tokens."""
    rows = clouds(rising, same_input=None, design="inputs")
    statement = course(rows)
    assert statement.severity == "note"
    assert statement.kind == "change"
    assert statement.sentence.startswith("Intrinsic dimension (TwoNN), mean over 4 layers, grew")
    low = only(clouds(lambda *_: 0.5, same_input=None, design="inputs"), "nearest neighbour")
    assert low.severity == "watch"
    assert low.steps == STEPS
    assert dict(low.evidence) == {"lowest": 0.5, "share": 1.0}


def test_below_one_is_a_case_of_the_nearest_neighbour():
    low = only(clouds(lambda step, layer: 0.5 + step / 100, rising), "nearest neighbour")
    assert low.severity == "note"
    assert low.layers == (0, 1, 2, 3, 4)
    assert low.steps == (0, 10, 20, 30, 40)
    assert numbers(low, "lowest", "same_input_fraction") == (0.5, 0.8)


def test_a_profile_that_both_curves_have_is_claimed():
    """The largest layer of all vectors is told as that of the layers."""
    up = lambda step, layer: 5 + layer + 1e-9 * step  # noqa: E731
    down = lambda step, layer: 9 - layer + 1e-9 * step  # noqa: E731
    both = only(clouds(up, lambda step, layer: 2 * up(step, layer)), "profile")
    assert numbers(both, "largest_layer", "distinct_largest_layer") == (4, 4)
    statement = only(clouds(up, down), "clouds differ")
    assert statement.severity == "note"
    assert statement.layers == (0, 4)
    assert numbers(statement, "largest_layer", "distinct_largest_layer") == (4, 0)


def test_a_layer_that_stands_out_on_both_curves_is_claimed():
    out = lambda step, layer: (10 if layer == 2 else 5) + 1e-9 * step  # noqa: E731
    both = only(clouds(out, out, n_layers=7), "layer")
    assert numbers(both, "value", "distinct_value") == (10, 10)
    alone = [each for each in statements(clouds(out, level, n_layers=7)) if each.layers == (2,)]
    assert [(each.kind, each.severity) for each in alone] == [("clouds differ", "note")]


PEAKS = {0: 10, 1000: 20, 2000: 16, 4000: 12}


@of_each_cloud
@pytest.mark.parametrize(
    ("distinct", "verdict"),
    [
        pytest.param(PEAKS, SHOWN, id="both"),
        pytest.param({0: 26, 1000: 14, 2000: 11, 4000: 9}, NOT_SHOWN, id="only all"),
    ],
)
def test_the_published_dimension_is_judged_on_both_clouds(run, distinct, verdict, cloud):
    """A verdict on all vectors stands for the layer, or does not say which vectors it judges."""
    frame = course_of(
        run,
        "dimension",
        PEAKS,
        distinct=lambda step, depth: distinct[step],
        without_repeats=cloud,
    )
    on_all, on_distinct = (judged(frame, "dimension", subset) for subset in ("all", cloud))
    assert on_all.verdict == SHOWN
    assert on_distinct.verdict == verdict
    assert "all vectors" in on_all.sentence
    assert SHORT[cloud] in on_distinct.sentence
    assert len(findings(frame)) == 8
    assert len(findings(course_of(run, "dimension", PEAKS))) == 7


@of_each_cloud
def test_the_summary_has_both_dimensions_first(run, cloud):
    """Distinct inputs are named among what was also measured, without their numbers."""
    text = printed(run(distinct=lambda step, depth: 26 - step / 32, without_repeats=cloud))
    headings = next(line for line in text.splitlines() if "two_nn" in line).split()
    assert headings == ["two_nn,", "all", "two_nn,", cloud, "anisotropy,", "all"]
    assert max(map(len, text.splitlines())) <= 80
    assert " 26.0 26.0 10.0 " in text
    assert "also measured: anisotropy (no_sink)" in text


@of_each_cloud
def test_a_comparison_has_both_dimensions(published, frame_of, cloud):
    """Runs are compared by all vectors alone, or the columns of runs without the others move."""
    more = {"distinct": lambda step, depth: 26, "without_repeats": cloud}
    both = published("lab/a", steps=(0, 8), **more)
    lines = lines_of(frame_of(both, published("lab/b", steps=(0, 8))))
    of_both, of_one = (line.split() for line in lines[2:4])
    assert of_both[7:9] == ["9.80", "26.0"]
    assert of_one[7:9] == ["9.80", "-"]
    assert of_both[9:].count("?") == 4
    assert of_one[9:].count("?") == 3
    assert max(map(len, lines)) <= 100
    assert f"di     {TITLES[cloud]} ({cloud})" in lines


@of_each_cloud
def test_figures_have_both_clouds_on_one_scale_under_their_names(run, cloud):
    """A stranger cannot tell the curves apart, or each has a scale of its own."""
    frame = run(distinct=lambda step, depth: 26 - step / 32, without_repeats=cloud)
    (described,) = stacks_of_run(frame)
    figures = all_figures(described)
    names = ["all vectors", TITLES[cloud]]
    means = figures["mean_over_layers"].axes[0]
    assert (legend := means.get_legend()) is not None
    assert [text.get_text() for text in legend.get_texts()] == names
    assert len({line.get_linestyle() for line in means.lines[:2]}) == 2
    profiles = figures["profile_two_nn"].axes
    assert [axes.get_title(loc="left") for axes in profiles] == names
    assert len({axes.get_ylim() for axes in profiles}) == 1
    maps = [
        figures[f"heatmap_two_nn_{subset}"].axes[0].images[0].get_clim()
        for subset in ("all", cloud)
    ]
    assert maps[0] == maps[1]


def test_a_cloud_far_above_leaves_the_other_its_shades(run):
    """All cells of all vectors, up to 10, are dark on a scale up to 58."""
    (described,) = stacks_of_run(
        run(distinct=lambda step, depth: 58 - step / 32, without_repeats="types")
    )
    highest = {
        subset: heatmap_scale(described.series["two_nn", subset], described.series).limits[1]
        for subset in ("all", "types")
    }
    assert highest["all"] < 20
    assert highest["types"] == 58
    # nor does the other lie flat in its panel, which the caption says
    profiles = over_depth(described, ["two_nn"], "TwoNN", LARGE)
    ends = [axes.get_ylim()[1] for axes in profiles.axes]
    assert ends[0] < 20 < 55 < ends[1]
    assert APART in profiles.get_suptitle().replace("\n", " ")


@of_each_cloud
def test_loggers_get_every_layer_of_both_clouds(run, cloud):
    """Distinct inputs have three layers where all vectors have all of them."""
    rows = make_rows(steps=(0,), distinct=lambda step, depth: 26 - depth, without_repeats=cloud)
    values = logged_values(rows)
    assert sum(name.startswith(f"two_nn_{cloud}/layer_") for name in values) == 7
    charts = layout_of(values)["two_nn"]
    assert ["Multiline", [f"^two_nn(_{cloud})?/mean$"]] in charts.values()
    target = Recording()
    target.log_values(values, 0)
    assert target.charts["two_nn_over_depth"].keys() == {"all vectors", TITLES[cloud]}
    assert f"two_nn_{cloud}_over_depth" not in target.charts
    assert len(target.charts["anisotropy_over_depth"]) == 1


def test_the_first_the_middle_and_the_last_layer_make_no_chart_over_depth():
    """They were drawn next to each other."""
    target = Recording()
    target.log_values(logged_values(make_rows(steps=(0,)), ["anisotropy"]), 0)
    assert "anisotropy_over_depth" in target.charts
    assert "two_nn_over_depth" not in target.charts


@of_each_cloud
def test_a_run_has_a_chart_of_both_means(run, cloud):
    """The means are drawn in two charts, or steps of one are given to the other."""
    late = lambda step, depth: 26 - step / 32 if step > 2 else float("nan")  # noqa: E731
    frame = run(distinct=late, without_repeats=cloud)
    target = Recording()
    (described,) = stacks_of_run(frame)
    log_pictures(described, {}, target)
    lines = target.charts["two_nn_means"]
    assert lines.keys() == {"all vectors", TITLES[cloud]}
    assert lines[TITLES[cloud]] == [26 - step / 32 for step in LOG_STEPS if step > 2]
    assert len(lines["all vectors"]) == len(LOG_STEPS) - 3


@of_each_cloud
def test_the_report_draws_both_clouds_in_its_charts(run, cloud):
    """The page shows one cloud, or gives a line of the other no name or no values."""
    frame = run(distinct=lambda step, depth: 26 - step / 32, without_repeats=cloud)
    (described,) = stacks_of_run(frame)
    names = {"all vectors", TITLES[cloud].replace("each ", "each<br>")}
    others = {"all": cloud, cloud: "all"}
    for subset, other in others.items():
        series = described.series["two_nn", subset]
        named = [
            trace for trace in profile_plot(described, series)["data"] if trace["name"] in names
        ]
        assert {trace["name"] for trace in named} == names
        assert [trace["meta"]["role"] for trace in named] == ["beside", "value"]
        of_other = described.series["two_nn", other]
        assert named[0]["y"].tolist() == of_other.values[:, -1].tolist()
        layers = layers_plot(described, series)["data"]
        assert [trace["line"]["dash"] for trace in layers] == ["solid"] * 7 + ["dash"] * 7
        colours = [trace["line"]["color"] for trace in layers]
        assert colours[:7] == colours[7:]
        title = course_plot(described, series)["layout"]["annotations"][1]["text"]
        assert "all vectors (" in title
        assert f"{TITLES[cloud]} (" in title
    anisotropy = described.series["anisotropy", "all"]
    assert len(layers_plot(described, anisotropy)["data"]) == 7


@of_each_cloud
def test_a_played_profile_moves_both_clouds(run, tmp_path, cloud):
    """The dashed line stays at the last step while the other one is played."""
    rows = make_rows(distinct=lambda step, depth: 26 - step / 32, without_repeats=cloud)
    figure: Any = plots.profile(fill(tmp_path / "store", rows), "two_nn")
    beside = next(n for n, trace in enumerate(figure.data) if trace.line.dash == "dash")
    for frame in figure.frames:
        step = int(frame.name.replace(",", ""))
        assert frame.traces[-1] == beside
        assert set(frame.data[-1].y) == {26 - step / 32}
    at_step: Any = plots.profile(fill(tmp_path / "store", rows), "two_nn", step=8)
    named = [trace.name for trace in at_step.data if trace.showlegend]
    assert named == [TITLES[cloud].replace("each ", "each<br>"), "all vectors"]


@of_each_cloud
def test_the_table_of_runs_has_both_dimensions(tmp_path, cloud):
    """The browser's table shows the dimension of all vectors alone."""
    rows = make_rows(distinct=lambda step, depth: 26 - step / 32, without_repeats=cloud)
    fill(tmp_path / "store", rows)
    index = Index([tmp_path], interval=0)
    while index.poll(10):
        pass
    (summary,) = index.summaries.values()
    assert summary["beside"]["two_nn"] == [[10, SHORT[cloud]]]
    assert summary["two_nn"] == pytest.approx(10, abs=3)


@of_each_cloud
@pytest.mark.parametrize(
    ("distinct", "kind", "has_all", "dimension"),
    [
        pytest.param((16, 24), "difference", True, (8, 12), id="both"),
        pytest.param((24, 16), "clouds differ", True, (8, 12), id="opposite"),
        pytest.param((16, 16), "clouds differ", True, (8, 12), id="only all"),
        pytest.param((16, 24), "clouds differ", False, (8, 8), id="only distinct"),
    ],
)
def test_runs_differ_in_the_dimension_if_both_clouds_do(distinct, kind, has_all, dimension, cloud):
    """A difference of all vectors is told as that of the layers."""
    rows = [
        row
        for name, low, high in zip("ab", dimension, distinct, strict=True)
        for row in make_rows(
            run=name,
            steps=(0, 8),
            dimension=lambda *_, low=low: low,
            distinct=lambda *_, high=high: high,
            without_repeats=cloud,
        )
    ]
    told = comparison_statements(measured_runs(to_frame(rows)), [])
    (statement,) = [each for each in told if each.metric == "two_nn"]
    assert statement.severity == "note"
    assert statement.kind == kind
    assert statement.subset == ("all" if has_all else cloud)
    assert statement.steps == (0, 8)
    assert SHORT[cloud] in statement.sentence
    assert ("alone" in statement.sentence) == (kind == "clouds differ")


def without_embeddings(step, depth):
    return 4 + step / 40 if depth else float("nan")


def test_means_of_both_clouds_are_over_the_same_layers(run):
    """Layer 0, often without a value of all vectors, raises the mean of distinct inputs alone."""
    frame = run(dimension=without_embeddings, distinct=lambda step, depth: 10 if depth else 90)
    (described,) = stacks_of_run(frame)
    statements = described.insights.statements
    differing = next(statement for statement in statements if statement.kind == "clouds differ")
    assert numbers(differing, "distinct_first", "distinct_last") == (10, 10)
    target = Recording()
    log_pictures(described, {}, target)
    assert set(target.charts["two_nn_means"][TITLES["distinct_inputs"]]) == {10}
    drawn: Any = all_figures(described)["mean_over_layers"].axes[0].lines[1]
    assert set(drawn.get_ydata()) == {10}
    course = course_plot(described, described.series["two_nn", "all"])["data"]
    assert set(next(line for line in course if line["line"]["dash"] == "dash")["y"]) == {10}


def alerts_of(on_all, on_distinct, cloud="types", rules=RULES, **more):
    rows = clouds(on_all, on_distinct, cloud=cloud, steps=range(0, 90, 10), **more)
    return [
        (alert.rule, alert.step, alert.subset, alert.layer)
        for alert in find_alerts(to_frame(rows), rules)
    ]


def halved_at_80(step, layer):
    return 4.0 if step == 80 and layer == 3 else 9.0 + 0.01 * step


def steady(step, layer):
    return 20.0 + 0.01 * step + 0.1 * layer


@of_each_cloud
def test_no_alarm_is_made_by_the_repeated_token_alone(cloud):
    """A dimension of all vectors that halves, jumps or is lost stops a training in which nothing
    happened to the layer.
    """
    assert alerts_of(halved_at_80, steady, cloud) == []
    jumping = lambda step, layer: 30.0 if step == 80 else 9.0 + 0.01 * step  # noqa: E731
    assert alerts_of(jumping, steady, cloud) == []
    assert alerts_of(jumping, None) == [("profile jumps", 80, "all", None)]


@of_each_cloud
def test_an_alarm_of_both_clouds_is_raised_on_each(cloud):
    """What happened to the layer is hidden with what repeats made."""
    twice = lambda step, layer: 2 * halved_at_80(step, layer)  # noqa: E731
    assert alerts_of(halved_at_80, twice, cloud) == [
        ("dimension halved", 80, subset, 3) for subset in sorted(["all", cloud])
    ]
    assert alerts_of(steady, twice, cloud) == [("dimension halved", 80, cloud, 3)]


@of_each_cloud
def test_a_line_of_an_alarm_calls_its_vectors_as_the_legend_does(cloud):
    """ "two_nn (types)" says nothing to who reads a warning in a log."""
    rows = clouds(steady, halved_at_80, cloud=cloud, steps=range(0, 90, 10))
    (line,) = alert_lines(find_alerts(to_frame(rows)))
    assert f"two_nn ({TITLES[cloud]}) of layer 3 fell" in line


def test_an_alarm_stays_where_the_other_cloud_tells_nothing():
    """A value that is not there counts as one that did not change."""
    reason = "the text has 118 distinct tokens, at least 512 needed"
    only_all = [("dimension halved", 80, "all", 3)]
    assert alerts_of(halved_at_80, None, reason=reason) == only_all
    late = lambda step, layer: 20.0 if step == 80 else float("nan")  # noqa: E731
    assert alerts_of(halved_at_80, late, rules=RULES[1:2]) == only_all


def test_a_rule_on_a_subset_is_judged_as_it_was_given():
    """A rule that names all vectors waits for another subset."""
    rule = Rule(name="mine", when="falls", bound=0.5, metrics=("two_nn",), subsets=("all",))
    assert alerts_of(halved_at_80, steady, rules=[rule]) == [("mine", 80, "all", 3)]


def test_alerts_of_a_training_are_those_of_its_store():
    """A live evaluation, step by step, sees one cloud of a step without the other."""
    rows = clouds(halved_at_80, steady, cloud="types", steps=range(0, 90, 10))
    evaluator = AlertEvaluator()
    live = [
        alert
        for step in range(0, 90, 10)
        for alert in evaluator.update([row for row in rows if row.step == step])
    ]
    assert live == find_alerts(to_frame(rows)) == []


def out_of_line(step, layer):
    return (30.0 if step == 110 else 9.0) + 0.01 * layer + 1e-9 * step


def at_the_spike(rows):
    return [statement for statement in statements(rows) if statement.steps == (110,)]


def test_a_step_is_out_of_line_if_both_clouds_say_so():
    """A spike of all vectors that distinct tokens do not have is an alarm."""
    (alone,) = at_the_spike(clouds(out_of_line, level))
    assert alone.severity == "note"
    assert alone.kind == "clouds differ"
    twice = lambda step, layer: 2 * out_of_line(step, layer)  # noqa: E731
    (both,) = at_the_spike(clouds(out_of_line, twice))
    assert both.severity == "watch"
    assert both.kind == "geometry out of line"


@pytest.mark.parametrize(
    ("with_loss", "kind"), [(True, "coupling"), (False, "clouds differ")], ids=["both", "only all"]
)
def test_a_metric_moves_with_the_loss_if_both_clouds_do(run, with_loss, kind):
    """Repeated tokens alone follow the loss, and it is told of the layer."""
    losses = {step: 3 + np.sin(number) for number, step in enumerate(STEPS)}
    follows = lambda step, depth: 5 + losses[step]  # noqa: E731
    other = follows if with_loss else lambda step, depth: 20 - 0.1 * step / 10
    rows = make_rows(
        steps=STEPS, dimension=follows, distinct=other, without_repeats="types", loss=False
    )
    rows += [
        make_row(step=step, layer=None, metric="train/loss", subset=None, value=losses[step])
        for step in STEPS
    ]
    (described,) = stacks_of_run(to_frame(rows))
    told = [each for each in described.insights.statements if "correlation" in each.evidence]
    assert [(each.kind, each.metric) for each in told] == [(kind, "two_nn")]
    assert "distinct tokens" in told[0].sentence

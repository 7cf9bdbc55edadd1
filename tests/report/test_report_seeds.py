"""Seeds of one model in a report: one line with a band, and one line of verdicts."""

import numpy as np
import pytest
from scipy.stats import t as student_t
from synthetic_runs import fill, make_published

from repdyn.plots import compare
from repdyn.report.runs import report_data
from repdyn.report.sections import alerts_and_findings, overview
from repdyn.report.tree import page_tree
from repdyn.report.write import write_report

HALF = student_t.ppf(0.975, 2) * np.std([1, 2, 6], ddof=1) / np.sqrt(3)


def rows(name, dimension, **given):
    fields = {"steps": (0, 1, 8, 64), "n_blocks": 2, "probe": "0" * 16} | given
    return make_published(name, dimension=lambda step, depth: float(dimension), **fields)


@pytest.fixture
def stores(tmp_path):
    """A store for each of three seeds, and one of another run, which comes first in a comparison."""
    seeds = [fill(tmp_path / f"seed{number}", rows(f"lab/m-seed{number}", number)) for number in (1, 2, 6)]
    return [*seeds, fill(tmp_path / "own", rows("lab/own", 4, parameters=10))]


def named(traces):
    return {trace["name"]: trace for trace in traces if trace["showlegend"]}


@pytest.mark.parametrize(("what", "points"), [("profiles", 3), ("training", 4)])
def test_seeds_are_one_line_with_a_band(stores, what, points):
    tree = page_tree(report_data(stores))
    comparison = tree["comparisons"]["two_nn"]["all"]
    traces = comparison[what]["data"]
    assert list(named(traces)) == ["own", "m (3 seeds)"]
    mean = named(traces)["m (3 seeds)"]
    of_group = [trace for trace in traces if trace.get("legendgroup") == "m (3 seeds)"]
    thin, (low, high, _) = of_group[:3], of_group[3:]
    np.testing.assert_allclose(mean["customdata"], [3.0] * points)
    np.testing.assert_allclose([low["y"], high["y"]], [[3 - HALF] * points, [3 + HALF] * points])
    assert [trace["y"].tolist() for trace in thin] == [[value] * points for value in (1.0, 2.0, 6.0)]
    # the runs of the page: own, then the seeds
    assert [trace["meta"]["run"] for trace in thin] == [1, 2, 3]
    assert {(trace["meta"]["run"], *trace["meta"]["seeds"]) for trace in (low, high, mean)} == {(1, 1, 2, 3)}
    assert named(traces)["own"]["meta"]["run"] == 0
    assert comparison["note"].startswith("4 of 4 runs; decoders blue, encoders orange; band of seeds: 95 % interval")
    assert {trace["line"]["color"] for trace in of_group[:3]} <= tree["dark_colours"].keys()


def test_heatmaps_are_those_of_single_runs(stores):
    assert len(page_tree(report_data(stores))["comparisons"]["two_nn"]["all"]["heatmaps"]["data"]) == 4


def test_a_metric_that_one_seed_lacks_shows_the_others_as_runs(stores):
    lacking = fill(stores[0].path.parent / "seed7", [row for row in rows("lab/m-seed7", 7) if row.metric != "two_nn"])
    comparisons = page_tree(report_data([*stores, lacking]))["comparisons"]
    assert list(named(comparisons["two_nn"]["all"]["profiles"]["data"])) == ["own", "m-seed1", "m-seed2", "m-seed6"]
    assert list(named(comparisons["anisotropy"]["all"]["profiles"]["data"])) == ["own", "m (4 seeds)"]


@pytest.mark.extended
def test_verdicts_have_a_line_for_the_seeds(stores):
    text = str(alerts_and_findings(report_data(stores)))
    assert '<th scope="row">m (3 seeds)</th>' in text
    assert text.count("over 3 seeds: ") == 7
    assert "seeds" not in str(alerts_and_findings(report_data(stores, seeds=())))


def test_runs_that_are_no_seeds_are_shown_as_runs_with_a_warning(stores):
    other = fill(stores[0].path.parent / "other", rows("lab/m-seed9", 9, n_blocks=3))
    data = report_data([*stores, other])
    assert list(data.seeds) == []
    assert "Not shown as seeds of one model: expected runs that differ in their seed alone" in str(overview(data))
    with pytest.raises(ValueError, match="different layers of"):
        report_data([*stores, other], seeds=["lab/m-*"])


def test_patterns_reach_the_page_and_the_plots(stores, tmp_path):
    with pytest.raises(ValueError, match="a pattern of at least 2 runs as seeds, got 'x'"):
        write_report(stores, tmp_path / "page.html", seeds=["x"])
    figure = compare(stores, "two_nn", over="training", seeds=["*-seed[12]"])
    assert [trace.name for trace in figure.data if trace.showlegend] == ["own", "*-seed[12] (2 seeds)", "m-seed6"]

"""The losses of a run in its report."""

import numpy as np
import pytest
from synthetic_runs import make_rows, make_scalar, to_frame

from repdyn.report.plotly_panels import LOSS as LOSS_COLOUR
from repdyn.report.plots import course_plot
from repdyn.report.runs import ReportData, report_runs
from repdyn.report.sections import correlation_with_loss
from repdyn.store.scalars import LOSS, PROBE_LOSS, VALIDATION_LOSS

STEPS = (0, 8, 64)


def course(*scalars):
    """Return the title and the lines of the row of losses in the course of a run that has these scalars."""
    rows = [make_scalar(step, 5.0 - step / 100, name) for name in scalars for step in STEPS]
    (run,) = report_runs(to_frame([*make_rows(steps=STEPS, n_blocks=2, loss=False), *rows]))
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
    assert list(lines[-1]["y"]) == [5.0 - step / 100 for step in STEPS]


def test_the_band_of_the_loss_on_the_probe_is_its_interval():
    rows = [make_scalar(step, 5.0, PROBE_LOSS, low=4.5, high=5.5) for step in STEPS]
    (run,) = report_runs(to_frame([*make_rows(steps=STEPS, n_blocks=2, loss=False), *rows]))
    bands = [trace for trace in course_plot(run, run.series["two_nn", "all"])["data"] if trace["yaxis"] == "y"]
    edges = np.concatenate([np.asarray(trace["y"], float) for trace in bands])
    assert set(edges.tolist()) == {4.5, 5.0, 5.5}
    assert run.probe_loss_margin.tolist() == [0.5] * len(STEPS)


def test_a_run_without_a_loss_has_no_row_for_it():
    title, _ = course()
    assert title.startswith("Intrinsic dimension")


def tables(steps, **given):
    losses = [make_scalar(step, 5.0 - step / 100, PROBE_LOSS) for step in steps]
    return correlation_with_loss(data_of(to_frame([*make_rows(steps=steps, n_blocks=2, loss=False, **given), *losses])))


def data_of(frame):
    return ReportData(report_runs(frame), frame)


def test_the_correlation_with_the_loss_is_a_table():
    steps = tuple(range(0, 90, 10))
    page = tables(steps, dimension=lambda step, depth: 9.0 - step / 100)
    assert "<summary>Correlation with the loss</summary>" in page
    assert "<caption>Correlation with the loss on the probe, decoder-quickstart</caption>" in page
    assert '<td class="number">1.00</td><td class="number">1.00 to 1.00</td><td class="number">9</td>' in page
    assert "Two trends correlate whatever drives them" in page
    assert page.count("<tr>") == 4  # the heading, anisotropy on two subsets, TwoNN


def test_without_a_correlation_the_reason_is_given():
    page = tables((0, 8, 64))
    assert "<table>" not in page
    assert "<b>decoder-quickstart</b>: 3 checkpoints have both a value and a loss, and 8 are needed." in page

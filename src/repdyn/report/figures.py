"""The report's figures as figures of Plotly, for notebooks and loggers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from repdyn.figures.axes import placed, training_axes, value_axis
from repdyn.figures.metric_panels import profile_lines
from repdyn.report.plotly_panels import LIGHT, VALUE, PlotlyDict, band_traces, plotly_axis
from repdyn.report.plots import course_plot, heatmap_plot, profile_plot
from repdyn.report.runs import ReportRun, report_runs
from repdyn.tables.frames import measurements, of_training, select_steps
from repdyn.tables.series import MetricSeries
from repdyn.tables.style import metric_title, subset_title
from repdyn.tables.texts import filled

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_FRAMES = 40
"""Steps of a profile's slider; Plotly takes long to check each."""


def heatmap(frame: pd.DataFrame, metric: str, subset: str) -> Figure:
    """Return a metric by layer and measured step, alerts marked.

    Args:
        frame: rows of one run, scalars among them; if its model has several stacks, of one of them.
        metric: a measured metric.
        subset: a token subset it was measured on.

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none; ``metric`` not measured on ``subset``; a
            finished model, which has no steps.
    """
    of_training(frame, "profile")
    run, series = _single(frame, metric, subset)
    plot = heatmap_plot(run, series)
    plot["layout"]["shapes"] = []
    return _figure(plot, run.title, series)


def profile(frame: pd.DataFrame, metric: str, subset: str) -> Figure:
    """Return a metric over depth, with a slider over at most 40 log-spaced steps, and a button that plays them.

    Args:
        frame: rows of one run; if its model has several stacks, of one of them.
        metric: a measured metric.
        subset: a token subset it was measured on.

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none; ``metric`` not measured on ``subset``.
    """
    run, series = _single(frame, metric, subset)
    plot = profile_plot(run, series)
    if len(series.steps) > 1:
        plot |= _played(plot, series)
    return _figure(plot, run.title, series)


def means(frame: pd.DataFrame, metric: str, subset: str) -> Figure:
    """Return a metric averaged over layers with the loss, and buttons for steps and tokens, logarithmic and linear.

    Args:
        frame: rows of one run, scalars among them; if its model has several stacks, of one of them.
        metric: a measured metric.
        subset: a token subset it was measured on.

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none; ``metric`` not measured on ``subset``; a
            finished model, which has no steps.
    """
    of_training(frame, "profile")
    run, series = _single(frame, metric, subset)
    plot = _with_axis_buttons(course_plot(run, series), run)
    return _figure(plot, run.title, series).update_layout(height=plot["layout"]["height"])


def _single(frame: pd.DataFrame, metric: str, subset: str) -> tuple[ReportRun, MetricSeries]:
    """Return the only run of a frame and one of its series."""
    measurements(frame)
    (run,) = report_runs(_cells(frame, metric, subset))
    if (metric, subset) not in run.series:
        measured = ", ".join(f"{name} ({of})" for name, of in run.series)
        raise ValueError(
            f"expected a metric and a subset it was measured on, got {metric} ({subset}); there are {measured}"
        )
    return run, run.series[metric, subset]


def _cells(frame: pd.DataFrame, metric: str, subset: str) -> pd.DataFrame:
    """Return the rows that a figure needs; all rows if there are none, for an error to say what there is."""
    of_layers = frame["layer"].notna()
    chosen = of_layers & (frame["metric"] == metric) & (filled(pd.Series(frame["subset"]), "all") == subset)
    return frame.loc[chosen | ~of_layers] if bool(chosen.any()) else frame


def _with_axis_buttons(plot: PlotlyDict, run: ReportRun) -> PlotlyDict:
    """Return a plot along the training, with buttons for every axis that its run has."""
    steps = sorted({step for trace in plot["data"] for step in trace["x"]})
    counts = {step: run.tokens.get(step, np.nan) for step in steps} if run.tokens else {}
    axes = training_axes(steps, sorted(count for count in counts.values() if not np.isnan(count)))
    buttons, x = [], {}
    for name, axis in axes.items():
        of_step = counts if name.startswith("tokens") else {}
        x[name] = [
            placed(np.array([of_step.get(step, step) for step in trace["x"]], float), axis.floor)
            for trace in plot["data"]
        ]
        # ticks of a logarithmic axis would stay on a linear one
        layout = {"tickvals": None, "ticktext": None, **plotly_axis(axis)}
        changes = [{"x": x[name]}, {f"xaxis.{key}": value for key, value in layout.items()}]
        buttons.append({"label": name.replace("-", ", "), "method": "update", "args": changes})
    menu = {"buttons": buttons, "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"}
    traces = [{**trace, "x": places} for trace, places in zip(plot["data"], x["steps-log"], strict=True)]
    along = {**plot["layout"]["xaxis"], **plotly_axis(axes["steps-log"])}
    layout = {**plot["layout"], "xaxis": along, "updatemenus": [menu], "shapes": []}
    return {"data": traces, "layout": layout}


def _played(plot: PlotlyDict, series: MetricSeries) -> PlotlyDict:
    """Return frames, and the slider and button that show them."""
    floor = value_axis(series.metric, series.values, series.margins).floor
    first = len(plot["data"]) - 3
    frames, stops = [], []
    at_once: dict[str, Any] = {"mode": "immediate", "transition": {"duration": 0}}
    for line in profile_lines(series, dict.fromkeys(select_steps(series.steps, MAX_FRAMES), VALUE)):
        at = band_traces(line, floor)
        data = [{"y": at["low"]}, {"y": at["high"]}, {"y": at["value"], "customdata": at["exact"]}]
        frames.append({"name": line.label, "data": data, "traces": [first, first + 1, first + 2]})
        arguments = [[line.label], at_once | {"frame": {"duration": 0, "redraw": False}}]
        stops.append({"label": line.label, "method": "animate", "args": arguments})
    play = [None, at_once | {"frame": {"duration": 250, "redraw": False}, "fromcurrent": True}]
    layout = {
        **plot["layout"],
        "sliders": [{"steps": stops, "active": len(stops) - 1, "currentvalue": {"prefix": "step "}, "pad": {"t": 40}}],
        "updatemenus": [
            {"type": "buttons", "buttons": [{"label": "Play", "method": "animate", "args": play}], "x": 0, "y": 1.15}
        ],
    }
    return {"layout": layout, "frames": frames}


def _figure(plot: PlotlyDict, caption: str, series: MetricSeries) -> Figure:
    import plotly.graph_objects as go  # takes one second, which tracking without it should not pay

    title = f"{metric_title(series.metric)}, {subset_title(series.subset)}<br><sub>{caption}</sub>"
    layout = {"height": None, "margin": {"t": 110}, "title": {"text": title}, "template": LIGHT}
    # Plotly's button that uploads a figure has no place next to unpublished results
    modebar = {"modebar": {"remove": ["sendChartToCloud", "sendDataToCloud"]}}
    return go.Figure({**plot, "layout": {**plot["layout"], **layout, **modebar}})

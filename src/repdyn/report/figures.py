"""The report's figures as figures of Plotly, for notebooks and loggers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from repdyn.figures.charts import placed, training_axes, value_axis
from repdyn.figures.panels import profile_lines
from repdyn.report.plotly_panels import HEIGHT, LIGHT, VALUE, PlotlyDict, band_traces, plotly_axis
from repdyn.report.plots import course_plot, heatmap_plot, profile_plot
from repdyn.report.runs import ReportRun, report_runs
from repdyn.tables.frames import filled, measurements, of_training, select_steps
from repdyn.tables.series import MetricSeries
from repdyn.tables.style import metric_title, subset_title

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_FRAMES = 40
"""Steps of a profile's slider; Plotly takes long to check each."""
_LINE_HEIGHT = 22


def heatmap(frame: pd.DataFrame, metric: str, subset: str) -> Figure:
    """Return a metric by layer and measured step, alerts marked."""
    of_training(frame, "profile")
    run, series = _single(frame, metric, subset)
    plot = heatmap_plot(run, series)
    plot["layout"]["shapes"] = []
    return plotly_figure(plot, _title(series), run.title)


def profile(frame: pd.DataFrame, metric: str, subset: str, step: int | None = None) -> Figure:
    """Return a metric over depth: at a step, or with a slider over at most 40 log-spaced steps and a button that plays
    them."""
    of_metric = (frame["metric"] == metric) & frame["layer"].notna()
    if step is not None and step not in (measured := frame.loc[of_metric, "step"].unique().tolist()):
        around = sorted(sorted(measured, key=lambda other: abs(other - step))[:3])
        closest = f"the closest are {', '.join(map(str, around))}" if around else "it was not measured at all"
        raise ValueError(f"expected a step at which {metric} was measured, got {step}; {closest}")
    run, series = _single(frame if step is None else frame.loc[frame["step"] == step], metric, subset)
    plot = profile_plot(run, series)
    if step is not None:
        # the legend would name one step, the heading does
        plot["layout"]["showlegend"] = False
    elif len(series.steps) > 1:
        plot |= _played(plot, series)
    return plotly_figure(plot, _title(series) + ("" if step is None else f", step {step:,}"), run.title)


def means(frame: pd.DataFrame, metric: str, subset: str) -> Figure:
    """Return a metric averaged over layers with the loss, and buttons for steps and tokens, logarithmic and linear."""
    of_training(frame, "profile")
    run, series = _single(frame, metric, subset)
    plot = _with_axis_buttons(course_plot(run, series), run)
    return plotly_figure(plot, _title(series), run.title)


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


def plotly_figure(plot: PlotlyDict, title: str, caption: str) -> Figure:
    """Return a figure as high as on the page, with room for its heading also in the narrow column of a notebook."""
    import plotly.graph_objects as go  # takes one second, which tracking without it should not pay

    heading = f"{title}<br><sub>{caption}</sub>" if caption else title
    top = 70 + _LINE_HEIGHT * heading.count("<br>")
    layout: PlotlyDict = {
        "height": plot["layout"].get("height", HEIGHT) + top,
        "margin": {"t": top, "b": 110 if "sliders" in plot["layout"] else 60},
        "title": {"text": heading, "y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 16}},
        "template": LIGHT,
        # Plotly's button that uploads a figure has no place next to unpublished results
        "modebar": {"remove": ["sendChartToCloud", "sendDataToCloud"]},
    }
    return go.Figure({**plot, "layout": {**plot["layout"], **layout}})


def _title(series: MetricSeries) -> str:
    return f"{metric_title(series.metric)}, {subset_title(series.subset)}"

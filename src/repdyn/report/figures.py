"""The report's pictures as figures of Plotly, for notebooks and loggers; the page draws the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from repdyn.report.axes import Part, course_axes, placed, value_axis
from repdyn.report.comparison import courses_part, members_of, panels_part, profiles_part
from repdyn.report.entries import Entry, entries_of, in_lines
from repdyn.report.parts import at_step, heatmap_part, means_part, profile_part, title
from repdyn.report.series import MetricSeries
from repdyn.report.themes import LIGHT, run_colours
from repdyn.tables.designs import sampling_of_runs
from repdyn.tables.frames import measurements, of_training, select_steps
from repdyn.tables.runs import differences

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_FRAMES = 40
"""Steps of a profile's slider: Plotly checks each for long."""


def heatmap(frame: pd.DataFrame, metric: str, subset: str) -> Figure:
    """A metric by layer and measured step, alerts marked.

    Args:
        frame: rows of one run, scalars among them; where its model has several stacks of one of them.
        metric: a measured metric.
        subset: a token subset it was measured on.

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none; ``metric`` not measured on ``subset``; a
            finished model, which has no steps.
    """
    of_training(frame, "profile")
    entry, course = _one(frame, metric, subset)
    part = heatmap_part(entry, course)
    part["layout"]["shapes"] = []
    return _figure(part, entry.title, course)


def profile(frame: pd.DataFrame, metric: str, subset: str) -> Figure:
    """A metric over depth, with a slider over at most 40 log-spaced steps, and a button that plays them.

    Args:
        frame: rows of one run; where its model has several stacks of one of them.
        metric: a measured metric.
        subset: a token subset it was measured on.

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none; ``metric`` not measured on ``subset``.
    """
    entry, course = _one(frame, metric, subset)
    part = profile_part(entry, course)
    if len(course.steps) > 1:
        part |= _played(part, course)
    return _figure(part, entry.title, course)


def means(frame: pd.DataFrame, metric: str, subset: str) -> Figure:
    """A metric averaged over layers with the loss, and buttons for steps and tokens, logarithmic and linear.

    Args:
        frame: rows of one run, scalars among them; where its model has several stacks of one of them.
        metric: a measured metric.
        subset: a token subset it was measured on.

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none; ``metric`` not measured on ``subset``; a
            finished model, which has no steps.
    """
    of_training(frame, "profile")
    entry, course = _one(frame, metric, subset)
    return _figure(_along(means_part(entry, course), [entry]), entry.title, course)


def compared(frame: pd.DataFrame, metric: str, subset: str) -> dict[str, Figure]:
    """Several runs: their last profiles, their means over layers, their heatmaps side by side; by name.

    Those that have nothing to show are left out.

    Args:
        frame: rows of several runs, each measured on one probe.
        metric: one that at least one of the runs was measured with.
        subset: a token subset it was measured on.

    Raises:
        ValueError: a run with several models or probes; runs that do not compare; no run with ``metric`` on ``subset``.
    """
    entries = entries_of(_cells(frame, metric, subset))
    members = members_of(entries, (metric, subset))
    if not members:
        raise ValueError(f"expected runs measured with {metric} ({subset}), got none; name another metric or subset")
    if why := differences([entry.run for _, entry, _ in members]):
        raise ValueError(f"expected runs that compare, got {why}; choose among them")
    colours = run_colours([entry.run for entry in entries])
    courses = courses_part(members, colours)
    parts = {
        "profiles": profiles_part(members, colours),
        "courses": courses and _along(courses, entries),
        "heatmaps": panels_part(members),
    }
    sampled = sampling_of_runs({entry.label: entry.run.rows for _, entry, _ in members})
    course = members[0][2]
    return {name: _figure(part, in_lines(sampled), course) for name, part in parts.items() if part is not None}


def _one(frame: pd.DataFrame, metric: str, subset: str) -> tuple[Entry, MetricSeries]:
    measurements(frame)
    (entry,) = entries_of(_cells(frame, metric, subset))
    if (metric, subset) not in entry.courses:
        there = ", ".join(f"{name} ({of})" for name, of in entry.courses)
        raise ValueError(
            f"expected a metric and a subset it was measured on, got {metric} ({subset}); there are {there}"
        )
    return entry, entry.courses[metric, subset]


def _cells(frame: pd.DataFrame, metric: str, subset: str) -> pd.DataFrame:
    """What a picture needs; all rows where nothing is left to tell what there is."""
    of_layers = frame["layer"].notna()
    chosen = of_layers & (frame["metric"] == metric) & (frame["subset"].fillna("all") == subset)
    return frame.loc[chosen | ~of_layers] if bool(chosen.any()) else frame


def _along(part: Part, entries: list[Entry]) -> Part:
    """The traces along the course of a training, with buttons for every axis that all of them have."""
    every = all(entry.tokens for entry in entries)
    of_entries = [trace.get("meta", {}).get("entry", 0) for trace in part["data"]]
    steps = sorted({step for trace in part["data"] for step in trace["x"]})
    counts = [{step: entry.tokens.get(step, np.nan) for step in steps} for entry in entries] if every else []
    known = sorted({float(count) for of_one in counts for count in of_one.values() if not np.isnan(count)})
    axes = course_axes(steps, known)
    places = {
        name: [
            _counted(trace["x"], counts[place] if name.startswith("tokens") else None, axis["floor"])
            for trace, place in zip(part["data"], of_entries, strict=True)
        ]
        for name, axis in axes.items()
    }
    # ticks of a logarithmic axis would stay
    layouts = {name: {"tickvals": None, "ticktext": None, **axis["layout"]} for name, axis in axes.items()}
    buttons = [
        {
            "label": name.replace("-", ", "),
            "method": "update",
            "args": [{"x": xs}, {f"xaxis.{key}": value for key, value in layouts[name].items()}],
        }
        for name, xs in places.items()
    ]
    menu = {"buttons": buttons, "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"}
    traces = [{**trace, "x": x} for trace, x in zip(part["data"], places["steps-log"], strict=True)]
    return {"data": traces, "layout": {**part["layout"], "xaxis": axes["steps-log"]["layout"], "updatemenus": [menu]}}


def _counted(steps: Sequence[int], tokens: Mapping[int, float] | None, floor: float | None) -> np.ndarray:
    """Where steps stand on an axis of steps, or of tokens."""
    counts = steps if tokens is None else [tokens[step] for step in steps]
    return placed(np.asarray(counts, np.float32), floor)


def _played(part: Part, course: MetricSeries) -> Part:
    """Frames, and the slider and button that show them."""
    _, floor = value_axis(course.metric, course.values, course.margins)
    places = [course.steps.index(step) for step in select_steps(course.steps, MAX_FRAMES)]
    first = len(part["data"]) - 3
    frames, stops = [], []
    at_once: dict[str, Any] = {"mode": "immediate", "transition": {"duration": 0}}
    for place in places:
        at, name = at_step(course, place, floor), f"{course.steps[place]:,}"
        data = [{"y": at["low"]}, {"y": at["high"]}, {"y": at["value"], "customdata": at["exact"]}]
        frames.append({"name": name, "data": data, "traces": [first, first + 1, first + 2]})
        arguments = [[name], at_once | {"frame": {"duration": 0, "redraw": False}}]
        stops.append({"label": name, "method": "animate", "args": arguments})
    play = [None, at_once | {"frame": {"duration": 250, "redraw": False}, "fromcurrent": True}]
    layout = {
        **part["layout"],
        "sliders": [{"steps": stops, "active": len(stops) - 1, "currentvalue": {"prefix": "step "}, "pad": {"t": 40}}],
        "updatemenus": [
            {"type": "buttons", "buttons": [{"label": "Play", "method": "animate", "args": play}], "x": 0, "y": 1.15}
        ],
    }
    return {"layout": layout, "frames": frames}


def _figure(part: Part, below: str, course: MetricSeries) -> Figure:
    import plotly.graph_objects as go  # one second, which tracking without it should not pay

    whole = deepcopy(part)
    layout = {"margin": {"t": 110}, "title": {"text": f"{title(course)}<br><sub>{below}</sub>"}, "template": LIGHT}
    # Plotly's own button that sends a figure away has no place under unpublished results
    bar = {"modebar": {"remove": ["sendChartToCloud", "sendDataToCloud"]}}
    whole["layout"] = {**whole["layout"], "height": None, **layout, **bar}
    return go.Figure(whole)

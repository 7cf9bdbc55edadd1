"""The pictures of several runs as Plotly's plain dictionaries: profiles at the end, means, heatmaps side by side."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

import numpy as np

from repdyn.report.axes import Part, colour_axis, placed, value_axis
from repdyn.report.entries import Entry
from repdyn.report.parts import HEIGHT, band_and_line
from repdyn.report.series import MetricSeries
from repdyn.tables.runs import Key

MAX_PANELS = 24
"""Heatmaps side by side."""
_COLUMNS = 3
_PANEL_HEIGHT = 220
_MARGINS = 70
_GAP = 0.05
_ROW_GAP = 0.3
"""Of the height of a row, for ticks and a heading."""
MAX_BANDS = 6
"""Lines up to which each has its band; more would hide each other."""

Members = Sequence[tuple[int, Entry, MetricSeries]]
"""The runs that have a metric, each with its place among all."""


def members_of(entries: Sequence[Entry], key: tuple[str, str]) -> list[tuple[int, Entry, MetricSeries]]:
    """The runs that were measured with a metric on a subset, each with its place."""
    return [(place, entry, entry.courses[key]) for place, entry in enumerate(entries) if key in entry.courses]


def profiles_part(members: Members, colours: Mapping[Key, tuple[str, str]]) -> Part:
    """The last profile of each run over relative depth."""
    last = [(course.values[:, -1:], course.margins[:, -1:]) for *_, course in members]
    values, margins = (np.concatenate(arrays) for arrays in zip(*last, strict=True))
    axis, floor = value_axis(members[0][2].metric, values, margins)
    traces = []
    for place, entry, course in members:
        at = _bands(course.values[:, -1], course.margins[:, -1], floor)
        when = "" if entry.finished else f", step {course.steps[-1]:,}"
        told = f"{_escaped(entry.label)}{when}<br>depth %{{x:.2f}}: <b>%{{customdata:.4~g}}</b><extra></extra>"
        traces += _of_run(place, course.depths, at, colours[entry.run.key][0], told, _escaped(entry.label), members)
    depth = {"title": {"text": "relative depth (0 = embedding output, 1 = last layer)"}, "range": [-0.03, 1.03]}
    return {"data": traces, "layout": {"height": HEIGHT, "xaxis": depth, "yaxis": axis, **_legend(members)}}


def courses_part(members: Members, colours: Mapping[Key, tuple[str, str]]) -> Part | None:
    """The mean over layers of each run against the course of its training; None where none has two checkpoints."""
    trained = [member for member in members if len(member[2].steps) > 1]
    if not trained:
        return None
    values, margins = (
        np.concatenate(arrays) for arrays in zip(*((c.mean, c.mean_margin) for *_, c in trained), strict=True)
    )
    axis, floor = value_axis(members[0][2].metric, values, margins)
    traces = []
    for place, entry, course in trained:
        at = _bands(course.mean, course.mean_margin, floor)
        told = f"{_escaped(entry.label)}<br>step %{{text}}: <b>%{{customdata:.4~g}}</b><extra></extra>"
        of_run = _of_run(place, course.steps, at, colours[entry.run.key][0], told, _escaped(entry.label), trained)
        of_run[-1]["text"] = [f"{step:,}" for step in course.steps]
        for trace in of_run:
            trace["meta"]["along"] = "course"
        traces += of_run
    return {"data": traces, "layout": {"height": HEIGHT, "xaxis": {}, "yaxis": axis, **_legend(trained)}}


def panels_part(members: Members) -> Part | None:
    """Heatmaps of the runs side by side on one scale of colours; None where fewer than two have several steps."""
    trained = [member for member in members if len(member[2].steps) > 1][:MAX_PANELS]
    if len(trained) < 2:
        return None
    everything = np.concatenate([course.values.ravel() for *_, course in trained])
    axis, shown = colour_axis(trained[0][2].metric, everything)
    ends = np.cumsum([course.values.size for *_, course in trained])[:-1]
    columns = min(_COLUMNS, len(trained))
    n_rows = math.ceil(len(trained) / columns)
    traces: list[Part] = []
    headings: list[Part] = []
    layout: Part = {"annotations": headings}
    for number, ((_, entry, course), cells) in enumerate(zip(trained, np.split(shown, ends), strict=True)):
        name = str(number + 1) if number else ""
        across, up = _domains(number, columns, n_rows)
        z = course.values if shown is everything else cells.reshape(course.values.shape)
        traces.append(_panel(entry, course, z, name))
        steps = {"type": "category", "domain": across, "anchor": f"y{name}", "nticks": 6, "showgrid": False}
        layout[f"xaxis{name}"] = steps
        layout[f"yaxis{name}"] = {"domain": up, "anchor": f"x{name}", "nticks": 4, "showgrid": False}
        headings.append(_heading(entry.label, across[0], up[1]))
    height = _MARGINS + _PANEL_HEIGHT * n_rows
    return {"data": traces, "layout": {"height": height, "coloraxis": axis, "margin": {"t": 30}, **layout}}


def _panel(entry: Entry, course: MetricSeries, z: np.ndarray, name: str) -> Part:
    where = f"{_escaped(entry.label)}<br>depth %{{y:.2f}}, step %{{x}}"
    return {
        "type": "heatmap",
        "x": [f"{step:,}" for step in course.steps],
        "y": course.depths,
        "z": z,
        "customdata": course.values,
        "xaxis": f"x{name}",
        "yaxis": f"y{name}",
        "coloraxis": "coloraxis",
        "hoverongaps": False,
        "hovertemplate": f"{where}<br><b>%{{customdata:.4~g}}</b><extra></extra>",
    }


def _heading(label: str, x: float, y: float) -> Part:
    place = {"x": x, "y": y, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    return {"text": _escaped(_short(label)), "showarrow": False, "font": {"size": 13}, **place}


def _legend(members: Members) -> Part:
    """Above few lines; beside many, where it scrolls."""
    above = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"}
    return {
        "showlegend": True,
        "legend": above if len(members) <= MAX_BANDS else {"font": {"size": 11}, "traceorder": "normal"},
    }


def _of_run(
    place: int,
    x: Sequence[float] | np.ndarray,
    at: dict[str, np.ndarray],
    colour: str,
    told: str,
    name: str,
    members: Members,
) -> list[Part]:
    traces = band_and_line(x, at, colour, told, "lines+markers", name)
    traces = traces if len(members) <= MAX_BANDS else traces[-1:]
    for trace in traces:
        # one click in the legend takes the band along
        trace |= {"legendgroup": name, "meta": {"entry": place}}
    return traces


def _bands(values: np.ndarray, margins: np.ndarray, floor: float | None) -> dict[str, np.ndarray]:
    reach = np.nan_to_num(margins)
    drawn = {"low": values - reach, "high": values + reach, "value": values}
    return {role: placed(line, floor) for role, line in drawn.items()} | {"exact": values}


def _domains(number: int, columns: int, n_rows: int) -> tuple[list[float], list[float]]:
    """Where a panel stands across and up, the first row on top."""
    row, column = divmod(number, columns)
    width, height = (1 + _GAP) / columns, (1 + _ROW_GAP / n_rows) / n_rows
    left, top = column * width, 1 - row * height
    return [left, min(1.0, left + width - _GAP)], [max(0.0, top - height + _ROW_GAP / n_rows), top]


def _short(label: str, longest: int = 34) -> str:
    return label if len(label) <= longest else f"...{label[3 - longest :]}"


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)

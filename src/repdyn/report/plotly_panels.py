"""Panels as plain dictionaries of Plotly, light and dark; a page stores arrays used twice once."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from repdyn.figures.charts import Axis, Cells, Line, Mark, Panel, placed, run_colours, step_colours
from repdyn.tables.runs import MeasuredRun
from repdyn.tables.style import ALERT_COLOUR, DIVERGING, LOSS_COLOUR, SEQUENTIAL, SUBSET_COLOURS, shades

VALUE, LOSS = SUBSET_COLOURS[0], LOSS_COLOUR
BAND_OPACITY = 0.18

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def template(*, text: str, grid: str, paper: str) -> dict[str, Any]:
    """Return the Plotly template of a theme with these colours of text, grid lines and background."""
    axis = {"gridcolor": grid, "linecolor": grid, "zerolinecolor": text, "zeroline": False, "automargin": True}
    axis = {**axis, "title": {"font": {"size": 12}}}
    return {
        "layout": {
            "paper_bgcolor": paper,
            "plot_bgcolor": paper,
            "font": {"color": text, "family": _FONT, "size": 13},
            "xaxis": {**axis, "ticks": "outside", "tickcolor": grid},
            "yaxis": axis,
            "colorway": [VALUE],
            "hoverlabel": {"font": {"family": _FONT}},
            "margin": {"l": 60, "r": 20, "t": 16, "b": 50},
            "legend": {"bgcolor": "rgba(0,0,0,0)"},
            "coloraxis": {"colorbar": {"outlinewidth": 0}},
        },
    }


LIGHT = template(text="#1b2733", grid="#e3e8ee", paper="#ffffff")
DARK = template(text="#dbe4ee", grid="#31404f", paper="#17212b")

EMPTY = "#D5DBE1"
"""Cells without a value."""
DARK_COLOURS = {VALUE: "#56B4E9", ALERT_COLOUR: "#FF6B6B", LOSS: "#F0A860", EMPTY: "#3A4855"}
"""Colours of the dark theme, by those of the light one."""

TRAIL_COLOURS = {
    colour: dark
    for number in range(1, 8)
    for colour, dark in zip(step_colours(number), shades(SEQUENTIAL, number, 0.25, 1.0), strict=True)
}
"""Colours of the other steps of a profile in the dark theme, by those of the light one."""


def dark_run_colours(runs: Sequence[MeasuredRun]) -> dict[str, str]:
    """Return the colours of runs in the dark theme, by those of the light one."""
    dark = run_colours(runs, (0.2, 0.7), 0.45)
    return {colour: dark[key] for key, colour in run_colours(runs).items()}


def transparent(colour: str, opacity: float = BAND_OPACITY) -> str:
    """Return a colour with an opacity.

    >>> transparent("#0072B2", 0.2)
    'rgba(0,114,178,0.2)'
    """
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


PlotlyDict: TypeAlias = dict[str, Any]
"""A figure of Plotly, or a part of one."""

HEIGHT = 380
DIVERGING_SCALE = [[place / 10, colour] for place, colour in enumerate(shades(DIVERGING, 11, 0.0, 1.0))]
"""Colours of signed values, 0 in the middle."""
_LABEL_WIDTH = 30
"""Characters of a line of an axis's label."""
_ROW_HEIGHT, _TICKS_HEIGHT, _ROW_GAP, _ROW_MARGINS = 96, 18, 24, 76
"""Of panels below each other, in pixels."""
_BARE = {"showticklabels": False, "ticks": "", "showgrid": False, "fixedrange": True}
_WIDTH_FACTOR, _SIZE_FACTOR = 1.45, 1.7
"""From points of matplotlib to pixels."""
_DASHES = {"-": "solid", "--": "dash", ":": "dot"}
_LEGEND_ABOVE = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"}


def plotly_panel(panel: Panel, *, height: int = HEIGHT, has_bands: bool = True) -> PlotlyDict:
    """Return data and layout of a panel of lines or of cells; many lines have no bands, which would hide each other.

    The axis of a training is left to the caller, who may offer several.
    """
    if panel.cells is not None:
        return _heatmap(panel, panel.cells, height)
    traces = [trace for line in panel.lines for trace in _line_traces(line, panel, has_bands)]
    layout: PlotlyDict = {
        "height": height,
        "xaxis": {} if panel.x.is_training else plotly_axis(panel.x),
        "yaxis": plotly_axis(panel.y),
        "showlegend": bool(panel.legend),
        "legend": _LEGEND_ABOVE if panel.legend == "above" else {"font": {"size": 11}, "traceorder": "normal"},
    }
    floor = panel.y.floor
    heights = [mark for mark in panel.marks if mark.y is not None]
    shown = placed(np.array([mark.y for mark in heights], float), floor).tolist()
    traces += _mark_traces(heights, [mark.x for mark in heights], shown)
    if panel.x.is_training:
        for trace in traces:
            trace["meta"] = {**trace.get("meta", {}), "along": "training"}
    return {"data": traces, "layout": layout}


def stacked_rows(panels: Sequence[Panel]) -> PlotlyDict:
    """Return panels of lines below each other on one axis of a training, each under its title.

    A panel without lines, of marks alone, is a narrow one without ticks.
    """
    heights = [_ROW_HEIGHT if panel.lines else _TICKS_HEIGHT for panel in panels]
    whole = sum(heights) + _ROW_GAP * (len(panels) - 1)
    layout: PlotlyDict = {"annotations": [], "showlegend": False, "hovermode": "x", "hoversubplots": "axis"}
    traces: list[PlotlyDict] = []
    top = float(whole)
    for number, (panel, height) in enumerate(zip(panels, heights, strict=True), 1):
        name = str(number) if number > 1 else ""
        plot = plotly_panel(panel)
        traces += [trace | {"yaxis": f"y{name}"} for trace in plot["data"]]
        place = {"domain": [max(0.0, (top - height) / whole), min(1.0, top / whole)], "anchor": "x", "nticks": 4}
        layout[f"yaxis{name}"] = {**plot["layout"]["yaxis"], **place, **({} if panel.lines else _BARE)}
        layout["annotations"].append(heading(panel.title, 0.0, min(1.0, top / whole)))
        layout["xaxis"] = {"anchor": f"y{name}"}
        top -= height + _ROW_GAP
    return {"data": traces, "layout": {**layout, "height": whole + _ROW_MARGINS, "margin": {"t": 26, "b": 50}}}


def heading(text: str, x: float, y: float, size: int = 12) -> PlotlyDict:
    """Return a heading above a panel, whose upper left corner is given in shares of the figure."""
    place = {"x": x, "y": y, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    return {"text": escaped(text), "showarrow": False, "font": {"size": size}, **place}


def plotly_axis(axis: Axis) -> PlotlyDict:
    """Return an axis; 0 on a logarithmic one stands at its floor, below which nothing is drawn."""
    found: PlotlyDict = {"title": _title(axis.label)}
    if axis.limits is None:
        return found | {"type": "linear"}
    ends = [float(placed(np.asarray(end), axis.floor)) for end in axis.limits]
    if axis.log_from is not None:
        ends = [math.log10(end) for end in ends]
        found["type"] = "log"
    if axis.ticks is not None:
        values = [float(placed(np.asarray(value), axis.floor)) for value in axis.ticks]
        found |= {"tickvals": values, "ticktext": list(axis.ticks.values())}
    if axis.is_integer:
        found["dtick"] = max(1, int(ends[1] - ends[0]) // 12)
    if axis.is_signed:
        found["zeroline"] = True
    if not axis.is_training:
        before, after = (share * (ends[1] - ends[0]) or 0.5 * bool(share) for share in axis.padding)
        found["range"] = [ends[0] - before, ends[1] + after]
    return found


def colour_axis(axis: Axis) -> PlotlyDict:
    """Return a scale of colours for :func:`coloured` values."""
    low, high = axis.limits or (0.0, 1.0)
    bar: PlotlyDict = {"title": {**_title(axis.label), "side": "right"}, "thickness": 14, "outlinewidth": 0}
    if axis.is_signed:
        high = max(-low, high) or 1.0
        return {"colorscale": DIVERGING_SCALE, "cmin": -high, "cmax": high, "colorbar": bar}
    if axis.log_from is not None and axis.ticks is not None:
        low, high = (float(coloured(np.asarray(end), axis)) for end in (low, high))
        places = [float(coloured(np.asarray(value), axis)) for value in axis.ticks]
        bar |= {"tickvals": places, "ticktext": list(axis.ticks.values())}
    return {"colorscale": "Viridis", "cmin": low, "cmax": high, "colorbar": bar}


def coloured(values: np.ndarray, axis: Axis) -> np.ndarray:
    """Return what Plotly, which has no logarithmic colours, is to colour."""
    return values if axis.log_from is None else np.log10(placed(values, axis.floor))


def cells_trace(cells: Cells) -> PlotlyDict:
    """Return the cells of a heatmap that have a value."""
    shown = coloured(cells.values, cells.colours)
    is_log, margins = shown is not cells.values, cells.margins
    has_intervals = not is_log and margins is not None and bool(np.isfinite(margins).any())
    return {
        **_cell_places(cells),
        "z": shown,
        "customdata": cells.values if is_log else margins if has_intervals else None,
        "coloraxis": "coloraxis",
        "hoverongaps": False,
        "hovertemplate": f"<b>%{{{'customdata' if is_log else 'z'}:.4~g}}</b>"
        f"{' ± %{customdata:.2g} (95 % interval)' * has_intervals}<extra></extra>",
    }


def band_traces(line: Line, floor: float | None) -> dict[str, np.ndarray]:
    """Return what the traces of a line with a band show, by their role."""
    reach = np.nan_to_num(np.asarray(line.margin, float))
    ends = {"low": line.y - reach, "high": line.y + reach, "value": line.y}
    return {role: placed(values, floor) for role, values in ends.items()} | {"exact": np.asarray(line.y)}


def escaped(text: str) -> str:
    """Return text with the markup of Plotly escaped and line breaks preserved."""
    return html.escape(text, quote=False).replace("\n", "<br>")


def _line_traces(line: Line, panel: Panel, has_bands: bool) -> list[PlotlyDict]:
    """Return one trace, or three with their roles if the line has a band."""
    number = "y" if line.margin is None else "customdata"
    trace: PlotlyDict = {
        "x": line.x,
        "mode": "lines+markers" if line.marker and line.marker_size else "lines",
        "name": escaped(line.label),
        "showlegend": bool(line.label),
        "line": {"color": line.colour, "width": _WIDTH_FACTOR * line.width, "dash": _DASHES[line.dash]},
        "marker": {"color": line.colour, "size": _SIZE_FACTOR * line.marker_size},
        "hovertemplate": f"{escaped(line.description)}: <b>%{{{number}:.4~g}}</b><extra></extra>",
    }
    if line.marker == "x":
        trace["marker"]["symbol"] = "x"
    if panel.x.is_training:
        trace["text"] = [f"{step:,}" for step in line.x]
    if line.opacity < 1:
        trace["opacity"] = line.opacity
    if line.margin is None:
        return _of_run([trace | {"y": placed(np.asarray(line.y), panel.y.floor)}], line)
    at = band_traces(line, panel.y.floor)
    edge = {"x": line.x, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    traces: list[PlotlyDict] = [
        edge | {"y": at["low"], "meta": {"role": "low"}},
        edge | {"y": at["high"], "meta": {"role": "high"}, "fill": "tonexty", "fillcolor": transparent(line.colour)},
        trace | {"y": at["value"], "customdata": at["exact"], "meta": {"role": "value"}},
    ]
    return _of_run(traces if has_bands else traces[-1:], line)


def _of_run(traces: list[PlotlyDict], line: Line) -> list[PlotlyDict]:
    """Label the traces of a line with the number of their run, or of their seeds."""
    if line.run is not None:
        numbers: PlotlyDict = {"run": line.run} | ({"seeds": list(line.seeds)} if line.seeds else {})
        for one in traces:
            # a click in the legend also toggles the band
            one |= {"legendgroup": escaped(line.group or line.label), "meta": {**one.get("meta", {}), **numbers}}
    return traces


def _heatmap(panel: Panel, cells: Cells, height: int) -> PlotlyDict:
    trace = cells_trace(cells)
    columns, rows = (axis.label.partition(" (")[0] for axis in (panel.x, panel.y))
    where = f"{rows} %{{y}}, {columns} %{{x}}<br>"
    traces = [trace | {"hovertemplate": where + trace["hovertemplate"]}]
    if cells.reasons is not None:
        traces.append(_cell_places(cells) | _without_value(cells.reasons, where))
    on_cells = [mark for mark in panel.marks if mark.y is not None]
    x, y = [cells.columns[int(mark.x)] for mark in on_cells], [cells.rows[int(mark.y or 0)] for mark in on_cells]
    traces += _mark_traces(on_cells, x, y)
    named = {"type": "category", "showgrid": False}
    layout = {
        "height": height,
        "coloraxis": colour_axis(cells.colours),
        "showlegend": False,
        "xaxis": {**named, "title": {"text": panel.x.label}, "nticks": 12},
        "yaxis": {**named, "title": {"text": panel.y.label}, "nticks": 16},
    }
    return {"data": traces, "layout": layout}


def _cell_places(cells: Cells) -> PlotlyDict:
    return {"type": "heatmap", "x": cells.columns, "y": cells.rows}


def _without_value(reasons: Sequence[Sequence[str]], where: str) -> PlotlyDict:
    """Return a heatmap of the cells without a value, with the reasons as hover text."""
    return {
        "z": [[1 if reason else None for reason in of_layer] for of_layer in reasons],
        "text": [[escaped(reason) for reason in of_layer] for of_layer in reasons],
        "colorscale": [[0, EMPTY], [1, EMPTY]],
        "showscale": False,
        "hoverongaps": False,
        "hovertemplate": f"{where}no value: %{{text}}<extra></extra>",
    }


def _mark_traces(marks: Sequence[Mark], x: Sequence[object], y: Sequence[object]) -> list[PlotlyDict]:
    if not marks:
        return []
    look = {"symbol": "triangle-up", "color": ALERT_COLOUR, "size": 11, "line": {"color": "#ffffff", "width": 1.5}}
    return [
        {
            "x": x,
            "y": y,
            "text": [escaped(mark.text) for mark in marks],
            "mode": "markers",
            "name": "alerts",
            "marker": look,
            "cliponaxis": False,
            "hovertemplate": "%{text}<extra>alert</extra>",
            "meta": {"role": "alerts"},
        }
    ]


def _title(label: str) -> PlotlyDict:
    """Return the title of an axis, wrapped."""
    lines = textwrap.wrap(escaped(label), _LABEL_WIDTH, break_on_hyphens=False)
    return {"text": "<br>".join(lines), "font": {"size": 12}}

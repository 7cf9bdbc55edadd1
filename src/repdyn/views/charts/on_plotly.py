"""Charts as plain dictionaries of Plotly, with a light and a dark theme.

Used by the page, which stores arrays used twice once, and in notebooks.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from repdyn.views.charts.description import Axis, Cells, Line, Mark, Panel, placed
from repdyn.views.tables.style import ALERT_COLOUR, ALL_COLOUR, DIVERGING, shades

VALUE = ALL_COLOUR
"""Colour of a line of values."""
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def template(*, text: str, grid: str, paper: str) -> dict[str, Any]:
    """Return the Plotly template of a theme with these colours of text, grid lines and
    background.
    """
    axis = {
        "gridcolor": grid,
        "linecolor": grid,
        "zerolinecolor": text,
        "zeroline": False,
        "automargin": True,
    }
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
PlotlyDict: TypeAlias = dict[str, Any]
"""A figure of Plotly, or a part of one."""

POINTED = ".4~g"
"""How a value is written that a reader points at, and the ends of its interval: with a digit more
than in texts, in the format of Plotly.
"""
HEIGHT = 380
DIVERGING_SCALE = [
    [place / 10, colour] for place, colour in enumerate(shades(DIVERGING, 11, 0.0, 1.0))
]
"""Colours of signed values, 0 in the middle."""
_LABEL_WIDTH = 40
"""Characters of a line of an axis's label."""
_ROW_HEIGHT = 96
_TICKS_HEIGHT = 18
_ROW_GAP = 24
_ROW_MARGINS = 76
"""Of panels below each other, in pixels."""
_BARE = {"showticklabels": False, "ticks": "", "showgrid": False, "fixedrange": True}
_WIDTH_FACTOR = 1.45
_SIZE_FACTOR = 1.7
"""From points of matplotlib to pixels."""
_DASHES = {"-": "solid", "--": "dash", ":": "dot"}
_SYMBOLS = {"x": "x", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down"}
_LEGEND_ABOVE = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"}


def plotly_panel(panel: Panel, *, height: int = HEIGHT, has_bands: bool = True) -> PlotlyDict:
    """Return data and layout of a panel of lines or of cells; many lines have no bands, which would
    hide each other.

    The axis of a training is left to the caller, who may offer several. A line has its intervals,
    from which :func:`with_bands` and the page make its band where it is drawn.
    """
    if panel.cells is not None:
        return _heatmap(panel, panel.cells, height)
    traces = [_line_trace(line, panel, has_bands) for line in panel.lines]
    layout: PlotlyDict = {
        "height": height,
        "xaxis": {} if panel.x.is_training else plotly_axis(panel.x),
        "yaxis": plotly_axis(panel.y),
        "showlegend": bool(panel.legend),
        "legend": _LEGEND_ABOVE
        if panel.legend == "above"
        else {"font": {"size": 11}, "traceorder": "normal"},
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
    layout: PlotlyDict = {
        "annotations": [],
        "showlegend": False,
        "hovermode": "x",
        "hoversubplots": "axis",
    }
    traces: list[PlotlyDict] = []
    top = float(whole)
    for number, (panel, height) in enumerate(zip(panels, heights, strict=True), 1):
        name = str(number) if number > 1 else ""
        plot = plotly_panel(panel)
        traces += [trace | {"yaxis": f"y{name}"} for trace in plot["data"]]
        layout[f"yaxis{name}"] = {
            **plot["layout"]["yaxis"],
            # rounding may lead out of [0, 1], which Plotly refuses
            "domain": [max(0.0, (top - height) / whole), min(1.0, top / whole)],
            "anchor": "x",
            "nticks": 4,
            **({} if panel.lines else _BARE),
        }
        layout["annotations"].append(heading(panel.title, 0.0, min(1.0, top / whole)))
        layout["xaxis"] = {"anchor": f"y{name}"}
        top -= height + _ROW_GAP
    return {
        "data": traces,
        "layout": {**layout, "height": whole + _ROW_MARGINS, "margin": {"t": 26, "b": 50}},
    }


def heading(text: str, x: float, y: float, size: int = 12) -> PlotlyDict:
    """Return a heading above a panel, whose upper left corner is given in shares of the figure."""
    return {
        "text": escaped(text),
        "showarrow": False,
        "font": {"size": size},
        "x": x,
        "y": y,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
    }


def plotly_axis(axis: Axis) -> PlotlyDict:
    """Return an axis; 0 on a logarithmic one stands at its floor, below which nothing is drawn."""
    drawn: PlotlyDict = {"title": _title(axis.label)}
    if axis.limits is None:
        return drawn | {"type": "linear"}
    ends = [float(placed(np.asarray(end), axis.floor)) for end in axis.limits]
    if axis.log_from is not None:
        ends = [math.log10(end) for end in ends]
        drawn["type"] = "log"
    if axis.ticks is not None:
        values = [float(placed(np.asarray(value), axis.floor)) for value in axis.ticks]
        drawn |= {"tickvals": values, "ticktext": list(axis.ticks.values())}
    if axis.is_integer:
        drawn["dtick"] = max(1, int(ends[1] - ends[0]) // 12)
    if axis.is_signed:
        drawn["zeroline"] = True
    if not axis.is_training:
        span = ends[1] - ends[0]
        # an axis whose ends are equal has half a unit of room beside them
        before, after = (share * span if span or not share else 0.5 for share in axis.padding)
        drawn["range"] = [ends[0] - before, ends[1] + after]
    return drawn


def colour_axis(axis: Axis) -> PlotlyDict:
    """Return a scale of colours for :func:`coloured` values."""
    low, high = axis.limits or (0.0, 1.0)
    bar: PlotlyDict = {
        "title": {**_title(axis.label), "side": "right"},
        "thickness": 14,
        "outlinewidth": 0,
    }
    if axis.is_signed:
        # equal on both sides, so that 0 has the colour of the middle
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
    is_log, band = shown is not cells.values, cells.band
    customdata = cells.values if is_log else None
    interval = ""
    if not is_log and band is not None and bool(np.isfinite(band[0]).any()):
        customdata = np.stack(band, axis=-1)
        low, high = (f"%{{customdata[{end}]:{POINTED}}}" for end in (0, 1))
        interval = f" (95% interval: {low} to {high})"
    return {
        "type": "heatmap",
        "x": cells.columns,
        "y": cells.rows,
        "z": shown,
        "customdata": customdata,
        "coloraxis": "coloraxis",
        "hoverongaps": False,
        "hovertemplate": f"<b>%{{{'customdata' if is_log else 'z'}:{POINTED}}}</b>"
        f"{interval}<extra></extra>",
    }


def with_bands(traces: Sequence[PlotlyDict]) -> list[PlotlyDict]:
    """Return traces, each with intervals above its band; the page does the same in drawing.js."""
    drawn = []
    for trace in traces:
        if "low" in (meta := dict(trace.get("meta", {}))):
            outline = band_outline(trace["x"], meta.pop("low"), meta.pop("high"), meta.pop("floor"))
            filled = {
                "fill": "toself",
                "fillcolor": trace["line"]["color"],
                "opacity": meta.pop("opacity"),
            }
            look = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
            kept = {name: trace[name] for name in ("legendgroup", "yaxis") if name in trace}
            drawn.append({**outline, **filled, **look, **kept})
        drawn.append({**trace, "meta": meta})
    return drawn


def band_outline(
    x: Sequence[float] | np.ndarray, low: np.ndarray, high: np.ndarray, floor: float | None
) -> dict[str, np.ndarray]:
    """Return x and y of one closed area for each run of points that have an interval, NaN between
    two.

    >>> band_outline([0, 1, 2], np.array([0.5, np.nan, 2.0]), np.array([1.5, np.nan, 4.0]),
    ...     None)["y"].tolist()
    [1.5, 0.5, nan, 4.0, 2.0, nan]
    """
    x = np.asarray(x, float)
    end = [np.nan]
    intervals = np.ma.masked_invalid(low + high)
    low, high = (placed(edge, floor) for edge in (low, high))
    across = [np.empty(0)]
    up = [np.empty(0)]
    for run in np.ma.clump_unmasked(intervals):
        across += [x[run], x[run][::-1], end]
        up += [high[run], low[run][::-1], end]
    return {"x": np.concatenate(across), "y": np.concatenate(up)}


def escaped(text: str) -> str:
    """Return text with the markup of Plotly escaped and line breaks preserved."""
    return html.escape(text, quote=False).replace("\n", "<br>")


def _line_trace(line: Line, panel: Panel, has_bands: bool) -> PlotlyDict:
    """Return a line; one that may have a band has its exact values, and its intervals unless
    bands are left out.
    """
    number = f"%{{{'y' if line.band is None else 'customdata'}:{POINTED}}}"
    trace: PlotlyDict = {
        "x": line.x,
        "y": placed(np.asarray(line.y), panel.y.floor),
        "mode": "lines+markers" if line.marker and line.marker_size else "lines",
        "name": escaped(line.label),
        "showlegend": bool(line.label),
        "line": {
            "color": line.colour,
            "width": _WIDTH_FACTOR * line.width,
            "dash": _DASHES[line.dash],
        },
        "marker": {"color": line.colour, "size": _SIZE_FACTOR * line.marker_size},
        "hovertemplate": f"{escaped(line.description)}: <b>{number}</b><extra></extra>",
    }
    if line.marker in _SYMBOLS:
        trace["marker"]["symbol"] = _SYMBOLS[line.marker]
    if panel.x.is_training:
        trace["text"] = [f"{step:,}" for step in line.x]
    if line.opacity < 1:
        trace["opacity"] = line.opacity
    if line.band is not None:
        trace["customdata"] = np.asarray(line.y, float)
    if line.run is not None:
        # a click in the legend also toggles the band
        trace["legendgroup"] = escaped(line.group or line.label)
    if meta := _line_meta(line, panel.y.floor, has_bands):
        trace["meta"] = meta
    return trace


def _line_meta(line: Line, floor: float | None, has_bands: bool) -> PlotlyDict:
    """Return what the page knows of a line: its intervals, its run, and the seeds of its mean."""
    meta: PlotlyDict = {}
    if line.band is not None:
        meta["role"] = "value"
        if has_bands:
            low, high = (np.asarray(ends, float) for ends in line.band)
            meta |= {"low": low, "high": high, "floor": floor, "opacity": line.band_opacity}
    if line.run is not None:
        meta["run"] = line.run
        if line.seeds:
            meta["seeds"] = list(line.seeds)
    return meta | dict(line.meta)


def _heatmap(panel: Panel, cells: Cells, height: int) -> PlotlyDict:
    trace = cells_trace(cells)
    columns, rows = (axis.label.partition(" (")[0] for axis in (panel.x, panel.y))
    where = f"{rows} %{{y}}, {columns} %{{x}}<br>"
    traces = [trace | {"hovertemplate": where + trace["hovertemplate"]}]
    if cells.reasons is not None:
        traces.append(_missing_trace(cells, cells.reasons, where))
    on_cells = [mark for mark in panel.marks if mark.y is not None]
    x = [cells.columns[int(mark.x)] for mark in on_cells]
    y = [cells.rows[int(mark.y or 0)] for mark in on_cells]
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


def _missing_trace(cells: Cells, reasons: Sequence[Sequence[str]], where: str) -> PlotlyDict:
    """Return the cells without a value, with the reasons as hover text."""
    # few reasons stand in many cells
    texts = {reason: escaped(reason) for of_layer in reasons for reason in {*of_layer}}
    return {
        "type": "heatmap",
        "x": cells.columns,
        "y": cells.rows,
        "z": [[1 if reason else None for reason in of_layer] for of_layer in reasons],
        "text": [[texts[reason] for reason in of_layer] for of_layer in reasons],
        "colorscale": [[0, EMPTY], [1, EMPTY]],
        "showscale": False,
        "hoverongaps": False,
        "hovertemplate": f"{where}no value: %{{text}}<extra></extra>",
    }


def _mark_traces(
    marks: Sequence[Mark], x: Sequence[object], y: Sequence[object]
) -> list[PlotlyDict]:
    if not marks:
        return []
    look = {
        "symbol": "triangle-up",
        "color": ALERT_COLOUR,
        "size": 11,
        "line": {"color": "#ffffff", "width": 1.5},
    }
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

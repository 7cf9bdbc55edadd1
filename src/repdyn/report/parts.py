"""The pictures of one run as Plotly's plain dictionaries, which cost nothing to make: values are arrays, shared.

The page draws these, and :mod:`repdyn.report.figures` makes figures of them. What changes while looking, the step of a
profile and the axis of a course, says so in the ``meta`` of its trace.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import numpy as np

from repdyn.alerts import Alert
from repdyn.figures import run as figures
from repdyn.report.axes import Part, colour_axis, placed, value_axis
from repdyn.report.entries import Entry
from repdyn.report.series import MetricSeries
from repdyn.report.themes import EMPTY, LOSS, VALUE, step_colours, transparent
from repdyn.tables.families import is_between
from repdyn.tables.frames import select_steps
from repdyn.tables.style import ALERT_COLOUR, metric_title, subset_title

TRAIL = 7
"""Steps that a profile shows beside the chosen one."""
HEIGHT = 380
_MAX_TOLD = 3


def title(course: MetricSeries) -> str:
    return f"{metric_title(course.metric)}, {subset_title(course.subset)}"


def heatmap_part(entry: Entry, course: MetricSeries) -> Part:
    """A metric by layer (upwards) and measured step (to the right, equally spaced)."""
    axis, shown = colour_axis(course.metric, course.values)
    steps, layers = [f"{step:,}" for step in course.steps], [str(layer) for layer in course.layers]
    cells: Part = {"type": "heatmap", "x": steps, "y": layers}
    number, beside = ("z", "") if shown is course.values else ("customdata", "")
    if shown is course.values and np.isfinite(course.margins).any():
        beside = " ± %{customdata:.2g} (95 % interval)"
    traces = [
        cells
        | {
            "z": shown,
            "customdata": course.margins if shown is course.values else course.values,
            "coloraxis": "coloraxis",
            "hoverongaps": False,
            "hovertemplate": f"layer %{{y}}, step %{{x}}<br><b>%{{{number}:.4~g}}</b>{beside}<extra></extra>",
        }
    ]
    if course.reasons is not None:
        traces.append(cells | _without_value(course.reasons))
    traces += _marks(entry.alerts, course)
    layout = {
        "height": HEIGHT,
        "coloraxis": axis,
        "showlegend": False,
        "xaxis": {"type": "category", "title": {"text": "step (each measured one)"}, "nticks": 12, "showgrid": False},
        "yaxis": {"type": "category", "title": {"text": _layer_title(course)}, "nticks": 16, "showgrid": False},
        "shapes": [_frame_of_step(len(course.steps) - 1)],
    }
    return {"data": traces, "layout": layout}


def profile_part(entry: Entry, course: MetricSeries) -> Part:
    """A metric over depth at the last step, between faint lines of a few others."""
    axis, floor = value_axis(course.metric, course.values, course.margins)
    trail = [] if entry.finished else select_steps(course.steps, TRAIL)
    lines: list[Part] = []
    for step, colour in zip(trail, step_colours(len(trail)), strict=True):
        at = course.steps.index(step)
        lines.append(
            {
                "x": course.places,
                "y": placed(course.values[:, at], floor),
                "name": f"{step:,}",
                "mode": "lines",
                "line": {"color": colour, "width": 1.4},
                "hovertemplate": f"layer %{{x}}, step {step:,}: %{{y:.4~g}}<extra></extra>",
            }
        )
    last = at_step(course, len(course.steps) - 1, floor)
    told = "layer %{x}: <b>%{customdata:.4~g}</b><extra></extra>"
    layout = {
        "height": HEIGHT,
        "xaxis": {"title": {"text": _layer_title(course)}, "dtick": _every(course.layers), "range": _reach(course)},
        "yaxis": axis,
        "showlegend": bool(trail),
        "legend": {"title": {"text": "step"}, "traceorder": "reversed"},
    }
    return {"data": [*lines, *band_and_line(course.places, last, VALUE, told, "lines+markers")], "layout": layout}


def at_step(course: MetricSeries, place: int, floor: float | None) -> dict[str, np.ndarray]:
    """What the traces of a profile show at a step, by the role that stands in their ``meta``."""
    values, margins = course.values[:, place], np.nan_to_num(course.margins[:, place])
    bands = {role: placed(values + sign * margins, floor) for role, sign in (("low", -1), ("high", 1))}
    return {**bands, "value": placed(values, floor), "exact": values}


def means_part(entry: Entry, course: MetricSeries) -> Part:
    """A metric averaged over layers against the course of training, with the loss."""
    axis, floor = value_axis(course.metric, course.mean, course.mean_margin)
    bands = {
        "low": placed(course.mean - course.mean_margin, floor),
        "high": placed(course.mean + course.mean_margin, floor),
        "value": placed(course.mean, floor),
        "exact": course.mean,
    }
    told = "step %{text}: <b>%{customdata:.4~g}</b><extra></extra>"
    drawn = band_and_line(course.steps, bands, VALUE, told, "lines+markers", "mean over layers")
    drawn[-1]["text"] = [f"{step:,}" for step in course.steps]
    traces = [*drawn, *_loss(entry), *_marked_means(entry.alerts, course, floor), *_marked_loss(entry)]
    for trace in traces:
        trace["meta"] = {**trace.get("meta", {}), "along": "course"}
    layout = {
        "height": HEIGHT - 40,
        "xaxis": {},
        "yaxis": axis,
        "yaxis2": {
            "title": {"text": f"{figures.LOSS} (dashed)", "font": {"color": LOSS}},
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            # else it takes over the places of the other axis's ticks
            "tickmode": "auto",
            "tickfont": {"color": LOSS},
        },
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        "hovermode": "closest",
    }
    return {"data": traces, "layout": layout}


def heads_part(course: MetricSeries) -> Part | None:
    """A metric by attention head (to the right) and layer (upwards) at the last step; None where it has no heads."""
    if course.by_head is None:
        return None
    axis, shown = colour_axis(course.metric, course.by_head)
    cells = {
        "type": "heatmap",
        "x": [str(head) for head in course.heads],
        "y": [str(layer) for layer in course.layers],
        "z": shown[-1],
        "coloraxis": "coloraxis",
        "hovertemplate": "layer %{y}, head %{x}<br><b>%{z:.4~g}</b><extra></extra>",
        "meta": {"role": "heads"},
    }
    layout = {
        "height": HEIGHT - 40,
        "coloraxis": axis,
        "xaxis": {"type": "category", "title": {"text": "attention head"}, "showgrid": False},
        "yaxis": {"type": "category", "title": {"text": "layer"}, "showgrid": False},
    }
    return {"data": [cells], "layout": layout}


def band_and_line(
    x: Sequence[float] | np.ndarray, at: dict[str, np.ndarray], colour: str, told: str, mode: str, name: str = ""
) -> list[Part]:
    """A line with its band: three traces, their roles in their ``meta``."""
    edge: Part = {"x": x, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    return [
        edge | {"y": at["low"], "meta": {"role": "low"}},
        edge | {"y": at["high"], "meta": {"role": "high"}, "fill": "tonexty", "fillcolor": transparent(colour)},
        {
            "x": x,
            "y": at["value"],
            "customdata": at["exact"],
            "mode": mode,
            "name": name,
            "showlegend": bool(name),
            "line": {"color": colour, "width": 2.6},
            "marker": {"color": colour, "size": 6},
            "hovertemplate": told,
            "meta": {"role": "value"},
        },
    ]


def _loss(entry: Entry) -> list[Part]:
    loss = entry.loss
    if loss.empty:
        return []
    return [
        {
            "x": [int(step) for step in loss.index],
            "y": loss.to_numpy(np.float32),
            "text": [f"{step:,}" for step in loss.index],
            "name": figures.LOSS,
            "yaxis": "y2",
            "mode": "lines+markers",
            "line": {"color": LOSS, "width": 1.6, "dash": "dash"},
            "marker": {"color": LOSS, "size": 5, "symbol": "x"},
            "hovertemplate": "step %{text}: loss %{y:.4~g}<extra></extra>",
        }
    ]


def _marks(alerts: Iterable[Alert], course: MetricSeries) -> list[Part]:
    """Marks on the cells of a heatmap."""
    of_cells = [alert for alert in _of_course(alerts, course) if alert.layer in course.layers]
    x, y = [f"{alert.step:,}" for alert in of_cells], [str(alert.layer) for alert in of_cells]
    return _alert_trace(x, y, [_escaped(alert.message) for alert in of_cells])


def _marked_means(alerts: Iterable[Alert], course: MetricSeries, floor: float | None) -> list[Part]:
    """Marks on the mean over layers at the steps of alerts."""
    told: dict[int, list[str]] = {}
    for alert in _of_course(alerts, course):
        told.setdefault(alert.step, []).append(_escaped(alert.message))
    means = dict(zip(course.steps, placed(course.mean, floor).tolist(), strict=True))
    steps = [step for step in told if np.isfinite(means.get(step, np.nan))]
    return _alert_trace(steps, [means[step] for step in steps], [_some(told[step]) for step in steps])


def _marked_loss(entry: Entry) -> list[Part]:
    drawn = entry.loss.loc[np.isfinite(entry.loss.to_numpy(float))]
    of_loss = [alert for alert in entry.alerts if alert.metric == figures.LOSS and alert.step in drawn.index]
    steps, told = [alert.step for alert in of_loss], [_escaped(alert.message) for alert in of_loss]
    return [{**trace, "yaxis": "y2"} for trace in _alert_trace(steps, drawn[steps].tolist(), told)]


def _alert_trace(x: Sequence[object], y: Sequence[object], told: Sequence[str]) -> list[Part]:
    if not told:
        return []
    return [
        {
            "x": x,
            "y": y,
            "text": told,
            "mode": "markers",
            "name": "alerts",
            "marker": {
                "symbol": "triangle-up",
                "color": ALERT_COLOUR,
                "size": 11,
                "line": {"color": "#ffffff", "width": 1.5},
            },
            "hovertemplate": "%{text}<extra>alert</extra>",
            "meta": {"role": "alerts"},
        }
    ]


def _of_course(alerts: Iterable[Alert], course: MetricSeries) -> list[Alert]:
    return [alert for alert in alerts if (alert.metric, alert.subset) == course.key and alert.step in course.steps]


def _some(messages: Sequence[str]) -> str:
    more = [f"and {len(messages) - _MAX_TOLD} more"] if len(messages) > _MAX_TOLD else []
    return "<br>".join([*messages[:_MAX_TOLD], *more])


def _without_value(reasons: Sequence[Sequence[str]]) -> Part:
    """Cells that say why they have no value, drawn where the others leave a gap."""
    return {
        "z": [[1 if reason else None for reason in of_layer] for of_layer in reasons],
        "text": [[_escaped(reason) for reason in of_layer] for of_layer in reasons],
        "colorscale": [[0, EMPTY], [1, EMPTY]],
        "showscale": False,
        "hoverongaps": False,
        "hovertemplate": "layer %{y}, step %{x}<br>no value: %{text}<extra></extra>",
    }


def _frame_of_step(place: int) -> Part:
    """Around the column of the chosen step; the page moves it."""
    lines = {"color": LOSS, "width": 2}
    return {"type": "rect", "yref": "paper", "x0": place - 0.5, "x1": place + 0.5, "y0": 0, "y1": 1, "line": lines}


def _layer_title(course: MetricSeries) -> str:
    return f"layer (0 = embedding output{', each to the next' * is_between(course.metric)})"


def _every(layers: Sequence[int]) -> int:
    return max(1, (layers[-1] - layers[0]) // 12)


def _reach(course: MetricSeries) -> list[float]:
    first, last = float(course.places[0]), float(course.places[-1])
    margin = 0.04 * (last - first) or 0.5
    return [first - margin, last + margin]


def _escaped(text: str) -> str:
    """What others wrote, as text that Plotly does not take for markup."""
    return html.escape(text, quote=False)

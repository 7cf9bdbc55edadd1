"""What the panels of a metric show, in a figure and in the page alike: lines, cells, marks, captions and colours."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from repdyn.alerts import Alert
from repdyn.figures.charts import Axis, Cells, Line, Mark, Panel, layer_label, value_axis
from repdyn.store.schema import FINISHED, LOSS
from repdyn.tables.designs import brief_sampling
from repdyn.tables.frames import stack_of
from repdyn.tables.runs import Key, MeasuredRun
from repdyn.tables.seeds import SeedSeries
from repdyn.tables.series import MetricSeries
from repdyn.tables.style import KIND_COLOURS, LOSS_COLOUR, SEQUENTIAL, shades

MARKED = "marked: alerts"
"""Note on marks in a caption."""
SEED_LOOK: Mapping[str, Any] = {"width": 0.7, "marker": "", "label": "", "description": "a seed", "opacity": 0.55}
"""Look of a single seed, where it differs from that of the mean over seeds."""
_MAX_MESSAGES = 3
_MAX_MARKERS = 40
"""Largest number of points of a line with a marker each."""
_MARKERS = "os^DvPX*<>"


def profile_lines(
    series: MetricSeries, colours: Mapping[int, str], *, is_finished: bool = False, **look: Any
) -> list[Line]:
    """Return a metric over depth, one line for each of the steps that have a colour and were measured."""
    lines = []
    for step in (step for step in colours if step in series.steps):
        y, margin = series.at(step)
        label, description = FINISHED if is_finished else f"{step:,}", f"layer %{{x}}, step {step:,}"
        named = {"label": label, "description": description, "marker_size": marker_size(series.layers, 3.5)}
        lines.append(Line(**{"x": series.places, "y": y, "margin": margin, "colour": colours[step], **named, **look}))
    return lines


def end_lines(series: MetricSeries, **look: Any) -> list[Line]:
    """Return a metric over relative depth at its last step; of seeds above a thin line for each of them."""
    end = Line(x=series.depths, y=series.values[:, -1], margin=series.margins[:, -1], **look)
    seeds = series.by_seed[:, :, -1] if isinstance(series, SeedSeries) else ()
    return [*(Line(x=end.x, y=values, **{**look, **SEED_LOOK}) for values in seeds), end]


def mean_lines(series: MetricSeries, **look: Any) -> list[Line]:
    """Return a metric averaged over layers against step; of seeds above a thin line for each of them."""
    means = series.layer_mean
    steps = means.mean.index.tolist()
    data = {"x": steps, "y": means.mean.to_numpy(float), "margin": means.margin.to_numpy(float)}
    line = Line(**{**data, "marker_size": marker_size(steps, 3.5), "description": "step %{text}", **look})
    seeds = series.means_by_seed.to_numpy(float) if isinstance(series, SeedSeries) else ()
    return [*(Line(x=steps, y=values, **{**look, **SEED_LOOK}) for values in seeds), line]


def loss_line(losses: pd.Series, name: str = LOSS, **look: Any) -> Line | None:
    """Return a loss against step; None if none is stored."""
    if losses.empty:
        return None
    default = {"colour": LOSS_COLOUR, "width": 1.5, "dash": "--", "marker": "x", "marker_size": 3}
    text = {"label": name, "description": f"{name}, step %{{text}}"}
    return Line(x=losses.index.tolist(), y=losses.to_numpy(float), **{**text, **default, **look})


def marker_size(points: Sequence[Any], size: float) -> float:
    """Return the size of the markers of a line: 0 on a line of many points."""
    return size if len(points) <= _MAX_MARKERS else 0


def alerts_on(alerts: Iterable[Alert], metric: str, subset: str | None = None) -> list[Alert]:
    """Return the alerts on a metric, on every token subset unless one is named."""
    return [each for each in alerts if each.metric == metric and subset in (None, each.subset or "all")]


def marks_on(alerts: Iterable[Alert], line: Line | None) -> list[Mark]:
    """Return a mark for each step with an alert, at the value of a line against step where it has one."""
    values = {} if line is None else dict(zip(line.x, np.asarray(line.y, float).tolist(), strict=True))
    messages: dict[int, list[str]] = {}
    for alert in alerts:
        messages.setdefault(alert.step, []).append(alert.message)
    marks = []
    for step, texts in messages.items():
        y, left = values.get(step, math.nan), len(texts) - _MAX_MESSAGES
        more = [f"and {left} more"] if left > 0 else []
        marks.append(Mark(x=step, y=y if math.isfinite(y) else None, text="\n".join([*texts[:_MAX_MESSAGES], *more])))
    return marks


def heatmap_panel(series: MetricSeries, alerts: Iterable[Alert] = (), steps: Sequence[int] | None = None) -> Panel:
    """Return a metric by layer (upwards) and measured step (to the right, equally spaced), with its alerts marked.

    Some of the steps may be chosen; alerts at other ones are left out.
    """
    steps = series.steps if steps is None else steps
    chosen = [series.steps.index(step) for step in steps]
    are_all = len(steps) == len(series.steps)
    selection = "measured" if are_all else f"{len(steps)} of {len(series.steps)} measured, log-spaced"
    columns = {step: number for number, step in enumerate(steps)}
    rows = {layer: number for number, layer in enumerate(series.layers)}
    marks = [
        Mark(x=columns[alert.step], y=None if alert.layer is None else rows[alert.layer], text=alert.message)
        for alert in alerts_on(alerts, series.metric, series.subset)
        if alert.step in columns and (alert.layer is None or alert.layer in rows)
    ]
    values = series.values[:, chosen]
    cells = Cells(
        values=values,
        rows=[str(layer) for layer in series.layers],
        columns=[f"{step:,}" for step in steps],
        colours=value_axis(series.metric, values),
        margins=series.margins[:, chosen],
        reasons=series.reasons,
    )
    return Panel(
        x=Axis(label=f"step ({selection})"), y=Axis(label=layer_label(series.metric)), cells=cells, marks=marks
    )


def heads_panel(
    metric: str, values: np.ndarray, layers: Iterable[int], heads: Iterable[int], all_values: np.ndarray | None = None
) -> Panel:
    """Return values of shape (n_layers, n_heads) by attention head (to the right) and layer (upwards).

    ``all_values`` are those that the colours must cover, if they are more.
    """
    cells = Cells(
        values=values,
        rows=[str(layer) for layer in layers],
        columns=[str(head) for head in heads],
        colours=value_axis(metric, values if all_values is None else all_values),
    )
    return Panel(x=Axis(label="attention head"), y=Axis(label="layer"), cells=cells)


def run_title(rows: pd.DataFrame, text: str) -> str:
    """Return a title that begins with the stack of the run's model, if it has several."""
    stack = stack_of(rows)
    return text if stack is None else f"{stack}: {text}"


def run_caption(rows: pd.DataFrame, *more: str) -> str:
    """Return the run, how many vectors its values rest on, and more, in one line."""
    return notes(f"{rows['run'].iloc[0]}, {brief_sampling(rows)}", *more)


def notes(*texts: str) -> str:
    """Join the texts that are not empty."""
    return "; ".join(filter(None, texts))


def wrapped(text: str, width: int) -> str:
    """Wrap a text into as few lines of at most ``width`` characters as hold it, of about the same length.

    >>> print(wrapped("neighbours of the same window left out", 35))
    neighbours of the
    same window left out
    """
    lines = textwrap.wrap(text, width, break_on_hyphens=False)
    for narrower in range(width - 1, 0, -1):
        even = textwrap.wrap(text, narrower, break_on_hyphens=False, break_long_words=False)
        if len(even) > len(lines) or max(map(len, even), default=0) > narrower:
            break
        lines = even
    return "\n".join(lines)


def compared(rows: pd.DataFrame) -> str:
    """Return which checkpoints are compared by metrics of two checkpoints; empty if there are none."""
    pairs = rows.loc[rows["compared_to"].notna(), ["step", "compared_to"]].drop_duplicates().sort_values("step")
    if pairs.empty:
        return ""
    steps = sorted(rows["step"].unique().tolist())
    before = dict(zip(steps[1:], steps, strict=False))
    others = [f"step {step:,} with {to:,}" for step, to in pairs.itertuples(index=False) if before.get(step, to) != to]
    if len(others) > _MAX_MESSAGES:
        others[_MAX_MESSAGES:] = [f"{len(others) - _MAX_MESSAGES} more"]
    text = "each checkpoint compared with the one measured before it"
    return f"{text}, but {', '.join(others)}" if others else text


def step_colours(number: int) -> list[str]:
    """Return colours for a number of steps, dark to light."""
    return shades(SEQUENTIAL, number, 0.0, 0.9)


def run_colours(
    runs: Sequence[MeasuredRun], between: tuple[float, float] = (0.43, 1.0), alone: float = 0.75
) -> dict[Key, str]:
    """Return a colour for each run of a comparison: a hue for each class of models, from light to dark by size,
    ``between`` two places in its colour map, or at one for the only run of its class."""
    classes: dict[tuple[bool | None, str], list[Key]] = {}
    for run in runs:
        classes.setdefault((run.causal, str(run.rows["model"].iloc[0])), []).append(run.key)
    colours: dict[Key, str] = {}
    for number, ((kind, _), keys) in enumerate(classes.items()):
        before = [of for of, _ in classes][:number].count(kind)
        colour_map = KIND_COLOURS[kind][before % len(KIND_COLOURS[kind])]
        ends = between if len(keys) > 1 else (alone, alone)
        colours |= dict(zip(keys, shades(colour_map, len(keys), *ends), strict=True))
    return colours


def run_looks(runs: Sequence[MeasuredRun]) -> dict[Key, dict[str, Any]]:
    """Return colour and marker of each run, as :class:`repdyn.figures.charts.Line` takes them."""
    colours, looks = run_colours(runs), {}
    of_kind: dict[bool | None, int] = {}
    for run in runs:
        number = of_kind[run.causal] = of_kind.get(run.causal, -1) + 1
        looks[run.key] = {"colour": colours[run.key], "marker": _MARKERS[number % len(_MARKERS)], "marker_size": 4.5}
    return looks

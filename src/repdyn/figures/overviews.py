"""Overviews of one run: a family of metrics in one picture, over depth or against step.

The panels of one quantity share their scale. Bands are 95 % intervals over probes, where these are known.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from repdyn.alerts import Alert
from repdyn.figures.alert_marks import MARKED, alerts_on, mark_steps
from repdyn.figures.drawing import entitle_run, line, lines, log_steps, scale
from repdyn.figures.panes import Pane, Trace, depth_panes, n_columns, step_panes, subsets_named
from repdyn.store.schema import FINISHED
from repdyn.tables.designs import intervals
from repdyn.tables.families import is_between, members_of, places, undefined
from repdyn.tables.frames import grid, is_finished, layer_mean, measurements, of_training, select_steps
from repdyn.tables.style import (
    FAMILIES,
    ORDERED,
    SEQUENTIAL,
    SUBSET_COLOURS,
    shades,
    short_subset_title,
    styled,
    subset_title,
)

MAX_STEPS = 8
_PANEL = (3.5, 2.35)
_LEGEND_WIDTH = 1.2
_BAND = 0.18
_MARKED = 40
"""Points of a line up to which each has a marker."""
_GAP = "0.8"
_TITLE_WIDTH, _TITLE_SIZE = 50, 9
_UNIT_WIDTH = 26


@styled
def depth_overview(frame: pd.DataFrame, family: str) -> Figure:
    """The metrics of a family over depth, a panel each.

    A line is a step, at most eight, dark to light. Where several metrics or classes of tokens share a panel a line is
    one of them at the last step, and dotted at the first.

    Args:
        frame: rows of one run.
        family: one of :data:`repdyn.tables.style.FAMILIES`.

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none; no metric of the family among them, or none
            with a value.
    """
    rows = measurements(frame)
    panes = required(depth_panes(rows, family), rows, family)
    of_family = rows.loc[rows["metric"].isin(members_of(rows, family))]
    steps = select_steps(sorted(of_family.loc[of_family["value"].notna(), "step"].unique().tolist()), MAX_STEPS)
    colours = dict(zip(steps, shades(SEQUENTIAL, len(steps), 0, 0.92), strict=True))
    several = len(steps) > 1 and any(len(pane.traces) == 1 for pane in panes)
    figure, panels = board(panes, "layer", beside=_LEGEND_WIDTH * several, beside_each=_LEGEND_WIDTH)
    shown: dict[int, np.ndarray] = {}
    last = last_place(of_family)
    for number, (panel, pane) in enumerate(zip(panels, panes, strict=True)):
        one = len(pane.traces) == 1
        shown[number] = _by_step(panel, of_family, pane, colours) if one else _by_trace(panel, of_family, pane)
        over_depth(panel, last)
    scale_alike(panels, panes, shown)
    if several:
        handles = [Line2D([], [], color=colours[step], label=f"{step:,}", marker="o", markersize=3.5) for step in steps]
        figure.legend(handles=handles[::-1], title="step", loc="outside right center")
    together = len(steps) > 1 and any(len(pane.traces) > 1 for pane in panes)
    both = f"named lines: at step {steps[-1]:,}, dotted at step {steps[0]:,}" if together else ""
    notes = (both, _about_places(panes), about_tokens(panes), compared(of_family), intervals(of_family))
    when = "" if len(steps) > 1 else f", {FINISHED}" if is_finished(rows) else f", at step {steps[0]:,}"
    entitle_run(figure, of_family, f"{FAMILIES[family]} over depth{when}", "; ".join(filter(None, notes)))
    return figure


@styled
def steps_overview(frame: pd.DataFrame, family: str, alerts: Sequence[Alert] = ()) -> Figure:
    """The metrics of a family averaged over layers against step, a panel each.

    The step axis is logarithmic beyond 1 and linear below, so that step 0 shows. The means are those of
    :func:`repdyn.tables.frames.layer_mean`; one over fewer layers than were measured says so.

    Args:
        frame: rows of one run.
        family: one of :data:`repdyn.tables.style.FAMILIES`.
        alerts: of the run; the steps of those on what a panel shows are marked in it.

    Raises:
        ValueError: as :func:`depth_overview`; a finished model, which has no steps.
    """
    rows = of_training(frame, "depth_overview")
    panes = required(step_panes(rows, family), rows, family)
    of_family = rows.loc[rows["metric"].isin(members_of(rows, family))]
    figure, panels = board(panes, "step", beside_each=_LEGEND_WIDTH)
    shown: dict[int, np.ndarray] = {}
    for number, (panel, pane) in enumerate(zip(panels, panes, strict=True)):
        curves = list(_courses(of_family, pane))
        draw_traces(panel, pane, curves)
        if len(curves) == 1:
            fewer = curves[0][0].label.removeprefix(pane.traces[0].label)
            panel.set_title(panel.get_title(loc="left") + fewer, loc="left", fontsize=_TITLE_SIZE)
        shown[number] = np.concatenate([values.to_numpy(float) for _, values, _ in curves])
        lowest = bool(panel.get_xlabel())
        log_steps(panel, sorted(of_family["step"].unique()))
        panel.set_xlabel(panel.get_xlabel() if lowest else "")
        raised = [alert for trace in pane.traces for alert in alerts_on(alerts, trace.metric, trace.subset)]
        mark_steps(panel, sorted({alert.step for alert in raised}))
    scale_alike(panels, panes, shown)
    marked = any(alert.metric in set(of_family["metric"]) for alert in alerts)
    notes = (about_tokens(panes), compared(of_family), intervals(of_family), MARKED * marked)
    text = f"{FAMILIES[family]}: means over layers during training"
    entitle_run(figure, of_family, text, "; ".join(filter(None, notes)))
    return figure


def required(panes: list[Pane], rows: pd.DataFrame, family: str) -> list[Pane]:
    """The panes, of which there must be one."""
    if not panes:
        reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in undefined(rows).items())
        raise ValueError(f"expected a value of the family {family!r} at some layer and step, got none; {reasons}")
    return panes


def board(
    panes: Sequence[Pane], label: str, *, beside: float = 0.0, beside_each: float = 0.0
) -> tuple[Figure, list[Axes]]:
    """A figure with an empty panel for each pane, named.

    Args:
        panes: what the panels will show.
        label: of the lowest panels' x axes.
        beside: inches to the right, for a legend of all.
        beside_each: inches to the right of each column with a panel of several lines, for legends of their own.
    """
    columns, several = n_columns(panes), len(subsets_named(panes)) > 1
    n_rows = -(-len(panes) // columns)
    named = {number % columns for number, pane in enumerate(panes) if len(pane.traces) > 1}
    width = columns * _PANEL[0] + len(named) * beside_each + beside
    figure = Figure(figsize=(max(7.2, width), 1.1 + n_rows * _PANEL[1]))
    panels = figure.subplots(n_rows, columns, squeeze=False).ravel().tolist()
    for number, (panel, pane) in enumerate(zip(panels, panes, strict=False)):
        title = textwrap.fill(pane.title, _TITLE_WIDTH, break_on_hyphens=False)
        tokens = f"\n{pane.tokens}" if several and pane.tokens else ""
        panel.set_title(title + tokens, loc="left", fontsize=_TITLE_SIZE)
        panel.set_ylabel("\n".join(textwrap.wrap(pane.unit, _UNIT_WIDTH)), fontsize=9)
        panel.tick_params(labelsize=8)
        panel.set_xlabel(label if number + columns >= len(panes) else "")
    for panel in panels[len(panes) :]:
        panel.remove()
    return figure, panels[: len(panes)]


def last_place(rows: pd.DataFrame) -> int:
    """The last layer among the rows, that after a value between two included."""
    cells = rows[["metric", "layer"]].drop_duplicates()
    return max(layer + is_between(metric) for metric, layer in cells.itertuples(index=False))


def over_depth(panel: Axes, last: int) -> None:
    """An axis of layers, up to the last, that is the same for metrics at and between them."""
    panel.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    margin = 0.04 * max(1, last)
    panel.set_xlim(-margin, last + margin)


def draw_traces(panel: Axes, pane: Pane, curves: Sequence[tuple[Trace, pd.Series, pd.Series]]) -> None:
    """Named lines in one panel, named beside it; the gap of a pair is shaded."""
    drawn = []
    for (trace, values, margins), colour in zip(curves, colours_of(pane), strict=True):
        marker = {"marker": "o", "markersize": 3.0} if len(values) <= _MARKED else {"markersize": 0}
        drawn.append((values, margins, {"color": colour, "label": trace.label, **marker}))
    lines(panel, drawn, shade=_BAND)
    if pane.pair:
        (_, first, _), (_, second, _) = curves
        both = pd.concat([first, second], axis="columns").dropna()
        panel.fill_between(both.index, both.iloc[:, 0], both.iloc[:, 1], color=_GAP, alpha=0.5, linewidth=0)
    if len(curves) > 1:
        panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.03), fontsize=8, handlelength=1.2, borderaxespad=0.2)


def colours_of(pane: Pane) -> list[str]:
    """One for each trace of a pane."""
    if pane.ordered and len(pane.traces) > 1:
        return shades(ORDERED, len(pane.traces), 0.05, 0.85)
    if pane.pair:
        return [SUBSET_COLOURS[0], SUBSET_COLOURS[-1]]
    return [SUBSET_COLOURS[number % len(SUBSET_COLOURS)] for number in range(len(pane.traces))]


def scale_alike(panels: Sequence[Axes], panes: Sequence[Pane], shown: Mapping[int, np.ndarray]) -> None:
    """One scale for the panels of one quantity, before the feed-forward part or after it, on whichever tokens.

    Args:
        panels: with their lines.
        panes: what they show.
        shown: values by number of the panel.
    """
    alike: defaultdict[str, list[int]] = defaultdict(list)
    for number, pane in enumerate(panes):
        quantity = pane.unit if pane.unit == "dimension" else pane.metric.removesuffix("_attention")
        alike[quantity].append(number)
    for numbers in alike.values():
        values = np.concatenate([shown[number] for number in numbers])
        for number in numbers:
            scale(panels[number], panes[number].metric, values)
        limits = np.array([panels[number].get_ylim() for number in numbers])
        for number in numbers:
            panels[number].set_ylim(limits[:, 0].min(), limits[:, 1].max())


def about_tokens(panes: Sequence[Pane]) -> str:
    """What a caption says of the tokens: which all are of, or what a short name stands for."""
    subsets = subsets_named(panes)
    if len(subsets) == 1:
        return subset_title(subsets[0])
    return f"{short_subset_title('no_sink')}: {subset_title('no_sink')}" if "no_sink" in subsets else ""


def compared(rows: pd.DataFrame) -> str:
    """Which checkpoints the values that compare two of them compare; empty where none does.

    Args:
        rows: from :func:`repdyn.tables.frames.measurements`.
    """
    pairs = rows.loc[rows["compared_to"].notna(), ["step", "compared_to"]].drop_duplicates().sort_values("step")
    if pairs.empty:
        return ""
    steps = sorted(rows["step"].unique().tolist())
    before = dict(zip(steps[1:], steps, strict=False))
    others = [(step, to) for step, to in pairs.itertuples(index=False) if before.get(step, to) != to]
    text = "each checkpoint compared with the one measured before it"
    return f"{text}, but {_listed(others)}" if others else text


def _listed(pairs: Sequence[tuple[int, int]], most: int = 3) -> str:
    parts = [f"step {step:,} with {to:,}" for step, to in pairs[:most]]
    return ", ".join([*parts, f"{len(pairs) - most} more"] if len(pairs) > most else parts)


def _about_places(panes: Sequence[Pane]) -> str:
    between = any(is_between(pane.metric) for pane in panes)
    return f"layer 0 is the embedding output{'; what lies between two layers is drawn between them' * between}"


def _by_step(panel: Axes, rows: pd.DataFrame, pane: Pane, colours: Mapping[int, str]) -> np.ndarray:
    """One line for each step; returns what is drawn."""
    (trace,) = pane.traces
    values, margins = _over_depth(rows, trace)
    there = [step for step in values.dropna(axis="columns", how="all") if step in colours]
    for step in there:
        line(panel, values.loc[:, step], margins.loc[:, step], color=colours[step], marker="o", markersize=3.0)
    return values.loc[:, there].to_numpy(float).ravel()


def _by_trace(panel: Axes, rows: pd.DataFrame, pane: Pane) -> np.ndarray:
    """One line for each trace at its last step, dotted at its first; returns what is drawn."""
    curves, drawn = [], []
    for trace, colour in zip(pane.traces, colours_of(pane), strict=True):
        both = _over_depth(rows, trace)
        values, margins = (table.dropna(axis="columns", how="all") for table in both)
        first, last = values.columns[0], values.columns[-1]
        curves.append((trace, values[last], margins.get(last, values[last] * np.nan)))
        drawn += [values[last], values[first]]
        if first != last:
            panel.plot(values.index, values[first], color=colour, linestyle=":", linewidth=1.4)
    draw_traces(panel, pane, curves)
    return np.concatenate([values.to_numpy(float) for values in drawn])


def _over_depth(rows: pd.DataFrame, trace: Trace) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Values and half of their 95 % intervals, by place on the axis of layers and by step."""
    values, margins = (grid(rows, trace.metric, trace.subset, column) for column in ("value", "margin"))
    index = places(trace.metric, values.index.tolist())
    return values.set_axis(index), margins.set_axis(index)


def _courses(rows: pd.DataFrame, pane: Pane) -> Iterator[tuple[Trace, pd.Series, pd.Series]]:
    """Each trace against step, with half of its 95 % interval; its label says where layers are left out."""
    for trace in pane.traces:
        if trace.layer is not None:
            values, margins = (grid(rows, trace.metric, trace.subset, column) for column in ("value", "margin"))
            yield trace, values.loc[trace.layer], margins.loc[trace.layer]
            continue
        means = layer_mean(rows, trace.metric, trace.subset)
        fewer = f"\n({means.n_used} of {means.n_layers} layers)" if means.n_used < means.n_layers else ""
        yield Trace(trace.metric, trace.subset, trace.label + fewer), means.mean, means.margin

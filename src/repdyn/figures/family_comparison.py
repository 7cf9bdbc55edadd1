"""An overview of several runs: a family of metrics over relative depth, a run a line."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repdyn.figures.drawing import entitle, lines
from repdyn.figures.overviews import about_tokens, board, required, scale_alike
from repdyn.figures.panes import Pane, single_panes
from repdyn.figures.theme import BAND, DEPTHS, Look, comparable, ends, legend, legend_width, looks_of, numbers, profile
from repdyn.tables.designs import intervals, sampling_of_runs
from repdyn.tables.families import family_of, members_of
from repdyn.tables.frames import of_metric
from repdyn.tables.runs import Key, MeasuredRun
from repdyn.tables.style import FAMILIES, styled

_LINES = ("-", "--")


@styled
def compare_family(frame: pd.DataFrame, family: str) -> Figure:
    """The metrics of a family against relative depth, one line per run at its last measured step.

    A panel for each metric and token subset; two classes of tokens that are held against each other share one, the
    second dashed. What lies between two layers is drawn between them.

    Args:
        frame: rows of several runs, each measured on one probe.
        family: one of :data:`repdyn.tables.style.FAMILIES`.

    Raises:
        ValueError: a run with several models or probes; runs that do not compare; no metric of the family among their
            rows, or none with a value.
    """
    runs = comparable(frame)
    looks = looks_of(runs)
    everything = pd.concat([run.at_end() for run in runs])
    panes = required(single_panes(everything, family), everything, family)
    rows = everything.loc[everything["metric"].isin(members_of(everything, family))]
    drawn = [run for run in runs if any(family_of(metric) == family for metric in run.rows["metric"].unique())]
    when, at_ends = ends(drawn)
    labels = [run.label + end for run, end in zip(drawn, at_ends, strict=True)]
    figure, panels = board(panes, "relative depth", beside=legend_width(labels))
    shown = {number: _draw(panels[number], pane, drawn, looks) for number, pane in enumerate(panes)}
    scale_alike(panels, panes, shown)
    legend(figure, drawn, looks, labels)
    dashed = "dashed: the second of two classes of tokens" if any(pane.pair for pane in panes) else ""
    depth = "relative depth 0 is the embedding output"
    notes = (when, depth, dashed, about_tokens(panes), _compared(rows), intervals(rows))
    at_end = {run.label: run.at_end() for run in drawn}
    sampled = sampling_of_runs(
        {name: cells.loc[cells["metric"].isin(rows["metric"])] for name, cells in at_end.items()}
    )
    caption = f"{'; '.join(filter(None, notes))}\n{sampled}"
    entitle(figure, f"{FAMILIES[family]} over depth, {numbers(drawn)}", caption)
    return figure


def _draw(panel: Axes, pane: Pane, runs: list[MeasuredRun], looks: dict[Key, Look]) -> np.ndarray:
    """Every run's lines of a pane; returns the values drawn."""
    curves = [
        profile(run, trace.metric, trace.subset, {**looks[run.key], "linestyle": style})
        for trace, style in zip(pane.traces, _LINES, strict=False)
        for run in runs
        if len(of_metric(run.rows, trace.metric, trace.subset))
    ]
    lines(panel, curves, shade=BAND)
    panel.set_xlim(*DEPTHS)
    return np.concatenate([values.to_numpy(float) for values, *_ in curves])


def _compared(rows: pd.DataFrame) -> str:
    """Which checkpoint the ends of the runs are compared with, where they are; they may differ."""
    steps = rows["compared_to"].dropna().unique().tolist()
    if not steps:
        return ""
    return f"compared with step {steps[0]:,}" if len(steps) == 1 else "each compared with the checkpoint before"

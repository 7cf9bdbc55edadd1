"""The figures of the report for one metric, drawn from stores."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import pandas as pd

from repdyn.figures.charts import placed, training_axis
from repdyn.report import figures
from repdyn.report.plotly_panels import plotly_axis
from repdyn.report.plots import compared_colours, compared_with, measured_with, profiles_plot, training_plot
from repdyn.report.runs import in_lines, report_data
from repdyn.store import Store
from repdyn.tables.frames import by_stack
from repdyn.tables.runs import differences, select
from repdyn.tables.style import metric_title, subset_title

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Over: TypeAlias = Literal["depth", "training"]


def heatmap(
    store: Store,
    metric: str,
    subset: str = "all",
    *,
    run: str | None = None,
    probe: str | None = None,
    stack: str | None = None,
) -> Figure:
    """Return a metric by layer and measured step, alerts marked.

    Args:
        store: with measurements.
        metric: a measured metric.
        subset: a token subset it was measured on.
        run: name of the run; needed if the store has several.
        probe: hash, or the beginning of one; needed if the run was measured on several.
        stack: of the model's blocks; needed if it has several, such as "encoder" and "decoder".

    Raises:
        ValueError: no such run, probe, stack, metric or subset, or several to choose from; a finished model, which has
            no steps.
    """
    return figures.heatmap(_rows(store, run, probe, stack), metric, subset)


def profile(
    store: Store,
    metric: str,
    subset: str = "all",
    *,
    step: int | None = None,
    run: str | None = None,
    probe: str | None = None,
    stack: str | None = None,
) -> Figure:
    """Return a metric over depth with its 95 % intervals: at one step, or with a slider over the steps.

    Args:
        store, metric, subset, run, probe, stack: as for :func:`heatmap`.
        step: a step at which it was measured; a slider over at most 40 steps unless given.

    Raises:
        ValueError: no such run, probe, stack, metric, subset or step, or several to choose from.
    """
    return figures.profile(_rows(store, run, probe, stack), metric, subset, step)


def means(
    store: Store,
    metric: str,
    subset: str = "all",
    *,
    run: str | None = None,
    probe: str | None = None,
    stack: str | None = None,
) -> Figure:
    """Return a metric averaged over layers during training, with the loss; buttons change the axis.

    Args:
        store, metric, subset, run, probe, stack: as for :func:`heatmap`.

    Raises:
        ValueError: no such run, probe, stack, metric or subset, or several to choose from; a finished model, which has
            no steps.
    """
    return figures.means(_rows(store, run, probe, stack), metric, subset)


def compare(
    stores: Store | Sequence[Store],
    metric: str,
    subset: str = "all",
    *,
    over: Over = "depth",
    runs: Sequence[str] | None = None,
    probe: str | None = None,
    seeds: Sequence[str] | None = None,
) -> Figure:
    """Return a metric of several runs: their last profiles over relative depth, or their means during training.

    Runs that are seeds of one model are one line, their mean, with its 95 % interval over seeds as a band. The title
    says so if the values do not compare, as after different sampling designs.

    Args:
        stores: one or several, with measurements.
        metric: a measured metric.
        subset: a token subset it was measured on.
        over: "depth" or "training".
        runs: names; all runs unless given.
        probe: hash, or the beginning of one, of the only probe to show.
        seeds: patterns of runs that are seeds of one model; by default, runs whose names differ in the number behind
            "seed" alone. An empty sequence shows each run on its own.

    Raises:
        ValueError: no such run or probe; ``seeds`` that differ in more than their seed; no run with the metric on
            the subset; ``over`` is neither of the two; no run with two checkpoints to compare during training.
    """
    if over not in ("depth", "training"):
        raise ValueError(f"expected over='depth' or over='training', got {over!r}")
    data = report_data([stores] if isinstance(stores, Store) else stores, runs, probe, seeds=seeds)
    found, members = data.runs, compared_with(data.runs, data.seeds, (metric, subset))
    if not members:
        measured = ", ".join(dict.fromkeys(f"{name} ({of})" for run in found for name, of in run.series))
        raise ValueError(
            f"expected a metric and a subset it was measured on, got {metric} ({subset}); there are {measured}"
        )
    colours = compared_colours(found, data.seeds)
    why = differences([run.measured for _, run, _ in measured_with(found, (metric, subset))]) or data.not_seeds
    plot = profiles_plot(members, colours) if over == "depth" else training_plot(members, colours)
    if plot is None:
        raise ValueError("expected a run with at least two checkpoints, got none; use over='depth'")
    if over == "training":
        axis = training_axis(sorted({step for trace in plot["data"] for step in trace["x"]}))
        traces = [{**trace, "x": placed(np.asarray(trace["x"], float), axis.floor)} for trace in plot["data"]]
        plot = {"data": traces, "layout": {**plot["layout"], "xaxis": plotly_axis(axis)}}
    title = html.escape(f"{metric_title(metric)}, {subset_title(subset)}", quote=False)
    return figures.plotly_figure(plot, title, in_lines(f"not comparable: {why}") if why else "")


def _rows(store: Store, run: str | None, probe: str | None, stack: str | None) -> pd.DataFrame:
    """Return the rows of one stack of one run on one probe."""
    frames = select(store, None if run is None else [run], probe)
    named = dict.fromkeys(name for name, _ in frames)
    _require_one("run", run, list(named), f"a store of {len(named)} runs")
    _require_one("probe", probe, [found for _, found in frames], f"a run measured on {len(frames)} probes")
    (frame,) = frames.values()
    stacks = by_stack(frame)
    if stack is not None and stack not in stacks:
        names = ", ".join(map(str, filter(None, stacks))) or "a single one without a name"
        raise ValueError(f"expected a stack of the model, got stack={stack!r}; it has {names}")
    if stack is None:
        _require_one("stack", stack, list(map(str, stacks)), f"a model with {len(stacks)} stacks")
        (stack,) = stacks
    return stacks[stack]


def _require_one(what: str, given: str | None, there: Sequence[str], of: str) -> None:
    if len(there) > 1:
        raise ValueError(f"expected {what}= for {of}, got {given!r}; there are {', '.join(there)}")

"""The figures of the report for one metric, drawn from stores as figures of Plotly."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack

import numpy as np
from matplotlib.figure import Figure as Picture

from repdyn.store import StoreLike
from repdyn.views.charts import on_plotly
from repdyn.views.charts.axes import shared_axis, training_axis
from repdyn.views.charts.description import placed
from repdyn.views.charts.lines import other_cloud, profile_lines
from repdyn.views.charts.on_plotly import PlotlyDict
from repdyn.views.figures import comparison
from repdyn.views.figures import run as of_run
from repdyn.views.figures.panes import LARGE
from repdyn.views.judging import DescribedRun, described_runs
from repdyn.views.report import plots
from repdyn.views.tables.frames import grid_of, select_steps
from repdyn.views.tables.runs import Key, MeasuredRun, differences
from repdyn.views.tables.seeds import SeedGroup, with_seeds
from repdyn.views.tables.series import MetricSeries
from repdyn.views.tables.style import metric_title, subset_title
from repdyn.views.tables.texts import sampling

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Over: TypeAlias = Literal["depth", "training"]

MAX_FRAMES = 40
"""Steps of a profile's slider; Plotly takes long to check each."""
_LINE_HEIGHT = 22
_TITLE_WIDTH = 100


class Which(TypedDict, total=False):
    """Selects one run where a store has several."""

    run: str | None
    """Name of the run; needed if the store has several."""
    probe: str | None
    """Hash, or the beginning of one; needed if the run was measured on several."""
    stack: str | None
    """Of the model's blocks; needed if it has several, such as "encoder" and "decoder"."""


def heatmap(store: StoreLike, metric: str, subset: str = "all", **which: Unpack[Which]) -> Figure:
    """Return a metric by layer and measured step, alerts marked.

    Args:
        store: with measurements, or the folder it is in.
        metric: a measured metric.
        subset: a subset it was measured on.
        which: ``run``, ``probe`` and ``stack``, of :class:`Which`.

    Raises:
        ValueError: no such run, probe, stack, metric or subset, or several to choose from; a
            finished model, which has no steps.
    """
    run, series = _series(store, metric, subset, of_training=True, **which)
    plot = plots.heatmap_plot(run, series)
    plot["layout"]["shapes"] = []
    drawing = partial(of_run.heatmap, run, metric, subset)
    return _figure(plot, _title(metric, subset, run), _about(run), drawing)


def profile(
    store: StoreLike,
    metric: str,
    subset: str = "all",
    *,
    step: int | None = None,
    **which: Unpack[Which],
) -> Figure:
    """Return a metric over depth with its 95% intervals: at one step, or with a slider over the
    steps.

    Args:
        store, metric, subset, which: as for :func:`heatmap`.
        step: a step at which it was measured; a slider over at most 40 log-spaced steps unless
            given.

    Raises:
        ValueError: no such run, probe, stack, metric, subset or step, or several to choose from.
    """
    run, series = _series(store, metric, subset, **which)
    if step is None:
        plot = plots.profile_plot(run, series)
        plot |= _played(plot, run, series) if len(series.steps) > 1 else {}
        return _figure(plot, _title(metric, subset, run), _about(run), _over_depth(run, series))
    if step not in series.steps:
        around = sorted(sorted(series.steps, key=lambda other: abs(other - step))[:3])
        raise ValueError(
            f"expected a step at which {metric} was measured, got {step}; the closest are "
            f"{', '.join(map(str, around))}"
        )
    is_at_step = series.rows["step"] == step
    plot = plots.profile_plot(run, replace(series, rows=series.rows.loc[is_at_step]))
    # the legend would name one step, the heading does; but it tells two clouds apart
    plot["layout"]["showlegend"] = other_cloud(series, run.series) is not None
    for trace in plot["data"]:
        trace["showlegend"] = trace.get("meta", {}).get("role") != "trail"
    title = f"{_title(metric, subset, run)}, step {step:,}"
    return _figure(plot, title, _about(run), _over_depth(run, series, step))


def means(store: StoreLike, metric: str, subset: str = "all", **which: Unpack[Which]) -> Figure:
    """Return a metric averaged over layers during training, with the loss. Arguments and errors are
    those of :func:`heatmap`."""
    run, series = _series(store, metric, subset, of_training=True, **which)
    plot = _along_steps(plots.course_plot(run, series))
    drawing = partial(of_run.mean_over_layers, _only(run, metric, subset), [metric])
    return _figure(plot, _title(metric, subset, run), _about(run), drawing)


def compare(
    stores: StoreLike | Iterable[StoreLike],
    metric: str,
    subset: str = "all",
    *,
    over: Over = "depth",
    runs: Sequence[str] | None = None,
    probe: str | None = None,
    seeds: Sequence[str] | None = None,
) -> Figure:
    """Return a metric of several runs: their last profiles over relative depth, or their means
    during training.

    Runs that are seeds of one model are one line, their mean, with its 95% interval over seeds as a
    band. The title says so if the values do not compare, as after different sampling designs.

    Args:
        stores: one or several with measurements, or the folders they are in.
        metric: a measured metric.
        subset: a subset it was measured on.
        over: "depth" or "training".
        runs: names; all runs unless given.
        probe: hash, or the beginning of one, of the only probe to show.
        seeds: patterns of runs that are seeds of one model; by default, runs whose names differ in
            the number behind "seed" alone, or whose stored settings differ in the seed alone. An
            empty sequence shows each run on its own.

    Raises:
        TypeError: the metric is no text.
        ValueError: no such run or probe; ``seeds`` that differ in more than their seed; no run with
            the metric on the subset; ``over`` is neither of the two; no run with two checkpoints to
            compare during training.
    """
    if not isinstance(metric, str):
        raise TypeError(
            f"expected the name of a metric, got {type(metric).__name__}; give several stores as a "
            "list, as in compare([store, other], 'two_nn')"
        )
    if over not in ("depth", "training"):
        raise ValueError(f"expected over='depth' or over='training', got {over!r}")
    data = described_runs(stores, runs, probe, seeds=seeds)
    members = plots.compared_with(data.runs, data.seeds, (metric, subset))
    if not members:
        raise _not_measured(data.runs, metric, subset)
    single = [member.run for member in plots.compared_with(data.runs, (), (metric, subset))]
    why = differences(single) or data.not_seeds
    shown = [_only(run, metric, subset) for run in with_seeds(data.runs, data.seeds)]
    shown = [run for run in shown if run.series]
    plot, drawing = _compared(
        members, plots.compared_colours(data.runs, data.seeds), shown, metric, over
    )
    title = html.escape(_title(metric, subset, members[0].run), quote=False)
    return _figure(plot, title, _in_lines(f"not comparable: {why}") if why else "", drawing)


def _compared(
    members: Sequence[plots.ComparedMember],
    colours: Mapping[Key, str],
    shown: Sequence[MeasuredRun],
    metric: str,
    over: Over,
) -> tuple[PlotlyDict, Callable[[], Picture]]:
    """Return the plot of the members of a comparison, and what draws the same as a picture."""
    if over == "depth":
        title = metric_title(metric)
        drawing = partial(comparison.over_depth, shown, [metric], title, LARGE)
        return plots.profiles_plot(members, colours), drawing
    plot = plots.training_plot(members, colours)
    if plot is None:
        raise ValueError("expected a run with at least two checkpoints, got none; use over='depth'")
    return _along_steps(plot), partial(comparison.means_over_layers, shown, [metric])


def _over_depth(
    run: DescribedRun, series: MetricSeries, step: int | None = None
) -> Callable[[], Picture]:
    """Return what draws a metric over depth, at one step or at several."""
    only = _only(run, series.metric, series.subset, step)
    return partial(of_run.over_depth, only, [series.metric], metric_title(series.metric), LARGE)


def _only(run: MeasuredRun, metric: str, subset: str, step: int | None = None) -> MeasuredRun:
    """Return a run with one metric on a subset, and on the cloud that is shown beside it."""
    series = run.series.get((metric, subset))
    beside = None if series is None else other_cloud(series, run.series)
    subsets = {subset, subset if beside is None else beside.subset}
    rows = run.frame
    is_shown = (rows["metric"] == metric) & rows["subset"].isin(sorted(subsets))
    if step is not None:
        is_shown &= rows["step"] == step
    changes: dict[str, Any] = {"frame": rows.loc[is_shown | rows["layer"].isna()]}
    if isinstance(run, SeedGroup):
        changes["members"] = tuple(_only(member, metric, subset, step) for member in run.members)
    return replace(run, **changes)


def _series(
    store: StoreLike, metric: str, subset: str, *, of_training: bool = False, **which: Unpack[Which]
) -> tuple[DescribedRun, MetricSeries]:
    """Return the only run that is meant and one of its series; a finished model is an error where a
    training is needed."""
    run = which.get("run")
    stack = which.get("stack")
    there = described_runs(store, None if run is None else [run], which.get("probe"), seeds=()).runs
    runs = [candidate for candidate in there if stack in (None, candidate.stack)]
    if not runs:
        names = (
            ", ".join(filter(None, (candidate.stack for candidate in there)))
            or "a single one without a name"
        )
        raise ValueError(f"expected a stack of the model, got stack={stack!r}; it has {names}")
    # averaged weights are shown beside those of their training
    averaged = {f"{candidate.name} (averaged)" for candidate in runs}
    runs = [candidate for candidate in runs if candidate.name not in averaged]
    if len(runs) > 1:
        labels = ", ".join(candidate.label for candidate in runs)
        raise ValueError(
            f"expected one run, got {len(runs)}: {labels}; choose with run=, probe= or stack="
        )
    (chosen,) = runs
    if of_training and chosen.finished:
        raise ValueError(
            f"expected checkpoints of a training, got the finished model {chosen.name!r}, which "
            "has no steps; draw its profile"
        )
    if (metric, subset) not in chosen.series:
        raise _not_measured(runs, metric, subset)
    return chosen, chosen.series[metric, subset]


def _not_measured(runs: Sequence[DescribedRun], metric: str, subset: str) -> ValueError:
    measured = ", ".join(dict.fromkeys(f"{name} ({of})" for run in runs for name, of in run.series))
    return ValueError(
        f"expected a metric and a subset it was measured on, got {metric} ({subset}); there are "
        f"{measured}"
    )


def _along_steps(plot: PlotlyDict) -> PlotlyDict:
    """Return a plot along the training on an axis of steps."""
    axis = training_axis(sorted({step for trace in plot["data"] for step in trace["x"]}))
    traces = [
        {**trace, "x": placed(np.asarray(trace["x"], float), axis.floor)} for trace in plot["data"]
    ]
    along = {**plot["layout"].get("xaxis", {}), **on_plotly.plotly_axis(axis)}
    return {"data": traces, "layout": {**plot["layout"], "xaxis": along, "shapes": []}}


def _played(plot: PlotlyDict, run: DescribedRun, series: MetricSeries) -> PlotlyDict:
    """Return the layout with a slider and a button, and the frames that they show."""
    steps = select_steps(series.steps, MAX_FRAMES)
    frames = _frames(plot["data"], run, series, steps)
    layout = {**plot["layout"], **_slider([frame["name"] for frame in frames])}
    return {"layout": layout, "frames": frames}


def _frames(
    traces: Sequence[PlotlyDict], run: DescribedRun, series: MetricSeries, steps: Sequence[int]
) -> list[PlotlyDict]:
    """Return for each step what it changes: the last trace and the band before it, and the line of
    the other cloud."""
    floor = shared_axis(series, run.series).floor
    value = len(on_plotly.with_bands(traces)) - 1
    other = other_cloud(series, run.series)
    roles = [trace.get("meta", {}).get("role") for trace in traces]
    frames = []
    lines = profile_lines(series, dict.fromkeys(steps, plots.VALUE))
    for step, line in zip(steps, lines, strict=True):
        exact = np.asarray(line.y)
        band = on_plotly.band_outline(line.x, *(line.band or ()), floor=floor)
        changes = {value - 1: band, value: {"y": placed(exact, floor), "customdata": exact}}
        if other is not None:
            values = grid_of(other.rows).reindex(columns=[step]).to_numpy(float)[:, 0]
            # no line before it has a band
            changes[roles.index("beside")] = {"y": placed(values, floor)}
        frames.append({"name": line.label, "data": [*changes.values()], "traces": [*changes]})
    return frames


def _slider(names: Sequence[str]) -> PlotlyDict:
    """Return a slider over frames with these names, and a button that shows all of them."""
    at_once: dict[str, Any] = {"mode": "immediate", "transition": {"duration": 0}}
    stops = [
        {
            "label": name,
            "method": "animate",
            "args": [[name], at_once | {"frame": {"duration": 0, "redraw": False}}],
        }
        for name in names
    ]
    slider = {
        "steps": stops,
        "active": len(stops) - 1,
        "currentvalue": {"prefix": "step "},
        "pad": {"t": 40},
    }
    play = [None, at_once | {"frame": {"duration": 250, "redraw": False}, "fromcurrent": True}]
    button = {"label": "Play", "method": "animate", "args": play}
    menu = {"type": "buttons", "buttons": [button], "x": 0, "y": 1.15}
    return {"sliders": [slider], "updatemenus": [menu]}


def _figure(plot: PlotlyDict, title: str, caption: str, drawing: Callable[[], Picture]) -> Figure:
    """Return a figure as high as on the page, with room for its heading also in the narrow column
    of a notebook, and what draws its picture.
    """
    # takes one second, which tracking without it should not pay
    from repdyn.views.plots.pictured import PicturedFigure

    heading = f"{title}<br><sub>{caption}</sub>" if caption else title
    top = 70 + _LINE_HEIGHT * heading.count("<br>")
    layout: PlotlyDict = {
        "height": plot["layout"].get("height", on_plotly.HEIGHT) + top,
        "margin": {"t": top, "b": 110 if "sliders" in plot["layout"] else 60},
        "title": {"text": heading, "y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 16}},
        "template": on_plotly.LIGHT,
        # Plotly's button that uploads a figure has no place next to unpublished results
        "modebar": {"remove": ["sendChartToCloud", "sendDataToCloud"]},
    }
    figure = PicturedFigure(
        {**plot, "data": on_plotly.with_bands(plot["data"]), "layout": {**plot["layout"], **layout}}
    )
    figure._drawing = drawing
    return figure


def _title(metric: str, subset: str, run: MeasuredRun) -> str:
    return f"{metric_title(metric)}, {subset_title(subset, run.vectors_of)}"


def _about(run: DescribedRun) -> str:
    """Return name, model and how the vectors were sampled."""
    return _in_lines(f"{run.label}, {run.rows['model'].iloc[0]}\n{sampling(run.rows)}")


def _in_lines(text: str) -> str:
    """Return text for Plotly without its markup, in lines that fit above a figure."""
    lines = [line for part in text.splitlines() for line in textwrap.wrap(part, _TITLE_WIDTH)]
    return "<br>".join(html.escape(line, quote=False) for line in lines)

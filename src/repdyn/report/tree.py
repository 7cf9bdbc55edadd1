"""The data of the page's script, as a tree of plain dictionaries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from repdyn.figures.charts import training_axes, value_axis
from repdyn.metrics import FAMILIES, METRICS, metric_info
from repdyn.metrics.names import settings_in_words
from repdyn.report.glance import first_run, opening
from repdyn.report.plotly_panels import (
    DARK,
    DARK_COLOURS,
    DIVERGING_SCALE,
    LIGHT,
    TRAIL_COLOURS,
    PlotlyDict,
    dark_run_colours,
    plotly_axis,
    transparent,
)
from repdyn.report.plots import (
    MAX_BANDS,
    MAX_PANELS,
    ComparedMember,
    compared_colours,
    compared_with,
    course_plot,
    heads_plot,
    heatmap_plot,
    heatmaps_plot,
    layers_plot,
    measured_with,
    profile_plot,
    profiles_plot,
    training_plot,
)
from repdyn.report.runs import ReportData, ReportRun
from repdyn.store.schema import LOSS
from repdyn.tables.findings import JUDGED
from repdyn.tables.runs import differences
from repdyn.tables.seeds import SeedGroup, with_seeds
from repdyn.tables.series import MetricSeries
from repdyn.tables.style import family_of, family_title, metric_title, short_subset_title, subset_title


def page_tree(data: ReportData) -> PlotlyDict:
    """Return the figures of every run, metric and subset, axes, themes and names; arrays as they are."""
    runs = data.runs
    metrics = list(dict.fromkeys(metric for run in runs for metric, _ in run.series))
    subsets = {subset for run in runs for _, subset in run.series}
    steps = {int(step) for run in runs if not run.finished for step in (*run.measured.steps, *run.loss(LOSS).index)}
    axes = training_axes(sorted(steps), sorted({count for run in runs for count in run.tokens.values()}))
    return {
        "start": first_run(data),
        "runs": [_run_tree(run) for run in runs],
        "comparisons": _comparisons(runs, data.seeds) if len(runs) > 1 else {},
        "axes": {name: {"layout": plotly_axis(axis), "floor": axis.floor} for name, axis in axes.items()},
        "metrics": {metric: {"title": metric_title(metric), "meaning": _meaning(metric)} for metric in metrics},
        "subsets": {subset: [subset_title(subset), short_subset_title(subset)] for subset in sorted(subsets)},
        "families": _families(metrics),
        "alerts": any(run.alerts for run in runs),
        "diverging": DIVERGING_SCALE,
        "themes": {"light": LIGHT, "dark": DARK},
        "dark_colours": _dark_colours(runs, data.seeds),
    }


def _run_tree(run: ReportRun) -> PlotlyDict:
    metrics: dict[str, PlotlyDict] = {}
    for (metric, subset), series in run.series.items():
        metrics.setdefault(metric, {})[subset] = _series_tree(run, series)
    return {
        "label": run.label,
        "start": opening(run),
        "finished": run.finished,
        "tokens": run.tokens or None,
        "metrics": metrics,
    }


def _series_tree(run: ReportRun, series: MetricSeries) -> PlotlyDict:
    is_trained = len(series.steps) > 1 and not run.finished
    mean = series.layer_mean.mean
    return {
        "agrees_with": _agreeing(run, series),
        "layers": series.layers,
        "depths": series.depths,
        "steps": series.steps,
        "values": series.values,
        "margins": series.margins,
        "reasons": series.reasons,
        "floor": value_axis(series.metric, series.values, series.margins).floor,
        "interval": series.interval,
        "profile": profile_plot(run, series),
        "heatmap": heatmap_plot(run, series) if is_trained else None,
        "course": course_plot(run, series, _published_metrics(run, series)) if is_trained else None,
        "lines": layers_plot(series) if is_trained else None,
        "mean": {"steps": mean.index.tolist(), "values": mean.to_numpy(float)},
        "heads": heads_plot(series),
        "by_head": series.by_head,
    }


def _agreeing(run: ReportRun, series: MetricSeries) -> str | None:
    """Return "all" if the values without sinks differ from those of all tokens by less than their intervals."""
    whole = run.series.get((series.metric, "all"))
    if series.subset != "no_sink" or whole is None or whole.values.shape != series.values.shape:
        return None
    margins = np.nan_to_num(whole.margins)
    return "all" if np.allclose(series.values, whole.values, rtol=0.0, atol=margins, equal_nan=True) else None


def _published_metrics(run: ReportRun, series: MetricSeries) -> list[MetricSeries]:
    """Return the published metrics to show below a series, on the same token subset where it was measured."""
    keys = [(metric, series.subset if (metric, series.subset) in run.series else "all") for metric in JUDGED]
    return [run.series[key] for key in keys if key in run.series and key[0] != series.metric]


def _comparisons(runs: Sequence[ReportRun], seeds: Sequence[SeedGroup]) -> dict[str, PlotlyDict]:
    """Return the comparisons of each metric and subset that several runs have."""
    colours, why = compared_colours(runs, seeds), differences([run.measured for run in runs])
    warning = f" They do not all compare: {why}." if why else ""
    found: dict[str, PlotlyDict] = {}
    for metric, subset in dict.fromkeys(key for run in runs for key in run.series):
        members = measured_with(runs, (metric, subset))
        if len(members) < 2:
            continue
        compared, heatmaps = compared_with(runs, seeds, (metric, subset)), heatmaps_plot(members)
        is_cut = heatmaps is not None and len(heatmaps["data"]) == MAX_PANELS
        found.setdefault(metric, {})[subset] = {
            "note": f"{len(members)} of {len(runs)} runs; a hue for each class of models{_bands(compared)}.{warning}",
            "profiles": profiles_plot(compared, colours),
            "training": training_plot(compared, colours),
            "heatmaps": heatmaps,
            "heatmaps_note": f"; the first {MAX_PANELS} runs" * is_cut,
        }
    return found


def _bands(members: Sequence[ComparedMember]) -> str:
    """Return what the bands of several runs' lines mean; empty if there are too many lines for bands."""
    meanings = sorted({member.series.interval for member in members if member.series.interval})
    return "".join(f"; {meaning}" for meaning in meanings) if len(members) <= MAX_BANDS else ""


def _families(metrics: Sequence[str]) -> list[list[object]]:
    """Return the title of each family with its metrics."""
    groups = {
        family: [m for m in metrics if family_of(m) == family] for family in [*FAMILIES, *map(family_of, metrics)]
    }
    return [[family_title(family), members] for family, members in groups.items() if members]


def _meaning(metric: str) -> str:
    info, settings = metric_info(metric), settings_in_words(metric)
    if info.base not in METRICS:
        return "a metric of your own"
    low, high = info.range
    settings = f", with {settings}" if settings else ""
    return f"{info.meaning}{settings}; from {low:g} to {high:g}".replace("inf", "\u221e")


def _dark_colours(runs: Sequence[ReportRun], seeds: Sequence[SeedGroup]) -> dict[str, str]:
    """Return the colours of the dark theme by those of the light one, opaque and transparent."""
    colours = {**TRAIL_COLOURS, **dark_run_colours(with_seeds([run.measured for run in runs], seeds)), **DARK_COLOURS}
    return colours | {transparent(colour): transparent(dark) for colour, dark in colours.items()}

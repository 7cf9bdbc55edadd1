"""Charts of several lines for W&B: all layers of a metric against step, and the means on all
vectors beside those without repeats and the range of baselines.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from repdyn.metrics.logged import LogLayers, logs_every_layer
from repdyn.metrics.names import file_stem
from repdyn.views.judging import DescribedRun
from repdyn.views.publish.loggers import ALL_VECTORS, Target
from repdyn.views.tables.frames import CLOUDS
from repdyn.views.tables.series import MetricSeries, on_shared_layers
from repdyn.views.tables.style import has_own_figures, subset_title


def log_charts(
    run: DescribedRun,
    target: Target,
    prefix: str = "",
    log_layers: LogLayers = "default",
    *,
    most_steps: int | None = None,
) -> None:
    """Log a chart with a line for each layer of each metric of geometry, of the user's own and of
    those of which ``log_layers`` has every layer, ``charts/two_nn_all_layers``, and one of the
    means over layers, ``charts/two_nn_means``.

    Of more than ``most_steps`` steps, so many are shown, with the first and the last among them.
    """
    if not target.takes_charts:
        return
    for (metric, subset), series in run.series.items():
        is_chosen = has_own_figures(metric) or logs_every_layer(metric, subset, log_layers)
        if is_chosen and series.steps_with_values:
            chart = "_".join(filter(None, [file_stem(metric), run.stack, subset]))
            _log_layers(series, f"{prefix}{chart}_layers", target, run.steps[-1], most_steps)
    for metric in filter(has_own_figures, run.metrics()):
        _log_clouds(run, metric, target, prefix)


def _log_layers(
    series: MetricSeries, chart: str, target: Target, step: int, most_steps: int | None
) -> None:
    places = _evenly_spaced(len(series.steps), most_steps)
    lines = {
        f"layer {layer}": [values[index] for index in places]
        for layer, values in zip(series.layers, series.values.tolist(), strict=True)
    }
    steps = [series.steps[index] for index in places]
    target.log_lines(chart, "step", steps, lines, step)


def _evenly_spaced(length: int, most: int | None) -> Sequence[int]:
    """Return the places of all entries, or of ``most`` with the first and the last.

    >>> list(_evenly_spaced(9, 3)), list(_evenly_spaced(3, 9)), list(_evenly_spaced(3, None))
    ([0, 4, 8], [0, 1, 2], [0, 1, 2])
    """
    if most is None or length <= most:
        return range(length)
    return [round(index * (length - 1) / (most - 1)) for index in range(most)]


def _log_clouds(run: DescribedRun, metric: str, target: Target, prefix: str) -> None:
    """Log a chart of the means over layers on all vectors and without repeats, at the steps at
    which each has one, and of the range of the baselines on all vectors; nothing of a metric that
    was measured in one way only and has no baselines."""
    names = {subset: subset_title(subset) for subset in CLOUDS} | {"all": ALL_VECTORS}
    measured = {
        name: run.series[metric, subset]
        for subset, name in names.items()
        if (metric, subset) in run.series and run.series[metric, subset].steps_with_values
    }
    if ALL_VECTORS not in measured:
        return
    shared = dict(zip(measured, on_shared_layers(*measured.values()), strict=True))
    lines = {name: series.layer_mean.mean for name, series in shared.items()}
    lines |= _baseline_lines(run, shared[ALL_VECTORS])
    if len(lines) < 2:
        return
    table = pd.concat(lines, axis="columns", join="inner").sort_index()
    columns = {name: table[name].tolist() for name in lines}
    chart = "_".join(filter(None, [file_stem(metric), run.stack, "means"]))
    target.log_lines(f"{prefix}{chart}", "step", table.index.tolist(), columns, run.steps[-1])


def _baseline_lines(run: DescribedRun, series: MetricSeries) -> dict[str, pd.Series]:
    """Return the range of the baselines' means over the layers of a series by step; empty without
    baselines."""
    band = run.bands.get(series.key)
    if band is None or not series.mean_layers:
        return {}
    limits = band.of_mean(series.mean_layers)
    ends = {"lowest": limits.low, "median": limits.median, "highest": limits.high}
    return {f"baselines, {end}": pd.Series(values, band.steps) for end, values in ends.items()}

"""A statement on the largest activation over training: whether it follows the published formula."""

from __future__ import annotations

import math
from collections.abc import Iterator

from repdyn.diagnosis.insight import Insight
from repdyn.metrics.names import base_name
from repdyn.tables.activation_fits import METRIC
from repdyn.tables.numbers import number_text
from repdyn.tables.runs import spans
from repdyn.tables.series import MetricSeries
from repdyn.tables.style import metric_title


def activation_statements(series: MetricSeries) -> Iterator[Insight]:
    """Yield in how many layers ``largest_activation`` follows its formula, with the parameters of the layer in which
    it ends largest."""
    if base_name(series.metric) != METRIC:
        return
    fits = {layer: fit for layer, fit in series.activation_fits.items() if fit.is_reported}
    if not fits:
        return
    first, last = series.steps_with_values[0], series.steps_with_values[-1]
    largest = max(fits, key=lambda layer: float(fits[layer].at(last)))
    fit, mean = fits[largest], math.fsum(each.r_squared for each in fits.values()) / len(fits)
    peaks = [layer for layer, each in fits.items() if first < each.peak_step < last]
    where = f"layer{'s' * (len(peaks) > 1)} {spans(peaks)}" if peaks else "none of them"
    sentence = (
        f"{metric_title(series.metric)} follows A exp(-lambda x) log(x) + K with x = gamma step + t0 in {len(fits)} of "
        f"{len(series.layers)} layers (mean R² {mean:.3f}), with a maximum within the run in "
        f"{where}; in layer {largest} A {number_text(fit.amplitude)}, "
        f"lambda {number_text(fit.decay)}, gamma {fit.time_scale:.2g}, t0 {number_text(fit.time_offset)}, "
        f"K {number_text(fit.baseline)} (R² {fit.r_squared:.3f}, {fit.n_steps} steps)."
    )
    evidence = {"layers": float(len(fits)), "mean_r_squared": mean, "peak_step": fit.peak_step, **fit._asdict()}
    yield Insight(
        "note",
        "activation growth",
        sentence,
        series.metric,
        series.subset,
        layers=tuple(fits),
        steps=(first, last),
        evidence={name: float(value) for name, value in evidence.items()},
        weight=0.5 * len(fits) / len(series.layers),
    )

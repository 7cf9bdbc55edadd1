"""The fits of the largest activation over training, as tables of a report."""

from __future__ import annotations

import pandas as pd

from repdyn.report.markup import Markup, details, table, tag
from repdyn.report.runs import ReportData
from repdyn.tables.activation_fits import fit_table
from repdyn.tables.numbers import number_text
from repdyn.tables.style import metric_title

_HEADINGS = (
    "layer",
    "metric",
    "worth a statement",
    "A",
    "lambda",
    "gamma",
    "t0",
    "K",
    "R²",
    "p",
    "steps",
    "maximum at",
)
_FORMULA = (
    "Least squares over the steps of A exp(-lambda x) log(x) + K, with x = gamma step + t0. R² says that the curve "
    "describes the course, not that the course has this law."
)


def activation_growth(data: ReportData) -> list[Markup]:
    """Return a table for each run in which ``largest_activation`` was measured at enough steps; nothing if none is."""
    fits = {run.label: fit_table(run.series.values()) for run in data.runs if not run.finished}
    tables = [_table(label, found) for label, found in fits.items() if len(found)]
    return [details("Largest activation over training", tag("p", _FORMULA), *tables)] if tables else []


def _table(label: str, fits: pd.DataFrame) -> Markup:
    rows = [
        (
            str(fit["layer"]),
            metric_title(fit["metric"]),
            "yes" if fit["is_reported"] else "no",
            *(number_text(fit[name]) for name in ("amplitude", "decay", "time_scale", "time_offset", "baseline")),
            f"{fit['r_squared']:.3f}",
            f"{fit['p_value']:.2g}",
            str(fit["n_steps"]),
            f"{fit['peak_step']:,.0f}",
        )
        for fit in fits.to_dict("records")
    ]
    return table(f"Largest activation over training, {label}", _HEADINGS, rows, numbers=9)

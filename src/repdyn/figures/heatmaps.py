"""Heatmaps of one run: by layer and step, by layer and attention head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from repdyn.alerts import Alert
from repdyn.figures.captions import compared, run_caption, run_title
from repdyn.figures.charts import Chart
from repdyn.figures.drawing import draw
from repdyn.figures.metric_panels import MARKED, alerts_on, heads_panel, heatmap_panel
from repdyn.store.schema import FINISHED
from repdyn.tables.families import drop_first_comparison
from repdyn.tables.frames import in_order, is_finished, of_heads, of_metric, of_training, select_steps, subsets_of
from repdyn.tables.series import MetricSeries
from repdyn.tables.style import metric_title, subset_title
from repdyn.tables.texts import filled

_MAX_COLUMNS = 48
_SIZE = (7.2, 4.3)


def heatmap(frame: pd.DataFrame, metric: str, subset: str, alerts: Sequence[Alert] = ()) -> Figure:
    """Draw a metric by layer (upwards) and measured step (to the right, equally spaced), hatched where it has no value.

    Of more than 48 measured steps, log-spaced ones are drawn, those with an alert, and those with the lowest and the
    highest value.

    Args:
        frame: rows of one run.
        metric: a measured metric.
        subset: a token subset it was measured on.
        alerts: of the run; those on this metric and subset are marked.

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none; ``metric`` or ``subset`` not among them; a
            finished model, which has no steps.
    """
    rows = of_training(frame, "profile_over_depth")
    shown = of_metric(rows, metric, subset)
    if shown.empty:
        measured = ", ".join(subsets_of(rows, metric))
        raise ValueError(f"expected a subset {metric} was measured on, got {subset!r}; there are {measured}")
    comparable = drop_first_comparison(shown)
    series = MetricSeries(metric, subset, shown if comparable.empty else comparable)
    with_alert = {alert.step for alert in alerts_on(alerts, metric, subset)} & {*series.steps}
    steps = sorted({*select_steps(series.steps, _MAX_COLUMNS), *with_alert, *_of_extremes(series.rows)})
    panel = heatmap_panel(series, alerts, steps)
    hatched = "; hatched: none that compares" if panel.cells and not np.isfinite(panel.cells.values).all() else ""
    title = f"{metric_title(metric)} by layer and step, {subset_title(subset)}{hatched}"
    caption = run_caption(shown, compared(shown), MARKED * bool(panel.marks))
    return draw(Chart(title=run_title(shown, title), caption=caption, panels=[panel], size=_SIZE))


def heads_heatmap(frame: pd.DataFrame, metric: str, subset: str) -> Figure:
    """Draw a metric by attention head and layer at the last measured step, hatched where it has no value.

    Args:
        frame: rows of one run.
        metric: one that was measured head by head.
        subset: a token subset it was measured on.

    Raises:
        ValueError: rows of several runs, models, probes or stacks; ``metric`` not measured head by head on ``subset``.
    """
    rows = of_heads(frame)
    cells = rows if rows.empty else of_metric(rows, metric, subset)
    if cells.empty:
        there = ", ".join(f"{name} ({of})" for name, of in measured_by_head(frame)) or "none"
        raise ValueError(f"expected a metric measured head by head, got {metric!r} ({subset}); measured were {there}")
    step = max(cells["step"].tolist())
    values = cells.loc[cells["step"] == step].pivot(index="layer", columns="head", values="value").sort_index()
    panel = heads_panel(metric, values.to_numpy(float), values.index, values.columns)
    when = FINISHED if is_finished(cells) else f"at step {step:,}"
    title = f"{metric_title(metric)} by layer and head, {when}, {subset_title(subset)}"
    return draw(Chart(title=run_title(cells, title), caption=run_caption(cells), panels=[panel], size=_SIZE))


def measured_by_head(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Return each metric and token subset that has values of single attention heads."""
    rows = frame.loc[frame["layer"].notna() & frame["head"].notna() & frame["value"].notna()]
    pairs = rows.assign(subset=filled(rows["subset"], "all"))[["metric", "subset"]].drop_duplicates()
    metrics = sorted(pairs["metric"].unique())
    return [(metric, subset) for metric in metrics for subset in in_order(of_metric(pairs, metric)["subset"])]


def _of_extremes(rows: pd.DataFrame) -> set[int]:
    """Return the steps with the lowest and the highest value of any layer."""
    known = rows.dropna(subset="value")
    return (
        set()
        if known.empty
        else {int(known.loc[at, "step"]) for at in (known["value"].idxmin(), known["value"].idxmax())}
    )

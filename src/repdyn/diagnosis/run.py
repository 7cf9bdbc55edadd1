"""The insights of the runs of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import pandas as pd

from repdyn.alerts import ALERT_COLUMNS, Alert, find_alerts, stored_rules
from repdyn.diagnosis.curves import (
    activation_statements,
    coupling_statements,
    course_statements,
    loss_correlations,
    turn_statements,
)
from repdyn.diagnosis.insight import SEVERITIES, Insight, RunInsights, Status, report_link
from repdyn.diagnosis.layers import (
    below_one_statements,
    layer_statements,
    missing_statements,
    profile_statements,
    sequence_statements,
    window_statements,
)
from repdyn.diagnosis.training import (
    MIN_LOSSES,
    alert_statements,
    embedding_statements,
    failed_measurements,
    geometry_statements,
    loss_statements,
    out_of_line_statements,
    overfitting,
    probe_loss_statements,
    repeated_checkpoints,
)
from repdyn.metrics import DEFAULT_METRICS
from repdyn.metrics.metric import base_name
from repdyn.store.schema import LOSS
from repdyn.tables.frames import by_stack, is_finished, loss_of_run, measurements, scalar, stack_of
from repdyn.tables.runs import is_measured, run_labels, select
from repdyn.tables.series import MetricSeries, metric_series
from repdyn.tables.style import of_stack

if TYPE_CHECKING:
    from repdyn.store import Store

_COLUMNS = (
    *ALERT_COLUMNS,
    *("model", "stage", "checkpoint", "layers", "depth", "design", "settings", "low", "high", "std_error", "n_batches"),
    *("own_window_excluded", "same_window_share", "same_as", "mixed_with"),
)
"""Columns of a store that the insights rest on."""
_OTHER_METRICS = 0.5
"""Weight of statements about metrics that are not measured by default."""
_WATCHED_KINDS = {"overfitting", "missing values", "failed measurement"}
"""Kinds of statements by which a run is watched, apart from alerts."""


def insights(store: Store, runs: Sequence[str] | None = None, probe: str | None = None) -> list[RunInsights]:
    """Return the status of each run of a store and ranked statements on what happened in it.

    They follow from the stored rows alone: the same rows give the same statements in the same order.

    Args:
        store: with measurements.
        runs: names; all runs unless given.
        probe: hash, or the beginning of one, of the only probe to describe.

    Returns:
        For each run, probe and stack of the model, in the order of the store.

    Raises:
        ValueError: nothing is stored; no such run or probe.
    """
    found = {key: rows for key, rows in select(store, runs, probe, columns=_COLUMNS).items() if is_measured(rows)}
    labels = run_labels({run: rows for (run, _), rows in found.items()})
    described = []
    for (run, _), rows in found.items():
        rules = stored_rules(store.alerts_path(run))
        for stack, of_one in by_stack(rows).items():
            described.append(describe_run(of_one, find_alerts(of_one, rules), label=of_stack(labels[run], stack)))
    return described


def continuity_statements(
    store: Store, runs: Sequence[str] | None = None, probe: str | None = None
) -> list[tuple[str, Insight]]:
    """Return the statements of :func:`insights` on steps that repeat another one or are out of line, each with the name
    of its run."""
    stated = []
    for (run, _), frame in select(store, runs, probe, columns=_COLUMNS).items():
        for stack, rows in by_stack(frame).items() if is_measured(frame) else ():
            measured = measurements(rows)
            chosen = measured.loc[measured["metric"].map(base_name).isin(DEFAULT_METRICS)]
            series = metric_series(chosen) if len(chosen) else {}
            stated += [(of_stack(run, stack), each) for each in _ranked(_of_continuity(rows, measured, series))]
    return stated


def describe_run(
    frame: pd.DataFrame,
    alerts: Sequence[Alert],
    *,
    rows: pd.DataFrame | None = None,
    series: dict[tuple[str, str], MetricSeries] | None = None,
    label: str | None = None,
) -> RunInsights:
    """Return the status and the statements of one run, or of one stack of its model, from all of its rows on one probe.

    Its measurements and series are found again unless they are given; links to a report have its ``label``, by default
    its name.
    """
    rows = measurements(frame) if rows is None else rows
    series = metric_series(rows) if series is None else series
    stack, run = stack_of(rows), str(rows["run"].iloc[0])
    statements = _ranked(
        chain(_of_training(frame, rows, alerts), _of_continuity(frame, rows, series), _of_metrics(frame, rows, series))
    )
    linked = tuple(replace(each, stack=stack, link=_link(each, label or run)) for each in statements)
    status, reason = _status(frame, rows, alerts, linked)
    correlations = loss_correlations(frame, series)
    return RunInsights(run, str(rows["probe"].iloc[0]), stack, status, reason, linked, correlations)


def _of_training(frame: pd.DataFrame, rows: pd.DataFrame, alerts: Sequence[Alert]) -> Iterator[Insight]:
    if not is_finished(rows):
        yield from loss_statements(frame)
        yield from overfitting(frame)
        yield from probe_loss_statements(frame)
    yield from alert_statements(alerts, _second_half(rows))
    yield from failed_measurements(frame)
    yield from missing_statements(rows)
    yield from window_statements(rows)
    yield from below_one_statements(rows)


def _of_continuity(
    frame: pd.DataFrame, rows: pd.DataFrame, series: dict[tuple[str, str], MetricSeries]
) -> Iterator[Insight]:
    """Yield the steps that repeat another one or are out of line; of geometry, if there is no training loss, in which
    case there are no alerts for its jumps."""
    if is_finished(rows):
        return
    yield from repeated_checkpoints(frame, rows)
    yield from out_of_line_statements(frame)
    yield from embedding_statements(frame)
    if scalar(frame, LOSS).empty:
        for metric in dict.fromkeys(metric for metric, _ in series if base_name(metric) in DEFAULT_METRICS):
            yield from geometry_statements(series[metric, _subset_of(metric, series)])


def _of_metrics(
    frame: pd.DataFrame, rows: pd.DataFrame, series: dict[tuple[str, str], MetricSeries]
) -> Iterator[Insight]:
    loss, finished = loss_of_run(frame), is_finished(rows)
    for metric in dict.fromkeys(metric for metric, _ in series):
        chosen = series[metric, _subset_of(metric, series)]
        yield from layer_statements(chosen)
        yield from sequence_statements(chosen)
        if base_name(metric) in DEFAULT_METRICS:
            yield from profile_statements(chosen)
        if not finished:
            course = list(course_statements(chosen))
            yield from course
            if not any(each.kind in {"peak", "trough"} for each in course):  # where the course turns anyway
                yield from turn_statements(chosen)
            yield from coupling_statements(chosen, loss)
            yield from activation_statements(chosen)


def _subset_of(metric: str, series: dict[tuple[str, str], MetricSeries]) -> str:
    """Return the subset that is described: the one without attention sinks if it was measured, otherwise the first."""
    subsets = [subset for name, subset in series if name == metric]
    return "no_sink" if "no_sink" in subsets else subsets[0]


def _ranked(statements: Iterator[Insight]) -> list[Insight]:
    weighted = (
        each if each.metric is None or base_name(each.metric) in DEFAULT_METRICS
        else replace(each, weight=_OTHER_METRICS * each.weight)
        for each in statements
    )  # fmt: skip
    return sorted(weighted, key=lambda each: (SEVERITIES.index(each.severity), -each.weight, each.kind, each.sentence))


def _status(
    frame: pd.DataFrame, rows: pd.DataFrame, alerts: Sequence[Alert], statements: Sequence[Insight]
) -> tuple[Status, str]:
    """Return the status and the reason for it.

    A run has failed if a statement says so: the loss is not finite or has diverged, or states contain NaN or infinity.
    It is watched if an alert was raised in the second half of its measured steps, if it overfits, or if checkpoints or
    many values of the last step are missing.
    """
    if failed := [each for each in statements if each.severity == "failed"]:
        return "failed", failed[0].sentence
    steps = rows["step"].unique().tolist()
    if is_finished(rows) or len(steps) < MIN_LOSSES:
        if is_finished(rows):
            return "unknown", "A finished model has no course of training to judge."
        return "unknown", f"{len(steps)} measured steps are too few to judge; {MIN_LOSSES} are enough."
    recent = [alert for alert in alerts if alert.step >= _second_half(rows)]
    watched = [each for each in statements if each.severity == "watch" and each.kind in _WATCHED_KINDS]
    if recent:
        since = sorted({alert.step for alert in recent})
        return "watch", f"Alerts were raised at {len(since)} of the last {len(steps) - len(steps) // 2} measured steps."
    if watched:
        return "watch", watched[0].sentence
    has_loss = len(scalar(frame, LOSS)) >= MIN_LOSSES
    return "healthy", f"No alert in the second half of the run{', and the loss has not diverged' if has_loss else ''}."


def _second_half(rows: pd.DataFrame) -> int:
    """Return the first step of the second half of the measured steps."""
    steps = rows["step"].unique().tolist()
    return steps[len(steps) // 2]


def _link(insight: Insight, run: str) -> str:
    at = insight.steps[-1] if insight.steps else None
    if insight.kind in {"alert", "peak", "trough"}:
        at = insight.steps[0] if insight.kind == "alert" else insight.steps[1]
    return report_link(run, metric=insight.metric, subset=insight.subset, step=at)

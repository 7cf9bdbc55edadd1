"""One run with its status, its alerts, the statements on it, and the findings, judged."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

import pandas as pd

from repdyn.metrics import DEFAULT_METRICS
from repdyn.metrics.names import base_name
from repdyn.probe.design import DISTINCT
from repdyn.store.schema import LOSS
from repdyn.views.alerts import RULES, Rule
from repdyn.views.display import is_dimension_of_neighbours
from repdyn.views.judging import metrics, neighbours, training
from repdyn.views.judging.against import baseline_statements
from repdyn.views.judging.findings import JUDGED, Finding, JudgedRun, findings_of, on_kind
from repdyn.views.judging.insight import (
    SEVERITIES,
    Insight,
    LossCorrelations,
    RunInsights,
    Status,
    report_link,
)
from repdyn.views.judging.usual import Resemblance, resemblances, usual_statements
from repdyn.views.tables.continuity import collapsed_layers
from repdyn.views.tables.frames import by_stack, scalar
from repdyn.views.tables.runs import MeasuredRun
from repdyn.views.tables.series import MetricSeries
from repdyn.views.tables.style import of_stack
from repdyn.views.tables.texts import sampling

_STEP_SHOWN = {"alert": 0, "peak": 1, "trough": 1}
"""Which of the steps of a statement a link to it shows, by kind; of others the last."""
_OTHER_METRICS = 0.5  # weight of statements about metrics that are not measured by default
_WATCHED_KINDS = {"overfitting", "missing values", "failed measurement", *training.LAYER_KINDS}
"""Kinds of statements by which a run is watched, apart from alerts."""


@dataclass(frozen=True, eq=False)
class DescribedRun(MeasuredRun):
    """One run on one probe, or one stack of its model, with what every view says of it."""

    @cached_property
    def insights(self) -> RunInsights:
        """Return the status and the statements, with links to a report that shows the run under its
        label.
        """
        statements = ranked(
            chain(
                self._of_training,
                of_continuity(self),
                _of_metrics(self),
                baseline_statements(self),
                usual_statements(self.resemblances),
            )
        )
        status, reason = self.status
        return RunInsights(
            run=self.name,
            probe=self.probe,
            stack=self.stack,
            status=status,
            reason=reason,
            statements=tuple(map(self._linked, statements)),
            loss_correlations=self.loss_correlations,
        )

    def _linked(self, statement: Insight) -> Insight:
        """Return a statement with its stack, and a link to the chart that shows it."""
        step = None
        if statement.steps:
            step = statement.steps[_STEP_SHOWN.get(statement.kind, -1)]
        at = {"metric": statement.metric, "subset": statement.subset, "step": step}
        return replace(statement, stack=self.stack, link=report_link(self.label, **at))

    @cached_property
    def loss_correlations(self) -> LossCorrelations:
        """Return the correlations of the metrics with the loss over the checkpoints."""
        return metrics.loss_correlations(self.frame, self.series)

    @cached_property
    def status(self) -> tuple[Status, str]:
        """Return the status and the reason for it; statements on the course of single metrics do
        not change it.

        A run has failed if a statement says so: the loss is not finite or has diverged, or states
        contain NaN or infinity. It is watched if a layer collapsed or its block changes nothing, if
        an alert was raised in the second half of its steps, if it overfits, or if checkpoints or
        many values of the last step are missing.
        """
        statements = ranked(self._of_training)
        failed = next(filter(_is_failure, statements), None)
        if failed is not None:
            return "failed", failed.sentence
        # a failure counts first: states of a finished model may contain NaN too
        if self.finished:
            return "unknown", "A finished model has no course of training to judge."
        if (number := len(self.steps)) < training.MIN_LOSSES:
            return (
                "unknown",
                f"{number} of the {training.MIN_LOSSES} measured steps that a judgement needs.",
            )
        if (watched := self._watched(statements)) is not None:
            return "watch", watched
        has_loss = len(scalar(self.frame, LOSS)) >= training.MIN_LOSSES
        loss = ", and the loss has not diverged" if has_loss else ""
        return "healthy", f"No alert in the second half of the run{loss}."

    def _watched(self, statements: Sequence[Insight]) -> str | None:
        """Return why someone should look at the run; None where nothing says so."""
        watched = list(filter(_is_watched, statements))
        of_layers = [each for each in watched if each.kind in training.LAYER_KINDS]
        # a collapsed layer explains the alerts that it raises, and is named in their place
        if of_layers:
            return of_layers[0].sentence
        recent = [alert for alert in self.alerts if alert.step >= self._second_half]
        if recent:
            n_alerted = len({alert.step for alert in recent})
            n_steps = sum(step >= self._second_half for step in self.steps)
            rules = ", ".join(dict.fromkeys(alert.rule for alert in recent))
            at = f"{n_alerted} of the last {n_steps} measured steps"
            return f"Alerts ({rules}) were raised at {at}."
        doubtful = [*watched, *training.repeated_checkpoints(self.rows)]
        return doubtful[0].sentence if doubtful else None

    @property
    def _second_half(self) -> float:
        """Return the step half way between the first and the last measured step.

        Half of the steps of a schedule that doubles lie in the warm-up, where each change is larger
        than those before.
        """
        return (self.steps[0] + self.steps[-1]) / 2

    @cached_property
    def _of_training(self) -> list[Insight]:
        of_losses = (training.loss_statements, training.overfitting, training.probe_loss_statements)
        of_subjects = [
            *(statements(self.frame) for statements in of_losses if not self.finished),
            training.alert_statements(self.alerts, self._second_half, finished=self.finished),
            training.failed_measurements(self.frame),
            training.layer_failures(self.rows),
            metrics.missing_statements(self.rows),
        ]
        statements = [*chain(*of_subjects)]
        collapses = filter(_is_collapse, statements)
        collapsed = set(chain.from_iterable(statement.layers for statement in collapses))
        return [_without_consequence(statement, collapsed) for statement in statements]

    @cached_property
    def resemblances(self) -> list[Resemblance]:
        """Return where its middle lies among measured models."""
        return list(resemblances(self))

    @cached_property
    def findings(self) -> list[Finding]:
        """Return the findings published for this kind of model, judged; empty if none of the
        metrics that they are about was measured on tokens.
        """
        is_judged = self.vectors_of == "tokens" and any(
            metric in JUDGED for metric, _ in self.series
        )
        return on_kind(findings_of(self.judged), self.causal) if is_judged else []

    @cached_property
    def sampling(self) -> str:
        """Return on how many vectors its values rest, and how they were drawn, in words."""
        return sampling(self.rows)

    @cached_property
    def judged(self) -> JudgedRun:
        """Return what published findings are judged on, which the findings on seeds take too."""
        return JudgedRun(self.frame, self.rows)


def stacks_of_run(
    frame: pd.DataFrame,
    rules: Sequence[Rule] = RULES,
    label: str | None = None,
    configuration: Mapping[str, Any] | None = None,
) -> list[DescribedRun]:
    """Return each stack of one run, from all of its rows on one probe; its label is its name unless
    given.
    """
    name = str(frame["run"].iloc[0])
    return [
        DescribedRun(
            name=name,
            label=of_stack(label or name, stack),
            stack=stack,
            frame=rows,
            rules=rules,
            configuration=configuration or {},
        )
        for stack, rows in by_stack(frame).items()
    ]


def of_continuity(run: DescribedRun) -> Iterator[Insight]:
    """Yield the steps that repeat another one or are out of line; of geometry, if there is no
    training loss, in which case there are no alerts for its jumps."""
    if run.finished:
        return
    if not collapsed_layers(run.rows):  # the values that are left may stay the same
        yield from training.repeated_checkpoints(run.rows)
    yield from training.out_of_line_statements(run.frame)
    if scalar(run.frame, LOSS).empty:
        for chosen in chosen_series(run):
            if base_name(chosen.metric) in DEFAULT_METRICS:
                yield from _of_both_clouds(run, chosen, training.geometry_statements)


def _of_metrics(run: DescribedRun) -> Iterator[Insight]:
    yield from metrics.window_statements(run.rows)
    yield from metrics.massive_statements(run.series)
    told = set()
    for chosen in chosen_series(run):
        for statement in _of_depth_and_course(run, chosen):
            if neighbours.begins_with_nearest(statement):
                told.add(chosen.metric)
            yield statement
        yield from metrics.condensation_statements(chosen)
        yield from metrics.valley_statements(chosen)
        if not run.finished:
            coupling = partial(metrics.coupling_statements, correlations=run.loss_correlations)
            yield from _of_both_clouds(run, chosen, coupling)
            yield from metrics.activation_statements(chosen)
    yield from neighbours.nearest_is_same(run.rows, told)


def _of_both_clouds(
    run: DescribedRun, chosen: MetricSeries, kinds: neighbours.Statements
) -> Iterator[Insight]:
    """Yield statements on a metric; of a dimension that was measured without repeats too, those
    that both of its curves have, and of the others that they have not."""
    beside = None
    if is_dimension_of_neighbours(chosen.metric):
        beside = neighbours.distinct_of(chosen, run.series)
    if beside is not None and beside.steps_with_values:
        yield from neighbours.of_both(kinds, chosen, beside, run.rows)
    else:
        yield from kinds(chosen)


def _of_depth_and_course(run: DescribedRun, chosen: MetricSeries) -> Iterator[Insight]:
    """Yield the layers that stand out, the profile and the course of a metric; of a dimension of
    nearest neighbours as both of its curves have them."""
    detectors = [metrics.layer_statements]
    if base_name(chosen.metric) in DEFAULT_METRICS:
        detectors.append(metrics.profile_statements)
    if not run.finished:
        detectors.append(metrics.course_statements)
    of_tokens = run.vectors_of == "tokens" and chosen.subset == "all"
    for statements_of in detectors:
        if of_tokens and is_dimension_of_neighbours(chosen.metric):
            on_distinct = neighbours.distinct_of(chosen, run.series)
            yield from neighbours.of_both(statements_of, chosen, on_distinct, run.rows)
        else:
            yield from statements_of(chosen)


def chosen_series(run: MeasuredRun) -> Iterator[MetricSeries]:
    """Yield the series of each metric that is described: without attention sinks if it was measured
    so, otherwise on the first subset; on all vectors where those without repeats stand beside
    them."""
    for metric in dict.fromkeys(metric for metric, _ in run.series):
        subsets = [subset for name, subset in run.series if name == metric]
        has_both = "all" in subsets and not set(DISTINCT).isdisjoint(subsets)
        is_without = "no_sink" in subsets and not has_both
        yield run.series[metric, "no_sink" if is_without else subsets[0]]


def ranked(statements: Iterable[Insight]) -> list[Insight]:
    """Return statements by severity, then by weight, of which those on metrics not measured by
    default have half.
    """
    return sorted(map(_weighted, statements), key=_rank)


def _weighted(statement: Insight) -> Insight:
    if statement.metric is None or base_name(statement.metric) in DEFAULT_METRICS:
        return statement
    return replace(statement, weight=_OTHER_METRICS * statement.weight)


def _rank(statement: Insight) -> tuple[int, float, str, str]:
    severity = SEVERITIES.index(statement.severity)
    return severity, -statement.weight, statement.kind, statement.sentence


def _is_collapse(statement: Insight) -> bool:
    return statement.kind == "collapsed layer"


def _is_failure(statement: Insight) -> bool:
    return statement.severity == "failed"


def _is_watched(statement: Insight) -> bool:
    return statement.severity == "watch" and statement.kind in _WATCHED_KINDS


def _without_consequence(statement: Insight, collapsed: set[int]) -> Insight:
    """Return a statement as a note where it follows from the collapse of layers: what a collapsed
    layer lacks."""
    can_follow = statement.kind in {"alert", "missing values"} and bool(statement.layers)
    if can_follow and collapsed.issuperset(statement.layers):
        return replace(statement, severity="note", weight=0.0)
    return statement

"""Statements about the training: its loss and that on the probe, its alerts, steps out of line with
others.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view

from repdyn.store.schema import LOSS, PROBE_LOSS, VALIDATION_LOSS
from repdyn.utils.numbers import number_text
from repdyn.utils.printing import plural
from repdyn.views.alerts import Alert
from repdyn.views.judging.insight import Insight
from repdyn.views.tables.continuity import (
    MIN_JUMP,
    Jump,
    collapsed_layers,
    losses_out_of_line,
    repeated_layers,
    repeated_values,
)
from repdyn.views.tables.frames import failures, is_finished, scalar, scalar_rows
from repdyn.views.tables.series import MetricSeries
from repdyn.views.tables.style import metric_title
from repdyn.views.tables.texts import failure_line
from repdyn.views.tables.words import alert_text, layer_names, steps_in_words

DIVERGED = 1.25
"""The loss has diverged at this multiple of its lowest level: the bound of the default alert on the
loss.
"""
LEVEL_STEPS = (
    3  # number of stored losses whose median is the level of the loss; single losses are noisy
)
MIN_LOSSES = 2 * LEVEL_STEPS
MIN_GAP = 0.05
"""Least growth of validation loss above its lowest level that counts as overfitting, as a share of
that level.
"""


MIN_GENERALISATION_GAP = 0.1
"""Least difference of validation and training loss that is mentioned, as a share of the training
loss.
"""
_MAX_GROUPS = 3  # groups of equal steps that are named
_OTHER_WEIGHTS = "the weights of another step"
_SPIKE_OR_OTHER_WEIGHTS = f"a spike of the training, or {_OTHER_WEIGHTS}"


def loss_statements(frame: pd.DataFrame) -> Iterator[Insight]:
    """Yield whether the training loss is not a number or has diverged, or how far it has come."""
    rows = scalar_rows(frame, LOSS, ["step", "value"])
    if rows.empty:
        return
    last_step = int(rows["step"].iloc[-1])
    last = float(rows["value"].iloc[-1])
    if not math.isfinite(last):
        finite = np.flatnonzero(np.isfinite(rows["value"].to_numpy(float)))
        # after the last finite one: a single loss that is no number may be a step that was skipped
        since = int(rows["step"].iloc[finite[-1] + 1 if len(finite) else 0])
        sentence = (
            f"The training loss has been {'NaN' if math.isnan(last) else 'infinite'} since step "
            f"{since:,}."
        )
        yield Insight("failed", "loss not finite", sentence, steps=(since, last_step), weight=1.0)
        return
    loss = scalar(frame, LOSS)
    if len(loss) < MIN_LOSSES:
        return
    medians = np.median(sliding_window_view(loss.to_numpy(float), LEVEL_STEPS), axis=-1)
    level = pd.Series(medians, loss.index[LEVEL_STEPS - 1 :])
    lowest = float(level.min())
    last_level = float(level.iloc[-1])
    ratio = last_level / lowest if lowest > 0 else math.nan
    evidence = {"lowest_level": lowest, "last_level": last_level, "ratio": ratio}
    if ratio >= DIVERGED:
        at = int(str(level.idxmin()))
        sentence = (
            f"The training loss diverged: its level is {number_text(last_level)}, {ratio - 1:.0%} "
            f"above the lowest, {number_text(lowest)} near step {at:,}."
        )
        yield Insight(
            "failed",
            "loss diverged",
            sentence,
            steps=(at, last_step),
            evidence=evidence,
            weight=1.0,
        )
    else:
        yield from _fall("The training loss", loss, evidence)


def probe_loss_statements(frame: pd.DataFrame) -> Iterator[Insight]:
    """Yield how far the loss on the probe fell in a run without training losses."""
    losses = scalar(frame, PROBE_LOSS)
    if len(losses) >= MIN_LOSSES and scalar(frame, LOSS).empty:
        first, last = losses.iloc[[0, -1]].tolist()
        yield from _fall("The loss on the probe", losses, {"first": first, "last": last})


def _fall(what: str, losses: pd.Series, evidence: dict[str, float]) -> Iterator[Insight]:
    """Yield how far a loss fell, or that it did not change in the digits that are shown."""
    first, last = losses.iloc[[0, -1]].tolist()
    start = int(losses.index[0])
    end = int(losses.index[-1])
    before = number_text(first)
    after = number_text(last)
    if last < first or before == after:
        yield Insight(
            "note",
            "loss",
            f"{what} was {after} at step {start:,} and at step {end:,}."
            if before == after
            else f"{what} fell from {before} at step {start:,} to {after} at step {end:,}.",
            steps=(start, end),
            evidence=evidence,
            weight=0.2,
        )


def overfitting(frame: pd.DataFrame) -> Iterator[Insight]:
    """Yield whether validation loss rises while training loss falls."""
    validation = scalar(frame, VALIDATION_LOSS)
    training = scalar(frame, LOSS)
    if len(validation) < LEVEL_STEPS or len(training) < MIN_LOSSES:
        return
    at = int(str(validation.idxmin()))
    end = int(validation.index[-1])
    lowest = float(validation.min())
    last = float(validation.iloc[-1])
    growth = last / lowest - 1 if lowest > 0 else math.nan
    level = training.tail(LEVEL_STEPS).median()
    # both are levels, since a single training loss is noisier than the gap that is asked for
    level_then = training.loc[:at].tail(LEVEL_STEPS).median()
    gap = last - level
    evidence = {"lowest_validation_loss": lowest, "last_validation_loss": last, "gap": gap}
    if growth > MIN_GAP and level < level_then:
        sentence = (
            f"The model overfits: validation loss grew from {number_text(lowest)} at step {at:,} "
            f"to {number_text(last)}, while training loss fell."
        )
        yield Insight(
            "watch",
            "overfitting",
            sentence,
            steps=(at, end),
            evidence=evidence,
            weight=min(1.0, growth),
        )
    elif gap > MIN_GENERALISATION_GAP * level:
        sentence = (
            f"Validation loss is {number_text(last)}, {number_text(gap)} above training loss at "
            f"step {end:,}."
        )
        yield Insight(
            "note", "generalisation gap", sentence, steps=(end,), evidence=evidence, weight=0.3
        )


def alert_statements(
    alerts: Sequence[Alert], recent: float, *, finished: bool = False
) -> Iterator[Insight]:
    """Yield a statement for each rule and metric that raised alerts, about the first and the number
    of the others.

    Alerts before the ``recent`` step call for no attention any more: they are notes. So are those
    of a ``finished`` model, which has no steps.
    """
    by_subject = sorted(alerts, key=lambda alert: (alert.rule, alert.subject, alert.step))
    for (rule, _), group in groupby(by_subject, key=lambda alert: (alert.rule, alert.subject)):
        raised = list(group)
        first = raised[0]
        steps: list[int] = sorted({alert.step for alert in raised})
        text = alert_text([alert for alert in raised if alert.step == steps[0]])
        n_later = len(steps) - 1
        further = f", and at {n_later} later {plural(n_later, 'step')}" if n_later else ""
        at = "" if finished else f" at step {steps[0]:,}{further}"
        yield Insight(
            "watch" if steps[-1] >= recent and not finished else "note",
            "alert",
            f"Alert ({rule}){at}: {text}.",
            metric=None if first.subset is None else first.metric,
            subset=first.subset,
            stack=first.stack,
            layers=tuple(sorted({alert.layer for alert in raised if alert.layer is not None})),
            steps=tuple(steps),
            evidence={"rule": rule, "alerts": float(len(raised))},
            # a change by a factor of ten or more has the full weight
            weight=0.5 + 0.5 * min(1.0, max(alert.log_change for alert in raised) / math.log(10)),
        )


def failed_measurements(frame: pd.DataFrame) -> Iterator[Insight]:
    """Yield the checkpoints that could not be measured."""
    if line := failure_line(frame):
        steps: list[int] = sorted(failures(frame)["step"].astype(int).unique().tolist())
        yield Insight("watch", "failed measurement", f"{line}.", steps=tuple(steps), weight=0.6)


LAYER_KINDS = {
    "collapsed layer": (
        ("collapsed", "all of its vectors are equal up to rounding"),
        (
            "collapsed",
            "all vectors of each are equal up to rounding; the first may explain the others",
        ),
    ),
    "idle block": (
        ("has the values of the layer before", "its block changes nothing that was measured"),
        ("have the values of the layers before", "their blocks change nothing that was measured"),
    ),
}
"""What is said of a layer, and of several, without information of their own, by the kind of the
statement.
"""


def layer_failures(rows: pd.DataFrame) -> Iterator[Insight]:
    """Yield the layers that collapsed, and those whose blocks change nothing, with the step since
    which they do.

    Blocks do nothing before the training if their output is initialised to 0.
    """
    last = int(rows["step"].iloc[-1])
    finished = is_finished(rows)
    idle = repeated_layers(rows) if last > 0 or finished else {}
    failed = (collapsed_layers(rows), idle)
    if not any(failed):
        return
    of_blocks = rows.loc[(rows["step"] == last) & (rows["layer"] > 0), ["layer", "module"]].dropna()
    modules = of_blocks.drop_duplicates("layer").set_index("layer")["module"]
    for kind, since_of_layer in zip(LAYER_KINDS, failed, strict=True):
        of_one, of_several = LAYER_KINDS[kind]
        for since in sorted(set(since_of_layer.values())):
            layers = tuple(
                sorted(layer for layer, first in since_of_layer.items() if first == since)
            )
            names = dict.fromkeys(
                str(modules[layer]) for layer in (layers[0], layers[-1]) if layer in modules
            )
            named = f" ({' to '.join(names)})" if names else ""
            what, why = of_several if len(layers) > 1 else of_one
            at = "" if finished else f" since step {since:,}"
            sentence = f"{layer_names(layers).capitalize()}{named} {what}{at}: {why}."
            steps = tuple(dict.fromkeys([since, last]))
            yield Insight("watch", kind, sentence, layers=layers, steps=steps, weight=1.0)


def repeated_checkpoints(rows: pd.DataFrame) -> Iterator[Insight]:
    """Yield the steps that have the values of another step.

    The first two steps may: the learning rate of many trainings starts at zero.
    """
    first_two = sorted(rows["step"].unique().tolist())[:2]
    if groups := sorted(steps for steps in repeated_values(rows) if list(steps) != first_two):
        named = [steps_in_words(steps).removeprefix("steps ") for steps in groups]
        n_more = len(named) - _MAX_GROUPS
        more = f" and {n_more} further groups" if n_more > 0 else ""
        why = "copies of one checkpoint, or no update of the weights in between."
        sentence = (
            f"Steps {'; '.join(named[:_MAX_GROUPS])}{more} have the same values to the last bit: "
            f"{why}"
        )
        steps = tuple(sorted({step for group in groups for step in group}))
        yield Insight("watch", "repeated checkpoint", sentence, steps=steps, weight=0.8)


OUT_OF_LINE = "geometry out of line"
"""Kind of a statement that a metric is far from its values at the steps around."""


def geometry_statements(series: MetricSeries) -> Iterator[Insight]:
    """Yield the steps at which the mean of a metric over layers is out of line, by more than its
    interval.
    """
    of_mean = series.layer_mean
    judged = losses_out_of_line(of_mean.mean.dropna(), of_mean.margin / MIN_JUMP, may_turn=True)
    # before training, the geometry may be any
    judged = judged and [jump for jump in judged if not jump.is_end]
    yield from _out_of_line(
        OUT_OF_LINE,
        f"{metric_title(series.metric)}, mean over layers,",
        judged,
        why=_SPIKE_OR_OTHER_WEIGHTS,
        name="value",
        weight=0.7,
        of=series,
    )


def out_of_line_statements(frame: pd.DataFrame) -> Iterator[Insight]:
    """Yield the steps whose loss on the probe is out of line."""
    losses = scalar(frame, PROBE_LOSS)
    rows = scalar_rows(frame, PROBE_LOSS, ["step", "std_error"])
    judged = losses_out_of_line(
        losses, pd.Series(rows["std_error"].to_numpy(float), rows["step"].to_numpy(int))
    )
    why = _SPIKE_OR_OTHER_WEIGHTS
    # no spike makes a loss lower than both of its neighbours
    if judged and judged[0].loss < min(value for _, value in judged[0].neighbours):
        why = (
            f"{_OTHER_WEIGHTS} ({number_text(float(losses.iloc[-1]))} at step "
            f"{int(losses.index[-1]):,})"
        )
    yield from _out_of_line(
        "loss out of line", "The loss on the probe", judged, why=why, name="loss", weight=0.75
    )


def _out_of_line(
    kind: str,
    what: str,
    judged: list[Jump] | None,
    *,
    why: str,
    name: str,
    weight: float,
    of: MetricSeries | None = None,
) -> Iterator[Insight]:
    """Yield the steps at which a quantity jumps, with the neighbours of the largest jump; or that
    none is named.

    Args:
        what: the subject of the sentence.
        judged: the jumps, the largest first; None where nothing tells which steps are wrong.
        why: what may be the cause.
        name: of the quantity, among the evidence.
        of: the metric, where the quantity is one.
    """
    metric, subset = (None, None) if of is None else of.key
    if judged is None:
        unknown = "not judged, since nothing tells which steps are wrong."
        sentence = f"{what} would be out of line at more than a sixth of the steps: {unknown}"
        yield Insight("note", kind, sentence, metric=metric, subset=subset, weight=0.3)
    if not judged:
        return
    largest, *others = judged
    (before, value_before), (after, value_after) = largest.neighbours
    around = (
        f"{number_text(value_before)} at step {before:,} and {number_text(value_after)} at step "
        f"{after:,}"
    )
    more = (
        f" The same holds at {steps_in_words(sorted(jump.step for jump in others))}."
        if others
        else ""
    )
    value = f"{number_text(largest.loss)} at step {largest.step:,}"
    evidence = {
        name: largest.loss,
        "before": value_before,
        "after": value_after,
        "jump": largest.size,
    }
    steps = tuple(sorted(jump.step for jump in judged))
    sentence = f"{what} is {value}, out of line with {around}: {why}.{more}"
    yield Insight(
        severity="watch",
        kind=kind,
        sentence=sentence,
        metric=metric,
        subset=subset,
        steps=steps,
        evidence=evidence,
        weight=weight,
    )

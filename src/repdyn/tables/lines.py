"""Lines of text on a run: the cost of its checkpoints, those that failed or are copies, alerts, loss on the probe."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import groupby

import pandas as pd

from repdyn.alerts import Alert
from repdyn.store.schema import PROBE_ACCURACY, PROBE_BITS_PER_BYTE, PROBE_CALIBRATION_ERROR, PROBE_LOSS
from repdyn.tables.frames import LOSS_TITLES, failures, is_finished, scalar
from repdyn.tables.runs import spans
from repdyn.tables.style import number_text
from repdyn.utils.printing import gigabytes

PHASES = ("download", "load", "forward", "kernels")
"""Phases of the measurement of a swept checkpoint, stored as the scalars "seconds/PHASE"."""
DOWNLOADED = "bytes/download"

_MAX_STEPS = 5
_MAX_KINDS = 2
_MAX_REASON = 72


def cost_line(frame: pd.DataFrame) -> str | None:
    """Return the median seconds of each phase of a run, and the bytes downloaded; None if none are stored."""
    seconds = {phase: taken.median() for phase in PHASES if not (taken := scalar(frame, f"seconds/{phase}")).empty}
    if not seconds:
        return None
    text = "per checkpoint: " + ", ".join(f"{phase} {median:,.1f} s" for phase, median in seconds.items())
    total = sum(seconds.values())
    if "kernels" in seconds and len(seconds) > 1 and total > 0:
        text += f" ({seconds['kernels'] / total:.0%} of it in the kernels)"
    downloaded = scalar(frame, DOWNLOADED).sum()
    return f"{text}; {gigabytes(downloaded)} downloaded" if downloaded else text


def failure_line(frame: pd.DataFrame) -> str | None:
    """Return how many checkpoints of a run failed, at which steps and why, by kind of reason; None if all succeeded."""
    checkpoints = failures(frame).drop_duplicates("step").sort_values("step")
    if checkpoints.empty:
        return None
    # reasons that differ only in a commit or a number are grouped
    kinds = [re.sub(r"\d+", "", _cleaned(reason)) for reason in checkpoints["reason"]]
    groups = [group for _, group in checkpoints.groupby(kinds, sort=False)]
    parts = [_group(group) for group in groups[:_MAX_KINDS]]
    if more := sum(len(group) for group in groups[_MAX_KINDS:]):
        parts.append(f"{more} for other reasons")
    if bool(checkpoints["revision"].notna().any()):
        parts.append("--retry-failed tries again")
    return f"{len(checkpoints)} checkpoint{'s' * (len(checkpoints) > 1)} failed: {'; '.join(parts)}"


def copies_line(frame: pd.DataFrame) -> str | None:
    """Return how many checkpoints of one run have the weights, or single files, of which other ones, and were therefore
    not measured; None if all have their own."""
    lines = []
    for column, what in (("same_as", "the weights"), ("mixed_with", "single files")):
        found = frame.loc[frame[column].notna()].drop_duplicates(["run", "step", column]).sort_values("step")
        if len(found):
            parts = [f"{_steps(group)} of {name}" for name, group in found.groupby(column, sort=False, observed=True)]
            verb = "checkpoint has" if len(found) == 1 else "checkpoints have"
            of_others = f"{verb} {what} of another one and no values"
            lines.append(f"{len(found)} {of_others}: {'; '.join(parts[:_MAX_KINDS])}")
    return "; ".join(lines) or None


def seconds_by_metric(rows: pd.DataFrame) -> pd.Series:
    """Return the median over checkpoints of the seconds each metric took on all layers and token subsets together."""
    took = rows.pivot_table(index="step", columns="metric", values="seconds", aggfunc="sum", observed=True)
    return took.median()


def _group(group: pd.DataFrame) -> str:
    reason = _cleaned(str(group["reason"].iloc[0]))
    short = reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON].rstrip()}..."
    if is_finished(group):
        return short
    return f"{_steps(group)}: {short}"


def _steps(checkpoints: pd.DataFrame) -> str:
    steps = ", ".join(f"{step:,}" for step in checkpoints["step"].tolist()[:_MAX_STEPS])
    more = f" and {len(checkpoints) - _MAX_STEPS} more" if len(checkpoints) > _MAX_STEPS else ""
    return f"step {steps}{more}"


def _cleaned(reason: str) -> str:
    """Return a reason in one line and without commits.

    >>> _cleaned("the hub has no such revision\\nof lab/model@0123abc (404)")
    'the hub has no such revision of lab/model (404)'
    """
    return re.sub(r"(?<=\S)@[^\s:]+", "", " ".join(reason.split()))


def alert_lines(alerts: Iterable[Alert]) -> list[str]:
    """Return a line for each step, rule and metric, with the numbers of the layer that changed most."""
    return [f"step {step:,}, {rule}: {text}" for step, rule, text in alert_events(alerts)]


def alert_events(alerts: Iterable[Alert]) -> list[tuple[int, str, str]]:
    """Return step, rule and text of each line, of alerts in the order of :func:`repdyn.alerts.find_alerts`."""
    groups = groupby(alerts, key=lambda alert: (alert.step, alert.rule, alert.subject))
    return [(step, rule, alert_text(list(group))) for (step, rule, _), group in groups]


def alert_text(alerts: Sequence[Alert]) -> str:
    """Describe the alerts of one rule and metric at one step."""

    def change(alert: Alert) -> float:
        """Return the absolute log-ratio of the value and the value before; 0 if one of them is missing."""
        sizes = abs(alert.value), abs(alert.previous_value)
        known = all(math.isfinite(size) and size > 0 for size in sizes)
        return abs(math.log(sizes[0]) - math.log(sizes[1])) if known else 0.0

    worst = max(alerts, key=change)
    if len(alerts) == 1:
        return worst.message
    layers = spans([alert.layer for alert in alerts if alert.layer is not None])
    return f"{worst.subject} of layers {layers} {worst.event}: in layer {worst.layer}, {worst.detail}"


_BESIDE = {
    PROBE_BITS_PER_BYTE: "{:.3g} bits per byte",
    PROBE_ACCURACY: "accuracy {:.0%}",
    PROBE_CALIBRATION_ERROR: "calibration error {:.1%}",
}
"""Texts of the values shown next to the last loss on the probe, by the names of the scalars."""


def probe_loss_line(frame: pd.DataFrame) -> str | None:
    """Return the loss on the probe at the first and the last step in words, or why there is none.

    For example "loss on the probe 10.9 at step 0, 2.3 at step 1,000 (0.8 bits per byte, accuracy 45%, calibration error
    2%)"; None if it was not measured.
    """
    rows = frame.loc[frame["layer"].isna() & (frame["metric"] == PROBE_LOSS)].sort_values("step")
    if rows.empty:
        return None
    title, losses = LOSS_TITLES[PROBE_LOSS], scalar(frame, PROBE_LOSS)
    if losses.empty:
        return f"no {title}: {rows['reason'].iloc[-1]}"
    ends = list(dict.fromkeys([0, len(losses) - 1]))
    steps, values = losses.index.to_numpy(int)[ends], losses.to_numpy(float)[ends]
    has_steps = not is_finished(rows)
    texts = [f"{number_text(value)}{f' at step {at:,}' * has_steps}" for at, value in zip(steps, values, strict=True)]
    others = {name: scalar(frame, name) for name in _BESIDE}
    beside = [_BESIDE[name].format(known.loc[steps[-1]]) for name, known in others.items() if steps[-1] in known.index]
    more = f" ({', '.join(beside)})" if beside else ""
    return f"{title} {', '.join(texts)}{more}"

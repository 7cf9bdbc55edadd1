"""Statements about the loss on the probe."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from repdyn.diagnosis.insight import Insight
from repdyn.diagnosis.out_of_line import neighbours_text, others_text, too_many_statements
from repdyn.diagnosis.training import MIN_LOSSES
from repdyn.store.scalars import LOSS, PROBE_LOSS
from repdyn.tables.continuity import losses_out_of_line
from repdyn.tables.frames import scalar
from repdyn.tables.numbers import number_text


def probe_loss_statements(frame: pd.DataFrame) -> Iterator[Insight]:
    """Yield how far the loss on the probe fell in a run without training losses.

    Args:
        frame: all rows of one run on one probe, scalars among them.
    """
    losses = scalar(frame, PROBE_LOSS)
    if len(losses) >= MIN_LOSSES and scalar(frame, LOSS).empty:
        yield from _fall(losses)


def _fall(losses: pd.Series) -> Iterator[Insight]:
    steps, values = losses.index.to_numpy(int), losses.to_numpy(float)
    first, last = float(values[0]), float(values[-1])
    if last < first:
        sentence = (
            f"The loss on the probe fell from {number_text(first)} at step {steps[0]:,} to {number_text(last)} at step "
            f"{steps[-1]:,}."
        )
        evidence = {"first": first, "last": last}
        yield Insight("note", "loss", sentence, steps=(int(steps[0]), int(steps[-1])), evidence=evidence, weight=0.2)


def out_of_line_statements(frame: pd.DataFrame) -> Iterator[Insight]:
    """Yield the steps whose loss on the probe is out of line.

    Args:
        frame: all rows of one run on one probe, scalars among them.
    """
    losses = scalar(frame, PROBE_LOSS)
    judged = losses_out_of_line(losses, _std_errors(frame))
    yield from too_many_statements(judged, "The loss on the probe", "loss out of line")
    if not judged.found:
        return
    largest = judged.found[0]
    (_, loss_before), (_, loss_after) = largest.neighbours
    last_step, last = int(losses.index[-1]), float(losses.iloc[-1])
    is_low = largest.loss < min(loss_before, loss_after)
    sentence = (
        f"The loss on the probe is {number_text(largest.loss)} at step {largest.step:,}, out of line with "
        f"{neighbours_text(largest)}: "
        f"{'' if is_low else 'a spike of the training, or '}the weights of another step"
        f"{f' ({number_text(last)} at step {last_step:,})' * is_low}."
        f"{others_text('So are those of step', judged.found)}"
    )
    evidence = {"loss": largest.loss, "before": loss_before, "after": loss_after, "jump": largest.size, "last": last}
    steps = tuple(sorted(jump.step for jump in judged.found))
    yield Insight("watch", "loss out of line", sentence, steps=steps, evidence=evidence, weight=0.75)


def _std_errors(frame: pd.DataFrame) -> pd.Series:
    rows = frame.loc[frame["layer"].isna() & (frame["metric"] == PROBE_LOSS), ["step", "std_error"]]
    return pd.Series(rows["std_error"].to_numpy(float), index=rows["step"].to_numpy(int))

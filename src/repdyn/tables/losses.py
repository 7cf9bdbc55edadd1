"""The loss of a run, against which its geometry is shown."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from repdyn.store.schema import (
    LOSS,
    PROBE_ACCURACY,
    PROBE_BITS_PER_BYTE,
    PROBE_CALIBRATION_ERROR,
    PROBE_LOSS,
    VALIDATION_LOSS,
)
from repdyn.tables.frames import is_finished, scalar
from repdyn.tables.numbers import number_text

LOSS_TITLES = {LOSS: "training loss", VALIDATION_LOSS: "validation loss", PROBE_LOSS: "loss on the probe"}
"""Titles of the stored losses, by the names of their scalars."""
_SPARSE = 0.5
"""The loss on the probe is sparse if it is known at less than this share of the number of training losses."""
_BESIDE = {
    PROBE_BITS_PER_BYTE: "{:.3g} bits per byte",
    PROBE_ACCURACY: "accuracy {:.0%}",
    PROBE_CALIBRATION_ERROR: "calibration error {:.1%}",
}
"""Texts of the values shown next to the last loss on the probe, by the names of the scalars."""


class RunLoss(NamedTuple):
    """A loss of a run: the name of its scalar, and its values by step, ascending and without NaN."""

    name: str
    values: pd.Series

    @property
    def title(self) -> str:
        """The title of the loss, for use in a sentence."""
        return LOSS_TITLES[self.name]


def loss_of_run(frame: pd.DataFrame) -> RunLoss:
    """Return the loss that the geometry of a run is compared with: that on the probe, otherwise the training loss.

    The loss on the probe is of the same text at every step, and of the weights that the geometry is of; the training
    loss is of one batch, a step earlier. The training loss is returned if it is known at more than twice as many steps,
    as in a run that measured the loss on the probe only after it was resumed.
    """
    on_probe, training = scalar(frame, PROBE_LOSS), scalar(frame, LOSS)
    if on_probe.empty or len(on_probe) < _SPARSE * len(training):
        return RunLoss(LOSS, training)
    return RunLoss(PROBE_LOSS, on_probe)


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

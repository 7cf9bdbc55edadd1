"""Names of the scalars of a training that are stored with its measurements."""

from __future__ import annotations

LOSS = "train/loss"
"""The training loss of the step before the measurement."""
LEARNING_RATE = "train/learning_rate"
"""The learning rate of the optimizer's first parameter group at the time of the measurement."""

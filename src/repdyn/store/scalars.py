"""Names of the scalars of a training that are stored with its measurements."""

from __future__ import annotations

LOSS = "train/loss"
"""The training loss of the step before the measurement."""
VALIDATION_LOSS = "validation/loss"
"""The last validation loss before the measurement; stored if there was a validation since the previous one."""
LEARNING_RATE = "train/learning_rate"
"""The learning rate of the optimizer's first parameter group at the time of the measurement."""
EMBEDDING_NORM = "weights/input_embedding_norm"
"""The median norm of the input embeddings of a swept checkpoint: it tells checkpoints apart, and changes smoothly."""
EMBEDDING_COSINE = "weights/input_embedding_cosine"
"""The median cosine of the input embeddings of a swept checkpoint to those of the checkpoint that was measured first,
whose step the row has in ``compared_to``."""

PROBE_LOSS = "probe/loss"
"""The mean loss on the probe's tokens in nats: of the next token, or of masked ones for an encoder."""
PROBE_BITS_PER_BYTE = "probe/bits_per_byte"
"""The loss on the probe in bits per byte of text, comparable between vocabularies; of decoders only."""
PROBE_ACCURACY = "probe/accuracy"
"""The share of the probe's predicted tokens that are the most probable ones, in [0, 1]."""
PROBE_CALIBRATION_ERROR = "probe/calibration_error"
"""The expected calibration error of these predictions, in [0, 1]."""
PROBE_SCALARS = (PROBE_LOSS, PROBE_BITS_PER_BYTE, PROBE_ACCURACY, PROBE_CALIBRATION_ERROR)

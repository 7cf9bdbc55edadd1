"""The criteria by which the published findings are judged on a run: their text and the numbers in it.

docs/findings.md has the same sentences.
"""

from __future__ import annotations

VERSION = "2, 2026-11-22"
"""Version of the criteria, and the date on which they were fixed."""

PAPER = "Internal Representation Dynamics in Transformers / The Shape of Learning (Findings of EACL 2024)"

MORE = 0.10
"""Smallest relative change that counts."""
MIDDLE = (0.25, 0.75)
"""Positions between which a block is a middle one: 0 is the first block, 1 the last."""
BELL_BLOCKS, UNIFORM_BLOCKS = 5, 3
"""Number of blocks that a profile needs."""
UNIFORM_RANGE = 0.50
"""Share by which the highest block of a uniform profile may exceed the lowest."""
EARLY = 0.01
"""Largest step of the first measurement, as a share of the last step."""
HALF = (0.40, 0.60)
"""Shares of the last step between which a measured step counts as half of it."""
LATE_FALL = 0.05
"""Share by which the values must decline late in training."""
WARM_UPS = 1.5
"""Multiple of the warm-up within which the learning-rate schedule may have caused a peak."""
FAILED = 0.10
"""Share by which the last loss of a failed training exceeds the lowest."""

_TIMES = (
    f"Cannot be judged where the first measured step lies beyond {EARLY:.0%} of the last, {{}}no measured step lies "
    f"between {HALF[0]:.0%} and {HALF[1]:.0%} of it"
)
_FROM_HALF = "from the measured step nearest to half of the last one to the last"

BELL = (
    "With the position of block l being x = (l - 1) / (L - 1), the middle blocks have "
    f"{MIDDLE[0]:g} <= x <= {MIDDLE[1]:g}. At the last measured step, the mean of the middle blocks exceeds that of "
    f"the first block and that of the last block by more than {MORE:.0%}. Needs at least {BELL_BLOCKS} blocks."
)
UNIFORM = (
    f"At the last measured step, the highest block exceeds the lowest by less than {UNIFORM_RANGE:.0%}. Needs at least "
    f"{UNIFORM_BLOCKS} blocks."
)
GROWTH = (
    f"The mean over blocks at the last measured step exceeds that at the first by more than {MORE:.0%}, and "
    f"{_FROM_HALF} it changes by less than {MORE:.0%} in either direction. {_TIMES.format('or ')}."
)
DIMENSION = (
    f"The highest mean over blocks exceeds the first and the last by more than {MORE:.0%}, and the decline goes on "
    f"late: {_FROM_HALF}, the mean over blocks falls by more than {LATE_FALL:.0%}, and more than half of the blocks "
    f"fall, each by its own interval. {_TIMES.format('where ')}, or where the highest mean lies within "
    f"{WARM_UPS:g} times the warm-up of the learning rate (the schedule may have made the peak) and everything else is "
    "shown."
)

MEANINGS = {
    "bell": "bell-shaped anisotropy over depth (decoders)",
    "uniform": "uniform anisotropy over depth (encoders)",
    "growth": "anisotropy grows, then stabilises (decoders)",
    "dimension": "intrinsic dimension rises, then declines (decoders)",
}
"""The findings by name, each with the kind of model it was published for; every one is judged on every model."""

"""Courses of the largest activation and of losses, for what is fitted to them and out of line."""

import numpy as np
import pandas as pd

from repdyn.views.tables.continuity import losses_out_of_line

STEPS_OF_CONTINUITY = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, *range(1000, 21000, 1000)]

IN_LINE: list[object] = []


def history(noise: float = 0.0, seed: int = 0) -> pd.Series:
    """Return the loss of a training: a plateau, a fast fall, and a slow one."""
    steps = np.array(STEPS_OF_CONTINUITY, float)
    values = 2.5 + 8 / (1 + (steps / 100) ** 1.2)
    return pd.Series(
        values + noise * np.random.default_rng(seed).normal(size=len(steps)), STEPS_OF_CONTINUITY
    )


def replaced(losses: pd.Series, values: dict[int, float]) -> pd.Series:
    return pd.Series({**losses.to_dict(), **values})


def steps_of(losses: pd.Series, std_errors: pd.Series | None = None) -> list[int]:
    """Return the steps out of line, the largest jump first."""
    return [jump.step for jump in losses_out_of_line(losses, std_errors)]


STEPS_OF_ACTIVATION_FITS = np.array(
    [0, *(2**k for k in range(10)), *range(1000, 143_001, 1000)], float
)


# A, lambda, gamma, t0, K: of the first layer's median activation in Pythia-410m, as published, and
# of other shapes
KNOWN = {
    "published": (
        0.1991413262927913,
        0.1245164347289605,
        0.00011243504071098889,
        0.6212193145868949,
        0.12193486521,
    ),
    "early peak": (300.0, 0.05, 1e-3, 1.0, 2.0),
    "peak in the first steps": (50.0, 0.3, 5e-2, 1.0, 1.0),
    "no peak yet": (100.0, 0.02, 2e-5, 1.0, 5.0),
    "a trough": (-30.0, 0.2, 1e-4, 0.9, 80.0),
    "large": (5e6, 0.5, 1e-4, 0.9, 2e7),
}


def curve(t, amplitude, decay, time_scale, time_offset, baseline):
    x = time_scale * t + time_offset
    return amplitude * np.exp(-decay * x) * np.log(x) + baseline


def noisy(values, share, seed=0):
    return values + share * np.ptp(values) * np.random.default_rng(seed).standard_normal(
        len(values)
    )

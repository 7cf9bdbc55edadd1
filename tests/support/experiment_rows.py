"""Made-up rows of the matched pair."""

from __future__ import annotations

import numpy as np
import pandas as pd

from experiments.effects import COLUMNS
from repdyn.store.schema import PROBE_LOSS

STEPS = (0, 16, 64, 256, 512, 1000, 1250, 1500, 1750, 2000)
BLOCKS = range(1, 7)


def made_up_rows(
    seeds: int = 5, *, bell: float = 0.5, noise: float = 0.02, last_loss: float = 4.0
) -> pd.DataFrame:
    """Return rows in which causal models have a bell of log-height ``bell``, and a dimension that
    rises and falls.

    The dimension is not known at step 0. Masked models are flat and their dimension stays.
    """
    generator = np.random.default_rng(0)
    rows = []
    for seed in range(1, seeds + 1):
        for arm in ("causal", "masked"):
            for probe in ("a", "b", "dense"):
                run = f"seed{seed}/{arm}.{probe}"
                for step in STEPS:
                    training = step / STEPS[-1]
                    for block in BLOCKS:
                        middle = block in (3, 4) and arm == "causal"
                        anisotropy = 0.1 * np.exp(
                            bell * middle * training + noise * generator.standard_normal()
                        )
                        peak = (
                            np.exp(-((np.log(step + 1) - np.log(65)) ** 2))
                            if arm == "causal"
                            else 0
                        )
                        dimension = 8 * (1 + peak) * np.exp(noise * generator.standard_normal())
                        for subset in ("all", "no_sink"):
                            rows.append((run, step, block, "anisotropy", subset, anisotropy, 0.02))
                            rows.append(
                                (
                                    run,
                                    step,
                                    block,
                                    "two_nn",
                                    subset,
                                    dimension if step else np.nan,
                                    0.02,
                                )
                            )
                    loss = 8 + (last_loss - 8) * training
                    rows.append((run, step, np.nan, PROBE_LOSS, "all", loss, np.nan))
    return pd.DataFrame(rows, columns=list(COLUMNS))

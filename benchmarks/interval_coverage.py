"""Count how often the interval of a fraction contains the value of another probe, and how often its
symmetric form leaves [0, 1].

Each of 512 windows has a share of its own around a common one, and 8 vectors that have the property
or not; the value is the mean over all, as of sink_rate or token_top1_match.

    python benchmarks/interval_coverage.py
    python benchmarks/interval_coverage.py --output docs/sampling/interval_coverage.csv
"""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

from repdyn.kernels.two_nn import JACKKNIFE_GROUPS
from repdyn.utils.files import write_atomically
from repdyn.utils.intervals import interval_within

SHARES = (0.001, 0.01, 0.05, 0.2, 0.5, 0.95, 0.999)
WINDOWS = (16, 64, 512)
VECTORS_PER_WINDOW = 8
CONCENTRATION = 4.0
"""Of the shares of windows, by a Beta distribution: the smaller, the more windows differ."""


def probes(
    share: float, n_windows: int, n_probes: int, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the value of each probe and its standard error over windows."""
    size = n_probes, n_windows
    of_windows = draw.beta(share * CONCENTRATION, (1 - share) * CONCENTRATION, size=size)
    fractions = draw.binomial(VECTORS_PER_WINDOW, of_windows) / VECTORS_PER_WINDOW
    return fractions.mean(1), fractions.std(1, ddof=1) / np.sqrt(n_windows)


def coverage(
    share: float, n_windows: int, n_probes: int, draw: np.random.Generator
) -> dict[str, float]:
    """Return the shares of probes whose interval contains the value of the next one, on either
    scale, and whose symmetric interval leaves [0, 1]."""
    of_all, errors = probes(share, n_windows, n_probes + 1, draw)
    values = of_all[:-1]
    others = of_all[1:]
    degrees = min(n_windows, JACKKNIFE_GROUPS) - 1
    half = stdtrit(degrees, 0.975) * np.sqrt(2) * errors[:-1]
    low, high = interval_within(values, half, (0.0, 1.0))
    symmetric = (values - half <= others) & (others <= values + half)
    return {
        "arcsin": float(((low <= others) & (others <= high)).mean()),
        "symmetric": float(symmetric.mean()),
        "leaves": float(((values - half < 0) | (values + half > 1)).mean()),
    }


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--probes", type=int, default=20_000, help="of each case")
    parser.add_argument("--output", type=Path, help="a CSV file")
    arguments = parser.parse_args()
    draw = np.random.default_rng(0)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(
        ["share", "windows", "covers another", "symmetric covers", "symmetric leaves [0, 1]"]
    )
    for share in SHARES:
        for n_windows in WINDOWS:
            counted = coverage(share, n_windows, arguments.probes, draw)
            writer.writerow([share, n_windows, *(f"{part:.1%}" for part in counted.values())])
    if arguments.output is None:
        print(table.getvalue(), end="")
    else:
        write_atomically(arguments.output, table.getvalue())


if __name__ == "__main__":
    main()

"""Compare the arms of several experiments with the first of them: a table and a forest plot.

  python -m experiments.compare docs/experiment/small docs/experiment/small_no_bos \\
      --output docs/experiment

The folders are those that experiments.collect writes. Writes comparison.csv and
figures/comparison.png: the statistics of each arm, and their differences from the first arm in the
same seeds, with 95% intervals over seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.analyze import analyze, percent, percent_range, read_rows
from experiments.effects import PRIMARY, STATISTICS
from experiments.figures import ratio_ticks
from experiments.inference import MARGIN, NO_SINK, interval
from repdyn.views.charts.on_matplotlib import save
from repdyn.views.tables.style import styled

COMPARED = (*STATISTICS, "sink")
"""The sink is what first positions add: the growth on all tokens less that of ``no_sink``."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rows", type=Path, nargs="+", help="folders written by experiments.collect")
    parser.add_argument(
        "--output", type=Path, default=Path("experiment"), help="folder (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        statistics = pd.concat(
            [primary_statistics(folder) for folder in options.rows], ignore_index=True
        )
    except (ValueError, OSError) as error:
        parser.error(str(error))
    compared = pd.concat([table(statistics), table(differences(statistics))], ignore_index=True)
    options.output.mkdir(parents=True, exist_ok=True)
    compared.to_csv(options.output / "comparison.csv", index=False)
    save({"comparison": forest(statistics)}, options.output / "figures")
    print(compared.to_string(index=False))


def primary_statistics(folder: Path) -> pd.DataFrame:
    """Return the primary statistics of the runs of an experiment: columns arm, seed and each of
    COMPARED.
    """
    variants = analyze(*read_rows(folder)).statistics.set_index(["arm", "seed"]).groupby("variant")
    primary = variants.get_group(PRIMARY.name)
    return primary.assign(
        sink=primary["growth"] - variants.get_group(NO_SINK)["growth"]
    ).reset_index()


def differences(statistics: pd.DataFrame) -> pd.DataFrame:
    """Return the statistics of the runs of other arms less those of the first arm's run of the same
    seed.
    """
    first = statistics["arm"].iloc[0]
    runs = statistics.set_index("seed")
    base = runs.loc[runs["arm"] == first, list(COMPARED)]
    others = runs[(runs["arm"] != first) & runs.index.isin(base.index)]
    names = others["arm"] + f" - {first}"
    return (others[list(COMPARED)] - base.loc[others.index]).assign(arm=names).reset_index()


def table(statistics: pd.DataFrame) -> pd.DataFrame:
    """Return the means over seeds of each arm with their 95% intervals, in per cent."""
    lines = []
    for arm, runs in statistics.groupby("arm", sort=False):
        values = [runs[name].to_numpy() for name in COMPARED]
        cells = [
            f"{percent(float(np.mean(one)))} {percent_range(*interval(one))}".strip()
            for one in values
        ]
        lines.append((arm, len(runs), *cells))
    return pd.DataFrame(lines, columns=["arm", "seeds", *COMPARED])


@styled
def forest(statistics: pd.DataFrame) -> Figure:
    """Draw each statistic of each arm, with its interval and the seeds."""
    arms = list(dict.fromkeys(statistics["arm"]))
    figure = Figure(figsize=(11.0, 0.4 * len(arms) + 1.6))
    grid = figure.subplots(1, len(COMPARED), sharey=True)
    for axes, name in zip(grid, COMPARED, strict=True):
        axes.axvspan(-MARGIN, MARGIN, color="0.9")
        axes.axvline(0, color="0.5", linewidth=1)
        for row, arm in enumerate(reversed(arms)):
            values = statistics.loc[statistics["arm"] == arm, name].to_numpy()
            axes.plot(interval(values), [row, row], color="0.25", linewidth=1.5)
            axes.plot(values, np.full(len(values), row), "|", color="0.5", markersize=9)
            axes.plot(values.mean(), row, "o", color="0.1", markersize=5)
        axes.set_title(name, loc="left", fontsize=10)
        ratio_ticks(axes, fontsize=8)
    grid[0].set_yticks(range(len(arms)), list(reversed(arms)), fontsize=9)
    figure.suptitle(
        "Ratios: mean over seeds with its 95% interval, and each seed; grey: ±10%", fontsize=10.5
    )
    return figure


if __name__ == "__main__":
    main()

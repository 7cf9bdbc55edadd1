"""Compare the course of the dimension of several clouds of vectors, over the seeds of an arm.

  python -m experiments.run experiments/plans/small_clouds.yaml --text TEXT
  python -m experiments.collect runs/small_clouds --output docs/experiment/small_clouds
  python -m experiments.clouds docs/experiment/small_clouds --output docs/experiment/clouds.csv

The statistics are those of docs/experiment.md with the vectors of each cloud in the place of all,
and the bell of the dimension; docs/neighbours/criteria_again.md defines the verdicts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from experiments.analyze import percent, percent_range, read_rows
from experiments.effects import (
    DIMENSION,
    RunRows,
    bell,
    change,
    late_change,
    peak_step,
    split_runs,
    start_step,
)
from experiments.inference import MARGIN, interval

CLOUDS = ("all", "distinct_inputs", "types")
STATISTICS = ("rise", "fall", "late dimension", "bell of the dimension")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.clouds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rows", type=Path, nargs="+", help="folders written by experiments.collect")
    parser.add_argument("--output", type=Path, required=True, help="file for the table")
    options = parser.parse_args(arguments)
    try:
        runs = [run for folder in options.rows for run in split_runs(read_rows(folder)[0])]
    except (ValueError, OSError) as error:
        parser.error(str(error))
    statistics = pd.DataFrame([row for run in runs for row in of_run(run)])
    verdicts = table(statistics)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    verdicts.to_csv(options.output, index=False)
    print(statistics.to_string(index=False, float_format="%.3f"))
    print(verdicts.to_string(index=False))


def of_run(run: RunRows) -> Iterator[dict[str, object]]:
    """Yield the statistics of each cloud of a run, and of all vectors from the cloud's first value
    on.
    """
    everything = [run.course(DIMENSION, probe) for probe in ("a", "b")]
    if everything[0].empty:
        return
    for cloud in CLOUDS:
        courses = [run.course(DIMENSION, probe, cloud) for probe in ("a", "b")]
        if courses[0].empty or courses[1].empty:
            continue
        start = start_step(*courses)
        yield {"arm": run.arm, "seed": run.seed, "cloud": cloud, **_of_courses(*courses, start)}
        if cloud != "all":
            later = f"all, from the first value of {cloud}"
            values = _of_courses(*everything, start)
            yield {"arm": run.arm, "seed": run.seed, "cloud": later, **values}


def _of_courses(
    dimension: pd.DataFrame, peak_on: pd.DataFrame, start: int | None
) -> dict[str, float]:
    """Return the step of the first value and each of STATISTICS; the peak is of ``peak_on``."""
    peak = peak_step(peak_on, start)
    return {
        "start": math.nan if start is None else start,
        "rise": change(dimension, start, peak),
        "fall": change(dimension, dimension.index[-1], peak),
        "late dimension": late_change(dimension),
        "bell of the dimension": bell(dimension),
    }


def table(statistics: pd.DataFrame) -> pd.DataFrame:
    """Return mean, 95% interval over seeds and verdict of each statistic, by arm and cloud."""
    rows = []
    for (arm, cloud), runs in statistics.groupby(["arm", "cloud"], sort=False):
        for name in STATISTICS:
            values = runs[name].dropna().tolist()
            rows.append(
                {
                    "arm": arm,
                    "cloud": cloud,
                    "seeds": len(values),
                    "starts": " ".join(f"{step:.0f}" for step in sorted(set(runs["start"]))),
                    "statistic": name,
                    "mean": percent(sum(values) / len(values)) if values else "",
                    "interval": percent_range(*interval(values)) if len(values) > 1 else "",
                    "verdict": verdict(values),
                }
            )
    return pd.DataFrame(rows)


def verdict(effects: Sequence[float]) -> str:
    """Say whether an effect of over 10% is there, absent, or undecided.

    >>> verdict([0.5, 0.52, 0.48]), verdict([0.01, 0.0, 0.02]), verdict([0.5, -0.5, 0.1])
    ('there', 'absent', 'undecided')
    """
    if len(effects) < 2:
        return "no value"
    low, high = interval(effects)
    mean = sum(effects) / len(effects)
    if (low > 0 or high < 0) and abs(mean) > MARGIN:
        return "there" if mean > 0 else "there, the other sign"
    low, high = interval(effects, 0.9)
    return "absent" if low >= -MARGIN and high <= MARGIN else "undecided"


if __name__ == "__main__":
    main()

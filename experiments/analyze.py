"""Analyse the rows of the matched pair: the preregistered tests, effects beside them, and figures.

  python -m experiments.analyze docs/experiment/rows --output docs/experiment

Writes results.md (tests, exclusions), effects.csv, statistics.csv (each statistic of each run),
blocks.csv and figures. Everything is computed from the rows; docs/experiment.md defines it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.collect import RECORD
from experiments.effects import COLUMNS, PRIMARY, STATISTICS, VARIANTS, RunRows, split_runs
from experiments.figures import FIGURES, draw_figures
from experiments.inference import LEARNED, Test, interval, interval_of_difference, test_all
from repdyn import open_store
from repdyn.utils.files import write_atomically
from repdyn.views.charts.on_matplotlib import save

BY_BLOCK = ("anisotropy_by_block", "dimension_by_block")
"""The figures that docs/experiment/findings.md does not show."""


@dataclass(frozen=True)
class Analysis:
    """The statistics and tests of the runs of an experiment."""

    runs: list[RunRows]
    excluded: dict[str, str]
    """Reasons by name of the run."""
    statistics: pd.DataFrame
    """Columns variant, arm, seed and each of STATISTICS, for the runs that are not excluded."""
    tests: list[Test]
    loss: float
    """Mean loss of the causal runs on probe a at the last step, in nats per token."""
    entropy: float
    """Entropy of the token frequencies of probe a, in nats."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.analyze",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rows", type=Path, help="folder written by experiments.collect")
    parser.add_argument(
        "--output", type=Path, default=Path("experiment"), help="folder (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        analysis = analyze(*read_rows(options.rows))
    except (ValueError, OSError) as error:
        parser.error(str(error))
    text = results(analysis)
    options.output.mkdir(parents=True, exist_ok=True)
    write_atomically(options.output / "results.md", lambda path: path.write_text(text))
    tables = {
        "effects": effect_table(analysis.statistics),
        "statistics": analysis.statistics,
        "blocks": block_table(analysis.runs),
    }
    for name, table in tables.items():
        table.to_csv(options.output / f"{name}.csv", index=False, float_format="%.6g")
    save(draw_figures(analysis.runs, analysis.tests), options.output / "figures")
    print(text)
    print(f"written to {options.output}")


def read_rows(folder: Path) -> tuple[pd.DataFrame, float]:
    """Return the rows of a folder written by experiments.collect, and the entropy of the token
    frequencies of probe a.

    Raises:
        ValueError: no rows, or rows that are not those of an experiment.
        OSError: a file cannot be read.
    """
    if not (folder / RECORD).exists():
        raise ValueError(
            f"expected a folder written by experiments.collect, got {folder}, which has no {RECORD}"
        )
    record = json.loads((folder / RECORD).read_text())
    return open_store(folder).to_pandas(columns=COLUMNS), float(
        record["probes"]["a"]["unigram_entropy"]
    )


def analyze(rows: pd.DataFrame, entropy: float) -> Analysis:
    """Return the statistics and tests of the rows of an experiment.

    Args:
        rows: with the columns of :data:`experiments.effects.COLUMNS`.
        entropy: of the token frequencies of probe a, in nats.
    """
    runs = list(split_runs(rows))
    excluded = {
        f"seed{run.seed}/{run.arm}": reason for run in runs if (reason := run.reason_to_exclude())
    }
    included = [run for run in runs if f"seed{run.seed}/{run.arm}" not in excluded]
    statistics = pd.DataFrame(
        [
            {"variant": variant.name, "arm": run.arm, "seed": run.seed, **run.statistics(variant)}
            for variant in VARIANTS
            for run in included
        ],
        columns=["variant", "arm", "seed", *STATISTICS],
    )
    losses = [run.losses().iloc[-1] for run in included if run.arm == "causal"]
    loss = float(np.mean(losses)) if losses else math.nan
    tests = test_all(statistics, learned=loss <= LEARNED * entropy)
    return Analysis(
        runs=included,
        excluded=excluded,
        statistics=statistics,
        tests=tests,
        loss=loss,
        entropy=entropy,
    )


def results(analysis: Analysis) -> str:
    """Return the results as Markdown."""
    counts = {arm: sum(run.arm == arm for run in analysis.runs) for arm in ("causal", "masked")}
    lines = [
        "# Results",
        "",
        "Which of the ten hypotheses do the runs support, and by how much? This page has the tests "
        "of [the criteria](../experiment.md), which were committed before the first run. It is "
        "made by",
        "",
        "    python -m experiments.analyze docs/experiment/rows --output docs/experiment",
        "",
        f"There are {counts['causal']} causal and {counts['masked']} masked runs. At the last step "
        f"the causal runs have a loss of {analysis.loss:.3f} nats per token on probe a, where the "
        f"token frequencies have an entropy of {analysis.entropy:.3f}.",
        "",
        "## Tests",
        "",
        "| | hypothesis | effect, 95% interval | p, after Holm | verdict |",
        "|---|---|---|---|---|",
        *(_test_row(test) for test in analysis.tests),
        "",
        "Effects are changes in per cent; H1 is the ratio of the bells of the two objectives.",
        "",
        "Three files have more: [effects.csv](effects.csv) the means over seeds with 95% "
        "intervals, in per cent, of each objective and variant of the criteria, "
        "[blocks.csv](blocks.csv) the logarithms of the ratios of each block, and "
        "[statistics.csv](statistics.csv) those of each run.",
        "",
        "Paired by seed, the bells of causal and masked runs differ by "
        + _paired(analysis.statistics)
        + ".",
        "",
        "## Figures",
        "",
        "These figures stand beside those of [the findings](findings.md):",
        "",
        *(line for name in BY_BLOCK for line in (f"![{FIGURES[name]}](figures/{name}.png)", "")),
        "## Excluded runs",
        "",
        *(
            [f"- {name}: {reason}" for name, reason in analysis.excluded.items()]
            or ["No run is excluded."]
        ),
        "",
    ]
    return "\n".join(lines)


def _test_row(test: Test) -> str:
    hypothesis = test.hypothesis
    cells = [
        hypothesis.name,
        hypothesis.sentence,
        f"{percent(test.mean)} {percent_range(test.low, test.high)}",
    ]
    cells += [f"{_p_text(test.p)}, {_p_text(test.corrected_p)}", f"**{test.verdict}**"]
    return f"| {' | '.join(cells)} |"


def effect_table(statistics: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over seeds of each statistic by objective and variant, with its 95% interval,
    in per cent.
    """
    lines = []
    for (arm, variant), rows in statistics.groupby(["arm", "variant"], sort=False):
        cells = [
            f"{percent(np.mean(values))} {percent_range(*interval(values))}".strip()
            for values in _columns(rows)
        ]
        lines.append((arm, variant, *cells))
    return pd.DataFrame(lines, columns=["objective", "rows", *STATISTICS])


def block_table(runs: Sequence[RunRows]) -> pd.DataFrame:
    """Return the mean over runs of each statistic of each block, with its 95% interval."""
    lines = []
    for arm in dict.fromkeys(run.arm for run in runs):
        by_run = [run.block_statistics() for run in runs if run.arm == arm]
        for block in by_run[0]:
            for name in STATISTICS[1:]:
                values = [blocks[block][name] for blocks in by_run]
                lines.append((arm, block, name, np.mean(values), *interval(values)))
    return pd.DataFrame(lines, columns=["arm", "block", "statistic", "mean", "low", "high"])


def _columns(rows: pd.DataFrame) -> list[Sequence[float]]:
    return [rows[name].tolist() for name in STATISTICS]


def _paired(statistics: pd.DataFrame) -> str:
    is_primary = statistics["variant"] == PRIMARY.name
    primary = statistics[is_primary]
    by_arm = (
        primary.pivot(index="seed", columns="arm", values="bell")
        .reindex(columns=["causal", "masked"])
        .dropna()
    )
    if len(by_arm) < 2:
        return "an amount that is not known with fewer than two pairs"
    differences = (by_arm["causal"] - by_arm["masked"]).tolist()
    welch = interval_of_difference(by_arm["causal"].tolist(), by_arm["masked"].tolist())
    return (
        f"{percent(np.mean(differences))} {percent_range(*interval(differences))} (unpaired "
        f"{percent_range(*welch)})"
    )


def percent(log_ratio: float) -> str:
    """Return a logarithm of a ratio as a change in per cent.

    >>> percent(math.log(1.1)), percent(math.log(0.5))
    ('+10%', '-50%')
    """
    return "not known" if math.isnan(log_ratio) else f"{_rounded(log_ratio)}%"


def percent_range(low: float, high: float) -> str:
    """Return an interval of logarithms of ratios as changes in per cent; empty where it is not
    known.
    """
    if math.isnan(low):
        return ""
    return f"[{_rounded(low)}, {_rounded(high)}]"


def _rounded(log_ratio: float) -> str:
    # an integer, which has no negative zero
    return f"{round(100 * math.expm1(log_ratio)):+d}"


def _p_text(p: float) -> str:
    return "" if math.isnan(p) else f"{p:.2g}"


if __name__ == "__main__":
    main()

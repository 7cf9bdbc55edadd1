"""Scores of tasks over training, and how the metrics of a run go with them;
docs/insights.md#scores-of-tasks.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from repdyn.tables.effects import rank_correlation
from repdyn.tables.runs import MeasuredRun

COLUMNS = ("step", "task", "metric", "value")
FEWEST = 8
"""Least number of checkpoints of a correlation."""
_RESAMPLES = 2000
_STEP = re.compile(r"step[-_]?(\d+)")
WARNING = (
    "Geometry alone does not predict scores: what dimension estimators report has other drivers "
    "(arXiv 2604.20276), and early geometric signs of tasks did not recur on Pythia (arXiv "
    "2602.15997)."
)


def read_scores(path: str | Path) -> pd.DataFrame:
    """Read scores of tasks: step, task, metric and value, by step.

    Args:
        path: CSV file with these columns; JSON file of lm-evaluation-harness, whose step is in the
            revision of the model, or else in the name of file or folder (step1000); or a folder of
            such files.

    Raises:
        ValueError: no scores, a column or step that is missing, or two values for one step, task
            and metric.
        FileNotFoundError: no such file or folder.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"expected published, or a file or folder of scores, got {path}, which does not exist"
        )
    if path.suffix == ".csv":
        scores = pd.read_csv(path)
        if missing := [name for name in COLUMNS if name not in scores]:
            raise ValueError(
                f"expected columns {', '.join(COLUMNS)} in {path}, got no {', '.join(missing)}"
            )
    else:
        files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        scores = pd.DataFrame([row for file in files for row in _rows_of(file)], columns=COLUMNS)
    scores = (
        scores.loc[:, list(COLUMNS)]
        .astype({"step": int, "value": float})
        .sort_values(list(COLUMNS[:3]))
    )
    if scores.empty:
        raise ValueError(
            f"expected scores in {path}, got none; a file of lm-evaluation-harness has them under "
            "results"
        )
    if (twice := scores.duplicated(list(COLUMNS[:3]))).any():
        step, task, metric, _ = scores.loc[twice].iloc[0]
        raise ValueError(
            f"expected one value of {task}, {metric} at step {step} in {path}, got several; keep "
            "one"
        )
    return scores.reset_index(drop=True)


def _rows_of(file: Path) -> list[tuple[int, str, str, float]]:
    """Return the scores in a file of lm-evaluation-harness; none of other JSON."""
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or not isinstance(content.get("results"), dict):
        return []
    model = json.dumps(content.get("config", {}).get("model_args", ""))
    if not (found := _STEP.findall(model) or _STEP.findall(str(file))):
        raise ValueError(
            f"expected a step in the revision of the model or the path of {file}, such as step1000"
        )
    return [
        (int(found[-1]), task, name.removesuffix(",none"), value)
        for task, scores in content["results"].items()
        for name, value in scores.items()
        if isinstance(value, float) and "stderr" not in name
    ]


def score_correlations(run: MeasuredRun, scores: pd.DataFrame, lags: int = 3) -> pd.DataFrame:
    """Correlate the mean over layers of each metric of a run with each score of a later checkpoint.

    Spearman's rank correlations over the checkpoints that have both, of values and of changes from
    one to the next: two curves with a trend correlate in their values whatever they are. The 95%
    intervals are percentiles of a bootstrap of moving blocks of successive checkpoints (Kunsch
    1989), since these are not independent.

    Args:
        run: with metrics at several steps.
        scores: of :func:`read_scores`.
        lags: largest number of checkpoints by which the metric precedes the score.

    Returns:
        A row for each metric, subset, score and lag with at least 8 checkpoints; the largest
        correlation of changes first. Its number of rows is the number of tries.
    """
    found = []
    for _, of_task in scores.groupby(["task", "metric"]):
        task, metric = map(str, of_task[["task", "metric"]].iloc[0])
        score = of_task.set_index("step")["value"]
        for (name, subset), series in run.series.items():
            mean = series.layer_mean.mean
            steps = sorted({*mean.index} & {*score.index})
            x, y = mean.loc[steps].to_numpy(float), score.loc[steps].to_numpy(float)
            for lag in range(min(lags, len(steps) - FEWEST) + 1):
                earlier, later = x[: len(x) - lag], y[lag:]
                row = {
                    "run": run.label,
                    "metric": name,
                    "subset": subset,
                    "task": task,
                    "score": metric,
                    "lag": lag,
                }
                row |= {"checkpoints": len(earlier), **_correlated(earlier, later, "")}
                found.append(row | _correlated(np.diff(earlier), np.diff(later), "changes_"))
    table = pd.DataFrame(found)
    return (
        table if table.empty else table.sort_values("changes_correlation", key=abs, ascending=False)
    )


def _correlated(x: np.ndarray, y: np.ndarray, prefix: str) -> dict[str, float]:
    """Return the rank correlation of two series with its interval by moving blocks."""
    n = len(x)
    length = max(2, round(n ** (1 / 3)))
    starts = np.random.default_rng(0).integers(0, n - length + 1, (_RESAMPLES, -(-n // length), 1))
    chosen = (starts + np.arange(length)).reshape(_RESAMPLES, -1)[:, :n]
    a, b = (pd.Series(values).rank().to_numpy()[chosen] for values in (x, y))
    a, b = (ranks - ranks.mean(1, keepdims=True) for ranks in (a, b))
    with np.errstate(invalid="ignore"):  # a resample of equal values
        resampled = (a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1))
    known = resampled[np.isfinite(resampled)]
    low, high = np.quantile(known, (0.025, 0.975)) if len(known) else (np.nan, np.nan)
    return {
        f"{prefix}correlation": rank_correlation(x, y).value,
        f"{prefix}low": low,
        f"{prefix}high": high,
    }


def in_words(tables: Sequence[pd.DataFrame]) -> str:
    """Return how many correlations were tried and how many of them do without 0, with the
    warning.
    """
    tried = sum(map(len, tables))
    clear = sum(
        len(table.query("changes_low > 0 or changes_high < 0")) for table in tables if len(table)
    )
    return (
        f"{tried} correlations were tried; the intervals of {clear} (changes) exclude 0, where "
        f"about {tried / 20:.0f} would by chance. {WARNING}"
    )

"""Scores of tasks over training, and how the metrics of a run go with them;
docs/insights.md#scores-of-tasks.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from repdyn.utils.steps import step_of, whole_number
from repdyn.views.judging.effects import rank_correlation
from repdyn.views.tables.runs import MeasuredRun

COLUMNS = ("step", "task", "metric", "value")
FEWEST = 8
"""Least number of checkpoints of a correlation."""
_RESAMPLES = 2000
_FOLDERS = {"hf_checkpoints", "checkpoints", "sweep", "repdyn"}
"""Folders of a run in paths of its checkpoints and stores."""
WARNING = (
    "Geometry alone does not predict scores: what dimension estimators report has other drivers "
    "(arXiv 2604.20276), and early geometric signs of tasks did not recur on Pythia (arXiv "
    "2602.15997)."
)


def read_scores(path: str | Path) -> pd.DataFrame:
    """Read scores of tasks: model, step, task, metric and value, by step.

    Args:
        path: CSV file with these columns (``model`` may be left out, steps may be written as "5k");
            JSON file of lm-evaluation-harness, whose step is in the revision or path of the model,
            or else in the name of file or folder (step1000); or a folder of such files.

    Returns:
        The columns; ``model`` is "" where the file does not say which one it is.

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
        scores = _table_in(path)
    else:
        files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        scores = pd.DataFrame(
            [row for file in files for row in _rows_of(file)], columns=["model", *COLUMNS]
        )
    key = ["model", *COLUMNS[:3]]
    scores["step"] = [_step_in_table(value) for value in scores["step"]]
    scores["model"] = scores["model"].fillna("")
    scores = scores.loc[:, [*key, "value"]].astype({"value": float}).sort_values(key)
    if scores.empty:
        raise ValueError(
            f"expected scores in {path}, got none; a file of lm-evaluation-harness has them under "
            "results"
        )
    if (twice := scores.duplicated(key)).any():
        model, step, task, metric, _ = scores.loc[twice].iloc[0]
        whose = f" of {model}" if model else ""
        raise ValueError(
            f"expected one value of {task}, {metric} at step {step}{whose} in {path}, got several; "
            "keep one"
        )
    return scores.reset_index(drop=True)


def _table_in(path: Path) -> pd.DataFrame:
    """Return the table in a CSV file; a column that it lacks is an error."""
    scores = pd.read_csv(path)
    if "model" not in scores:
        scores["model"] = ""
    if missing := [name for name in COLUMNS if name not in scores]:
        raise ValueError(
            f"expected columns {', '.join(COLUMNS)} in {path}, got no {', '.join(missing)}"
        )
    return scores


def _step_in_table(value: Any) -> int:
    """Return the step in a column, such as 1000, "5k" or "step-5K"."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    step = step_of(str(value), is_revision=True)
    return whole_number(str(value), "step") if step is None else step


def scores_of(run: MeasuredRun, scores: pd.DataFrame, *, is_only: bool) -> pd.DataFrame:
    """Return the scores of a run's model.

    Args:
        run: its name, or where its checkpoints are from, must end with the name of the model, or
            the other way round.
        scores: of :func:`read_scores`.
        is_only: whether it is the only run, whose scores those of an unnamed model are.

    Raises:
        ValueError: scores of an unnamed model beside several runs.
    """
    is_unnamed = scores["model"].to_numpy() == ""
    if is_unnamed.any() and not is_only:
        raise ValueError(
            "expected scores of one run, or with the column model, got several runs and scores "
            "without the model's name; choose the run with --run NAME"
        )
    origins = run.frame["checkpoint"].dropna().unique()
    names = {run.name, run.label, *map(_place_of, origins)}
    # scores without a model are those of the only run
    is_own = [not model or any(_is_named(model, name) for name in names) for model in scores.model]
    return scores.loc[is_own]


def _place_of(checkpoint: str) -> str:
    """Return the repository of a checkpoint, or the folder that holds it."""
    return str(Path(checkpoint).parent) if Path(checkpoint).is_absolute() else checkpoint


def _is_named(model: str, name: str) -> bool:
    """Return whether two names are of one model, of which one may have more in front of it."""
    first, second = (_parts_of(text) for text in (model, name))
    n_parts = min(len(first), len(second))
    return n_parts > 0 and first[-n_parts:] == second[-n_parts:]


def _parts_of(name: str) -> list[str]:
    """Return the parts of a model's name or path, without those that name a checkpoint."""
    parts = name.partition("@")[0].replace("__", "/").casefold().split("/")
    return [part for part in parts if part not in {"", ".", *_FOLDERS} and step_of(part) is None]


def _rows_of(file: Path) -> list[tuple[str, int, str, str, float]]:
    """Return the scores in a file of lm-evaluation-harness; none of other JSON."""
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or not isinstance(content.get("results"), dict):
        return []
    arguments = _model_arguments(content)
    model = str(arguments.get("pretrained") or content.get("model_name") or "")
    step = step_of(str(arguments.get("revision", "")), is_revision=True)
    places = (*reversed(Path(model).parts), file.stem, *reversed(file.parent.parts))
    steps = [at for at in (step, *map(step_of, places)) if at is not None]
    if not steps:
        raise ValueError(
            f"expected a step in the revision of the model or the path of {file}, such as step1000"
        )
    named_values = (
        (task, name, value)
        for task, scores in content["results"].items()
        for name, value in scores.items()
    )
    return [
        (model, steps[0], task, name.removesuffix(",none"), value)
        for task, name, value in named_values
        if isinstance(value, float) and "stderr" not in name
    ]


def _model_arguments(content: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that lm-evaluation-harness loaded the model with, a record or a text
    such as "pretrained=lab/model,revision=step8".
    """
    arguments = (content.get("config") or {}).get("model_args") or {}
    if isinstance(arguments, dict):
        return arguments
    pairs = (part.partition("=") for part in str(arguments).split(","))
    return {key.strip(): value.strip() for key, _, value in pairs}


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
    correlations = []
    for _, of_task in scores.groupby(["task", "metric"]):
        task, metric = map(str, of_task[["task", "metric"]].iloc[0])
        score = of_task.set_index("step")["value"]
        for (name, subset), series in run.series.items():
            mean = series.layer_mean.mean
            steps = sorted({*mean.index} & {*score.index})
            x = mean.loc[steps].to_numpy(float)
            y = score.loc[steps].to_numpy(float)
            for lag in range(min(lags, len(steps) - FEWEST) + 1):
                earlier = x[: len(x) - lag]
                later = y[lag:]
                row = {
                    "run": run.label,
                    "metric": name,
                    "subset": subset,
                    "task": task,
                    "score": metric,
                    "lag": lag,
                }
                row |= {"checkpoints": len(earlier), **_correlated(earlier, later, "")}
                correlations.append(row | _correlated(np.diff(earlier), np.diff(later), "changes_"))
    table = pd.DataFrame(correlations)
    return (
        table if table.empty else table.sort_values("changes_correlation", key=abs, ascending=False)
    )


def _correlated(x: np.ndarray, y: np.ndarray, prefix: str) -> dict[str, float]:
    """Return the rank correlation of two series with its interval by moving blocks."""
    n = len(x)
    length = max(2, round(n ** (1 / 3)))
    starts = np.random.default_rng(0).integers(0, n - length + 1, (_RESAMPLES, -(-n // length), 1))
    # whole blocks of both series together, so that their order and their pairs stay
    chosen = (starts + np.arange(length)).reshape(_RESAMPLES, -1)[:, :n]
    a, b = (pd.Series(values).rank().to_numpy()[chosen] for values in (x, y))
    a, b = (ranks - ranks.mean(1, keepdims=True) for ranks in (a, b))
    with np.errstate(invalid="ignore"):  # a resample of equal values
        resampled = (a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1))
    # resamples without any spread have no correlation
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

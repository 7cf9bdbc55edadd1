"""Tables, interactive figures and the report page of a run as media of Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from repdyn.alerts import Alert, alerts_of, stored_rules
from repdyn.metrics.names import file_stem
from repdyn.publish.loggers import log_media
from repdyn.report.figures import heatmap, means, profile
from repdyn.store import Store
from repdyn.tables.families import has_own_figures
from repdyn.tables.findings import findings
from repdyn.tables.frames import (
    by_stack,
    is_finished,
    measurements,
    metrics_of,
    of_metric,
    select_steps,
    stack_of,
    subsets_of,
)
from repdyn.utils.attempts import Attempt, attempts

MAX_ROWS = 10_000
"""Of a table that W&B shows."""

_COLUMNS = [
    "step",
    "tokens_seen",
    "layer",
    "depth",
    "value",
    "low",
    "high",
    "n_vectors",
    "n_unique",
    "design",
    "reason",
]
_ALERTS = ["step", "rule", "metric", "subset", "layer", "message"]
_FINDINGS = ["title", "subset", "verdict", "evidence", "criterion", "version"]


def log_stored_media(
    store: Store,
    run: str,
    loggers: Iterable[Logger],
    *,
    probe: str | None = None,
    page: Path | None = None,
    prefix: str = "",
    attempt: Attempt | None = None,
) -> None:
    """Log the media of a stored run by :func:`log_run_media`, each stack for itself if its model has several.

    Args:
        store: with at least one measured checkpoint of the run.
        run: its name.
        loggers: usually ``trainer.loggers``; without W&B among them nothing is read.
        probe: hash of the probe, needed where the run was measured on several.
        page: the report, where it has been written.
        prefix: put before each name, to tell several trackers apart.
        attempt: keeps the errors for a caller who has more to do; raised here without it.

    Raises:
        ValueError: nothing is stored of the run, or it was measured on several probes and none is named.
        Exception: the error of the first part that failed, once all have been tried.
    """
    takers = [logger for logger in loggers if isinstance(logger, WandbLogger)]
    if not takers:
        return
    frame, rules = store.to_pandas(run), stored_rules(store.alerts_path(run))
    of_probe = frame if probe is None else frame.loc[frame["probe"] == probe]
    for rows in by_stack(of_probe).values():
        log_run_media(rows, takers, alerts=alerts_of(rows, rules), page=page, prefix=prefix, attempt=attempt)
        page = None  # it is about all of them


@rank_zero_only
def log_run_media(
    frame: pd.DataFrame,
    loggers: Iterable[Logger],
    *,
    alerts: Sequence[Alert] = (),
    page: Path | None = None,
    prefix: str = "",
    attempt: Attempt | None = None,
) -> None:
    """Log what a run measured to W&B as tables, interactive figures and a page; other loggers are skipped.

    ``tables/METRIC_SUBSET`` has a line for each layer and step (of as many log-spaced steps as fit 10,000 lines),
    ``tables/alerts`` and ``tables/findings`` one for each; ``interactive/`` has heatmap, profile with a slider and
    means of each metric of geometry and of the user's own; the page is ``report``. In a model with several stacks that
    of the stack comes before: ``tables/decoder/...``.

    Args:
        frame: rows of one run, or of one of its stacks.
        loggers: usually ``trainer.loggers``.
        alerts: of these rows.
        page: the report, where it has been written.
        prefix: put before each name, to tell several trackers apart.
        attempt: keeps the errors for a caller who has more to do; raised here without it.

    Raises:
        Exception: the error of the first part that failed, once all have been tried.
    """
    takers = [logger for logger in loggers if isinstance(logger, WandbLogger)]
    if not takers:
        return
    rows = measurements(frame)
    last = int(rows["step"].iloc[-1])
    with attempts(attempt) as each:
        for name, make in _parts(frame, rows, alerts, page):
            folder, _, rest = name.rpartition("/")
            with each():
                medium = make()
                for logger in takers:
                    # one by one: W&B refuses all of a row for one name that it does not take
                    with each():
                        log_media(logger.experiment, {f"{folder}/{prefix}{rest}".lstrip("/"): medium}, last)


def _parts(
    frame: pd.DataFrame, rows: pd.DataFrame, alerts: Sequence[Alert], page: Path | None
) -> Iterator[tuple[str, Callable[[], Any]]]:
    stack = stack_of(rows)
    of_stack = f"{stack}/" if stack else ""
    for metric in metrics_of(rows):
        for subset in subsets_of(rows, metric):
            cells = _thinned(of_metric(rows, metric, subset))
            yield f"tables/{of_stack}{file_stem(metric)}_{subset}", partial(_table, cells.loc[:, _COLUMNS])
    yield f"tables/{of_stack}alerts", partial(_table, _listed(alerts, _ALERTS))
    yield f"tables/{of_stack}findings", lambda: _table(_listed(findings(frame), _FINDINGS))
    for metric in filter(has_own_figures, metrics_of(rows)):
        for subset in subsets_of(rows, metric):
            name = f"{of_stack}{{}}_{file_stem(metric)}_{subset}"
            yield f"interactive/{name.format('profile')}", partial(_moving, profile, frame, metric, subset)
            if not is_finished(rows):
                yield f"interactive/{name.format('heatmap')}", partial(_still, heatmap, frame, metric, subset)
                yield f"interactive/{name.format('means')}", partial(_still, means, frame, metric, subset)
    if page is not None and page.exists():
        yield "report", partial(_html, page)


def _thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of as many log-spaced steps as W&B shows; of a longer table it would show the beginning."""
    n_layers, steps = len(rows["layer"].unique()), sorted(rows["step"].unique().tolist())
    return rows.loc[rows["step"].isin(select_steps(steps, max(2, MAX_ROWS // n_layers)))]


def _listed(things: Iterable[object], columns: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame([[getattr(thing, column) for column in columns] for thing in things], columns=[*columns])


def _table(frame: pd.DataFrame) -> Any:
    import wandb  # an optional dependency, present wherever a WandbLogger is

    # W&B does not accept the missing values of pandas
    plain = frame.astype(object).where(frame.notna(), None)
    return wandb.Table(columns=list(frame.columns), data=plain.to_numpy().tolist())


def _still(draw: Callable[..., Any], frame: pd.DataFrame, metric: str, subset: str) -> Any:
    import wandb

    return wandb.Plotly(draw(frame, metric, subset))


def _moving(draw: Callable[..., Any], frame: pd.DataFrame, metric: str, subset: str) -> Any:
    """Return the figure as a page of its own: W&B draws figures of Plotly without their frames."""
    import wandb

    return wandb.Html(
        draw(frame, metric, subset).to_html(include_plotlyjs="cdn", config={"showSendToCloud": False}), inject=False
    )


def _html(page: Path) -> Any:
    import wandb

    return wandb.Html(page.read_text(encoding="utf-8"), inject=False)

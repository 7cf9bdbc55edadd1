"""A stored run in the loggers: its configuration and status, heatmaps, tables, interactive figures and report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from repdyn.alerts import Alert, find_alerts, stored_rules
from repdyn.diagnosis import insights
from repdyn.metrics.names import file_stem
from repdyn.publish.loggers import Target, WandbTarget, each_target, named_figures, target_of
from repdyn.store import Store
from repdyn.tables.designs import sampling
from repdyn.tables.families import has_own_figures
from repdyn.tables.findings import findings
from repdyn.tables.frames import (
    by_stack,
    causality,
    is_finished,
    measurements,
    metrics_of,
    of_metric,
    select_steps,
    stack_of,
    subsets_of,
    tokens_by_step,
)
from repdyn.tables.style import KINDS
from repdyn.tables.texts import concatenated
from repdyn.utils.attempts import Attempt, attempts
from repdyn.utils.names import safe_file_name

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

MAX_ROWS = 10_000
"""Largest number of rows that W&B shows of a table."""

_COLUMNS = [
    *("step", "tokens_seen", "layer", "depth", "value", "low", "high", "n_vectors", "n_unique", "design", "reason")
]
_ALERTS = ["step", "rule", "metric", "subset", "layer", "message"]
_FINDINGS = ["title", "subset", "verdict", "evidence", "criterion", "version"]
_ABOUT = "repdyn"
"""Prefix of names in the configuration and the summary of a run, which hold names of the training too."""


def log_config(config: Mapping[str, Any], loggers: Iterable[Logger], prefix: str = "") -> None:
    """Add what is known of a run to its configuration in the loggers, as ``repdyn/NAME``.

    An error in one logger does not affect the others.

    Args:
        config: values by name.
        loggers: usually ``trainer.loggers``.
        prefix: put before each name, to distinguish several trackers.

    Raises:
        Exception: the error of the first logger that failed, once all others are done.
    """
    each_target(loggers, lambda target: target.log_config(named_config(config, prefix)))


def named_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return values of a configuration by their names in the loggers, as of :func:`log_config`."""
    return {f"{_ABOUT}/{prefix}{name}": value for name, value in config.items()}


def log_status(
    store: Store, run: str, loggers: Iterable[Logger], *, probe: str | None = None, prefix: str = ""
) -> None:
    """Log the status of a stored run and the most important statement on it to the summary of the run.

    ``repdyn/status`` and ``repdyn/headline``; in a model with several stacks ``repdyn/decoder/status``. An error in one
    logger does not affect the others.

    Args:
        store: with at least one measured checkpoint of the run.
        run: its name.
        loggers: usually ``trainer.loggers``.
        probe: hash of the probe, needed if the run was measured on several.
        prefix: put before each name, to distinguish several trackers.

    Raises:
        ValueError: nothing is stored of the run.
        Exception: the error of the first logger that failed, once all others are done.
    """
    summary: dict[str, str] = {}
    for found in insights(store, [run], probe) if (loggers := list(loggers)) else ():
        place = f"{_ABOUT}/{found.stack}/{prefix}" if found.stack else f"{_ABOUT}/{prefix}"
        summary |= {f"{place}status": found.status, f"{place}headline": found.headline}
    each_target(loggers, lambda target: target.log_summary(summary))


def log_heatmaps(store: Store, run: str, target: Target, *, probe: str | None = None, prefix: str = "") -> None:
    """Log a heatmap of layer and step of each metric of geometry and of the user's own, up to the last stored step.

    The names are those of the final figures, ``figures/heatmap_two_nn_all``, so that loggers show them as one series.
    An error in one figure does not affect the others.

    Args:
        store: with at least one measured checkpoint of the run.
        run: its name.
        target: of a logger; nothing is drawn for one that takes no images.
        probe: hash of the probe, needed if the run was measured on several.
        prefix: put before each name, to distinguish several trackers.

    Raises:
        ValueError: nothing is stored of the run, or it was measured on several probes and none is named.
        Exception: the error of the first figure that failed, once all have been tried.
    """
    if not target.takes_images:
        return
    from repdyn.figures.heatmaps import heatmap  # with Matplotlib, which a run without views does without

    frame, rules = store.to_pandas(run, categorical=True), stored_rules(store.alerts_path(run))
    frame = frame if probe is None else frame.loc[frame["probe"] == probe]
    with attempts() as attempt:
        for stack, of_stack in by_stack(frame).items():
            rows, alerts, figures = measurements(of_stack), find_alerts(of_stack, rules), {}
            for metric in filter(has_own_figures, metrics_of(rows)):
                for subset in subsets_of(rows, metric):
                    with attempt():
                        figures[f"heatmap_{file_stem(metric)}_{subset}"] = heatmap(rows, metric, subset, alerts)
            target.log_images(named_figures(figures, stack, prefix), int(rows["step"].to_numpy().max()), attempt)


def provenance(store: Store, frame: pd.DataFrame) -> dict[str, Any]:
    """Return the origin of a run's rows and what was measured, for a logger's hyperparameters.

    Args:
        store: the store of the rows.
        frame: rows of one run.

    Returns:
        All values that are known. In a model with several stacks ``kind`` and ``n_layers`` end in the name of the
        stack: ``kind_decoder``.

    Raises:
        ValueError: rows of several runs, models or probes, or none.
    """
    stacks = {stack: measurements(rows) for stack, rows in by_stack(frame).items()}
    rows = concatenated([*stacks.values()])
    tokens = tokens_by_step(rows)
    known: dict[str, Any] = {
        "store": str(store.path.resolve()) if store.output == store.path else store.location,
        "tokens_seen": None if tokens.empty else int(tokens.to_numpy(float).max()),
    }
    for stack, of_one in stacks.items():
        ending, causal = f"_{stack}" if stack else "", causality(of_one)
        known[f"kind{ending}"] = None if causal is None else KINDS[causal]
        known[f"n_layers{ending}"] = len(of_one["layer"].unique())
    known["sampling"] = sampling(rows)
    columns = ("run", "model", "parameters", "stage", "probe", "design", "n_vectors", "n_batches", "dim", "dtype")
    for column in (*columns, "device", "attention", "repdyn_version"):
        values = rows[column].dropna().unique().tolist()
        known[column] = values[0] if len(values) == 1 else ", ".join(map(str, values)) or None
    return {name: value for name, value in known.items() if value is not None}


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
    """Log a stored run to W&B as tables, interactive figures and a page, to MLflow as a page; others are skipped.

    ``tables/METRIC_SUBSET`` has a line for each layer and step (at log-spaced steps if there are more than 10,000
    lines), ``tables/alerts`` and ``tables/findings`` one for each; ``interactive/`` has heatmap, profile with a slider
    and means of each metric of geometry and of the user's own; the page is ``report``. In a model with several stacks
    the name of the stack comes first: ``tables/decoder/...``.

    Args:
        store: with at least one measured checkpoint of the run.
        run: its name.
        loggers: usually ``trainer.loggers``.
        probe: hash of the probe, needed if the run was measured on several.
        page: the report, if it has been written.
        prefix: put before each name, to distinguish several trackers.
        attempt: collects errors for a caller that has more to do; without it they are raised here.

    Raises:
        ValueError: nothing is stored of the run, or it was measured on several probes and none is named.
        Exception: the error of the first part that failed, once all have been tried.
    """
    targets = [target for target in map(target_of, loggers) if target.takes_pages]
    if not targets:
        return
    frame, rules = store.to_pandas(run, categorical=True), stored_rules(store.alerts_path(run))
    of_probe = frame if probe is None else frame.loc[frame["probe"] == probe]
    with attempts(attempt) as each:
        for rows in by_stack(of_probe).values():
            with each():
                _log_tables(rows, measurements(rows), find_alerts(rows, rules), targets, prefix, each)
        if page is not None and page.exists():
            for target in targets:
                with each():
                    target.log_page(page, f"{prefix}report", int(of_probe["step"].to_numpy().max()))


def _log_tables(
    frame: pd.DataFrame,
    rows: pd.DataFrame,
    alerts: Sequence[Alert],
    targets: Sequence[Target],
    prefix: str,
    attempt: Attempt,
) -> None:
    step = int(rows["step"].iloc[-1])
    experiments = [target for target in targets if isinstance(target, WandbTarget)]
    for name, make in _media(frame, rows, alerts) if experiments else ():
        folder, _, rest = name.rpartition("/")
        with attempt():
            medium = make()
            for experiment in experiments:
                # one by one: W&B rejects a whole row for one name that it does not accept
                with attempt():
                    experiment.log_media({f"{folder}/{prefix}{rest}": medium}, step)


def _media(frame: pd.DataFrame, rows: pd.DataFrame, alerts: Sequence[Alert]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each medium, and a function that makes it."""
    from repdyn.report.figures import heatmap, means  # with Plotly, which a run without W&B does without

    stack = stack_of(rows)
    tables, interactive = (f"{kind}/{safe_file_name(stack)}" if stack else kind for kind in ("tables", "interactive"))
    cells = [(metric, subset) for metric in metrics_of(rows) for subset in subsets_of(rows, metric)]
    for metric, subset in cells:
        table = _thinned(of_metric(rows, metric, subset)).loc[:, _COLUMNS]
        yield f"{tables}/{_name(metric, subset)}", partial(_table, table)
    yield f"{tables}/alerts", partial(_table, _as_frame(alerts, _ALERTS))
    yield f"{tables}/findings", lambda: _table(_as_frame(findings(frame), _FINDINGS))
    for metric, subset in cells:
        if has_own_figures(metric):
            ending = _name(metric, subset)
            yield f"{interactive}/profile_{ending}", partial(_animated_profile, frame, metric, subset)
            if not is_finished(rows):
                yield f"{interactive}/heatmap_{ending}", partial(_plotly, heatmap, frame, metric, subset)
                yield f"{interactive}/means_{ending}", partial(_plotly, means, frame, metric, subset)


def _name(metric: str, subset: str) -> str:
    return safe_file_name(f"{file_stem(metric)}_{subset}")


def _thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of as many log-spaced steps as W&B shows; it truncates longer tables."""
    n_layers, steps = len(rows["layer"].unique()), sorted(rows["step"].unique().tolist())
    return rows.loc[rows["step"].isin(select_steps(steps, max(2, MAX_ROWS // n_layers)))]


def _as_frame(objects: Iterable[object], columns: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame([[getattr(one, column) for column in columns] for one in objects], columns=[*columns])


def _table(frame: pd.DataFrame) -> Any:
    import wandb  # an optional dependency, present wherever a WandbLogger is

    # W&B does not accept the missing values of pandas
    plain = frame.astype(object).where(frame.notna(), None)
    return wandb.Table(columns=list(frame.columns), data=plain.to_numpy().tolist())


def _plotly(draw: Callable[..., Any], frame: pd.DataFrame, metric: str, subset: str) -> Any:
    import wandb

    return wandb.Plotly(draw(frame, metric, subset))


def _animated_profile(frame: pd.DataFrame, metric: str, subset: str) -> Any:
    """Return the profile as a page: W&B draws figures of Plotly without their animation."""
    from repdyn.report.figures import profile

    figure = profile(frame, metric, subset)
    return _html(figure.to_html(include_plotlyjs="cdn", config={"showSendToCloud": False}))


def _html(page: str) -> Any:
    import wandb

    return wandb.Html(page, inject=False)

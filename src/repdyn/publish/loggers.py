"""Logging of rows, figures, alerts and summaries to the loggers of a training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from repdyn.publish.keys import LogLayers, logged_values
from repdyn.publish.targets import rank_zero_only, target_of
from repdyn.store.schema import Row
from repdyn.utils.attempts import Attempt, attempts
from repdyn.utils.names import safe_file_name

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger
    from matplotlib.figure import Figure

TOKENS_KEY = "repdyn/tokens"
"""Training tokens seen, for use as the x axis."""


@rank_zero_only
def log_rows(
    rows: Sequence[Row],
    loggers: Iterable[Logger],
    step: int,
    prefix: str = "",
    also: Mapping[str, float] | None = None,
    *,
    log_layers: LogLayers = "default",
) -> None:
    """Log the rows of one checkpoint to every logger; on ranks other than 0 do nothing.

    W&B rows have ``repdyn/step`` as their x axis, independently of W&B's own step. A logger's ``prefix`` is not added
    to the names in W&B. An error in one logger does not affect the others.

    Args:
        rows: of one run and one step; names as in :func:`repdyn.publish.keys.logged_values`.
        loggers: usually ``trainer.loggers``.
        step: optimizer steps taken.
        prefix: put before each name, to distinguish several trackers.
        also: more values of this step, by name.
        log_layers: the layers that are logged, as for :func:`repdyn.publish.keys.logged_values`.

    Raises:
        ValueError: two rows have the same name.
        Exception: the error of the first logger that failed, once all others are done.
    """
    values = {f"{prefix}{key}": value for key, value in logged_values(rows, log_layers).items()} | dict(also or {})
    with attempts() as attempt:
        for logger in loggers if values else ():
            with attempt():
                target_of(logger).log_values(values, step)


@rank_zero_only
def log_alerts(lines: Sequence[str], loggers: Iterable[Logger], step: int) -> None:
    """Log alerts: W&B notifies subscribers, TensorBoard and MLflow show the text.

    An error in one logger does not affect the others.

    Args:
        lines: from :func:`repdyn.tables.lines.alert_lines`; if empty, nothing is logged.
        loggers: usually ``trainer.loggers``.
        step: optimizer steps taken.

    Raises:
        Exception: the error of the first logger that failed, once all others are done.
    """
    with attempts() as attempt:
        for logger in loggers if lines else ():
            with attempt():
                target_of(logger).log_alerts(lines, step)


@rank_zero_only
def log_figures(
    figures: Mapping[str, Figure],
    loggers: Iterable[Logger],
    step: int,
    stack: str | None = None,
    attempt: Attempt | None = None,
    prefix: str = "",
) -> None:
    """Log figures as ``figures/NAME`` to the loggers that take images; others are skipped.

    An error in one logger or figure does not affect the others.

    Args:
        figures: by name; left open and unchanged.
        loggers: usually ``trainer.loggers``.
        step: optimizer steps taken.
        stack: stack of the figures if the model has several; put before their names, ``figures/decoder/NAME``.
        attempt: collects errors for a caller that has more to do; without it they are raised here.
        prefix: put before each name, to distinguish several trackers.

    Raises:
        Exception: the error of the first logger that failed, once all others are done.
    """
    folder = "figures" if stack is None else f"figures/{safe_file_name(stack)}"
    named = {f"{folder}/{prefix}{safe_file_name(name)}": figure for name, figure in figures.items()}
    with attempts(attempt) as each:
        for logger in loggers:
            with each():
                target_of(logger).log_images(named, step, each)

"""Logging of rows, figures and alerts to the loggers of a Lightning trainer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only
from matplotlib.figure import Figure

from repdyn.store.schema import Row, too_few_distinct
from repdyn.utils.attempts import Attempt, attempts
from repdyn.utils.untrusted_names import safe_file_name

STEP_KEY = "repdyn/step"
"""The x axis of everything logged to W&B from here."""
TOKENS_KEY = "repdyn/tokens"
"""Training tokens seen, for use as the x axis."""

# names already defined in each W&B run: defining one again adds a record to the run's file
_defined: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def logged_values(rows: Sequence[Row]) -> dict[str, float]:
    """Return the values of one checkpoint by the names under which they are logged.

    ``anisotropy/layer_03`` on all tokens, ``anisotropy_no_sink/layer_03`` on the subset: the part before the slash is
    a section in W&B and TensorBoard. In a model with several stacks the stack precedes the subset:
    ``anisotropy_decoder/layer_03``, ``anisotropy_decoder_no_sink/layer_03``. ``anisotropy/mean`` is the mean over the
    layers of a stack that have a value at this step, NaN if none has. Values of single attention heads are in a section
    without a mean: ``attention_topic_gap_heads/layer_03_head_05``. Scalar rows are left out: the training logs them
    itself.

    Args:
        rows: of one run and one step.

    Returns:
        Finite values and NaN; numbers of layers and heads are padded to the width of the largest, at least two digits.

    Raises:
        ValueError: two rows have the same name.
    """
    width = _width(row.layer for row in rows)
    width_of_heads = _width(row.head for row in rows)
    values: dict[str, float] = {}
    sections: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.layer is None:
            continue
        section = "_".join(filter(None, [row.metric, row.stack, None if row.subset == "all" else row.subset]))
        key = f"{section}/layer_{row.layer:0{width}d}"
        if row.head is not None:
            key = f"{section}_heads/layer_{row.layer:0{width}d}_head_{row.head:0{width_of_heads}d}"
        if key in values:
            raise ValueError(
                f"expected one row for each name, got two for {key!r} (the second: step {row.step}, settings "
                f"{row.settings}); log one step at a time, and one setting of a metric"
            )
        # rows stored by earlier versions have not been checked for this
        few = too_few_distinct(row.on_distinct, row.n_unique, row.n_vectors, row.near_duplicate_share)
        values[key] = math.nan if few else row.value
        if row.head is None:
            sections[section].append(values[key])
    return values | {f"{section}/mean": _mean(found) for section, found in sections.items()}


@rank_zero_only
def log_rows(
    rows: Sequence[Row],
    loggers: Iterable[Logger],
    step: int,
    prefix: str = "",
    also: Mapping[str, float] | None = None,
) -> None:
    """Log the rows of one checkpoint to every logger; on ranks other than 0 do nothing.

    W&B rows have ``repdyn/step`` as their x axis, independently of W&B's own step. A logger's ``prefix`` is not added
    to the names in W&B. An error in one logger does not affect the others.

    Args:
        rows: of one run and one step; names as in :func:`logged_values`.
        loggers: usually ``trainer.loggers``.
        step: optimizer steps taken.
        prefix: put before each name, to distinguish several trackers.
        also: more values of this step, by name.

    Raises:
        ValueError: two rows have the same name.
        Exception: the error of the first logger that failed, once all others are done.
    """
    values = {f"{prefix}{key}": value for key, value in logged_values(rows).items()} | dict(also or {})
    with attempts() as attempt:
        for logger in loggers if values else ():
            with attempt():
                _log_values(logger, values, step)


@rank_zero_only
def log_alerts(lines: Sequence[str], loggers: Iterable[Logger], step: int) -> None:
    """Log alerts: W&B notifies subscribers, TensorBoard shows the text.

    An error in one logger does not affect the others.

    Args:
        lines: from :func:`repdyn.tables.alert_text.alert_lines`; if empty, nothing is logged.
        loggers: usually ``trainer.loggers``.
        step: optimizer steps taken.

    Raises:
        Exception: the error of the first logger that failed, once all others are done.
    """
    with attempts() as attempt:
        for logger in loggers if lines else ():
            with attempt():
                if isinstance(logger, WandbLogger):
                    more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
                    title = f"{lines[0].partition(': ')[0]}{more}"
                    # W&B sends one alert per title and minute: the step makes each title unique
                    logger.experiment.alert(title=title, text="\n".join(lines), level="WARN")
                elif isinstance(logger, TensorBoardLogger):
                    logger.experiment.add_text("alerts", "  \n".join(lines), global_step=step)


def _log_values(logger: Logger, values: Mapping[str, float], step: int) -> None:
    if isinstance(logger, WandbLogger):
        _define(logger.experiment, values)
        # no step=: W&B silently drops a row whose step is less than its own counter
        logger.experiment.log({STEP_KEY: step, **values})
    else:
        logger.log_metrics(dict(values), step=step)


@rank_zero_only
def log_figures(
    figures: Mapping[str, Figure],
    loggers: Iterable[Logger],
    step: int,
    stack: str | None = None,
    attempt: Attempt | None = None,
    prefix: str = "",
) -> None:
    """Log figures as ``figures/NAME`` to W&B and TensorBoard; other loggers are skipped.

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
                if isinstance(logger, WandbLogger):
                    _log_wandb_images(logger.experiment, named, step, each)
                elif isinstance(logger, TensorBoardLogger):
                    for name, figure in named.items():
                        with each():
                            logger.experiment.add_figure(name, figure, global_step=step, close=False)


def _log_wandb_images(run: Any, figures: Mapping[str, Figure], step: int, attempt: Attempt) -> None:
    import wandb  # an optional dependency, present wherever a WandbLogger is

    images = {}
    for name, figure in figures.items():
        with attempt():
            images[name] = wandb.Image(figure)
    log_media(run, images, step)


def log_media(run: Any, media: Mapping[str, Any], step: int) -> None:
    """Log objects of W&B, such as images and tables, on the axis of steps."""
    if media:
        _define(run, media)
        run.log({STEP_KEY: step, **media})


def _define(run: Any, names: Iterable[str]) -> None:
    """Put each name on the axis of steps; only an exact name overrides the "*" that WandbLogger defines."""
    defined = _defined.setdefault(run, set())
    if not defined:
        run.define_metric(STEP_KEY)
    for name in names:
        if name not in defined:
            run.define_metric(name, step_metric=STEP_KEY)
            defined.add(name)


def _width(numbers: Iterable[int | None]) -> int:
    """Return the number of digits of the largest number, at least two."""
    return max(2, len(str(max((number for number in numbers if number is not None), default=0))))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan

"""Export of stored runs to loggers, with the names and steps of a live run."""

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from operator import methodcaller
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from lightning.pytorch.loggers import (
    CSVLogger,
    Logger,
    MLFlowLogger,
    TensorBoardLogger,
    WandbLogger,
)

from repdyn.metrics.logged import (
    ALL_TOKENS,
    LOGGED_SCALARS,
    LogLayers,
    logged_values,
    logs_every_layer,
    validate_log_layers,
)
from repdyn.store import Store
from repdyn.store.files import folder_name
from repdyn.utils.attempts import attempts
from repdyn.utils.choices import Destination
from repdyn.utils.printing import plural, warn
from repdyn.utils.redaction import redacted
from repdyn.views.figures.run import all_figures
from repdyn.views.judging.stores import described_rows, selected_rows
from repdyn.views.publish.loggers import (
    TOKENS_KEY,
    each_target,
    log_status,
    named_config,
    target_of,
)
from repdyn.views.publish.results import log_pictures, provenance, rows_and_stacks
from repdyn.views.report import write_report
from repdyn.views.tables.runs import is_measured, select
from repdyn.views.tables.seeds import SeedGroup, SeedSeries

log = logging.getLogger(__name__)


def export_run(
    store: Store,
    run: str,
    loggers: Sequence[Logger],
    *,
    probe: str | None = None,
    log_layers: LogLayers = "default",
) -> int:
    """Log a stored run to loggers, which stay open: the figures, their provenance, and a row for
    each of the steps, whose number is returned.

    The row of a step and the hyperparameters have the names a live run logs
    (:func:`repdyn.metrics.logged.logged_values`,
    :func:`repdyn.views.publish.loggers.named_config`), beside the settings of the training; a row
    also has the scalars stored with it (``seconds/forward``, ...) and, if known, its training
    tokens as ``repdyn/tokens``. A finished model has step 0 and the hyperparameter ``repdyn/stage``
    "finished". An error in one figure or logger does not affect the others: the first is raised
    once everything else is logged.

    A ValueError says that nothing is stored of the run, or that it was measured on several probes
    and none is named.
    """
    frame, stacks = rows_and_stacks(store, run, probe)
    path = store.path_of(run)
    configuration = path.run.configuration if path else {}
    origin = provenance(store, frame)
    if configuration:
        origin |= {
            "schedule": configuration.get("schedule"),
            "metrics": ", ".join(configuration.get("metrics", ())),
        }
    values = frame.loc[frame["layer"].notna() | frame["reason"].isna()]  # the rest are failures
    steps = sorted(values["step"].unique().tolist())
    with attempts() as attempt:
        for logger in loggers:
            with attempt():
                logger.log_hyperparams(
                    {**configuration.get("training", {}), **named_config(origin)}
                )
        for step in steps:
            is_at_step = values["step"] == step
            stored = values.loc[is_at_step]
            with attempt():
                # what is missing is None, as in a row; a value that is missing is NaN
                present = stored.notna() | (stored.columns == "value")
                rows: list[Any] = [*stored.astype(object).where(present, None).itertuples()]
                row = logged_values(rows, log_layers) | _scalars(stored)
                each_target(loggers, methodcaller("log_values", row, step))
        for stack in stacks:
            with attempt():
                figures = all_figures(stack, attempt)
                each_target(loggers, partial(log_pictures, stack, figures, log_layers=log_layers))
        if any(target_of(logger).takes_pages for logger in loggers):
            with attempt(), TemporaryDirectory() as folder:
                page = write_report(store, Path(folder) / "report.html", runs=[run], probe=probe)
                each_target(loggers, lambda target: target.log_page(page, "report", steps[-1]))
        with attempt():
            log_status([stack.insights for stack in stacks], loggers)
    return len(steps)


def export_seeds(
    group: SeedGroup, loggers: Sequence[Logger], *, log_layers: LogLayers = "default"
) -> int:
    """Log the seeds of one model as one curve with a band to loggers, which stay open; the number
    of their common steps is returned.

    ``two_nn/mean`` is the mean over seeds of their means over layers, ``two_nn/mean_low`` and
    ``two_nn/mean_high`` are the ends of its 95% interval over seeds; so it is with each layer of
    the metrics of which every layer is logged. Loggers that show charts get one of these lines.

    Args:
        group: the seeds.
        loggers: where they are logged.
        log_layers: as of :func:`export_run`.
    """
    sections = {
        "_".join(filter(None, [series.metric, group.stack, _shown(series.subset)])): series
        for series in group.series.values()
        if len(series.layer_mean.mean)
    }
    by_step: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for section, series in sections.items():
        for name, values in _with_ends(section, series, log_layers).items():
            for step, value in zip(values.index.tolist(), values.tolist(), strict=True):
                by_step[step][name] = value
    seeds = ", ".join(member.name for member in group.members)
    with attempts() as attempt:
        for logger in loggers:
            with attempt():
                logger.log_hyperparams(named_config({"seeds": seeds}))
        for step in sorted(by_step):
            with attempt():
                each_target(loggers, methodcaller("log_values", by_step[step], step))
        for section, series in sections.items():
            lines = {
                name.rpartition("/")[2]: values
                for name, values in _with_ends(section, series, "none").items()
            }
            at = lines["mean"].index.tolist()
            columns = {name: values.tolist() for name, values in lines.items()}
            chart = f"{section}_over_seeds"
            with attempt():
                each_target(loggers, methodcaller("log_lines", chart, "step", at, columns, at[-1]))
    return len(by_step)


def _shown(subset: str) -> str | None:
    return None if subset == ALL_TOKENS else subset


def _with_ends(section: str, series: SeedSeries, log_layers: LogLayers) -> dict[str, pd.Series]:
    """Return the mean over layers and single layers by step, each with the ends of its interval
    over seeds, by the names under which they are logged.
    """
    mean = series.layer_mean
    lines: dict[str, tuple[pd.Series, ...]] = {"mean": (mean.mean, mean.low, mean.high)}
    if logs_every_layer(series.metric, series.subset, log_layers):
        grids = (series.values, series.lows, series.highs)
        for place, layer in enumerate(series.layers):
            low_to_high = (pd.Series(grid[place], series.steps) for grid in grids)
            lines[f"layer_{layer:02d}"] = tuple(low_to_high)
    return {
        f"{section}/{line}{end}": values
        for line, with_ends in lines.items()
        for end, values in zip(("", "_low", "_high"), with_ends, strict=True)
    }


@dataclass(frozen=True)
class Exported:
    """Describes what was exported of a run; ``str`` gives the line that the command prints."""

    run: str
    place: str | None = None
    """Where it can be viewed; None for a run without measurements, of which nothing is exported."""
    n_steps: int | None = None
    """Number of checkpoints; None where an error left some of it out."""

    def __str__(self) -> str:
        if self.place is None:
            return f"{self.run}: nothing measured"
        if self.n_steps is None:
            return f"{self.run}: not everything in {self.place}"
        checkpoints = plural(self.n_steps, "checkpoint")
        return f"{self.run}: {self.n_steps} {checkpoints} in {self.place}"


def export_store(
    store: Store,
    runs: Sequence[str] | None = None,
    *,
    to: Sequence[Destination] = ("wandb",),
    probe: str | None = None,
    folder: Path | None = None,
    project: str = "repdyn",
    online: bool = False,
    log_layers: LogLayers = "default",
) -> Iterator[Exported]:
    """Export runs of a store, all unless some are named, each to loggers of its own.

    A run measured on several probes is exported once for each, unless one is named by the beginning
    of its hash. Seeds of one model follow as one more run, by :func:`export_seeds`. The loggers'
    files go into ``folder``, by default ``exports`` inside the store. An error in one figure or
    logger does not affect the others: the first is raised once everything else is exported.

    Yields:
        Each export, with the place where it can be viewed, and each run without measurements.

    Raises:
        ValueError: nothing is stored; no such run or probe; ``log_layers`` that match no metric; a
            package that is not installed.
        ConnectionError: W&B cannot be reached, or there is no account.
    """
    into = folder or store.output / "exports"
    selected = select(store, runs, probe)
    _require_log_layers(log_layers, selected.values())
    with attempts() as attempt:
        for name, export in _exports(store, runs, probe, selected):
            if export is None:
                yield Exported(name)
                continue
            for destination in dict.fromkeys(to):
                n_steps = None
                opened = open_logger(destination, name, into, project=project, online=online)
                with opened as (logger, location), attempt():
                    n_steps = export([logger], log_layers=log_layers)
                yield Exported(name, location, n_steps)


def _require_log_layers(log_layers: LogLayers, frames: Iterable[pd.DataFrame]) -> None:
    """Raise ValueError where ``log_layers`` names nothing that was measured."""
    cells = [frame.loc[frame["layer"].notna(), ["metric", "subset"]] for frame in frames]
    pairs = pd.concat(cells).drop_duplicates().astype(str).itertuples(index=False, name=None)
    validate_log_layers(log_layers, list(pairs))


def _exports(
    store: Store,
    runs: Sequence[str] | None,
    probe: str | None,
    selected: Mapping[tuple[str, str], pd.DataFrame],
) -> Iterator[tuple[str, Callable[..., int] | None]]:
    """Yield the name of each run and of each group of seeds with what exports it; None for a run
    without measurements."""
    for (run, hash_of_probe), frame in selected.items():
        export = partial(export_run, store, run, probe=hash_of_probe)
        yield run, export if is_measured(frame) else None
    for group in _seeds(store, runs, probe) if len(selected) > 1 else ():
        yield group.name, partial(export_seeds, group)


def _seeds(store: Store, runs: Sequence[str] | None, probe: str | None) -> Sequence[SeedGroup]:
    """Return the runs that are seeds of one model; none where nothing is measured."""
    rows = selected_rows([store], runs, probe)
    if not any(map(is_measured, rows.values())):
        return ()
    data = described_rows(rows)
    if data.not_seeds:
        warn(log, f"not exported as seeds of one model: {data.not_seeds}")
    return data.seeds


@contextmanager
def open_logger(
    to: Destination, run: str, folder: Path, *, project: str = "repdyn", online: bool = False
) -> Iterator[tuple[Logger, str]]:
    """Open a logger for one export of a run; yield it with the place where it can be viewed, and
    close it on exit.

    A second export makes a second complete run: W&B puts it into the same group under the same
    name, TensorBoard and CSV count up ``version_0``, ``version_1``. The files go into ``wandb``,
    ``tensorboard``, ``csv`` or ``mlflow`` in a folder; those of MLflow go where the environment
    variable MLFLOW_TRACKING_URI says, if it is set, and those of Trackio where TRACKIO_DIR says.
    """
    if to != "csv" and find_spec(to) is None:
        raise ValueError(f"expected {to} to be installed, found no such package; pip install {to}")
    if to == "wandb":
        with _wandb_run(run, folder, project, online) as opened:
            logger: Logger = WandbLogger(experiment=opened)
            yield logger, str(opened.url if online else Path(opened.dir).parent)
            logger.finalize("success")
        return
    if to == "mlflow":
        logger, location = _mlflow_logger(run, folder, project)
    elif to == "trackio":
        from repdyn.views.publish.trackio import TrackioLogger

        logger = TrackioLogger(project, run, resume="never", auto_log_cpu=False, auto_log_gpu=False)
        location = f"Trackio, run {run}; trackio show --project {project}"
    else:
        logger = _folder_logger(to, run, folder)
        location = str(logger.log_dir)
    yield logger, location
    logger.finalize("success")


def _mlflow_logger(run: str, folder: Path, project: str) -> tuple[MLFlowLogger, str]:
    """Return a logger to where the environment says, or else to a database in a folder."""
    tracking = os.environ.get("MLFLOW_TRACKING_URI")
    artifacts = None
    if not tracking:
        database = (folder / "mlflow").resolve()
        database.mkdir(parents=True, exist_ok=True)
        tracking = f"sqlite:///{database / 'mlflow.db'}"
        artifacts = (database / "artifacts").as_uri()
    logger = MLFlowLogger(project, run_name=run, tracking_uri=tracking, artifact_location=artifacts)
    return logger, f"{tracking}, run {logger.run_id}"


def _folder_logger(to: Destination, run: str, folder: Path) -> CSVLogger | TensorBoardLogger:
    # nested folders that cannot lead out of their parent
    name = "/".join(folder_name(part) for part in run.split("/") if part)
    if to == "csv":
        return CSVLogger(folder / "csv", name=name)
    return TensorBoardLogger(folder / "tensorboard", name=name, default_hp_metric=False)


def _wandb_run(run: str, folder: Path, project: str, online: bool) -> Any:
    import wandb  # an optional dependency
    from wandb.errors import Error

    # W&B takes a temporary folder where its own does not exist yet
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return wandb.init(
            project=project,
            name=run,
            group=run.rpartition("/")[0] or run,
            dir=folder,
            mode="online" if online else "offline",
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )
    except Error as error:
        raise ConnectionError(
            f"expected to reach an account at W&B, got: {redacted(str(error))}; log in with wandb "
            "login, or leave out online"
        ) from error


def _scalars(rows: pd.DataFrame) -> dict[str, float]:
    """Return the scalars of a step, and its training tokens."""
    scalars = rows.loc[rows["layer"].isna()]
    tokens = rows["tokens_seen"].dropna()
    scalars = scalars.loc[~scalars["metric"].isin(LOGGED_SCALARS)]
    values = dict(zip(scalars["metric"], scalars["value"].astype(float), strict=True))
    return values if tokens.empty else values | {TOKENS_KEY: float(tokens.to_numpy(float).max())}

"""A stored run in the loggers: its configuration and status, heatmaps and report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from repdyn.alerts import stored_rules
from repdyn.diagnosis import RunInsights, stacks_of_run
from repdyn.metrics.metric import file_stem
from repdyn.publish.loggers import Target, each_target, named_figures
from repdyn.store import Store
from repdyn.tables.designs import sampling
from repdyn.tables.frames import concatenated, tokens_by_step
from repdyn.tables.style import KINDS, has_own_figures
from repdyn.utils.attempts import attempts

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

_ABOUT = "repdyn"
"""Prefix of names in the configuration and the summary of a run, which hold names of the training too."""


def named_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return values of a configuration by their names in the loggers: ``repdyn/``, a prefix, the name."""
    return {f"{_ABOUT}/{prefix}{name}": value for name, value in config.items()}


def log_status(insights: Sequence[RunInsights], loggers: Iterable[Logger], prefix: str = "") -> None:
    """Log the status of a run and the most important statement on it to the summary of the run.

    ``repdyn/status`` and ``repdyn/headline``, a prefix before both names; in a model with several stacks
    ``repdyn/decoder/status``. An error in one logger does not affect the others.
    """
    summary: dict[str, str] = {}
    for found in insights:
        place = f"{_ABOUT}/{found.stack}/{prefix}" if found.stack else f"{_ABOUT}/{prefix}"
        summary |= {f"{place}status": found.status, f"{place}headline": found.headline}
    each_target(loggers, lambda target: target.log_summary(summary))


def log_heatmaps(store: Store, run: str, target: Target, *, probe: str | None = None, prefix: str = "") -> None:
    """Log a heatmap of layer and step of each metric of geometry and of the user's own, up to the last stored step, and
    a chart with a line for each layer to W&B.

    The names are those of the final figures, ``figures/heatmap_two_nn_all``, so that loggers show them as one series.
    Nothing is drawn for a target that takes no images. An error in one figure does not affect the others.
    """
    if not target.takes_images:
        return
    from repdyn.figures.run import heatmap  # with Matplotlib, which a run without views does without

    frame = store.to_pandas(run, categorical=True)
    frame = frame if probe is None else frame.loc[frame["probe"] == probe]
    with attempts() as attempt:
        for one in stacks_of_run(frame, stored_rules(store.alerts_path(run))):
            figures, last = {}, one.steps[-1]
            for metric, subset in (key for key in one.series if has_own_figures(key[0])):
                with attempt():
                    series, stem = one.series[metric, subset], file_stem(metric)
                    names = [f"layer {layer}" for layer in series.layers]
                    lines = dict(zip(names, series.values.tolist(), strict=True))
                    chart = "_".join(filter(None, [stem, one.stack, subset]))
                    target.log_lines(f"{prefix}{chart}_layers", ("step", series.steps), lines, last)
                    figures[f"heatmap_{stem}_{subset}"] = heatmap(one.rows, metric, subset, one.alerts)
            target.log_images(named_figures(figures, one.stack, prefix), last, attempt)


def provenance(store: Store, frame: pd.DataFrame) -> dict[str, Any]:
    """Return the origin of a run's rows and what was measured, as far as it is known, for a logger's hyperparameters.

    In a model with several stacks ``kind`` and ``n_layers`` end in the name of the stack: ``kind_decoder``.
    """
    stacks = stacks_of_run(frame)
    rows = concatenated([one.rows for one in stacks])
    tokens = tokens_by_step(rows)
    known: dict[str, Any] = {
        "store": str(store.path.resolve()) if store.output == store.path else store.location,
        "tokens_seen": None if tokens.empty else int(tokens.to_numpy(float).max()),
    }
    for one in stacks:
        ending = f"_{one.stack}" if one.stack else ""
        known[f"kind{ending}"] = None if one.causal is None else KINDS[one.causal]
        known[f"n_layers{ending}"] = one.rows["layer"].nunique()
    known["sampling"] = sampling(rows)
    columns = ("run", "model", "parameters", "stage", "probe", "design", "n_vectors", "n_batches", "dim", "dtype")
    for column in (*columns, "device", "attention", "repdyn_version"):
        values = rows[column].dropna().unique().tolist()
        known[column] = values[0] if len(values) == 1 else ", ".join(map(str, values)) or None
    return {name: value for name, value in known.items() if value is not None}

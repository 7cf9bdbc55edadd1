"""Rows that loggers get, and a logger that is broken."""

import math

from lightning.pytorch.loggers import TensorBoardLogger

NAN = math.nan


def checkpoint(row, step, n_layers=3):
    """One measured step; layer 1 has no value."""
    return [
        row(
            step=step, layer=layer, subset=subset, value=NAN if layer == 1 else step + layer + shift
        )
        for subset, shift in (("all", 0.0), ("no_sink", 0.5))
        for layer in range(n_layers)
    ]


class BrokenBoard(TensorBoardLogger):
    @property
    def experiment(self):
        raise ConnectionError("the board is gone")


def of_kind(records, kind):
    """Return what records of a run of W&B hold, those of one kind."""
    return [record[kind] for record in records if record["type"] == kind]


def history_of(records):
    """Return the rows that were logged to a run of W&B."""
    return [history["item"] for history in of_kind(records, "history")]


def axes_of(records):
    """Return the axis of each value of a run of W&B, by its name, once for each definition."""
    named = [metric for metric in of_kind(records, "metric") if "name" in metric]
    return [(metric["name"], metric.get("step_metric")) for metric in named]

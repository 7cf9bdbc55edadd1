"""Two settings of one metric in one run: live, in loggers, store, alerts, figures and report, and in a sweep."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from jobs import Job, batches, tracker, trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from small import random_tokens
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from repdyn import Probe, open_store
from repdyn.store import Store
from repdyn.tables.frames import measurements, metrics_of

METRICS = ["two_nn", "two_nn[discard=0.8]", "two_nn[duplicates=count, discard=0.8]@no_sink", "anisotropy@no_massive"]
NAMES = ["anisotropy", "two_nn", "two_nn[discard=0.8,duplicates=count]", "two_nn[discard=0.8]"]


@pytest.fixture(scope="module")
def probe() -> Probe:
    return Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, probe, quick_images) -> Path:
    """A run with CSV and TensorBoard, its store in ``repdyn``."""
    root = tmp_path_factory.mktemp("live")
    loggers = [CSVLogger(root, name="", version="csv"), TensorBoardLogger(root, name="", version="board")]
    settings = {"metrics": METRICS, "store": root / "repdyn", "run": "live"}
    trainer(root, tracker(probe, 4, **settings), logger=loggers).fit(Job(), batches())
    return root


@pytest.fixture(scope="module")
def store(folder) -> Store:
    return open_store(folder / "repdyn")


def test_rows_of_each_setting_stand_in_the_store(store):
    rows = measurements(store.to_pandas())
    assert metrics_of(rows) == NAMES
    assert rows.groupby("metric").size().unique().tolist() == [12]
    values = rows.loc[rows["subset"] == "all"].pivot_table("value", ["step", "layer"], "metric")
    assert (values["two_nn"] != values["two_nn[discard=0.8]"]).all()


def test_loggers_have_them_under_names_of_their_own(folder):
    (line, *_) = csv.DictReader((folder / "csv" / "metrics.csv").open())
    board = EventAccumulator(str(folder / "board"))
    board.Reload()
    for section in ("two_nn", "two_nn[discard=0.8]", "two_nn[discard=0.8,duplicates=count]_no_sink"):
        assert f"{section}/layer_03" in line
        assert [event.step for event in board.Scalars(f"{section}/mean")] == [0, 4, 8]

"""Two settings of one metric in one run: live, in loggers, store, alerts, figures and report, and in a sweep."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from jobs import Job, batches, tracker, trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from small import random_tokens
from sweeping import main
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from repdyn import Probe, open_store
from repdyn.models import build_model
from repdyn.store import Store
from repdyn.tables.frames import measurements, metrics_of

METRICS = ["two_nn", "two_nn[discard=0.8]", "two_nn[duplicates=count, discard=0.8]@no_sink", "anisotropy@no_massive"]
NAMES = ["anisotropy", "two_nn", "two_nn[discard=0.8,duplicates=count]", "two_nn[discard=0.8]"]
SIZES = {"vocab_size": 50, "hidden_size": 16, "n_layers": 2, "n_heads": 2, "context_length": 12}


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


@pytest.fixture
def checkpoints(tmp_path, probe) -> Path:
    folder = tmp_path / "quick" / "run"
    for step in (0, 8):
        torch.manual_seed(step)
        build_model("gpt_neox", **SIZES).save_pretrained(folder / "hf_checkpoints" / f"step{step}")
    open_store(folder / "repdyn").save_probe(probe)
    return folder


@pytest.fixture
def undrawn(monkeypatch) -> None:
    monkeypatch.setattr("repdyn.publish.results.show_store", lambda *_: None)
    monkeypatch.setattr("repdyn.report.write_report", lambda _, path: path)


def swept(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code  # type: ignore[return-value]


@pytest.mark.usefixtures("undrawn")
def test_a_sweep_measures_them_and_notices_another_setting(checkpoints, capsys):
    assert swept(str(checkpoints), "--metrics", *METRICS) == 0
    frame = open_store(checkpoints / "sweep").to_pandas()
    assert sorted(frame.loc[frame["layer"].notna(), "metric"].unique()) == sorted(NAMES)
    capsys.readouterr()
    assert swept(str(checkpoints), "--metrics", *METRICS[::-1]) == 0
    assert "2 of 2 checkpoints are in" in capsys.readouterr().err
    swept(str(checkpoints), "--metrics", *METRICS[:-1], "two_nn[discard=0.7]", "--store", str(checkpoints / "other"))
    assert "are in" not in capsys.readouterr().err
    swept(str(checkpoints), "--metrics", "two_nn[discard=0.6]", "--store", str(checkpoints / "other"))
    assert "2 of 2 checkpoints are in" not in capsys.readouterr().err

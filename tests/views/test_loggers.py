import csv
import json
import math
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import wandb
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from logged_runs import BrokenBoard, axes_of, checkpoint, history_of
from matplotlib.figure import Figure
from synthetic_runs import measured_runs
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from repdyn.metrics.logged import logged_values
from repdyn.views.figures.run import heatmap
from repdyn.views.publish.loggers import each_target, named_figures, target_of


def test_scalars_of_the_training_have_names_beside_its_own(row, scalar_row):
    scalars = [
        scalar_row(4, 1.5),
        scalar_row(4, 2.5, metric="val/loss"),
        scalar_row(4, 0.1, metric="seconds/forward"),
    ]
    values = logged_values([*checkpoint(row, 4), *scalars])
    assert values["repdyn/loss"] == 1.5
    assert values["repdyn/val_loss"] == 2.5
    assert not {"train/loss", "val/loss", "seconds/forward"} & set(values)


def log_rows(rows, loggers, step, prefix=""):
    values = {f"{prefix}{name}": value for name, value in logged_values(rows).items()}
    each_target(loggers, lambda target: target.log_values(values, step))


def log_figures(figures, loggers, step, stack=None):
    each_target(loggers, lambda target: target.log_images(named_figures(figures, stack), step))


def test_csv_keeps_the_columns_of_the_training(row, tmp_path):
    logger = CSVLogger(tmp_path, name="", version="")
    logger.log_metrics({"train/loss": 5.5}, step=0)
    logger.save()
    for step, n_layers in ((0, 2), (4, 3)):
        log_rows(checkpoint(row, step, n_layers), [logger], step)
        logger.save()
    logger.log_metrics({"train/loss": 4.5}, step=5)
    logger.save()
    lines = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    assert [(line["step"], line["train/loss"]) for line in lines] == [
        ("0", "5.5"),
        ("0", ""),
        ("4", ""),
        ("5", "4.5"),
    ]
    assert [line["anisotropy/layer_00"] for line in lines] == ["", "0.0", "4.0", ""]
    assert [line["anisotropy/layer_01"] for line in lines] == ["", "nan", "nan", ""]
    assert [line["anisotropy_no_sink/layer_02"] for line in lines] == ["", "", "6.5", ""]


def test_tensorboard_scalars_and_figures(row, run, tmp_path):
    logger = TensorBoardLogger(tmp_path, name="", version="")
    for step in (0, 4):
        log_rows(checkpoint(row, step), [logger], step)
    log_figures(
        {"map": heatmap(*measured_runs(run(steps=(0, 4))), "anisotropy", "all")}, [logger], 4
    )
    logger.finalize("success")
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("anisotropy/layer_02")] == [
        (0, 2.0),
        (4, 6.0),
    ]
    assert [math.isnan(event.value) for event in events.Scalars("anisotropy/layer_01")] == [
        True,
        True,
    ]
    assert [event.value for event in events.Scalars("anisotropy_no_sink/mean")] == [2.5, 6.5]
    (image,) = events.Images("figures/map")
    assert image.step == 4
    assert image.width == 720
    assert image.height == 430


@pytest.fixture
def wandb_logger(tmp_path, monkeypatch):
    for name, value in {
        "MODE": "offline",
        "SILENT": "true",
        "CONSOLE": "off",
        "DIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    yield WandbLogger(project="tests", save_dir=tmp_path, offline=True)
    wandb.finish()


def read_back(folder: Path) -> list[dict]:
    """All records of the one offline run in ``folder``, as W&B's own reader prints them."""
    wandb.finish()
    (log,) = folder.glob("wandb/offline-run-*/*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.process
def test_wandb_keeps_alerts_for_its_alerts(wandb_logger, tmp_path):
    target_of(wandb_logger).log_alerts(
        ["step 8, no value: two_nn (all) has none", "step 8, mine: more"], 8
    )
    (alert,) = [record["alert"] for record in read_back(tmp_path) if record["type"] == "alert"]
    assert alert["title"] == "step 8, no value and 1 more"
    assert alert["level"] == "WARN"
    assert alert["text"] == "step 8, no value: two_nn (all) has none\nstep 8, mine: more"


@pytest.mark.process
# a comprehension for each claim on the run
def test_wandb_offline_run_holds_every_row(row, run, wandb_logger, tmp_path):
    wandb_logger.log_metrics({"train/loss": 5.5}, step=100)
    # step 4 before step 2: W&B's own counter goes on, ours need not
    for step in (0, 4, 2):
        log_rows(checkpoint(row, step), [wandb_logger], step)
        wandb_logger.log_metrics({"train/loss": 4.5}, step=100)
    log_figures(
        {"map": heatmap(*measured_runs(run(steps=(0, 4))), "anisotropy", "all")}, [wandb_logger], 4
    )
    records = read_back(tmp_path)

    history = history_of(records)
    ours = [item for item in history if "anisotropy/mean" in item]
    assert [item["repdyn/step"] for item in ours] == [0, 4, 2]
    assert [item["anisotropy/layer_02"] for item in ours] == [2, 6, 4]
    assert [item["anisotropy_no_sink/mean"] for item in ours] == [2.5, 6.5, 4.5]
    assert [item["anisotropy/layer_01"] for item in ours] == ["NaN"] * 3
    assert [item["train/loss"] for item in history if "train/loss" in item] == [5.5, 4.5, 4.5, 4.5]
    (picture,) = [item for item in history if "figures/map.path" in item]
    assert picture["repdyn/step"] == 4

    on_ours = [name for name, axis in axes_of(records) if axis == "repdyn/step"]
    sections = ("anisotropy", "anisotropy_no_sink")
    keys = ("layer_00", "layer_01", "layer_02", "mean", "min", "max")
    # sorted lists, not sets: each name is defined once, whatever the number of steps
    charts = [f"charts/{section}_over_depth" for section in sections]
    named = [f"{section}/{key}" for section in sections for key in keys]
    assert sorted(on_ours) == sorted(["figures/map", *charts, *named])
    tables = [item for item in history if "charts/anisotropy_over_depth_table.path" in item]
    assert [item["repdyn/step"] for item in tables] == [0, 4, 2], "a profile at every measurement"
    path = (
        next((tmp_path / "wandb").glob("offline-run-*"))
        / "files"
        / tables[1]["charts/anisotropy_over_depth_table.path"]
    )
    assert json.loads(path.read_text())["data"] == [
        [0, "anisotropy", 4.0],
        [1, "anisotropy", None],
        [2, "anisotropy", 6.0],
    ]


@pytest.mark.process
def test_every_logger_is_served(row, wandb_logger, tmp_path):
    table = CSVLogger(tmp_path, name="", version="csv")
    board = TensorBoardLogger(tmp_path, name="", version="tb")
    log_rows(checkpoint(row, 4), [table, wandb_logger, board], 4)
    table.save()
    board.finalize("success")
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert events.Scalars("anisotropy/mean")[0].value == 6.0
    assert "anisotropy/mean" in (tmp_path / "csv" / "metrics.csv").read_text()
    assert any(
        record.get("history", {}).get("item", {}).get("anisotropy/mean") == 6
        for record in read_back(tmp_path)
    )


def test_figures_pass_over_loggers_without_pictures(run, tmp_path):
    logger = CSVLogger(tmp_path, name="", version="")
    log_figures({"map": heatmap(*measured_runs(run(steps=(0,))), "anisotropy", "all")}, [logger], 0)
    logger.save()
    assert list(tmp_path.iterdir()) == []


def unpaintable() -> Figure:
    def draw(*_, **__):
        raise RuntimeError("no picture today")

    figure = Figure((1, 1))
    figure.draw = draw
    return figure


@pytest.mark.process
def test_one_picture_that_fails_keeps_none_of_the_others_from_any_logger(
    row, wandb_logger, tmp_path
):
    board = TensorBoardLogger(tmp_path, name="", version="tb")
    figures = {"a": Figure((1, 1)), "b": unpaintable(), "c": Figure((1, 1))}
    with pytest.raises(RuntimeError, match="^no picture today$"):
        log_figures(figures, [wandb_logger, board], 4, "decoder")
    board.finalize("success")
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert set(events.Tags()["images"]) == {"figures/decoder/a", "figures/decoder/c"}
    history = [
        record["history"]["item"] for record in read_back(tmp_path) if record["type"] == "history"
    ]
    (pictures,) = [item for item in history if "figures/decoder/a.path" in item]
    assert pictures["repdyn/step"] == 4
    assert "figures/decoder/c.path" in pictures
    assert not any("/b." in name for name in pictures)


def test_a_logger_that_fails_keeps_the_others_from_nothing(row, tmp_path):
    broken = BrokenBoard(tmp_path / "broken")
    board = TensorBoardLogger(tmp_path, name="", version="tb")
    with pytest.raises(ValueError, match="you tried to log"):  # what Lightning makes of it
        log_rows(checkpoint(row, 4), [broken, board], 4)
    with pytest.raises(ConnectionError, match="^the board is gone$"):
        log_figures({"a": Figure((1, 1))}, [broken, board], 4)
    board.finalize("success")
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert events.Scalars("anisotropy/mean")[0].value == 6.0
    assert events.Tags()["images"] == ["figures/a"]


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_names_with_dots_and_asterisks_are_on_the_axis_of_steps_in_wandb(row, package):
    """A dot led into a nested value, an asterisk made W&B refuse the whole row, and the other
    package was not known.
    """
    run = mock.MagicMock()
    logger = pytest.importorskip(f"{package}.loggers").WandbLogger(experiment=run)
    log_rows([row(step=4, layer=0, metric="my.metric", value=1.0)], [logger], 4, prefix="a*b_")
    axes = {
        call.args[0]: call.kwargs.get("step_metric") for call in run.define_metric.call_args_list
    }
    logged = {name for call in run.log.call_args_list for name in call.args[0]} - {"repdyn/step"}
    assert "a-b_my.metric/layer_00" in logged
    assert all(axes[name.replace(".", "\\.")] == "repdyn/step" for name in logged)

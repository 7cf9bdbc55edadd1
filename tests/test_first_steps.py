"""What a newcomer meets: how things print, where a store is found, how an interrupted job ends."""

from __future__ import annotations

import atexit
import runpy
from pathlib import Path

import pytest
import torch
from jobs import tiny_language_model
from small import HandWritten, random_tokens
from stored_rows import row
from trainers_without_a_probe import trainer
from transformers import TrainerCallback

import repdyn
from repdyn import Tracker, open_store
from repdyn.callbacks import HuggingFaceTracker, RepresentationDynamics
from repdyn.cli.main import main
from repdyn.store import MeasurementKey, Store
from repdyn.tracking.run import Measurer


def fill(folder) -> None:
    """Store one value."""
    Store(folder).write(
        MeasurementKey(run="a", step=0, probe="p", metrics="anisotropy"), [row(run="a", step=0)]
    )


def test_the_folder_of_a_run_is_its_store(tmp_path):
    """Catches an empty store without a word."""
    fill(tmp_path / "job" / "version_0" / "repdyn")
    for folder in (tmp_path / "job" / "version_0", tmp_path):
        assert open_store(folder).path == tmp_path / "job" / "version_0" / "repdyn"
    fill(tmp_path / "job" / "version_1" / "repdyn")
    assert open_store(tmp_path).runs() == []  # which of the two is not known
    assert open_store(tmp_path / "new").path == tmp_path / "new"


def test_a_tracker_writes_where_it_was_told_to(tmp_path, small_probe):
    fill(tmp_path / "earlier" / "repdyn")
    assert Tracker(HandWritten(), small_probe, store=tmp_path).store.path == tmp_path


def test_query_takes_the_folder_of_a_run(tmp_path):
    fill(tmp_path / "job" / "repdyn")
    assert repdyn.query(str(tmp_path / "job"), "select count(*) as n from rows")["n"].tolist() == [
        1
    ]


def test_what_is_read_first_comes_first(tmp_path):
    """pandas shows the first and the last columns of many."""
    fill(tmp_path)
    names = list(open_store(tmp_path).to_pandas().columns)
    assert names[:6] == ["run", "step", "layer", "metric", "subset", "value"]


def test_trackers_print_what_they_do(tmp_path, small_probe):
    tracker = Tracker(HandWritten(), small_probe, schedule=5, store=tmp_path / "mine")
    assert repr(tracker).startswith("Tracker('mine': HandWritten, Schedule(every=5")
    assert repr(tracker).endswith("step 0, not started)")
    for callback in (RepresentationDynamics(), HuggingFaceTracker()):
        assert repr(callback).startswith(f"{type(callback).__name__}(anisotropy, two_nn; Schedule(")


def test_the_demo_says_how_to_attach(tmp_path, capsys):
    main(["demo", "--no-browser", "-o", str(tmp_path)])
    printed = capsys.readouterr().out
    for name in ("RepresentationDynamics()", "HuggingFaceTracker()", "from_dataset"):
        assert name in printed


class Interrupting(TrainerCallback):
    """Breaks a training off, as Ctrl-C does."""

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 2:
            raise KeyboardInterrupt


@pytest.mark.usefixtures("without_figures")
def test_a_broken_off_training_of_the_trainer_names_the_commands_at_exit(
    tmp_path, monkeypatch, caplog
):
    at_exit = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    monkeypatch.setattr(atexit, "unregister", at_exit.remove)
    attached = HuggingFaceTracker(schedule=1)
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, attached, Interrupting()).train()
    (call,) = at_exit
    call()
    assert f"repdyn report {tmp_path / 'repdyn'}" in caplog.text
    at_exit.clear()
    trainer(tmp_path / "whole", HuggingFaceTracker(schedule=2)).train()
    assert at_exit == []


def test_ctrl_c_in_the_first_measurement_says_that_nothing_is_stored(
    tmp_path, small_probe, monkeypatch, capsys, caplog
):
    """Nothing was said, or that the rows are stored and how to draw them, where there is no row."""

    def break_off(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Measurer, "measure", break_off)
    tracker = Tracker(HandWritten(), small_probe, store=tmp_path / "mine")
    with pytest.raises(KeyboardInterrupt):
        tracker.start()
    said = capsys.readouterr().err
    assert said.count("before its first measurement was finished") == 1
    assert "rows are stored" not in caplog.text


def test_ctrl_c_before_the_training_is_a_line(monkeypatch, capsys):
    """It was a traceback through Lightning."""

    def break_off():
        raise KeyboardInterrupt

    monkeypatch.setattr("repdyn.cli.train.TrainCLI", break_off)
    monkeypatch.setattr("sys.argv", ["train.py"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(Path(__file__).parents[1] / "train.py"), run_name="__main__")
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "stopped\n"


@pytest.mark.usefixtures("without_figures")
def test_a_dear_measurement_names_its_bound(tmp_path, capsys):
    torch.manual_seed(0)
    model = tiny_language_model("llama").model
    probe = repdyn.Probe.from_tokens(random_tokens(64, 12), max_vectors=512)
    with Tracker(model, probe, schedule=2, store=tmp_path / "dear", n_steps=8) as tracker:
        for _ in range(8):
            tracker.step(loss=1.0)
    said = capsys.readouterr().err
    assert "max_overhead=0.05 bounds that" in said

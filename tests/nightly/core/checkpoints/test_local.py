"""Local checkpoints: found, measured once, with the numbers of the live run; and the command that
does it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from jobs import Job, batches, tiny_language_model, tracker, trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from small import random_tokens
from sweeping import Report, downloads_in, main, measure_tasks, settings
from transformers import AutoModelForCausalLM

from repdyn import Probe, measure, open_store
from repdyn.callbacks import SavePretrainedCheckpoint
from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.local import find_checkpoints
from repdyn.checkpoints.options import CompleteOptions, Loading
from repdyn.checkpoints.tasks import Task, partition_tasks
from repdyn.checkpoints.weights import load_lightning
from repdyn.models import build_model
from repdyn.store import Store
from repdyn.store.schema import Checkpoint

SETTINGS = settings(loading=Loading(dtype="auto"))
SIZES = {"vocab_size": 50, "hidden_size": 16, "n_layers": 2, "n_heads": 2, "context_length": 12}


@pytest.fixture
def probe() -> Probe:
    return Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)


@pytest.fixture
def run(tmp_path, probe) -> Path:
    """A run's folder with three checkpoints and its probe."""
    folder = tmp_path / "quick" / "run"
    for step in (0, 8, 16):
        torch.manual_seed(step)
        build_model("gpt_neox", **SIZES).save_pretrained(folder / "hf_checkpoints" / f"step{step}")
    open_store(folder / "repdyn").save_probe(probe)
    return folder


@pytest.fixture
def measured(tmp_path, probe):
    """Sweeps what is found in a folder and not in the store yet."""

    def measured(folder: Path, store: Store, settings: CompleteOptions = SETTINGS) -> Report:
        tasks = [Task(target, probe) for target in find_checkpoints(folder, "swept").targets]
        waiting = partition_tasks(tasks, store, settings).waiting
        return measure_tasks(waiting, store, settings, downloads_in(tmp_path / "downloads"))

    return measured


@pytest.fixture
def command(capsys, tmp_path, monkeypatch):
    """Runs the command in an empty folder; gives its exit status, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def command(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(
                [str(argument) for argument in (*arguments, "--downloads", tmp_path / "downloads")]
            )
        assert isinstance(stop.value.code, int)
        return stop.value.code, *capsys.readouterr()

    return command


def names(folder: Path) -> list[tuple[str, int]]:
    return [(target.revision, target.step) for target in find_checkpoints(folder, "run").targets]


def values(frame: pd.DataFrame) -> pd.DataFrame:
    columns = ["step", "layer", "metric", "subset", "value", "std", "n_unique"]
    kept = frame.loc[frame["layer"].notna(), columns]
    return kept.sort_values(columns[:4]).reset_index(drop=True)


def test_a_trainers_output_with_its_final_model(run, tmp_path):
    folder = tmp_path / "output"
    shutil.copytree(run / "hf_checkpoints" / "step16", folder)
    for step in (500, 1500):
        shutil.copytree(run / "hf_checkpoints" / "step8", folder / f"checkpoint-{step}")
    shutil.copytree(run / "hf_checkpoints" / "step8", folder / "best")
    assert names(folder) == [("checkpoint-500", 500), ("checkpoint-1500", 1500)]
    assert find_checkpoints(folder).unmatched == ("output", "best")


def test_epochs_are_no_steps_but_the_pattern_that_the_error_gives_reads_them(run):
    for folder in (run / "hf_checkpoints").iterdir():
        folder.rename(folder.with_name(folder.name.replace("step", "epoch_")))
    with pytest.raises(ValueError, match="got epoch_0, epoch_16, epoch_8") as error:
        find_checkpoints(run)
    found = find_checkpoints(run, pattern=str(error.value).split("'")[1])
    assert [at.step for at in found.targets] == [0, 8, 16]


def test_a_partially_saved_checkpoint_is_ignored(run):
    shutil.copytree(run / "hf_checkpoints" / "step8", run / "hf_checkpoints" / ".step24.partial")
    assert names(run) == [("step0", 0), ("step8", 8), ("step16", 16)]
    assert find_checkpoints(run).unmatched == ()


@pytest.mark.parametrize("step", [12, 24])
def test_a_step_without_a_configuration_is_a_failure(run, command, shown, step):
    """Also where it is the newest, by which the tokenizer's context would be found."""
    folder = run / "hf_checkpoints" / f"step{step}"
    shutil.copytree(run / "hf_checkpoints" / "step8", folder)
    (folder / "config.json").unlink()
    (run / "hf_checkpoints" / "step16" / "eval-step99").mkdir()  # no checkpoint of this folder
    status, _, err = command(run, "--metrics", "two_nn")
    assert status == 1
    assert f"not measured: run/hf_checkpoints step{step}: it has no config.json" in err
    store = open_store(run / "sweep")
    assert store.steps("run/hf_checkpoints") == [0, 8, 16]
    assert step in set(store.to_pandas()["step"])
    (folder / "config.json").write_bytes(
        (run / "hf_checkpoints" / "step8" / "config.json").read_bytes()
    )
    assert command(run, "--metrics", "two_nn")[0] == 0


def test_the_head_is_loaded_for_metrics_that_read_through_it(run, measured, probe, tmp_path):
    metrics = ("lens_kl", "lens_agreement")
    store = open_store(tmp_path / "store")
    measured(run, store, settings(metrics, loading=Loading(dtype="auto")))
    swept = values(store.to_pandas())
    model = AutoModelForCausalLM.from_pretrained(run / "hf_checkpoints" / "step8")
    live = values(measure(model, probe, metrics, checkpoint=Checkpoint(step=8)).to_pandas())
    pd.testing.assert_frame_equal(swept.query("step == 8").reset_index(drop=True), live)
    assert bool(swept["value"].notna().all())


def test_a_checkpoint_saved_again_is_measured_again(run, tmp_path, measured):
    store = open_store(tmp_path / "swept")
    measured(run, store)
    before = values(store.to_pandas())
    torch.manual_seed(99)
    build_model("gpt_neox", **SIZES).double().save_pretrained(run / "hf_checkpoints" / "step8")
    os.utime(
        run / "hf_checkpoints" / "step8" / "model.safetensors", (1, 1)
    )  # older than what it replaces
    assert [task.target.step for task in measured(run, store).measured] == [8]
    after = values(store.to_pandas())
    assert len(after) == len(before)
    changed = after.loc[after["value"].ne(before["value"]) & after["value"].notna(), "step"]
    assert set(changed) == {8}


def test_the_loss_and_views_of_a_run_s_checkpoints_are_its_live_ones(
    tmp_path, probe, command, shown, without_figures
):
    metrics = [
        "anisotropy@last_token",
        "anisotropy@window_mean",
        "effective_rank_of_variance@differences",
        "effective_rank_of_variance@all.normed",
    ]
    live = tracker(probe, 3, metrics=metrics, probe_loss=True)
    saved = SavePretrainedCheckpoint(3, tmp_path / "run" / "hf_checkpoints")
    trainer(tmp_path, live, saved).fit(tiny_language_model(), batches())
    shutil.copytree(live.store.path, tmp_path / "run" / "repdyn")
    assert command(tmp_path / "run", "--metrics", *metrics)[0] == 0
    of_both = []
    for store in (live.store, open_store(tmp_path / "run" / "sweep")):
        frame = store.to_pandas()
        measured = frame.loc[frame["layer"].notna() | frame["metric"].str.startswith("probe/")]
        of_both.append(
            measured.set_index(["step", "metric", "subset", "layer"])["value"].sort_index()
        )
    assert set(of_both[0].index.get_level_values("metric")) >= {
        "probe/loss",
        "probe/accuracy",
        "effective_rank_of_variance",
    }
    assert of_both[0].notna().all()
    pd.testing.assert_series_equal(*of_both, check_exact=True)


# Lightning's


@pytest.fixture
def lightning(tmp_path) -> Path:
    """A folder with Lightning's checkpoints of the steps 2 and 4, and last.ckpt that repeats the
    latter.
    """
    keep = ModelCheckpoint(
        tmp_path / "checkpoints", save_top_k=-1, every_n_train_steps=2, save_last=True
    )
    trainer(tmp_path, keep, max_steps=4).fit(tiny_language_model(), batches())
    return tmp_path / "checkpoints"


def test_the_step_of_a_lightning_checkpoint_is_in_the_file_not_in_its_name(lightning):
    (lightning / "epoch=0-step=2.ckpt").rename(lightning / "step=999.ckpt")
    assert ("step=999.ckpt", 2) in names(lightning)


def test_saved_folders_come_before_lightning_files(lightning, run):
    shutil.copytree(run / "hf_checkpoints" / "step8", lightning / "step8")
    selection = find_checkpoints(lightning, "run")
    assert [target.revision for target in selection.targets] == ["step8"]
    assert selection.unmatched == ("epoch=0-step=2.ckpt", "epoch=0-step=4.ckpt", "last.ckpt")


def test_a_checkpoint_of_another_module_is_an_error(tmp_path):
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1)
    trainer(tmp_path, keep, max_steps=1).fit(Job(), batches())
    (target,) = find_checkpoints(tmp_path, "run").targets
    assert target.path is not None
    with pytest.raises(
        CheckpointError, match="does not load as a checkpoint of repdyn.models.LanguageModel"
    ):
        load_lightning(target.path)


def test_unknown_layers_fail_with_the_names_of_existing_ones(run, command, shown):
    status, _, err = command(run, "--layers", "h.*")
    assert status == 1
    assert (
        err.count(
            "'h.*' matches none; lists of blocks in it: \"gpt_neox.layers.*\" (2 of GPTNeoXLayer)"
        )
        == 1
    )
    assert command(run, "--retry-failed")[0] == 0


def test_one_of_several_probes_must_be_selected(run, command, probe, shown):
    other = Probe.from_tokens(random_tokens(24, 12, seed=1), max_vectors=192, batch_vectors=96)
    file = open_store(run / "repdyn").save_probe(other)
    status, _, err = command(run)
    assert status == 2
    assert "got 2; select one with --probe FILE" in err
    status, _, _ = command(run, "--probe", file, "--revisions", "step8")
    assert status == 0
    assert set(open_store(run / "sweep").to_pandas()["probe"]) == {other.hash}

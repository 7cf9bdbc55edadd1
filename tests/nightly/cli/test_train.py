"""train.py from the command line."""

import os
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import wandb
import yaml
from sweeping import main as analyze_checkpoints

from repdyn import Probe, open_store
from repdyn.cli.train import Run, TrainCLI

ROOT = Path(__file__).parents[3]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
TINY = [
    *("--model.n_layers", "2", "--model.hidden_size", "32", "--model.n_heads", "1"),
    *("--data.sequence_length", "32", "--data.batch_size", "4", "--data.max_bytes", "60000"),
    *("--data.max_vectors", "512", "--data.batch_vectors", "256"),
    *(
        "--trainer.max_steps",
        "6",
        "--trainer.limit_val_batches",
        "1",
        "--trainer.log_every_n_steps",
        "2",
        "--trainer.accelerator",
        "cpu",
    ),
    *("--tracker.schedule", "4", "--hf_checkpoints.schedule", "4"),
    *("--tracker.alerts", "[{name: any, when: above, bound: 0, metrics: [anisotropy]}]"),
]


def train(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "train.py"), *arguments]
    # W&B leaves the address of this process's own service in the environment, and a child would
    # write there.
    env = {
        name: value for name, value in os.environ.items() if not name.startswith("WANDB_SERVICE")
    }
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.fixture
def train_here(monkeypatch, capsys):
    """As :func:`train`, in this process: importing takes longer than most of what is asked for
    here.
    """
    environment = dict(os.environ)

    def train_here(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        status = 0
        try:
            TrainCLI()
        except SystemExit as end:
            status = end.code
        return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())

    yield train_here
    os.environ.clear()
    os.environ.update(environment)


@pytest.mark.process
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_is_understood_and_headed_by_its_command(config, train_here, tmp_path):
    result = train_here("fit", "--config", str(config), "--print_config", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    understood = yaml.safe_load(result.stdout)
    for group, fields in yaml.safe_load(config.read_text()).items():
        for name, value in fields.items() if isinstance(fields, dict) else []:
            if not isinstance(value, dict):
                assert understood[group][name] == value
    first = config.read_text().splitlines()[0]
    assert first in {f"# python train.py fit --config configs/{config.name}", "# python train.py"}


@pytest.mark.process
def test_no_argument_is_the_quickstart(monkeypatch):
    seen = []

    def note_arguments():
        seen.append(sys.argv[1:])

    monkeypatch.setattr("repdyn.cli.train.TrainCLI", note_arguments)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    runpy.run_path(str(ROOT / "train.py"), run_name="__main__")
    assert seen == [["fit", "--config", str(ROOT / "configs" / "quickstart.yaml")]]


@pytest.mark.process
@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--trainer.max_stps", "3"], "did you mean 'trainer.max_steps'?"),
        (["--model.hiden_size", "3"], "did you mean 'model.hidden_size'?"),
        (["--tracker.shedule", "3"], "did you mean 'tracker.schedule'?"),
        (["--config", "typo.yaml"], "did you mean 'data.batch_size'?"),
        (["--tracker.metrics", "[anisotropi]"], "did you mean 'anisotropy'?"),
    ],
)
def test_a_mistyped_key_says_what_was_meant(train_here, tmp_path, typed, meant):
    (tmp_path / "typo.yaml").write_text("data:\n  batchsize: 3\n")
    result = train_here(
        "fit", "--config", str(ROOT / "configs" / "quickstart.yaml"), *typed, cwd=tmp_path
    )
    assert result.returncode == 2
    assert meant in result.stderr.splitlines()[-1]


@pytest.mark.process
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--run.nme", "mine", "fit"], "got --run.nme; did you mean 'run.name'?"),
        (["--confg", "my.yaml"], "got --confg; did you mean 'config'?"),
        (["--run.name", "mine"], "got --run.name; as in"),
        (["train"], "invalid choice: 'train'"),
    ],
)
def test_an_option_before_fit_is_named_and_not_its_value(train_here, tmp_path, typed, said):
    """The value was blamed, as a subcommand that does not exist."""
    result = train_here(*typed, cwd=tmp_path)
    assert result.returncode == 2
    assert said in result.stderr.splitlines()[-1]


@pytest.mark.process
@pytest.mark.parametrize("family", ["gpt_neox", "bert"])
def test_a_small_run_from_start_to_figures_and_its_sweep(
    tmp_path, family, train_here, caplog, monkeypatch, request
):
    if family == "bert":  # whose figures are drawn by the same code, slowly
        request.getfixturevalue("without_figures")
    quickstart = str(ROOT / "configs" / "quickstart.yaml")
    # W&B's service takes a relative folder as one below where it was started, by another test in
    # this process perhaps
    given = ["--model.family", family, "--run.folder", str(tmp_path / "runs")]
    result = train_here("fit", "--config", quickstart, *TINY, *given, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    (folder,) = (tmp_path / "runs" / "quickstart").iterdir()
    run = f"quickstart/{folder.name}"
    store = open_store(folder / "repdyn")
    assert store.runs() == [run]
    assert store.steps(run) == [0, 4, 6]
    frame = store.to_pandas()
    assert set(frame.loc[frame.layer.notna(), "causal"]) == {family == "gpt_neox"}
    assert "text: language reference of Python" in result.stdout + result.stderr + caplog.text
    assert frame.loc[frame.metric == "anisotropy", "value"].notna().all()
    assert set(frame.loc[frame.metric == "train/loss", "step"]) == {4, 6}
    assert frame["tokens_seen"].max() == 6 * 4 * 32
    drawn = {p.name for p in folder.glob("repdyn/figures/*")}
    assert family == "bert" or "profile_anisotropy.png" in drawn
    assert {p.name for p in (folder / "hf_checkpoints").iterdir()} == {"step0", "step4", "step6"}
    assert (folder / "config.yaml").exists()
    assert list((folder / "tensorboard").glob("events*"))
    wandb.finish()  # where the run was of this process, W&B may still be at writing it
    assert list((folder / "wandb").glob("offline-run-*/*.wandb"))
    logged = pd.read_csv(folder / "metrics.csv")
    assert {"train/loss", "anisotropy/layer_02", "anisotropy_no_sink/mean", "two_nn/mean"} <= set(
        logged.columns
    )
    figures = str(folder.relative_to(tmp_path) / "repdyn" / "figures")
    assert family == "bert" or figures in result.stdout.replace("\n", "")

    monkeypatch.setattr("signal.signal", lambda *_: None)
    for view in ("repdyn.views.publish.results.show_store", "repdyn.views.report.write_report"):
        monkeypatch.setattr(view, lambda *_: None)
    with pytest.raises(SystemExit, match="^0$"):
        analyze_checkpoints([str(folder)])
    again = open_store(folder / "sweep").to_pandas()
    again, live = (
        rows[rows.layer.notna()].set_index(["step", "metric", "subset", "layer"])["value"]
        for rows in (again, frame)
    )
    pd.testing.assert_series_equal(again, live, check_exact=True)


@pytest.mark.process
def test_resume_from_the_last_checkpoint(tmp_path, train_here, without_figures):
    quickstart = [
        "fit",
        "--config",
        str(ROOT / "configs" / "quickstart.yaml"),
        *TINY,
        "--run.loggers",
        "none",
    ]
    assert train_here(*quickstart, cwd=tmp_path).returncode == 0
    (folder,) = (tmp_path / "runs" / "quickstart").iterdir()
    last = folder / "checkpoints" / "last.ckpt"
    assert "state_dict" in torch.load(last, weights_only=True)
    quiet = ("--trainer.max_steps", "9", "--trainer.enable_progress_bar", "false")
    resumed = train_here(*quickstart, *quiet, "--ckpt_path", str(last), cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    store = open_store(folder / "repdyn")
    assert store.steps(store.runs()[0]) == [0, 4, 6, 8, 9]
    assert {p.name for p in (folder / "hf_checkpoints").iterdir()} == {
        "step0",
        "step4",
        "step6",
        "step8",
        "step9",
    }
    assert Probe.load(next((folder / "repdyn" / "probes").iterdir())).batch_vectors == 256


@pytest.mark.once
@pytest.mark.process
def test_runs_that_start_in_the_same_second_get_folders_of_their_own(tmp_path, monkeypatch):
    started = datetime(2026, 1, 2, 3, 4, 5)
    monkeypatch.setattr("repdyn.cli.train.datetime", SimpleNamespace(now=lambda: started))
    run = Run(folder=str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: run.new_folder(), range(8)))
    assert all(folder.is_dir() for folder in folders)
    names = {folder.name for folder in folders}
    assert names == {
        "2026-01-02_03-04-05",
        *(f"2026-01-02_03-04-05_{number}" for number in range(2, 9)),
    }


def test_a_trainer_that_cannot_be_built_leaves_no_folder(tmp_path, train_here):
    quickstart = [
        "fit",
        "--config",
        str(ROOT / "configs" / "quickstart.yaml"),
        "--run.loggers",
        "[]",
    ]
    with pytest.raises(ValueError, match="nonsense"):
        train_here(*quickstart, "--trainer.accelerator", "nonsense", cwd=tmp_path)
    assert list((tmp_path / "runs" / "quickstart").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error_of_one_line(tmp_path, train_here):
    """It was a traceback."""
    (tmp_path / "file").touch()
    quickstart = ["fit", "--config", str(ROOT / "configs" / "quickstart.yaml")]
    result = train_here(*quickstart, "--run.folder", "file", cwd=tmp_path)
    assert result.returncode == 2
    assert "error: run: expected a folder in which files can be made, got" in result.stderr
    assert "name one with --run.folder" in result.stderr


@pytest.mark.process
def test_two_devices_share_one_folder(tmp_path):
    quickstart = [
        "fit",
        "--config",
        str(ROOT / "configs" / "quickstart.yaml"),
        *TINY,
        "--run.loggers",
        "[]",
    ]
    result = train(*quickstart, "--trainer.devices", "2", "--trainer.strategy", "ddp", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (folder,) = (tmp_path / "runs" / "quickstart").iterdir()
    assert open_store(folder / "repdyn").steps(f"quickstart/{folder.name}") == [0, 4, 6]
    assert (folder / "hf_checkpoints" / "step4").is_dir()

"""The tracker attached to an unchanged Lightning script by environment variables, through the entry
point.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import transformers
from jobs import batches, tiny_language_model
from lightning.pytorch import Trainer
from small import random_tokens

from repdyn import open_store
from repdyn.callbacks import RepresentationDynamics
from repdyn.callbacks.from_environment import (
    hugging_face_callbacks,
    lightning_callbacks,
    settings_of_environment,
)
from repdyn.probe import Probe

ROOT = Path(__file__).parents[3]


@pytest.fixture
def entry_point(tmp_path, monkeypatch) -> None:
    """Make this checkout look installed, with the entry points that it declares."""
    if importlib.metadata.entry_points(group="lightning.pytorch.callbacks_factory", name="repdyn"):
        return  # installed since it declares them
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    folder = tmp_path / "site" / "repdyn_checkout-0.dist-info"
    folder.mkdir(parents=True)
    lines = [
        line
        for group, points in declared.items()
        for line in (f"[{group}]", *(f"{k} = {v}" for k, v in points.items()))
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: repdyn-checkout\nVersion: 0\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    importlib.invalidate_caches()


@pytest.fixture
def saved(small_probe: Probe, tmp_path, monkeypatch) -> Path:
    path = tmp_path / "probe.safetensors"
    small_probe.save(path)
    monkeypatch.setenv("REPDYN_PROBE", str(path))
    return path


def trained(tmp_path: Path) -> Trainer:
    """Train as a script does that knows nothing of the tracker."""
    trainer = Trainer(
        max_steps=2,
        default_root_dir=tmp_path,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(tiny_language_model(), batches())
    return trainer


@pytest.mark.parametrize("variables", [{}, {"REPDYN": "0", "REPDYN_PROBE": "a file"}], ids=str)
def test_nothing_is_attached_unasked(entry_point, tmp_path, monkeypatch, variables) -> None:
    for name in ("REPDYN", "REPDYN_PROBE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert lightning_callbacks() == []
    trainer = Trainer(default_root_dir=tmp_path, accelerator="cpu", logger=False)
    assert not any(isinstance(each, RepresentationDynamics) for each in trainer.callbacks)


def test_an_unchanged_script_is_tracked(
    entry_point, saved, tmp_path, monkeypatch, without_figures
) -> None:
    monkeypatch.setenv("REPDYN_SCHEDULE", "1")
    monkeypatch.setenv("REPDYN_METRICS", "anisotropy effective_rank_of_variance[centred=false]")
    monkeypatch.setenv("REPDYN_STORE", str(tmp_path / "store"))
    trainer = trained(tmp_path)
    found = {each for each in trainer.callbacks if isinstance(each, RepresentationDynamics)}
    assert len(found) == 1
    frame = open_store(tmp_path / "store").to_pandas()
    assert sorted(frame["step"].unique()) == [0, 1, 2]
    assert {"anisotropy", "effective_rank_of_variance[centred=false]"} <= set(frame["metric"])


def test_one_variable_is_enough(entry_point, tmp_path, monkeypatch, without_figures) -> None:
    """The probe is taken from the data of the training."""
    monkeypatch.setenv("REPDYN", "1")
    monkeypatch.setenv("REPDYN_STORE", str(tmp_path / "store"))
    trained(tmp_path)
    assert open_store(tmp_path / "store").runs()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("REPDYN_LAYERS", "blocks.* other.*", {"layers": ["blocks.*", "other.*"]}),
        ("REPDYN_METRICS", "all", {"metrics": "all"}),
    ],
)
def test_settings_are_read_without_a_probe(monkeypatch, name, value, expected) -> None:
    monkeypatch.delenv("REPDYN_PROBE", raising=False)
    monkeypatch.setenv("REPDYN", "1")
    monkeypatch.setenv(name, value)
    assert settings_of_environment() == expected


def test_another_value_of_the_switch_is_an_error(monkeypatch) -> None:
    """A file there would be taken for a switch that is on, and its probe left out."""
    monkeypatch.setenv("REPDYN", "probe.safetensors")
    with pytest.raises(ValueError, match="REPDYN_PROBE"):
        settings_of_environment()


ATTACHED = """
import sys
import transformers
from small import random_tokens
from jobs import tiny_language_model

rows = [{"input_ids": row, "labels": row} for row in random_tokens(16, 12)]
for name in ("first", "second"):
    arguments = transformers.TrainingArguments(name, max_steps=2, report_to="none", use_cpu=True)
    transformers.Trainer(tiny_language_model().model, arguments, train_dataset=rows).train()
print(sys.argv, __name__)
raise ValueError("of the script")
"""


@pytest.mark.process
def test_a_script_runs_attached_as_python_runs_it(tmp_path):
    """With its arguments and its own errors, in full; and each of its trainers has a tracker."""
    (tmp_path / "script.py").write_text(ATTACHED)
    environment = os.environ | {
        "PYTHONPATH": f"{Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}",
        "REPDYN_SCHEDULE": "1",
    }
    command = [sys.executable, "-m", "repdyn", "attach", "script.py", "--lr", "--help"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert "['script.py', '--lr', '--help'] __main__" in done.stdout
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ValueError: of the script")
    assert "Traceback" in done.stderr
    for name in ("first", "second"):
        steps = open_store(tmp_path / name / "repdyn").to_pandas()["step"]
        assert sorted(steps.unique()) == [0, 1, 2]


def test_a_script_with_a_trainer_of_transformers_is_tracked(
    saved, tmp_path, monkeypatch, without_figures
) -> None:
    monkeypatch.setenv("REPDYN_SCHEDULE", "1")
    monkeypatch.setenv("REPDYN_STORE", str(tmp_path / "store"))
    arguments = transformers.TrainingArguments(
        str(tmp_path / "trainer"), max_steps=2, report_to="none", use_cpu=True
    )
    data = [{"input_ids": row, "labels": row} for row in random_tokens(16, 12)]
    model = tiny_language_model().model
    transformers.Trainer(
        model, arguments, train_dataset=data, callbacks=hugging_face_callbacks()
    ).train()  # type: ignore[arg-type]
    assert sorted(open_store(tmp_path / "store").to_pandas()["step"].unique()) == [0, 1, 2]


def test_without_the_variable_a_trainer_of_transformers_gets_no_callback(monkeypatch) -> None:
    for name in ("REPDYN", "REPDYN_PROBE"):
        monkeypatch.delenv(name, raising=False)
    assert hugging_face_callbacks() == []


@pytest.mark.parametrize(
    ("text", "schedule"),
    [("1000", 1000), ("0, 10,100", [0, 10, 100]), ("checkpoints", "checkpoints")],
)
def test_schedules_are_read(saved, monkeypatch, text: str, schedule: object) -> None:
    monkeypatch.setenv("REPDYN_SCHEDULE", text)
    settings = settings_of_environment()
    assert settings is not None
    assert settings["schedule"] == schedule
    assert settings["probe"].hash == Probe.load(saved).hash


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("REPDYN_SCHEDULE", "often", "expected a schedule: a Schedule, a number of steps"),
        ("REPDYN_METRICS", "two_nm", "did you mean 'two_nn'"),
    ],
)
def test_what_cannot_be_read_stops_the_script_before_its_training(
    saved, monkeypatch, name, value, message
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        lightning_callbacks()


def test_a_missing_probe_stops_the_script(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("REPDYN_PROBE", str(tmp_path / "none"))
    with pytest.raises(
        FileNotFoundError, match="expected a probe written by Probe.save, got no file"
    ):
        lightning_callbacks()


@pytest.mark.process
def test_the_entry_point_loads_nothing_where_it_is_not_asked_for() -> None:
    import subprocess

    code = (
        "import sys; from repdyn.callbacks.from_environment import lightning_callbacks as f; "
        "assert f() == []; "
        "assert not {'torch', 'lightning', 'transformers', 'plotly'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""}
    )


UNDER_THE_OTHER_NAME = """
import sys
import pytorch_lightning as pl
import torch
from repdyn import Probe, open_store
from repdyn.callbacks import RepresentationDynamics
from small import HandWritten, random_tokens

class Job(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = HandWritten()

    def training_step(self, batch, _):
        return self.network(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)

tokens = random_tokens(24, 12)
probe = Probe.from_tokens(tokens, max_vectors=192)
attached = RepresentationDynamics(probe, schedule=2, store="store", report=False)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tokens), batch_size=4)
quiet = {"logger": False, "enable_checkpointing": False}
pl.Trainer(max_steps=4, callbacks=[attached], **quiet).fit(Job(), data)
assert set(open_store("store").to_pandas()["step"]) == {0, 2, 4}
assert isinstance(attached, pl.Callback) and "lightning.pytorch" not in sys.modules
"""


@pytest.mark.process
def test_a_job_of_pytorch_lightning_loads_no_second_lightning(tmp_path):
    """Many jobs import the older name, whose callbacks and modules are other classes."""
    environment = os.environ | {
        "PYTHONPATH": f"{Path(__file__).parents[2] / 'support'}:{os.environ.get('PYTHONPATH', '')}"
    }
    command = [sys.executable, "-c", UNDER_THE_OTHER_NAME]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr

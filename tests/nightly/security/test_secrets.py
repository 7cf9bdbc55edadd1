"""Secrets of the environment and of addresses are in no file that a sweep or a training leaves, and
in no line it prints.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from hub_server import HubServer
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser
from stored_rows import row
from sweeping import main

from repdyn import open_store
from repdyn.checkpoints.errors import CheckpointError, SweepStoppedError, hub_errors, model_errors
from repdyn.cli import main as cli
from repdyn.cli.train import SaveConfig
from repdyn.kernels import UndefinedError
from repdyn.measurement.rows import reason_of
from repdyn.store import MeasurementKey
from repdyn.store.schema import Checkpoint, Row, failure_rows

TOKEN = "hf_" + "Zz9" * 11 + "q"
KEY = "fedcba9876543210fedcba9876543210fedcba98"
PASSWORD = "correct-horse-battery"
SECRETS = (TOKEN, KEY, PASSWORD)


@pytest.fixture
def secrets(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("WANDB_API_KEY", KEY)


def assert_free_of_secrets(folder: Path, *texts: str) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for secret in SECRETS:
        assert [path for path in files if secret.encode() in path.read_bytes()] == []
        assert not any(secret in text for text in texts)


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize(
    "make",
    [
        lambda reason: row(reason=reason_of(UndefinedError(reason)).text),
        lambda reason: failure_rows(Checkpoint(), ["two_nn"], reason, probe="p")[0],
    ],
    ids=["undefined", "failure"],
)
def test_no_row_has_a_secret_in_its_reason(make, tmp_path):
    written: Row = make(f"401 for https://me:{PASSWORD}@hub/x?token={KEY} with {TOKEN} and {KEY}")
    assert written.reason == "401 for https://hub/x with REDACTED and REDACTED"
    store = open_store(tmp_path)
    store.write(MeasurementKey(run="run", step=8, probe="p", metrics="m"), [written])
    assert_free_of_secrets(tmp_path)


@pytest.mark.usefixtures("secrets", "hub")
def test_a_sweep_that_fails_tells_nobody_its_tokens(
    hub: HubServer, family, tmp_path, monkeypatch, capsys
):
    (family[0] / "model.safetensors").write_bytes(b"\0" * 40)
    for step, folder in family.items():
        hub.publish("lab/model", f"step{step}", folder)
    said = f"for Bearer {TOKEN} at https://me:{PASSWORD}@cdn/x?X-Amz-Signature={KEY}"
    hub.fault(
        "model.safetensors",
        "status",
        times=2,
        code=403,
        headers={"X-Error-Message": f"denied {said}", "X-Request-Id": KEY},
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("repdyn.checkpoints.hub.has_abandoned_threads", lambda: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    options = ["--text", "builtin", "--max-vectors", "512", "--device", "cpu", "--store", "store"]
    with pytest.raises(SystemExit) as stop:
        main(["lab/model", "--downloads", "downloads", *options])
    assert stop.value.code == cli.FAILED
    out, err = capsys.readouterr()
    assert "the hub answered 403: " in err
    assert open_store("store").to_pandas()["reason"].notna().any()
    assert_free_of_secrets(tmp_path / "store", out, err)


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize(
    "command",
    [[f"https://me:{PASSWORD}@hub/{TOKEN}"], ["--suite", f"token={KEY}"]],
    ids=["source", "suite"],
)
def test_a_mistaken_command_is_answered_without_its_secrets(command, monkeypatch, capsys):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as stop:
        main(command)
    out, err = capsys.readouterr()
    assert stop.value.code == cli.USAGE
    assert not any(secret in out + err for secret in SECRETS)


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize(
    ("wrapped", "error"),
    [
        (model_errors("x"), RuntimeError),
        (model_errors("x"), MemoryError),
        (hub_errors("x", "hub"), OSError),
        (hub_errors("x", "hub"), ValueError),
    ],
    ids=["model", "memory", "file", "answer"],
)
def test_a_failure_is_shortened_after_its_secrets_are_gone(wrapped, error):
    text = f"{'a' * 350} {'b ' * 12}Authorization: Bearer {TOKEN}{KEY}"
    with pytest.raises((CheckpointError, SweepStoppedError)) as raised, wrapped:
        raise error(f"red\udcff {text}")
    said = str(raised.value)
    said.encode()  # as a store does
    assert TOKEN[:12] not in said


def test_config_yaml_has_no_secrets_and_is_still_yaml(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    parser = LightningArgumentParser()
    parser.add_argument("--run.name", default="quick")
    parser.add_argument("--logger.tracking_uri", default=f"https://me:{PASSWORD}@mlflow.example/x")
    parser.add_argument("--logger.api_key", default=KEY)
    parser.add_argument("--logger.token", default=TOKEN)
    parser.add_argument("--steps", type=list[int], default=[1, 2])
    trainer = Trainer(
        logger=False,
        default_root_dir=tmp_path,
        accelerator="cpu",
        enable_checkpointing=False,
        barebones=False,
    )
    SaveConfig(parser, parser.parse_args([])).setup(trainer, torch.nn.Identity(), "fit")
    assert_free_of_secrets(tmp_path)
    content = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert content == {
        "run": {"name": "quick"},
        "logger": {
            "tracking_uri": "https://mlflow.example/x",
            "api_key": "REDACTED",
            "token": "REDACTED",
        },
        "steps": [1, 2],
    }

"""The configuration of train.py in the loggers."""

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from repdyn.cli.train import SaveConfig


class Broken(TensorBoardLogger):
    @property
    def experiment(self):
        raise ConnectionError("gone, api_key=verysecretkey")


def test_loggers_get_it_without_secrets_and_none_stops_the_training(tmp_path):
    parser = LightningArgumentParser()
    parser.add_argument("--data.batch_size", default=32)
    parser.add_argument("--logger.api_key", default="verysecretkey")
    board = TensorBoardLogger(tmp_path, name="", version="board")
    loggers = [CSVLogger(tmp_path, name="", version="csv"), Broken(tmp_path / "broken"), board]
    trainer = Trainer(
        logger=loggers, accelerator="cpu", enable_checkpointing=False, enable_model_summary=False
    )
    with pytest.warns(
        UserWarning, match="^the configuration could not be logged: gone, api_key=REDACTED$"
    ):
        SaveConfig(parser, parser.parse_args([])).setup(trainer, torch.nn.Identity(), "fit")
    board.finalize("success")
    events = EventAccumulator(board.log_dir).Reload()
    (event,) = events.Tensors("repdyn/config/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert (
        text == "    repdyn/config: {'data': {'batch_size': 32}, 'logger': {'api_key': 'REDACTED'}}"
    )

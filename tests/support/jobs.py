"""A training job as a user has one: own module, own data, dropout and shuffling on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from small import HandWritten, random_tokens
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from repdyn import Probe, Tracker
from repdyn.callbacks import RepresentationDynamics
from repdyn.models import LanguageModel


class Job(pl.LightningModule):
    """A hand-written model in a LightningModule; remembers every loss."""

    def __init__(self, learning_rate: float = 1e-2) -> None:
        super().__init__()
        self.network = HandWritten()
        self.learning_rate = learning_rate
        self.losses: list[float] = []

    def forward(self, tokens: Tensor) -> Tensor:
        return self.network(tokens)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        logits = self(batch["input_ids"])
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten())
        self.losses.append(loss.item())
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.log("val/mean", self(batch["input_ids"]).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)


class Repeatable(Job):
    """Without dropout: on one and the same batch (``overfit_batches=1``) a resumed training reaches
    the same weights.
    """

    def __init__(self, learning_rate: float = 1e-2) -> None:
        super().__init__(learning_rate)
        for block in self.network.blocks:
            block.attention.dropout = 0.0


def batches(shuffle: bool = True, n: int = 48) -> DataLoader:
    data = [{"input_ids": tokens, "labels": tokens} for tokens in random_tokens(n, 12, seed=1)]
    return DataLoader(data, batch_size=4, shuffle=shuffle)  # type: ignore[arg-type]


def tiny_language_model(family: str = "gpt_neox", **changes: Any) -> LanguageModel:
    sizes = {
        "vocab_size": 50,
        "hidden_size": 16,
        "n_layers": 2,
        "n_heads": 2,
        "context_length": 12,
        "dropout": 0.1,
        "pad_token_id": 1,
    }
    return LanguageModel(family, **sizes | {"warmup_steps": 2} | changes)  # type: ignore[arg-type]


def trainer(root: Path, *callbacks: pl.Callback, **changes: Any) -> pl.Trainer:
    settings = {
        "logger": CSVLogger(root, name="job", version="0"),
        "max_steps": 8,
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(c, pl.callbacks.ModelCheckpoint) for c in callbacks),
        "log_every_n_steps": 1,
    }
    return pl.Trainer(default_root_dir=root, callbacks=list(callbacks), **settings | changes)


def tracker(probe: Probe, schedule: Any = 4, **changes: Any) -> RepresentationDynamics:
    return RepresentationDynamics(probe, schedule, **{"on_error": "raise"} | changes)


class Loop:
    """A training as one writes it, which remembers its losses."""

    def __init__(
        self, model: nn.Module | None = None, precision: torch.dtype | None = None
    ) -> None:
        torch.manual_seed(0)
        self.model = HandWritten() if model is None else model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.precision = precision
        self.losses: list[float] = []

    def step(self) -> Tensor:
        tokens = torch.randint(3, 50, (4, 12))
        with torch.autocast("cpu", self.precision, enabled=self.precision is not None):
            loss = cross_entropy(
                self.model(tokens)[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten()
            )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        return loss


def run(loop: Loop, tracker: Tracker, n_steps: int) -> None:
    """Train some steps with a tracker."""
    with tracker:
        for _ in range(n_steps):
            tracker.step(loss=loop.step(), tokens=48)

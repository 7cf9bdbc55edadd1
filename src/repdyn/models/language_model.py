"""LightningModule for pretraining a small encoder or decoder."""

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from transformers.optimization import get_cosine_with_min_lr_schedule_with_warmup, get_wsd_schedule

from repdyn.models.families import FamilyName, build_model, objective_of

_LAST_RATE = 0.1
"""Learning rate at the end of a training, as a share of its peak."""


class LanguageModel(LightningModule):
    """A randomly initialised transformer with its training loss and optimizer.

    Decoders learn to predict the next token, encoders the masked ones, as given by the labels of a
    batch.

    Args:
        family: architecture, from transformers' own classes: decoders gpt_neox (as in Pythia),
            gpt2, bloom, llama, modernbert-decoder; encoders bert, roberta, modernbert. The two
            ModernBERT families share one backbone.
        vocab_size: number of tokens in the vocabulary; train.py takes it from the data.
        hidden_size: width of the residual stream.
        n_layers: number of blocks.
        n_heads: number of attention heads; on a CPU keep hidden_size / n_heads at 64.
        context_length: longest sequence; train.py takes it from the data.
        dropout: probability of every dropout of the family.
        pad_token_id: id of the padding token, None if there is none; train.py takes it from the
            data.
        learning_rate: peak of the schedule.
        warmup_steps: optimizer steps of linear warm-up, followed by a cosine decay to a tenth of
            the peak.
        cooldown_steps: keep the peak rate instead, and decay linearly to a tenth of it in so many
            last steps.
        weight_decay: weight decay of matrices; vectors (norms, biases) have none.
        global_attention: whether every layer attends to the whole context, also in families with
            sliding windows.
    """

    def __init__(
        self,
        family: FamilyName = "gpt_neox",
        vocab_size: int = 260,
        hidden_size: int = 256,
        n_layers: int = 6,
        n_heads: int = 4,
        context_length: int = 256,
        dropout: float = 0.0,
        pad_token_id: int | None = None,
        learning_rate: float = 1e-3,
        warmup_steps: int = 100,
        weight_decay: float = 0.1,
        global_attention: bool = False,
        cooldown_steps: int | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.objective = objective_of(family)
        self.model = build_model(
            family,
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            n_layers=n_layers,
            n_heads=n_heads,
            context_length=context_length,
            dropout=dropout,
            pad_token_id=pad_token_id,
            global_attention=global_attention,
        )
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.cooldown_steps = cooldown_steps
        self.weight_decay = weight_decay

    def forward(self, **batch: Tensor) -> Any:
        return self.model(**batch)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = self(**batch).loss
        self._log_loss("train", loss, on_step=True)
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self._log_loss("val", self(**batch).loss, on_step=False)

    def configure_optimizers(self) -> Any:
        total = self.trainer.estimated_stepping_batches
        # both schedules end at the last step, so there must be one
        if math.isinf(total):
            raise ValueError(
                "expected a training of known length for the learning rate schedule, got an "
                "unlimited one; set trainer.max_steps or trainer.max_epochs"
            )
        # embeddings are among the matrices, norms and biases are the vectors
        matrices = [p for p in self.parameters() if p.ndim >= 2]
        vectors = [p for p in self.parameters() if p.ndim < 2]
        optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": self.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=self.learning_rate,
            betas=(0.9, 0.95),
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": self._schedule(optimizer, int(total)),
                "interval": "step",
            },
        }

    def _schedule(self, optimizer: torch.optim.Optimizer, n_steps: int) -> LRScheduler:
        if self.cooldown_steps is None:
            return get_cosine_with_min_lr_schedule_with_warmup(
                optimizer, self.warmup_steps, n_steps, min_lr_rate=_LAST_RATE
            )
        if self.warmup_steps + self.cooldown_steps > n_steps:
            raise ValueError(
                f"expected warmup_steps and cooldown_steps within the {n_steps} steps of the "
                f"training, got {self.warmup_steps} and {self.cooldown_steps}"
            )
        return get_wsd_schedule(
            optimizer,
            self.warmup_steps,
            self.cooldown_steps,
            num_training_steps=n_steps,
            decay_type="linear",
            min_lr_ratio=_LAST_RATE,
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the random state that dropout draws from, so that a resumed training goes on as an
        undisturbed one.
        """
        # Lightning stores no state of a generator itself
        checkpoint["random_state"] = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            checkpoint["random_state"]["cuda"] = torch.cuda.get_rng_state(self.device)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint.get("random_state", {})
        if "cpu" in state:
            torch.set_rng_state(state["cpu"].cpu())
        if "cuda" in state and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"].cpu(), self.device)

    def _log_loss(self, split: str, loss: Tensor, *, on_step: bool) -> None:
        """Log the loss in nats per predicted token and, comparable between vocabularies, in bits
        per byte.
        """
        bytes_per_token = getattr(getattr(self.trainer, "datamodule", None), "bytes_per_token", 1.0)
        # for masked tokens this is not the compression rate, hence another name
        name = "bits_per_byte" if self.objective == "causal" else "masked_bits_per_byte"
        self.log(f"{split}/loss", loss, on_step=on_step, on_epoch=not on_step)
        # nats per token to bits per token to bits per byte
        bits = loss.detach() / math.log(2) / bytes_per_token
        self.log(f"{split}/{name}", bits, on_step=on_step, on_epoch=not on_step, prog_bar=True)

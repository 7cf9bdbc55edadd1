"""Families of models: sizes, training, the losses logged and the learning rate schedule."""

import math

import lightning.pytorch as pl
import pytest
import torch
from jobs import batches, tiny_language_model, trainer
from torch import nn

from repdyn.capture.blocks import find_blocks
from repdyn.models import build_model

FAMILIES = ["gpt_neox", "gpt2", "bloom", "llama", "bert", "roberta", "modernbert"]


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes(family):
    model = build_model(
        family,
        vocab_size=61,
        hidden_size=24,
        n_layers=3,
        n_heads=4,
        context_length=20,
        dropout=0.25,
        pad_token_id=1,
    )
    config = model.config
    assert config.hidden_size == 24
    assert config.num_hidden_layers == 3
    assert config.num_attention_heads == 4
    assert model.get_input_embeddings().weight.shape == (61, 24)
    assert len(find_blocks(model)) == 3
    widths = {m.weight.shape[0] for m in model.modules() if isinstance(m, nn.Linear)}
    # GPT-2's Conv1D is no nn.Linear, and ModernBERT's gate doubles the width
    assert family == "gpt2" or {"modernbert": 192}.get(family, 96) in widths
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} <= {0.25, 0.0}
    tokens = torch.randint(3, 61, (2, 20))
    assert model(input_ids=tokens).logits.shape == (2, 20, 61)
    assert model(input_ids=tokens, labels=tokens).loss.isfinite()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns(family, tmp_path):
    pl.seed_everything(0)
    module = tiny_language_model(family, dropout=0.0, learning_rate=1e-2)
    tokens = torch.arange(12).repeat(4, 1) + 3
    before = module.model(input_ids=tokens, labels=tokens).loss.item()
    data = [{"input_ids": row, "labels": row} for row in tokens]
    loader = torch.utils.data.DataLoader(data, batch_size=4)  # type: ignore[arg-type]
    trainer(tmp_path, max_steps=30, max_epochs=30, logger=False).fit(module, loader)
    assert module.model(input_ids=tokens, labels=tokens).loss.item() < 0.5 * before


@pytest.mark.parametrize(
    ("family", "name"), [("gpt2", "bits_per_byte"), ("bert", "masked_bits_per_byte")]
)
def test_bits_per_byte(family, name, tmp_path):
    class Data(pl.LightningDataModule):
        bytes_per_token = 2.5

        def train_dataloader(self):
            return batches()

        def val_dataloader(self):
            return batches(shuffle=False, n=8)

    fitting = trainer(tmp_path, max_steps=3, val_check_interval=3, logger=False)
    fitting.fit(tiny_language_model(family), datamodule=Data())
    logged = {key: float(value) for key, value in fitting.callback_metrics.items()}
    for split in ("train", "val"):
        assert logged[f"{split}/{name}"] == pytest.approx(
            logged[f"{split}/loss"] / math.log(2) / 2.5, rel=1e-6
        )


class Rates(pl.Callback):
    """Keeps the learning rate of each step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])


def test_constant_learning_rate_with_a_cooldown(tmp_path):
    rates = Rates()
    fitting = trainer(tmp_path, rates, max_steps=12, logger=False)
    fitting.fit(tiny_language_model(learning_rate=1.0, warmup_steps=2, cooldown_steps=3), batches())
    assert rates.seen[2:10] == pytest.approx([1.0] * 8)
    assert rates.seen[10:] == pytest.approx([0.7, 0.4])
    fitting = trainer(tmp_path, max_steps=4, logger=False)
    with pytest.raises(
        ValueError,
        match="expected warmup_steps and cooldown_steps within the 4 steps of the training",
    ):
        fitting.fit(tiny_language_model(warmup_steps=2, cooldown_steps=3), batches())

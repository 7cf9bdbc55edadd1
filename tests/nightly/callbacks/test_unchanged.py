"""Attaching the tracker changes nothing: losses, weights, RNG state and flags bit for bit."""

import random

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from jobs import Job, batches, tiny_language_model, tracker, trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger

from repdyn.callbacks import SavePretrainedCheckpoint


class Flags(pl.Callback):
    """The training flag of every module at every batch."""

    def __init__(self) -> None:
        self.seen: list[list[bool]] = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.seen.append([module.training for module in pl_module.modules()])


class Manual(Job):
    """Optimises by hand, with a learning-rate schedule of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        return loss


class Compiled(Job):
    def __init__(self) -> None:
        super().__init__()
        self.network.compile(backend="eager")


def checkpointed():
    module = tiny_language_model()
    module.model.gradient_checkpointing_enable()
    return module


def adapted():
    """Low-rank adapters train, everything else is frozen."""
    peft = pytest.importorskip("peft")
    module = tiny_language_model("llama")
    settings = peft.LoraConfig(r=2, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
    module.model = peft.get_peft_model(module.model, settings)
    return module


def run(root, make, callbacks, **settings):
    pl.seed_everything(3)
    module = make()
    flags = Flags()
    if isinstance(module, Job):
        module.network.blocks[0].norm.eval()  # frozen on purpose
    train = batches()
    with torch.random.fork_rng():
        trainer(root, *callbacks, flags, **settings).fit(module, train, batches(shuffle=False, n=8))
        rng = torch.get_rng_state(), np.random.get_state()[1], random.getstate()
    return module, rng, flags.seen


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        pytest.param(Job, {}, id="own module", marks=pytest.mark.views),
        pytest.param(Job, {"accumulate_grad_batches": 2}, id="accumulation"),
        pytest.param(Job, {"precision": "bf16-mixed"}, id="bf16-mixed"),
        pytest.param(Job, {"precision": "bf16-true"}, id="bf16-true"),
        pytest.param(Job, {"gradient_clip_val": 0.1}, id="clipping"),
        pytest.param(Manual, {}, id="manual optimisation"),
        pytest.param(Compiled, {}, id="compiled"),
        pytest.param(Job, {"val_check_interval": 3}, id="validation in mid-epoch"),
        pytest.param(tiny_language_model, {}, id="Hugging Face decoder"),
        pytest.param(lambda: tiny_language_model("bert"), {}, id="Hugging Face encoder"),
        pytest.param(checkpointed, {}, id="gradient checkpointing"),
        pytest.param(adapted, {}, id="LoRA adapters"),
    ],
)
def test_training_is_bit_identical(tmp_path, probe, request, make, settings):
    views = request.node.get_closest_marker("views") is not None

    def loggers(root):
        others = [
            TensorBoardLogger(root / "tensorboard"),
            WandbLogger(save_dir=root, offline=True, project="test"),
        ]
        return [CSVLogger(root / "csv"), *(others if views else [])]

    for name in ("plain", "tracked"):
        (tmp_path / name).mkdir()
    plain, plain_rng, plain_flags = run(
        tmp_path / "plain", make, [], logger=loggers(tmp_path / "plain"), **settings
    )
    attached = [tracker(probe, 2)]
    if not isinstance(plain, Job):
        attached.append(SavePretrainedCheckpoint(2, tmp_path / "saved"))
    tracked, rng, flags = run(
        tmp_path / "tracked", make, attached, logger=loggers(tmp_path / "tracked"), **settings
    )

    assert attached[0].store.steps(attached[0].store.runs()[0]) == [0, 2, 4, 6, 8]
    if isinstance(plain, Job):
        assert plain.losses == tracked.losses
        assert len(plain.losses) >= 8
    for (name, expected), weight in zip(
        plain.state_dict().items(), tracked.state_dict().values(), strict=True
    ):
        assert torch.equal(expected, weight), name
    assert flags == plain_flags
    assert torch.equal(rng[0], plain_rng[0])
    assert np.array_equal(rng[1], plain_rng[1])
    assert rng[2] == plain_rng[2]

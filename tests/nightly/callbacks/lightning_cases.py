r"""Run by torchrun in two processes: each strategy trains with the tracker and without it.

PYTHONPATH=tests/support torchrun --standalone --nproc_per_node 2 \
    tests/nightly/callbacks/lightning_cases.py
FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from jobs import Job, Repeatable, batches, tracker, trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy, Strategy
from lightning.pytorch.trainer.connectors import accelerator_connector
from small import Block, random_tokens
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from repdyn import Probe

PROBE = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
STEPS = 4


class Flat(Job):
    """Sharded by FullyShardedDataParallel; on a CPU only where it is told the device."""

    def configure_model(self) -> None:
        if not isinstance(self.network, FullyShardedDataParallel):
            policy = ModuleWrapPolicy({Block})
            cpu = torch.device("cpu")
            self.network = FullyShardedDataParallel(
                self.network, auto_wrap_policy=policy, device_id=cpu
            )


class PerParameter(Job):
    """Sharded by ``fully_shard`` (FSDP2)."""

    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]
        for block in self.network.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.network, mesh=mesh)


class Stopping(Job):
    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("stop", float(self.global_step), sync_dist=True)
        return loss


STRATEGIES: dict[str, tuple[type[Job], Callable[[], Strategy], dict[str, Any]]] = {
    "DDP": (Job, lambda: DDPStrategy(process_group_backend="gloo"), {}),
    "DDP, bf16-mixed, accumulation": (
        Job,
        lambda: DDPStrategy(process_group_backend="gloo"),
        {"precision": "bf16-mixed", "accumulate_grad_batches": 2},
    ),
    "FSDP": (Flat, lambda: FSDPStrategy(process_group_backend="gloo"), {}),
    "FSDP2": (
        PerParameter,
        lambda: ModelParallelStrategy(
            process_group_backend="gloo", data_parallel_size=2, tensor_parallel_size=1
        ),
        {},
    ),
}


def trained(name: str, root: Path, *callbacks: pl.Callback) -> list[Any]:
    """Losses, RNG and a sum over the local weights."""
    make, strategy, settings = STRATEGIES[name]
    pl.seed_everything(3, verbose=False)
    job = make()
    settings = {
        "max_steps": STEPS,
        "devices": 2,
        "strategy": strategy(),
        "logger": False,
    } | settings
    trainer(root, *callbacks, **settings).fit(job, batches())
    weights = [parameter.detach() for parameter in job.parameters()]
    local = [weight.to_local() if hasattr(weight, "to_local") else weight for weight in weights]
    return [
        job.losses,
        torch.rand(1).item(),
        sum(float(weight.double().abs().sum()) for weight in local),
    ]


def tracked(name: str, folder: Path) -> list[Any]:
    """For each rank, what came out without and with the tracker."""
    attached = tracker(PROBE, 2, run=name, store=folder / "store", tokens_per_forward=60)
    pair = [trained(name, folder / "plain"), trained(name, folder / "tracked", attached)]
    everybody: list[Any] = [None, None]
    dist.all_gather_object(everybody, pair)
    return everybody


def saved(folder: Path) -> None:
    """A checkpoint for each measured step."""
    pl.seed_everything(3, verbose=False)
    saving = ModelCheckpoint(
        folder / "saved", every_n_train_steps=2, save_top_k=-1, filename="{step}"
    )
    attached = tracker(PROBE, 2, run="saved", store=folder / "store", tokens_per_forward=60)
    settings = {
        "max_steps": STEPS,
        "devices": 2,
        "strategy": STRATEGIES["DDP"][1](),
        "logger": False,
    }
    trainer(folder / "job", attached, saving, overfit_batches=1, **settings).fit(
        Repeatable(), batches(shuffle=False)
    )


def resumed(folder: Path) -> None:
    """The run that was saved goes on from the middle, and beyond its end."""
    attached = tracker(PROBE, 2, run="saved", store=folder / "store", tokens_per_forward=60)
    settings = {"max_steps": 6, "devices": 2, "strategy": STRATEGIES["DDP"][1](), "logger": False}
    again = trainer(folder / "job", attached, overfit_batches=1, **settings)
    again.fit(Repeatable(), batches(shuffle=False), ckpt_path=folder / "saved" / "step=2.ckpt")


def stopped_early(folder: Path) -> None:
    attached = tracker(PROBE, 100, run="stopped", store=folder / "store")
    stopping = EarlyStopping("stop", mode="min", patience=1, check_on_train_epoch_end=True)
    settings = {"max_steps": 500, "devices": 2, "strategy": STRATEGIES["DDP"][1](), "logger": False}
    trainer(folder / "early", attached, stopping, **settings).fit(Stopping(), batches())


def broken_on_one_rank(folder: Path) -> list[float]:
    """The second rank cannot measure; the training goes on."""

    def forward(model: torch.nn.Module, batch: Any) -> Any:
        if dist.get_rank() == 1:
            raise ZeroDivisionError("no such luck")
        return model(batch.input_ids)

    job = Job()
    attached = tracker(
        PROBE, 2, run="broken", store=folder / "store", on_error="warn", forward=forward
    )
    settings = {
        "max_steps": STEPS,
        "devices": 2,
        "strategy": STRATEGIES["DDP"][1](),
        "logger": False,
    }
    trainer(folder / "broken", attached, **settings).fit(job, batches())
    return job.losses


def cases(folder: Path) -> dict[str, Callable[[], Any]]:
    return {
        **{name: lambda name=name: tracked(name, folder) for name in STRATEGIES},
        "saved": lambda: saved(folder),
        "resumed": lambda: resumed(folder),
        "stopped early": lambda: stopped_early(folder),
        "broken on one rank": lambda: broken_on_one_rank(folder),
    }


def main(folder: Path) -> None:
    # Lightning wants a GPU for FSDP; torch itself does not.
    accelerator_connector._AcceleratorConnector._check_strategy_and_fallback = lambda _: None
    for name, case in cases(folder).items():
        drawing = (
            nullcontext() if name == "DDP" else patch("repdyn.views.publish.results.show_run")
        )  # slower than all else here
        try:
            with drawing:
                outcome = case()
        except Exception:
            outcome = {"failed": traceback.format_exc()}
        if dist.get_rank() == 0:
            (folder / f"{name}.json").write_text(json.dumps(outcome))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    # Under load a thread of gloo may still hold tensors of the last collective when the interpreter
    # ends, and is then killed with the whole process, all work done: seen in 2 of some 20 runs.
    sys.stdout.flush()
    os._exit(0)

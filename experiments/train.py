"""Train and measure one run of a plan, or go on with it; experiments.run calls this for
each run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from lightning import pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint

from benchmarks.machine import processor
from experiments.materials import Materials
from experiments.plan import Plan, Run
from repdyn.callbacks import RepresentationDynamics
from repdyn.models import LanguageModel
from repdyn.store.schema import LOSS
from repdyn.utils.files import write_atomically
from repdyn.utils.printing import silence_notices

CHECKPOINT_EVERY = 100
PROGRESS = "progress.json"
FINISHED = "finished.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("run", help="name of the run, such as seed1/causal")
    parser.add_argument("--text", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plan = Plan.read(options.plan)
    run = next(run for run in plan.runs if run.name == options.run)
    train(Materials(plan, options.text, options.output), run)


def train(materials: Materials, run: Run) -> None:
    """Train a run from its last checkpoint to the end, with a tracker for each probe.

    Its folder gets a store for each probe, the last checkpoint, progress.json, and finished.json at
    the end.
    """
    silence_notices()
    folder = materials.run_folder(run)
    checkpoint = newest_checkpoint(folder)
    if checkpoint is None:  # an earlier start that ended before its first checkpoint is made anew
        for name in materials.plan.probes:
            shutil.rmtree(folder / name, ignore_errors=True)
    data = materials.data(run)
    pl.seed_everything(run.weights_seed, verbose=False)
    model = LanguageModel(
        vocab_size=data.vocab_size,
        context_length=data.sequence_length,
        pad_token_id=data.pad_token_id,
        **run.model,
    )
    trackers = [
        RepresentationDynamics(
            probe,
            materials.plan.schedule,
            metrics=materials.plan.metrics,
            store=folder / name,
            run=run.name,
            name=name,
            probe_loss=True,
            alerts=None,
            report=False,
        )
        for name, probe in materials.probes().items()
    ]
    checkpoints = ModelCheckpoint(
        folder, filename="{step}", every_n_train_steps=CHECKPOINT_EVERY, save_on_exception=True
    )
    trainer = pl.Trainer(
        default_root_dir=folder,
        callbacks=[*trackers, checkpoints, Progress(folder / PROGRESS), StopBetweenSteps()],
        logger=False,
        limit_val_batches=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        **run.training,
    )
    trainer.fit(model, data, ckpt_path=checkpoint, weights_only=True)
    _write(folder / FINISHED, {"step": trainer.global_step, **describe_machine()})


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint of the highest step in a folder, or None."""
    found = {int(path.stem.partition("=")[2]): path for path in folder.glob("step=*.ckpt")}
    return found[max(found)] if found else None


def describe_machine() -> dict[str, Any]:
    """Return the machine, the commit and the time as text, by name."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return {
        "machine": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "commit": commit.stdout.strip() or None,
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


class StopBetweenSteps(pl.Callback):
    """Ends a training at SIGINT after the step and its measurements, so that none of them is
    missing when it goes on.

    SIGTERM ends a measurement at once, as a scheduler needs it.
    """

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._previous: Any = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._previous = signal.signal(signal.SIGINT, lambda number, frame: self._requested.set())

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if self._requested.is_set():
            # an exception: a training that ends in the ordinary way is measured once more
            raise SystemExit(f"interrupted at step {trainer.global_step}; start it again to go on")

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        signal.signal(signal.SIGINT, self._previous)


class Progress(pl.Callback):
    """Writes the step, the loss and the time per step into a file, at most once a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._started: tuple[int, float] | None = None
        self._written = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._started = trainer.global_step, time.monotonic()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        now = time.monotonic()
        if self._started is None or (
            now - self._written < 1 and trainer.global_step < trainer.max_steps
        ):
            return
        first, start = self._started
        steps = trainer.global_step - first
        loss = trainer.callback_metrics.get(LOSS)
        content = {
            "step": trainer.global_step,
            "max_steps": trainer.max_steps,
            "loss": None if loss is None else float(loss),
            "seconds_per_step": (now - start) / steps if steps else None,
        }
        _write(self._path, content)
        self._written = now


def _write(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, lambda partial: partial.write_text(json.dumps(content) + "\n"))


if __name__ == "__main__":
    main()

"""Checkpoints in local folders: a run's own, or any that ``save_pretrained`` wrote."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import AutoModel

from repdyn.blocks import Layers
from repdyn.measure import measure, metric_set
from repdyn.metrics import DEFAULT_METRICS, MetricLike
from repdyn.probe import Probe
from repdyn.quiet import without_progress_bars
from repdyn.records import Checkpoint
from repdyn.store import Key, Store


@dataclass(frozen=True)
class LocalCheckpoint:
    """A folder with weights, and the step its name gives."""

    path: Path
    step: int


def find_checkpoints(folder: str | Path) -> list[LocalCheckpoint]:
    """Checkpoints in a folder, by ascending step.

    A checkpoint is a subfolder with a ``config.json`` whose name ends in its step (``step512``, ``checkpoint-512``).
    A folder that holds a ``config.json`` itself is one checkpoint; without a number in its name its step is 0.

    Raises:
        ValueError: there is none, or two have the same step.
    """
    folder = Path(folder)
    single = (folder / "config.json").exists()
    found = [folder] if single else [path.parent for path in folder.glob("*/config.json")]
    numbered = {path: re.search(r"(\d+)$", path.resolve().name) for path in found}
    checkpoints = sorted(
        (
            LocalCheckpoint(path, int(number[1]) if number else 0)
            for path, number in numbered.items()
            if number or single
        ),
        key=lambda checkpoint: checkpoint.step,
    )
    if not checkpoints:
        raise ValueError(
            f"expected checkpoints (folders such as step512 with a config.json) in {folder}, found none; give the "
            "folder that holds them, for example runs/quickstart/TIME/hf_checkpoints"
        )
    for one, other in pairwise(checkpoints):
        if one.step == other.step:
            raise ValueError(
                f"expected one checkpoint for each step, got {one.path} and {other.path}; sweep them apart"
            )
    return checkpoints


def sweep(
    checkpoints: Sequence[LocalCheckpoint],
    probe: Probe,
    store: Store,
    *,
    run: str,
    metrics: Sequence[MetricLike] = DEFAULT_METRICS,
    layers: Layers = None,
    device: str = "cpu",
    tokens_per_forward: int = 8192,
) -> None:
    """Measure each checkpoint that the store does not hold yet; stop it at any time and call it again.

    Args:
        checkpoints: from :func:`find_checkpoints`.
        probe: the tokens; a live run keeps its own in its store.
        store: where the rows go.
        run: name of the sweep in the rows.
        metrics, layers, tokens_per_forward: as for :func:`repdyn.measure`.
        device: where the models run.
    """
    store.save_probe(probe)
    chosen = metric_set(metrics, layers)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("measuring", total=len(checkpoints))
        for checkpoint in checkpoints:
            progress.update(task, description=f"step {checkpoint.step}")
            key = Key(run, checkpoint.step, probe.hash, chosen)
            if key not in store:
                # The precision the weights were saved in is the one a live run measures them in.
                with without_progress_bars():
                    model = AutoModel.from_pretrained(checkpoint.path, dtype="auto", local_files_only=True)
                profile = measure(
                    model.to(device),
                    probe,
                    metrics,
                    layers,
                    tokens_per_forward=tokens_per_forward,
                    checkpoint=Checkpoint(run, step=checkpoint.step, checkpoint=str(checkpoint.path)),
                )
                store.write(key, profile.rows)
            progress.advance(task)


def default_device() -> str:
    """The first GPU, or the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"

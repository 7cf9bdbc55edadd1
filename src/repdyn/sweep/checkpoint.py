"""Measure one checkpoint: load the weights, run the model, store the rows."""

from __future__ import annotations

import gc
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn

from repdyn.hub.errors import model_errors
from repdyn.hub.lightning_files import load_lightning
from repdyn.hub.local import LIGHTNING
from repdyn.hub.options import Loading
from repdyn.hub.weights import DTYPES, load_model
from repdyn.measurement.measure import Progress, measure_with, no_progress
from repdyn.measurement.options import MeasurementOptions
from repdyn.metrics import resolve
from repdyn.store import Store
from repdyn.store.keys import STATES_FOLDER
from repdyn.store.scalars import EMBEDDING_COSINE, EMBEDDING_NORM
from repdyn.store.schema import FINISHED, Row, failure_rows, scalar_row
from repdyn.store.state_cache import StateCache
from repdyn.sweep.downloads import LocalFiles
from repdyn.sweep.embeddings import cosine_to_first, input_embeddings, median_norm
from repdyn.sweep.tasks import ForeignWeights, Settings, Task, stored_foreign
from repdyn.utils.files import temporary_folder


@dataclass(frozen=True)
class Timing:
    """Wall-clock seconds spent on each stage of one checkpoint."""

    download: float
    load: float
    forward: float
    kernels: float

    @property
    def total(self) -> float:
        return self.download + self.load + self.forward + self.kernels

    def __str__(self) -> str:
        parts = f"download {self.download:.1f} s, load {self.load:.1f} s, forward {self.forward:.1f} s"
        return f"{parts}, kernels {self.kernels:.1f} s ({self.kernels / self.total:.0%} of it in the kernels)"


def measure_checkpoint(
    task: Task, fetched: LocalFiles, store: Store, settings: Settings, progress: Progress = no_progress
) -> Timing:
    """Measure a downloaded checkpoint and store its rows, with its timing as scalars of the same step.

    Raises:
        CheckpointError: the model cannot be loaded or measured.
    """
    target, probe = task.target, task.probe
    state_cache = _state_cache(task, store, settings)
    start = time.perf_counter()
    progress("load", 0.0)
    with temporary_folder("offload") as offload_folder:
        model = _load(fetched.folder, settings.loading, offload_folder, with_head=_needs_head(task, settings))
        load_seconds = time.perf_counter() - start
        embedding_rows = _embedding_rows(model, task, store, settings)
        with model_errors("the model cannot be measured"):
            options = MeasurementOptions(
                metrics=settings.metrics,
                layers=settings.layers,
                probe_loss=settings.measures_loss(task),
                token_positions=settings.token_positions,
                tokens_per_forward=settings.tokens_per_forward,
            )
            profile = measure_with(
                model, probe, options, checkpoint=target.checkpoint, progress=progress, state_cache=state_cache
            )
        del model
        _free_memory()
    timing = Timing(fetched.seconds, load_seconds, profile.forward_seconds, profile.kernel_seconds)
    costs = _costs(timing, fetched.bytes_fetched)
    rows = [scalar_row(profile.checkpoint, name, value, probe=probe.hash) for name, value in costs.items()]
    rows += [replace(row, **asdict(profile.checkpoint)) for row in embedding_rows]
    store.write(settings.key(task), [*profile.rows, *profile.scalars, *rows])
    if state_cache is not None:
        state_cache.delete_before(target.checkpoint.step)
    return timing


def store_failure(task: Task, store: Store, settings: Settings, reason: str) -> None:
    """Store the reason why a checkpoint was not measured, so that later sweeps skip it."""
    names = [metric.name for metric, _ in resolve(settings.metrics, task.probe)]
    rows = failure_rows(task.target.checkpoint, names, reason, probe=task.probe.hash)
    store.write(settings.key(task).failed, rows)


def store_foreign(task: Task, store: Store, settings: Settings, foreign: ForeignWeights) -> None:
    """Store that a checkpoint is not measured because it has the weights, or files, of another one."""
    if stored_foreign(task, store, settings) == foreign:
        return
    names = [metric.name for metric, _ in resolve(settings.metrics, task.probe)]
    marks = {"mixed_with" if foreign.in_part else "same_as": foreign.owner}
    rows = failure_rows(task.target.checkpoint, names, foreign.reason, probe=task.probe.hash, **marks)
    store.write(settings.key(task).failed, rows)


def is_comparing(task: Task, settings: Settings) -> bool:
    """Return whether a metric compares the checkpoint with the previous one."""
    metrics = resolve(settings.metrics, task.probe)
    comparing = any("previous_checkpoint" in metric.captures for metric, _ in metrics)
    return comparing and settings.in_order and task.target.checkpoint.stage != FINISHED


def _state_cache(task: Task, store: Store, settings: Settings) -> StateCache | None:
    """Return the cache with the states of the previous checkpoint, if a metric compares with them."""
    if not is_comparing(task, settings):
        return None
    run = task.target.run
    return StateCache(store.folder_of(run) / STATES_FOLDER, run=run, probe=task.probe.hash, layers=settings.choice)


def _needs_head(task: Task, settings: Settings) -> bool:
    """Return whether the loss is measured, or a metric reads states through the model's output head."""
    metrics = resolve(settings.metrics, task.probe)
    return settings.measures_loss(task) or any("output_head" in metric.captures for metric, _ in metrics)


def _load(path: Path, loading: Loading, offload_folder: Path, *, with_head: bool) -> nn.Module:
    if path.suffix == LIGHTNING:
        with model_errors("the checkpoint does not load"):
            return load_lightning(path).to(loading.device, DTYPES.get(loading.dtype)).eval()
    return load_model(path, loading, offload_folder, with_head=with_head)


def _embedding_rows(model: nn.Module, task: Task, store: Store, settings: Settings) -> list[Row]:
    """Return the statistics of the input embeddings as scalars of the step; none for a model without these."""
    embeddings = input_embeddings(model)
    if embeddings is None:
        return []
    checkpoint, probe = task.target.checkpoint, task.probe.hash
    rows = [scalar_row(checkpoint, EMBEDDING_NORM, median_norm(embeddings), probe=probe)]
    if checkpoint.stage == FINISHED:
        return rows
    folder = store.folder_of(checkpoint.run) / STATES_FOLDER
    if compared := cosine_to_first(embeddings, folder, checkpoint.step, is_first=settings.in_order):
        first, cosine = compared
        rows.append(replace(scalar_row(checkpoint, EMBEDDING_COSINE, cosine, probe=probe), compared_to=first))
    return rows


def _costs(timing: Timing, n_bytes: int) -> dict[str, float]:
    costs = {f"seconds/{name}": getattr(timing, name) for name in ("download", "load", "forward", "kernels")}
    return costs | {"bytes/download": float(n_bytes)}


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

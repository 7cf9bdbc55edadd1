"""Measure checkpoints one after another: fetch the files, load the model, measure, store the rows.

While one checkpoint is measured, the next one is downloaded.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path

import torch
from torch import nn

from repdyn.checkpoints.audit import ForeignWeights
from repdyn.checkpoints.downloads import Downloads, LocalFiles, prefetch
from repdyn.checkpoints.embeddings import cosine_to_first, input_embeddings, median_norm
from repdyn.checkpoints.errors import CheckpointError, OutOfBoundsError, SweepStoppedError, model_errors
from repdyn.checkpoints.local import LIGHTNING
from repdyn.checkpoints.options import SweepOptions
from repdyn.checkpoints.plan import Task
from repdyn.checkpoints.progress import ProgressDisplay
from repdyn.checkpoints.targets import location_of
from repdyn.checkpoints.weights import DTYPES, load_lightning, load_model
from repdyn.measurement.identity import layer_choice
from repdyn.measurement.measure import Progress, measure_with, no_progress
from repdyn.measurement.options import MeasurementOptions
from repdyn.metrics import resolve
from repdyn.store import Store
from repdyn.store.keys import STATES_FOLDER, own_folder
from repdyn.store.scalars import EMBEDDING_COSINE, EMBEDDING_NORM
from repdyn.store.schema import FINISHED, Row, failure_rows, scalar_row
from repdyn.store.state_cache import StateCache
from repdyn.tables.designs import NOT_RECORDED
from repdyn.utils.files import temporary_folder

MAX_IDENTICAL_FAILURES = 5
"""A sweep ends when this many checkpoints fail for the same reason and none succeeds."""


@dataclass
class SweepResult:
    """The outcome of a sweep."""

    measured: list[Task] = field(default_factory=list)
    failed: list[tuple[Task, str]] = field(default_factory=list)
    """With the reasons, which are also stored."""
    skipped: list[Task] = field(default_factory=list)
    """Measured in the meantime by another process."""

    def add(self, other: SweepResult) -> None:
        self.measured += other.measured
        self.failed += other.failed
        self.skipped += other.skipped


def measure_tasks(
    tasks: Sequence[Task],
    store: Store,
    options: SweepOptions,
    downloads: Downloads,
    display: ProgressDisplay | None = None,
) -> SweepResult:
    """Measure checkpoints one after another; it can be stopped at any time and repeated with the remaining ones.

    Args:
        tasks: checkpoints to measure, usually :attr:`repdyn.checkpoints.plan.TaskList.waiting`.
        store: store of rows and failures.
        options: resolved.
        downloads: downloads the weights, and deletes them after the measurement.
        display: display of the progress; None for none.

    Raises:
        SweepStoppedError: no connection, no space on the disk, or the first checkpoints all fail for the same reason;
            those measured before are stored.
        ValueError: the folder of a run is a symbolic link.
    """
    for run in {task.target.run for task in tasks}:
        own_folder(store.folder_of(run))
    for probe in {task.probe.hash: task.probe for task in tasks}.values():
        store.save_probe(probe)
    display = display or ProgressDisplay(len(tasks), shown=False)
    report = SweepResult()
    with display, downloads.opened():
        fetch = partial(_fetch, store=store, options=options, downloads=downloads, display=display)
        with closing(prefetch(fetch, tasks, downloads.cancel)) as fetches:
            for task, future in fetches:
                fetched = future.result()
                if fetched is None:
                    report.skipped.append(task)
                    display.finished(task, "skipped, measured by another process")
                    continue
                try:
                    _finish(task, fetched, store, options, display, report)
                finally:
                    if isinstance(fetched, LocalFiles):
                        downloads.release(fetched)
                abort_on_repeated_failure(report)
    return report


def _fetch(
    task: Task, store: Store, options: SweepOptions, downloads: Downloads, display: ProgressDisplay
) -> LocalFiles | CheckpointError | None:
    """Return the files of a checkpoint, or why they cannot be fetched; None if it has been measured meanwhile."""
    if task.key(options) in store:
        return None
    display.fetching(task)
    try:
        return downloads.fetch(task.target, display.fetched)
    except CheckpointError as error:
        return error


def _finish(
    task: Task,
    fetched: LocalFiles | CheckpointError,
    store: Store,
    options: SweepOptions,
    display: ProgressDisplay,
    report: SweepResult,
) -> None:
    try:
        if isinstance(fetched, CheckpointError):
            raise fetched
        display.measuring(task)
        timing = measure_checkpoint(task, fetched, store, options, display.progress)
    except CheckpointError as error:
        if not isinstance(error, OutOfBoundsError):
            store_failure(task, store, options, str(error))
        report.failed.append((task, str(error)))
        display.finished(task, f"failed: {error}", failed=True)
    else:
        report.measured.append(task)
        display.finished(task, str(timing))
        with suppress(ValueError):  # the store was deleted meanwhile
            display.warn_of_own_windows(task, store.read(task.key(options)))


def abort_on_repeated_failure(report: SweepResult) -> None:
    """Raise SweepStoppedError if all checkpoints so far failed for the same reason, such as a wrong option."""
    reasons = {reason for _, reason in report.failed}
    if len(report.failed) == MAX_IDENTICAL_FAILURES and len(reasons) == 1 and not report.measured:
        raise SweepStoppedError(
            f"the first {MAX_IDENTICAL_FAILURES} checkpoints failed for the same reason: {reasons.pop()}; fix it, then "
            "repeat the sweep with --retry-failed"
        )


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
    task: Task, fetched: LocalFiles, store: Store, options: SweepOptions, progress: Progress = no_progress
) -> Timing:
    """Measure a downloaded checkpoint and store its rows, with its timing as scalars of the same step.

    Raises:
        CheckpointError: the model cannot be loaded or measured.
    """
    target, probe = task.target, task.probe
    state_cache = _state_cache(task, store, options)
    start = time.perf_counter()
    progress("load", 0.0)
    with temporary_folder("offload") as offload_folder:
        model = _load(task, fetched.folder, options, offload_folder)
        load_seconds = time.perf_counter() - start
        embedding_rows = _embedding_rows(model, task, store, options)
        with model_errors("the model cannot be measured"):
            measurement = MeasurementOptions(
                metrics=options.metrics,
                layers=options.layers,
                probe_loss=task.measures_loss(options),
                token_positions=options.token_positions,
                tokens_per_forward=options.tokens_per_forward,
            )
            profile = measure_with(
                model, probe, measurement, checkpoint=target.checkpoint, progress=progress, state_cache=state_cache
            )
        del model
        _free_memory()
    timing = Timing(fetched.seconds, load_seconds, profile.forward_seconds, profile.kernel_seconds)
    costs = _costs(timing, fetched.bytes_fetched)
    rows = [scalar_row(profile.checkpoint, name, value, probe=probe.hash) for name, value in costs.items()]
    rows += [replace(row, **asdict(profile.checkpoint)) for row in embedding_rows]
    store.write(task.key(options), [*profile.rows, *profile.scalars, *rows])
    if state_cache is not None:
        state_cache.delete_before(target.checkpoint.step)
    return timing


def store_failure(task: Task, store: Store, options: SweepOptions, reason: str) -> None:
    """Store the reason why a checkpoint was not measured, so that later sweeps skip it."""
    names = [metric.name for metric, _ in resolve(options.metrics, task.probe)]
    rows = failure_rows(task.target.checkpoint, names, reason, probe=task.probe.hash)
    store.write(task.key(options).failed, rows)


def store_foreign(task: Task, store: Store, options: SweepOptions, foreign: ForeignWeights) -> None:
    """Store that a checkpoint is not measured because it has the weights, or files, of another one."""
    if task.stored_foreign(store, options) == foreign:
        return
    names = [metric.name for metric, _ in resolve(options.metrics, task.probe)]
    marks = {"mixed_with" if foreign.in_part else "same_as": foreign.owner}
    rows = failure_rows(task.target.checkpoint, names, foreign.reason, probe=task.probe.hash, **marks)
    store.write(task.key(options).failed, rows)


def is_comparing(task: Task, options: SweepOptions) -> bool:
    """Return whether a metric compares the checkpoint with the previous one."""
    metrics = resolve(options.metrics, task.probe)
    comparing = any("previous_checkpoint" in metric.captures for metric, _ in metrics)
    return comparing and options.in_order and task.target.checkpoint.stage != FINISHED


def _state_cache(task: Task, store: Store, options: SweepOptions) -> StateCache | None:
    """Return the cache with the states of the previous checkpoint, if a metric compares with them."""
    if not is_comparing(task, options):
        return None
    run, choice = task.target.run, layer_choice(options.layers, options.token_positions)
    return StateCache(store.folder_of(run) / STATES_FOLDER, run=run, probe=task.probe.hash, layers=choice)


def _needs_head(task: Task, options: SweepOptions) -> bool:
    """Return whether the loss is measured, or a metric reads states through the model's output head."""
    metrics = resolve(options.metrics, task.probe)
    return task.measures_loss(options) or any("output_head" in metric.captures for metric, _ in metrics)


def _load(task: Task, path: Path, options: SweepOptions, offload_folder: Path) -> nn.Module:
    loading = options.loading(task.attention)
    if task.target.load is not None:
        with model_errors("the model does not load"):
            return task.target.load().to(loading.device, DTYPES.get(loading.dtype)).eval()
    if path.suffix == LIGHTNING:
        with model_errors("the checkpoint does not load"):
            model = load_lightning(path, raw=task.target.weights_kind == "raw")
            return model.to(loading.device, DTYPES.get(loading.dtype)).eval()
    return load_model(path, loading, offload_folder, with_head=_needs_head(task, options))


def _embedding_rows(model: nn.Module, task: Task, store: Store, options: SweepOptions) -> list[Row]:
    """Return the statistics of the input embeddings as scalars of the step; none for a model without these."""
    embeddings = input_embeddings(model)
    if embeddings is None:
        return []
    checkpoint, probe = task.target.checkpoint, task.probe.hash
    rows = [scalar_row(checkpoint, EMBEDDING_NORM, median_norm(embeddings), probe=probe)]
    if checkpoint.stage == FINISHED:
        return rows
    folder = store.folder_of(checkpoint.run) / STATES_FOLDER
    if compared := cosine_to_first(embeddings, folder, checkpoint.step, is_first=options.in_order):
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


def check_comparable(tasks: Iterable[Task], store: Store, options: SweepOptions) -> None:
    """Check that new values are comparable with those stored for the same run.

    Raises:
        ValueError: the store has this run with other blocks, in another precision, or from another location; or its
            folder is a symbolic link.
    """
    for run, targets in groupby(tasks, lambda task: task.target.run):
        own_folder(store.folder_of(run))
        rows = store.distinct(run, ("layers", "dtype", "checkpoint"))
        dtype = options.dtype or "auto"
        expected = {
            "layers": layer_choice(options.layers, options.token_positions),
            "dtype": None if dtype == "auto" else dtype,
            "location": next(targets).target.location,
        }
        stored = {
            "layers": {row["layers"] for row in rows},
            "dtype": {row["dtype"] for row in rows},
            "location": {location_of(row["checkpoint"]) for row in rows if row["checkpoint"]},
        }
        for what, value in expected.items():
            if value is not None and stored[what] - {value}:
                raise ValueError(
                    f"expected one {what} for the run {run!r}, got {value!r}, but {store.location} has it with "
                    f"{', '.join(map(repr, sorted(stored[what])))}; give another --store, or another --name"
                )


def describe_other_designs(tasks: Iterable[Task], store: Store) -> list[str]:
    """Describe the runs that the store has on other probes; their values form separate curves."""
    messages = []
    for run, run_tasks in groupby(tasks, lambda task: task.target.run):
        probes = {task.probe.hash: task.probe.design.name for task in run_tasks}
        stored = {row["probe"]: row["design"] or NOT_RECORDED for row in store.distinct(run, ("probe", "design"))}
        others = {probe: design for probe, design in stored.items() if probe not in probes}
        if others:
            known = ", ".join(f"{probe} (sampling design {design})" for probe, design in sorted(others.items()))
            current = ", ".join(f"{probe} (sampling design {design})" for probe, design in sorted(probes.items()))
            messages.append(
                f"{store.location} has {run} on the probe {known}; the new values, on {current}, form a "
                "separate curve; select one with --probe in repdyn figures and repdyn report"
            )
    return messages

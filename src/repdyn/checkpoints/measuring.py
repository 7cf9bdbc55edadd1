"""Measure checkpoints one after another: fetch the files, load the model, measure, store the rows.

While one checkpoint is measured, the next one is downloaded, see
:mod:`repdyn.checkpoints.downloads`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import Literal, NoReturn

import torch
from torch import nn
from tqdm import tqdm

from repdyn.checkpoints.downloads import Downloads, LocalFiles, Show
from repdyn.checkpoints.errors import (
    CheckpointError,
    OutOfBoundsError,
    SweepStoppedError,
    model_errors,
)
from repdyn.checkpoints.local import LIGHTNING
from repdyn.checkpoints.options import CompleteOptions
from repdyn.checkpoints.targets import Target
from repdyn.checkpoints.tasks import Task
from repdyn.checkpoints.weights import DTYPES, load_lightning, load_model
from repdyn.measurement.measure import measure_with, prepare_for
from repdyn.probe import Probe
from repdyn.store import Store
from repdyn.store.files import STATES_FOLDER, own_folder
from repdyn.store.schema import FINISHED, Checkpoint, Row, failure_rows, scalar_row
from repdyn.store.state_cache import StateCache
from repdyn.utils.redaction import redacted

MAX_IDENTICAL_FAILURES = 5
"""A sweep ends when this many checkpoints fail for the same reason and none succeeds."""


@dataclass(frozen=True)
class Outcome:
    """The result of one checkpoint of a sweep: measured, failed or skipped."""

    task: Task
    text: str
    """The seconds of each stage, or why it was not measured, which is also stored."""
    state: Literal["measured", "failed", "skipped"] = "measured"
    """Skipped is one that another process has measured meanwhile."""


def measure_tasks(
    tasks: Sequence[Task],
    store: Store,
    options: CompleteOptions,
    downloads: Downloads,
    show: Show = lambda text: None,
) -> Generator[Outcome]:
    """Measure checkpoints one after another, each while the next one is fetched, and yield the
    outcome of each.

    It can be stopped at any time and repeated with the remaining ones.
    """
    for probe in {task.probe.hash: task.probe for task in tasks}.values():
        # before any row, which names it by its hash
        store.save_probe(probe)

    fetch = partial(_fetch, store=store, options=options, downloads=downloads, show=show)

    def measured(task: Task, files: LocalFiles | CheckpointError | None) -> Outcome:
        if files is None:
            return Outcome(task, "skipped, measured by another process", "skipped")
        try:
            # from the thread that fetched, where the sweep was at another checkpoint
            if isinstance(files, CheckpointError):
                raise files
            text = measure_checkpoint(task, files, store, options, show, downloads.folder)
        except CheckpointError as error:
            # another sweep may allow more disk space
            if not isinstance(error, OutOfBoundsError):
                store_failure(task, store, options, str(error))
            return Outcome(task, str(error), "failed")
        return Outcome(task, text)

    with downloads.opened() as pool:
        # one checkpoint is fetched ahead, never more
        fetching = [pool.submit(fetch, task) for task in tasks[:1]]
        for number, task in enumerate(tasks, start=1):
            files = fetching.pop().result()
            fetching += [pool.submit(fetch, following) for following in tasks[number : number + 1]]
            try:
                outcome = measured(task, files)
            finally:
                if isinstance(files, LocalFiles):
                    downloads.release(files)
            yield outcome


def _fetch(
    task: Task, *, store: Store, options: CompleteOptions, downloads: Downloads, show: Show
) -> LocalFiles | CheckpointError | None:
    """Return the files of a checkpoint, or why they cannot be fetched; None if another process has
    measured it meanwhile.
    """
    # another process, or machine, may share the store: nothing else is agreed between them
    if task.key(options) in store:
        return None
    try:
        return downloads.fetch(task.target, show)
    except CheckpointError as error:
        return error


def collect(outcomes: Generator[Outcome], bar: tqdm[NoReturn], show: Show) -> list[Outcome]:
    """Return the outcomes of checkpoints, each shown in a line.

    Raises:
        SweepStoppedError: the first ones failed for the same reason, as a wrong option.
    """
    ended: list[Outcome] = []
    # what ends this loop also ends the generator, and so the thread that downloads
    with closing(bar), closing(outcomes):
        for outcome in outcomes:
            ended.append(outcome)
            bar.update()
            # the whole reason stands once at the end, with all checkpoints that have it
            is_failed = outcome.state == "failed"
            text = f"failed: {shorten(outcome.text, 80)}" if is_failed else outcome.text
            show(redacted(f"[{len(ended)}/{bar.total}] {outcome.task.target}: {text}"))
            _require_some_success(ended)
    return ended


def _require_some_success(ended: Sequence[Outcome]) -> None:
    """Raise SweepStoppedError where only failures of one reason are behind us."""
    # checked at exactly so many: a sweep that goes on past them has had different reasons
    reasons = [outcome.text for outcome in ended if outcome.state == "failed"]
    is_any_measured = any(outcome.state == "measured" for outcome in ended)
    if len(reasons) != MAX_IDENTICAL_FAILURES or len(set(reasons)) > 1 or is_any_measured:
        return
    raise SweepStoppedError(
        f"the first {MAX_IDENTICAL_FAILURES} checkpoints failed for the same reason: "
        f"{reasons[0]}; fix it, then repeat the sweep with retry_failed=True"
    )


def measure_checkpoint(
    task: Task,
    files: LocalFiles,
    store: Store,
    options: CompleteOptions,
    show: Show,
    temporary: Path,
) -> str:
    """Measure a downloaded checkpoint and store its rows.

    Args:
        task: the checkpoint and its probe.
        files: its files on this machine.
        store: takes the rows, and the seconds of each stage.
        options: those of the sweep.
        show: hears how far the measurement is.
        temporary: folder where a device map may put weights.

    Returns:
        The seconds of each stage, as a text.
    """
    target = task.target
    probe = task.probe
    measurement = options.measurement_on(probe)

    def progress(stage: str, fraction: float) -> None:
        show(f"{target}: {stage} {fraction:.0%}")

    state_cache = None
    if measurement.comparing:
        state_cache = _state_cache(task, store, options)
    start = time.perf_counter()
    progress("load", 0.0)
    # the folder is deleted after the measurement: weights on disk are read until then
    with TemporaryDirectory(dir=temporary) as offload_folder:
        model = _load(
            target, files, options, Path(offload_folder), with_head=measurement.needs_output_head
        )
        seconds = {"download": files.seconds, "load": time.perf_counter() - start}
        with model_errors("the model cannot be measured"):
            prepared = prepare_for(model, measurement)
            profile = measure_with(
                prepared,
                measurement,
                checkpoint=target.checkpoint,
                progress=progress,
                state_cache=state_cache,
            )
        # before the next model is loaded, so that there are never two
        del model, prepared
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    seconds |= {"forward": profile.forward_seconds, "kernels": profile.kernel_seconds}
    costs = _cost_rows(profile.checkpoint, probe, seconds, files.bytes_fetched)
    store.write(task.key(options), [*profile.rows, *profile.scalars, *costs])
    # after the rows: a sweep that is killed before needs them again
    if state_cache is not None:
        state_cache.delete_before(target.step)
    precisions = {str(row.dtype) for row in profile.rows}
    return _described(seconds, precisions)


def _state_cache(task: Task, store: Store, options: CompleteOptions) -> StateCache | None:
    """Return the cache of the states that the next checkpoint is compared with.

    None where the one before is not measured by this process, as with several workers, or does not
    exist, as for a finished model.
    """
    target = task.target
    if not options.in_order or target.stage == FINISHED:
        return None
    return StateCache(
        store.folder_of(target.run) / STATES_FOLDER,
        run=target.run,
        probe=task.probe.hash,
        layers=options.measurement_on(task.probe).options.choice,
    )


def _cost_rows(
    checkpoint: Checkpoint, probe: Probe, seconds: Mapping[str, float], n_bytes: int
) -> list[Row]:
    """Return rows of what a measurement has cost: the seconds of each stage, the bytes fetched."""
    # in the store, where a plan finds the pace of a sweep
    costs = {f"seconds/{stage}": value for stage, value in seconds.items()}
    costs["bytes/download"] = float(n_bytes)
    return [scalar_row(checkpoint, name, value, probe=probe.hash) for name, value in costs.items()]


def _load(
    target: Target,
    files: LocalFiles,
    options: CompleteOptions,
    offload_folder: Path,
    *,
    with_head: bool,
) -> nn.Module:
    """Load the model of a checkpoint: by the user's function, from Lightning's file, or by
    transformers.
    """
    if target.load is None and files.folder.suffix != LIGHTNING:
        return load_model(files.folder, options.loading, offload_folder, with_head=with_head)
    with model_errors("the model does not load"):
        if target.load is not None:
            model = target.load()
            _require_module(model)
        else:
            is_raw = target.weights_kind == "raw"
            model = load_lightning(files.folder, raw=is_raw, attention=options.attention)
        return model.to(options.device, DTYPES.get(options.dtype)).eval()


def _require_module(model: object) -> None:
    """Raise CheckpointError unless a function of the user's returned a model."""
    if not isinstance(model, nn.Module):
        is_weights = isinstance(model, Mapping)
        way = "load them into a model, model.load_state_dict(weights), and " if is_weights else ""
        raise CheckpointError(
            "expected the function that loads it to return a model (torch.nn.Module), got "
            f"{type(model).__name__}; {way}return the model"
        )


def _described(seconds: Mapping[str, float], precisions: Iterable[str]) -> str:
    """Return how long each stage took, as the line of a checkpoint shows it."""
    stages = ", ".join(f"{stage} {value:.1f} s" for stage, value in seconds.items())
    fraction = seconds["kernels"] / sum(seconds.values())
    return f"{stages} ({fraction:.0%} of it in the kernels), in {', '.join(sorted(precisions))}"


def store_failure(
    task: Task, store: Store, options: CompleteOptions, reason: str, **marks: str
) -> None:
    """Store the reason why a checkpoint was not measured, so that later sweeps skip it."""
    names = [request.name for request in options.measurement_on(task.probe).requests]
    rows = failure_rows(task.target.checkpoint, names, reason, probe=task.probe.hash, **marks)
    store.write(task.key(options).failed, rows)


def check_comparable(tasks: Iterable[Task], store: Store, options: CompleteOptions) -> None:
    """Raise ValueError unless new values are comparable with those stored for the same run: of the
    same layers and precision, and of checkpoints from the same folder or owner.
    """
    # selections follow one another, so that the tasks of a run stand together
    for run, tasks_of_run in groupby(tasks, lambda task: task.target.run):
        # without a folder of sweeps, a live run of this name may be in the store, which is another
        # curve
        is_known = own_folder(store.folder_of(run)).exists()
        rows = store.distinct(run, ("layers", "dtype", "checkpoint")) if is_known else []
        task, *others = tasks_of_run
        new = {
            "choice of layers": options.measurement_on(task.probe).options.choice,
            "dtype": options.dtype,
            "location": _location(task.target.origin),
        }
        stored = {
            "choice of layers": {row["layers"] for row in rows},
            "dtype": {row["dtype"] for row in rows},
            "location": {_location(row["checkpoint"]) for row in rows if row["checkpoint"]},
        }
        for what, value in new.items():
            # what "auto" stands for is not known before a model is loaded
            if value in (None, "auto") or not stored[what] - {value}:
                continue
            if what != "location" or not _is_any_stored([task, *others], store, options):
                requested = _shown(what, value)
                has = " and ".join(_shown(what, other) for other in sorted(stored[what]))
                raise ValueError(
                    f"expected one {what} for the run {run!r}, got {requested}, but "
                    f"{store.location} has it with {has}; give another store=, or another name="
                )


def _shown(what: str, value: str) -> str:
    """Return a value of an option as a message shows it; no choice of layers is their detection."""
    return "those detected" if what == "choice of layers" and not value else repr(value)


def _is_any_stored(tasks: Iterable[Task], store: Store, options: CompleteOptions) -> bool:
    """Return whether some files at a new place are stored already: a folder that was moved, or
    copied with the times of its files, goes on with its run.
    """
    return any(key in store for task in tasks for key in task.keys(options))


def _location(origin: str) -> str:
    """Return the parent folder of a local origin, or the owner on the hub."""
    # checkpoints of one run lie in one folder, or have one owner though several repositories
    path = Path(origin)
    return str(path.parent) if path.is_absolute() else origin.partition("@")[0].partition("/")[0]

"""Measure checkpoints one after another: fetch the files, load the model, measure, store the rows.

While one checkpoint is measured, the next one is downloaded, within a disk budget, into a folder of
the process; its files are deleted after the measurement.
"""

from __future__ import annotations

import gc
import os
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from glob import escape
from itertools import groupby
from pathlib import Path
from platform import node
from tempfile import TemporaryDirectory
from textwrap import shorten
from threading import Event
from typing import Literal, NoReturn, TypeAlias
from uuid import uuid4

import psutil
import torch
from tqdm import tqdm

from repdyn.checkpoints.errors import (
    CheckpointError,
    OutOfBoundsError,
    SweepStoppedError,
    model_errors,
)
from repdyn.checkpoints.hub import PREFETCHING, Hub, choose_files, total_bytes
from repdyn.checkpoints.local import LIGHTNING
from repdyn.checkpoints.options import CompleteOptions, SweepOptions
from repdyn.checkpoints.other_weights import warn_of_other_sizes
from repdyn.checkpoints.targets import Target, Task
from repdyn.checkpoints.weights import DTYPES, load_lightning, load_model
from repdyn.measurement.measure import measure_with, prepare_for
from repdyn.metrics import resolve
from repdyn.store import Store
from repdyn.store.files import STATES_FOLDER, own_folder
from repdyn.store.schema import FINISHED, failure_rows, scalar_row
from repdyn.store.state_cache import StateCache
from repdyn.utils.files import cache_directory
from repdyn.utils.redaction import redacted

MAX_IDENTICAL_FAILURES = 5
"""A sweep ends when this many checkpoints fail for the same reason and none succeeds."""
_RESERVED_BYTES = 200_000_000
"""Left free on the disk for other programs."""
_CANCEL_SECONDS, _POLL_SECONDS = 1.0, 0.1


Show: TypeAlias = Callable[[str], None]
"""Shows a line of what has happened, or how far a measurement or download is."""


@dataclass(frozen=True)
class Outcome:
    """Describes the outcome of one checkpoint of a sweep."""

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
        store.save_probe(probe)

    def fetch(task: Task) -> LocalFiles | CheckpointError | None:
        """Return the files of a checkpoint, or why they cannot be fetched; None if it has been
        measured meanwhile.
        """
        if task.key(options) in store:
            return None
        try:
            return downloads.fetch(task.target, show)
        except CheckpointError as error:
            return error

    with downloads.opened() as pool:
        fetched = [pool.submit(fetch, task) for task in tasks[:1]]
        for number, task in enumerate(tasks, start=1):
            files = fetched.pop().result()
            fetched += [pool.submit(fetch, following) for following in tasks[number : number + 1]]
            try:
                if isinstance(files, CheckpointError):
                    raise files
                if files is None:
                    outcome = Outcome(task, "skipped, measured by another process", "skipped")
                else:
                    outcome = Outcome(
                        task,
                        measure_checkpoint(task, files, store, options, show, downloads.folder),
                    )
            except CheckpointError as error:
                if not isinstance(error, OutOfBoundsError):
                    store_failure(task, store, options, str(error))
                outcome = Outcome(task, str(error), "failed")
            finally:
                if isinstance(files, LocalFiles):
                    downloads.release(files)
            yield outcome


def collect(outcomes: Generator[Outcome], bar: tqdm[NoReturn], show: Show) -> list[Outcome]:
    """Return the outcomes of checkpoints, each shown in a line.

    Raises:
        SweepStoppedError: the first ones failed for the same reason, as a wrong option.
    """
    found: list[Outcome] = []
    with closing(bar), closing(outcomes):
        for outcome in outcomes:
            found.append(outcome)
            bar.update()
            # the whole reason stands once at the end, with all checkpoints that have it
            is_failed = outcome.state == "failed"
            text = f"failed: {shorten(outcome.text, 80)}" if is_failed else outcome.text
            show(redacted(f"[{len(found)}/{bar.total}] {outcome.task.target}: {text}"))
            reasons = [each.text for each in found if each.state == "failed"]
            is_one = len(reasons) == MAX_IDENTICAL_FAILURES and len(set(reasons)) == 1
            if is_one and not any(each.state == "measured" for each in found):
                raise SweepStoppedError(
                    f"the first {MAX_IDENTICAL_FAILURES} checkpoints failed for the same reason: "
                    f"{reasons[0]}; fix it, then repeat the sweep with retry_failed=True"
                )
    return found


def measure_checkpoint(
    task: Task,
    files: LocalFiles,
    store: Store,
    options: CompleteOptions,
    show: Show,
    temporary: Path,
) -> str:
    """Measure a downloaded checkpoint, store its rows and the seconds of each stage, and return
    these as a text.

    In the folder ``temporary`` a device map may put weights.
    """
    target, probe, measurement = task.target, task.probe, task.measurement(options)

    def progress(what: str, share: float) -> None:
        show(f"{target}: {what} {share:.0%}")

    kept, is_one_of_many = store.folder_of(target.run) / STATES_FOLDER, target.stage != FINISHED
    captures = {what for metric, _ in resolve(options.metrics, probe) for what in metric.captures}
    state_cache = None
    if "previous_checkpoint" in captures and options.in_order and is_one_of_many:
        state_cache = StateCache(kept, run=target.run, probe=probe.hash, layers=measurement.choice)
    start = time.perf_counter()
    progress("load", 0.0)
    with TemporaryDirectory(dir=temporary) as offload_folder:
        if target.load is None and files.folder.suffix != LIGHTNING:
            # for the loss, and for metrics that read states through the model's output head
            with_head = measurement.probe_loss or "output_head" in captures
            model = load_model(
                files.folder, options.loading, Path(offload_folder), with_head=with_head
            )
        else:
            with model_errors("the model does not load"):
                if target.load is not None:
                    model = target.load()
                else:
                    is_raw = target.weights_kind == "raw"
                    model = load_lightning(files.folder, raw=is_raw, attention=options.attention)
                model = model.to(options.device, DTYPES.get(options.dtype)).eval()
        seconds = {"download": files.seconds, "load": time.perf_counter() - start}
        with model_errors("the model cannot be measured"):
            prepared, how = (
                prepare_for(model, probe, measurement),
                {"progress": progress, "state_cache": state_cache},
            )
            profile = measure_with(
                prepared, probe, measurement, checkpoint=target.checkpoint, **how
            )
        del model, prepared
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    seconds |= {"forward": profile.forward_seconds, "kernels": profile.kernel_seconds}
    scalars = {f"seconds/{stage}": value for stage, value in seconds.items()}
    scalars["bytes/download"] = float(files.bytes_fetched)
    rows = [
        scalar_row(profile.checkpoint, name, value, probe=probe.hash)
        for name, value in scalars.items()
    ]
    store.write(task.key(options), [*profile.rows, *profile.scalars, *rows])
    if state_cache is not None:
        state_cache.delete_before(target.step)
    parts = ", ".join(f"{stage} {value:.1f} s" for stage, value in seconds.items())
    share = seconds["kernels"] / sum(seconds.values())
    precisions = ", ".join(sorted({str(row.dtype) for row in profile.rows}))
    return f"{parts} ({share:.0%} of it in the kernels), in {precisions}"


def store_failure(
    task: Task, store: Store, options: CompleteOptions, reason: str, **marks: str
) -> None:
    """Store the reason why a checkpoint was not measured, so that later sweeps skip it."""
    names = [metric.name for metric, _ in resolve(options.metrics, task.probe)]
    rows = failure_rows(task.target.checkpoint, names, reason, probe=task.probe.hash, **marks)
    store.write(task.key(options).failed, rows)


def check_comparable(tasks: Iterable[Task], store: Store, options: CompleteOptions) -> None:
    """Check that new values are comparable with those stored for the same run."""
    for run, targets in groupby(tasks, lambda task: task.target.run):
        # without it, a live run of this name may be in the store, which is another curve
        is_known = own_folder(store.folder_of(run)).exists()
        rows = store.distinct(run, ("layers", "dtype", "checkpoint")) if is_known else []
        task = next(targets)
        location = _location(task.target.origin)
        for what, value, stored in (
            ("layers", task.measurement(options).choice, {row["layers"] for row in rows}),
            ("dtype", options.dtype, {row["dtype"] for row in rows}),
            (
                "location",
                location,
                {_location(row["checkpoint"]) for row in rows if row["checkpoint"]},
            ),
        ):
            if value not in (None, "auto") and stored - {value}:
                raise ValueError(
                    f"expected one {what} for the run {run!r}, got {value!r}, but {store.location} "
                    f"has it with {', '.join(map(repr, sorted(stored)))}; give another store=, or "
                    "another name="
                )


def _location(origin: str) -> str:
    """Return the parent folder of a local origin, or the owner on the hub."""
    path = Path(origin)
    return str(path.parent) if path.is_absolute() else origin.partition("@")[0].partition("/")[0]


@dataclass(frozen=True)
class LocalFiles:
    """The files of a checkpoint on this machine."""

    folder: Path
    bytes_fetched: int = 0
    """0 if they were present already."""
    seconds: float = 0.0
    """Wall-clock time of the download."""


class Downloads:
    """The downloads of a process, in a folder of its own, within a budget; Python files where code
    may run.
    """

    def __init__(self, hub: Hub, options: SweepOptions) -> None:
        self._hub, self._budget = hub, options.max_disk
        self._root = (
            options.downloads or cache_directory() / "downloads"
        ).absolute() / "repdyn-downloads"
        self._choose = partial(choose_files, with_code=options.trust_remote_code)
        self._held: dict[Path, int] = {}
        self._cancelled = Event()

    @contextmanager
    def opened(self) -> Iterator[ThreadPoolExecutor]:
        """Open the folder for downloads, with a thread for them; on exit, a running one is
        cancelled, all are deleted.

        The folders that killed processes left are deleted first.
        """
        self.purge()
        self._cancelled.clear()
        pool = ThreadPoolExecutor(1, thread_name_prefix=PREFETCHING)
        self.folder = self._root / f"{node()}+{os.getpid()}+{uuid4().hex[:12]}"
        self.folder.mkdir(mode=0o700)
        try:
            yield pool
        finally:
            self._cancelled.set()
            # not waited for long, since a hub that does not respond would block until the timeout;
            # but an abandoned download that is still running would create its folder again
            pool.shutdown(wait=False, cancel_futures=True)
            for thread in threading.enumerate():
                if thread.name.startswith(PREFETCHING):
                    thread.join(_CANCEL_SECONDS)
            shutil.rmtree(self.folder, ignore_errors=True)

    def purge(self) -> None:
        """Delete the folders that killed processes of this machine left; others may share the file
        system.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        for folder in self._root.glob(f"{escape(node())}+*+*"):
            try:
                is_over = (
                    psutil.Process(int(folder.name.split("+")[1])).status() == psutil.STATUS_ZOMBIE
                )
            except psutil.NoSuchProcess:
                is_over = True
            if is_over:
                shutil.rmtree(folder, ignore_errors=True)

    def fetch(self, target: Target, show: Show) -> LocalFiles:
        """Return the files of a checkpoint, downloaded as soon as the budget has room for them.

        Local files and those in the hub's own cache are used directly.
        """
        if target.path is not None:
            return LocalFiles(target.path)
        files = target.remote_files(self._hub, self._choose)
        warn_of_other_sizes(target, self._hub.files(target.repository, target.commit))
        place = target.repository, target.commit, files
        if cached := self._hub.cached(*place):
            return LocalFiles(cached)
        total = total_bytes(files)
        folder, start = self._reserve(total), time.perf_counter()
        try:
            of, what = f"of {total / 1e9:.2f} GB", f"download of {target}:"
            self._hub.download(
                *place, folder, self._cancelled, lambda n: show(f"{what} {n / 1e9:.2f} {of}")
            )
        except BaseException:
            self.release(LocalFiles(folder))
            raise
        return LocalFiles(folder, total, time.perf_counter() - start)

    def release(self, fetched: LocalFiles) -> None:
        """Delete the downloaded files of a checkpoint; other files are not deleted."""
        for folder in [each for each in self._held if fetched.folder.is_relative_to(each)]:
            shutil.rmtree(folder, ignore_errors=True)
            del self._held[folder]

    def _reserve(self, n_bytes: int) -> Path:
        """Return the folder for so many bytes, as soon as there is room for them."""
        if self._budget is not None and n_bytes > self._budget:
            raise OutOfBoundsError(
                f"its files take {n_bytes / 1e9:.3g} GB, more than the {self._budget / 1e9:.3g} GB "
                "of max_disk="
            )
        # space becomes free when the checkpoint that is being measured is deleted
        while self._held and not self._fits(n_bytes) and not self._cancelled.wait(_POLL_SECONDS):
            pass
        if self._cancelled.is_set():
            raise CancelledError
        if n_bytes + _RESERVED_BYTES > (free := shutil.disk_usage(self._root).free):
            raise SweepStoppedError(
                f"the disk of {self._root} is full: the next checkpoint takes {n_bytes / 1e9:.3g} "
                f"GB and {free / 1e9:.3g} GB are free; free some space, or choose another folder "
                "with downloads=, then repeat the sweep"
            )
        folder = self.folder / uuid4().hex[:12]
        self._held[folder] = n_bytes
        return folder

    def _fits(self, n_bytes: int) -> bool:
        within_budget = (
            self._budget is None or sum([*self._held.values()]) + n_bytes <= self._budget
        )
        return within_budget and n_bytes + _RESERVED_BYTES <= shutil.disk_usage(self._root).free

"""Measure checkpoints one after another: fetch the files, load the model, measure, store the rows.

While one checkpoint is measured, the next one is downloaded, within a disk budget, into a folder of the process; its
files are deleted after the measurement.
"""

from __future__ import annotations

import gc
import logging
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import Event
from typing import TypeVar
from uuid import uuid4

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from tqdm import tqdm
from transformers import PreTrainedModel

from repdyn.checkpoints.errors import (
    CancelledError,
    CheckpointError,
    OutOfBoundsError,
    SweepStoppedError,
    model_errors,
)
from repdyn.checkpoints.hub import PREFETCHING, Hub, choose_files, total_bytes
from repdyn.checkpoints.options import SweepOptions
from repdyn.checkpoints.targets import LIGHTNING, Target, Task
from repdyn.checkpoints.temporary import remove_abandoned_folders, temporary_folder
from repdyn.checkpoints.weights import DTYPES, load_lightning, load_model
from repdyn.measurement.measure import Progress as OnProgress
from repdyn.measurement.measure import layer_choice, measure_with, no_progress, prepare_for
from repdyn.metrics import resolve
from repdyn.store import Store
from repdyn.store.files import STATES_FOLDER, own_folder
from repdyn.store.schema import EMBEDDING_COSINE, EMBEDDING_NORM, FINISHED, failure_rows, scalar_row
from repdyn.store.state_cache import StateCache
from repdyn.utils.files import cache_directory, write_atomically
from repdyn.utils.printing import print_above_bars, printable
from repdyn.utils.redaction import redacted

log = logging.getLogger(__name__)

MAX_IDENTICAL_FAILURES = 5
"""A sweep ends when this many checkpoints fail for the same reason and none succeeds."""
N_COMPARED = 1024
"""Number of embeddings that are kept of the first checkpoint, evenly spaced over the vocabulary: 4 MB in width 1024."""
_FIRST_EMBEDDINGS, _TENSOR = "input_embeddings.safetensors", "embeddings"
_RESERVED_BYTES = 200_000_000
"""Left free on the disk for other programs."""
_CANCEL_SECONDS, _POLL_SECONDS = 1.0, 0.1

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class SweepResult:
    """The outcome of a sweep, or of one of its checkpoints; those that another process has measured are in neither."""

    measured: list[Task] = field(default_factory=list)
    failed: list[tuple[Task, str]] = field(default_factory=list)
    """With the reasons, which are also stored."""

    def add(self, other: SweepResult) -> None:
        """Add the outcome of a checkpoint; raise SweepStoppedError if all failed for one reason, as a wrong option."""
        self.measured += other.measured
        self.failed += other.failed
        reasons = {reason for _, reason in self.failed}
        if len(self.failed) == MAX_IDENTICAL_FAILURES and len(reasons) == 1 and not self.measured:
            raise SweepStoppedError(
                f"the first {MAX_IDENTICAL_FAILURES} checkpoints failed for the same reason: {reasons.pop()}; fix it, "
                "then repeat the sweep with --retry-failed"
            )


def measure_tasks(
    tasks: Sequence[Task],
    store: Store,
    options: SweepOptions,
    downloads: Downloads,
    display: ProgressDisplay | None = None,
) -> SweepResult:
    """Measure checkpoints one after another; it can be stopped at any time and repeated with the remaining ones."""
    for probe in {task.probe.hash: task.probe for task in tasks}.values():
        store.save_probe(probe)
    display, result = display or ProgressDisplay(len(tasks), shown=False), SweepResult()

    def fetch(task: Task) -> LocalFiles | CheckpointError | None:
        """Return the files of a checkpoint, or why they cannot be fetched; None if it has been measured meanwhile."""
        if task.key(options) in store:
            return None
        try:
            return downloads.fetch(task.target, partial(display.fetching, task))
        except CheckpointError as error:
            return error

    with closing(display), downloads.opened(), closing(prefetch(fetch, tasks)) as fetched:
        for task, files in fetched:
            try:
                if files is None:
                    display.finished(task, "skipped, measured by another process")
                    continue
                if isinstance(files, CheckpointError):
                    raise files
                text = measure_checkpoint(task, files, store, options, partial(display.measuring, task))
            except CheckpointError as error:
                if not isinstance(error, OutOfBoundsError):
                    store_failure(task, store, options, str(error))
                display.finished(task, f"failed: {error}")
                outcome = SweepResult(failed=[(task, str(error))])
            else:
                display.finished(task, text)
                outcome = SweepResult([task])
            finally:
                if isinstance(files, LocalFiles):
                    downloads.release(files)
            result.add(outcome)
    return result


def measure_checkpoint(
    task: Task, files: LocalFiles, store: Store, options: SweepOptions, progress: OnProgress = no_progress
) -> str:
    """Measure a downloaded checkpoint, store its rows and the seconds of each stage, and return these as a text."""
    target, probe, measurement = task.target, task.probe, task.measurement(options)
    kept, is_one_of_many = store.folder_of(target.run) / STATES_FOLDER, target.stage != FINISHED
    captures = {what for metric, _ in resolve(options.metrics, probe) for what in metric.captures}
    state_cache = None
    if "previous_checkpoint" in captures and options.in_order and is_one_of_many:
        layers = layer_choice(options.layers, options.token_positions)
        state_cache = StateCache(kept, run=target.run, probe=probe.hash, layers=layers)
    start = time.perf_counter()
    progress("load", 0.0)
    with temporary_folder("offload") as offload_folder:
        if target.load is None and files.folder.suffix != LIGHTNING:
            # for the loss, and for metrics that read states through the model's output head
            with_head = task.measures_loss(options) or "output_head" in captures
            model = load_model(files.folder, options, offload_folder, with_head=with_head)
        else:
            with model_errors("the model does not load"):
                is_raw = target.weights_kind == "raw"
                model = target.load() if target.load else load_lightning(files.folder, raw=is_raw)
                model = model.to(options.device, DTYPES.get(options.dtype or "auto")).eval()
        seconds = {"download": files.seconds, "load": time.perf_counter() - start}
        embeddings = input_embeddings(model)
        scalars: dict[str, tuple[float, int | None]] = {}
        if embeddings is not None:
            norm = torch.linalg.vector_norm(embeddings, dim=1, dtype=torch.float32).median()
            scalars[EMBEDDING_NORM] = float(norm), None
            if is_one_of_many and (found := cosine_to_first(embeddings, kept, target.step, is_first=options.in_order)):
                scalars[EMBEDDING_COSINE] = found[1], found[0]
        with model_errors("the model cannot be measured"):
            prepared, how = prepare_for(model, probe, measurement), {"progress": progress, "state_cache": state_cache}
            profile = measure_with(prepared, probe, measurement, checkpoint=target.checkpoint, **how)
        del model, prepared, embeddings
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    seconds |= {"forward": profile.forward_seconds, "kernels": profile.kernel_seconds}
    scalars |= {f"seconds/{stage}": (value, None) for stage, value in seconds.items()}
    scalars["bytes/download"] = float(files.bytes_fetched), None
    rows = [
        replace(scalar_row(profile.checkpoint, name, value, probe=probe.hash), compared_to=step)
        for name, (value, step) in scalars.items()
    ]
    store.write(task.key(options), [*profile.rows, *profile.scalars, *rows])
    if state_cache is not None:
        state_cache.delete_before(target.step)
    parts = ", ".join(f"{stage} {value:.1f} s" for stage, value in seconds.items())
    return f"{parts} ({seconds['kernels'] / sum(seconds.values()):.0%} of it in the kernels)"


def store_failure(task: Task, store: Store, options: SweepOptions, reason: str, **marks: str) -> None:
    """Store the reason why a checkpoint was not measured, so that later sweeps skip it."""
    names = [metric.name for metric, _ in resolve(options.metrics, task.probe)]
    rows = failure_rows(task.target.checkpoint, names, reason, probe=task.probe.hash, **marks)
    store.write(task.key(options).failed, rows)


def input_embeddings(model: nn.Module) -> Tensor | None:
    """Return the input embeddings, (n_tokens, dim); None for a model that has none in its memory."""
    try:
        embeddings = model.get_input_embeddings() if isinstance(model, PreTrainedModel) else None
    except NotImplementedError:  # a model of sounds, or of two towers
        return None
    weight = getattr(embeddings, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or weight.device.type == "meta":
        return None
    return weight.detach()


def cosine_to_first(embeddings: Tensor, folder: Path, step: int, *, is_first: bool) -> tuple[int, float] | None:
    """Return the step of the run's first checkpoint, and the median cosine of input embeddings to those of it.

    Those of the first, :data:`N_COMPARED` of them, are kept in a folder; with ``is_first`` these, if it has none.
    None if there is nothing to compare with, or embeddings of another shape.
    """
    places = torch.linspace(0, len(embeddings) - 1, min(N_COMPARED, len(embeddings))).long()
    own = embeddings.detach()[places.to(embeddings.device)].float().cpu()
    path = folder / _FIRST_EMBEDDINGS
    try:
        if is_first and not path.exists():
            kept = {_TENSOR: own.contiguous()}
            write_atomically(path, lambda partial: save_file(kept, partial, metadata={"step": str(step)}))
        with safe_open(path, framework="pt") as file:
            first, first_step = file.get_tensor(_TENSOR), int(file.metadata()["step"])
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        log.warning("The input embeddings of step %d are not compared with those in %s: %s", step, path, error)
        return None
    if first.shape != own.shape:
        return None
    return first_step, float(cosine_similarity(own.double(), first.double(), dim=1).median())


def check_comparable(tasks: Iterable[Task], store: Store, options: SweepOptions) -> None:
    """Check that new values are comparable with those stored for the same run."""
    for run, targets in groupby(tasks, lambda task: task.target.run):
        own_folder(store.folder_of(run))
        rows = store.distinct(run, ("layers", "dtype", "checkpoint"))
        expected = {
            "layers": (layer_choice(options.layers, options.token_positions), {row["layers"] for row in rows}),
            "dtype": (options.dtype, {row["dtype"] for row in rows}),
            "location": (
                _location(next(targets).target.origin),
                {_location(row["checkpoint"]) for row in rows if row["checkpoint"]},
            ),
        }
        for what, (value, stored) in expected.items():
            if value not in (None, "auto") and stored - {value}:
                raise ValueError(
                    f"expected one {what} for the run {run!r}, got {value!r}, but {store.location} has it with "
                    f"{', '.join(map(repr, sorted(stored)))}; give another --store, or another --name"
                )


def _location(origin: str) -> str:
    """Return the parent folder of a local origin, or the owner on the hub."""
    return origin.rpartition("/")[0] if origin.startswith("/") else origin.partition("@")[0].partition("/")[0]


class ProgressDisplay:
    """A progress bar over checkpoints with what happens to the current ones, on standard error; in a log file, one line
    per checkpoint."""

    def __init__(self, n_checkpoints: int, *, shown: bool = True) -> None:
        self._shown, self._n, self._finished = shown, n_checkpoints, 0
        # hidden where standard error is no terminal
        self._bar = tqdm(total=n_checkpoints, desc="checkpoints", disable=None if shown else True, leave=False)
        self._now = {"measured": "", "fetched": ""}
        self.close = self._bar.close

    def fetching(self, task: Task, n_bytes: int, of_bytes: int) -> None:
        """Show that ``n_bytes`` of ``of_bytes`` of a checkpoint are downloaded."""
        self._show("fetched", f"download of {task.target}: {n_bytes / 1e9:.2f} of {of_bytes / 1e9:.2f} GB")

    def measuring(self, task: Task, what: str, share: float) -> None:
        """Show how far a checkpoint is, as reported by :func:`repdyn.measure`."""
        self._show("measured", f"{task.target}: {what} {share:.0%}")

    def finished(self, task: Task, text: str) -> None:
        """Print the outcome of a checkpoint."""
        self._finished += 1
        self._bar.update()
        if self._shown:
            print_above_bars(printable(redacted(f"[{self._finished}/{self._n}] {task.target}: {text}")))

    def _show(self, what: str, text: str) -> None:
        self._now[what] = text
        self._bar.set_postfix_str("; ".join(filter(None, self._now.values())))


@dataclass(frozen=True)
class LocalFiles:
    """The files of a checkpoint on this machine."""

    folder: Path
    bytes_fetched: int = 0
    """0 if they were present already."""
    seconds: float = 0.0
    """Wall-clock time of the download."""


class Downloads:
    """The downloads of a process, in a folder of its own; folders left by killed processes are deleted first.

    Args:
        hub: from which files are downloaded.
        root: folder of the downloads of all processes.
        budget_bytes: largest number of bytes that this process keeps on disk at any time; None for no limit.
        with_code: whether Python files of a repository are downloaded as well.
    """

    def __init__(self, hub: Hub, root: Path, budget_bytes: int | None = None, *, with_code: bool = False) -> None:
        self._hub, self._root, self._budget = hub, root, budget_bytes
        self._choose = partial(choose_files, with_code=with_code)
        self._held: dict[Path, int] = {}
        self._cancelled = Event()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the folder for downloads; on exit, a running one is cancelled, and all are deleted."""
        self.purge()
        self._cancelled.clear()
        with temporary_folder("downloads", self._root) as self._folder:
            try:
                yield
            finally:
                self._cancelled.set()
                # an abandoned download that is still running would create its folder again
                for thread in threading.enumerate():
                    if thread.name.startswith(PREFETCHING):
                        thread.join(_CANCEL_SECONDS)

    def purge(self) -> list[Path]:
        """Delete the folders that killed processes left, and return them."""
        self._root.mkdir(parents=True, exist_ok=True)
        return remove_abandoned_folders(self._root)

    def fetch(self, target: Target, on_bytes: Callable[[int, int], None] = lambda n, total: None) -> LocalFiles:
        """Return the files of a checkpoint, downloaded as soon as the budget has room for them.

        Local files and those in the hub's own cache are used directly. ``on_bytes`` is called with the number of bytes
        so far and their total number.
        """
        if target.path is not None:
            return LocalFiles(target.path)
        files = target.remote_files(self._hub, self._choose)
        place = target.repository, target.commit, files
        if cached := self._hub.cached(*place):
            return LocalFiles(cached / target.subfolder)
        total = total_bytes(files)
        folder, start = self._reserve(total), time.perf_counter()
        try:
            self._hub.download(*place, folder, self._cancelled, lambda n: on_bytes(n, total))
        except BaseException:
            self.release(LocalFiles(folder))
            raise
        return LocalFiles(folder / target.subfolder, total, time.perf_counter() - start)

    def release(self, fetched: LocalFiles) -> None:
        """Delete the downloaded files of a checkpoint; other files are not deleted."""
        for folder in [each for each in self._held if fetched.folder.is_relative_to(each)]:
            shutil.rmtree(folder, ignore_errors=True)
            del self._held[folder]

    def _reserve(self, n_bytes: int) -> Path:
        """Return the folder for so many bytes, as soon as there is room for them."""
        if self._budget is not None and n_bytes > self._budget:
            raise OutOfBoundsError(
                f"its files take {n_bytes / 1e9:.3g} GB, more than the {self._budget / 1e9:.3g} GB of --max-disk"
            )
        # space becomes free when the checkpoint that is being measured is deleted
        while self._held and not self._fits(n_bytes) and not self._cancelled.wait(_POLL_SECONDS):
            pass
        if self._cancelled.is_set():
            raise CancelledError
        if n_bytes + _RESERVED_BYTES > (free := self._free_bytes()):
            raise SweepStoppedError(
                f"the disk of {self._root} is full: the next checkpoint takes {n_bytes / 1e9:.3g} GB and "
                f"{free / 1e9:.3g} GB are free; free some space, or choose another folder with --downloads FOLDER, "
                "then repeat the command"
            )
        folder = self._folder / uuid4().hex[:12]
        self._held[folder] = n_bytes
        return folder

    def _fits(self, n_bytes: int) -> bool:
        within_budget = self._budget is None or sum([*self._held.values()]) + n_bytes <= self._budget
        return within_budget and n_bytes + _RESERVED_BYTES <= self._free_bytes()

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._root).free


def downloads_of(options: SweepOptions, hub: Hub) -> Downloads:
    """Return the downloads that the options of a sweep describe."""
    folder = (options.downloads or cache_directory() / "downloads").absolute() / "repdyn-downloads"
    return Downloads(hub, folder, options.max_disk, with_code=options.trust_remote_code)


def prefetch(work: Callable[[Item], Result], items: Sequence[Item]) -> Generator[tuple[Item, Result]]:
    """Yield each item with the result of its work, while a thread works on the next item.

    At most two results exist at any time: the one yielded last, and the next one.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix=PREFETCHING)
    try:
        following = [pool.submit(work, item) for item in items[:1]]
        for number, item in enumerate(items, start=1):
            result = following.pop().result()
            following = [pool.submit(work, item) for item in items[number : number + 1]]
            yield item, result
    finally:
        # not waited for, since a hub that does not respond would block until the timeout
        pool.shutdown(wait=False, cancel_futures=True)

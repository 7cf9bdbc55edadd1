"""Measure checkpoints one after another: fetch the files, load the model, measure, store the rows.

While one checkpoint is measured, the next one is downloaded.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from tqdm import tqdm
from transformers import PreTrainedModel

from repdyn.checkpoints.audit import ForeignWeights
from repdyn.checkpoints.downloads import Downloads, LocalFiles, prefetch
from repdyn.checkpoints.errors import CheckpointError, OutOfBoundsError, SweepStoppedError, model_errors
from repdyn.checkpoints.local import LIGHTNING
from repdyn.checkpoints.options import SweepOptions
from repdyn.checkpoints.plan import Task
from repdyn.checkpoints.revisions import location_of
from repdyn.checkpoints.weights import DTYPES, load_lightning, load_model
from repdyn.measurement.measure import Progress as OnProgress
from repdyn.measurement.measure import layer_choice, measure_with, no_progress, prepare_for
from repdyn.metrics import resolve
from repdyn.store import Store
from repdyn.store.files import STATES_FOLDER, own_folder
from repdyn.store.schema import EMBEDDING_COSINE, EMBEDDING_NORM, FINISHED, Row, failure_rows, scalar_row
from repdyn.store.state_cache import StateCache
from repdyn.tables.designs import own_window_warning
from repdyn.utils.console import PrintableConsole
from repdyn.utils.files import temporary_folder, write_atomically
from repdyn.utils.redaction import redacted

log = logging.getLogger(__name__)

MAX_IDENTICAL_FAILURES = 5
"""A sweep ends when this many checkpoints fail for the same reason and none succeeds."""
N_COMPARED = 1024
"""Number of embeddings that are kept of the first checkpoint, evenly spaced over the vocabulary: 4 MB in width 1024."""
_FIRST_EMBEDDINGS, _TENSOR = "input_embeddings.safetensors", "embeddings"


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
    """Measure checkpoints one after another; it can be stopped at any time and repeated with the remaining ones."""
    for run in {task.target.run for task in tasks}:
        own_folder(store.folder_of(run))
    for probe in {task.probe.hash: task.probe for task in tasks}.values():
        store.save_probe(probe)
    display = display or ProgressDisplay(len(tasks), shown=False)
    result = SweepResult()

    def fetch(task: Task) -> LocalFiles | CheckpointError | None:
        """Return the files of a checkpoint, or why they cannot be fetched; None if it has been measured meanwhile."""
        if task.key(options) in store:
            return None
        if task.target.path is None:
            display.fetching(task)
        try:
            return downloads.fetch(task.target, partial(display.fetching, task))
        except CheckpointError as error:
            return error

    with display, downloads.opened(), closing(prefetch(fetch, tasks, downloads.cancel)) as fetches:
        for task, future in fetches:
            fetched = future.result()
            if fetched is None:
                result.skipped.append(task)
                display.finished(task, "skipped, measured by another process")
                continue
            try:
                _measure(task, fetched, store, options, display, result)
            finally:
                if isinstance(fetched, LocalFiles):
                    downloads.release(fetched)
            abort_on_repeated_failure(result)
    return result


def _measure(
    task: Task,
    fetched: LocalFiles | CheckpointError,
    store: Store,
    options: SweepOptions,
    display: ProgressDisplay,
    result: SweepResult,
) -> None:
    try:
        if isinstance(fetched, CheckpointError):
            raise fetched
        display.measuring(task)
        timing = measure_checkpoint(task, fetched, store, options, partial(display.measuring, task))
    except CheckpointError as error:
        if not isinstance(error, OutOfBoundsError):
            store_failure(task, store, options, str(error))
        result.failed.append((task, str(error)))
        display.finished(task, f"failed: {error}", failed=True)
    else:
        result.measured.append(task)
        display.finished(task, timing)
        with suppress(ValueError):  # the store was deleted meanwhile
            display.warn_of_own_windows(task, store.read(task.key(options)))


def abort_on_repeated_failure(result: SweepResult) -> None:
    """Raise SweepStoppedError if all checkpoints so far failed for the same reason, such as a wrong option."""
    reasons = {reason for _, reason in result.failed}
    if len(result.failed) == MAX_IDENTICAL_FAILURES and len(reasons) == 1 and not result.measured:
        raise SweepStoppedError(
            f"the first {MAX_IDENTICAL_FAILURES} checkpoints failed for the same reason: {reasons.pop()}; fix it, then "
            "repeat the sweep with --retry-failed"
        )


class ProgressDisplay:
    """A progress bar over checkpoints with what happens to the current ones, on standard error; in a log file, one line
    per checkpoint."""

    def __init__(self, n_checkpoints: int, *, shown: bool = True) -> None:
        self._console = PrintableConsole(stderr=True, quiet=not shown)
        hidden = not self._console.is_terminal or not shown
        self._bar = tqdm(total=n_checkpoints, desc="checkpoints", disable=hidden, leave=False)
        self._n, self._finished = n_checkpoints, 0
        self._warned_runs: set[str] = set()
        self._fetching = self._measuring = ""

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._bar.close()

    def fetching(self, task: Task, n_bytes: int = 0, of_bytes: int = 0) -> None:
        """Show that ``n_bytes`` of ``of_bytes`` of a checkpoint are downloaded."""
        self._fetching = f"download of {task.target}: {n_bytes / 1e9:.2f} of {of_bytes / 1e9:.2f} GB"
        self._show()

    def measuring(self, task: Task, what: str = "load", share: float = 0.0) -> None:
        """Show how far a checkpoint is, as reported by :func:`repdyn.measure`."""
        self._measuring = f"{task.target}: {what} {share:.0%}"
        self._show()

    def finished(self, task: Task, text: str, *, failed: bool = False) -> None:
        """Print the outcome of a checkpoint."""
        self._finished += 1
        self._bar.update()
        self._print(f"[{self._finished}/{self._n}] {task.target}: {text}", "yellow" if failed else None)

    def warn_of_own_windows(self, task: Task, rows: Sequence[Row]) -> None:
        """Print the warning of :func:`repdyn.tables.designs.own_window_warning`, once per run."""
        run = task.target.run
        if run not in self._warned_runs and (warning := own_window_warning(rows)):
            self._warned_runs.add(run)
            self._print(f"{task.target}: {warning}", "yellow")

    def _show(self) -> None:
        self._bar.set_postfix_str("; ".join(filter(None, (self._measuring, self._fetching))))

    def _print(self, line: str, style: str | None) -> None:
        with tqdm.external_write_mode():
            self._console.print(redacted(line), style=style, markup=False, highlight=False, soft_wrap=True)


def measure_checkpoint(
    task: Task, fetched: LocalFiles, store: Store, options: SweepOptions, progress: OnProgress = no_progress
) -> str:
    """Measure a downloaded checkpoint, store its rows and the seconds of each stage, and return these as a text."""
    target, probe = task.target, task.probe
    state_cache = _state_cache(task, store, options)
    start = time.perf_counter()
    progress("load", 0.0)
    with temporary_folder("offload") as offload_folder:
        model = _load(task, fetched.folder, options, offload_folder)
        load_seconds = time.perf_counter() - start
        embedding_rows = _embedding_rows(model, task, store, options)
        with model_errors("the model cannot be measured"):
            measurement = task.measurement(options)
            profile = measure_with(
                prepare_for(model, probe, measurement),
                probe,
                measurement,
                checkpoint=target.checkpoint,
                progress=progress,
                state_cache=state_cache,
            )
        del model
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    seconds = {
        "download": fetched.seconds,
        "load": load_seconds,
        "forward": profile.forward_seconds,
        "kernels": profile.kernel_seconds,
    }
    costs = {f"seconds/{stage}": value for stage, value in seconds.items()}
    costs["bytes/download"] = float(fetched.bytes_fetched)
    rows = [scalar_row(profile.checkpoint, name, value, probe=probe.hash) for name, value in costs.items()]
    rows += [replace(row, **asdict(profile.checkpoint)) for row in embedding_rows]
    store.write(task.key(options), [*profile.rows, *profile.scalars, *rows])
    if state_cache is not None:
        state_cache.delete_before(target.checkpoint.step)
    parts = ", ".join(f"{stage} {value:.1f} s" for stage, value in seconds.items())
    return f"{parts} ({seconds['kernels'] / sum(seconds.values()):.0%} of it in the kernels)"


def store_failure(task: Task, store: Store, options: SweepOptions, reason: str, **marks: str) -> None:
    """Store the reason why a checkpoint was not measured, so that later sweeps skip it."""
    names = [metric.name for metric, _ in resolve(options.metrics, task.probe)]
    rows = failure_rows(task.target.checkpoint, names, reason, probe=task.probe.hash, **marks)
    store.write(task.key(options).failed, rows)


def store_foreign(task: Task, store: Store, options: SweepOptions, foreign: ForeignWeights) -> None:
    """Store that a checkpoint is not measured because it has the weights, or files, of another one."""
    if task.stored_foreign(store, options) != foreign:
        mark = "mixed_with" if foreign.in_part else "same_as"
        store_failure(task, store, options, foreign.reason, **{mark: foreign.owner})


def _state_cache(task: Task, store: Store, options: SweepOptions) -> StateCache | None:
    """Return the cache with the states of the previous checkpoint, if a metric compares with them."""
    if not _captures(task, options, "previous_checkpoint"):
        return None
    if not options.in_order or task.target.checkpoint.stage == FINISHED:
        return None
    run, choice = task.target.run, layer_choice(options.layers, options.token_positions)
    return StateCache(store.folder_of(run) / STATES_FOLDER, run=run, probe=task.probe.hash, layers=choice)


def _captures(task: Task, options: SweepOptions, what: str) -> bool:
    return any(what in metric.captures for metric, _ in resolve(options.metrics, task.probe))


def _load(task: Task, path: Path, options: SweepOptions, offload_folder: Path) -> nn.Module:
    loading = options.loading()
    if task.target.load is not None:
        with model_errors("the model does not load"):
            return task.target.load().to(loading.device, DTYPES.get(loading.dtype)).eval()
    if path.suffix == LIGHTNING:
        with model_errors("the checkpoint does not load"):
            model = load_lightning(path, raw=task.target.weights_kind == "raw")
            return model.to(loading.device, DTYPES.get(loading.dtype)).eval()
    # for the loss, and for metrics that read states through the model's output head
    with_head = task.measures_loss(options) or _captures(task, options, "output_head")
    return load_model(path, loading, offload_folder, with_head=with_head)


def _embedding_rows(model: nn.Module, task: Task, store: Store, options: SweepOptions) -> list[Row]:
    """Return the statistics of the input embeddings as scalars of the step; none for a model without these."""
    embeddings = input_embeddings(model)
    if embeddings is None:
        return []
    checkpoint, probe = task.target.checkpoint, task.probe.hash
    norm = float(torch.linalg.vector_norm(embeddings, dim=1, dtype=torch.float32).median())
    rows = [scalar_row(checkpoint, EMBEDDING_NORM, norm, probe=probe)]
    if checkpoint.stage == FINISHED:
        return rows
    folder = store.folder_of(checkpoint.run) / STATES_FOLDER
    if compared := cosine_to_first(embeddings, folder, checkpoint.step, is_first=options.in_order):
        first, cosine = compared
        rows.append(replace(scalar_row(checkpoint, EMBEDDING_COSINE, cosine, probe=probe), compared_to=first))
    return rows


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

    Those of the first, :data:`N_COMPARED` of them, are kept in a folder; with ``is_first`` these are, where it has none
    that can be read. None if there is nothing to compare with, or embeddings of another shape.
    """
    places = torch.linspace(0, len(embeddings) - 1, min(N_COMPARED, len(embeddings))).long()
    own = embeddings.detach()[places.to(embeddings.device)].float().cpu()
    path = folder / _FIRST_EMBEDDINGS
    try:
        with safe_open(path, framework="pt") as file:
            first, first_step = file.get_tensor(_TENSOR), int((file.metadata() or {})["step"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        if not is_first:
            return None
        if not isinstance(error, FileNotFoundError):
            log.warning("The input embeddings in %s cannot be read and are replaced by those of step %d", path, step)
        try:
            kept = {_TENSOR: own.contiguous()}
            write_atomically(path, lambda partial: save_file(kept, partial, metadata={"step": str(step)}))
        except (OSError, SafetensorError) as failure:
            log.warning("The input embeddings of step %d could not be kept for comparison: %s", step, failure)
            return None
        first, first_step = own, step
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
                next(targets).target.location,
                {location_of(row["checkpoint"]) for row in rows if row["checkpoint"]},
            ),
        }
        for what, (value, stored) in expected.items():
            if value not in (None, "auto") and stored - {value}:
                raise ValueError(
                    f"expected one {what} for the run {run!r}, got {value!r}, but {store.location} has it with "
                    f"{', '.join(map(repr, sorted(stored)))}; give another --store, or another --name"
                )

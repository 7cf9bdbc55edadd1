"""Measure checkpoints one after another: fetch the files, load the model, measure, store the rows.

While one checkpoint is measured, the next one is downloaded.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
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
from repdyn.checkpoints.targets import location_of
from repdyn.checkpoints.temporary import temporary_folder
from repdyn.checkpoints.weights import DTYPES, load_lightning, load_model
from repdyn.measurement.measure import Progress as OnProgress
from repdyn.measurement.measure import layer_choice, measure_with, no_progress, prepare_for
from repdyn.metrics import resolve
from repdyn.store import Store
from repdyn.store.files import STATES_FOLDER, own_folder
from repdyn.store.schema import EMBEDDING_COSINE, EMBEDDING_NORM, FINISHED, Row, failure_rows, scalar_row
from repdyn.store.state_cache import StateCache
from repdyn.utils.console import PrintableConsole
from repdyn.utils.files import write_atomically
from repdyn.utils.redaction import redacted

log = logging.getLogger(__name__)

MAX_IDENTICAL_FAILURES = 5
"""A sweep ends when this many checkpoints fail for the same reason and none succeeds."""
N_COMPARED = 1024
"""Number of embeddings that are kept of the first checkpoint, evenly spaced over the vocabulary: 4 MB in width 1024."""
_FIRST_EMBEDDINGS, _TENSOR = "input_embeddings.safetensors", "embeddings"


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

    with display, downloads.opened(), closing(prefetch(fetch, tasks)) as fetched:
        for task, files in fetched:
            try:
                outcome = _measured(task, files, store, options, display)
            finally:
                if isinstance(files, LocalFiles):
                    downloads.release(files)
            result.add(outcome)
    return result


def _measured(
    task: Task,
    files: LocalFiles | CheckpointError | None,
    store: Store,
    options: SweepOptions,
    display: ProgressDisplay,
) -> SweepResult:
    """Measure a checkpoint, or store why that is not possible; either is shown."""
    if files is None:
        display.finished(task, "skipped, measured by another process")
        return SweepResult()
    try:
        if isinstance(files, CheckpointError):
            raise files
        timing = measure_checkpoint(task, files, store, options, partial(display.measuring, task))
    except CheckpointError as error:
        if not isinstance(error, OutOfBoundsError):
            store_failure(task, store, options, str(error))
        display.finished(task, f"failed: {error}", failed=True)
        return SweepResult(failed=[(task, str(error))])
    display.finished(task, timing)
    return SweepResult([task])


class ProgressDisplay:
    """A progress bar over checkpoints with what happens to the current ones, on standard error; in a log file, one line
    per checkpoint."""

    def __init__(self, n_checkpoints: int, *, shown: bool = True) -> None:
        self._console = PrintableConsole(stderr=True, quiet=not shown)
        hidden = not self._console.is_terminal or not shown
        self._bar = tqdm(total=n_checkpoints, desc="checkpoints", disable=hidden, leave=False)
        self._n, self._finished = n_checkpoints, 0
        self._now = {"measured": "", "fetched": ""}

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._bar.close()

    def fetching(self, task: Task, n_bytes: int, of_bytes: int) -> None:
        """Show that ``n_bytes`` of ``of_bytes`` of a checkpoint are downloaded."""
        self._show("fetched", f"download of {task.target}: {n_bytes / 1e9:.2f} of {of_bytes / 1e9:.2f} GB")

    def measuring(self, task: Task, what: str, share: float) -> None:
        """Show how far a checkpoint is, as reported by :func:`repdyn.measure`."""
        self._show("measured", f"{task.target}: {what} {share:.0%}")

    def finished(self, task: Task, text: str, *, failed: bool = False) -> None:
        """Print the outcome of a checkpoint."""
        self._finished += 1
        self._bar.update()
        line, style = f"[{self._finished}/{self._n}] {task.target}: {text}", "yellow" if failed else None
        with tqdm.external_write_mode():
            self._console.print(redacted(line), style=style, markup=False, highlight=False, soft_wrap=True)

    def _show(self, what: str, text: str) -> None:
        self._now[what] = text
        self._bar.set_postfix_str("; ".join(filter(None, self._now.values())))


def measure_checkpoint(
    task: Task, files: LocalFiles, store: Store, options: SweepOptions, progress: OnProgress = no_progress
) -> str:
    """Measure a downloaded checkpoint, store its rows and the seconds of each stage, and return these as a text."""
    state_cache = _state_cache(task, store, options)
    start = time.perf_counter()
    progress("load", 0.0)
    with temporary_folder("offload") as offload_folder:
        model = _load(task, files.folder, options, offload_folder)
        load_seconds = time.perf_counter() - start
        embedding_rows = _embedding_rows(model, task, store, options)
        measurement, how = task.measurement(options), {"progress": progress, "state_cache": state_cache}
        with model_errors("the model cannot be measured"):
            prepared = prepare_for(model, task.probe, measurement)
            profile = measure_with(prepared, task.probe, measurement, checkpoint=task.target.checkpoint, **how)
        del model, prepared
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    seconds = {
        "download": files.seconds,
        "load": load_seconds,
        "forward": profile.forward_seconds,
        "kernels": profile.kernel_seconds,
    }
    costs = {f"seconds/{stage}": value for stage, value in seconds.items()} | {"bytes/download": files.bytes_fetched}
    rows = [scalar_row(profile.checkpoint, name, float(cost), probe=task.probe.hash) for name, cost in costs.items()]
    rows += [replace(row, **asdict(profile.checkpoint)) for row in embedding_rows]
    store.write(task.key(options), [*profile.rows, *profile.scalars, *rows])
    if state_cache is not None:
        state_cache.delete_before(task.target.step)
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
    target = task.target
    if target.load is None and path.suffix != LIGHTNING:
        # for the loss, and for metrics that read states through the model's output head
        with_head = task.measures_loss(options) or _captures(task, options, "output_head")
        return load_model(path, options, offload_folder, with_head=with_head)
    with model_errors("the model does not load"):
        model = target.load() if target.load else load_lightning(path, raw=target.weights_kind == "raw")
        return model.to(options.device, DTYPES.get(options.dtype or "auto")).eval()


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
                location_of(next(targets).target.origin),
                {location_of(row["checkpoint"]) for row in rows if row["checkpoint"]},
            ),
        }
        for what, (value, stored) in expected.items():
            if value not in (None, "auto") and stored - {value}:
                raise ValueError(
                    f"expected one {what} for the run {run!r}, got {value!r}, but {store.location} has it with "
                    f"{', '.join(map(repr, sorted(stored)))}; give another --store, or another --name"
                )

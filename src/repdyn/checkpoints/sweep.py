"""A sweep from its options to its outcome: what is asked for, what of it remains, and how it is
measured.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import count
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from huggingface_hub.errors import RepositoryNotFoundError
from tqdm import tqdm

from repdyn.checkpoints.audit import audit, fault_lines, foreign_targets, list_histories
from repdyn.checkpoints.errors import CheckpointError, NoConnectionError, SweepStoppedError
from repdyn.checkpoints.hub import Hub, map_concurrently, total_bytes
from repdyn.checkpoints.local import find_checkpoints, find_own_files
from repdyn.checkpoints.options import Loads, SweepOptions, available_device, is_here
from repdyn.checkpoints.suites import (
    PublishedCheckpoint,
    PublishedModel,
    find_models,
    models_of,
    require_distinct_steps,
)
from repdyn.checkpoints.targets import (
    FOREIGN,
    Selection,
    Target,
    Task,
    TaskList,
    match_revisions,
    partition_tasks,
    select_models,
    select_revisions,
)
from repdyn.metrics import DEFAULT_METRICS, METRICS, resolve
from repdyn.metrics.metric import base_name
from repdyn.probe.design import NO_MASSIVE, SUBSETS, class_names
from repdyn.store import Store, find_store, store_at
from repdyn.store.schema import FINISHED
from repdyn.utils.arguments import Dtype
from repdyn.utils.mistyped import did_you_mean, options_of
from repdyn.utils.printing import print_above_bars, without_reports
from repdyn.utils.redaction import redacted
from repdyn.utils.steps import DEFAULT_PATTERN

if TYPE_CHECKING:
    import pandas as pd

    from repdyn.probe import Probe

log = logging.getLogger(__name__)

UPLOAD_SECONDS, INTERRUPTED_UPLOAD_SECONDS = 120.0, 10.0
"""How long the end of a sweep waits for the uploads to a remote store."""
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
"""What may be the name of a hub repository."""
_LOADS = (
    "a folder, a repository, or pairs of a step and a function that returns the model of that step"
)
OF_FINISHED = (*DEFAULT_METRICS, f"anisotropy@{NO_MASSIVE}")
"""What is measured by default where all models are finished ones: a few vectors of massive norm
make most of the anisotropy of many.
"""
_FOLDERS_OF_RUNS = {"hf_checkpoints", "checkpoints"}
"""Names of folders in a run's folder that hold its checkpoints."""


@dataclass(frozen=True)
class Prepared:
    """Holds what a sweep needs before its first checkpoint."""

    options: SweepOptions
    """Complete."""
    hub: Hub
    store: Store
    selections: Sequence[Selection]
    foreign: Mapping[Target, dict[str, str]]
    """The marks of checkpoints that are not measured because they have weights of another one."""
    problems: Sequence[str]
    """Why some of what was asked for cannot be listed."""
    notes: Sequence[str]
    """What is not as its description says, or wrong with its files."""


@dataclass(frozen=True)
class Sweep:
    """The outcome of a sweep."""

    store: Store
    runs: tuple[str, ...]
    """The runs that were swept."""
    measured: tuple[str, ...] = ()
    """The checkpoints measured by this call, each as "RUN REVISION"."""
    failures: tuple[str, ...] = ()
    """What is not measured, each as "RUN REVISION: REASON"."""
    not_uploaded: str | None = None
    """Why some measurements are not in a remote store yet, and what uploads them; None if all are.
    """

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows of the swept runs, those of failures with their reasons included."""
        import pandas as pd

        frames = [self.store.to_pandas(run) for run in self.runs if run in self.store.runs()]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def sweep(
    source: str | Path | Loads | None = None,
    *,
    store: str | Path | None = None,
    quiet: bool = False,
    **options: Any,
) -> Sweep:
    """Measure checkpoints one after another into a store; what it has already is not measured
    again.

    >>> repdyn.sweep("EleutherAI/pythia-70m", revisions="log", store="sweeps")  # doctest: +SKIP
    >>> repdyn.sweep("runs/quickstart/TIME", metrics=["two_nn"])  # doctest: +SKIP
    >>> steps = {step: f"checkpoints/{step}.ckpt" for step in (100, 200)}
    >>> loads = [(step, lambda path=path: Mine.load_from_checkpoint(path)) for step,
    ...     path in steps.items()]
    >>> repdyn.sweep(loads, name="mine", probe=probe, store="sweeps").to_pandas()  # doctest: +SKIP

    Args:
        source: a run's folder, a folder of ``save_pretrained`` or ``.ckpt`` checkpoints, a GGUF
            file, a hub repository, or pairs of a step and a function that returns the model of that
            step. None where ``suite`` is given.
        store: folder or URL; by default ``sweep`` beside local checkpoints, or ``sweeps``.
        quiet: show no progress.
        **options: fields of :class:`repdyn.checkpoints.options.SweepOptions`, the options of
            ``repdyn sweep``: suite, revisions, name, like, probe, text, encoding, tokenizer,
            sequence_length, max_vectors, design, metrics, layers, device, dtype, max_disk, timeout,
            retry_failed, engine and others.

    Returns:
        The store, what was measured, and why some checkpoints were not.

    Raises:
        ValueError: the options select nothing, something that does not exist, or contradict each
            other.
        SweepStoppedError: no connection, or no space on the disk; the same call goes on from there.
    """
    if isinstance(source, str | Path) and str(source).startswith("~"):
        source = Path(source).expanduser()
    if isinstance(options.get("suite"), str):
        options["suite"] = [options["suite"]]
    chosen = options_of(SweepOptions, sweep, source=source, store=store, **options)
    return measure_prepared(prepare(chosen), quiet=quiet)


def prepare(options: SweepOptions, *, to_plan: bool = False) -> Prepared:
    """Find what the options of a sweep select, and what is wrong with it.

    ``to_plan`` says that nothing is to be measured: no device is needed, nor a network.
    """
    check_contradictions(options)
    # a cluster has devices of its own
    if not to_plan and (options.engine == "serial" or options.device == "auto"):
        options = replace(options, device=available_device(options.device))
    has_own_metrics = bool(options.metrics)
    options = completed(options)
    hub, notes, foreign = Hub(timeout_seconds=options.timeout), [], {}
    try:
        selections, problems = find_selections(options, hub)
    except NoConnectionError as error:
        if not to_plan:
            raise
        hub.offline = True
        try:
            selections, problems = find_selections(options, hub)
        except SweepStoppedError:  # the cache has nothing of it
            raise error from None
        notes.append(f"{error}; this plan is of what the hub's cache has")
    options = _with_default_metrics(options, selections, has_own_metrics)
    notes += [note for selection in selections for note in selection.notes()]
    notes += _notes_on_names(options)
    # the files of local checkpoints are not compared
    for history in [] if options.is_local else list_histories(selections, hub):
        findings = audit(history)
        foreign |= foreign_targets(history, findings)
        notes += fault_lines(history, findings)
    chosen = select_shard(selections, *options.shard) if options.shard else selections
    return Prepared(options, hub, store_at(options.place()), chosen, foreign, problems, notes)


def _with_default_metrics(
    options: SweepOptions, selections: Sequence[Selection], has_own_metrics: bool
) -> SweepOptions:
    """Return options with what is measured of finished models, where all are such and neither the
    user nor a live run names metrics.
    """
    if has_own_metrics or options.metrics != DEFAULT_METRICS:
        return options
    stages = {target.stage for selection in selections for target in selection.targets}
    return replace(options, metrics=OF_FINISHED) if stages == {FINISHED} else options


def completed(options: SweepOptions) -> SweepOptions:
    """Return options with what the rows of a live run, or else a default, say about what was not
    given.

    The live run is the named one, or the one whose checkpoints these are.
    """
    if options.like is not None:
        options = _like(options, find_store(options.like))
    elif isinstance(options.source, str | Path):
        source = Path(options.source).absolute()
        folder = (source.parent if source.name in _FOLDERS_OF_RUNS else source) / "repdyn"
        options = _like(options, store_at(folder)) if folder.is_dir() else options
    metrics = options.metrics or DEFAULT_METRICS
    # the probe of a run or file may have other classes
    has_own_probe = options.probe is not None or options.is_local
    resolve(metrics, subsets=None if has_own_probe else (*SUBSETS, *class_names(options.classes)))
    # One rule for a folder and the hub, so that a checkpoint has the same values from both. Weights
    # are often stored in half precision to reduce their size; rounding the states as well would
    # affect the estimated dimension. A model that a function returns is measured as it is.
    is_path = options.source is None or isinstance(options.source, str | Path)
    default = "float32" if is_path and options.load is None else "auto"
    return replace(options, metrics=metrics, dtype=options.dtype or default)


def _like(options: SweepOptions, store: Store) -> SweepOptions:
    rows = [
        row
        for run in store.runs()
        for row in store.distinct(run, ("attention", "dtype", "metric", "subset"))
    ]

    def common(column: str) -> str | None:
        values = {row[column] for row in rows}
        return values.pop() if len(values) == 1 else None

    dtype, probe = options.dtype or common("dtype"), options.probe
    metrics = [
        f"{row['metric']}@{row['subset']}" for row in rows if base_name(row["metric"]) in METRICS
    ]
    if not options.metrics and (
        own := sorted({base_name(row["metric"]) for row in rows} - {*METRICS})
    ):
        log.warning(
            "not measured, as nothing registers them here: %s; see repdyn.register_metric",
            ", ".join(own),
        )
    if probe is None and not options.has_probe_text:
        stored = sorted((store.path / "probes").glob("*.safetensors"))
        if len(stored) > 1:
            raise ValueError(
                f"expected one probe in {stored[0].parent}, got {len(stored)}; select one with "
                "--probe FILE"
            )
        probe = next(iter(stored), None)
    return replace(
        options,
        attention=options.attention or common("attention"),
        # where the live run had several, or one that is no option, its checkpoints have their own
        dtype=dtype if dtype in get_args(Dtype) else "auto",
        probe=probe,
        metrics=options.metrics or tuple(dict.fromkeys(metrics)),
    )


def find_selections(options: SweepOptions, hub: Hub) -> tuple[list[Selection], list[str]]:
    """Return what complete options select, and why the rest cannot be listed."""
    source = options.source
    if options.tokenizer:
        _is_local(options.tokenizer)
    if options.suite:
        return _of_models(find_models(options.suite), options, hub)
    if not isinstance(source, str | Path):
        return [_of_loads(options)], []
    if _is_local(source):
        return [_of_folder(Path(source), options)], []
    try:
        return _of_models([_model_of_repository(str(source), options, hub)], options, hub)
    except CheckpointError as error:
        return [], [f"{source}: {error}"]
    except NoConnectionError as error:
        hint = did_you_mean(str(source), [path.name for path in Path().glob("[!.]*/")])
        raise NoConnectionError(
            hub.endpoint, f"and there is no local folder {str(source)!r}{hint}"
        ) from error


def check_contradictions(options: SweepOptions) -> None:
    """Raise ValueError for options, as they were given, that exclude each other."""
    if bool(options.source) == bool(options.suite):
        got = "both a source and a suite" if options.source else "neither"
        raise ValueError(
            f"expected a folder, a hub repository or --suite NAME, got {got}; see --help, or "
            "--list-suites"
        )
    if options.pattern and options.suite:
        raise ValueError(
            "expected --pattern with a folder or a hub repository, since a suite defines its own; "
            "omit it"
        )
    if options.encoding and not (options.text and Path(options.text).expanduser().is_file()):
        raise ValueError(
            f"expected --encoding with --text FILE, got {options.text or 'no file'}; leave it out"
        )
    if options.load and not (isinstance(options.source, str | Path) and options.is_local):
        raise ValueError(
            f"expected --load with a local folder or file, got {options.source or 'a suite'}; "
            "leave it out"
        )
    if options.load and options.engine == "ray":
        raise ValueError(
            "expected the engine serial with --load, got ray, whose workers may lack the module; "
            "leave out the engine"
        )
    if options.probe and options.has_probe_text:
        raise ValueError(
            "expected either --probe or the options for making a probe (--text, --encoding, "
            "--tokenizer, --sequence-length, --max-vectors, --design, --classes), got both; omit "
            "one"
        )


def _is_local(source: object) -> bool:
    """Return whether a source is here rather than on the hub; raise ValueError if it can be
    neither.
    """
    if not isinstance(source, str | Path) or is_here(source):
        return True
    first, _, rest = str(source).partition("/")
    if (
        isinstance(source, Path)
        or not _REPOSITORY.fullmatch(source)
        or (rest and Path(first).is_dir() and not Path(source).is_dir())
    ):
        raise ValueError(
            f"expected an existing folder or a hub repository, got {str(source)!r}: there is no "
            "such folder"
        )
    return False


def _notes_on_names(options: SweepOptions) -> list[str]:
    """Say that a folder is measured where its path is also the name of a published model."""
    source = options.source
    if not (isinstance(source, str) and options.is_local and models_of(source)):
        return []
    return [
        f"the folder {Path(source).absolute()} is measured, not the hub repository {source}; for "
        "that, run the command in another folder"
    ]


def _of_models(
    models: Sequence[PublishedModel], options: SweepOptions, hub: Hub
) -> tuple[list[Selection], list[str]]:
    if options.name and len(models) > 1:
        raise ValueError(f"expected one model with --name, got {len(models)}; omit --name")
    named = [
        replace(
            model, run=options.name or model.run, tokenizer=options.tokenizer or model.tokenizer
        )
        for model in models
    ]
    runs = [model.run for model in named]
    if twice := next((run for run in runs if runs.count(run) > 1), None):
        raise ValueError(
            f"expected a different run for each model, got {twice!r} twice; sweep them into two "
            "stores"
        )
    return select_models(named, hub, options.revisions)


def make_probe(options: SweepOptions, hub: Hub, selection: Selection) -> Probe:
    """Return the probe that was given, or one made for the model of a selection or the checkpoints
    in a folder.
    """
    from repdyn.probe import Probe  # with torch and transformers, which plans do without

    if options.probe is not None:
        return Probe.load(options.probe) if isinstance(options.probe, str | Path) else options.probe
    from repdyn.checkpoints.probes import hub_probe, local_probe

    if selection.model is None:
        return local_probe(Path(options.source), selection.targets, options, hub)
    return hub_probe(selection, options, hub)


def _model_of_repository(name: str, options: SweepOptions, hub: Hub) -> PublishedModel:
    """Return the model of a repository: from a suite, by the steps in its revisions, or as a
    finished model.
    """
    known = models_of(name)
    if len(known) == 1 and not options.pattern:
        # as with --suite, so that a run is always read in the same way
        return known[0]
    if known and not options.pattern:
        raise ValueError(
            f"expected one training run in {name}, got several; choose among them with --suite "
            f"{' '.join(model.name for model in known)}, or select revisions with --pattern"
        )
    pattern = options.pattern or DEFAULT_PATTERN
    try:
        found, _ = match_revisions(list(hub.refs(name)), pattern)
    except CheckpointError as error:
        if not isinstance(error.__cause__, RepositoryNotFoundError):
            raise
        # most likely a mistyped folder or repository
        raise ValueError(
            f"expected an existing folder or a hub repository, got {name!r}: {error}"
        ) from error
    model = PublishedModel(name=name, suite="", run=name, repository=name, revisions=pattern)
    if found or options.pattern:
        return model
    return replace(
        model, revisions=None, checkpoints=(PublishedCheckpoint(name, 0, stage=FINISHED),)
    )


def _of_folder(folder: Path, options: SweepOptions) -> Selection:
    """Return the checkpoints of a folder, and those of averaged weights, beside the raw ones in a
    file, as a run.
    """
    if options.load is not None:
        load = function_of(options.load)
        selection = find_own_files(folder, options.name, options.pattern)
        chosen = select_revisions(selection.targets, options.revisions)
        loaded = (replace(target, load=partial(load, target.path)) for target in chosen)
        return replace(selection, targets=tuple(loaded))
    found = find_checkpoints(folder, options.name, options.pattern)
    chosen, run = select_revisions(found.targets, options.revisions), f"{found.run} (averaged)"
    averaged = [
        replace(each, run=run, weights_kind="averaged")
        for each in chosen
        if each.weights_kind == "raw"
    ]
    return replace(found, targets=(*chosen, *averaged))


def function_of(name: str) -> Callable[..., Any]:
    """Return the function that "module:function" names, of a module here or installed."""
    module, _, function = name.partition(":")
    if not (module and function):
        raise ValueError(
            f"expected --load module:function, got {name!r}; of mine.py, --load mine:load"
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        loaded = getattr(import_module(module), function)
    except Exception as error:  # whatever the user's module raises
        raise ValueError(
            f"expected a function for --load {name}, got {type(error).__name__}: {error}; the "
            "module must be in this folder or installed"
        ) from error
    if not callable(loaded):
        raise ValueError(
            f"expected a function for --load {name}, got {type(loaded).__name__}; name one that "
            "returns the model of a path"
        )
    return loaded


def _of_loads(options: SweepOptions) -> Selection:
    """Return the checkpoints of pairs of a step and a function that loads the model."""
    if options.probe is None:
        raise ValueError(
            "expected a probe for models that are loaded by a function, got none; give probe="
        )
    if options.engine == "ray":
        raise ValueError(
            "expected folders or repositories with the engine ray, got functions; leave out the "
            "engine"
        )
    run = options.name or "model"
    try:
        loads = [(index(step), load) for step, load in options.source]
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected {_LOADS}, got {options.source!r:.200}: {error}") from error
    if wrong := next(
        (load for _, load in loads if not callable(load) or hasattr(load, "parameters")), None
    ):
        raise ValueError(
            f"expected {_LOADS}, got {type(wrong).__name__} in place of a function; pass lambda: "
            "model"
        )
    require_distinct_steps([(step, f"step{step}") for step, _ in loads], "leave one out")
    targets = [Target(run, step, f"step{step}", path=Path.cwd(), load=load) for step, load in loads]
    return Selection(run, tuple(select_revisions(targets, options.revisions)))


def tasks_of(
    selections: Sequence[Selection], options: SweepOptions, hub: Hub
) -> tuple[list[Task], list[str]]:
    """Return the selected checkpoints with their probes, and why some have no probe."""
    tasks, problems = [], []
    for selection in selections:
        try:
            probe = make_probe(options, hub, selection)
            tasks += [Task(target, probe) for target in selection.targets]
        except CheckpointError as error:
            problems.append(f"{selection.run}: {error}")
    return tasks, problems


def select_shard(selections: Sequence[Selection], part: int, n_parts: int) -> list[Selection]:
    """Return the checkpoints of a shard, which does not depend on those already measured."""
    numbers = count()
    of_shard = [
        replace(
            selection,
            targets=tuple(
                each for each in selection.targets if next(numbers) % n_parts == part - 1
            ),
        )
        for selection in selections
    ]
    return [selection for selection in of_shard if selection.targets]


def measure_prepared(prepared: Prepared, *, quiet: bool = False) -> Sweep:
    """Measure what the store lacks of what :func:`prepare` found, and wait for its uploads."""
    from repdyn.checkpoints import run  # with torch and transformers, which plans do without

    options, hub, store = prepared.options, prepared.hub, prepared.store
    downloads = run.Downloads(hub, options)
    every_task, without_probe = tasks_of(prepared.selections, options, hub)
    tasks = [task for task in every_task if task.target not in prepared.foreign]
    run.check_comparable(tasks, store, options)
    listed = partition_tasks(tasks, store, options)
    seconds = INTERRUPTED_UPLOAD_SECONDS
    try:
        for task in every_task:
            marks = prepared.foreign.get(task.target, {})
            if marks and marks != task.stored_marks(store, options):
                (name, owner), *_ = marks.items()
                run.store_failure(task, store, options, f"{FOREIGN[name]} {owner}", **marks)
        if listed.done and not quiet:
            print_above_bars(
                f"{len(listed.done)} of {len(tasks)} checkpoints are in {store.location} already"
            )
        # hidden where standard error is no terminal
        bar = tqdm(
            total=len(listed.waiting),
            desc="checkpoints",
            disable=True if quiet else None,
            leave=False,
        )

        if options.engine == "ray":
            from repdyn.checkpoints.ray_engine import sweep_with_ray  # an optional dependency

            outcomes = sweep_with_ray(listed.waiting, store, options, hub)
        else:
            outcomes = run.measure_tasks(
                listed.waiting, store, options, downloads, bar.set_postfix_str
            )
        # remarks of transformers on a model that works, such as kernels that are not installed,
        # look like errors
        with without_reports():
            found = run.collect(outcomes, bar, quiet=quiet)
        seconds = UPLOAD_SECONDS
    finally:
        not_uploaded = store.drain(seconds)
        if not_uploaded is not None and not quiet:
            print_above_bars(not_uploaded)
    failed = [f"{each.task.target}: {each.text}" for each in found if each.state == "failed"]
    problems = [*prepared.problems, *without_probe, *failed]
    problems += [
        f"{task.target}: failed before; --retry-failed retries it" for task in listed.failed_before
    ]
    runs = tuple(
        dict.fromkeys(target.run for each in prepared.selections for target in each.targets)
    )
    measured = tuple(str(each.task.target) for each in found if each.state == "measured")
    return Sweep(store, runs, measured, tuple(problems), not_uploaded)


def make_plans(prepared: Prepared) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what a sweep would do for each model, as docs/cli.md describes it, and why some cannot
    be measured.
    """
    options, store, foreign = prepared.options, prepared.store, prepared.foreign
    plans, problems = [], [*prepared.problems]
    for selection in prepared.selections:
        targets = selection.targets
        listed, waiting = (
            TaskList([], [], []),
            [target for target in targets if target not in foreign],
        )
        # where nothing is done, the probe is not needed, which may require a download
        if store.folder_of(selection.run).exists():
            try:
                tasks, without_probe = tasks_of([selection], options, prepared.hub)
            except SweepStoppedError as error:  # no text to make the probe of, say
                tasks, without_probe = [], [f"{selection.run}: {error}; it is not planned"]
            problems += without_probe
            listed = partition_tasks(
                [task for task in tasks if task.target not in foreign], store, options
            )
            waiting = [task.target for task in listed.waiting]
        found = map_concurrently(lambda target: _download_bytes(target, prepared.hub), waiting)
        sizes = [size for size in found if isinstance(size, int)]
        owners = {
            mark: {
                target.revision: foreign[target][mark]
                for target in targets
                if mark in foreign.get(target, {})
            }
            for mark in FOREIGN
        }
        plans.append(
            {
                "model": selection.run,
                "design": options.design,
                "checkpoints": [target.revision for target in targets],
                "waiting": [target.revision for target in waiting],
                "done": len(listed.done),
                "failed_before": len(listed.failed_before),
                "download_bytes": sum(sizes),
                "largest_bytes": max(sizes, default=0),
                "minutes": _minutes(store, listed, options),
                **owners,
                "would_fail": [redacted(reason) for reason in found if isinstance(reason, str)],
            }
        )
    return plans, problems


def _minutes(store: Store, listed: TaskList, options: SweepOptions) -> float | None:
    """Return how long the waiting ones take at the pace of the one measured last, without their
    downloads.
    """
    for key in (task.key(options) for task in reversed(listed.done)):
        rows = store.rows_of(key)
        parts = [
            row.value
            for row in rows
            if row.metric in {"seconds/load", "seconds/forward", "seconds/kernels"}
        ]
        if parts:
            return sum(parts) * len(listed.waiting) / 60
    return None


def _download_bytes(target: Target, hub: Hub) -> int | str:
    """Return how much is downloaded for a checkpoint, or why it cannot be measured."""
    try:
        files = target.remote_files(hub)
    except CheckpointError as error:
        return f"{target}: {error}"
    is_here = (
        target.path is not None or hub.cached(target.repository, target.commit, files) is not None
    )
    return 0 if is_here else total_bytes(files)

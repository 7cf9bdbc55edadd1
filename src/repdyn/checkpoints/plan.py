"""What a sweep has to do: its options become checkpoints with their probes, of which a store has some already."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from huggingface_hub.errors import RepositoryNotFoundError

from repdyn.checkpoints.audit import ForeignWeights
from repdyn.checkpoints.errors import CheckpointError, NoConnectionError
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.local import checkpoints_folder, find_checkpoints, ignored_entries, with_averaged
from repdyn.checkpoints.options import SweepOptions
from repdyn.checkpoints.suites import PublishedCheckpoint, PublishedModel, find_models, models_of
from repdyn.checkpoints.targets import (
    DEFAULT_PATTERN,
    Selection,
    Target,
    match_revisions,
    select_models,
    select_revisions,
)
from repdyn.metrics import DEFAULT_METRICS, METRICS, resolve
from repdyn.probe.design import SUBSETS, class_names
from repdyn.store import MeasurementKey, Store, find_store, open_store
from repdyn.store.schema import FINISHED
from repdyn.utils.arguments import Dtype
from repdyn.utils.printing import shorten_list

if TYPE_CHECKING:
    from repdyn.measurement.measure import MeasurementOptions
    from repdyn.probe import Probe

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
"""What may be the name of a hub repository."""
_FOLDERS_OF_RUNS = {"hf_checkpoints", "checkpoints"}
"""Names of folders in a run's folder that hold its checkpoints."""


@dataclass(frozen=True)
class Source:
    """The checkpoints of a model, and the probe on which they are measured, which is made on first access."""

    selection: Selection
    make_probe: Callable[[], Probe]

    @cached_property
    def probe(self) -> Probe:
        return self.make_probe()


@dataclass(frozen=True)
class Task:
    """A checkpoint and the probe it is measured on."""

    target: Target
    probe: Probe

    def key(self, options: SweepOptions) -> MeasurementKey:
        """Return the key of the measurement in a store."""
        identity = self.measurement(options).identity(self.probe, options.dtype or "auto")
        return self.target.key(self.probe.hash, identity)

    def measurement(self, options: SweepOptions) -> MeasurementOptions:
        """Return what is measured, and how."""
        from repdyn.measurement.measure import MeasurementOptions  # with torch, which plans do without

        return MeasurementOptions(
            metrics=options.metrics,
            layers=options.layers,
            probe_loss=self.measures_loss(options),
            token_positions=options.token_positions,
            tokens_per_forward=options.tokens_per_forward,
        )

    def measures_loss(self, options: SweepOptions) -> bool:
        """Return whether the loss on the probe is measured, which a probe of inputs other than tokens has not."""
        return options.loss is not False and self.probe.inputs is None

    def is_measured(self, store: Store, options: SweepOptions) -> bool:
        """Return whether a store has the measurement."""
        without_loss = [self.key(replace(options, loss=False))] if options.loss is None else []
        return any(key in store for key in (self.key(options), *without_loss))

    def stored_foreign(self, store: Store, options: SweepOptions) -> ForeignWeights | None:
        """Return the checkpoint whose weights or files this one is stored to have; None if it has its own."""
        key = self.key(options).failed
        if key not in store:
            return None
        row = store.read(key)[0]
        owner = row.same_as or row.mixed_with
        return ForeignWeights(owner, in_part=row.same_as is None) if owner else None


@dataclass(frozen=True)
class TaskList:
    """The tasks of a sweep, grouped by their state in the store."""

    waiting: list[Task]
    done: list[Task]
    failed_before: list[Task]
    """Only retried on request."""


def partition_tasks(tasks: Iterable[Task], store: Store, options: SweepOptions) -> TaskList:
    """Group tasks into those to measure, those done, and those that failed in an earlier sweep."""
    found = TaskList([], [], [])
    for task in tasks:
        if task.is_measured(store, options):
            found.done.append(task)
        elif options.retry_failed or task.key(options).failed not in store or task.stored_foreign(store, options):
            found.waiting.append(task)
        else:
            found.failed_before.append(task)
    return found


def completed(options: SweepOptions) -> SweepOptions:
    """Return options with what the rows of a live run, or else a default, say about what was not given."""
    if (live := _live_store(options)) is not None:
        options = _like(options, live)
    metrics, is_local = options.metrics or DEFAULT_METRICS, options.is_local
    # the probe of a run or file may have other classes
    has_own_probe = options.probe is not None or is_local
    resolve(metrics, subsets=None if has_own_probe else (*SUBSETS, *class_names(options.classes)))
    # Live runs are measured in the precision of their weights. Published weights are often stored in half precision
    # to reduce their size; rounding the states as well would affect the estimated dimension.
    return replace(options, metrics=metrics, dtype=options.dtype or ("auto" if is_local else "float32"))


def _live_store(options: SweepOptions) -> Store | None:
    """Return the store of the live run that the checkpoints are measured like: the named one, or that of their run."""
    if options.like is not None:
        return find_store(options.like)
    if not isinstance(options.source, str | Path):
        return None
    source = Path(options.source).absolute()
    folder = (source.parent if source.name in _FOLDERS_OF_RUNS else source) / "repdyn"
    return open_store(folder) if folder.is_dir() else None


def _like(options: SweepOptions, store: Store) -> SweepOptions:
    rows = [row for run in store.runs() for row in store.distinct(run, ("attention", "dtype", "metric", "subset"))]

    def common(column: str) -> str | None:
        values = {row[column] for row in rows}
        return values.pop() if len(values) == 1 else None

    dtype, probe = options.dtype or common("dtype"), options.probe
    # other metrics are one's own
    metrics = [f"{row['metric']}@{row['subset']}" for row in rows if row["metric"].partition("[")[0] in METRICS]
    if probe is None and not options.has_probe_text:
        stored = sorted((store.path / "probes").glob("*.safetensors"))
        if len(stored) > 1:
            raise ValueError(
                f"expected one probe in {stored[0].parent}, got {len(stored)}; select one with --probe FILE"
            )
        probe = next(iter(stored), None)
    return replace(
        options,
        attention=options.attention or common("attention"),
        dtype=dtype if dtype in get_args(Dtype) else None,
        probe=probe,
        metrics=options.metrics or tuple(dict.fromkeys(metrics)),
    )


def find_sources(
    options: SweepOptions, hub: Hub, models: Sequence[PublishedModel] | None = None
) -> tuple[list[Source], list[str]]:
    """Return the sources that complete options select, or that of other models, and why others cannot be listed."""
    source = options.source
    if options.tokenizer:
        _is_local(options.tokenizer)
    if models is None and options.suite:
        models = find_models(options.suite)
    if models is not None:
        return _sources_of_models(models, options, hub)
    if not isinstance(source, str | Path):
        return [_source_of_loads(options, hub)], []
    if _is_local(source):
        return _local_sources(Path(source), options, hub), []
    try:
        return _sources_of_models([_model_of_repository(str(source), options, hub)], options, hub)
    except CheckpointError as error:
        return [], [f"{source}: {error}"]
    except NoConnectionError as error:
        raise NoConnectionError(hub.endpoint, f"and there is no local folder {str(source)!r}") from error


def check_contradictions(options: SweepOptions) -> None:
    """Raise ValueError for options, as they were given, that exclude each other."""
    if bool(options.source) == bool(options.suite):
        got = "both a source and a suite" if options.source else "neither"
        raise ValueError(
            f"expected a folder, a hub repository or --suite NAME, got {got}; see --help, or --list-suites"
        )
    if options.pattern and (options.suite or _is_local(options.source)):
        raise ValueError(
            "expected --pattern with a hub repository only; the pattern of a suite is defined in its file, and local "
            "folders are found by the step in their names"
        )
    if options.probe and options.has_probe_text:
        raise ValueError(
            "expected either --probe or the options for making a probe (--text, --tokenizer, --sequence-length, "
            "--max-vectors, --design, --classes), got both; omit one"
        )


def _is_local(source: object) -> bool:
    """Return whether a source is here rather than on the hub; raise ValueError if it can be neither."""
    if not isinstance(source, str | Path) or Path(source).exists():
        return True
    first, _, rest = str(source).partition("/")
    if isinstance(source, Path) or not _REPOSITORY.fullmatch(source) or (rest and Path(first).is_dir()):
        raise ValueError(
            f"expected an existing folder or a hub repository, got {str(source)!r}: there is no such folder"
        )
    return False


def _sources_of_models(
    models: Sequence[PublishedModel], options: SweepOptions, hub: Hub
) -> tuple[list[Source], list[str]]:
    if options.name and len(models) > 1:
        raise ValueError(f"expected one model with --name, got {len(models)}; omit --name")
    named = [
        replace(model, run=options.name or model.run, tokenizer=options.tokenizer or model.tokenizer)
        for model in models
    ]
    runs = [model.run for model in named]
    if twice := next((run for run in runs if runs.count(run) > 1), None):
        raise ValueError(f"expected a different run for each model, got {twice!r} twice; sweep them into two stores")
    found, problems = select_models(named, hub, options.revisions)
    return [Source(each, partial(_probe_of, options, hub, each, model)) for model, each in found], problems


def _probe_of(options: SweepOptions, hub: Hub, selection: Selection, source: PublishedModel | Path) -> Probe:
    """Return the probe that was given, or one that is made for a published model or for the checkpoints in a folder."""
    from repdyn.probe import Probe  # with torch and transformers, which plans do without

    if options.probe is not None:
        return Probe.load(options.probe) if isinstance(options.probe, str | Path) else options.probe
    from repdyn.checkpoints.probes import hub_probe, local_probe

    if isinstance(source, Path):
        return local_probe(source, selection.targets, options, hub)
    return hub_probe(source, selection, options, hub)


def _model_of_repository(name: str, options: SweepOptions, hub: Hub) -> PublishedModel:
    """Return the model of a repository: from a suite, by the steps in its revisions, or as a finished model."""
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
        raise ValueError(f"expected an existing folder or a hub repository, got {name!r}: {error}") from error
    model = PublishedModel(name=name, suite="", run=name, repository=name, revisions=pattern)
    if found or options.pattern:
        return model
    return replace(model, revisions=None, checkpoints=(PublishedCheckpoint(name, 0, stage=FINISHED),))


def _local_sources(folder: Path, options: SweepOptions, hub: Hub) -> list[Source]:
    """Return the checkpoints of a folder, and those of averaged weights in a run of their own."""
    parts = checkpoints_folder(folder).resolve().parts
    run = options.name or "/".join(parts[1:][-2:])
    targets = find_checkpoints(folder, run)
    raw, averaged = with_averaged(select_revisions(targets, options.revisions))
    selection = Selection(run, tuple(raw), unmatched=tuple(ignored_entries(folder, targets)))
    own = Source(selection, partial(_probe_of, options, hub, selection, folder))
    return [own, Source(Selection(averaged[0].run, tuple(averaged)), lambda: own.probe)] if averaged else [own]


def _source_of_loads(options: SweepOptions, hub: Hub) -> Source:
    """Return the source of pairs of a step and a function that loads the model."""
    if options.probe is None:
        raise ValueError("expected a probe for models that are loaded by a function, got none; give probe=")
    if options.engine == "ray":
        raise ValueError("expected folders or repositories with the engine ray, got functions; leave out the engine")
    run = options.name or "model"
    targets = [Target(run, step, f"step{step}", path=Path.cwd(), load=load) for step, load in options.source]
    selection = Selection(run, tuple(select_revisions(targets, options.revisions)))
    return Source(selection, partial(_probe_of, options, hub, selection, Path.cwd()))


def tasks_of(sources: Sequence[Source]) -> tuple[list[Task], list[str]]:
    """Return the checkpoints of sources with their probes, and why some sources have no probe."""
    tasks, problems = [], []
    for source in sources:
        try:
            tasks += [Task(target, source.probe) for target in source.selection.targets]
        except CheckpointError as error:
            problems.append(f"{source.selection.run}: {error}")
    return tasks, problems


def select_shard(sources: Sequence[Source], part: int, n_parts: int) -> list[Source]:
    """Return the sources of a shard, which does not depend on the checkpoints already measured."""
    numbers, found = count(), []
    for source in sources:
        targets = tuple(each for each in source.selection.targets if next(numbers) % n_parts == part - 1)
        if targets:
            found.append(replace(source, selection=replace(source.selection, targets=targets)))
    return found


def selection_notes(selection: Selection) -> list[str]:
    """Describe how a repository differs from its description."""
    notes = {
        "not verified, since no page of the publisher states it": filter(None, [selection.unverified]),
        "ignored, because a newer commit has the same step": selection.superseded,
        "described, but not on the hub": map(str, selection.missing_steps),
        "ignored, because they do not match the pattern, have no step in their names, or no model": selection.unmatched,
    }
    listed = {what: shorten_list([*names]) for what, names in notes.items()}
    return [f"{selection.run}: {what}: {which}" for what, which in listed.items() if which]

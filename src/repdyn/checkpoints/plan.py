"""What a sweep has to do: its options become checkpoints with their probes, of which a store has some already."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import RepositoryNotFoundError

from repdyn.checkpoints.audit import ForeignWeights
from repdyn.checkpoints.errors import CheckpointError, NoConnectionError
from repdyn.checkpoints.hub import Hub, map_concurrently, total_bytes
from repdyn.checkpoints.local import checkpoints_folder, find_checkpoints, ignored_models, with_averaged
from repdyn.checkpoints.options import Shard, SweepOptions
from repdyn.checkpoints.revisions import DEFAULT_PATTERN, Revision, match_revisions, select_revisions
from repdyn.checkpoints.suites import PublishedCheckpoint, PublishedModel, find_models, shipped_suites
from repdyn.checkpoints.targets import Selection, Target, select_targets
from repdyn.probe.design import class_names
from repdyn.store import MeasurementKey, Store, open_store
from repdyn.store.schema import FINISHED
from repdyn.text.source import DEFAULT_TEXT
from repdyn.utils.printing import shorten_list
from repdyn.utils.redaction import redacted

if TYPE_CHECKING:
    from repdyn.checkpoints.probes import ProbeText
    from repdyn.probe import Probe

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
"""What may be the name of a hub repository."""


@dataclass(frozen=True)
class Source:
    """The checkpoints of a model, and the probe on which they are measured, which is made on first access."""

    selection: Selection
    make_probe: Callable[[], Probe]
    attention: str | None = None
    """Implementation of the attention of the live run, which the checkpoints are measured with; None if unknown."""

    @cached_property
    def probe(self) -> Probe:
        return self.make_probe()


@dataclass(frozen=True)
class Task:
    """A checkpoint and the probe it is measured on."""

    target: Target
    probe: Probe
    attention: str | None = None

    def key(self, options: SweepOptions) -> MeasurementKey:
        """Return the key of the measurement in a store."""
        from repdyn.measurement.options import metric_set  # with torch, which plans do without

        metrics = metric_set(
            options.metrics,
            options.layers,
            self.probe,
            options.dtype or "auto",
            token_positions=options.token_positions,
            probe_loss=self.measures_loss(options),
        )
        return self.target.key(self.probe.hash, metrics)

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


def partition_tasks(
    tasks: Iterable[Task], store: Store, options: SweepOptions, *, retry_failed: bool = False
) -> TaskList:
    """Group tasks into those to measure, those done, and those that failed in an earlier sweep."""
    task_list = TaskList([], [], [])
    for task in tasks:
        if task.is_measured(store, options):
            task_list.done.append(task)
        elif task.key(options).failed in store and not retry_failed and task.stored_foreign(store, options) is None:
            task_list.failed_before.append(task)
        else:
            task_list.waiting.append(task)
    return task_list


def find_sources(
    options: SweepOptions, hub: Hub, models: Sequence[PublishedModel] | None = None
) -> tuple[list[Source], list[str]]:
    """Return the sources that the options of a sweep select.

    Args:
        options: resolved.
        hub: lists what is not on this machine.
        models: what to measure in place of the source or suites that the options name.

    Returns:
        The sources, and the reasons why others cannot be listed.

    Raises:
        ValueError: the options select nothing, something that does not exist, or contradict each other.
        SweepStoppedError: no connection.
    """
    if models is not None:
        return _sources_of_models(models, options, hub)
    if bool(options.source) == bool(options.suite):
        got = "both a source and a suite" if options.source else "neither"
        raise ValueError(
            f"expected a folder, a hub repository or --suite NAME, got {got}; see --help, or --list-suites"
        )
    is_local = bool(options.source) and _is_local(options.source)
    if options.pattern and (options.suite or is_local):
        raise ValueError(
            "expected --pattern with a hub repository only; the pattern of a suite is defined in its file, and local "
            "folders are found by the step in their names"
        )
    if options.probe and options.has_probe_text:
        raise ValueError(
            "expected either --probe or the options for making a probe (--text, --tokenizer, --sequence-length, "
            "--max-vectors, --design, --classes), got both; omit one"
        )
    if options.tokenizer:
        _is_local(options.tokenizer)
    if options.suite:
        return _sources_of_models(find_models(options.suite), options, hub)
    if not isinstance(options.source, str | Path):
        return [_source_of_loads(options)], []
    if is_local:
        return _local_sources(Path(options.source), options, hub), []
    try:
        model = _model_of_repository(str(options.source), options, hub)
    except CheckpointError as error:
        return [], [f"{options.source}: {error}"]
    except NoConnectionError as error:
        raise NoConnectionError(hub.endpoint, f"and there is no local folder {str(options.source)!r}") from error
    return _sources_of_models([model], options, hub)


def _is_local(source: object) -> bool:
    """Return whether a source is on this machine rather than a hub repository.

    Raises:
        ValueError: it is missing here, and can be no repository, or its first folder is here.
    """
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
    _check_distinct_runs(models, options.name)
    found, problems, invalid = [], [], []
    for model in models:
        described = replace(model, run=options.name or model.run, tokenizer=options.tokenizer or model.tokenizer)
        try:
            selection = select_targets(described, hub, options.revisions)
        except CheckpointError as error:
            problems.append(f"{model.name}: {error}")
        except ValueError as error:
            invalid.append((model, error))
        else:
            found.append(Source(selection, _probe_maker(described, selection, options, hub)))
    if invalid and not found:
        raise invalid[0][1]
    # options that are invalid for some models only, such as a step that one lacks, do not stop the others
    return found, [*problems, *(f"{model.name}: {error}" for model, error in invalid)]


def _check_distinct_runs(models: Sequence[PublishedModel], name: str | None) -> None:
    if name and len(models) > 1:
        raise ValueError(f"expected one model with --name, got {len(models)}; omit --name")
    by_run: dict[str, PublishedModel] = {}
    for model in models:
        other = by_run.setdefault(model.run, model)
        if other is not model:
            raise ValueError(
                f"expected a different run for each model, got {model.run!r} for {other.name} of {other.suite} and for "
                f"{model.name} of {model.suite}; sweep them separately into two stores"
            )


def _probe_maker(model: PublishedModel, selection: Selection, options: SweepOptions, hub: Hub) -> Callable[[], Probe]:
    def make() -> Probe:
        # with torch and transformers, which plans do without
        from repdyn.checkpoints.probes import hub_probe

        if options.probe is not None:
            return _given_probe(options)
        return hub_probe(
            model,
            selection,
            _probe_text(options),
            hub,
            tokenizer=Path(options.tokenizer) if options.tokenizer and _is_local(options.tokenizer) else None,
            trust_remote_code=options.trust_remote_code,
        )

    return make


def _model_of_repository(name: str, options: SweepOptions, hub: Hub) -> PublishedModel:
    """Return the model of a repository: from a suite, by the steps in its revisions, or as a finished model."""
    known = [model for suite in shipped_suites().values() for model in suite.models if model.repository == name]
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
    return replace(model, revisions=None, checkpoints=(PublishedCheckpoint(name, "main", "", 0, None, FINISHED),))


def _local_sources(folder: Path, options: SweepOptions, hub: Hub) -> list[Source]:
    """Return the checkpoints of a folder, and those of averaged weights in a run of their own."""
    parts = checkpoints_folder(folder).resolve().parts
    run = options.name or "/".join(parts[1:][-2:])
    targets = find_checkpoints(folder, run)
    by_step = {target.step: target for target in targets}
    revisions = [Revision(target.revision, target.step, target.tokens_seen, target.stage) for target in targets]
    selected = [by_step[revision.step] for revision in select_revisions(revisions, options.revisions)]
    raw, averaged = with_averaged(selected)
    attention = _live_attention(folder)
    unmatched = tuple(ignored_models(folder, targets))

    def probe() -> Probe:
        return _local_probe(folder, selected, options, hub)

    found = [Source(Selection(run, tuple(raw), unmatched=unmatched), probe, attention)]
    if averaged:
        found.append(Source(Selection(averaged[0].run, tuple(averaged)), lambda: found[0].probe, attention))
    return found


def _live_attention(folder: Path) -> str | None:
    """Return the implementation of the attention that a run was measured with live, where its folder has its store."""
    if not (folder / "repdyn").is_dir():
        return None
    store = open_store(folder / "repdyn")
    found = {row["attention"] for run in store.runs() for row in store.distinct(run, ("attention",))} - {None}
    return found.pop() if len(found) == 1 else None


def _source_of_loads(options: SweepOptions) -> Source:
    """Return the source of pairs of a step and a function that loads the model."""
    if options.probe is None:
        raise ValueError("expected a probe for models that are loaded by a function, got none; give probe=")
    if options.engine == "ray":
        raise ValueError("expected folders or repositories with the engine ray, got functions; leave out the engine")
    run = options.name or "model"
    by_step = {
        step: Target(run, step, f"step{step}", path=Path.cwd(), load=load)
        for step, load in options.source  # pyright: ignore[reportGeneralTypeIssues,reportOptionalIterable]
    }
    chosen = select_revisions([Revision(each.revision, each.step) for each in by_step.values()], options.revisions)
    targets = tuple(by_step[revision.step] for revision in chosen)
    return Source(Selection(run, targets), lambda: _given_probe(options))


def _given_probe(options: SweepOptions) -> Probe:
    from repdyn.probe import Probe

    if isinstance(options.probe, Probe):
        return options.probe
    return Probe.load(options.probe)  # pyright: ignore[reportArgumentType]


def _local_probe(folder: Path, targets: Sequence[Target], options: SweepOptions, hub: Hub) -> Probe:
    """Return the given probe, the one of the live run, or one made of text."""
    from repdyn.checkpoints.probes import local_probe
    from repdyn.probe import Probe

    if options.probe is not None:
        return _given_probe(options)
    stored = sorted((folder / "repdyn" / "probes").glob("*.safetensors"))
    if len(stored) > 1 and not options.has_probe_text:
        raise ValueError(f"expected one probe in {stored[0].parent}, got {len(stored)}; select one with --probe FILE")
    if stored and not options.has_probe_text:
        return Probe.load(stored[0])
    return local_probe(
        folder,
        targets,
        _probe_text(options),
        hub,
        tokenizer=options.tokenizer,
        trust_remote_code=options.trust_remote_code,
    )


def _probe_text(options: SweepOptions) -> ProbeText:
    from repdyn.checkpoints.probes import ProbeText

    design, max_vectors = options.sampling
    text = options.text or DEFAULT_TEXT
    return ProbeText(text, options.sequence_length, max_vectors, class_names(options.classes), design)


def tasks_of(sources: Sequence[Source]) -> tuple[list[Task], list[str]]:
    """Return the checkpoints of sources with their probes, and why some sources have no probe."""
    tasks, problems = [], []
    for source in sources:
        try:
            tasks += [Task(target, source.probe, source.attention) for target in source.selection.targets]
        except CheckpointError as error:
            problems.append(f"{source.selection.run}: {error}")
    return tasks, problems


def select_shard(sources: Sequence[Source], shard: Shard) -> list[Source]:
    """Return the sources of a shard, which does not depend on the checkpoints already measured."""
    pairs = [(source, target) for source in sources for target in source.selection.targets]
    selected = pairs[shard.index - 1 :: shard.count]
    parts = [(source, tuple(target for owner, target in selected if owner is source)) for source in sources]
    return [
        replace(source, selection=replace(source.selection, targets=targets)) for source, targets in parts if targets
    ]


@dataclass(frozen=True)
class ModelPlan:
    """Checkpoints of one model that a sweep would measure, and those already measured."""

    selection: Selection
    waiting: Sequence[Target]
    n_done: int = 0
    n_failed_before: int = 0
    foreign: Mapping[str, ForeignWeights] = field(default_factory=dict)
    """The checkpoints that are not measured because they have weights of another one."""
    design: str | None = None
    """Name of the sampling design, if one was asked for."""
    seconds: float | None = None
    """What one checkpoint of the run took so far, beside its download; None if none is measured."""
    downloads: Sequence[int] = ()
    """Bytes to download for each waiting checkpoint that can be measured."""
    problems: Sequence[str] = ()
    """Why the others cannot be measured."""

    def owners(self, *, in_part: bool) -> dict[str, str]:
        """Return by checkpoint the one whose weights it has, or whose files alone."""
        return {name: each.owner for name, each in self.foreign.items() if each.in_part == in_part}

    @property
    def minutes(self) -> float | None:
        """Return how long the remaining checkpoints take at the pace of those measured, without their download."""
        return None if self.seconds is None else self.seconds * len(self.waiting) / 60

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as values of JSON."""
        return {
            "model": self.selection.run,
            "design": self.design,
            "checkpoints": [target.revision for target in self.selection.targets],
            "waiting": [target.revision for target in self.waiting],
            "done": self.n_done,
            "failed_before": self.n_failed_before,
            "download_bytes": sum(self.downloads),
            "largest_bytes": max(self.downloads, default=0),
            "minutes": self.minutes,
            "same_as": self.owners(in_part=False),
            "mixed_with": self.owners(in_part=True),
            "would_fail": [redacted(problem) for problem in self.problems],
        }


def make_plans(
    sources: Sequence[Source], foreign: Mapping[Target, ForeignWeights], store: Store, options: SweepOptions, hub: Hub
) -> tuple[list[ModelPlan], list[str]]:
    """Return what a sweep would do for each model, and why some models cannot be measured."""
    plans, problems = [], []
    for source in sources:
        selection = source.selection
        waiting = [target for target in selection.targets if target not in foreign]
        unmeasured = {target.revision: foreign[target] for target in selection.targets if target in foreign}
        plan = ModelPlan(selection, waiting, foreign=unmeasured, design=options.design)
        # where nothing is done, the probe is not needed, which may require a download
        if store.folder_of(selection.run).exists():
            tasks, without_probe = tasks_of([source])
            problems += without_probe
            own = [task for task in tasks if task.target not in foreign]
            listed = partition_tasks(own, store, options, retry_failed=options.retry_failed)
            plan = replace(
                plan,
                waiting=[task.target for task in listed.waiting],
                n_done=len(listed.done),
                n_failed_before=len(listed.failed_before),
                seconds=_seconds(store, listed.done, options),
            )
        plans.append(plan)
    found = [map_concurrently(lambda target: _download_bytes(target, hub), plan.waiting) for plan in plans]
    with_files = [
        replace(
            plan,
            downloads=[size for size in sizes if isinstance(size, int)],
            problems=[reason for reason in sizes if isinstance(reason, str)],
        )
        for plan, sizes in zip(plans, found, strict=True)
    ]
    return with_files, problems


def _seconds(store: Store, done: Sequence[Task], options: SweepOptions) -> float | None:
    """Return the seconds of the last measured checkpoint, without its download."""
    for task in reversed(done):
        key = task.key(options)
        rows = store.read(key) if key in store else []
        parts = [row.value for row in rows if row.metric in {"seconds/load", "seconds/forward", "seconds/kernels"}]
        if parts:
            return sum(parts)
    return None


def _download_bytes(target: Target, hub: Hub) -> int | str:
    """Return how much is downloaded for a checkpoint, or why it cannot be measured."""
    try:
        files = target.remote_files(hub)
    except CheckpointError as error:
        return f"{target}: {error}"
    is_here = target.path is not None or hub.cached(target.repository, target.commit, files) is not None
    return 0 if is_here else total_bytes(files)


def selection_notes(selection: Selection) -> list[str]:
    """Describe how a repository differs from its description."""
    lines = []
    if selection.unverified:
        lines.append(f"{selection.run}: not verified, since no page of the publisher states it: {selection.unverified}")
    if selection.superseded:
        lines.append(
            f"{selection.run}: ignored, because a newer commit has the same step: {shorten_list(selection.superseded)}"
        )
    if selection.missing_steps:
        steps = shorten_list([str(step) for step in selection.missing_steps])
        lines.append(f"{selection.run}: described, but not on the hub: {steps}")
    if selection.unmatched:
        lines.append(
            f"{selection.run}: ignored, because they do not match the pattern or have no step in their names: "
            f"{shorten_list(selection.unmatched)}"
        )
    return lines

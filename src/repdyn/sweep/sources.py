"""Resolve command line options to checkpoints and their probes: suites, a hub repository, or a local folder."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub.errors import RepositoryNotFoundError

from repdyn.hub.client import Hub
from repdyn.hub.errors import CheckpointError
from repdyn.hub.local import checkpoints_folder
from repdyn.hub.revisions import DEFAULT_PATTERN, Revision, match_revisions, select_revisions
from repdyn.probe.class_names import class_names
from repdyn.probe.design import INDEPENDENT, MAX_VECTORS
from repdyn.store.schema import FINISHED
from repdyn.sweep.local import find_checkpoints, ignored_models
from repdyn.sweep.options import Shard
from repdyn.sweep.suites import PublishedCheckpoint, PublishedModel, find_models, shipped_suites
from repdyn.sweep.targets import Selection, Target, select_targets
from repdyn.sweep.tasks import Task
from repdyn.text.source import DEFAULT_TEXT

if TYPE_CHECKING:
    from repdyn.probe import Probe
    from repdyn.sweep.probes import ProbeText


@dataclass(frozen=True)
class Source:
    """The checkpoints of a model, and the probe on which they are measured, which is made on first access."""

    selection: Selection
    make_probe: Callable[[], Probe]

    @cached_property
    def probe(self) -> Probe:
        return self.make_probe()


def find_sources(options: Namespace, hub: Hub) -> tuple[list[Source], list[str]]:
    """Return the sources that the command line options select.

    Returns:
        The sources, and the reasons why others cannot be listed.

    Raises:
        ValueError: the options select nothing, something that does not exist, or contradict each other.
        SweepStoppedError: no connection.
    """
    _validate_options(options)
    if options.suite:
        return sources_of_models(find_models(options.suite), options, hub)
    if _is_local(options.source):
        return [_local_source(Path(options.source), options, hub)], []
    try:
        model = _model_of_repository(options, hub)
    except CheckpointError as error:
        return [], [f"{options.source}: {error}"]
    return sources_of_models([model], options, hub)


def _validate_options(options: Namespace) -> None:
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
    if options.probe and _has_probe_options(options):
        raise ValueError(
            "expected either --probe or the options for making a probe (--text, --tokenizer, --sequence-length, "
            "--max-vectors, --design, --classes), got both; omit one"
        )
    if options.tokenizer:
        _is_local(options.tokenizer)


def _is_local(name: str) -> bool:
    """Return whether a name is a path rather than a hub repository."""
    if Path(name).exists():
        return True
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise ValueError(f"expected an existing folder or a hub repository, got {name!r}")
    return False


def _has_probe_options(options: Namespace) -> bool:
    given = (options.text, options.tokenizer, options.sequence_length, options.max_vectors, options.design)
    return bool(class_names(options.classes)) or any(option is not None for option in given)


def sources_of_models(models: Sequence[PublishedModel], options: Namespace, hub: Hub) -> tuple[list[Source], list[str]]:
    """Return the sources of given models, by the options of a sweep; as :func:`find_sources`."""
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


def _probe_maker(model: PublishedModel, selection: Selection, options: Namespace, hub: Hub) -> Callable[[], Probe]:
    def make() -> Probe:
        # with torch and transformers, which plans do without
        from repdyn.probe import Probe
        from repdyn.sweep.probes import hub_probe

        if options.probe:
            return Probe.load(options.probe)
        return hub_probe(
            model,
            selection,
            _probe_text(options),
            hub,
            tokenizer=Path(options.tokenizer) if options.tokenizer and _is_local(options.tokenizer) else None,
            trust_remote_code=options.trust_remote_code,
        )

    return make


def _model_of_repository(options: Namespace, hub: Hub) -> PublishedModel:
    """Return the model of a repository: from a suite, by the steps in its revisions, or as a finished model."""
    name = options.source
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


def _local_source(folder: Path, options: Namespace, hub: Hub) -> Source:
    parts = checkpoints_folder(folder).resolve().parts
    run = options.name or "/".join(parts[1:][-2:])
    targets = find_checkpoints(folder, run)
    by_step = {target.step: target for target in targets}
    revisions = [Revision(target.revision, target.step, target.tokens_seen, target.stage) for target in targets]
    selected = tuple(by_step[revision.step] for revision in select_revisions(revisions, options.revisions))
    selection = Selection(run, selected, unmatched=tuple(ignored_models(folder, targets)))
    return Source(selection, lambda: _local_probe(folder, selected, options, hub))


def _local_probe(folder: Path, targets: Sequence[Target], options: Namespace, hub: Hub) -> Probe:
    """Return the given probe, the one of the live run, or one made of text."""
    from repdyn.probe import Probe
    from repdyn.sweep.probes import local_probe

    if options.probe:
        return Probe.load(options.probe)
    stored = sorted((folder / "repdyn" / "probes").glob("*.safetensors"))
    if len(stored) > 1 and not _has_probe_options(options):
        raise ValueError(f"expected one probe in {stored[0].parent}, got {len(stored)}; select one with --probe FILE")
    if stored and not _has_probe_options(options):
        return Probe.load(stored[0])
    return local_probe(
        folder,
        targets,
        _probe_text(options),
        hub,
        tokenizer=options.tokenizer,
        trust_remote_code=options.trust_remote_code,
    )


def _probe_text(options: Namespace) -> ProbeText:
    from repdyn.sweep.probes import ProbeText

    design = options.design or INDEPENDENT.name
    return ProbeText(
        options.text or DEFAULT_TEXT,
        options.sequence_length,
        options.max_vectors or MAX_VECTORS,
        class_names(options.classes),
        design,
    )


def tasks_of(sources: Sequence[Source]) -> tuple[list[Task], list[str]]:
    """Return the checkpoints of sources with their probes, and why some sources have no probe."""
    tasks, problems = [], []
    for source in sources:
        try:
            tasks += [Task(target, source.probe) for target in source.selection.targets]
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

"""From what a user names to checkpoints and their probes: suites, one hub repository, or a local folder."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from huggingface_hub.errors import RepositoryNotFoundError

from repdyn.hub.client import Hub
from repdyn.hub.errors import CheckpointError
from repdyn.hub.local import checkpoints_folder
from repdyn.hub.revisions import DEFAULT_PATTERN, Revision, match_revisions, select_revisions
from repdyn.probe import Probe
from repdyn.probe.design import INDEPENDENT, MAX_VECTORS
from repdyn.probe.word_classes import class_names
from repdyn.store.schema import FINISHED
from repdyn.sweep.local import find_checkpoints, left_out
from repdyn.sweep.probes import ProbeText, hub_probe, local_probe
from repdyn.sweep.suites import PublishedCheckpoint, PublishedModel, find_models, shipped_suites
from repdyn.sweep.targets import Selection, Target, select_targets
from repdyn.text.source import DEFAULT_TEXT


@dataclass(frozen=True)
class Source:
    """One model's checkpoints, and the probe they are measured on, made when it is first asked for."""

    selection: Selection
    make_probe: Callable[[], Probe]

    @cached_property
    def probe(self) -> Probe:
        return self.make_probe()


def sources(options: Namespace, hub: Hub) -> tuple[list[Source], list[str]]:
    """Return the sources that the options of the command line name.

    Returns:
        The sources, and why others cannot be listed.

    Raises:
        ValueError: nothing is named, something that does not exist, or two things that exclude one another.
        SweepStoppedError: no connection.
    """
    _validate_options(options)
    if options.suite:
        return _listed(find_models(options.suite), options, hub)
    if _is_here(options.source):
        return [_local(Path(options.source), options, hub)], []
    try:
        model = _repository(options, hub)
    except CheckpointError as error:
        return [], [f"{options.source}: {error}"]
    return _listed([model], options, hub)


def _validate_options(options: Namespace) -> None:
    if bool(options.source) == bool(options.suite):
        got = "both a source and a suite" if options.source else "none of them"
        raise ValueError(
            f"expected a folder, a hub repository or --suite NAME, got {got}; see --help, or --list-suites"
        )
    if options.pattern and (options.suite or _is_here(options.source)):
        raise ValueError(
            "expected --pattern with a hub repository, got it with something else; the pattern of a suite stands in "
            "its file, and local folders are found by the step in their names"
        )
    if options.probe and _asks_for_text(options):
        raise ValueError(
            "expected either --probe or what a probe is made of (--text, --tokenizer, --sequence-length, "
            "--max-vectors, --classes), got both; leave one out"
        )
    if options.tokenizer:
        _is_here(options.tokenizer)


def _is_here(name: str) -> bool:
    """Whether a name is that of a path, rather than of a hub repository."""
    if Path(name).exists():
        return True
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise ValueError(f"expected a folder that exists, or a hub repository, got {name!r}")
    return False


def _asks_for_text(options: Namespace) -> bool:
    asked = (options.text, options.tokenizer, options.sequence_length, options.max_vectors, options.design)
    return bool(class_names(options.classes)) or any(option is not None for option in asked)


def _listed(models: Sequence[PublishedModel], options: Namespace, hub: Hub) -> tuple[list[Source], list[str]]:
    _check_distinct_runs(models, options.name)
    found, problems, mistakes = [], [], []
    for model in models:
        described = replace(model, run=options.name or model.run, tokenizer=options.tokenizer or model.tokenizer)
        try:
            selection = select_targets(described, hub, options.revisions)
        except CheckpointError as error:
            problems.append(f"{model.name}: {error}")
        except ValueError as error:
            mistakes.append((model, error))
        else:
            found.append(Source(selection, _probe_maker(described, selection, options, hub)))
    if mistakes and not found:
        raise mistakes[0][1]
    # what fits some models and not others, a step that one of them lacks, is no reason to measure none
    return found, [*problems, *(f"{model.name}: {error}" for model, error in mistakes)]


def _check_distinct_runs(models: Sequence[PublishedModel], name: str | None) -> None:
    if name and len(models) > 1:
        raise ValueError(f"expected one model with --name, got {len(models)}; leave --name out")
    by_run: dict[str, PublishedModel] = {}
    for model in models:
        other = by_run.setdefault(model.run, model)
        if other is not model:
            raise ValueError(
                f"expected another run for each model, got {model.run!r} for {other.name} of {other.suite} and for "
                f"{model.name} of {model.suite}; sweep them apart into two stores"
            )


def _probe_maker(model: PublishedModel, selection: Selection, options: Namespace, hub: Hub) -> Callable[[], Probe]:
    def make() -> Probe:
        if options.probe:
            return Probe.load(options.probe)
        return hub_probe(
            model,
            selection,
            _text(options),
            hub,
            tokenizer=Path(options.tokenizer) if options.tokenizer and _is_here(options.tokenizer) else None,
            trust_remote_code=options.trust_remote_code,
        )

    return make


def _repository(options: Namespace, hub: Hub) -> PublishedModel:
    """A repository that no suite describes: a training history if its revisions carry steps, else a finished model."""
    name = options.source
    described = [at for suite in shipped_suites().values() for at in suite.models if at.repository == name]
    if len(described) == 1 and not options.pattern:
        # as with --suite, lest one training be read in two ways
        return described[0]
    if described and not options.pattern:
        raise ValueError(
            f"expected one history in {name}, where several are described; choose among them with --suite "
            f"{' '.join(at.name for at in described)}, or name revisions with --pattern"
        )
    pattern = options.pattern or DEFAULT_PATTERN
    try:
        found, _ = match_revisions(list(hub.refs(name)), pattern)
    except CheckpointError as error:
        if not isinstance(error.__cause__, RepositoryNotFoundError):
            raise
        # as a rule a mistyped folder or repository
        raise ValueError(f"expected a folder that exists, or a hub repository, got {name!r}: {error}") from error
    model = PublishedModel(name=name, suite="", run=name, repository=name, revisions=pattern)
    if found or options.pattern:
        return model
    return replace(model, revisions=None, checkpoints=(PublishedCheckpoint(name, "main", "", 0, None, FINISHED),))


def _local(folder: Path, options: Namespace, hub: Hub) -> Source:
    parts = checkpoints_folder(folder).resolve().parts
    run = options.name or "/".join(parts[1:][-2:])
    targets = find_checkpoints(folder, run)
    by_step = {target.step: target for target in targets}
    places = [Revision(at.revision, at.step, at.tokens_seen, at.stage) for at in targets]
    chosen = tuple(by_step[place.step] for place in select_revisions(places, options.revisions))
    selection = Selection(run, chosen, others=tuple(left_out(folder, targets)))
    return Source(selection, lambda: _local_probe(folder, chosen, options, hub))


def _local_probe(folder: Path, targets: Sequence[Target], options: Namespace, hub: Hub) -> Probe:
    """The probe named, or the one a run measured live, or one made of text."""
    if options.probe:
        return Probe.load(options.probe)
    of_run = sorted((folder / "repdyn" / "probes").glob("*.safetensors"))
    if len(of_run) > 1 and not _asks_for_text(options):
        raise ValueError(
            f"expected one probe in {of_run[0].parent}, found {len(of_run)}; name the probe with --probe FILE"
        )
    if of_run and not _asks_for_text(options):
        return Probe.load(of_run[0])
    return local_probe(
        folder,
        targets,
        _text(options),
        hub,
        tokenizer=options.tokenizer,
        trust_remote_code=options.trust_remote_code,
    )


def _text(options: Namespace) -> ProbeText:
    design = options.design or INDEPENDENT.name
    return ProbeText(
        options.text or DEFAULT_TEXT,
        options.sequence_length,
        options.max_vectors or MAX_VECTORS,
        class_names(options.classes),
        design,
    )

"""From what a user names to checkpoints and their probes: suites, one hub repository, or a local folder."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from repdyn.probe import Probe
from repdyn.sweep.failures import CheckpointError
from repdyn.sweep.hub import Hub
from repdyn.sweep.local import LIGHTNING, find_checkpoints
from repdyn.sweep.probes import ProbeText, hub_probe
from repdyn.sweep.revisions import DEFAULT_PATTERN, Revision, match, select
from repdyn.sweep.suites import History, Published, find_histories
from repdyn.sweep.targets import Selection, select_targets


@dataclass(frozen=True)
class Source:
    """One model's checkpoints, and the probe they are measured on, made when it is first asked for."""

    selection: Selection
    make_probe: Callable[[], Probe]

    @cached_property
    def probe(self) -> Probe:
        return self.make_probe()


def sources(options: Namespace, hub: Hub) -> tuple[list[Source], list[str]]:
    """What the options of the command line name.

    Returns:
        The sources, and why others cannot be listed.

    Raises:
        ValueError: nothing is named, or something that does not exist here.
        SweepStoppedError: no connection.
    """
    if (options.source is None) == (options.suite is None):
        raise ValueError(
            "expected a folder, a hub repository or --suite NAME, got "
            f"{'none of them' if options.source is None else 'both a source and a suite'}; see --help, or --list-suites"
        )
    if options.suite:
        return _listed(find_histories(options.suite), options, hub)
    if Path(options.source).exists():
        return [_local(Path(options.source), options)], []
    if options.source.count("/") > 1 or options.source.startswith((".", "/", "~")):
        raise ValueError(f"expected a folder that exists, or a hub repository, got {options.source!r}")
    return _listed([_repository(options, hub)], options, hub)


def _listed(histories: Sequence[History], options: Namespace, hub: Hub) -> tuple[list[Source], list[str]]:
    found, problems = [], []
    for history in histories:
        described = replace(history, run=options.name or history.run, tokenizer=options.tokenizer or history.tokenizer)
        try:
            selection = select_targets(described, hub, options.revisions)
        except CheckpointError as error:
            problems.append(f"{history.name}: {error}")
        else:
            found.append(Source(selection, _probe_maker(described, selection, options, hub)))
    if options.name and len(found) > 1:
        raise ValueError(f"expected one model with --name, got {len(found)}; leave --name out")
    return found, problems


def _probe_maker(history: History, selection: Selection, options: Namespace, hub: Hub) -> Callable[[], Probe]:
    def make() -> Probe:
        if options.probe:
            return Probe.load(options.probe)
        if options.tokenizer and Path(options.tokenizer).is_dir():
            return _text(options).probe(Path(options.tokenizer), trust_remote_code=options.trust_remote_code)
        return hub_probe(history, selection, _text(options), hub, trust_remote_code=options.trust_remote_code)

    return make


def _repository(options: Namespace, hub: Hub) -> History:
    """A repository that no suite describes: a training history if its revisions carry steps, else a finished model."""
    name = options.source
    pattern = options.pattern or DEFAULT_PATTERN
    history = History(name=name, suite="", run=name, repository=name, revisions=pattern)
    if options.pattern or options.revisions != "all" or _has_steps(history, hub):
        return history
    return replace(history, revisions=None, checkpoints=(Published(name, "main", "", 0, None, "finished"),))


def _has_steps(history: History, hub: Hub) -> bool:
    try:
        return bool(match(list(hub.refs(str(history.repository))), str(history.revisions), None)[0])
    except CheckpointError:
        return False  # said again, and better, where the repository's main branch is asked for


def _local(folder: Path, options: Namespace) -> Source:
    checkpoints = folder / "hf_checkpoints" if (folder / "hf_checkpoints").is_dir() else folder
    resolved = checkpoints.resolve()
    run = options.name or resolved.relative_to(resolved.parents[1]).as_posix()
    targets = find_checkpoints(folder, run)
    by_name = {target.revision: target for target in targets}
    places = [Revision(name, at.step, at.tokens_seen, at.stage) for name, at in by_name.items()]
    chosen = tuple(by_name[place.name] for place in select(places, options.revisions))
    return Source(Selection(run, chosen), lambda: _local_probe(folder, chosen[-1].path, options))


def _local_probe(folder: Path, newest: Path | None, options: Namespace) -> Probe:
    """The probe named, or the one a run measured live, or one made with the checkpoints' own tokenizer."""
    if options.probe:
        return Probe.load(options.probe)
    of_run = sorted((folder / "repdyn" / "probes").glob("*.safetensors"))
    if len(of_run) == 1:
        return Probe.load(of_run[0])
    if of_run:
        raise ValueError(
            f"expected one probe in {of_run[0].parent}, found {len(of_run)}; name the probe with --probe FILE"
        )
    tokenizer = Path(options.tokenizer) if options.tokenizer else newest
    if tokenizer is None or tokenizer.suffix == LIGHTNING or not list(tokenizer.glob("tokenizer*")):
        raise ValueError(
            f"expected a probe, but {folder} is no run's folder, and {tokenizer} has no tokenizer to make one with; "
            "name a probe with --probe FILE, or a folder with --tokenizer FOLDER"
        )
    return _text(options).probe(tokenizer, trust_remote_code=options.trust_remote_code)


def _text(options: Namespace) -> ProbeText:
    return ProbeText(options.text, options.sequence_length, options.max_vectors)

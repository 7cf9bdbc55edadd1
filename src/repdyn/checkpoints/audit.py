"""Find what is wrong with a published training history, from the names, checksums, sizes and dates of its files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import median
from typing import Any, Literal, TypeAlias

from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.hub import Files, Hub, choose_files, map_concurrently, total_bytes, weight_files
from repdyn.checkpoints.revisions import DEFAULT_PATTERN, Target
from repdyn.checkpoints.suites import KnownFault, PublishedModel, find_models, models_of
from repdyn.checkpoints.targets import Selection
from repdyn.tables.style import gigabytes
from repdyn.utils.printing import shorten_list

Severity: TypeAlias = Literal["fault", "remark"]
"""A fault makes checkpoints worthless, or values at their steps wrong; a remark need not mean anything."""

_SHARD = re.compile(r"(.*-)(\d+)(-of-)(\d+)(\.\w+)")
_UNUSUAL, _NO_UPDATE = 0.01, (0, 1)
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class CheckpointFiles:
    """The weight files of a published checkpoint."""

    step: int
    revision: str
    """Name of the branch, tag, folder or repository."""
    commit: str
    weights: Files = field(default_factory=dict)
    """The weights that a sweep loads, by name; empty if there are none."""
    other_weights: Files = field(default_factory=dict)
    """Weights in formats that a sweep does not load."""
    problem: str | None = None
    """Why the checkpoint cannot be loaded."""

    @property
    def content(self) -> frozenset[str]:
        """The names and checksums of the weights; equal for equal weights."""
        return _content(self.weights)

    @property
    def date(self) -> datetime | None:
        """When the newest of the weights was uploaded, if it is known."""
        return max((file.date for file in self.weights.values() if file.date), default=None)

    def contains(self, content: frozenset[str]) -> bool:
        """Return whether all of these weights are among those of this checkpoint, in any format."""
        return bool(content) and content <= _content({**self.weights, **self.other_weights})


@dataclass(frozen=True)
class History:
    """The files of the selected checkpoints of a training run, and of the two that tell which weights are final."""

    selection: Selection
    checkpoints: tuple[CheckpointFiles, ...]
    """By ascending step."""
    last: CheckpointFiles | None = None
    """The last step of the whole history, which need not be among the checkpoints; None if it is not known."""
    main: CheckpointFiles | None = None
    """The main branch, if that is none of the checkpoints."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or unusual, with some checkpoints of a history."""

    severity: Severity
    kind: str
    """"final weights", "identical", "shared file", "missing weights", "missing step", "no update", "main",
    "frozen file", "size", "date" or "reported"."""
    sentence: str
    revisions: tuple[str, ...] = ()
    """The checkpoints concerned."""
    steps: tuple[int, ...] = ()
    same_as: str | None = None
    """The checkpoint whose weights they have."""
    files: tuple[str, ...] = ()
    """The files concerned, if these are not all weights."""
    reports: tuple[str, ...] = ()
    """Addresses where users reported it."""


@dataclass(frozen=True)
class Copies:
    """Checkpoints with the weights of another one."""

    same_as: str
    """The checkpoint that the weights are taken for."""
    copies: tuple[CheckpointFiles, ...]
    """The others, by ascending step."""
    are_final: bool
    """Whether the weights are the final ones, so that no copy is a checkpoint of its step."""


@dataclass(frozen=True)
class ForeignWeights:
    """Weights of another checkpoint of the same history, under the name of a checkpoint."""

    owner: str
    """Name of the checkpoint whose weights they are."""
    in_part: bool = False
    """Whether that is so of single files alone, as in a mixture of two checkpoints."""

    @property
    def reason(self) -> str:
        """Why the checkpoint is not measured."""
        if self.in_part:
            return f"a mixture: some of its files are those of {self.owner}"
        return f"a copy: it has the weights of {self.owner}"


def find_copies(history: History) -> list[Copies]:
    """Group checkpoints by their weights; the final weights are those of the last step, others those of the first.

    Several steps with the weights of the main branch are copies of it, if the last step has other weights. A single
    one is none: a publisher may have chosen it for the main branch. Nor are steps 0 and 1 copies, where the learning
    rate starts at zero.
    """
    groups: dict[frozenset[str], list[CheckpointFiles]] = {}
    for checkpoint in _readable(history):
        groups.setdefault(checkpoint.content, []).append(checkpoint)
    found = []
    for content, members in groups.items():
        if history.last is not None and history.last.contains(content):
            copies = [each for each in members if each.revision != history.last.revision]
            found.append(Copies(history.last.revision, tuple(copies), are_final=True))
        elif len(members) > 1 and history.main is not None and history.main.contains(content):
            found.append(Copies(history.main.revision, tuple(members), are_final=True))
        elif tuple(each.step for each in members) != _NO_UPDATE:
            found.append(Copies(members[0].revision, tuple(members[1:]), are_final=False))
    return [each for each in found if each.copies]


def audit(history: History) -> list[Finding]:
    """Return what is wrong with a history by its files, faults first; each with the reports of users that mention its
    steps."""
    findings = [
        *_copies(history),
        *_no_update(history),
        *_shared_files(history),
        *_missing(history),
        *_main(history),
        *_sizes(history),
        *_dates(history),
    ]
    known = history.selection.known_faults
    reported = [_with_reports(finding, known) for finding in findings]
    unseen = [_not_seen(fault, history, findings) for fault in known]
    return sorted([*reported, *filter(None, unseen)], key=lambda finding: finding.severity != "fault")


def _content(files: Files) -> frozenset[str]:
    return frozenset(f"{name} {file.digest}" for name, file in files.items())


def _readable(history: History) -> list[CheckpointFiles]:
    return [checkpoint for checkpoint in history.checkpoints if checkpoint.weights]


def _finding(
    severity: Severity, kind: str, checkpoints: Iterable[CheckpointFiles], sentence: str, **fields: Any
) -> Finding:
    """Return a finding on checkpoints, whose names replace {names} in the sentence."""
    concerned = sorted(checkpoints, key=lambda checkpoint: checkpoint.step)
    names = tuple(checkpoint.revision for checkpoint in concerned)
    steps = tuple(checkpoint.step for checkpoint in concerned)
    return Finding(severity, kind, sentence.replace("{names}", shorten_list(names)), names, steps, **fields)


def _copies(history: History) -> Iterator[Finding]:
    by_name = {checkpoint.revision: checkpoint for checkpoint in history.checkpoints}
    for group in find_copies(history):
        n = len(group.copies)
        if group.are_final:
            sentence = f"the final weights, those of {group.same_as}, under {n} other name{'s' * (n > 1)}: {{names}}"
            yield _finding("fault", "final weights", group.copies, sentence, same_as=group.same_as)
        else:
            sentence = "the same weights, copied or not updated in between: {names}"
            members = [by_name[group.same_as], *group.copies]
            yield _finding("fault", "identical", members, sentence, same_as=group.same_as)


def _no_update(history: History) -> Iterator[Finding]:
    """Yield the first two steps, if they are the same."""
    first = [each for each in _readable(history) if each.step in _NO_UPDATE]
    copies = {copy.revision for group in find_copies(history) for copy in group.copies}
    if len(first) == 2 and first[0].content == first[1].content and not copies & {each.revision for each in first}:
        yield _finding(
            "remark", "no update", first, "the same weights, as if the learning rate started at zero: {names}"
        )


def _shared_files(history: History) -> Iterator[Finding]:
    """Yield the files that checkpoints with different weights share."""
    copies = {copy.revision for group in find_copies(history) for copy in group.copies}
    distinct = {each.revision: each for each in _readable(history) if each.revision not in copies}
    if history.last is not None and history.last.weights:
        distinct[history.last.revision] = history.last
    if history.main is not None and not any(history.main.contains(each.content) for each in distinct.values()):
        distinct[history.main.revision] = history.main
    distinct = {each.revision: each for each in {each.content: each for each in distinct.values()}.values()}
    owners: dict[str, dict[str, str]] = {}
    for revision, checkpoint in distinct.items():
        for name, file in {**checkpoint.weights, **checkpoint.other_weights}.items():
            owners.setdefault(file.digest, {})[revision] = name
    shared: dict[tuple[str, ...], set[str]] = {}
    for names in owners.values():
        if len(names) > 1:
            shared.setdefault(tuple(names), set()).add(next(iter(names.values())))
    for revisions, names in shared.items():
        checkpoints = [distinct[revision] for revision in revisions]
        yield _shared(history, checkpoints, sorted(names), in_all=len(revisions) == len(distinct) > 2)


def _shared(history: History, checkpoints: Sequence[CheckpointFiles], files: list[str], *, in_all: bool) -> Finding:
    if in_all:
        sentence = f"the same in all checkpoints, as weights that are not trained would be: {shorten_list(files)}"
        return _finding("remark", "frozen file", checkpoints, sentence, files=tuple(files))
    final = next((end for end in (history.last, history.main) if end in checkpoints), None)
    if final is None:
        sentence = f"one file, though the other weights are not the same: {shorten_list(files)} of {{names}}"
        return _finding("fault", "shared file", checkpoints, sentence, files=tuple(files))
    others = [checkpoint for checkpoint in checkpoints if checkpoint not in (history.last, history.main)]
    which = f"{len(files)} of {len(others[0].weights)} weight files, {shorten_list(files)}"
    sentence = f"the final weights, those of {final.revision}, in {which}: {{names}}"
    return _finding("fault", "shared file", others, sentence, same_as=final.revision, files=tuple(files))


def _missing(history: History) -> Iterator[Finding]:
    problems: dict[str, list[CheckpointFiles]] = {}
    for checkpoint in history.checkpoints:
        if problem := checkpoint.problem or _missing_shards(checkpoint.weights):
            problems.setdefault(problem.replace(checkpoint.commit or "\0", "its commit"), []).append(checkpoint)
    for problem, checkpoints in problems.items():
        yield _finding("fault", "missing weights", checkpoints, f"{{names}}: {problem}")
    if missing := history.selection.missing_steps:
        steps = shorten_list([str(step) for step in missing])
        unverified = history.selection.unverified
        doubt = f"; not verified: {unverified}" if unverified else ""
        sentence = f"described, but not on the hub: {steps}{doubt}"
        yield Finding("remark" if doubt else "fault", "missing step", sentence, steps=missing)


def _missing_shards(weights: Files) -> str | None:
    """Return which parts of the weights are missing, according to the names of the others."""
    for match in filter(None, map(_SHARD.fullmatch, weights)):
        start, number, of, count, end = match.groups()
        if int(count) > len(weights):
            names = (f"{start}{index:0{len(number)}d}{of}{count}{end}" for index in range(1, int(count) + 1))
            return f"weight files are missing: {shorten_list([name for name in names if name not in weights])}"
    return None


def _main(history: History) -> Iterator[Finding]:
    """Yield the single step that the main branch serves, if that is not the last one."""
    if history.main is None or (history.last is not None and history.main.contains(history.last.content)):
        return
    served = [each for each in _readable(history) if history.main.contains(each.content)]
    if len(served) == 1:
        yield _finding("remark", "main", served, "the main branch serves {names}, not the last step")


def _sizes(history: History) -> Iterator[Finding]:
    sizes = {checkpoint.revision: total_bytes(checkpoint.weights) for checkpoint in _readable(history)}
    usual = median(sizes.values()) if sizes else 0
    unusual: dict[str, list[CheckpointFiles]] = {}
    for checkpoint in _readable(history):
        if abs(sizes[checkpoint.revision] - usual) > _UNUSUAL * usual:
            unusual.setdefault(gigabytes(sizes[checkpoint.revision]), []).append(checkpoint)
    for size, checkpoints in unusual.items():
        yield _finding(
            "remark", "size", checkpoints, f"{size} of weights, the others {gigabytes(int(usual))}: {{names}}"
        )


def _dates(history: History) -> Iterator[Finding]:
    """Yield the checkpoints that were uploaded before one of an earlier step."""
    newest: datetime | None = None
    early = []
    for checkpoint in _readable(history):
        if checkpoint.date is None:
            continue
        if newest is not None and checkpoint.date < newest:
            early.append(checkpoint)
        newest = max(newest or checkpoint.date, checkpoint.date)
    if early:
        yield _finding("remark", "date", early, f"{len(early)} uploaded before an earlier step: {{names}}")


def _with_reports(finding: Finding, known: Sequence[KnownFault]) -> Finding:
    reports = dict.fromkeys(fault.report for fault in known if fault.is_shown_by(finding.kind, finding.steps))
    return replace(finding, reports=tuple(reports))


def _not_seen(fault: KnownFault, history: History, findings: Sequence[Finding]) -> Finding | None:
    """Return the checkpoints of a reported fault that no finding shows, if there are any."""
    shown = [finding for finding in findings if fault.is_shown_by(finding.kind, finding.steps)]
    seen = {name for finding in shown for name in (*finding.revisions, finding.same_as)}
    unseen = [each for each in history.checkpoints if each.step in fault.steps and each.revision not in seen]
    if not unseen:
        return None
    shows = "show only at the other steps reported" if seen else "do not show"
    sentence = f"users reported {fault.what} for {{names}}, which these files {shows}"
    return _finding("remark", "reported", unseen, sentence, reports=(fault.report,))


def fault_lines(history: History, findings: Iterable[Finding]) -> Iterator[str]:
    """Yield a line for each fault of a history that a sweep does not run into by itself, as into missing weights, and
    for each report of users that its files do not show."""
    for finding in findings:
        is_met = finding.kind in {"missing weights", "missing step"}
        if (finding.severity == "fault" and not is_met) or finding.kind == "reported":
            reports = f" ({', '.join(finding.reports)})" if finding.reports else ""
            yield f"{history.selection.run}: {finding.sentence}{reports}"


def list_histories(selections: Sequence[Selection], hub: Hub, *, with_dates: bool = False) -> list[History]:
    """Return the history of each selection; of local checkpoints nothing is listed, and their history is empty."""

    def look_up(commit: tuple[str, str]) -> Files | CheckpointError:
        try:
            return hub.files(*commit, with_dates=with_dates)
        except CheckpointError as error:
            return error

    listed = [target for selection in selections for target in _to_list(selection)]
    commits = list(dict.fromkeys((target.repository, target.commit) for target in listed))
    found = dict(zip(commits, map_concurrently(look_up, commits), strict=True))
    return [_history(selection, found) for selection in selections]


def find_foreign_targets(histories: Iterable[History]) -> dict[Target, ForeignWeights]:
    """Return the targets with the weights, or single files, of another checkpoint of their history.

    A sweep does not measure them: their values would be those of another step, or of none. Files that all checkpoints
    have from some step to the end are their own, as of weights that are no longer trained.
    """
    foreign = {}
    for history in histories:
        by_name = {target.revision: target for target in history.selection.targets}
        copied = {copy.revision: group.same_as for group in find_copies(history) for copy in group.copies}
        foreign |= {by_name[name]: ForeignWeights(owner) for name, owner in copied.items()}
        own = [each for each in history.checkpoints if each.weights and each.revision not in copied]
        for finding in audit(history):
            if finding.kind == "shared file" and finding.same_as is not None:
                mixture = ForeignWeights(finding.same_as, in_part=True)
                foreign |= {by_name[name]: mixture for name in _mixed(finding, own)}
    return foreign


def _mixed(finding: Finding, own: Sequence[CheckpointFiles]) -> list[str]:
    """Return the checkpoints of a finding with files of the end that a later one of those with own weights lacks."""
    lacking = [each.step for each in own if each.revision not in (*finding.revisions, finding.same_as)]
    last = max(lacking, default=-1)
    return [name for name, step in zip(finding.revisions, finding.steps, strict=True) if step < last]


def models_to_audit(name: str, endpoint: str) -> list[PublishedModel]:
    """Return the models that a name means: of a suite, or all training runs of a hub repository or its address."""
    if "/" not in name or name.endswith((".yaml", ".yml")):
        return find_models([name])
    repository = name
    for hub in (endpoint, "https://huggingface.co"):
        if name.startswith(f"{hub}/"):
            repository = "/".join(name.removeprefix(f"{hub}/").split("?")[0].split("/")[:2])
    if not _REPOSITORY.fullmatch(repository):
        raise ValueError(
            f"expected a suite, a model of one, a hub repository such as EleutherAI/pythia-70m, or its address at "
            f"{endpoint}, got {name!r}; local folders are measured by repdyn sweep FOLDER"
        )
    return models_of(repository) or [PublishedModel(repository, "", repository, repository, DEFAULT_PATTERN)]


def _to_list(selection: Selection) -> list[Target]:
    """Return the checkpoints whose files are listed; none where there is nothing to compare."""
    ends = [end for end in (selection.last, selection.main) if end is not None]
    remote = [target for target in (*selection.targets, *ends) if target.path is None]
    return [target for target in remote if target.commit] if len(set(remote)) > 1 else []


def _history(selection: Selection, found: Mapping[tuple[str, str], Files | CheckpointError]) -> History:
    targets = selection.targets if _to_list(selection) else ()
    checkpoints = [_checkpoint_files(target, found) for target in targets]
    last, main = (end and _checkpoint_files(end, found) for end in (selection.last, selection.main))
    return History(selection, tuple(sorted(checkpoints, key=lambda checkpoint: checkpoint.step)), last, main)


def _checkpoint_files(target: Target, found: Mapping[tuple[str, str], Files | CheckpointError]) -> CheckpointFiles:
    checkpoint = CheckpointFiles(target.step, target.revision, target.commit)
    listed = found.get((target.repository, target.commit))
    if listed is None or isinstance(listed, CheckpointError):
        return replace(checkpoint, problem=target.missing_reason or str(listed))
    weights = weight_files(listed, target.subfolder)
    try:
        chosen = choose_files(listed, target.subfolder)
    except CheckpointError as error:
        return replace(checkpoint, other_weights=weights, problem=str(error))
    prefix = f"{target.subfolder}/" if target.subfolder else ""
    loaded = {name: file for name, file in weights.items() if f"{prefix}{name}" in chosen}
    others = {name: file for name, file in weights.items() if name not in loaded}
    return replace(checkpoint, weights=loaded, other_weights=others)

"""Find what is wrong with a published training history, from the names, checksums, sizes and dates
of its files.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any, Literal, TypeAlias

from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.hub import (
    Files,
    Hub,
    choose_files,
    is_weight_file,
    map_concurrently,
    total_bytes,
)
from repdyn.checkpoints.suites import PublishedModel, find_models, models_of
from repdyn.checkpoints.targets import Selection, Target
from repdyn.utils.printing import gigabytes, shorten_list
from repdyn.utils.steps import DEFAULT_PATTERN

Severity: TypeAlias = Literal["fault", "remark"]
"""A fault makes checkpoints worthless, or values at their steps wrong; a remark need not mean
anything.
"""

_SHARD = re.compile(r"(.*-)(\d+)(-of-)(\d+)(\.\w+)")
_UNUSUAL, _NO_UPDATE = 0.01, [0, 1]
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
        return frozenset(f"{name} {file.digest}" for name, file in self.weights.items())

    def contains(self, content: frozenset[str]) -> bool:
        """Return whether all of these weights are among those of this checkpoint, in any format."""
        return (
            bool(content)
            and content <= replace(self, weights={**self.weights, **self.other_weights}).content
        )


@dataclass(frozen=True)
class History:
    """The files of the selected checkpoints of a training run, and of the two that tell which
    weights are final.
    """

    selection: Selection
    checkpoints: tuple[CheckpointFiles, ...]
    """By ascending step."""
    last: CheckpointFiles | None = None
    """The last step of the whole history, which need not be among the checkpoints; None if it is
    not known.
    """
    main: CheckpointFiles | None = None
    """The main branch, if that is none of the checkpoints."""

    @property
    def readable(self) -> list[CheckpointFiles]:
        """The checkpoints with weights that a sweep loads."""
        return [each for each in self.checkpoints if each.weights]


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or unusual, with some checkpoints of a history."""

    severity: Severity
    kind: str
    """"final weights", "identical", "shared file", "missing weights", "missing step", "no update",
    "main", "frozen file", "size" or, by users, "reported"."""
    sentence: str
    revisions: tuple[str, ...] = ()
    """The checkpoints concerned."""
    steps: tuple[int, ...] = ()
    same_as: str | None = None
    """The checkpoint whose weights they have."""
    files: tuple[str, ...] = ()
    """The files concerned, if these are not all weights."""


def audit(history: History) -> list[Finding]:
    """Return what is wrong with a history by its files, faults first, and what users reported of
    it.
    """
    copies = [*_copies(history)]
    copied = {*copies_among(copies)}
    findings = [
        *copies,
        *_shared_files(history, copied),
        *_missing(history),
        *_unusual(history, copied),
    ]
    for fault in history.selection.model.known_faults if history.selection.model else ():
        if concerned := [each for each in history.checkpoints if each.step in fault.steps]:
            sentence = f"users reported {fault.what} ({fault.report}): {{names}}"
            findings.append(_finding("remark", "reported", concerned, sentence))
    return sorted(findings, key=lambda finding: finding.severity != "fault")


def audit_record(history: History) -> dict[str, Any]:
    """Return what is wrong with a history as ``repdyn audit --json`` prints it; docs/cli.md
    describes the fields.
    """
    findings = audit(history)
    severities = [finding.severity for finding in findings]
    return {
        "run": history.selection.run,
        "checkpoints": [checkpoint.revision for checkpoint in history.checkpoints],
        "copies": copies_among(findings),
        "faults": severities.count("fault"),
        "remarks": severities.count("remark"),
        "findings": [asdict(finding) for finding in findings],
    }


def copies_among(findings: Iterable[Finding]) -> dict[str, str]:
    """Return the checkpoints with the weights of another one, by name, and which one that is."""
    groups = [finding for finding in findings if finding.kind in {"final weights", "identical"}]
    return {
        name: str(each.same_as)
        for each in groups
        for name in each.revisions
        if name != each.same_as
    }


def _finding(
    severity: Severity,
    kind: str,
    checkpoints: Iterable[CheckpointFiles],
    sentence: str,
    **fields: Any,
) -> Finding:
    """Return a finding on checkpoints, whose names replace {names} in the sentence."""
    concerned = sorted(checkpoints, key=lambda checkpoint: checkpoint.step)
    names = tuple(checkpoint.revision for checkpoint in concerned)
    steps = tuple(checkpoint.step for checkpoint in concerned)
    return Finding(
        severity, kind, sentence.replace("{names}", shorten_list(names)), names, steps, **fields
    )


def _copies(history: History) -> Iterator[Finding]:
    """Group checkpoints by their weights; the final weights are those of the last step, others
    those of the first.

    Several steps with the weights of the main branch are copies of it, if the last step has other
    weights. A single one is none: a publisher may have chosen it for the main branch. Nor are steps
    0 and 1 copies, where the learning rate starts at zero.
    """
    groups: dict[frozenset[str], list[CheckpointFiles]] = {}
    for checkpoint in history.readable:
        groups.setdefault(checkpoint.content, []).append(checkpoint)
    for content, members in groups.items():
        enough = (history.last, 1), (history.main, 2)
        final = next(
            (end for end, n in enough if end and len(members) >= n and end.contains(content)), None
        )
        copies = [each for each in members if final is None or each.revision != final.revision]
        n = len(copies)
        if final is not None and copies:
            sentence = (
                f"the final weights, those of {final.revision}, under {n} other "
                f"name{'s' * (n > 1)}: {{names}}"
            )
            yield _finding("fault", "final weights", copies, sentence, same_as=final.revision)
        elif final is None and n > 1 and [each.step for each in members] != _NO_UPDATE:
            sentence = "the same weights, copied or not updated in between: {names}"
            yield _finding("fault", "identical", members, sentence, same_as=members[0].revision)


def _shared_files(history: History, copied: set[str]) -> Iterator[Finding]:
    """Yield the files that checkpoints with different weights share."""
    ends = [end for end in (history.last, history.main) if end is not None]
    distinct = {each.content: each for each in history.readable if each.revision not in copied}
    if history.last is not None and history.last.weights:
        distinct[history.last.content] = history.last
    if history.main is not None and not any(history.main.contains(content) for content in distinct):
        distinct[history.main.content] = history.main
    owners: dict[str, dict[str, tuple[str, CheckpointFiles]]] = {}
    for checkpoint in distinct.values():
        for name, file in {**checkpoint.weights, **checkpoint.other_weights}.items():
            owners.setdefault(file.digest, {})[checkpoint.revision] = name, checkpoint
    shared: dict[tuple[str, ...], dict[str, list[CheckpointFiles]]] = {}
    for by_name in (owner for owner in owners.values() if len(owner) > 1):
        name = next(name for name, _ in by_name.values())
        shared.setdefault(tuple(by_name), {})[name] = [
            checkpoint for _, checkpoint in by_name.values()
        ]
    for revisions, found in shared.items():
        files, checkpoints = tuple(sorted(found)), next(iter(found.values()))
        listed = shorten_list(files)
        final = next((end.revision for end in ends if end in checkpoints), None)
        if len(revisions) == len(distinct) > 2:
            sentence = (
                f"the same in all checkpoints, as weights that are not trained would be: {listed}"
            )
            yield _finding("remark", "frozen file", checkpoints, sentence, files=files)
        elif final is None:
            sentence = f"one file, though the other weights are not the same: {listed} of {{names}}"
            yield _finding("fault", "shared file", checkpoints, sentence, files=files)
        else:
            others = [each for each in checkpoints if each not in ends]
            which = f"{len(files)} of {len(others[0].weights)} weight files, {listed}"
            sentence = f"the final weights, those of {final}, in {which}: {{names}}"
            yield _finding("fault", "shared file", others, sentence, same_as=final, files=files)


def _missing(history: History) -> Iterator[Finding]:
    problems: dict[str, list[CheckpointFiles]] = {}
    for checkpoint in history.checkpoints:
        if problem := checkpoint.problem or _missing_shards(checkpoint.weights):
            problems.setdefault(
                problem.replace(checkpoint.commit or "\0", "its commit"), []
            ).append(checkpoint)
    for problem, checkpoints in problems.items():
        yield _finding("fault", "missing weights", checkpoints, f"{{names}}: {problem}")
    if missing := history.selection.missing_steps:
        unverified = history.selection.model and history.selection.model.unverified
        doubt = f"; not verified: {unverified}" if unverified else ""
        sentence = f"described, but not on the hub: {shorten_list([*map(str, missing)])}{doubt}"
        yield Finding("remark" if doubt else "fault", "missing step", sentence, steps=missing)


def _missing_shards(weights: Files) -> str | None:
    """Return which parts of the weights are missing, according to the names of the others."""
    for match in filter(None, map(_SHARD.fullmatch, weights)):
        start, number, of, count, end = match.groups()
        if int(count) > len(weights):
            names = (
                f"{start}{index:0{len(number)}d}{of}{count}{end}"
                for index in range(1, int(count) + 1)
            )
            return (
                "weight files are missing: "
                f"{shorten_list([name for name in names if name not in weights])}"
            )
    return None


def _unusual(history: History, copied: set[str]) -> Iterator[Finding]:
    """Yield the first two steps if they are the same, a single step at main, and other sizes."""
    readable, last, main = history.readable, history.last, history.main
    first = [each for each in readable if each.step in _NO_UPDATE]
    if (
        len(first) == 2
        and first[0].content == first[1].content
        and not copied & {each.revision for each in first}
    ):
        sentence = "the same weights, as if the learning rate started at zero: {names}"
        yield _finding("remark", "no update", first, sentence)
    if main is not None and not (last is not None and main.contains(last.content)):
        served = [each for each in readable if main.contains(each.content)]
        if len(served) == 1:
            yield _finding(
                "remark", "main", served, "the main branch serves {names}, not the last step"
            )
    usual = median([total_bytes(each.weights) for each in readable] or [0])
    by_size: dict[str, list[CheckpointFiles]] = {}
    for each in readable:
        if abs((size := total_bytes(each.weights)) - usual) > _UNUSUAL * usual:
            by_size.setdefault(gigabytes(size), []).append(each)
    for size, checkpoints in by_size.items():
        sentence = f"{size} of weights, the others {gigabytes(int(usual))}: {{names}}"
        yield _finding("remark", "size", checkpoints, sentence)


def fault_lines(history: History, findings: Iterable[Finding]) -> Iterator[str]:
    """Yield a line for each fault of a history that a sweep does not run into by itself, as into
    missing weights, and for each report of users."""
    for finding in findings:
        is_met = finding.kind in {"missing weights", "missing step"}
        if (finding.severity == "fault" and not is_met) or finding.kind == "reported":
            yield f"{history.selection.run}: {finding.sentence}"


def list_histories(selections: Sequence[Selection], hub: Hub) -> list[History]:
    """Return the history of each selection; where there is nothing to compare nothing is listed,
    and it is empty.
    """

    def look_up(commit: tuple[str, str]) -> Files | CheckpointError:
        try:
            return hub.files(*commit)
        except CheckpointError as error:
            return error

    wanted = [[*each.targets, *filter(None, (each.last, each.main))] for each in selections]
    listed = [
        [target for target in targets if target.commit] if len(set(targets)) > 1 else []
        for targets in wanted
    ]
    commits = list(
        dict.fromkeys((each.repository, each.commit) for targets in listed for each in targets)
    )
    found = dict(zip(commits, map_concurrently(look_up, commits), strict=True))
    histories = []
    for selection, targets in zip(selections, listed, strict=True):
        last, main = (
            end and _checkpoint_files(end, found) for end in (selection.last, selection.main)
        )
        checkpoints = [
            _checkpoint_files(each, found) for each in (selection.targets if targets else ())
        ]
        histories.append(
            History(selection, tuple(sorted(checkpoints, key=lambda each: each.step)), last, main)
        )
    return histories


def _checkpoint_files(
    target: Target, found: Mapping[tuple[str, str], Files | CheckpointError]
) -> CheckpointFiles:
    checkpoint = CheckpointFiles(target.step, target.revision, target.commit)
    listed = found.get((target.repository, target.commit))
    if listed is None or isinstance(listed, CheckpointError):
        return replace(checkpoint, problem=target.missing_reason or str(listed))
    weights = {
        name: file
        for name, file in listed.items()
        if is_weight_file(name) and not name.endswith(".json")
    }
    try:
        chosen = choose_files(listed)
    except CheckpointError as error:
        return replace(checkpoint, other_weights=weights, problem=str(error))
    loaded = {name: file for name, file in weights.items() if name in chosen}
    others = {name: file for name, file in weights.items() if name not in chosen}
    return replace(checkpoint, weights=loaded, other_weights=others)


def foreign_targets(history: History, findings: Iterable[Finding]) -> dict[Target, dict[str, str]]:
    """Return the targets with the weights, or single files, of another checkpoint of their history,
    with their marks.

    A sweep does not measure them: their values would be those of another step, or of none. Files
    that all checkpoints have from some step to the end are their own, as of weights that are no
    longer trained: a mixture is one with files of the end that a later checkpoint with weights of
    its own lacks.
    """
    findings = [*findings]
    copied = copies_among(findings)
    foreign = {name: {"same_as": owner} for name, owner in copied.items()}
    for finding in findings:
        if finding.kind == "shared file" and finding.same_as is not None:
            having = {*copied, *finding.revisions, finding.same_as}
            last = max(
                (each.step for each in history.readable if each.revision not in having), default=-1
            )
            mixed = [
                name
                for name, step in zip(finding.revisions, finding.steps, strict=True)
                if step < last
            ]
            foreign |= {name: {"mixed_with": finding.same_as} for name in mixed}
    return {
        target: foreign[target.revision]
        for target in history.selection.targets
        if target.revision in foreign
    }


def models_to_audit(name: str, endpoint: str) -> list[PublishedModel]:
    """Return the models that a name means: of a suite, or all training runs of a hub repository or
    its address.
    """
    if "/" not in name or name.endswith((".yaml", ".yml")):
        return find_models([name])
    repository = name
    for hub in (endpoint, "https://huggingface.co"):
        if name.startswith(f"{hub}/"):
            repository = "/".join(name.removeprefix(f"{hub}/").split("?")[0].split("/")[:2])
    if not _REPOSITORY.fullmatch(repository):
        raise ValueError(
            "expected a suite, a model of one, a hub repository such as EleutherAI/pythia-70m, or "
            f"its address at {endpoint}, got {name!r}; local folders are measured by repdyn sweep "
            "FOLDER"
        )
    return models_of(repository) or [
        PublishedModel(repository, "", repository, repository, DEFAULT_PATTERN)
    ]

"""Find what is wrong with a published training history, from the names, checksums and sizes of its
files, without downloading any.

A publisher may have uploaded the final weights under the names of earlier steps, one shard of
another step, or no weights at all. :func:`audit` judges the files that
:mod:`repdyn.checkpoints.histories` lists, :func:`foreign_targets` says which checkpoints a sweep
must leave out.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal, TypeAlias

from repdyn.checkpoints.histories import CheckpointFiles, History
from repdyn.checkpoints.hub import repository_and_revision
from repdyn.checkpoints.suites import PublishedModel, find_models, models_of
from repdyn.checkpoints.targets import Target
from repdyn.checkpoints.weight_files import Files, total_bytes
from repdyn.utils.printing import gigabytes, plural, shorten_list
from repdyn.utils.steps import DEFAULT_PATTERN

Severity: TypeAlias = Literal["fault", "remark"]
"""A fault makes checkpoints worthless, or values at their steps wrong; a remark need not mean
anything.
"""

# model-00001-of-00003.safetensors
_SHARD = re.compile(r"(.*-)(\d+)(-of-)(\d+)(\.\w+)")
_UNUSUAL = 0.01
"""Relative difference in bytes from which a checkpoint's size is remarked."""
_NO_UPDATE = [0, 1]
"""Steps that have the same weights where the learning rate starts at zero."""
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


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
    # copies first: they share all files, and are in no finding on single ones
    findings = [
        *copies,
        *_shared_files(history, copied),
        *_missing(history),
        *_unusual(history, copied),
    ]
    model = history.selection.model
    # remarks, since a publisher may have repaired what was reported
    for fault in model.known_faults if model is not None else ():
        concerned = [
            checkpoint for checkpoint in history.checkpoints if checkpoint.step in fault.steps
        ]
        if concerned:
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
    owners: dict[str, str] = {}
    for finding in findings:
        if finding.kind in {"final weights", "identical"}:
            owner = str(finding.same_as)
            owners |= {name: owner for name in finding.revisions if name != owner}
    return owners


def _finding(
    severity: Severity,
    kind: str,
    checkpoints: Iterable[CheckpointFiles],
    sentence: str,
    **fields: Any,
) -> Finding:
    """Return a finding on checkpoints, whose names replace {names} in the sentence."""
    concerned = sorted(checkpoints, key=lambda checkpoint: checkpoint.step)
    revisions = tuple(checkpoint.revision for checkpoint in concerned)
    return Finding(
        severity=severity,
        kind=kind,
        sentence=sentence.replace("{names}", shorten_list(revisions)),
        revisions=revisions,
        steps=tuple(checkpoint.step for checkpoint in concerned),
        **fields,
    )


def _copies(history: History) -> Iterator[Finding]:
    """Group checkpoints by their weights; the final weights are those of the last step, others
    those of the first.

    Several steps with the weights of the main branch are copies of it, if the last step has other
    weights. A single one is none: a publisher may have chosen it for the main branch. Nor are steps
    0 and 1 copies, where the learning rate starts at zero.
    """
    # equal names and checksums are equal weights: nothing has to be downloaded
    groups: dict[frozenset[str], list[CheckpointFiles]] = {}
    for checkpoint in history.readable:
        groups.setdefault(checkpoint.content, []).append(checkpoint)
    for content, members in groups.items():
        final = _end_with(content, len(members), history)
        if final is None:
            is_no_update = [checkpoint.step for checkpoint in members] == _NO_UPDATE
            if len(members) > 1 and not is_no_update:
                sentence = "the same weights, copied or not updated in between: {names}"
                owner = members[0].revision
                yield _finding("fault", "identical", members, sentence, same_as=owner)
            continue
        copies = [checkpoint for checkpoint in members if checkpoint.revision != final.revision]
        if copies:
            names = f"{len(copies)} {plural(len(copies), 'other name')}"
            sentence = f"the final weights, those of {final.revision}, under {names}: {{names}}"
            yield _finding("fault", "final weights", copies, sentence, same_as=final.revision)


def _end_with(content: frozenset[str], n_members: int, history: History) -> CheckpointFiles | None:
    """Return the last step or the main branch, whichever of them has these weights; the main branch
    only for weights that several steps have.
    """
    if history.last is not None and history.last.contains(content):
        return history.last
    # a single step may be what the publisher chose for the main branch
    if history.main is not None and n_members > 1 and history.main.contains(content):
        return history.main
    return None


def _shared_files(history: History, copied: set[str]) -> Iterator[Finding]:
    """Yield the files that checkpoints with different weights share."""
    distinct = _distinct_checkpoints(history, copied)
    for checkpoints, files in _files_by_owners(distinct):
        listed = shorten_list(files)
        final = next((end for end in _ends(history) if end in checkpoints), None)
        # a file that only two checkpoints share may as well be a copy
        if len(checkpoints) == len(distinct) > 2:
            sentence = (
                f"the same in all checkpoints, as weights that are not trained would be: {listed}"
            )
            yield _finding("remark", "frozen file", checkpoints, sentence, files=files)
        elif final is None:
            sentence = f"one file, though the other weights are not the same: {listed} of {{names}}"
            yield _finding("fault", "shared file", checkpoints, sentence, files=files)
        else:
            others = [checkpoint for checkpoint in checkpoints if checkpoint not in _ends(history)]
            which = f"{len(files)} of {len(others[0].weights)} weight files, {listed}"
            name = final.revision
            sentence = f"the final weights, those of {name}, in {which}: {{names}}"
            yield _finding("fault", "shared file", others, sentence, same_as=name, files=files)


def _ends(history: History) -> list[CheckpointFiles]:
    return [end for end in (history.last, history.main) if end is not None]


def _distinct_checkpoints(history: History, copied: set[str]) -> list[CheckpointFiles]:
    """Return one checkpoint for each content, copies left out, and the two ends."""
    distinct = {
        checkpoint.content: checkpoint
        for checkpoint in history.readable
        if checkpoint.revision not in copied
    }
    if history.last is not None and history.last.weights:
        distinct[history.last.content] = history.last
    main = history.main
    if main is not None and not any(main.contains(content) for content in distinct):
        distinct[main.content] = main
    return list(distinct.values())


def _files_by_owners(
    checkpoints: Iterable[CheckpointFiles],
) -> Iterator[tuple[list[CheckpointFiles], tuple[str, ...]]]:
    """Yield groups of checkpoints, and the names of the files that all of a group share."""
    # by checksum, the checkpoints that have a file, each by its own name for it
    owners: dict[str, dict[str, tuple[str, CheckpointFiles]]] = {}
    for checkpoint in checkpoints:
        for name, file in {**checkpoint.weights, **checkpoint.other_weights}.items():
            owners.setdefault(file.digest, {})[checkpoint.revision] = name, checkpoint
    # by group of checkpoints, the files that exactly these share: one finding for each group
    shared: dict[tuple[str, ...], dict[str, list[CheckpointFiles]]] = {}
    for by_revision in owners.values():
        if len(by_revision) > 1:
            # the file may have another name in each; that of the first stands for it
            (name, _), *_ = by_revision.values()
            group = [checkpoint for _, checkpoint in by_revision.values()]
            shared.setdefault(tuple(by_revision), {})[name] = group
    for files in shared.values():
        yield next(iter(files.values())), tuple(sorted(files))


def _missing(history: History) -> Iterator[Finding]:
    """Yield the checkpoints without weights that can be read, by reason, and the missing steps."""
    problems: dict[str, list[CheckpointFiles]] = {}
    for checkpoint in history.checkpoints:
        problem = checkpoint.problem or _missing_shards(checkpoint.weights)
        if problem:
            if checkpoint.commit:  # so that one reason is one finding
                problem = problem.replace(checkpoint.commit, "its commit")
            problems.setdefault(problem, []).append(checkpoint)
    for problem, checkpoints in problems.items():
        yield _finding("fault", "missing weights", checkpoints, f"{{names}}: {problem}")
    missing = history.selection.missing_steps
    if missing:
        unverified = history.selection.model and history.selection.model.unverified
        doubt = f"; not verified: {unverified}" if unverified else ""
        sentence = f"described, but not on the hub: {shorten_list([*map(str, missing)])}{doubt}"
        yield Finding("remark" if doubt else "fault", "missing step", sentence, steps=missing)


def _missing_shards(weights: Files) -> str | None:
    """Return which parts of the weights are missing, according to the names of the others."""
    for match in filter(None, map(_SHARD.fullmatch, weights)):
        start, number, of, count, end = match.groups()
        # the name of one shard says how many there are
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
    readable = history.readable
    first = [checkpoint for checkpoint in readable if checkpoint.step in _NO_UPDATE]
    is_equal = len(first) == 2 and first[0].content == first[1].content
    if is_equal and not any(checkpoint.revision in copied for checkpoint in first):
        sentence = "the same weights, as if the learning rate started at zero: {names}"
        yield _finding("remark", "no update", first, sentence)
    main = history.main
    if main is not None and not (history.last and main.contains(history.last.content)):
        served = [checkpoint for checkpoint in readable if main.contains(checkpoint.content)]
        if len(served) == 1:
            sentence = "the main branch serves {names}, not the last step"
            yield _finding("remark", "main", served, sentence)
    yield from _unusual_sizes(readable)


def _unusual_sizes(checkpoints: Sequence[CheckpointFiles]) -> Iterator[Finding]:
    sizes = [total_bytes(checkpoint.weights) for checkpoint in checkpoints]
    # not the mean, which one checkpoint of another precision would move
    usual = median(sizes or [0])
    by_size: dict[str, list[CheckpointFiles]] = {}
    for checkpoint, size in zip(checkpoints, sizes, strict=True):
        if abs(size - usual) > _UNUSUAL * usual:
            by_size.setdefault(gigabytes(size), []).append(checkpoint)
    for size_text, unusual in by_size.items():
        sentence = f"{size_text} of weights, the others {gigabytes(int(usual))}: {{names}}"
        yield _finding("remark", "size", unusual, sentence)


def fault_lines(history: History, findings: Iterable[Finding]) -> Iterator[str]:
    """Yield a line for each fault of a history that a sweep does not run into by itself, as into
    missing weights, and for each report of users."""
    for finding in findings:
        is_met = finding.kind in {"missing weights", "missing step"}
        if (finding.severity == "fault" and not is_met) or finding.kind == "reported":
            yield f"{history.selection.run}: {finding.sentence}"


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
    marks = {name: {"same_as": owner} for name, owner in copied.items()}
    for finding in findings:
        if finding.kind != "shared file" or finding.same_as is None:
            continue
        having = {*copied, *finding.revisions, finding.same_as}
        steps_without = [
            checkpoint.step for checkpoint in history.readable if checkpoint.revision not in having
        ]
        last_without = max(steps_without, default=-1)
        # from there on all have the file: it was not trained any more
        for name, step in zip(finding.revisions, finding.steps, strict=True):
            if step < last_without:
                marks[name] = {"mixed_with": finding.same_as}
    return {
        target: marks[target.revision]
        for target in history.selection.targets
        if target.revision in marks
    }


def models_to_audit(name: str, endpoint: str) -> list[PublishedModel]:
    """Return the models that a name means: of a suite, or all training runs of a hub repository or
    its address.
    """
    if "/" not in name or name.endswith((".yaml", ".yml")):
        return find_models([name])
    repository, _ = repository_and_revision(name, endpoint)
    if not _REPOSITORY.fullmatch(repository):
        raise ValueError(
            "expected a suite, a model of one, a hub repository such as EleutherAI/pythia-70m, or "
            f"its address at {endpoint}, got {name!r}; local folders are measured by repdyn sweep "
            "FOLDER"
        )
    # a repository that no suite describes: its branches and tags with a step in their names
    return models_of(repository) or [
        PublishedModel(
            name=repository,
            suite="",
            run=repository,
            repository=repository,
            revisions=DEFAULT_PATTERN,
        )
    ]

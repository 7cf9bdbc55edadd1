"""The checkpoints that a sweep measures, published or local: their steps and names, and which of
them are selected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING

from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.hub import Files, Hub, choose_files, map_concurrently
from repdyn.checkpoints.options import CompleteOptions
from repdyn.checkpoints.suites import (
    PublishedCheckpoint,
    PublishedModel,
    compile_pattern,
    require_distinct_steps,
)
from repdyn.store import MeasurementKey, Store
from repdyn.store.schema import FINISHED, Checkpoint, Row
from repdyn.utils.mistyped import closest
from repdyn.utils.printing import MAX_LISTED, shorten_list
from repdyn.utils.steps import DEFAULT_PATTERN, whole_number

if TYPE_CHECKING:
    from torch import nn

    from repdyn.measurement.measure import MeasurementOptions
    from repdyn.probe import Probe

_FORMS = (
    '"all", "log", "every:10", or names or steps separated by commas such as '
    '"step0,step1000,143000"'
)

FOREIGN = {
    "same_as": "a copy: it has the weights of",
    "mixed_with": "a mixture: some of its files are those of",
}
"""Why a checkpoint with weights of another one is not measured, by the column of its rows that
names the other one.
"""


@dataclass(frozen=True)
class Target:
    """One checkpoint to measure."""

    run: str
    step: int
    revision: str
    """Branch, tag or folder, the step of a commit ("step512"), or another name for rows and
    messages.
    """
    tokens_seen: int | None = None
    stage: str | None = None
    path: Path | None = None
    """Local folder or file; None for a checkpoint on the hub, described by the following fields."""
    repository: str = ""
    commit: str = ""
    """Full commit hash, or "" if the repository or revision does not exist; for a local path, a
    digest of its files.
    """
    missing_reason: str | None = None
    """Why the checkpoint does not exist."""
    weights_kind: str | None = None
    """"raw" or "averaged", of a local file that holds both; the quantisation of a GGUF file."""
    load: Callable[[], nn.Module] | None = None
    """Loads the model, where the user gives a function in place of files."""

    @property
    def origin(self) -> str:
        """repository@commit, or the path; the repository alone if the checkpoint is missing."""
        if self.path is not None:
            return "" if self.load and not self.commit else str(self.path)
        return "@".join(filter(None, [self.repository, self.commit]))

    def __str__(self) -> str:
        return f"{self.run} {self.revision}"

    def remote_files(self, hub: Hub, choose: Callable[[Files], Files] = choose_files) -> Files:
        """List those of its files that are chosen; none of a local path."""
        if self.path is not None:
            return {}
        if self.missing_reason:
            raise CheckpointError(self.missing_reason)
        return choose(hub.files(self.repository, self.commit))

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint as rows record it."""
        return Checkpoint(
            run=self.run,
            step=self.step,
            tokens_seen=self.tokens_seen,
            stage=self.stage,
            revision=self.revision,
            checkpoint=self.origin or None,
            weights_kind=self.weights_kind,
        )


@dataclass(frozen=True)
class Selection:
    """The selected checkpoints of a training run, and differences from its description."""

    run: str
    targets: tuple[Target, ...]
    model: PublishedModel | None = None
    """The description; None for local checkpoints."""
    unmatched: tuple[str, ...] = ()
    """Branches, tags or titles of commits that do not match the pattern."""
    missing_steps: tuple[int, ...] = ()
    """Steps of the description that the repository does not have."""
    last: Target | None = None
    """The last step of the whole history, selected or not; None if it was not looked up."""
    main: Target | None = None
    """The main branch, if that is no checkpoint."""

    def notes(self) -> list[str]:
        """Describe how a repository differs from its description."""
        unverified = [self.model.unverified] if self.model and self.model.unverified else []
        notes = {
            "not verified, since no page of the publisher states it": unverified,
            "described, but not on the hub": [*map(str, self.missing_steps)],
            (
                "ignored, because they do not match the pattern, have no step in "
                "their names, or no model"
            ): self.unmatched,
        }
        return [
            f"{self.run}: {what}: {shorten_list(which)}" for what, which in notes.items() if which
        ]


@dataclass(frozen=True)
class Task:
    """A checkpoint and the probe it is measured on."""

    target: Target
    probe: Probe

    def key(self, options: CompleteOptions) -> MeasurementKey:
        """Return the key of the measurement in a store."""
        return self.key_of(self.identity(options))

    def key_of(self, identity: str) -> MeasurementKey:
        """Return the key of the measurement of this identity in a store."""
        return MeasurementKey(
            self.target.run, self.target.step, self.probe.hash, identity, self.target.commit
        )

    def identity(self, options: CompleteOptions) -> str:
        """Return what identifies the metrics and how they are measured, on any checkpoint with this
        probe.
        """
        return self.measurement(options).identity(self.probe, options.dtype)

    def identities(self, options: CompleteOptions) -> list[str]:
        """Return the identities under which the measurement may be stored: where the options do not
        say whether the loss is wanted, a measurement without it is enough.
        """
        chosen = [options] if options.loss is not None else [options, replace(options, loss=False)]
        return list(dict.fromkeys(map(self.identity, chosen)))

    def measurement(self, options: CompleteOptions) -> MeasurementOptions:
        """Return what is measured, and how; not the loss on a probe of inputs other than tokens,
        which has none.
        """
        # with torch, which plans do without
        from repdyn.measurement.measure import (
            MeasurementOptions,
        )

        return MeasurementOptions(
            metrics=options.metrics,
            layers=options.layers,
            probe_loss=options.loss is not False and self.probe.inputs is None,
            tokens_per_forward=options.tokens_per_forward,
        )

    def stored_marks(self, store: Store, options: CompleteOptions) -> dict[str, str]:
        """Return the marks that are stored of the checkpoint, which tell whose weights it has; none
        for its own.
        """
        return marks_in(store.rows_of(self.key(options).failed))


def marks_in(rows: Sequence[Row]) -> dict[str, str]:
    """Return the marks in the rows of a checkpoint that was not measured."""
    row = rows[0] if rows else None
    return {name: owner for name in FOREIGN if (owner := getattr(row, name, None))}


@dataclass(frozen=True)
class TaskList:
    """The tasks of a sweep, grouped by their state in the store."""

    waiting: list[Task]
    done: list[Task]
    failed_before: list[Task]
    """Only retried on request."""


def partition_tasks(tasks: Iterable[Task], store: Store, options: CompleteOptions) -> TaskList:
    """Group tasks into those to measure, those done, and those that failed in an earlier sweep."""
    listed = TaskList([], [], [])
    identities: dict[str, list[str]] = {}
    for task in tasks:
        # the same for all checkpoints of a run, and slow to compute where all metrics are meant
        if task.probe.hash not in identities:
            identities[task.probe.hash] = task.identities(options)
        keys = [task.key_of(identity) for identity in identities[task.probe.hash]]
        if any(key in store for key in keys):
            listed.done.append(task)
            continue
        failure = [] if options.retry_failed else store.rows_of(keys[0].failed)
        if not failure or marks_in(failure):
            listed.waiting.append(task)
        else:
            listed.failed_before.append(task)
    return listed


def parse_revision(
    name: str, pattern: str = DEFAULT_PATTERN, tokens_per_step: int | None = None
) -> Target | None:
    r"""Parse the name of a branch, tag or folder to a checkpoint of no run yet; None if the
    pattern, a regular expression with the group ``step``, and optionally ``tokens`` and ``stage``,
    does not match all of it.

    >>> found = parse_revision("stage1-step1000-tokens5B")
    >>> found.revision, found.step, found.tokens_seen, found.stage
    ('stage1-step1000-tokens5B', 1000, 5000000000, 'stage1')
    >>> parse_revision("step512", r"step(?P<step>\d+)", tokens_per_step=2097152).tokens_seen
    1073741824
    """
    found = compile_pattern(pattern).fullmatch(name)
    groups = found.groupdict() if found else {}
    if groups.get("step") is None:
        return None
    step = whole_number(groups["step"], f"step of {name!r}")
    tokens = (
        None
        if tokens_per_step is None
        else whole_number(str(tokens_per_step * step), f"tokens of {name!r}")
    )
    if groups.get("tokens") is not None:
        tokens = whole_number(groups["tokens"], f"tokens of {name!r}")
    return Target("", step, name, tokens, groups.get("stage"))


def match_revisions(
    names: Iterable[str], pattern: str = DEFAULT_PATTERN, tokens_per_step: int | None = None
) -> tuple[list[Target], list[str]]:
    """Split names into checkpoints, by ascending step, and others; arguments as for
    :func:`parse_revision`.
    """
    read = {name: parse_revision(name, pattern, tokens_per_step) for name in names}
    found = sorted(filter(None, read.values()), key=lambda place: (place.step, place.revision))
    require_distinct_steps(
        [(place.step, repr(place.revision)) for place in found],
        r"name one stage with a narrower pattern, such as 'stage1-step(?P<step>\d+).*'",
    )
    return found, [name for name, place in read.items() if place is None]


def select_revisions(revisions: Sequence[Target], spec: str) -> list[Target]:
    """Select checkpoints, by ascending step.

    >>> steps = [Target("run", step, f"step{step}") for step in (0, 1, 2, 5, 6, 7, 8, 9)]
    >>> [place.step for place in select_revisions(steps, "log")]
    [0, 1, 2, 5, 8, 9]
    >>> [place.step for place in select_revisions(steps, "every:3")]
    [0, 5, 8, 9]

    Args:
        revisions: with distinct steps, as :func:`match_revisions` gives them.
        spec: "all"; "log": the first, the last, and for each power of two the nearest step within a
            factor of the square root of 2; "every:10": every tenth, the first and the last; or
            names or steps separated by commas.
    """
    ordered = sorted(revisions, key=lambda place: place.step)
    every = re.fullmatch(r"every:0*([1-9]\d*)", spec)
    if spec == "all":
        return ordered
    if spec == "log":
        later = [at for at in ordered if at.step > 0]
        chosen = {*ordered[:1], *ordered[-1:]}
        for exponent in range(ordered[-1].step.bit_length() if later else 0):
            nearest = min(later, key=lambda at: abs(log2(at.step) - exponent))
            if abs(log2(nearest.step) - exponent) <= 0.5:
                chosen.add(nearest)
    elif every:
        chosen = {*ordered[:: int(every[1])], *ordered[-1:]}
    else:
        chosen = _named(ordered, spec)
    return [place for place in ordered if place in chosen]


def _named(ordered: Sequence[Target], spec: str) -> set[Target]:
    by_name = {str(place.step): place for place in ordered} | {
        place.revision: place for place in ordered
    }
    wanted = [name.strip() for name in spec.split(",")]
    if not all(wanted) or (":" in spec and not set(wanted) <= set(by_name)):
        raise ValueError(f"expected {_FORMS}, got {spec!r}")
    if absent := {name: closest(name, by_name) for name in wanted if name not in by_name}:
        listed = ", ".join(
            f"{name!r}" + (f" (closest: {near!r})" if near else "") for name, near in absent.items()
        )
        raise ValueError(f"expected {_FORMS}; got names or steps that do not exist: {listed}")
    return {by_name[name] for name in wanted}


def select_models(
    models: Iterable[PublishedModel], hub: Hub, revisions: str
) -> tuple[list[Selection], list[str]]:
    """Select checkpoints of several models, and return why some have none: what is wrong with one
    stops no other.
    """
    selections: list[Selection] = []
    problems: list[str] = []
    invalid: list[ValueError] = []
    for model in models:
        try:
            branches, steps = _named_branches(model, hub, revisions)
            if steps or not branches:
                selections.append(select_targets(model, hub, steps))
            selections += branches
        except CheckpointError as error:
            problems.append(f"{model.name}: {error}")
        except ValueError as error:
            problems.append(f"{model.name}: {error}")
            invalid.append(error)
    if invalid and not selections:
        raise invalid[0]
    return selections, problems


def _named_branches(model: PublishedModel, hub: Hub, revisions: str) -> tuple[list[Selection], str]:
    """Return the branches and tags without a step that are named, such as main, each as a finished
    model of its own beside the run, and what is left to select from the steps.
    """
    if model.checkpoints or model.commits or re.fullmatch(r"all|log|every:\d+", revisions):
        return [], revisions
    pattern = model.revisions or DEFAULT_PATTERN
    wanted = [name.strip() for name in revisions.split(",")]
    if not (stepless := [name for name in wanted if not _has_step(name, pattern)]):
        return [], revisions
    repository = str(model.repository)
    commits = hub.refs(repository)
    branches = []
    for name in dict.fromkeys(stepless):
        if name in commits:
            run = f"{model.run} ({name})"
            target = Target(
                run, 0, name, stage=FINISHED, repository=repository, commit=commits[name]
            )
            branches.append(Selection(run, (target,), replace(model, run=run, unverified=None)))
    used = {branch.targets[0].revision for branch in branches}
    return branches, ",".join(name for name in wanted if name not in used)


def _has_step(name: str, pattern: str) -> bool:
    return name.isdecimal() or parse_revision(name, pattern) is not None


def select_targets(model: PublishedModel, hub: Hub, revisions: str = "all") -> Selection:
    """Select the checkpoints of a published training run; ``revisions`` as for
    :func:`select_revisions`.
    """
    if model.checkpoints:
        return _select_listed(model, hub, revisions)
    repository = str(model.repository)
    pattern = model.revisions or model.commits or DEFAULT_PATTERN
    commits, kind = {}, "revisions"
    if model.commits:
        kind = f"commits on branch {model.branch}"
        found, unmatched = _titled_commits(model, pattern, hub)
    else:
        commits = hub.refs(repository)
        parsed, unmatched = match_revisions(list(commits), pattern, model.tokens_per_step)
        found = [replace(at, commit=commits[at.revision]) for at in parsed]
    if not found:
        raise ValueError(
            f"expected {kind} of {repository} that match {pattern!r}, got "
            f"{', '.join(sorted(unmatched)[:MAX_LISTED]) or f'no {kind}'}; check the pattern"
        )
    found = [replace(at, run=model.run, repository=repository) for at in found]
    last, main = found[-1], None
    if commits and "main" in unmatched:
        main = Target(model.run, last.step, "main", repository=repository, commit=commits["main"])
    chosen, missing = (
        select_revisions(found, revisions),
        sorted(set(model.expected) - {at.step for at in found}),
    )
    return Selection(model.run, tuple(chosen), model, tuple(unmatched), tuple(missing), last, main)


def _titled_commits(
    model: PublishedModel, pattern: str, hub: Hub
) -> tuple[list[Target], list[str]]:
    """Return the checkpoints by step, of several commits of a step the newest, and other titles."""
    by_step: dict[int, Target] = {}
    unmatched: dict[str, None] = {}
    for commit, title in reversed(hub.commits(str(model.repository), model.branch)):
        if (parsed := parse_revision(title, pattern, model.tokens_per_step)) is None:
            unmatched[title] = None
        else:
            by_step[parsed.step] = replace(parsed, revision=f"step{parsed.step}", commit=commit)
    return [by_step[step] for step in sorted(by_step)], [*reversed(unmatched)]


def _select_listed(model: PublishedModel, hub: Hub, revisions: str) -> Selection:
    """Select individually listed checkpoints, including missing ones."""
    by_step = {at.step: at.revision for at in model.checkpoints}
    is_in_one = len({at.repository for at in model.checkpoints}) == 1
    found = [
        Target(
            model.run, at.step, _name(at, is_in_one), at.tokens, at.stage, repository=at.repository
        )
        for at in model.checkpoints
    ]

    def look_up(target: Target) -> Target:
        try:
            return replace(target, commit=hub.commit(target.repository, by_step[target.step]))
        except CheckpointError as error:
            return replace(target, missing_reason=str(error))

    targets = tuple(map_concurrently(look_up, select_revisions(found, revisions)))
    last = next((target for target in targets if target.step == max(by_step)), None)
    return Selection(model.run, targets, model, last=last)


def _name(at: PublishedCheckpoint, is_in_one: bool) -> str:
    """Return the name of a listed checkpoint, without the repository where all of them are
    in one.
    """
    if is_in_one:
        return at.revision
    return at.repository if at.revision == "main" else f"{at.repository}/{at.revision}"

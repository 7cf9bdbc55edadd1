"""The checkpoints that a sweep measures: their steps and names, and those that are selected of a published history."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING

from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.hub import ADAPTER, Files, Hub, choose_files, files_in, map_concurrently
from repdyn.checkpoints.suites import KnownFault, PublishedCheckpoint, PublishedModel, compile_pattern, whole_number
from repdyn.store import MeasurementKey
from repdyn.store.schema import Checkpoint
from repdyn.utils.printing import MAX_LISTED

if TYPE_CHECKING:
    from torch import nn

# A number, with or without a unit, that no letter or digit follows: "240k", not the 1 of "v1.0".
_END = r"(?![A-Za-z0-9]|\.\d)"
_NUMBER = rf"[0-9]+(?:\.[0-9]+(?=[kmbtKMBT]))?[kmbtKMBT]?{_END}"
_LONGEST_NAME = 500

DEFAULT_PATTERN = (
    rf"(?:(?=.*tokens?[-_=]?(?P<tokens>{_NUMBER})))?"
    r"(?:(?P<stage>stage\d.*?)[-_](?=step))?"
    rf"(?:.*(?:step|checkpoint|ckpt|iter|iteration)s?[-_=]?|(?={_NUMBER}$))(?P<step>{_NUMBER}).*"
)
"""Default pattern: a number after "step", "checkpoint", "ckpt" or "iter", or nothing but a number; tokens and stage if
present. Any other number may be the size or version of the model."""

_FORMS = '"all", "log", "every:10", or names or steps separated by commas such as "step0,step1000,143000"'


@dataclass(frozen=True)
class Target:
    """One checkpoint to measure."""

    run: str
    step: int
    revision: str
    """Branch, tag or folder, the step of a commit ("step512"), or another name for rows and messages."""
    tokens_seen: int | None = None
    stage: str | None = None
    path: Path | None = None
    """Local folder or file; None for a checkpoint on the hub, described by the following fields."""
    repository: str = ""
    commit: str = ""
    """Full commit hash, or "" if the repository or revision does not exist; for a local path, a digest of its files."""
    subfolder: str = ""
    missing_reason: str | None = None
    """Why the checkpoint does not exist."""
    weights_kind: str | None = None
    """"raw" or "averaged", of a local file that holds both; the quantisation of a GGUF file."""
    load: Callable[[], nn.Module] | None = None
    """Loads the model, where the user gives a function in place of files."""

    @property
    def origin(self) -> str:
        """repository@commit with the subfolder, or the path; the repository alone if the checkpoint is missing."""
        if self.load is not None:
            return ""
        if self.path is not None:
            return str(self.path)
        commit = f"@{self.commit}" if self.commit else ""
        return f"{self.repository}{commit}{f'/{self.subfolder}' if self.subfolder else ''}"

    def __str__(self) -> str:
        return f"{self.run} {self.revision}"

    def remote_files(self, hub: Hub, *, with_code: bool = False) -> Files:
        """List the files to download; none for a local path."""
        if self.path is not None:
            return {}
        if self.missing_reason:
            raise CheckpointError(self.missing_reason)
        here = files_in(hub.files(self.repository, self.commit), self.subfolder)
        prefix = f"{self.subfolder}/" if self.subfolder else ""
        return {prefix + name: file for name, file in choose_files(here, with_code=with_code).items()}

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint as rows record it."""
        return Checkpoint(
            self.run,
            step=self.step,
            tokens_seen=self.tokens_seen,
            stage=self.stage,
            revision=self.revision,
            checkpoint=self.origin or None,
            weights_kind=self.weights_kind,
        )

    def key(self, probe_hash: str, metrics: str) -> MeasurementKey:
        """Return the store key of its measurement."""
        return MeasurementKey(self.run, self.step, probe_hash, metrics, self.commit)


def location_of(origin: str) -> str:
    """Return the owner on the hub, or the parent folder, of an origin.

    >>> [location_of(origin) for origin in ("google/multiberts-seed_0@0123abc", "gpt2@0123abc", "/runs/a/step8")]
    ['google', 'gpt2', '/runs/a']
    """
    if origin.startswith("/"):
        return origin.rpartition("/")[0]
    return origin.partition("@")[0].partition("/")[0]


@dataclass(frozen=True)
class Selection:
    """The selected checkpoints of a training run, and differences from its description."""

    run: str
    targets: tuple[Target, ...]
    unmatched: tuple[str, ...] = ()
    """Branches, tags, folders or titles of commits that do not match the pattern."""
    missing_steps: tuple[int, ...] = ()
    """Steps of the description that the repository does not have."""
    last: Target | None = None
    """The last step of the whole history, selected or not; None if it was not looked up."""
    main: Target | None = None
    """The main branch, or the root of a repository whose folders are the checkpoints, if that is no checkpoint."""
    known_faults: tuple[KnownFault, ...] = ()
    """What users reported of the history."""
    superseded: tuple[str, ...] = ()
    """Commits that a newer commit of the same step replaced, by the first digits of their hash."""
    unverified: str | None = None
    """The part of the description that no page of the publisher states."""


def parse_revision(name: str, pattern: str = DEFAULT_PATTERN, tokens_per_step: int | None = None) -> Target | None:
    r"""Parse a name to a checkpoint of no run yet; None if the pattern does not match all of it.

    >>> found = parse_revision("stage1-step1000-tokens5B")
    >>> found.revision, found.step, found.tokens_seen, found.stage
    ('stage1-step1000-tokens5B', 1000, 5000000000, 'stage1')
    >>> parse_revision("step512", r"step(?P<step>\d+)", tokens_per_step=2097152).tokens_seen
    1073741824
    >>> parse_revision("main") is None
    True

    Args:
        name: branch, tag or folder.
        pattern: regular expression with the group ``step``, and optionally ``tokens`` and ``stage``.
        tokens_per_step: for names without the number of tokens.
    """
    # branch names are not longer, and matching takes quadratic time
    found = compile_pattern(pattern).fullmatch(name) if len(name) <= _LONGEST_NAME else None
    groups = found.groupdict() if found else {}
    if groups.get("step") is None:
        return None
    step = whole_number(groups["step"], f"step of {name!r}")
    tokens = None if tokens_per_step is None else whole_number(str(tokens_per_step * step), f"tokens of {name!r}")
    if groups.get("tokens") is not None:
        tokens = whole_number(groups["tokens"], f"tokens of {name!r}")
    return Target("", step, name, tokens, groups.get("stage"))


def match_revisions(
    names: Iterable[str], pattern: str = DEFAULT_PATTERN, tokens_per_step: int | None = None
) -> tuple[list[Target], list[str]]:
    """Split names into checkpoints, by ascending step, and others; arguments as for :func:`parse_revision`."""
    read = {name: parse_revision(name, pattern, tokens_per_step) for name in names}
    found = sorted((place for place in read.values() if place), key=lambda place: (place.step, place.revision))
    for one, other in pairwise(found):
        if one.step == other.step:
            raise ValueError(
                f"expected one checkpoint for each step, got {one.revision!r} and {other.revision!r} for {one.step}; "
                r"name one stage with a narrower pattern, such as 'stage1-step(?P<step>\d+).*'"
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
        spec: "all"; "log": the first, the last, and for each power of two the nearest step within a factor of
            the square root of 2; "every:10": every tenth, the first and the last; or names or steps separated by
            commas.
    """
    ordered = sorted(revisions, key=lambda place: place.step)
    every = re.fullmatch(r"every:0*([1-9]\d*)", spec)
    if spec == "all":
        return ordered
    if spec == "log":
        chosen = {*ordered[:1], *ordered[-1:], *_nearest_to_powers_of_two(ordered)}
    elif every:
        chosen = {*ordered[:: int(every[1])], *ordered[-1:]}
    else:
        chosen = _named(ordered, spec)
    return [place for place in ordered if place in chosen]


def _nearest_to_powers_of_two(ordered: Sequence[Target]) -> set[Target]:
    later = [at for at in ordered if at.step > 0]
    chosen = set()
    for exponent in range(ordered[-1].step.bit_length() if later else 0):
        nearest = min(later, key=lambda at: abs(log2(at.step) - exponent))
        if abs(log2(nearest.step) - exponent) <= 0.5:
            chosen.add(nearest)
    return chosen


def _named(ordered: Sequence[Target], spec: str) -> set[Target]:
    by_name = {str(place.step): place for place in ordered} | {place.revision: place for place in ordered}
    wanted = [name.strip() for name in spec.split(",")]
    if not all(wanted) or (":" in spec and not set(wanted) <= set(by_name)):
        raise ValueError(f"expected {_FORMS}, got {spec!r}")
    absent = [name for name in wanted if name not in by_name]
    if absent:
        hints = {name: difflib.get_close_matches(name, by_name, n=1) for name in absent}
        listed = ", ".join(f"{name!r}" + (f" (closest: {near[0]!r})" if near else "") for name, near in hints.items())
        raise ValueError(f"expected {_FORMS}; got names or steps that do not exist: {listed}")
    return {by_name[name] for name in wanted}


def select_models(
    models: Iterable[PublishedModel], hub: Hub, revisions: str
) -> tuple[list[tuple[PublishedModel, Selection]], list[str]]:
    """Select checkpoints of several models, and return why some have none: what is wrong with one stops no other."""
    found, problems, invalid = [], [], []
    for model in models:
        try:
            found.append((model, select_targets(model, hub, revisions)))
        except (CheckpointError, ValueError) as error:
            problems.append(f"{model.name}: {error}")
            invalid += [error] * isinstance(error, ValueError)
    if invalid and not found:
        raise invalid[0]
    return found, problems


def select_targets(model: PublishedModel, hub: Hub, revisions: str = "all") -> Selection:
    """Select the checkpoints of a published training run; ``revisions`` as for :func:`select_revisions`."""
    if model.checkpoints:
        return _select_listed(model, hub, revisions)
    repository, superseded = str(model.repository), []
    pattern = model.revisions or model.subfolders or model.commits or DEFAULT_PATTERN
    commits: dict[str, str] = {}
    if model.commits:
        kind = f"commits on branch {model.branch}"
        found, unmatched, superseded = _titled_commits(model, pattern, hub)
    else:
        kind = "folders" if model.subfolders else "revisions"
        commits = _folders(repository, hub) if model.subfolders else hub.refs(repository)
        parsed, unmatched = match_revisions(list(commits), pattern, model.tokens_per_step)
        found = [
            replace(at, commit=commits[at.revision], subfolder=at.revision if model.subfolders else "") for at in parsed
        ]
    if not found:
        raise ValueError(
            f"expected {kind} of {repository} that match {pattern!r}, got "
            f"{', '.join(sorted(unmatched)[:MAX_LISTED]) or f'no {kind}'}; check the pattern"
        )
    found = [replace(at, run=model.run, repository=repository) for at in found]
    last, main = found[-1], None
    if model.subfolders:
        main = replace(last, revision="main", subfolder="")
    elif not model.commits and "main" in unmatched:
        main = Target(model.run, last.step, "main", repository=repository, commit=commits["main"])
    return Selection(
        model.run,
        tuple(select_revisions(found, revisions)),
        tuple(unmatched),
        tuple(sorted(set(model.expected) - {revision.step for revision in found})),
        last,
        main,
        model.known_faults,
        tuple(superseded),
        model.unverified,
    )


def _titled_commits(model: PublishedModel, pattern: str, hub: Hub) -> tuple[list[Target], list[str], list[str]]:
    """Return the checkpoints by step, other titles, and commits that newer ones replaced."""
    by_step: dict[int, Target] = {}
    unmatched: dict[str, None] = {}
    superseded = []
    for commit, title in hub.commits(str(model.repository), model.branch):
        parsed = parse_revision(title, pattern, model.tokens_per_step)
        if parsed is None:
            unmatched[title] = None
        elif parsed.step in by_step:
            superseded.append(commit[:12])
        else:
            by_step[parsed.step] = replace(parsed, revision=f"step{parsed.step}", commit=commit)
    return [by_step[step] for step in sorted(by_step)], list(unmatched), superseded


def _folders(repository: str, hub: Hub) -> dict[str, str]:
    """Return the folders with a model on the main branch, with its commit."""
    commit = hub.commit(repository, "main")
    folders = {
        path.rpartition("/")[0]
        for path in hub.files(repository, commit)
        if path.endswith(("/config.json", f"/{ADAPTER}"))
    }
    return dict.fromkeys(sorted(folders), commit)


def _select_listed(model: PublishedModel, hub: Hub, revisions: str) -> Selection:
    """Select individually listed checkpoints, including missing ones."""
    by_step = {at.step: at.revision for at in model.checkpoints}
    found = [
        Target(model.run, at.step, name, at.tokens, at.stage, repository=at.repository, subfolder=at.subfolder)
        for name, at in zip(_names(model.checkpoints), model.checkpoints, strict=True)
    ]

    def look_up(target: Target) -> Target:
        try:
            return replace(target, commit=hub.commit(target.repository, by_step[target.step]))
        except CheckpointError as error:
            return replace(target, missing_reason=str(error))

    targets = tuple(map_concurrently(look_up, select_revisions(found, revisions)))
    last = next((target for target in targets if target.step == max(by_step)), None)
    return Selection(model.run, targets, last=last, known_faults=model.known_faults, unverified=model.unverified)


def _names(checkpoints: Sequence[PublishedCheckpoint]) -> list[str]:
    """Return the shortest names that distinguish listed checkpoints."""
    if len({at.repository for at in checkpoints}) == 1:
        return ["/".join(filter(None, [at.revision, at.subfolder])) for at in checkpoints]
    inside = [["" if at.revision == "main" else at.revision, at.subfolder] for at in checkpoints]
    for full in (False, True):
        repositories = [at.repository if full else at.repository.rpartition("/")[2] for at in checkpoints]
        names = ["/".join(filter(None, [name, *where])) for name, where in zip(repositories, inside, strict=True)]
        if len(set(names)) == len(names):
            break
    return names

"""The checkpoints that a sweep measures, on the hub: the location of their weights, and their names in rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.hub import ADAPTER, Files, Hub, choose_files, map_concurrently
from repdyn.checkpoints.revisions import (
    DEFAULT_PATTERN,
    Revision,
    match_revisions,
    parse_revision,
    select_revisions,
)
from repdyn.checkpoints.suites import KnownFault, PublishedCheckpoint, PublishedModel
from repdyn.store import MeasurementKey
from repdyn.store.schema import Checkpoint
from repdyn.utils.printing import MAX_LISTED

if TYPE_CHECKING:
    from torch import nn


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
    """"raw" or "averaged", of a local file that holds both."""
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
        return choose_files(hub.files(self.repository, self.commit), self.subfolder, with_code=with_code)

    @property
    def location(self) -> str:
        """The location that all checkpoints of a run share; see :func:`location_of`."""
        return location_of(self.origin)

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
    if model.commits:
        kind = f"commits on branch {model.branch}"
        found, commits, unmatched, superseded = _titled_commits(model, pattern, hub)
    else:
        kind = "folders" if model.subfolders else "revisions"
        commits = _folders(repository, hub) if model.subfolders else hub.refs(repository)
        found, unmatched = match_revisions(list(commits), pattern, model.tokens_per_step)
    if not found:
        raise ValueError(
            f"expected {kind} of {repository} that match {pattern!r}, got "
            f"{', '.join(sorted(unmatched)[:MAX_LISTED]) or f'no {kind}'}; check the pattern"
        )

    def target(at: Revision) -> Target:
        folder = at.name if model.subfolders else ""
        where: dict[str, Any] = {"repository": repository, "commit": commits[at.name], "subfolder": folder}
        return Target(model.run, at.step, at.name, at.tokens_seen, at.stage, **where)

    last, main = target(found[-1]), None
    if model.subfolders:
        main = replace(last, revision="main", subfolder="")
    elif not model.commits and "main" in unmatched:
        main = Target(model.run, last.step, "main", repository=repository, commit=commits["main"])
    return Selection(
        model.run,
        tuple(map(target, select_revisions(found, revisions))),
        tuple(unmatched),
        tuple(sorted(set(model.expected) - {revision.step for revision in found})),
        last,
        main,
        model.known_faults,
        tuple(superseded),
        model.unverified,
    )


def _titled_commits(
    model: PublishedModel, pattern: str, hub: Hub
) -> tuple[list[Revision], dict[str, str], list[str], list[str]]:
    """Return the checkpoints by step, the commit of each, other titles, and commits that newer ones replaced."""
    by_step: dict[int, Revision] = {}
    commits: dict[str, str] = {}
    unmatched: dict[str, None] = {}
    superseded = []
    for commit, title in hub.commits(str(model.repository), model.branch):
        parsed = parse_revision(title, pattern, model.tokens_per_step)
        if parsed is None:
            unmatched[title] = None
        elif parsed.step in by_step:
            superseded.append(commit[:12])
        else:
            by_step[parsed.step] = replace(parsed, name=f"step{parsed.step}")
            commits[f"step{parsed.step}"] = commit
    return [by_step[step] for step in sorted(by_step)], commits, list(unmatched), superseded


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
    by_step = {checkpoint.step: checkpoint for checkpoint in model.checkpoints}
    names = zip(_names(model.checkpoints), model.checkpoints, strict=True)
    found = [Revision(name, at.step, at.tokens, at.stage) for name, at in names]

    def look_up(at: Revision) -> Target:
        listed = by_step[at.step]
        where: dict[str, Any] = {"repository": listed.repository, "subfolder": listed.subfolder}
        target = Target(model.run, at.step, at.name, at.tokens_seen, at.stage, **where)
        try:
            return replace(target, commit=hub.commit(listed.repository, listed.revision))
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

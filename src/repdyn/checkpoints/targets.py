"""The checkpoints that a sweep measures, on the hub: the location of their weights, and their names in rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.hub import Files, Hub, choose_files, map_concurrently
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
        """List the files to download; none for a local path.

        Raises:
            CheckpointError: the checkpoint is missing, or has no weights in a supported format.
        """
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


def select_targets(model: PublishedModel, hub: Hub, revisions: str = "all") -> Selection:
    """Select the checkpoints of a published training run.

    Args:
        model: a model of a suite, or a description of a repository.
        hub: hub that lists branches, tags, folders, commits and their titles.
        revisions: "all", "log", "every:10", or names or steps separated by commas.

    Raises:
        ValueError: ``revisions`` selects unknown checkpoints, or nothing matches the pattern of the model.
        CheckpointError: the repository cannot be listed.
    """
    if model.checkpoints:
        return _select_listed(model, hub, revisions)
    if model.repository is None:
        raise ValueError(f"expected a repository or a list of checkpoints for {model.name}, got neither")
    history = _history(model, hub)
    found, commits = history.found, history.commits
    if not found:
        raise ValueError(
            f"expected {history.kind} of {model.repository} that match {history.pattern!r}, got "
            f"{', '.join(sorted(history.unmatched)[:MAX_LISTED]) or f'no {history.kind}'}; check the pattern"
        )
    repository = model.repository

    def target(revision: Revision) -> Target:
        return Target(
            model.run,
            revision.step,
            revision.name,
            revision.tokens_seen,
            revision.stage,
            repository=repository,
            commit=commits[revision.name],
            subfolder=revision.name if model.subfolders else "",
        )

    last = target(max(found, key=lambda revision: revision.step))
    return Selection(
        model.run,
        tuple(target(revision) for revision in select_revisions(found, revisions)),
        tuple(history.unmatched),
        tuple(sorted(set(model.expected) - {revision.step for revision in found})),
        last,
        None if model.commits else _main(repository, last, commits, history.unmatched),
        model.known_faults,
        tuple(history.superseded),
        model.unverified,
    )


def _main(repository: str, last: Target, commits: Mapping[str, str], unmatched: Sequence[str]) -> Target | None:
    if last.subfolder:
        return replace(last, revision="main", subfolder="")
    if "main" not in unmatched:
        return None
    return Target(last.run, last.step, "main", repository=repository, commit=commits["main"])


@dataclass(frozen=True)
class _History:
    """The checkpoints of a repository, by ascending step, and what else it has."""

    kind: str
    pattern: str
    found: Sequence[Revision]
    commits: Mapping[str, str]
    """Hash of the commit of each checkpoint, by its name; of other branches and tags too."""
    unmatched: Sequence[str]
    superseded: Sequence[str] = ()


def _history(model: PublishedModel, hub: Hub) -> _History:
    if model.commits:
        return _history_of_commits(model, model.commits, hub)
    commits = _commits(model, hub)
    pattern = model.revisions or model.subfolders or DEFAULT_PATTERN
    found, unmatched = match_revisions(list(commits), pattern, model.tokens_per_step)
    return _History("folders" if model.subfolders else "revisions", pattern, found, commits, unmatched)


def _history_of_commits(model: PublishedModel, pattern: str, hub: Hub) -> _History:
    """Match the titles of the commits of a branch; of several commits of one step the newest is its checkpoint."""
    by_step: dict[int, Revision] = {}
    commits: dict[str, str] = {}
    unmatched: dict[str, None] = {}
    superseded = []
    for commit in hub.commits(str(model.repository), model.branch):
        parsed = parse_revision(commit.title, pattern, model.tokens_per_step)
        if parsed is None:
            unmatched[commit.title] = None
        elif parsed.step in by_step:
            superseded.append(commit.name[:12])
        else:
            by_step[parsed.step] = replace(parsed, name=f"step{parsed.step}")
            commits[f"step{parsed.step}"] = commit.name
    found = [by_step[step] for step in sorted(by_step)]
    return _History(f"commits on branch {model.branch}", pattern, found, commits, list(unmatched), superseded)


def _commits(model: PublishedModel, hub: Hub) -> dict[str, str]:
    """Return the commits of all branches and tags, or of the folders of the main branch."""
    repository = str(model.repository)
    if not model.subfolders:
        return hub.refs(repository)
    commit = hub.commit(repository, "main")
    folders = {path.rpartition("/")[0] for path in hub.files(repository, commit) if path.endswith("/config.json")}
    return dict.fromkeys(sorted(folders), commit)


def _select_listed(model: PublishedModel, hub: Hub, revisions: str) -> Selection:
    """Select individually listed checkpoints, including missing ones."""
    by_step = {checkpoint.step: checkpoint for checkpoint in model.checkpoints}
    names = zip(_names(model.checkpoints), model.checkpoints, strict=True)
    found = [Revision(name, at.step, at.tokens_seen, at.stage) for name, at in names]

    def look_up(revision: Revision) -> Target:
        checkpoint = by_step[revision.step]
        target = Target(
            model.run,
            revision.step,
            revision.name,
            revision.tokens_seen,
            revision.stage,
            repository=checkpoint.repository,
            subfolder=checkpoint.subfolder,
        )
        try:
            return replace(target, commit=hub.commit(checkpoint.repository, checkpoint.revision))
        except CheckpointError as error:
            return replace(target, missing_reason=str(error))

    targets = tuple(map_concurrently(look_up, select_revisions(found, revisions)))
    last = next((target for target in targets if target.step == max(by_step)), None)
    return Selection(model.run, targets, last=last, known_faults=model.known_faults, unverified=model.unverified)


def _names(checkpoints: Sequence[PublishedCheckpoint]) -> list[str]:
    """Return the shortest names that distinguish listed checkpoints.

    Checkpoints of one repository are named by their revision and folder, others by their repository, with its owner
    only if that is needed.
    """
    if len({at.repository for at in checkpoints}) == 1:
        return ["/".join(filter(None, [at.revision, at.subfolder])) for at in checkpoints]
    inside = [["" if at.revision == "main" else at.revision, at.subfolder] for at in checkpoints]
    for full in (False, True):
        repositories = [at.repository if full else at.repository.rpartition("/")[2] for at in checkpoints]
        names = ["/".join(filter(None, [name, *where])) for name, where in zip(repositories, inside, strict=True)]
        if len(set(names)) == len(names):
            break
    return names

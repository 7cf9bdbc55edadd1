"""What a sweep measures: each checkpoint with where its weights lie and how its rows name it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from repdyn.hub.client import Files, Hub
from repdyn.hub.errors import CheckpointError
from repdyn.hub.revisions import DEFAULT_PATTERN, Revision, match_revisions, select_revisions
from repdyn.hub.weights import choose_files
from repdyn.store import MeasurementKey
from repdyn.store.schema import Checkpoint
from repdyn.sweep.suites import PublishedCheckpoint, PublishedModel

_CONCURRENT_LOOKUPS = 8
T = TypeVar("T")
Result = TypeVar("Result")


def concurrently(look_up: Callable[[T], Result], items: Iterable[T]) -> list[Result]:
    """Apply a function that waits for the hub to each item, several at a time, in order."""
    with ThreadPoolExecutor(_CONCURRENT_LOOKUPS) as pool:
        return list(pool.map(look_up, items))


@dataclass(frozen=True)
class Target:
    """One checkpoint to measure."""

    run: str
    step: int
    revision: str
    """Branch, tag or folder name, as rows and messages name it."""
    tokens_seen: int | None = None
    stage: str | None = None
    path: Path | None = None
    """A local folder or file, or else None and the next three."""
    repository: str = ""
    commit: str = ""
    """Full id; "" where the repository or revision does not exist, and then ``missing`` says so. Of a local path, a
    digest of what lies there now."""
    subfolder: str = ""
    missing: str | None = None
    """Why there is nothing to fetch."""

    @property
    def origin(self) -> str:
        """repository@commit, with the subfolder, or the path; of what is missing the repository alone."""
        if self.path is not None:
            return str(self.path)
        commit = f"@{self.commit}" if self.commit else ""
        return f"{self.repository}{commit}{f'/{self.subfolder}' if self.subfolder else ''}"

    def __str__(self) -> str:
        return f"{self.run} {self.revision}"

    def remote_files(self, hub: Hub, *, with_code: bool = False) -> Files:
        """List the files to download; none for a local path.

        Raises:
            CheckpointError: the checkpoint is missing, or has no weights that can be read.
        """
        if self.path is not None:
            return {}
        if self.missing:
            raise CheckpointError(self.missing)
        return choose_files(hub.files(self.repository, self.commit), self.subfolder, with_code=with_code)

    @property
    def place(self) -> str:
        """The place that all checkpoints of a training share: see :func:`place_of`."""
        return place_of(self.origin)

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint as rows record it."""
        return Checkpoint(
            self.run,
            step=self.step,
            tokens_seen=self.tokens_seen,
            stage=self.stage,
            revision=self.revision,
            checkpoint=self.origin,
        )

    def key(self, probe_hash: str, chosen: str) -> MeasurementKey:
        """The key under which the store keeps it."""
        return MeasurementKey(self.run, self.step, probe_hash, chosen, self.commit)


def place_of(origin: str) -> str:
    """The owner on the hub, or the local folder, that an origin lies in.

    >>> place_of("google/multiberts-seed_0-step_20k@0123abc"), place_of("gpt2@0123abc"), place_of("/runs/a/step8")
    ('google', 'gpt2', '/runs/a')
    """
    if origin.startswith("/"):
        return origin.rpartition("/")[0]
    return origin.partition("@")[0].partition("/")[0]


@dataclass(frozen=True)
class Selection:
    """The checkpoints of one history that are to be measured, and what about the history was not as described."""

    run: str
    targets: tuple[Target, ...]
    others: tuple[str, ...] = ()
    """Branches, tags or folders that are no checkpoints by the pattern."""
    absent: tuple[int, ...] = ()
    """Steps that the description promises and the repository does not have."""


def select_targets(model: PublishedModel, hub: Hub, revisions: str = "all") -> Selection:
    """The checkpoints of a published history.

    Args:
        model: from a suite, or made up for one repository.
        hub: asked for branches, tags, folders and commits.
        revisions: "all", "log", "every:10", or names or steps separated by commas.

    Raises:
        ValueError: ``revisions`` names what is not there, or nothing matches the history's pattern.
        CheckpointError: the repository cannot be listed.
    """
    if model.checkpoints:
        return _select_listed(model, hub, revisions)
    if model.repository is None:
        raise ValueError(f"expected a repository or a list of checkpoints for {model.name}, got neither")
    commits = _places(model, hub)
    pattern = model.revisions or model.subfolders or DEFAULT_PATTERN
    found, others = match_revisions(list(commits), pattern, model.tokens_per_step)
    if not found:
        raise ValueError(
            f"expected revisions of {model.repository} that match {pattern!r}, found none among "
            f"{', '.join(sorted(commits)[:8]) or 'none at all'}; check the pattern"
        )
    targets = [
        Target(
            model.run,
            place.step,
            place.name,
            place.tokens_seen,
            place.stage,
            repository=model.repository,
            commit=commits[place.name],
            subfolder=place.name if model.subfolders else "",
        )
        for place in select_revisions(found, revisions)
    ]
    absent = sorted(set(model.expected) - {place.step for place in found})
    return Selection(model.run, tuple(targets), tuple(others), tuple(absent))


def _places(model: PublishedModel, hub: Hub) -> dict[str, str]:
    """The commit of each place a checkpoint may be at: branches and tags, or the folders of the main branch."""
    repository = str(model.repository)
    if not model.subfolders:
        return hub.refs(repository)
    commit = hub.commit(repository, "main")
    folders = {path.rpartition("/")[0] for path in hub.files(repository, commit) if path.endswith("/config.json")}
    return dict.fromkeys(sorted(folders), commit)


def _select_listed(model: PublishedModel, hub: Hub, revisions: str) -> Selection:
    """Checkpoints that the description lists one by one, each with its own repository; those missing stay in sight."""
    by_step = {at.step: at for at in model.checkpoints}
    names = zip(_names(model.checkpoints), model.checkpoints, strict=True)
    found = [Revision(name, at.step, at.tokens_seen, at.stage) for name, at in names]

    def look_up(place: Revision) -> Target:
        at = by_step[place.step]
        target = Target(
            model.run,
            at.step,
            place.name,
            at.tokens_seen,
            at.stage,
            repository=at.repository,
            subfolder=at.subfolder,
        )
        try:
            return replace(target, commit=hub.commit(at.repository, at.revision))
        except CheckpointError as error:
            return replace(target, missing=str(error))

    return Selection(model.run, tuple(concurrently(look_up, select_revisions(found, revisions))))


def _names(checkpoints: Sequence[PublishedCheckpoint]) -> list[str]:
    """Return the shortest names that tell listed checkpoints apart.

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

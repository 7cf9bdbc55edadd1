"""What is selected of published training histories: their checkpoints on the hub, and what is wrong with the lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.hub import ADAPTER, Hub, map_concurrently
from repdyn.checkpoints.revisions import DEFAULT_PATTERN, Target, match_revisions, parse_revision, select_revisions
from repdyn.checkpoints.suites import KnownFault, PublishedCheckpoint, PublishedModel
from repdyn.utils.printing import MAX_LISTED


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

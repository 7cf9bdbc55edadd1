"""Select the checkpoints of published training runs: the branches and tags of a repository, the
commits of a branch, or those that a suite lists.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.hub import Hub, map_concurrently
from repdyn.checkpoints.revisions import match_revisions, parse_revision, select_revisions
from repdyn.checkpoints.suites import PublishedCheckpoint, PublishedModel
from repdyn.checkpoints.targets import Selection, Target
from repdyn.store.schema import FINISHED
from repdyn.utils.printing import MAX_LISTED
from repdyn.utils.steps import DEFAULT_PATTERN


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
            # names of branches alone select no step of the run
            if steps or not branches:
                selections.append(select_targets(model, hub, steps))
            selections += branches
        except CheckpointError as error:
            problems.append(f"{model.name}: {error}")
        except ValueError as error:
            problems.append(f"{model.name}: {error}")
            invalid.append(error)
    # a request that nothing fulfils is an error of the caller; else what it gets is worth having
    if invalid and not selections:
        raise invalid[0]
    return selections, problems


def _named_branches(model: PublishedModel, hub: Hub, revisions: str) -> tuple[list[Selection], str]:
    """Return the branches and tags without a step that are named, such as main, each as a finished
    model of its own beside the run, and what is left to select from the steps.
    """
    # listed checkpoints and commits have no branches to name
    if model.checkpoints or model.commits or re.fullmatch(r"all|log|every:\d+", revisions):
        return [], revisions
    pattern = model.revisions or DEFAULT_PATTERN
    names = [name.strip() for name in revisions.split(",")]
    without_step = [name for name in names if not _has_step(name, pattern)]
    if not without_step:
        return [], revisions
    repository = str(model.repository)
    commits = hub.refs(repository)
    # what does not exist is left to the selection of the steps, whose error says what there is
    existing = [name for name in dict.fromkeys(without_step) if name in commits]
    branches = []
    for name in existing:
        run = f"{model.run} ({name})"
        target = Target(
            run=run,
            step=0,
            revision=name,
            stage=FINISHED,
            repository=repository,
            commit=commits[name],
        )
        branches.append(Selection(run, (target,), replace(model, run=run, unverified=None)))
    return branches, ",".join(name for name in names if name not in existing)


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
    if model.commits:
        kind = f"commits on branch {model.branch}"
        commits = {}
        targets, unmatched = _titled_commits(model, pattern, hub)
    else:
        kind = "revisions"
        commits = hub.refs(repository)
        parsed, unmatched = match_revisions(list(commits), pattern, model.tokens_per_step)
        targets = [replace(target, commit=commits[target.revision]) for target in parsed]
    if not targets:
        raise ValueError(
            f"expected {kind} of {repository} that match {pattern!r}, got "
            f"{', '.join(sorted(unmatched)[:MAX_LISTED]) or f'no {kind}'}; check the pattern"
        )
    targets = [replace(target, run=model.run, repository=repository) for target in targets]
    last = targets[-1]
    main = None
    # only to compare its files with those of the steps
    if "main" in commits and "main" in unmatched:
        main = Target(
            run=model.run,
            step=last.step,
            revision="main",
            repository=repository,
            commit=commits["main"],
        )
    steps = {target.step for target in targets}
    return Selection(
        run=model.run,
        targets=tuple(select_revisions(targets, revisions)),
        model=model,
        unmatched=tuple(unmatched),
        missing_steps=tuple(sorted(set(model.expected) - steps)),
        last=last,
        main=main,
    )


def _titled_commits(
    model: PublishedModel, pattern: str, hub: Hub
) -> tuple[list[Target], list[str]]:
    """Return the checkpoints by step, of several commits of a step the newest, and other titles."""
    by_step: dict[int, Target] = {}
    unmatched: dict[str, None] = {}
    # the oldest first, so that a newer one replaces it
    for commit, title in reversed(hub.commits(str(model.repository), model.branch)):
        parsed = parse_revision(title, pattern, model.tokens_per_step)
        if parsed is None:
            unmatched[title] = None
        else:
            by_step[parsed.step] = replace(parsed, revision=f"step{parsed.step}", commit=commit)
    # the newest first again, as the hub lists them
    return [by_step[step] for step in sorted(by_step)], [*reversed(unmatched)]


def _select_listed(model: PublishedModel, hub: Hub, revisions: str) -> Selection:
    """Select individually listed checkpoints, including missing ones."""
    revision_of = {listed.step: listed.revision for listed in model.checkpoints}
    has_one_repository = len({listed.repository for listed in model.checkpoints}) == 1
    listed_targets = [
        Target(
            run=model.run,
            step=listed.step,
            revision=_name(listed, with_repository=not has_one_repository),
            tokens_seen=listed.tokens,
            stage=listed.stage,
            repository=listed.repository,
        )
        for listed in model.checkpoints
    ]

    def with_commit(target: Target) -> Target:
        # one that is missing is reported, and the others are measured
        try:
            commit = hub.commit(target.repository, revision_of[target.step])
        except CheckpointError as error:
            return replace(target, missing_reason=str(error))
        return replace(target, commit=commit)

    chosen = select_revisions(listed_targets, revisions)
    targets = tuple(map_concurrently(with_commit, chosen))
    last = next((target for target in targets if target.step == max(revision_of)), None)
    return Selection(model.run, targets, model, last=last)


def _name(listed: PublishedCheckpoint, *, with_repository: bool) -> str:
    """Return the name of a listed checkpoint, for rows and messages."""
    if not with_repository:
        return listed.revision
    if listed.revision == "main":
        return listed.repository
    return f"{listed.repository}/{listed.revision}"

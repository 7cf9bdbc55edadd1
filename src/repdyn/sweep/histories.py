"""List the weights of a training's checkpoints on the hub, for an audit; nothing of their content is fetched."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from repdyn.hub.client import Files, Hub
from repdyn.hub.errors import CheckpointError
from repdyn.hub.listings import Commit, list_commits
from repdyn.hub.revisions import DEFAULT_PATTERN
from repdyn.hub.weight_files import choose_files, weight_files
from repdyn.sweep.audit import CheckpointFiles, Finding, History, audit, find_copies
from repdyn.sweep.suites import PublishedModel, find_models, shipped_suites
from repdyn.sweep.targets import Selection, Target
from repdyn.sweep.tasks import ForeignWeights

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_HUGGING_FACE = "https://huggingface.co"


def list_histories(
    selections: Sequence[Selection],
    hub: Hub,
    *,
    folder: Path | None = None,
    with_dates: bool = False,
    listed: Callable[[], None] = lambda: None,
) -> list[History]:
    """Return the history of each selection.

    Args:
        selections: checkpoints on the hub; for local ones nothing is listed, and their history is empty.
        hub: the hub that lists their files.
        folder, with_dates, listed: as :func:`repdyn.hub.listings.list_commits`.

    Raises:
        SweepStoppedError: no connection.
    """
    commits = [(each.repository, each.commit) for selection in selections for each in _to_list(selection)]
    found = list_commits(hub, commits, folder=folder, with_dates=with_dates, listed=listed)
    return [_history(selection, found) for selection in selections]


def count_listings(selections: Sequence[Selection]) -> int:
    """Return how many commits :func:`list_histories` lists."""
    return len({(each.repository, each.commit) for selection in selections for each in _to_list(selection)})


def find_foreign_targets(selections: Sequence[Selection], histories: Sequence[History]) -> dict[Target, ForeignWeights]:
    """Return the targets with the weights, or single files, of another checkpoint of their history.

    A sweep does not measure them: their values would be those of another step, or of none. Files that all checkpoints
    have from some step to the end are their own, as of weights that are no longer trained.
    """
    foreign = {}
    for selection, history in zip(selections, histories, strict=True):
        by_name = {target.revision: target for target in selection.targets}
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
    """Return the models that a name means: of a suite, or all training runs of a repository.

    Args:
        name: a suite, a model, a pattern or a file as for :func:`repdyn.sweep.suites.find_models`; a hub repository
            such as "EleutherAI/pythia-70m"; or its address.
        endpoint: address of the hub, such as a mirror; addresses of the Hugging Face hub mean repositories there.

    Raises:
        ValueError: a name that is unknown or is none of a repository, or an address of another hub.
    """
    if name.startswith(("http://", "https://")):
        repository = _repository_at(name, endpoint)
    elif "/" not in name or name.endswith((".yaml", ".yml")):
        return find_models([name])
    else:
        repository = name
    if not _REPOSITORY.fullmatch(repository):
        local = "; a folder of this machine is measured by repdyn sweep FOLDER" if Path(name).exists() else ""
        raise ValueError(
            f"expected a suite, a model of one, or a hub repository such as EleutherAI/pythia-70m, got {name!r}{local}"
        )
    known = [model for suite in shipped_suites().values() for model in suite.models if model.repository == repository]
    return known or [PublishedModel(repository, "", repository, repository, DEFAULT_PATTERN)]


def _repository_at(address: str, endpoint: str) -> str:
    """Return the repository of a page of the hub, or of the one that it may be a mirror of."""
    hubs = [f"{hub.rstrip('/')}/" for hub in dict.fromkeys((endpoint, _HUGGING_FACE))]
    for hub in hubs:
        if address.startswith(hub):
            return "/".join(address.removeprefix(hub).split("?")[0].split("/")[:2])
    raise ValueError(f"expected an address that begins with {' or '.join(hubs)}, got {address!r}; set HF_ENDPOINT")


def _to_list(selection: Selection) -> list[Target]:
    """Return the checkpoints whose files are listed; none where there is nothing to compare."""
    ends = [end for end in (selection.last, selection.main) if end is not None]
    remote = [target for target in (*selection.targets, *ends) if target.path is None]
    return [target for target in remote if target.commit] if len(set(remote)) > 1 else []


def _history(selection: Selection, found: Mapping[Commit, Files | CheckpointError]) -> History:
    def files(target: Target | None) -> CheckpointFiles | None:
        return None if target is None else _checkpoint_files(target, found)

    targets = selection.targets if _to_list(selection) else ()
    checkpoints = [_checkpoint_files(target, found) for target in targets]
    return History(
        selection.run,
        tuple(sorted(checkpoints, key=lambda checkpoint: checkpoint.step)),
        files(selection.last),
        files(selection.main),
        selection.missing_steps,
        selection.known_faults,
        selection.unverified,
    )


def _checkpoint_files(target: Target, found: Mapping[Commit, Files | CheckpointError]) -> CheckpointFiles:
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

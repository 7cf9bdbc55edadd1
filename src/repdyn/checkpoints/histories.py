"""The weight files of published training histories, as the hub lists them: what
:mod:`repdyn.checkpoints.audit` judges.

:func:`list_histories` asks for the files of all checkpoints of several models at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.hub import Hub, map_concurrently
from repdyn.checkpoints.targets import Selection, Target
from repdyn.checkpoints.weight_files import Files, choose_files, is_weight_file


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
        """Return the names and checksums of the weights; equal for equal weights."""
        return frozenset(f"{name} {file.digest}" for name, file in self.weights.items())

    def contains(self, content: frozenset[str]) -> bool:
        """Return whether all of these weights are among those of this checkpoint, in any format."""
        everything = replace(self, weights={**self.weights, **self.other_weights})
        return bool(content) and content <= everything.content


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
        """Return the checkpoints with weights that a sweep loads."""
        return [checkpoint for checkpoint in self.checkpoints if checkpoint.weights]


def list_histories(selections: Sequence[Selection], hub: Hub) -> list[History]:
    """Return the history of each selection.

    It is empty where there is nothing to compare, and nothing is listed for it.
    """
    # all histories in one go: a request takes long, and eight are made at once
    listed = [_targets_to_list(selection) for selection in selections]
    commits = dict.fromkeys(_commit_of(target) for targets in listed for target in targets)

    def files_of(commit: tuple[str, str]) -> Files | CheckpointError:
        try:
            return hub.files(*commit)
        except CheckpointError as error:
            return error

    files = dict(zip(commits, map_concurrently(files_of, commits), strict=True))

    def end_of(target: Target | None) -> CheckpointFiles | None:
        return None if target is None else _checkpoint_files(target, files)

    histories = []
    for selection, targets in zip(selections, listed, strict=True):
        checkpoints = [
            _checkpoint_files(target, files) for target in (selection.targets if targets else ())
        ]
        checkpoints.sort(key=lambda checkpoint: checkpoint.step)
        history = History(
            selection=selection,
            checkpoints=tuple(checkpoints),
            last=end_of(selection.last),
            main=end_of(selection.main),
        )
        histories.append(history)
    return histories


def _targets_to_list(selection: Selection) -> list[Target]:
    """Return the checkpoints whose files are compared: none where there is only one."""
    ends = [end for end in (selection.last, selection.main) if end is not None]
    targets = [*selection.targets, *ends]
    if len(set(targets)) < 2:
        return []
    return [target for target in targets if target.commit]


def _commit_of(target: Target) -> tuple[str, str]:
    return target.repository, target.commit


def _checkpoint_files(
    target: Target, files: Mapping[tuple[str, str], Files | CheckpointError]
) -> CheckpointFiles:
    """Return the weight files of a checkpoint, among those that were listed, or why there are
    none.
    """
    checkpoint = CheckpointFiles(target.step, target.revision, target.commit)
    listed = files.get(_commit_of(target))
    if listed is None or isinstance(listed, CheckpointError):
        return replace(checkpoint, problem=target.missing_reason or str(listed))
    # an index of shards is equal in all checkpoints whose shards have equal names
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

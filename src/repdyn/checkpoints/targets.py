"""A checkpoint to measure, and the selected checkpoints of a training run, as records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.suites import (
    PublishedModel,
)
from repdyn.checkpoints.weight_files import Files, choose_files
from repdyn.store.schema import Checkpoint
from repdyn.utils.printing import shorten_list

if TYPE_CHECKING:
    from torch import nn


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
        """Return the place of its files: repository@commit, or the path; the repository alone if
        the checkpoint is missing.
        """
        # a model that a function makes of nothing has no place; of a file it has that of the file
        if self.path is not None:
            return "" if self.load and not self.commit else str(self.path)
        # the commit and not the branch, which may move
        return "@".join(filter(None, [self.repository, self.commit]))

    def __str__(self) -> str:
        return f"{self.run} {self.revision}"

    def remote_files(self, hub: Hub, choose: Callable[[Files], Files] = choose_files) -> Files:
        """Return those of its files on the hub that ``choose`` picks; none of a local path."""
        if self.path is not None:
            return {}
        if self.missing_reason:
            raise CheckpointError(self.missing_reason)
        return choose(hub.files(self.repository, self.commit))

    @property
    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint as rows record it."""
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

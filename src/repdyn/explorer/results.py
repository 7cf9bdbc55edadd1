"""Results that the explorer computes for a sentence in one checkpoint, independent of the page."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
from torch import Tensor

from repdyn.studies.anatomy.trajectories import TokenTrajectory, TrajectoryPlane


class TokenStates(NamedTuple):
    """One token in one checkpoint, in one of its stacks."""

    name: str
    """Display name of the checkpoint, and of the stack if it has several."""
    token: str
    token_id: int
    table: pd.DataFrame
    """A row for each state; nearest has one for each state and place. Columns as in
    :class:`repdyn.studies.tokens.vocabulary_comparison.VocabularyComparison`."""
    nearest: pd.DataFrame


class SentencePaths(NamedTuple):
    """The tokens of two sentences in one stack of a checkpoint, in a plane of their own."""

    name: str
    one: TokenTrajectory
    other: TokenTrajectory
    plane: TrajectoryPlane
    place: int | None
    """Position of the chosen token in the first sentence; None if this checkpoint has no such token."""

    @property
    def left_out(self) -> list[str]:
        """Tokens of either sentence that are left out of the plane for their norm."""
        both = zip((self.one, self.other), self.plane.left_out, strict=True)
        return sorted({trajectory.tokens[place] for trajectory, places in both for place in places})


class LayerHeads(NamedTuple):
    """The attention weights of one layer, in one stack of a checkpoint."""

    name: str
    """Display name of the checkpoint, and of the stack if it has several."""
    ids: tuple[int, ...]
    """Token ids of the sentence."""
    layer: int
    weights: Tensor
    """(heads, n_tokens, n_tokens), from each token to each; a row sums to 1, or to less with learned sinks."""

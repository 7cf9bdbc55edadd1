"""Draw metric batches from windows, so that the vectors of a batch share as little context as possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from repdyn.probe.content import SMALLEST_BATCH, SUBSETS, ProbeBatch, padded_batches, sink_mask
from repdyn.probe.design import Design


class SampledTokens:
    """The sampling plan of a probe: which tokens form the batches of each subset."""

    tokens: Tensor
    lengths: Tensor
    special_ids: tuple[int, ...]
    batch_vectors: int
    n_batches: int
    seed: int
    pad_id: int
    design: Design
    classes: Mapping[str, Tensor]

    @property
    def subsets(self) -> tuple[str, ...]:
        """Return the names of the token subsets."""
        return (*SUBSETS, *self.classes)

    @cached_property
    def is_sink(self) -> Tensor:
        """(n_tokens,) bool: first positions of sequences and special tokens, which ``no_sink`` leaves out."""
        return sink_mask(self.tokens, self.lengths, self.special_ids)

    def sample(self, subset: str) -> np.ndarray:
        """Return the token indices of every metric batch of a subset, (n_batches, m).

        m is ``batch_vectors``, or fewer for a class with too few tokens. Raises ValueError for an unknown subset.
        """
        return self._drawn(subset)[0]

    def has_disjoint_batches(self, subset: str = "all") -> bool:
        """Return whether no two batches of a subset take vectors of one window, so that their values are independent.

        False for a design that pools the windows, and if the windows are too few or too unequal.
        """
        return self._drawn(subset)[1]

    @cached_property
    def window_of_token(self) -> np.ndarray:
        """(n_tokens,) index of the window of each token."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths.numpy())

    def _drawn(self, subset: str) -> tuple[np.ndarray, bool]:
        """Return the token indices of every batch of a subset, and whether the batches use disjoint windows."""
        if subset not in self._samples:
            members = self.members(subset)
            batches = self._dealt(members, self.batch_vectors if subset in SUBSETS else SMALLEST_BATCH)
            if batches is None:
                size = min(self.batch_vectors, len(members) // self.n_batches)
                drawn = members[: self.n_batches * size].reshape(self.n_batches, size)
            else:
                size = min(self.batch_vectors, *map(len, batches))
                drawn = np.stack([batch[:size] for batch in batches])
            self._samples[subset] = drawn, batches is not None
        return self._samples[subset]

    def _dealt(self, members: np.ndarray, least: int) -> list[np.ndarray] | None:
        """Return the tokens of each batch from disjoint windows; None if a batch would have fewer than ``least``."""
        if not self.design.disjoint_windows or len(self.lengths) < self.n_batches:
            return None
        batches = draw_evenly(members, self.window_of_token, self._batch_of_window)
        return batches if min(map(len, batches)) >= least else None

    @cached_property
    def _batch_of_window(self) -> np.ndarray:
        return deal_windows(self.lengths.numpy(), self.n_batches, self.seed)

    @cached_property
    def _samples(self) -> dict[str, tuple[np.ndarray, bool]]:
        return {}

    def batches(self, n_sequences: int, read: Tensor | None = None) -> Iterator[ProbeBatch]:
        """The sequences in batches of at most ``n_sequences``, padded on the right to the longest of each.

        No batch is square: it would not tell states of shape (batch, length) from (length, batch).

        Args:
            n_sequences: sequences at a time.
            read: (n_sequences,) how many tokens of each sequence are needed; those of similar need stand together, and
                a batch is cut where the neediest ends. None for the whole probe in its order.
        """
        return padded_batches(self.tokens, self.lengths, self.pad_id, n_sequences, read)

    def tokens_needed(self, sampled: np.ndarray, causal: bool) -> Tensor:
        """Number of tokens of each window a model has to read to reach the sampled ones, (n_sequences,) int64.

        Args:
            sampled: numbers of the sampled tokens.
            causal: whether no position sees a later one, so that a window need not be read past its last sampled token;
                otherwise a window that has any is read whole.
        """
        windows = self.window_of_token[sampled]
        starts = (torch.cumsum(self.lengths, 0) - self.lengths).numpy()
        needed = np.zeros(len(self.lengths), dtype=np.int64)
        np.maximum.at(needed, windows, sampled - starts[windows] + 1)
        return torch.from_numpy(needed if causal else np.where(needed > 0, self.lengths.numpy(), 0))

    @cached_property
    def _permutation(self) -> np.ndarray:
        # RandomState's stream is frozen by numpy's policy; Generator's and torch's may change between releases.
        return np.random.RandomState(self.seed).permutation(len(self.tokens))

    def members(self, subset: str) -> np.ndarray:
        """Token numbers of a subset, in the order in which they are sampled."""
        if subset not in self.subsets:
            raise ValueError(
                f"expected a subset among {', '.join(self.subsets)}, got {subset!r}; classes of words come with "
                "Probe.from_texts(..., classes=...), or --classes words in a sweep, others with Probe.with_classes"
            )
        if subset == "all":
            return self._permutation
        members = {"no_sink": ~self.is_sink, **self.classes}[subset]
        return self._permutation[members.numpy()[self._permutation]]


def deal_windows(lengths: np.ndarray, n_batches: int, seed: int) -> np.ndarray:
    """Assign each window to one batch, so that the batches hold about as many tokens.

    Args:
        lengths: (n_windows,) tokens in each window.
        n_batches: how many batches.
        seed: of the random order of windows of one length.

    Returns:
        (n_windows,) the batch of each window. Windows are dealt from the longest to the shortest, each to the batch
        that holds the fewest tokens so far.
    """
    # RandomState's stream is frozen by numpy's policy; Generator's may change between releases
    shuffled = np.random.RandomState(seed).permutation(len(lengths))
    totals = [0] * n_batches
    batch_of_window = np.empty(len(lengths), dtype=np.int64)
    for window in shuffled[np.argsort(-lengths[shuffled], kind="stable")]:
        emptiest = totals.index(min(totals))
        batch_of_window[window] = emptiest
        totals[emptiest] += int(lengths[window])
    return batch_of_window


def draw_evenly(members: np.ndarray, windows: np.ndarray, batch_of_window: np.ndarray) -> list[np.ndarray]:
    """Order the tokens of each batch so that any first n of them take as equal a share of its windows as possible.

    Args:
        members: (n_members,) token numbers in random order.
        windows: (n_tokens,) the window of every token.
        batch_of_window: (n_windows,) the batch of every window.

    Returns:
        For each batch its token numbers: first one of each window, then a second of each, and so on; otherwise in the
        order of ``members``.
    """
    of_members = windows[members]
    by_window = np.argsort(of_members, kind="stable")
    counts = np.bincount(of_members, minlength=len(batch_of_window))
    starts = np.cumsum(counts) - counts
    turn = np.empty(len(members), dtype=np.int64)
    turn[by_window] = np.arange(len(members)) - starts[of_members[by_window]]
    in_turns = np.argsort(turn, kind="stable")
    batch = batch_of_window[of_members[in_turns]]
    return [members[in_turns[batch == number]] for number in range(int(batch_of_window.max()) + 1)]

"""Sample metric batches from windows, so that the vectors of a batch share as little context as possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from repdyn.probe.content import ProbeBatch, sink_mask
from repdyn.probe.design import DIFFERENCES, MIN_BATCH_VECTORS, SUBSETS, VIEWS, WINDOW_MEAN, Design
from repdyn.probe.inputs import Inputs, input_batches

WHOLE_WINDOWS = 16
"""How many windows of each batch are measured as a whole."""
WHOLE_WINDOW_TOKENS = 256
"""Number of tokens to which such windows are cut."""


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
    inputs: Inputs | None

    @property
    def subsets(self) -> tuple[str, ...]:
        """The names of the subsets; a probe of inputs has all vectors alone."""
        return ("all",) if self.inputs is not None else (*SUBSETS, *self.classes)

    @cached_property
    def is_sink(self) -> Tensor:
        """(n_tokens,) bool: first positions of sequences and special tokens, which ``no_sink`` excludes."""
        return sink_mask(self.tokens, self.lengths, self.special_ids)

    def sample(self, subset: str) -> np.ndarray:
        """Return the token indices of every metric batch of a subset, (n_batches, m).

        m is ``batch_vectors``, or fewer for a class with too few tokens. Raises ValueError for an unknown subset.
        """
        if subset not in self._samples:
            members, batches = self.members(subset), None
            if self.design.disjoint_windows and len(self.lengths) >= self.n_batches:
                batches = interleave_windows(members, self.window_of(members), self._batch_of_window)
                if min(map(len, batches)) < (self.batch_vectors if subset in SUBSETS else MIN_BATCH_VECTORS):
                    batches = None
            if batches is None:
                size = min(self.batch_vectors, len(members) // self.n_batches)
                sample = members[: self.n_batches * size].reshape(self.n_batches, size)
            else:
                size = min(self.batch_vectors, *map(len, batches))
                sample = np.stack([batch[:size] for batch in batches])
            self._samples[subset] = sample, batches is not None
        return self._samples[subset][0]

    def has_disjoint_batches(self, subset: str = "all") -> bool:
        """Return whether the batches of a subset use disjoint windows, so that their values are independent.

        False for a design without disjoint windows, and if the windows are too few or too unequal.
        """
        self.sample(subset)
        return self._samples[subset][1]

    @cached_property
    def whole_windows(self) -> list[list[np.ndarray]]:
        """The token indices of whole windows, for metrics of sequences: by batch, at most 16 windows of equal number.

        The windows are evenly spaced over the probe among those of at least 2 tokens, and dealt to the batches in turn,
        so that no batch shares a window with another, whatever the design. Each is cut to its first 256 tokens. The
        list is empty if there are fewer such windows than batches.
        """
        starts = (torch.cumsum(self.lengths, 0) - self.lengths).tolist()
        long_enough = np.flatnonzero(self.lengths.numpy() > 1)
        n_chosen = self.n_batches * min(WHOLE_WINDOWS, len(long_enough) // self.n_batches)
        chosen = long_enough[np.arange(n_chosen) * len(long_enough) // max(1, n_chosen)]
        sizes = self.lengths.clamp_max(WHOLE_WINDOW_TOKENS).tolist()
        windows = [starts[window] + np.arange(sizes[window]) for window in chosen]
        return [windows[batch :: self.n_batches] for batch in range(self.n_batches)] if windows else []

    @cached_property
    def window_of_token(self) -> np.ndarray:
        """(n_tokens,) index of the window of each token."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths.numpy())

    @cached_property
    def has_next(self) -> np.ndarray:
        """(n_tokens,) bool: whether the next token is in the same window."""
        return np.append(np.diff(self.window_of_token) == 0, False)

    def index_of_mean(self, tokens: np.ndarray) -> np.ndarray:
        """Return the index that stands for the mean over the window of each token: after those of all tokens."""
        return len(self.tokens) + self.window_of_token[tokens]

    def window_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the window of each token or mean over a window, by its index."""
        is_mean = indices >= len(self.tokens)
        return np.where(is_mean, indices - len(self.tokens), self.window_of_token[np.where(is_mean, 0, indices)])

    def tokens_of(self, subset: str) -> np.ndarray:
        """Return the indices of all tokens, or means over windows, whose states the sample of a subset needs."""
        sampled = self.sample(subset).ravel()
        return np.concatenate([sampled, sampled + 1]) if subset == DIFFERENCES else sampled

    @cached_property
    def _batch_of_window(self) -> np.ndarray:
        """(n_windows,) the batch of each window, such that the batches have about equally many tokens.

        Windows are assigned from the longest to the shortest, those of equal length in random order, each to the batch
        with the fewest tokens so far.
        """
        lengths = self.lengths.numpy()
        # the stream of RandomState is frozen by numpy's policy; Generator's may change between releases
        shuffled = np.random.RandomState(self.seed).permutation(len(lengths))
        totals = [0] * self.n_batches
        batch_of_window = np.empty(len(lengths), dtype=np.int64)
        for window in shuffled[np.argsort(-lengths[shuffled], kind="stable")]:
            batch_of_window[window] = smallest = totals.index(min(totals))
            totals[smallest] += int(lengths[window])
        return batch_of_window

    @cached_property
    def _samples(self) -> dict[str, tuple[np.ndarray, bool]]:
        """The sample of each subset, and whether its batches use disjoint windows."""
        return {}

    def batches(self, n_sequences: int, n_needed: Tensor | None = None) -> Iterator[ProbeBatch]:
        """Yield the sequences in batches of at most ``n_sequences``, padded on the right to the longest of each.

        No batch is square, so that states of shape (batch, length) can be distinguished from (length, batch).

        Args:
            n_sequences: largest number of sequences in a batch.
            n_needed: (n_sequences,) number of tokens needed of each sequence, as from :meth:`tokens_needed`. Sequences
                of similar need are batched together, and each batch is truncated to the largest need. None for the
                whole probe in its order.

        Of a probe of inputs these are its own batches, whatever the arguments.
        """
        if self.inputs is not None:
            return input_batches(self.inputs, self.seed)
        return padded_batches(self.tokens, self.lengths, self.pad_id, n_sequences, n_needed)

    def tokens_needed(self, sampled: np.ndarray, causal: bool) -> Tensor:
        """Return the number of tokens of each window that a model needs as input, (n_sequences,) int64.

        They end at the last sampled token if the model is causal; else, and for a mean over a window, they are all.
        """
        windows = self.window_of(sampled)
        ends = torch.cumsum(self.lengths, 0).numpy()
        starts = ends - self.lengths.numpy()
        last = np.where(sampled < len(self.tokens), sampled, ends[windows] - 1)
        needed = np.zeros(len(self.lengths), dtype=np.int64)
        np.maximum.at(needed, windows, last - starts[windows] + 1)
        return torch.from_numpy(needed if causal else np.where(needed > 0, self.lengths.numpy(), 0))

    @cached_property
    def _permutation(self) -> np.ndarray:
        # the stream of RandomState is frozen by numpy's policy; Generator's and torch's may change between releases
        return np.random.RandomState(self.seed).permutation(len(self.tokens))

    def members(self, subset: str) -> np.ndarray:
        """Return the token indices of a subset or view, in the order in which they are sampled."""
        if subset not in {*self.subsets, *VIEWS}:
            raise ValueError(
                f"expected a subset among {', '.join([*self.subsets, *VIEWS])}, got {subset!r}; word classes come with "
                "Probe.from_texts(..., classes=...), or --classes words in a sweep, others with Probe.with_classes"
            )
        if subset == "all":
            return self._permutation
        if subset == WINDOW_MEAN:
            is_first = np.append(True, ~self.has_next[:-1])
            return self.index_of_mean(self._permutation[is_first[self._permutation]])
        if subset in VIEWS:
            members = self.has_next if subset == DIFFERENCES else self._is_last
            return self._permutation[members[self._permutation]]
        members = {"no_sink": ~self.is_sink, **self.classes}[subset]
        return self._permutation[members.numpy()[self._permutation]]

    @property
    def _is_last(self) -> np.ndarray:
        """(n_tokens,) bool: the last token of each window that is not special."""
        texts = np.flatnonzero(~np.isin(self.tokens.numpy(), self.special_ids))
        windows = self.window_of_token[texts]
        last = texts[np.append(windows[1:] != windows[:-1], True)[: len(texts)]]
        return np.isin(np.arange(len(self.tokens)), last)


def padded_batches(
    tokens: Tensor, lengths: Tensor, pad_id: int, n_sequences: int, n_needed: Tensor | None = None
) -> Iterator[ProbeBatch]:
    """Yield batches of at most ``n_sequences`` sequences; see :meth:`repdyn.Probe.batches`."""
    starts = torch.cumsum(lengths, 0) - lengths
    remaining = torch.arange(len(lengths))
    if n_needed is not None:
        # batch sequences of similar length together, without those of which no token is needed
        remaining = torch.argsort(n_needed, stable=True)
        remaining = remaining[n_needed[remaining] > 0]
    extent = lengths if n_needed is None else n_needed
    while len(remaining):
        count = min(n_sequences, len(remaining))
        while count == int(extent[remaining[:count]].max()) > 1:
            count -= 1
        batch, remaining = remaining[:count], remaining[count:]
        # all sequences of a batch are truncated at the same position, which adds no padding
        columns = torch.arange(int(extent[batch].max()))
        mask = columns < lengths[batch, None]
        indices = (starts[batch, None] + columns)[mask]
        input_ids = torch.full(mask.shape, pad_id, dtype=torch.long)
        input_ids[mask] = tokens[indices]
        yield ProbeBatch(input_ids, mask.long(), np.flatnonzero(mask.numpy().ravel()), indices.numpy())


def interleave_windows(members: np.ndarray, windows: np.ndarray, batch_of_window: np.ndarray) -> list[np.ndarray]:
    """Order the tokens of each batch so that its first n have about equally many of each window, for any n.

    They are first one of each window, then a second of each, and so on; otherwise in the random order of ``members``,
    whose windows are ``windows``.
    """
    by_window = np.argsort(windows, kind="stable")
    counts = np.bincount(windows, minlength=len(batch_of_window))
    starts = np.cumsum(counts) - counts
    round_ = np.empty(len(members), dtype=np.int64)
    round_[by_window] = np.arange(len(members)) - starts[windows[by_window]]
    order = np.argsort(round_, kind="stable")
    batch = batch_of_window[windows[order]]
    return [members[order[batch == index]] for index in range(int(batch_of_window.max()) + 1)]

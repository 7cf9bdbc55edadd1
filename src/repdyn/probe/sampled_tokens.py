"""Token sequences and the vectors that are sampled from them: the content of a probe.

:class:`repdyn.Probe` adds the ways to make one, and its file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from repdyn.probe.content import (
    ProbeBatch,
    padded_batches,
    sink_mask,
    validate_content,
    validate_subset_sizes,
)
from repdyn.probe.design import (
    BATCH_VECTORS,
    DIFFERENCES,
    DISTINCT,
    DISTINCT_INPUTS,
    INDEPENDENT,
    MIN_BATCH_VECTORS,
    SUBSETS,
    TYPES,
    VIEWS,
    WINDOW_MEAN,
    Design,
)
from repdyn.probe.distinct import FEWEST_VECTORS, MOST_VECTORS, draw, evenly, input_numbers
from repdyn.probe.inputs import Inputs, input_batches
from repdyn.probe.sampling import (
    assign_windows,
    interleaved,
    permutation,
    whole_windows,
)
from repdyn.utils.caller_state import plain_state


@dataclass(frozen=True, eq=False)
class SampledTokens:
    """Token sequences with a seeded plan of which vectors are measured: what a probe is, however it
    was made.
    """

    tokens: Tensor
    """(n_tokens,) int64: the concatenated sequences, without padding."""
    lengths: Tensor
    """(n_sequences,) int64: number of tokens in each sequence."""
    special_ids: tuple[int, ...] = ()
    """Token ids excluded from ``no_sink``, in addition to the first position of every sequence."""
    batch_vectors: int = BATCH_VECTORS
    """Number of vectors in a metric batch. Estimates depend on it, so values at different numbers
    are not comparable."""
    n_batches: int = 1
    """Number of metric batches, over which a layer's value is averaged."""
    seed: int = 0
    pad_id: int = 0
    name: str = "tokens"
    design: Design = INDEPENDENT
    """How batches are sampled from the windows, and whether neighbours in the same window are
    excluded.
    """
    classes: Mapping[str, Tensor] = field(default_factory=dict)
    """By name, in alphabetical order: (n_tokens,) bool, which tokens are in the class. A class can
    be measured as a subset, as in "alignment@rare"."""
    topics: Tensor | None = None
    """(n_tokens,) int64: index of each token's topic, -1 for none; None if no topics are known."""
    mask_id: int | None = None
    """Token id of the mask, with which an encoder's loss is measured; None if the tokenizer has
    none or is not known. Like ``bytes_per_token``, it is not part of the hash."""
    bytes_per_token: float | None = None
    """Mean number of UTF-8 bytes of a text token, special ones left out; None if unknown."""
    inputs: Inputs | None = None
    """The inputs of a probe of images, waveforms or pairs, whose vectors are numbered like tokens;
    None for a probe of tokens.
    """

    def __post_init__(self) -> None:
        validate_content(self.tokens, self.lengths, self.classes, self.topics)
        if self.inputs is not None and (self.classes or self.topics is not None):
            raise ValueError(
                "expected classes and topics of a probe of tokens, got a probe of inputs; leave "
                "them out"
            )
        # a canonical order, on which the hash does not depend but the subsets do
        object.__setattr__(self, "classes", dict(sorted(self.classes.items())))
        # a design of fixed windows is measured on all of their tokens: no_sink may have fewer
        available = {subset: len(self.members(subset)) for subset in self.subsets}
        full = ("all",) if self.design.n_windows is not None else SUBSETS
        validate_subset_sizes(available, self.batch_vectors, self.n_batches, full)

    @property
    def subsets(self) -> tuple[str, ...]:
        """Return the names of the subsets; a probe of inputs has all vectors alone."""
        return ("all",) if self.inputs is not None else (*SUBSETS, *self.classes)

    @cached_property
    def is_special(self) -> np.ndarray:
        """Return (n_tokens,) bool: whether each token is a special one."""
        return np.isin(self.tokens.numpy(), self.special_ids)

    @cached_property
    def is_sink(self) -> Tensor:
        """Return (n_tokens,) bool: first positions of sequences and special tokens, which
        ``no_sink`` excludes.
        """
        return sink_mask(self.tokens, self.lengths, self.special_ids)

    @plain_state()
    def sample(self, subset: str) -> np.ndarray:
        """Return the token indices of every metric batch of a subset, (n_batches, m).

        m is ``batch_vectors``, or fewer for a class with too few tokens. Raises ValueError for an
        unknown subset.
        """
        if subset not in self._samples:
            if subset in DISTINCT:
                sampled = _sample_distinct(self, subset), self.has_disjoint_batches()
            else:
                sampled = _sample_members(self, subset, self.members(subset))
            self._samples[subset] = sampled
        return self._samples[subset][0]

    @cached_property
    def without_repeats(self) -> str:
        """Return the subset without repeats that a dimension is measured on beside all tokens, by
        default: types where each batch has at least 512 of them, otherwise distinct inputs.

        It depends on the probe alone, so that all checkpoints, and a sweep and a training on it,
        are measured on the same one.
        """
        n_types = self.sample(TYPES).shape[1]
        return TYPES if n_types >= FEWEST_VECTORS else DISTINCT_INPUTS

    @cached_property
    def inputs_of_tokens(self) -> np.ndarray:
        """Return (n_tokens,): a number for each token at its position, which equal inputs share."""
        return input_numbers(self.tokens.numpy(), self.positions)

    @cached_property
    def positions(self) -> np.ndarray:
        """Return (n_tokens,): the position of each token in its window, from 0."""
        lengths = self.lengths.numpy()
        starts = np.cumsum(lengths) - lengths
        return np.arange(len(self.tokens)) - starts[self.window_of_token]

    def has_disjoint_batches(self, subset: str = "all") -> bool:
        """Return whether the batches of a subset use disjoint windows, so that their values are
        independent.

        False for a design without disjoint windows, and if the windows are too few or too unequal.
        """
        self.sample(subset)
        return self._samples[subset][1]

    @cached_property
    def whole_windows(self) -> list[list[np.ndarray]]:
        """Return the token indices of whole windows, for metrics of sequences: by batch, at most 16
        windows of equal number.

        The windows are evenly spaced over the probe among those of at least 2 tokens, and dealt to
        the batches in turn, so that no batch shares a window with another, whatever the design.
        Each is cut to its first 256 tokens. The list is empty if there are fewer such windows than
        batches.
        """
        return whole_windows(self.lengths.numpy(), self.n_batches)

    @cached_property
    def window_of_token(self) -> np.ndarray:
        """Return (n_tokens,): index of the window of each token."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths.numpy())

    @cached_property
    def has_next(self) -> np.ndarray:
        """Return (n_tokens,) bool: whether the next token is in the same window."""
        return np.append(np.diff(self.window_of_token) == 0, False)

    def index_of_mean(self, tokens: np.ndarray) -> np.ndarray:
        """Return the index that stands for the mean over the window of each token: after those of
        all tokens.
        """
        return len(self.tokens) + self.window_of_token[tokens]

    def window_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the window of each token or mean over a window, by its index."""
        is_mean = indices >= len(self.tokens)
        return np.where(
            is_mean, indices - len(self.tokens), self.window_of_token[np.where(is_mean, 0, indices)]
        )

    def tokens_of(self, subset: str) -> np.ndarray:
        """Return the indices of all tokens, or means over windows, whose states the sample of a
        subset needs.
        """
        sampled = self.sample(subset).ravel()
        return np.concatenate([sampled, sampled + 1]) if subset == DIFFERENCES else sampled

    @cached_property
    def batch_of_window(self) -> np.ndarray:
        """Return (n_windows,): the batch of each window, where the batches use disjoint windows."""
        return assign_windows(self.lengths.numpy(), self.n_batches, self.seed)

    @cached_property
    def _samples(self) -> dict[str, tuple[np.ndarray, bool]]:
        """Return the sample of each subset, and whether its batches use disjoint windows."""
        return {}

    def batches(self, n_sequences: int, n_needed: Tensor | None = None) -> Iterator[ProbeBatch]:
        """Yield the sequences in batches of at most ``n_sequences``, padded on the right to the
        longest of each.

        No batch is square, so that states of shape (batch, length) can be distinguished from
        (length, batch).

        Args:
            n_sequences: largest number of sequences in a batch.
            n_needed: (n_sequences,) number of tokens needed of each sequence, as from
                :meth:`tokens_needed`. Sequences of similar need are batched together, and each
                batch is truncated to the largest need. None for the whole probe in its order.

        Of a probe of inputs these are its own batches, whatever the arguments.
        """
        if self.inputs is not None:
            return input_batches(self.inputs, self.seed)
        return padded_batches(self.tokens, self.lengths, self.pad_id, n_sequences, n_needed)

    def tokens_needed(self, sampled: np.ndarray, causal: bool) -> Tensor:
        """Return the number of tokens of each window that a model needs as input, (n_sequences,)
        int64.

        They end at the last sampled token if the model is causal; else, and for a mean over a
        window, they are all.
        """
        windows = self.window_of(sampled)
        ends = torch.cumsum(self.lengths, 0).numpy()
        starts = ends - self.lengths.numpy()
        # a mean over a window needs it up to its end
        last = np.where(sampled < len(self.tokens), sampled, ends[windows] - 1)
        needed = np.zeros(len(self.lengths), dtype=np.int64)
        np.maximum.at(needed, windows, last - starts[windows] + 1)
        return torch.from_numpy(needed if causal else np.where(needed > 0, self.lengths.numpy(), 0))

    @cached_property
    def permutation(self) -> np.ndarray:
        """Return (n_tokens,): all token indices, in the random order in which they are sampled."""
        return permutation(len(self.tokens), self.seed)

    def members(self, subset: str) -> np.ndarray:
        """Return the token indices of a subset or view, in the order in which they are sampled."""
        if subset not in {*self.subsets, *VIEWS}:
            raise ValueError(
                f"expected a subset among {', '.join([*self.subsets, *VIEWS])}, got {subset!r}; "
                "word classes come with Probe.from_texts(..., classes=...), or classes=words in "
                "a sweep, others with Probe.with_classes"
            )
        if subset == "all":
            return self.permutation
        if subset == WINDOW_MEAN:
            # one token stands for its window: in the order in which the first ones are drawn
            is_first = np.append(True, ~self.has_next[:-1])
            return self.index_of_mean(self.permutation[is_first[self.permutation]])
        if subset in DISTINCT:
            return self.sample(subset).ravel()
        if subset in VIEWS:
            members = self.has_next if subset == DIFFERENCES else self._is_last
            return self.permutation[members[self.permutation]]
        members = {"no_sink": ~self.is_sink, **self.classes}[subset]
        return self.permutation[members.numpy()[self.permutation]]

    @property
    def _is_last(self) -> np.ndarray:
        """Return (n_tokens,) bool: the last token of each window that is not special."""
        texts = np.flatnonzero(~self.is_special)
        windows = self.window_of_token[texts]
        # the next text token is of another window, or there is none
        last = texts[np.append(windows[1:] != windows[:-1], True)[: len(texts)]]
        return np.isin(np.arange(len(self.tokens)), last)


def _sample_members(
    probe: SampledTokens, subset: str, members: np.ndarray
) -> tuple[np.ndarray, bool]:
    """Return the sample of a subset, (n_batches, m), and whether its batches use disjoint windows.

    The members are the token indices of the subset in random order.
    """
    if probe.design.disjoint_windows and len(probe.lengths) >= probe.n_batches:
        batches = interleaved(members, probe.window_of(members), probe.batch_of_window)
        smallest = min(map(len, batches))
        needed = probe.batch_vectors if subset in SUBSETS else MIN_BATCH_VECTORS
        if smallest >= needed:
            size = min(probe.batch_vectors, smallest)
            return np.stack([batch[:size] for batch in batches]), True
    # windows that are too few or too unequal are shared by the batches
    size = min(probe.batch_vectors, len(members) // probe.n_batches)
    return members[: probe.n_batches * size].reshape(probe.n_batches, size), False


def _sample_distinct(probe: SampledTokens, subset: str) -> np.ndarray:
    """Return the sample of distinct inputs or types, (n_batches, m): in each batch no input, or
    no token, occurs twice.

    Candidates are the tokens that the sample of all tokens makes the model read: those up to
    the last sampled one of each window, in the windows of the batch.
    """
    is_of_types = subset == TYPES
    labels = probe.tokens.numpy() if is_of_types else probe.inputs_of_tokens
    batches = []
    for number, sampled in enumerate(probe.sample("all")):
        n_windows = len(np.unique(probe.window_of_token[sampled]))
        last_read = np.full(len(probe.lengths), -1)
        np.maximum.at(last_read, probe.window_of_token[sampled], sampled)
        is_read = np.arange(len(probe.tokens)) <= last_read[probe.window_of_token]
        # batches that share windows begin elsewhere, or all would draw the same tokens
        in_order = np.roll(probe.permutation, -number * probe.batch_vectors)
        candidates = in_order[is_read[in_order]]
        n_vectors = min(len(sampled), MOST_VECTORS)
        drawn = draw(
            candidates,
            windows=probe.window_of_token[candidates],
            labels=labels[candidates],
            n_vectors=len(sampled) if is_of_types else n_vectors,
            per_window=math.ceil(len(sampled) / n_windows),
        )
        batches.append(evenly(drawn, n_vectors, probe.seed))
    # batches of one size: an estimate depends on the number of vectors
    size = min(map(len, batches))
    return np.stack([batch[:size] for batch in batches])

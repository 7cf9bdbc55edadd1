"""The probe: the fixed tokens on which every checkpoint is measured, and the vectors that are
sampled from them.

Checkpoints are comparable only if the tokens, the sampled vectors and the sampling design are the
same. A probe fixes all of these, and its content hash is stored in every row.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from repdyn.probe.bounds import bounded_windows, most_windows
from repdyn.probe.content import (
    ProbeBatch,
    padded_batches,
    sink_mask,
    unpad,
    validate_content,
    validate_subset_sizes,
)
from repdyn.probe.datasets import Source, read_dataset
from repdyn.probe.design import (
    BATCH_VECTORS,
    DENSE,
    DIFFERENCES,
    DISTINCT,
    DISTINCT_INPUTS,
    INDEPENDENT,
    MAX_VECTORS,
    MIN_BATCH_VECTORS,
    SUBSETS,
    TOKENS_PER_VECTOR,
    TYPES,
    VIEWS,
    WINDOW_MEAN,
    Design,
    DesignLike,
    class_names,
    design_from_rule,
    fitting,
    resolve_design,
)
from repdyn.probe.distinct import FEWEST_VECTORS, MOST_VECTORS, draw, evenly, input_numbers
from repdyn.probe.inputs import (
    Causal,
    Inputs,
    Positions,
    input_batches,
    inputs_fields,
    inputs_from_tensors,
    inputs_to_tensors,
)
from repdyn.probe.windows import TokenizedWindows, tokenize_windows
from repdyn.probe.word_classes import TokenWords
from repdyn.utils.caller_state import isolated_rng, plain_state
from repdyn.utils.files import write_atomically

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_SETTINGS = (
    "special_ids",
    "batch_vectors",
    "n_batches",
    "seed",
    "pad_id",
    "name",
    "mask_id",
    "bytes_per_token",
)
_PLAN = "repdyn_probe"
_CLASS = "class."
_TOPICS = "topics"
_INPUTS = "repdyn_inputs"
WHOLE_WINDOWS = 16
"""How many windows of each batch are measured as a whole."""
WHOLE_WINDOW_TOKENS = 256
"""Number of tokens to which such windows are cut."""


@dataclass(frozen=True, eq=False)
class Probe:
    """A fixed set of token sequences (windows) with a seeded plan of which vectors to measure.

    Tokens are indexed over the whole probe, window by window, without padding. The sampling design
    determines the tokens of the metric batches. By default the batches use disjoint windows with
    about equally many vectors of each, so that the vectors of a batch share as little context as
    possible and the batches are independent. The sample depends neither on the padding side nor on
    the batch size of the forward pass.

    The subsets are ``all`` tokens, ``no_sink``, and the probe's classes. All have the same number
    of batches; those of a class with few tokens are smaller. Build one with one of the class
    methods.
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
    """The inputs of :meth:`from_inputs`, whose vectors are numbered like tokens; None of tokens."""

    def __post_init__(self) -> None:
        validate_content(self.tokens, self.lengths, self.classes, self.topics)
        if self.inputs is not None and (self.classes or self.topics is not None):
            raise ValueError(
                "expected classes and topics of a probe of tokens, got a probe of inputs; leave "
                "them out"
            )
        # a canonical order, on which the hash does not depend but the subsets do
        object.__setattr__(self, "classes", dict(sorted(self.classes.items())))
        available = {subset: len(self.members(subset)) for subset in self.subsets}
        full = ("all",) if self.design.n_windows is not None else SUBSETS
        validate_subset_sizes(available, self.batch_vectors, self.n_batches, full)

    def __repr__(self) -> str:
        """Return its sizes in a line, instead of its tensors."""
        size = (
            f"{len(self.tokens):,} {'vectors' if self.inputs else 'tokens'} in "
            f"{len(self.lengths):,} windows"
        )
        drawn = (
            f"{self.n_batches} x {self.batch_vectors:,} vectors by the {self.design.name} design"
        )
        return f"Probe({self.name!r}: {size}, {drawn}, {self._cost}, hash {self.hash})"

    @property
    def _cost(self) -> str:
        """Return in words what a measurement on all tokens reads."""
        if self.inputs is not None:
            return f"a measurement reads {len(self.lengths):,} inputs"
        needed = self.tokens_needed(self.sample("all").ravel(), causal=False)
        n_windows = int((needed > 0).sum())
        return f"a measurement reads {int(needed.sum()):,} tokens of {n_windows:,} windows"

    @classmethod
    @plain_state()
    def from_tokens(
        cls,
        input_ids: Any,
        attention_mask: Any = None,
        *,
        special_ids: Iterable[int] = (),
        max_vectors: int = MAX_VECTORS,
        batch_vectors: int | None = None,
        n_windows: int | None = None,
        seed: int = 0,
        pad_id: int = 0,
        name: str = "tokens",
        design: DesignLike = INDEPENDENT,
        mask_id: int | None = None,
        bytes_per_token: float | None = None,
    ) -> Probe:
        """Return a probe of given token ids: of 512 evenly spaced sequences at most, and of 65,536
        tokens.

        Longer sequences are cut into windows of 128 tokens where the bound needs it, with a
        warning. More vectors raise the bound in proportion, ``n_windows`` replaces it.

        Args:
            input_ids: (n_sequences, length) integers: a tensor, an array or nested lists; lists may
                differ in length.
            attention_mask: (n_sequences, length), 1 or True at tokens, 0 or False at padding; None
                without padding. Padding may be on either side, but not between tokens.
            special_ids: ids of special tokens, which the subset ``no_sink`` excludes.
            max_vectors, batch_vectors, seed, name: as for :meth:`from_texts`.
            n_windows: number of sequences to read, evenly spaced and whole, whatever the bound;
                ``n_windows=len(input_ids)`` reads all.
            pad_id: token id used for padding when batches are formed.
            design: name of a sampling design ("independent", "dense", "paper", "shuffled") or a
                :class:`repdyn.Design`, whose windows are replaced by the given sequences. For
                independent vectors give many sequences: with 512 for each batch of 4096 vectors, 8
                vectors of each are sampled.
            mask_id: token id of the mask, for the loss of an encoder.
            bytes_per_token: mean number of UTF-8 bytes of a text token, for the loss in bits per
                byte.

        Raises:
            ValueError: wrong shape, a mask of other values, padding between tokens, fewer than 3
                tokens, or an unknown design.
        """
        design = resolve_design(design)
        special_ids = tuple(sorted({int(token) for token in special_ids}))
        tokens, lengths = unpad(input_ids, attention_mask)
        bounded = bounded_windows(
            lengths.numpy(), design, max_vectors=max_vectors, n_windows=n_windows
        )
        if bounded.cut_to is not None:
            warnings.warn(
                f"sequences of up to {int(lengths.max()):,} tokens are cut into windows of "
                f"{bounded.cut_to}, so that a measurement reads {int(bounded.lengths.sum()):,} "
                f"tokens and not {len(tokens):,}; n_windows=N reads N whole sequences",
                UserWarning,
                stacklevel=3,
            )
        windows = TokenizedWindows(
            tokens[torch.from_numpy(bounded.tokens)],
            torch.from_numpy(bounded.lengths),
            bytes_per_token=bytes_per_token,
        )
        windows = windows.in_order_of(design, special_ids, seed)
        fields = _fields_of_windows(windows, design, special_ids, max_vectors, batch_vectors, seed)
        return cls(**fields, pad_id=pad_id, name=name, mask_id=mask_id)

    @classmethod
    @plain_state()
    def from_texts(
        cls,
        texts: Iterable[str],
        tokenizer: PreTrainedTokenizerBase,
        *,
        sequence_length: int | None = None,
        max_vectors: int = MAX_VECTORS,
        batch_vectors: int | None = None,
        seed: int = 0,
        name: str = "texts",
        classes: Sequence[str] = (),
        phrases: Mapping[str, Sequence[str]] | None = None,
        design: DesignLike = INDEPENDENT,
        vectors_per_window: int | None = None,
    ) -> Probe:
        """Return a probe of texts, tokenized by any Hugging Face tokenizer.

        Each text is cut into windows, each with the tokenizer's own prefix and suffix (``[CLS]``,
        ``<s>``, ...). If there are more windows than the design requires, evenly spaced ones are
        used; if there are fewer, more vectors are sampled from each.

        Args:
            texts: any number of texts of any length.
            tokenizer: tokenizer of the models to measure.
            sequence_length: number of tokens in a window, at most the model's context; None for the
                design's default.
            max_vectors: number of vectors measured per layer, in all batches; fewer, with a
                warning, of a short text.
            batch_vectors: number of vectors per batch; by default ``max_vectors``, at most 4096.
            seed: seed of the sampling plan.
            name: name of the text, for figures and logs.
            classes: word classes to add, as for :meth:`with_words`; word frequencies are counted
                over all texts.
            phrases: further classes by name, such as "names" or "idioms", as for
                :meth:`with_words`.
            design: name of a sampling design or a :class:`repdyn.Design`: "independent" (8 vectors
                of each window of 80 tokens, disjoint batches, neighbours in the same window
                excluded), "dense" (most tokens of few long windows), "paper" (the published
                protocol: all tokens of 128 windows of 512 characters) or "shuffled" (as
                "independent", the tokens of each window in random order).
            vectors_per_window: largest number of vectors of one window in a batch, if the text has
                enough windows; None for the design's default.

        Raises:
            ValueError: fewer than 3 tokens, a ``sequence_length`` without room for text next to the
                special tokens, a text that UTF-8 cannot encode, classes that cannot be determined,
                or an unknown design.
        """
        design = resolve_design(design)
        if vectors_per_window is not None:
            design = replace(design, vectors_per_window=vectors_per_window)
        classes = class_names(classes)
        cut = replace(design, window_tokens=sequence_length or design.window_tokens)
        n_windows = cut.required_windows(
            **cut.batch_plan(max_vectors, batch_vectors, 0), window_tokens=cut.window_tokens
        )
        n_tokens = 0 if design.n_windows else int(max_vectors * TOKENS_PER_VECTOR)
        sizes = {"n_tokens": n_tokens, "n_windows": n_windows}
        windows = tokenize_windows(texts, tokenizer, cut, bool(classes or phrases), **sizes)
        special_ids = tuple(sorted(set(tokenizer.all_special_ids)))
        windows = windows.in_order_of(design, special_ids, seed)
        fields = _fields_of_windows(windows, design, special_ids, max_vectors, batch_vectors, seed)
        pad_id, mask_id = (
            cast(int, tokenizer.pad_token_id or 0),
            cast("int | None", tokenizer.mask_token_id),
        )
        probe = cls(**fields, pad_id=pad_id, name=name, mask_id=mask_id)
        return probe if windows.words is None else probe.with_words(windows.words, classes, phrases)

    @classmethod
    @plain_state()
    def from_dataset(
        cls,
        data: Any,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        column: str | None = None,
        n_windows: int | None = None,
        sequence_length: int | None = None,
        max_vectors: int = MAX_VECTORS,
        batch_vectors: int | None = None,
        seed: int = 0,
        name: str = "data set",
        accepted: Collection[str] | None = None,
        equal_lengths: bool = False,
    ) -> Probe:
        """Return a probe of a data set: of 512 evenly spaced windows at most, and of 65,536 tokens.

        Rows are read in order: not through a loader, its workers or its shuffling, and without a
        trace in the global random states. A collate function is called only where rows have no
        token ids of their own, so that none that masks is asked for tokens. Of an iterable data
        set the first rows are read. Rows of more than 128 tokens are cut into windows where the
        bound needs it, or where there are fewer than 512. Images, sounds and pairs become a probe
        of inputs, of at most 128 MiB.

        Args:
            data: a ``datasets.Dataset`` of texts or token ids, streamed or not; a ``Dataset`` of
                torch, or a ``DataLoader``; a list of texts, of rows or of batches.
            tokenizer: that of the models to measure, for texts; of token ids it tells the special
                ones.
            column: the column of texts or token ids; by default ``input_ids``, ``text``, or the
                only one there is.
            n_windows: number of rows to read, whole, whatever the bound.
            sequence_length: number of tokens to which rows are cut; by default 128, of texts 80.
            max_vectors, batch_vectors, seed, name: as for :meth:`from_texts`.
            accepted: names of the arguments of a forward pass, which batches of inputs are
                restricted to; by default all but labels.
            equal_lengths: whether all windows have one length, for models that cannot be told of
                padding: ``sequence_length``, or the median. Shorter rows of token ids are left out.

        Raises:
            TypeError: something that has no rows.
            ValueError: a data set without rows, or whose rows are neither token ids, texts nor
                tensors.
        """
        sizes = {"max_vectors": max_vectors, "batch_vectors": batch_vectors, "seed": seed}
        with isolated_rng(seed):
            content = read_dataset(
                Source.of(data),
                n_windows or most_windows(max_vectors),
                int(max_vectors * TOKENS_PER_VECTOR),
                column=column,
                tokenizes=tokenizer is not None,
                accepted=accepted,
            )
        if content.inputs:
            return cls.from_inputs(content.inputs, **sizes, name=name)
        if content.texts and tokenizer is not None:
            return cls.from_texts(
                content.texts, tokenizer, sequence_length=sequence_length, **sizes, name=name
            )
        tokens, lengths, cut_to = _windows_of_rows(
            content.tokens, max_vectors, n_windows, sequence_length, equal_lengths
        )
        if cut_to is not None and sequence_length is None:
            warnings.warn(
                f"rows of up to {max(map(len, content.tokens)):,} tokens are cut into windows of "
                f"{cut_to}; sequence_length= sets another length, n_windows=N reads N whole rows",
                UserWarning,
                stacklevel=3,
            )
        return cls.from_tokens(
            torch.split(tokens, lengths),
            n_windows=len(lengths),
            **sizes,
            **_ids_of(tokenizer),
            name=name,
        )

    @classmethod
    def enwik8(
        cls, tokenizer: PreTrainedTokenizerBase, *, path: str | None = None, **settings: Any
    ) -> Probe:
        """Return a probe of the last 5% of cleaned enwik8, its conventional test split.

        Args:
            tokenizer: as for :meth:`from_texts`.
            path: path of enwik8 (plain, .gz, .xz or .zip); None downloads it once and verifies its
                checksum.
            **settings: sequence_length, max_vectors, batch_vectors, seed, classes, phrases, design,
                vectors_per_window: as for :meth:`from_texts`.
        """
        from repdyn.probe.corpus import load_corpus

        corpus = load_corpus(path or "enwik8")
        # the cut may be inside a character
        held_out = corpus.data[len(corpus.data) * 95 // 100 :].decode("utf-8", errors="ignore")
        return cls.from_texts([held_out], tokenizer, name=corpus.name, **settings)

    @classmethod
    @plain_state()
    def from_inputs(
        cls,
        batches: Iterable[Any],
        *,
        positions: Positions = None,
        causal: Causal = None,
        max_vectors: int = MAX_VECTORS,
        batch_vectors: int | None = None,
        vectors_per_input: int | None = None,
        seed: int = 0,
        name: str = "inputs",
    ) -> Probe:
        """Return a probe of anything that a model takes: images, waveforms, pairs of image and
        text; of 512 evenly spaced inputs at most, or as many as ``max_vectors`` needs.

        Args:
            batches: each as the model's forward takes it and as large as one forward pass can be: a
                dictionary of tensors, a tuple of tensors or a tensor, the first dimension being
                that of the inputs.
            positions: which positions of the states are vectors: a slice, ``slice(1, None)``
                without CLS; the name of a mask among the inputs; a function from states (n_inputs,
                n_positions, dim) and the inputs of a batch to a mask (n_inputs, n_positions); one
                of these for each stack, by its name; None for all.
            causal: whether no position sees a later one, or that of each stack; recorded, and not
                tested.
            max_vectors, batch_vectors: as for :meth:`from_texts`; fewer, with a warning, where
            inputs are few.
            vectors_per_input: number of vectors of each input at every layer, 8 by default.
            seed, name: as for :meth:`from_texts`.

        Raises:
            ValueError: batches that are no inputs, fewer than 3 vectors, or no rule of positions.
        """
        fields = inputs_fields(
            batches, positions, causal, max_vectors, batch_vectors, vectors_per_input
        )
        return cls(**fields, seed=seed, name=name)

    @plain_state()
    def with_classes(self, classes: Mapping[str, Any]) -> Probe:
        """Return the probe with classes added; a class of the same name is replaced.

        Args:
            classes: by name, a bool for each token in the order of ``tokens``: a tensor, an array
                or a list. ``members & ~probe.is_sink`` excludes first positions and special tokens.

        Raises:
            ValueError: an invalid name, another type or length, or too few tokens in a class.
        """
        copied = {name: torch.as_tensor(members).cpu().clone() for name, members in classes.items()}
        return replace(self, classes={**self.classes, **copied})

    def with_words(
        self,
        words: TokenWords,
        classes: Sequence[str],
        phrases: Mapping[str, Sequence[str]] | None = None,
    ) -> Probe:
        """Return the probe with word classes added, which exclude first positions and special
        tokens.

        Args:
            words: the words of all tokens.
            classes: among "function" (English function words), "content" (all other words),
                "frequent" (the most frequent words, which make up half of the text) and "rare" (the
                least frequent ones, the last 10% of it); "words" for all of them.
            phrases: further classes: the tokens of any of the given words, or phrases of several
                words, by name.

        Raises:
            ValueError: unknown classes, a text in which they cannot be determined, or too few
                tokens in one.
        """
        found = {
            **words.classes(class_names(classes)),
            **words.in_phrases(phrases or {}, self.window_of_token),
        }
        return self.with_classes({name: members & ~self.is_sink for name, members in found.items()})

    @plain_state()
    def with_topics(self, topics: Any) -> Probe:
        """Return the probe with topics of its tokens, which replace any it has.

        Args:
            topics: (n_tokens,) integers in the order of ``tokens``, -1 for none: a tensor, an array
                or a list.

        Raises:
            ValueError: another type or length, or no token has a topic.
        """
        tensor = torch.as_tensor(topics).cpu().clone()
        is_integer = not (
            tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool
        )
        return replace(self, topics=tensor.long() if is_integer else tensor)

    @property
    def subsets(self) -> tuple[str, ...]:
        """The names of the subsets; a probe of inputs has all vectors alone."""
        return ("all",) if self.inputs is not None else (*SUBSETS, *self.classes)

    @cached_property
    def is_special(self) -> np.ndarray:
        """(n_tokens,) bool: whether each token is a special one."""
        return np.isin(self.tokens.numpy(), self.special_ids)

    @cached_property
    def is_sink(self) -> Tensor:
        """(n_tokens,) bool: first positions of sequences and special tokens, which ``no_sink``
        excludes.
        """
        return sink_mask(self.tokens, self.lengths, self.special_ids)

    @plain_state()
    def sample(self, subset: str) -> np.ndarray:
        """Return the token indices of every metric batch of a subset, (n_batches, m).

        m is ``batch_vectors``, or fewer for a class with too few tokens. Raises ValueError for an
        unknown subset.
        """
        if subset in DISTINCT and subset not in self._samples:
            self._samples[subset] = self._distinct_sample(subset), self.has_disjoint_batches()
        if subset not in self._samples:
            members, batches = self.members(subset), None
            if self.design.disjoint_windows and len(self.lengths) >= self.n_batches:
                batches = _interleaved(members, self.window_of(members), self._batch_of_window)
                if min(map(len, batches)) < (
                    self.batch_vectors if subset in SUBSETS else MIN_BATCH_VECTORS
                ):
                    batches = None
            if batches is None:
                size = min(self.batch_vectors, len(members) // self.n_batches)
                sample = members[: self.n_batches * size].reshape(self.n_batches, size)
            else:
                size = min(self.batch_vectors, *map(len, batches))
                sample = np.stack([batch[:size] for batch in batches])
            self._samples[subset] = sample, batches is not None
        return self._samples[subset][0]

    def _distinct_sample(self, subset: str) -> np.ndarray:
        """Return the sample of distinct inputs or types, (n_batches, m): in each batch no input, or
        no token, occurs twice.

        Candidates are the tokens that the sample of all tokens makes the model read: those up to
        the last sampled one of each window, in the windows of the batch.
        """
        is_of_types = subset == TYPES
        labels = self.tokens.numpy() if is_of_types else self.inputs_of_tokens
        batches = []
        for number, sampled in enumerate(self.sample("all")):
            n_windows = len(np.unique(self.window_of_token[sampled]))
            last_read = np.full(len(self.lengths), -1)
            np.maximum.at(last_read, self.window_of_token[sampled], sampled)
            is_read = np.arange(len(self.tokens)) <= last_read[self.window_of_token]
            # batches that share windows begin elsewhere, or all would draw the same tokens
            in_order = np.roll(self._permutation, -number * self.batch_vectors)
            candidates = in_order[is_read[in_order]]
            n_vectors = min(len(sampled), MOST_VECTORS)
            drawn = draw(
                candidates,
                windows=self.window_of_token[candidates],
                labels=labels[candidates],
                n_vectors=len(sampled) if is_of_types else n_vectors,
                per_window=math.ceil(len(sampled) / n_windows),
            )
            batches.append(evenly(drawn, n_vectors, self.seed))
        size = min(map(len, batches))
        return np.stack([batch[:size] for batch in batches])

    @cached_property
    def without_repeats(self) -> str:
        """The subset without repeats that a dimension is measured on beside all tokens, by default:
        types where each batch has at least 512 of them, otherwise distinct inputs.

        It depends on the probe alone, so that all checkpoints, and a sweep and a training on it,
        are measured on the same one.
        """
        n_types = self.sample(TYPES).shape[1]
        return TYPES if n_types >= FEWEST_VECTORS else DISTINCT_INPUTS

    @cached_property
    def inputs_of_tokens(self) -> np.ndarray:
        """(n_tokens,) a number for each token at its position, which equal inputs share."""
        return input_numbers(self.tokens.numpy(), self.positions)

    @cached_property
    def positions(self) -> np.ndarray:
        """(n_tokens,) the position of each token in its window, from 0."""
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
        """The token indices of whole windows, for metrics of sequences: by batch, at most 16
        windows of equal number.

        The windows are evenly spaced over the probe among those of at least 2 tokens, and dealt to
        the batches in turn, so that no batch shares a window with another, whatever the design.
        Each is cut to its first 256 tokens. The list is empty if there are fewer such windows than
        batches.
        """
        starts = (torch.cumsum(self.lengths, 0) - self.lengths).tolist()
        long_enough = np.flatnonzero(self.lengths.numpy() > 1)
        n_chosen = self.n_batches * min(WHOLE_WINDOWS, len(long_enough) // self.n_batches)
        chosen = long_enough[np.arange(n_chosen) * len(long_enough) // max(1, n_chosen)]
        sizes = self.lengths.clamp_max(WHOLE_WINDOW_TOKENS).tolist()
        windows = [starts[window] + np.arange(sizes[window]) for window in chosen]
        return (
            [windows[batch :: self.n_batches] for batch in range(self.n_batches)] if windows else []
        )

    @cached_property
    def window_of_token(self) -> np.ndarray:
        """(n_tokens,) index of the window of each token."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths.numpy())

    @cached_property
    def has_next(self) -> np.ndarray:
        """(n_tokens,) bool: whether the next token is in the same window."""
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
    def _batch_of_window(self) -> np.ndarray:
        """(n_windows,) the batch of each window, such that the batches have about equally many
        tokens.

        Windows are assigned from the longest to the shortest, those of equal length in random
        order, each to the batch with the fewest tokens so far.
        """
        lengths = self.lengths.numpy()
        # the stream of RandomState is frozen by numpy's policy; Generator's may change between
        # releases
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
        last = np.where(sampled < len(self.tokens), sampled, ends[windows] - 1)
        needed = np.zeros(len(self.lengths), dtype=np.int64)
        np.maximum.at(needed, windows, last - starts[windows] + 1)
        return torch.from_numpy(needed if causal else np.where(needed > 0, self.lengths.numpy(), 0))

    @cached_property
    def _permutation(self) -> np.ndarray:
        # the stream of RandomState is frozen by numpy's policy; Generator's and torch's may change
        # between releases
        return np.random.RandomState(self.seed).permutation(len(self.tokens))

    def members(self, subset: str) -> np.ndarray:
        """Return the token indices of a subset or view, in the order in which they are sampled."""
        if subset not in {*self.subsets, *VIEWS}:
            raise ValueError(
                f"expected a subset among {', '.join([*self.subsets, *VIEWS])}, got {subset!r}; "
                "word classes come with Probe.from_texts(..., classes=...), or classes=words in "
                "a sweep, others with Probe.with_classes"
            )
        if subset == "all":
            return self._permutation
        if subset == WINDOW_MEAN:
            is_first = np.append(True, ~self.has_next[:-1])
            return self.index_of_mean(self._permutation[is_first[self._permutation]])
        if subset in DISTINCT:
            return self.sample(subset).ravel()
        if subset in VIEWS:
            members = self.has_next if subset == DIFFERENCES else self._is_last
            return self._permutation[members[self._permutation]]
        members = {"no_sink": ~self.is_sink, **self.classes}[subset]
        return self._permutation[members.numpy()[self._permutation]]

    @property
    def _is_last(self) -> np.ndarray:
        """(n_tokens,) bool: the last token of each window that is not special."""
        texts = np.flatnonzero(~self.is_special)
        windows = self.window_of_token[texts]
        last = texts[np.append(windows[1:] != windows[:-1], True)[: len(texts)]]
        return np.isin(np.arange(len(self.tokens)), last)

    @cached_property
    def hash(self) -> str:
        """16 hexadecimal digits that identify the tokens, plan and design, and any classes and
        topics.
        """
        plan: list[Any] = [list(self.special_ids), self.batch_vectors, self.n_batches, self.seed]
        # the oldest hashes, which remain valid
        if self.inputs is not None or self.design.rule != DENSE.rule:
            plan.append(self.design.rule)
        digest = hashlib.sha256(json.dumps(plan).encode())
        if self.inputs is not None:
            self.inputs.update_hash(digest)
            return digest.hexdigest()[:16]
        for tensor in (self.lengths, self.tokens):
            digest.update(tensor.numpy().astype("<i8").tobytes())
        for name, members in self.classes.items():
            digest.update(json.dumps({"class": name}).encode())
            digest.update(members.numpy().astype("u1").tobytes())
        if self.topics is not None:
            digest.update(json.dumps("topics").encode())
            digest.update(self.topics.numpy().astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def save(self, path: str | Path) -> None:
        """Write the probe to a safetensors file; :meth:`load` restores it with an equal hash."""
        tensors = {"tokens": self.tokens, "lengths": self.lengths}
        # uint8, because a bool read from a damaged file may be neither true nor false
        tensors |= {
            f"{_CLASS}{name}": members.to(torch.uint8) for name, members in self.classes.items()
        }
        if self.topics is not None:
            tensors[_TOPICS] = self.topics
        settings = {name: getattr(self, name) for name in _SETTINGS} | {"design": self.design.rule}
        metadata = {_PLAN: json.dumps(settings), "hash": self.hash}
        if self.inputs is not None:
            of_inputs, metadata[_INPUTS] = inputs_to_tensors(self.inputs)
            tensors |= of_inputs
        data = to_safetensors(tensors, metadata=metadata)
        # not save_file, whose errors of a full disk are no OSError, and whose files only their
        # owner can read; a new file, since the tensors of a probe that was loaded from this one are
        # still mapped from it
        write_atomically(Path(path).expanduser(), lambda new: new.write_bytes(data))

    @classmethod
    @plain_state()
    def load(cls, path: str | Path) -> Probe:
        """Read a probe written by :meth:`save`.

        Raises:
            ValueError: the file is not a probe, or its content does not match its hash.
            OSError: the file cannot be read.
        """
        path = Path(path).expanduser()
        if not path.is_file():
            raise FileNotFoundError(
                f"expected a probe written by Probe.save, got no file at {path}"
            )
        try:
            fields, claimed = _read(path)
            probe = cls(**fields)
        # what a file that is none of ours makes of the reader is of many kinds
        except (
            SafetensorError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
        ) as error:
            raise ValueError(
                f"expected a probe written by Probe.save, got {path}: {error}"
            ) from error
        if probe.hash != claimed:
            raise ValueError(
                f"expected content with the hash {claimed} in {path}, got {probe.hash}; the file "
                "is damaged"
            )
        return probe


def _windows_of_rows(
    rows: Sequence[np.ndarray],
    max_vectors: int,
    n_windows: int | None,
    sequence_length: int | None,
    equal_lengths: bool,
) -> tuple[Tensor, list[int], int | None]:
    """Return the windows of the rows of a data set within the bound: tokens (n_tokens,), the length
    of each, and that to which rows were cut, if any was."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    if not len(lengths):
        raise ValueError(
            "expected rows with tokens, got empty ones; pass another column with column="
        )
    windows = bounded_windows(
        lengths,
        INDEPENDENT,
        max_vectors=max_vectors,
        n_windows=n_windows,
        window_tokens=sequence_length,
        fills=True,
        has_equal_lengths=equal_lengths,
    )
    tokens = torch.from_numpy(np.concatenate(rows)[windows.tokens])
    return tokens, windows.lengths.tolist(), windows.cut_to


def _ids_of(tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
    """Return what a tokenizer says of token ids, as arguments of :meth:`Probe.from_tokens`."""
    if tokenizer is None:
        return {}
    return {
        "special_ids": tokenizer.all_special_ids,
        "pad_id": tokenizer.pad_token_id or 0,
        "mask_id": tokenizer.mask_token_id,
    }


def _interleaved(
    members: np.ndarray, windows: np.ndarray, batch_of_window: np.ndarray
) -> list[np.ndarray]:
    """Order the tokens of each batch so that its first n have about equally many of each window,
    for any n.

    They are first one of each window, then a second of each, and so on; otherwise in the random
    order of ``members``, whose windows are ``windows``.
    """
    by_window = np.argsort(windows, kind="stable")
    counts = np.bincount(windows, minlength=len(batch_of_window))
    starts = np.cumsum(counts) - counts
    round_ = np.empty(len(members), dtype=np.int64)
    round_[by_window] = np.arange(len(members)) - starts[windows[by_window]]
    order = np.argsort(round_, kind="stable")
    batch = batch_of_window[windows[order]]
    return [members[order[batch == index]] for index in range(int(batch_of_window.max()) + 1)]


def _fields_of_windows(
    windows: TokenizedWindows,
    design: Design,
    special_ids: tuple[int, ...],
    max_vectors: int,
    batch_vectors: int | None,
    seed: int,
) -> dict[str, Any]:
    """Return the fields of a probe of windows, its batches being the design's, or as many as there
    are tokens for.
    """
    n_tokens = len(windows.tokens)
    n_texts = n_tokens - int(sink_mask(windows.tokens, windows.lengths, special_ids).sum())
    # both subsets have equally many vectors, unless every token is a first position or special
    available = n_tokens if design.n_windows is not None or n_texts < MIN_BATCH_VECTORS else n_texts
    return {
        "tokens": windows.tokens,
        "lengths": windows.lengths,
        "special_ids": special_ids,
        "seed": seed,
        "design": design,
        "bytes_per_token": windows.bytes_per_token,
        **fitting(design.batch_plan(max_vectors, batch_vectors, n_tokens), available),
    }


def _read(path: str | Path) -> tuple[dict[str, Any], str]:
    """Return the fields of the probe in a file written by :meth:`Probe.save`, and the hash that
    they had.
    """
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if _PLAN not in metadata or "hash" not in metadata:
            raise ValueError("it is without the header of one")
        names = file.keys()
        settings = json.loads(metadata[_PLAN])
        classes = (name for name in names if name.startswith(_CLASS))
        fields = {
            **settings,
            "special_ids": tuple(settings["special_ids"]),
            "design": design_from_rule(settings["design"]),
            "tokens": file.get_tensor("tokens").long(),
            "lengths": file.get_tensor("lengths").long(),
            "classes": {
                name.removeprefix(_CLASS): file.get_tensor(name).bool() for name in classes
            },
            "topics": file.get_tensor(_TOPICS) if _TOPICS in names else None,
            "inputs": inputs_from_tensors(file.get_tensor, metadata[_INPUTS])
            if _INPUTS in metadata
            else None,
        }
        return fields, metadata["hash"]

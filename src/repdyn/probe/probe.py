"""The probe: the fixed tokens on which every checkpoint is measured, and the vectors that are
sampled from them.

Checkpoints are comparable only if the tokens, the sampled vectors and the sampling design are the
same. A probe fixes all of these, and its content hash is stored in every row. How batches are
sampled is in :mod:`repdyn.probe.sampling`, the file and the hash in :mod:`repdyn.probe.file`.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError

from repdyn.probe.bounds import bounded_windows, most_windows
from repdyn.probe.building import fields_of_windows, ids_of, windows_of_rows
from repdyn.probe.content import (
    unpad,
)
from repdyn.probe.datasets import Source, read_dataset
from repdyn.probe.design import (
    INDEPENDENT,
    MAX_VECTORS,
    TOKENS_PER_VECTOR,
    DesignLike,
    class_names,
    resolve_design,
)
from repdyn.probe.file import content_hash, read_fields, save_probe
from repdyn.probe.inputs import (
    Causal,
    Positions,
    inputs_fields,
)
from repdyn.probe.sampled_tokens import SampledTokens
from repdyn.probe.windows import TokenizedWindows, tokenize_windows
from repdyn.probe.word_classes import TokenWords
from repdyn.utils.caller_state import isolated_rng, plain_state

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, eq=False)
class Probe(SampledTokens):
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

    def __repr__(self) -> str:
        """Return its sizes in a line, instead of its tensors."""
        size = (
            f"{len(self.tokens):,} {'vectors' if self.inputs else 'tokens'} in "
            f"{len(self.lengths):,} windows"
        )
        drawn = (
            f"{self.n_batches} x {self.batch_vectors:,} vectors by the {self.design.name} design"
        )
        return f"Probe({self.name!r}: {size}; {self._cost}; {drawn}; hash {self.hash})"

    @property
    def _cost(self) -> str:
        """Return in words what a measurement on all tokens reads."""
        if self.inputs is not None:
            return f"a measurement reads all {len(self.lengths):,} inputs"
        needed = self.tokens_needed(self.sample("all").ravel(), causal=False)
        n_read = int(needed.sum())
        if n_read == len(self.tokens):
            return "a measurement reads all of them"
        n_windows = int((needed > 0).sum())
        of_windows = f" of {n_windows:,} windows" if n_windows < len(self.lengths) else ""
        return f"a measurement reads {n_read:,} tokens{of_windows}"

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
        fields = fields_of_windows(windows, design, special_ids, max_vectors, batch_vectors, seed)
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
        fields = fields_of_windows(windows, design, special_ids, max_vectors, batch_vectors, seed)
        pad_id = cast(int, tokenizer.pad_token_id or 0)
        mask_id = cast("int | None", tokenizer.mask_token_id)
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
        tokens, lengths, cut_to = windows_of_rows(
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
            **ids_of(tokenizer),
            name=name,
        )

    @classmethod
    def enwik8(
        cls, tokenizer: PreTrainedTokenizerBase, *, path: str | None = None, **settings: Any
    ) -> Probe:
        """Return a probe of the last 5% of cleaned enwik8, its conventional test split.

        Args:
            tokenizer: as for :meth:`from_texts`.
            path: path of enwik8 (plain, .gz, .xz, .bz2 or .zip); None downloads it once and
                verifies its checksum.
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
        by_name = {
            **words.classes(class_names(classes)),
            **words.in_phrases(phrases or {}, self.window_of_token),
        }
        return self.with_classes(
            {name: members & ~self.is_sink for name, members in by_name.items()}
        )

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

    @cached_property
    def hash(self) -> str:
        """Return 16 hexadecimal digits that identify the tokens, plan and design, and any classes
        and topics.
        """
        return content_hash(self)

    def save(self, path: str | Path) -> None:
        """Write the probe to a safetensors file; :meth:`load` restores it with an equal hash."""
        save_probe(self, Path(path).expanduser())

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
            fields, claimed = read_fields(path)
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

"""The probe: the fixed tokens every checkpoint is shown, and which of their vectors are measured.

Two checkpoints compare only when they saw the same tokens and the same vectors were taken by the same sampling design.
All of it is fixed here, once, and named by a content hash that every stored row carries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from repdyn.probe.content import (
    SUBSETS,
    ProbeBatch,
    class_tensors,
    content_hash,
    topic_tensor,
    unpad,
    validate_classes,
    validate_sequences,
    validate_subset_sizes,
    validate_topics,
)
from repdyn.probe.design import BATCH_VECTORS, DENSE, INDEPENDENT, MAX_VECTORS, Design, DesignLike, design_named
from repdyn.probe.io import ProbeContent, read_probe, write_probe
from repdyn.probe.sampling import SampledTokens
from repdyn.probe.windows import WindowPlan, sequences_of_texts
from repdyn.probe.word_classes import TokenWords, validate_word_classes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Probe", "ProbeBatch"]

_SETTINGS = ("special_ids", "batch_vectors", "n_batches", "seed", "pad_id", "name")


@dataclass(frozen=True, eq=False)
class Probe(SampledTokens):
    """A fixed set of token sequences (windows) with a seeded plan of which vectors to measure.

    Tokens are numbered through the whole probe, window after window, padding left out. The sampling design decides
    which tokens make up the metric batches. By default each batch takes windows of its own and as equal a share of each
    as possible, so that the vectors of a batch share as little context as the probe allows and the batches are
    independent. Neither the padding side nor the batch size of the forward pass has any say in which vectors are taken.

    The subsets are ``all`` tokens, ``no_sink``, and the probe's classes, whose batches are as many, and smaller where a
    class has too few tokens for whole ones.

    Build one with :meth:`from_texts`, :meth:`from_tokens` or :meth:`enwik8`.
    """

    tokens: Tensor
    """(n_tokens,) int64: all sequences one after the other, without padding."""
    lengths: Tensor
    """(n_sequences,) int64: tokens in each sequence."""
    special_ids: tuple[int, ...] = ()
    """Token ids left out of ``no_sink`` beside the first position of every sequence."""
    batch_vectors: int = BATCH_VECTORS
    """Vectors in one metric batch. Estimates grow with it, so values at different numbers do not compare."""
    n_batches: int = MAX_VECTORS // BATCH_VECTORS
    """Metric batches; the value of a layer is the mean over them."""
    seed: int = 0
    pad_id: int = 0
    name: str = "tokens"
    design: Design = INDEPENDENT
    """How batches are drawn from the windows, and whether neighbours within a window count."""
    classes: Mapping[str, Tensor] = field(default_factory=dict)
    """By name, in alphabetical order: (n_tokens,) bool, which tokens are in the class. A class is a subset to measure,
    as in "alignment@rare"."""
    topics: Tensor | None = None
    """(n_tokens,) int64: number of each token's topic, -1 where it has none; None where no topics are known."""

    def __post_init__(self) -> None:
        validate_sequences(self.tokens, self.lengths)
        validate_classes(self.classes, len(self.tokens))
        validate_topics(self.topics, len(self.tokens))
        # one order, whatever the order they were given or read in
        object.__setattr__(self, "classes", dict(sorted(self.classes.items())))
        available = {subset: len(self.members(subset)) for subset in self.subsets}
        whole = ("all",) if self.design.n_windows is not None else SUBSETS
        validate_subset_sizes(available, self.batch_vectors, self.n_batches, whole)

    @classmethod
    def from_tokens(
        cls,
        input_ids: Any,
        attention_mask: Any = None,
        *,
        special_ids: Iterable[int] = (),
        max_vectors: int = MAX_VECTORS,
        batch_vectors: int | None = None,
        seed: int = 0,
        pad_id: int = 0,
        name: str = "tokens",
        design: DesignLike = INDEPENDENT,
    ) -> Probe:
        """A probe from token ids.

        Args:
            input_ids: (n_sequences, length) integers: a tensor, an array or nested lists.
            attention_mask: (n_sequences, length), nonzero at tokens; None without padding. Padding may stand on either
                side, not between tokens.
            special_ids: ids of special tokens, left out of the subset ``no_sink``.
            max_vectors: vectors measured per layer, in all batches together.
            batch_vectors: vectors per batch; by default 4096, or ``max_vectors`` when that is fewer.
            seed: of the sampling plan.
            pad_id: fills the padding again when a batch is formed.
            name: what the text is, for figures and logs.
            design: name of a sampling design ("independent", "dense", "paper") or a Design of your own. What it says of
                windows is decided by ``input_ids``; for independent points give many sequences: 512 for each batch
                of 4096 vectors make 8 of each.

        Raises:
            ValueError: wrong shape, padding between tokens, too few tokens (with the number that is needed), or an
                unknown design.
        """
        design = design_named(design)
        tokens, lengths = unpad(input_ids, attention_mask)
        return cls(
            tokens=tokens,
            lengths=lengths,
            special_ids=tuple(sorted({int(token) for token in special_ids})),
            seed=seed,
            pad_id=pad_id,
            name=name,
            design=design,
            **design.batch_plan(max_vectors, batch_vectors, len(tokens)),
        )

    @classmethod
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
        design: DesignLike = INDEPENDENT,
        vectors_per_window: int | None = None,
    ) -> Probe:
        """A probe from texts and any Hugging Face tokenizer.

        Each text is cut into windows, the tokenizer's own prefix and suffix (``[CLS]``, ``<s>``, ...) included in each.
        Where there are more windows than the design needs, those kept are spread evenly over all of them; where there
        are fewer, each gives more vectors.

        Args:
            texts: any number of texts of any length.
            tokenizer: of the model that will be measured.
            sequence_length: tokens in a window, at most the model's context; None for what the design says.
            max_vectors: vectors measured per layer, in all batches together.
            batch_vectors: vectors per batch; by default 4096, or ``max_vectors`` when that is fewer.
            seed: of the sampling plan.
            name: what the text is, for figures and logs.
            classes: of words that the probe is to know, as for :meth:`with_words`; words are counted in all texts.
            design: name of a sampling design or a :class:`repdyn.Design`: "independent" (8 vectors of each window of 80
                tokens, batches of disjoint windows, neighbours of the own window left out), "dense" (most tokens of few
                long windows) or "paper" (the published protocol: all tokens of 128 windows of 512 characters).
            vectors_per_window: vectors of one window in a batch, at most, where the text has enough windows; None for
                what the design says.

        Raises:
            ValueError: too few tokens (with the number that is needed), or a ``sequence_length`` that the special
                tokens fill already, or a text that UTF-8 cannot write; classes that cannot be told; or an unknown
                design.
        """
        design = design_named(design)
        if vectors_per_window is not None:
            design = replace(design, vectors_per_window=vectors_per_window)
        validate_word_classes(classes)
        plan = WindowPlan.by_design(design, max_vectors, batch_vectors, sequence_length)
        tokens, lengths, words = sequences_of_texts(texts, tokenizer, plan, bool(classes))
        probe = cls(
            tokens=tokens,
            lengths=lengths,
            special_ids=tuple(sorted(set(tokenizer.all_special_ids))),
            seed=seed,
            pad_id=cast(int, tokenizer.pad_token_id or 0),
            name=name,
            design=design,
            **design.batch_plan(max_vectors, batch_vectors, len(tokens)),
        )
        return probe if words is None else probe.with_words(words, classes)

    @classmethod
    def enwik8(cls, tokenizer: PreTrainedTokenizerBase, *, path: str | None = None, **settings: Any) -> Probe:
        """A probe from the last 5 % of cleaned enwik8, the part held out from training by custom.

        Args:
            tokenizer: of the model that will be measured.
            path: a copy of enwik8 (plain, .gz, .xz or .zip); None downloads it once, with its checksum verified.
            **settings: sequence_length, max_vectors, batch_vectors, seed, classes, design, vectors_per_window: as for
                :meth:`from_texts`.
        """
        from repdyn.text.source import load_corpus  # here, because it reads text that no other probe needs

        corpus = load_corpus(path or "enwik8")
        held_out = corpus.data[len(corpus.data) * 95 // 100 :].decode("utf-8", errors="ignore")
        return cls.from_texts([held_out], tokenizer, name=corpus.name, **settings)

    @cached_property
    def hash(self) -> str:
        """16 hexadecimal digits naming tokens, plan and design, and classes and topics where there are any."""
        plan: list[Any] = [list(self.special_ids), self.batch_vectors, self.n_batches, self.seed]
        if self.design.rule != DENSE.rule:  # the only design there was before designs had names
            plan.append(self.design.rule)
        return content_hash(self.tokens, self.lengths, plan, self.classes, self.topics)

    def with_classes(self, classes: Mapping[str, Any]) -> Probe:
        """The probe with these classes beside those it has; of two with the same name the new one counts.

        Args:
            classes: by name, bool for each token in the order of ``tokens``, whether it is in the class: a tensor, an
                array or a list. ``members & ~probe.is_sink`` keeps first positions and special tokens out.

        Raises:
            ValueError: a name that no class may have, another type or length, or too few tokens in a class.
        """
        return replace(self, classes={**self.classes, **class_tensors(classes)})

    def with_words(self, words: TokenWords, classes: Sequence[str]) -> Probe:
        """The probe with classes of words beside those it has; first positions and special tokens are in none of them.

        Args:
            words: the words of all tokens.
            classes: among "function" (on a list of English function words), "content" (any other word), "frequent" (the
                words that are met most and make up half of the text) and "rare" (those beyond the first 90 % of it).

        Raises:
            ValueError: other classes, a text in which they cannot be told, or too few tokens in one.
        """
        validate_word_classes(classes)
        return self.with_classes({name: members & ~self.is_sink for name, members in words.classes(classes).items()})

    def with_topics(self, topics: Any) -> Probe:
        """The probe with topics of its tokens, in place of any it has.

        Args:
            topics: (n_tokens,) integers in the order of ``tokens``, -1 for none: a tensor, an array or a list. Others,
                and topics of no token at all, raise ValueError.
        """
        return replace(self, topics=topic_tensor(topics))

    def save(self, path: str | Path) -> None:
        """Write the probe to a safetensors file, from which :meth:`load` gives an equal one (equal hash)."""
        settings = {name: getattr(self, name) for name in _SETTINGS} | {"design": self.design.rule}
        write_probe(path, ProbeContent(self.tokens, self.lengths, settings, self.hash, self.classes, self.topics))

    @classmethod
    def load(cls, path: str | Path) -> Probe:
        """Read a probe that :meth:`save` wrote.

        Raises:
            ValueError: the file is not a probe, or its content does not have the hash it claims.
            OSError: it cannot be read.
        """
        content = read_probe(path)
        try:
            probe = cls(**content.fields)
        except ValueError as error:
            raise ValueError(f"expected a probe written by Probe.save, got {path}: {error}") from error
        if probe.hash != content.hash:
            raise ValueError(f"{path} claims the hash {content.hash} but its content has {probe.hash}")
        return probe

"""Find topics in documents by Latent Dirichlet Allocation, and assign them to the tokens of a probe.

The model is scikit-learn's (``pip install 'repdyn[topics]'``). Function words, rare words and words of many documents
are left out and have no topic.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias, cast, get_args

import numpy as np
import pandas as pd

from repdyn.probe import Probe
from repdyn.probe.design import MAX_VECTORS
from repdyn.probe.function_words import is_function_word
from repdyn.probe.windows import WindowPlan, tokenize_windows
from repdyn.probe.word_classes import NO_WORD, Lexicon, TokenWords

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TokensOfWords: TypeAlias = Literal["whole", "last"]
"""The tokens that have their word's topic: those that are a whole word, or the last one of each word, at which a
decoder has read all of it."""

N_TOPICS = 20
MIN_DOCUMENTS = 5
"""Documents that a word with a topic occurs in at least."""
MAX_DOCUMENT_SHARE = 0.2
"""Share of the documents that it occurs in at most: more frequent words are not specific to a topic."""
MIN_WORD_LENGTH = 3
CERTAINTY = 0.5
"""A token has a topic if that one is more likely than all others together."""
N_PASSES = 10
"""Passes over the documents in the fit."""


@dataclass(frozen=True, eq=False)
class TextTopics:
    """Topics of a collection of documents, from :func:`find_topics`."""

    documents: list[str]
    lexicon: Lexicon
    words: np.ndarray
    """(n_words,) int64, numbers in the lexicon of the words that have topics."""
    word_shares: np.ndarray
    """(n_topics, n_words): frequency of each word in each topic; rows sum to 1."""
    document_shares: np.ndarray
    """(n_documents, n_topics): share of each topic in each document; rows sum to 1."""

    def table(self, n_words: int = 20) -> pd.DataFrame:
        """Return a row for each topic: topic (its number), share (of the text), words (the most frequent ones)."""
        order = self.word_shares.argsort(axis=1)[:, ::-1][:, :n_words]
        words = [" ".join(self.lexicon.words[self.words[word]] for word in topic) for topic in order]
        return pd.DataFrame({"topic": range(len(words)), "share": self.document_shares.mean(axis=0), "words": words})

    def of_words(self, document: int, words: Sequence[str], certainty: float = CERTAINTY) -> np.ndarray:
        """Return the most likely topic of each word in a document.

        Its probability is ``phi_kw theta_dk``, divided by the sum over topics k: phi are the word shares of
        the topics, theta the topic shares of the document.

        Args:
            document: number of the document.
            words: in lower case.
            certainty: smallest probability, in [0, 1]; a word below it is ambiguous and has no topic.

        Returns:
            (len(words),) int64, -1 for none.
        """
        known = np.array([self._places.get(word, -1) for word in words], dtype=np.int64)
        joint = self.word_shares[:, known].T * self.document_shares[document]
        likely = joint.max(axis=1) >= certainty * joint.sum(axis=1)
        return np.where((known >= 0) & likely, joint.argmax(axis=1), -1)

    @cached_property
    def _places(self) -> dict[str, int]:
        """Column in ``word_shares`` by spelling."""
        return {self.lexicon.words[number]: place for place, number in enumerate(self.words)}

    def probe(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        sequence_length: int = 128,
        n_sequences: int = 128,
        tokens_of_words: TokensOfWords = "whole",
        certainty: float = CERTAINTY,
        seed: int = 0,
        name: str = "documents with topics",
    ) -> Probe:
        """Return a probe whose tokens have topics: the beginnings of documents, one sequence from each.

        All sequences have one length. As many vectors as possible are measured, in batches of at most 4096.

        Args:
            tokenizer: the model's.
            sequence_length: tokens in a sequence, special ones included; at most the model's context.
            n_sequences: documents drawn from those that are long enough.
            tokens_of_words: the tokens that have their word's topic.
            certainty: as for :meth:`of_words`.
            seed: of the draw, and of the probe's plan.
            name: of the text, for figures and logs.

        Raises:
            ValueError: too few documents are long enough, or no token has a topic.
        """
        if tokens_of_words not in get_args(TokensOfWords):
            raise ValueError(f'expected tokens_of_words "whole" or "last", got {tokens_of_words!r}')
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for document in np.random.RandomState(seed).permutation(len(self.documents)).tolist():
            if len(found) == n_sequences:
                break
            ids, words = _beginning(self.documents[document], tokenizer, sequence_length)
            if len(ids) == sequence_length:
                # the last word may be cut off
                is_text = np.flatnonzero(~np.isin(ids, tokenizer.all_special_ids))
                chosen = _tokens_of_words(words.numbers, tokens_of_words) & (np.arange(len(ids)) < is_text[-1])
                spelled = [words.lexicon.words[number] for number in words.numbers[chosen]]
                topics = np.full(len(ids), -1)
                topics[chosen] = self.of_words(document, spelled, certainty)
                found.append((ids, topics))
        if len(found) < n_sequences:
            raise ValueError(
                f"expected {n_sequences} documents of at least {sequence_length} tokens, got {len(found)} among "
                f"{len(self.documents)}; give more or longer documents, or take fewer or shorter sequences"
            )
        ids, topics = (np.stack(arrays) for arrays in zip(*found, strict=True))
        if (topics < 0).all():
            raise ValueError(
                f"expected tokens with topics, got none among {ids.size}: no word of a topic is "
                + ("a token of its own" if tokens_of_words == "whole" else "in these sequences")
                + '; take tokens_of_words="last" (--tokens-of-words last), or longer documents'
            )
        return _probe(ids, topics, tokenizer, seed, name)


def find_topics(documents: list[str], n_topics: int = N_TOPICS, *, seed: int = 0) -> TextTopics:
    """Fit a topic model to documents by online variational Bayes.

    Args:
        documents: texts.
        n_topics: number of topics.
        seed: of the fit; the same documents and seed give the same topics on the same machine.

    Raises:
        ValueError: scikit-learn is missing, fewer than two topics, or too few documents or words.

    Source: Blei, Ng, Jordan, Latent Dirichlet Allocation, JMLR 2003; Hoffman, Blei, Bach, Online Learning for Latent
    Dirichlet Allocation, NeurIPS 2010.
    """
    try:
        from scipy.sparse import csr_matrix
        from sklearn.decomposition import LatentDirichletAllocation
    except ImportError as error:
        raise ValueError(
            "expected scikit-learn, which finds the topics, but it is not installed; pip install 'repdyn[topics]'"
        ) from error
    if n_topics < 2:
        raise ValueError(f"expected at least 2 topics, got {n_topics}")
    lexicon = Lexicon()
    spans = [lexicon.read(document).numbers for document in documents]
    rows = np.repeat(np.arange(len(spans)), [len(numbers) for numbers in spans])
    columns = np.concatenate([np.empty(0, dtype=np.int64), *spans])
    counts = csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(spans), len(lexicon.words)))
    counts.sum_duplicates()
    words = _topic_words(lexicon, np.bincount(counts.indices, minlength=len(lexicon.words)), len(spans))
    if len(spans) < n_topics or len(words) < n_topics:
        raise ValueError(
            f"expected at least {n_topics} documents and as many words for {n_topics} topics, got {len(spans)} "
            f"documents and {len(words)} words that are in {MIN_DOCUMENTS} of them or more, and in at most "
            f"{MAX_DOCUMENT_SHARE:.0%}; give more text"
        )
    model = LatentDirichletAllocation(n_topics, learning_method="online", max_iter=N_PASSES, random_state=seed)
    document_shares = model.fit_transform(counts[:, words])
    word_shares = model.components_ / model.components_.sum(axis=1, keepdims=True)
    return TextTopics(documents, lexicon, words, word_shares, document_shares)


def documents_of(text: str, fewest_words: int = 100) -> list[str]:
    """Return the parts of a text between blank lines that have at least so many words: articles, or long paragraphs."""
    return [part for part in re.split(r"\n\s*\n", text) if len(part.split()) >= fewest_words]


def _topic_words(lexicon: Lexicon, n_documents_with: np.ndarray, n_documents: int) -> np.ndarray:
    specific = [len(word) >= MIN_WORD_LENGTH and not is_function_word(word) for word in lexicon.words]
    common = (n_documents_with >= MIN_DOCUMENTS) & (n_documents_with <= MAX_DOCUMENT_SHARE * n_documents)
    return np.flatnonzero(np.array(specific, dtype=bool) & common)


def _beginning(text: str, tokenizer: PreTrainedTokenizerBase, length: int) -> tuple[np.ndarray, TokenWords]:
    """Return the first ``length`` tokens of a text, special ones included, or all if it has fewer; and their words."""
    tokens, lengths, words, _ = tokenize_windows(
        [text], tokenizer, WindowPlan(1, window_tokens=length), with_words=True
    )
    n_tokens = int(lengths[0]) if len(lengths) else 0
    words = words or TokenWords(np.empty(0, dtype=np.int64), Lexicon())
    return tokens[:n_tokens].numpy(), TokenWords(words.numbers[:n_tokens], words.lexicon)


def _tokens_of_words(numbers: np.ndarray, which: TokensOfWords) -> np.ndarray:
    """Return (n,) bool, from the number of each token's word, -1 for none."""
    is_last = numbers != np.append(numbers[1:], NO_WORD)
    is_first = numbers != np.append(NO_WORD, numbers[:-1])
    return (numbers != NO_WORD) & is_last & (is_first if which == "whole" else True)


def _probe(ids: np.ndarray, topics: np.ndarray, tokenizer: PreTrainedTokenizerBase, seed: int, name: str) -> Probe:
    special = sorted(set(tokenizer.all_special_ids))
    is_special = np.isin(ids, special)
    n_vectors = int((~is_special[:, 1:]).sum())
    return Probe.from_tokens(
        ids,
        special_ids=special,
        max_vectors=min(MAX_VECTORS, n_vectors),
        seed=seed,
        pad_id=cast(int, tokenizer.pad_token_id or 0),
        name=name,
    ).with_topics(np.where(is_special, -1, topics).ravel())

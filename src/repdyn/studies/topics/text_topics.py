"""Topics of real text: Latent Dirichlet Allocation finds them in documents, and the tokens of a probe are given theirs.

The model is scikit-learn's (``pip install 'repdyn[topics]'``). Function words, rare words and words of many documents
take no part in it and have no topic.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias, cast, get_args

import numpy as np

from repdyn.probe import Probe
from repdyn.probe.design import BATCH_VECTORS, MAX_VECTORS
from repdyn.probe.function_words import is_function_word
from repdyn.probe.windows import WindowPlan, sequences_of_texts
from repdyn.probe.word_classes import NO_WORD, Lexicon, TokenWords

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TokensOfWords: TypeAlias = Literal["whole", "last"]
"""Which token has its word's topic: one that is the whole word; or the last of each word, which a decoder has read by
then."""

N_TOPICS = 20
FEWEST_DOCUMENTS = 5
"""A word with a topic is in so many documents at least ..."""
LARGEST_SHARE = 0.2
"""... and in this share of them at most: other words say nothing, or nothing in particular."""
SHORTEST_WORD = 3
CERTAINTY = 0.5
"""A token has a topic where that one is more likely than all others together."""
PASSES = 10
"""Over the documents, in the fit."""


@dataclass(frozen=True, eq=False)
class TextTopics:
    """What :func:`find_topics` found."""

    documents: list[str]
    lexicon: Lexicon
    words: np.ndarray
    """(n_words,) int64, numbers in the lexicon: the words that have topics."""
    word_shares: np.ndarray
    """(n_topics, n_words): how often each topic uses each word, rows that sum to 1."""
    document_shares: np.ndarray
    """(n_documents, n_topics): how much of each document each topic wrote, rows that sum to 1."""

    def top_words(self, number: int = 10) -> list[list[str]]:
        """The words that each topic uses most."""
        order = self.word_shares.argsort(axis=1)[:, ::-1][:, :number]
        return [[self.lexicon.words[self.words[word]] for word in words] for words in order]

    def of_words(self, document: int, words: Sequence[str], certainty: float = CERTAINTY) -> np.ndarray:
        """The topic that most likely wrote each of some words in a document.

        Its probability is ``phi_kw theta_dk``, divided by the sum over topics k: phi are the topics' shares of the
        words, theta the document's shares of the topics.

        Args:
            document: number of the document.
            words: in lower case.
            certainty: the least probability, in [0, 1]; a word of less is ambiguous and gets none.

        Returns:
            (len(words),) int64, -1 for none.
        """
        known = np.array([self._places.get(word, -1) for word in words], dtype=np.int64)
        joint = self.word_shares[:, known].T * self.document_shares[document]
        likely = joint.max(axis=1) >= certainty * joint.sum(axis=1)
        return np.where((known >= 0) & likely, joint.argmax(axis=1), -1)

    @cached_property
    def _places(self) -> dict[str, int]:
        """Of the words that have topics, by their spelling."""
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
        """A probe whose tokens have topics: the beginnings of so many documents, one sequence from each.

        All sequences have one length. Most vectors that fit are measured, in batches of 4096 where there are as many.

        Args:
            tokenizer: of the model that will be measured.
            sequence_length: tokens in a sequence, special ones included; at most the model's context.
            n_sequences: documents drawn, of those that are long enough.
            tokens_of_words: which token has its word's topic.
            certainty: as for :meth:`of_words`.
            seed: of the draw, and of the probe's plan.
            name: what the text is, for figures and logs.

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
                # of the word that the cut may have gone through nobody knows
                is_text = np.flatnonzero(~np.isin(ids, tokenizer.all_special_ids))
                chosen = _tokens_of_words(words.numbers, tokens_of_words) & (np.arange(len(ids)) < is_text[-1])
                spelled = [words.lexicon.words[number] for number in words.numbers[chosen]]
                topics = np.full(len(ids), -1)
                topics[chosen] = self.of_words(document, spelled, certainty)
                found.append((ids, topics))
        if len(found) < n_sequences:
            raise ValueError(
                f"expected {n_sequences} documents of at least {sequence_length} tokens, got {len(found)} among "
                f"{len(self.documents)}; give more or longer documents, or ask for fewer or shorter sequences"
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
        documents: texts, each about something.
        n_topics: topics to find.
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
    words = _telling_words(lexicon, np.bincount(counts.indices, minlength=len(lexicon.words)), len(spans))
    if len(spans) < n_topics or len(words) < n_topics:
        raise ValueError(
            f"expected at least {n_topics} documents and as many words for {n_topics} topics, got {len(spans)} "
            f"documents and {len(words)} words that are in {FEWEST_DOCUMENTS} of them or more, and in at most "
            f"{LARGEST_SHARE:.0%}; give more text"
        )
    model = LatentDirichletAllocation(n_topics, learning_method="online", max_iter=PASSES, random_state=seed)
    document_shares = model.fit_transform(counts[:, words])
    word_shares = model.components_ / model.components_.sum(axis=1, keepdims=True)
    return TextTopics(documents, lexicon, words, word_shares, document_shares)


def documents_of(text: str, fewest_words: int = 100) -> list[str]:
    """The stretches of a text between blank lines that have so many words at least: articles, or long paragraphs."""
    return [part for part in re.split(r"\n\s*\n", text) if len(part.split()) >= fewest_words]


def _telling_words(lexicon: Lexicon, n_documents_with: np.ndarray, n_documents: int) -> np.ndarray:
    telling = [len(word) >= SHORTEST_WORD and not is_function_word(word) for word in lexicon.words]
    common = (n_documents_with >= FEWEST_DOCUMENTS) & (n_documents_with <= LARGEST_SHARE * n_documents)
    return np.flatnonzero(np.array(telling, dtype=bool) & common)


def _beginning(text: str, tokenizer: PreTrainedTokenizerBase, length: int) -> tuple[np.ndarray, TokenWords]:
    """The first ``length`` tokens of a text, special ones included, or all where it has fewer; and their words."""
    tokens, lengths, words = sequences_of_texts([text], tokenizer, WindowPlan(1, window_tokens=length), with_words=True)
    n_tokens = int(lengths[0]) if len(lengths) else 0
    words = words or TokenWords(np.empty(0, dtype=np.int64), Lexicon())
    return tokens[:n_tokens].numpy(), TokenWords(words.numbers[:n_tokens], words.lexicon)


def _tokens_of_words(numbers: np.ndarray, which: TokensOfWords) -> np.ndarray:
    """(n,) bool, from the number of each token's word, -1 for none."""
    is_last = numbers != np.append(numbers[1:], NO_WORD)
    is_first = numbers != np.append(NO_WORD, numbers[:-1])
    return (numbers != NO_WORD) & is_last & (is_first if which == "whole" else True)


def _probe(ids: np.ndarray, topics: np.ndarray, tokenizer: PreTrainedTokenizerBase, seed: int, name: str) -> Probe:
    special = sorted(set(tokenizer.all_special_ids))
    is_special = np.isin(ids, special)
    n_vectors = int((~is_special[:, 1:]).sum())
    batch_vectors = min(BATCH_VECTORS, n_vectors)
    return Probe.from_tokens(
        ids,
        special_ids=special,
        max_vectors=min(MAX_VECTORS, n_vectors // batch_vectors * batch_vectors),
        batch_vectors=batch_vectors,
        seed=seed,
        pad_id=cast(int, tokenizer.pad_token_id or 0),
        name=name,
    ).with_topics(np.where(is_special, -1, topics).ravel())

"""Documents whose topics are known, because a topic model wrote them: Latent Dirichlet Allocation with numpy.

A document draws its shares of the topics from a Dirichlet distribution; each word draws a topic from those shares, and
itself from that topic's words. Words of a document are exchangeable: where a word stands says nothing about its topic.

Source: Blei, Ng, Jordan, Latent Dirichlet Allocation, JMLR 2003; as data for transformers, Li, Li, Risteski, How Do
Transformers Learn Topic Structure, ICML 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Documents:
    """Documents of one length, word by word."""

    words: np.ndarray
    """(n_documents, length) int64, in [0, n_words)."""
    topics: np.ndarray
    """(n_documents, length) int64: the topic that wrote each word."""


@dataclass(frozen=True)
class TopicModel:
    """A topic model that writes documents.

    Args:
        word_shares: (n_topics, n_words) float64, each row a topic's distribution over the words.
        alpha: concentration of the documents' Dirichlet distribution over topics; the smaller, the fewer topics make up
            a document.
    """

    word_shares: np.ndarray
    alpha: float

    @classmethod
    def disjoint(cls, n_topics: int, n_words: int, alpha: float) -> TopicModel:
        """Return a model whose topics share no word and use each of theirs equally often, as the source does.

        Word w belongs to topic ``w // (n_words / n_topics)``.

        Raises:
            ValueError: ``n_topics`` does not divide ``n_words``, or a number out of range.
        """
        _validate_sizes(n_topics, n_words, alpha)
        if n_words % n_topics:
            raise ValueError(
                f"expected n_words to be a multiple of n_topics, so that each topic has as many words, got {n_words} "
                f"and {n_topics}; or give beta, for topics that share words"
            )
        shares = np.kron(np.eye(n_topics), np.full(n_words // n_topics, n_topics / n_words))
        return cls(shares, alpha)

    @classmethod
    def overlapping(cls, n_topics: int, n_words: int, alpha: float, beta: float, seed: int) -> TopicModel:
        """Return a model whose topics are drawn over all words from a Dirichlet distribution, as in LDA proper.

        Raises:
            ValueError: a number out of range.
        """
        _validate_sizes(n_topics, n_words, alpha)
        if not beta > 0:
            raise ValueError(f"expected beta > 0, got {beta}; leave it out for topics that share no word")
        return cls(_dirichlet(np.random.RandomState(seed), beta, (n_topics, n_words)), alpha)

    def documents(self, n_documents: int, length: int, seed: int | Sequence[int]) -> Documents:
        """Write documents of ``length`` words each; the same for the same seed.

        >>> TopicModel.disjoint(n_topics=2, n_words=4, alpha=1).documents(2, 6, seed=0).words.tolist()
        [[0, 2, 1, 0, 1, 1], [0, 0, 3, 1, 0, 1]]
        """
        random = np.random.RandomState(seed)
        # without the last sum, which rounding may leave below 1
        bounds = _dirichlet(random, self.alpha, (n_documents, len(self.word_shares))).cumsum(axis=1)[:, None, :-1]
        topics = (bounds <= random.random_sample((n_documents, length, 1))).sum(axis=-1)
        words = np.empty_like(topics)
        for topic, bounds_of_words in enumerate(self.word_shares.cumsum(axis=1)[:, :-1]):
            of_topic = topics == topic
            words[of_topic] = np.searchsorted(bounds_of_words, random.random_sample(of_topic.sum()), side="right")
        return Documents(words, topics)


def _dirichlet(random: np.random.RandomState, concentration: float, shape: tuple[int, int]) -> np.ndarray:
    """Draw rows of shares that sum to 1."""
    # numpy's own divides gammas that may all underflow to 0 where the concentration is small
    logs = np.log(random.standard_gamma(concentration + 1, shape)) + np.log(random.random_sample(shape)) / concentration
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _validate_sizes(n_topics: int, n_words: int, alpha: float) -> None:
    if n_topics < 2 or n_words < n_topics:
        raise ValueError(f"expected at least 2 topics and a word for each, got {n_topics} topics and {n_words} words")
    if not alpha > 0:
        raise ValueError(f"expected alpha > 0, got {alpha}")

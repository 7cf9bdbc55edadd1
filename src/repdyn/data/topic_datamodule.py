"""Documents of known topics as a LightningDataModule, with a probe that knows them too.

A topic model writes them: Latent Dirichlet Allocation with numpy. A document draws its shares of
the topics from a Dirichlet distribution; each word draws a topic from those shares, and itself from
that topic's words. Words of a document are exchangeable: where a word stands says nothing about its
topic.

Source: Blei, Ng, Jordan, Latent Dirichlet Allocation, JMLR 2003; as data for transformers, Li, Li,
Risteski, How Do Transformers Learn Topic Structure, ICML 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from repdyn.data.tokens import CLS, SEP, SPECIAL_TOKENS, with_special_tokens
from repdyn.data.windows import Windows, WindowsDataModule
from repdyn.probe.design import INDEPENDENT

if TYPE_CHECKING:
    from repdyn.probe import Probe

# Streams of random numbers from one seed: other documents for each purpose.
_TRAINING, _VALIDATION, _PROBE = range(3)


def draw_documents(
    n_documents: int,
    length: int,
    *,
    n_topics: int,
    n_words: int,
    alpha: float,
    seed: int | Sequence[int],
) -> tuple[np.ndarray, np.ndarray]:
    """Draw documents of ``length`` words each, the same for the same seed: the words, (n_documents,
    length) int64 in [0, n_words), and the topic that wrote each.

    Topics share no word and use each of theirs equally often, as in the source: word w belongs to
    topic ``w // (n_words / n_topics)``. The smaller ``alpha``, the fewer topics make up a document.

    >>> draw_documents(2, 6, n_topics=2, n_words=4, alpha=1, seed=0)[0].tolist()
    [[0, 2, 1, 0, 1, 1], [0, 0, 3, 1, 0, 1]]
    """
    random = np.random.RandomState(seed)
    shape = (n_documents, n_topics)
    words_per_topic = n_words // n_topics
    # A Dirichlet draw is gamma draws over their sum. Where alpha is small they may all underflow to
    # 0, and numpy's own function then divides 0 by 0. So their logarithms are drawn: a gamma of
    # alpha is one of alpha + 1 times a uniform number to the power 1 / alpha.
    # Source: Marsaglia, Tsang (2000), A simple method for generating gamma variables.
    logs = (
        np.log(random.standard_gamma(alpha + 1, shape))
        + np.log(random.random_sample(shape)) / alpha
    )
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares = weights / weights.sum(axis=1, keepdims=True)
    # without the last sum, which rounding may leave below 1
    bounds = shares.cumsum(axis=1)[:, None, :-1]
    topics = (bounds <= random.random_sample((n_documents, length, 1))).sum(axis=-1)
    words = topics * words_per_topic
    for topic in range(n_topics):
        of_topic = topics == topic
        words[of_topic] += (random.random_sample(of_topic.sum()) * words_per_topic).astype(np.int64)
    return words, topics


class TopicDataModule(WindowsDataModule):
    """Documents that a topic model (LDA) writes, for next-token or masked-token training; each is
    one sequence.

    The probe knows which topic wrote each of its words.

    Args:
        text: "lda"; any other text is read by :class:`repdyn.data.datamodule.TextDataModule`.
        sequence_length: tokens in a document, [CLS] and [SEP] counted where the objective is
            masked.
        n_topics: topics.
        n_words: different words; each topic has as many to itself.
        alpha: concentration of a document's shares of the topics; the smaller, the fewer topics
            make up a document.
        n_documents: documents to train on; a tenth of them to validate on.
        **training: the other arguments of :class:`repdyn.data.windows.WindowsDataModule`.

    Raises:
        ValueError: an argument out of range.
    """

    def __init__(
        self,
        text: Literal["lda"] = "lda",
        sequence_length: int = 128,
        n_topics: int = 10,
        n_words: int = 100,
        alpha: float = 0.1,
        n_documents: int = 10000,
        **training: Any,
    ) -> None:
        super().__init__(sequence_length=sequence_length, **training)
        self.text = text
        self.n_documents = n_documents
        self._n_special = int(self.objective == "masked")  # on either side of a document
        self._require_trainable(2 * self._n_special)
        if n_documents < 1:
            raise ValueError(f"expected n_documents of at least 1, got {n_documents}")
        if n_topics < 2 or n_words < n_topics or n_words % n_topics:
            raise ValueError(
                f"expected at least 2 topics, and as many words for each of them, got {n_topics} "
                f"topics and {n_words} words"
            )
        if not alpha > 0:
            raise ValueError(f"expected alpha > 0, got {alpha}")
        self._sizes: dict[str, Any] = {"n_topics": n_topics, "n_words": n_words, "alpha": alpha}
        self._topics_text = (
            f"{n_topics} topics each with {n_words // n_topics} words, alpha {alpha}"
        )
        self.tokenizer = word_tokenizer(n_words, for_encoder=self.objective == "masked")

    @property
    def bytes_per_token(self) -> float:
        """Return 1: a word of so small a vocabulary is written as one byte, so that bits per byte
        are bits per word.
        """
        return 1.0

    @property
    def description(self) -> str:
        """Return a description of the documents, for logs."""
        return (
            f"{self.n_documents:,} documents that a topic model wrote: {self._topics_text}, seed "
            f"{self.seed}"
        )

    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader(
            self._windows(self._documents(self.n_documents, _TRAINING)[0]), shuffle=True
        )

    def val_dataloader(self) -> DataLoader[Any]:
        words, _ = self._documents(max(1, self.n_documents // 10), _VALIDATION)
        return self._loader(self._windows(words), shuffle=False)

    def probe(self) -> Probe:
        """Return the fixed tokens that the tracker measures, with their topics: documents not
        trained on.
        """
        from repdyn.probe import Probe

        n_batches = self.max_vectors // self.batch_vectors
        n_windows = INDEPENDENT.required_windows(
            n_batches, self.batch_vectors, self.sequence_length
        )
        words, topics = self._documents(n_windows, _PROBE)
        topics = np.pad(topics, ((0, 0), (self._n_special, self._n_special)), constant_values=-1)
        return Probe.from_tokens(
            np.stack([ids.numpy() for _, ids in self._windows(words)]),
            special_ids=sorted(self.tokenizer.all_special_ids),
            max_vectors=self.max_vectors,
            batch_vectors=self.batch_vectors,
            n_windows=n_windows,
            name=f"documents of {self._topics_text}",
        ).with_topics(topics.ravel())

    def _documents(self, n_documents: int, stream: int) -> tuple[np.ndarray, np.ndarray]:
        length = self.sequence_length - 2 * self._n_special
        return draw_documents(n_documents, length, **self._sizes, seed=(self.seed, stream))

    def _windows(self, words: np.ndarray) -> Windows:
        ids = len(SPECIAL_TOKENS) + words.ravel()
        if not self._n_special:
            return Windows(ids, self.sequence_length)
        cls, sep = (cast(int, self.tokenizer.convert_tokens_to_ids(token)) for token in (CLS, SEP))
        return Windows(ids, self.sequence_length, before=(cls,), after=(sep,))


def word_tokenizer(n_words: int, for_encoder: bool = False) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the words "w0", "w1", ..., separated by spaces; other words raise an
    error.

    Args:
        n_words: different words; word w has the id w + 4, after [PAD], [CLS], [SEP] and [MASK].
        for_encoder: put a sequence between [CLS] and [SEP] unless ``add_special_tokens=False``.

    >>> word_tokenizer(3, for_encoder=True)("w2 w0").input_ids
    [1, 6, 4, 2]
    """
    tokens = (*SPECIAL_TOKENS, *(f"w{number}" for number in range(n_words)))
    backend = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return with_special_tokens(backend, for_encoder)

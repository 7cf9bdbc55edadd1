"""Topics of documents by Latent Dirichlet Allocation, and the topic gaps of every layer and head of
a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import pandas as pd
import torch
from scipy.sparse import csr_matrix
from sklearn.decomposition import LatentDirichletAllocation
from torch import Tensor
from tqdm import tqdm

from repdyn import kernels
from repdyn.activations import Model, attention_weights, layer_states
from repdyn.kernels import UndefinedError
from repdyn.lab.studies.study import select
from repdyn.probe import Design, Probe
from repdyn.probe.design import MAX_VECTORS
from repdyn.probe.windows import tokenize_windows
from repdyn.probe.word_classes import NO_WORD, Lexicon, is_function_word
from repdyn.views.tables.frames import grid, measurements, metrics_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TokensOfWords: TypeAlias = Literal["whole", "last"]
"""The tokens that have their word's topic: those that are a whole word, or the last one of each
word, at which a decoder has read all of it."""

N_TOPICS = 20
MIN_DOCUMENTS = 5
"""Documents that a word with a topic occurs in at least."""
MAX_DOCUMENT_SHARE = 0.2
"""Share of the documents that it occurs in at most: more frequent words are not specific to a
topic.
"""
MIN_WORD_LENGTH = 3
CERTAINTY = 0.5
"""A token has a topic if that one is more likely than all others together."""
N_PASSES = 10
"""Passes over the documents in the fit."""
TABLE = "input embeddings"
"""Name of the vocabulary as a layer, where each word counts once."""
PAIRS = ("same", "different")
_OF_VECTORS = (*PAIRS, "gap", "control", "control_std")
_OF_ATTENTION = (*PAIRS, "gap", "control", "difference", "standard_error", "evenness")
PRODUCTS = {"cosine": kernels.topic_gap.or_raise, "dot": kernels.topic_gap_dot.or_raise}
GAPS = ("topic_gap", "topic_gap_dot", "attention_topic_gap")
"""Metrics whose onset in a training is looked for."""
SHARES = {"onset": 0.1, "half": 0.5}
"""Shares of its final value that a gap has to reach, and to keep to the end."""
WORDS_OF_TOPIC = 20
"""Most frequent words of each topic whose embeddings' products are shown."""
N_CONTROLS = 10
"""Other documents whose topics are assigned to each; fewer if there are fewer sequences."""


@dataclass(frozen=True, eq=False)
class TextTopics:
    """Topics of a collection of documents, from :func:`find_topics`."""

    documents: list[str]
    words: list[str]
    """(n_words,) those that have topics."""
    word_shares: np.ndarray
    """(n_topics, n_words): frequency of each word in each topic; rows sum to 1."""
    document_shares: np.ndarray
    """(n_documents, n_topics): share of each topic in each document; rows sum to 1."""

    def table(self, n_words: int = 20) -> pd.DataFrame:
        """Return a row for each topic: topic (its number), share (of the text), words (the most
        frequent ones).
        """
        order = self.word_shares.argsort(axis=1)[:, ::-1][:, :n_words]
        words = [" ".join(self.words[word] for word in topic) for topic in order]
        return pd.DataFrame(
            {"topic": range(len(words)), "share": self.document_shares.mean(axis=0), "words": words}
        )

    def of_words(self, document: int, words: Sequence[str]) -> np.ndarray:
        """Return the most likely topic of each word in a document, (n,) int64, -1 for none: the one
        with the largest share of the word, times its share of the document."""
        # -1 for a word without topics, whose column is masked in the end
        numbers = pd.Index(self.words).get_indexer(list(words))
        joint = self.word_shares[:, numbers].T * self.document_shares[document]
        # a word that two topics share about equally would be noise in either
        likely = joint.max(axis=1) >= CERTAINTY * joint.sum(axis=1)
        return np.where((numbers >= 0) & likely, joint.argmax(axis=1), -1)

    def probe(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        sequence_length: int = 128,
        n_sequences: int = 128,
        tokens_of_words: TokensOfWords = "whole",
        seed: int = 0,
        name: str = "documents with topics",
    ) -> Probe:
        """Return a probe whose tokens have topics: the beginnings of documents that are long
        enough.

        All sequences have one length, special tokens included. As many vectors as possible are
        measured, in batches of at most 4096. ``tokens_of_words`` have their word's topic.
        """
        special = sorted(set(tokenizer.all_special_ids))
        design = Design("documents", window_tokens=sequence_length)
        sequences: list[tuple[np.ndarray, np.ndarray]] = []
        # numpy keeps the stream of RandomState fixed: a seed chooses the same documents in every
        # version
        for document in np.random.RandomState(seed).permutation(len(self.documents)).tolist():
            if len(sequences) == n_sequences:
                break
            text = [self.documents[document]]
            tokens, lengths, words, _ = tokenize_windows(
                text, tokenizer, design, True, n_tokens=0, n_windows=1
            )
            # shorter documents are left out, because controls are compared position by position
            if words is None or not len(lengths) or lengths[0] < sequence_length:
                continue
            ids = tokens[:sequence_length].numpy()
            numbers = words.numbers[:sequence_length]
            is_chosen = _has_topic(ids, numbers, special, tokens_of_words)
            topics = np.full(len(ids), -1)
            topics[is_chosen] = self.of_words(
                document, [words.lexicon.words[word] for word in numbers[is_chosen]]
            )
            sequences.append((ids, topics))
        if len(sequences) < n_sequences:
            raise ValueError(
                f"expected {n_sequences} documents of at least {sequence_length} tokens, got "
                f"{len(sequences)} among {len(self.documents)}; give more or longer documents, "
                "or take fewer or shorter sequences"
            )
        ids, topics = (np.stack(arrays) for arrays in zip(*sequences, strict=True))
        if (topics < 0).all():
            why = "a token of its own" if tokens_of_words == "whole" else "in these sequences"
            raise ValueError(
                f"expected tokens with topics, got none among {ids.size}: no word of a topic is "
                f'{why}; take tokens_of_words="last", or longer documents'
            )
        is_special = np.isin(ids, special)
        pad_id = cast(int, tokenizer.pad_token_id or 0)
        # the first position of each sequence is a sink, and never measured here
        most = min(MAX_VECTORS, int((~is_special[:, 1:]).sum()))
        probe = Probe.from_tokens(
            ids,
            n_windows=len(ids),
            special_ids=special,
            max_vectors=most,
            seed=seed,
            pad_id=pad_id,
            name=name,
        )
        return probe.with_topics(np.where(is_special, -1, topics).ravel())


def _has_topic(
    ids: np.ndarray, words: np.ndarray, special: Sequence[int], tokens_of_words: TokensOfWords
) -> np.ndarray:
    """Return which tokens of a sequence get the topic of their word, (n_tokens,) bool: the last
    ones of words, or those that are a whole word.

    Args:
        ids: (n_tokens,) token ids.
        words: (n_tokens,) number of each token's word, or NO_WORD.
        special: ids of special tokens.
        tokens_of_words: "last" or "whole".
    """
    text = np.flatnonzero(~np.isin(ids, special))
    # not the last token of the text, where the sequence may have cut a word off
    has_topic = (words != NO_WORD) & (np.arange(len(ids)) < text[-1])
    has_topic &= words != np.append(words[1:], NO_WORD)
    if tokens_of_words == "whole":
        has_topic &= words != np.append(NO_WORD, words[:-1])
    return has_topic


def find_topics(documents: list[str], n_topics: int = N_TOPICS, *, seed: int = 0) -> TextTopics:
    """Fit a topic model to documents by online variational Bayes, the same one for the same seed.

    Source: Blei, Ng, Jordan, JMLR 2003; Hoffman, Blei, Bach, Online Learning for Latent Dirichlet
    Allocation, NeurIPS 2010.
    """
    lexicon = Lexicon()
    spans = [lexicon.read(document)[2] for document in documents]
    rows = np.repeat(np.arange(len(spans)), [len(numbers) for numbers in spans])
    columns = np.concatenate([np.empty(0, dtype=np.int64), *spans])
    counts = csr_matrix(
        (np.ones(len(rows)), (rows, columns)), shape=(len(spans), len(lexicon.words))
    )
    counts.sum_duplicates()
    # function words are in all topics, and would tie them together
    specific = [
        len(word) >= MIN_WORD_LENGTH and not is_function_word(word) for word in lexicon.words
    ]
    n_with = np.bincount(counts.indices, minlength=len(lexicon.words))
    common = (n_with >= MIN_DOCUMENTS) & (n_with <= MAX_DOCUMENT_SHARE * len(spans))
    words = np.flatnonzero(np.array(specific, dtype=bool) & common)
    if len(spans) < n_topics or len(words) < n_topics:
        raise ValueError(
            f"expected at least {n_topics} documents and as many words for {n_topics} topics, got "
            f"{len(spans)} documents and {len(words)} words that are in {MIN_DOCUMENTS} of them or "
            f"more, and in at most {MAX_DOCUMENT_SHARE:.0%}; give more text"
        )
    model = LatentDirichletAllocation(
        n_topics, learning_method="online", max_iter=N_PASSES, random_state=seed
    )
    document_shares = model.fit_transform(counts[:, words])
    word_shares = model.components_ / model.components_.sum(axis=1, keepdims=True)
    return TextTopics(
        documents=documents,
        words=[lexicon.words[word] for word in words],
        word_shares=word_shares,
        document_shares=document_shares,
    )


def block_table(products: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over each block of products of words, by topic: topic, other, mean; no word
    with itself.
    """
    row, other = np.nonzero(~np.eye(len(products), dtype=bool))
    pairs = {
        "topic": products.index[row],
        "other": products.index[other],
        "mean": products.to_numpy()[row, other],
    }
    return pd.DataFrame(pd.DataFrame(pairs).groupby(["topic", "other"], as_index=False).mean())


class TopicMeasurements(NamedTuple):
    """The topic gaps of a model, or of one stack of its blocks."""

    ids: Tensor
    """(n_vectors,) the tokens that have a topic."""
    length: int
    """Tokens in a sequence."""
    embeddings: pd.DataFrame
    """A row for each layer, :data:`TABLE` first, and kind of product: layer, product, same,
    different, gap, control, control_std, and reason (why there is no gap); see
    :func:`repdyn.lab.studies.topic_measurements.vector_gaps`."""
    attention: pd.DataFrame
    """A row for each layer from 1 on and head, and one for the mean over heads, whose head is
    missing: layer, head, same, different, gap, control, difference, standard_error, evenness; only
    layer and reason for a layer without a gap.
    """
    words: pd.DataFrame | None
    """(n, n) inner products of the input embeddings of each topic's most frequent words, whose
    topics are index and columns, ascending; None where the input embeddings are not known."""


def measure_topics(
    model: Model, probe: Probe, *, title: str = "", seed: int = 0
) -> TopicMeasurements:
    """Measure the gaps of every layer and head, each with its control."""
    if probe.topics is None or len(probe.lengths.unique()) > 1:
        raise ValueError(
            "expected a probe with topics and sequences of one length, as TextTopics.probe makes "
            "one"
        )
    length = int(probe.lengths[0])
    topics = [
        probe.topics,
        *(labels.flatten() for labels in shifted_topics(probe.topics.view(-1, length))),
    ]
    # one batch of all tokens: a gap is a mean over all of their pairs
    whole = replace(probe, batch_vectors=int((~probe.is_sink).sum()), n_batches=1)
    states = layer_states(model, whole, subsets=["no_sink"], captures={"embeddings"})
    weights = attention_weights(model, probe, n_tokens=len(probe.tokens))
    tokens = whole.sample("no_sink")[0]
    ids = probe.tokens[tokens]
    labels = [one[tokens] for one in topics]
    of_table, words = _of_table(states.embeddings, ids, labels[0], seed)
    vectors = [of_table]
    attention = []
    for layer in tqdm(states, total=len(states.layers), desc=title, leave=False):
        gaps = vector_gaps(layer.states[states.rows_of(tokens)], ids, labels)
        vectors.append(gaps.assign(layer=layer.index))
        # layer 0 has no attention before it
        if layer.index:
            try:
                of_heads = attention_gaps(
                    weights.of(layer.stack, layer.index), probe.tokens, *topics
                )
            except UndefinedError as error:
                of_heads = pd.DataFrame({"reason": [error.reason]})
            attention.append(of_heads.assign(layer=layer.index))
    of_vectors, of_heads = (pd.concat(parts, ignore_index=True) for parts in (vectors, attention))
    of_vectors = of_vectors.reindex(columns=["layer", "product", *_OF_VECTORS, "reason"])
    of_heads = of_heads.reindex(columns=["layer", "head", *_OF_ATTENTION, "reason"]).astype(
        {"head": "Int64"}
    )
    has_topic = labels[0] >= 0
    return TopicMeasurements(
        ids=ids[has_topic],
        length=length,
        embeddings=of_vectors,
        attention=of_heads,
        words=words,
    )


def _of_table(
    table: Tensor | str, ids: Tensor, topics: Tensor, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Return the gaps and the products of the input embeddings of words with topics, each by its
    most frequent one.
    """
    if isinstance(table, str):
        return pd.DataFrame({"layer": TABLE, "product": [*PRODUCTS], "reason": table}), None
    has_topic = topics >= 0
    words_of_topics = (
        pd.DataFrame({"word": ids[has_topic], "topic": topics[has_topic]})
        .value_counts()
        .reset_index()
    )
    # of two topics that are as frequent the first
    words_of_topics = words_of_topics.sort_values(
        ["word", "count", "topic"], ascending=[True, False, True]
    ).drop_duplicates("word")
    words, labels = (torch.tensor(words_of_topics[name].to_numpy()) for name in ("word", "topic"))
    # the control of a table of words, whose order means nothing
    random = np.random.RandomState(seed)
    others = [labels[torch.from_numpy(random.permutation(len(labels)))] for _ in range(N_CONTROLS)]
    rows = vector_gaps(table[words.to(table.device)], words, [labels, *others])
    chosen = words_of_topics.sort_values(["topic", "count"], ascending=[True, False], kind="stable")
    chosen = chosen.groupby("topic").head(WORDS_OF_TOPIC)
    vectors = table[torch.tensor(chosen["word"].to_numpy(), device=table.device)].double()
    of_topics = pd.Index(chosen["topic"])
    products = pd.DataFrame((vectors @ vectors.T).cpu().numpy(), of_topics, of_topics)
    return rows.assign(layer=TABLE), products


def shifted_topics(topics: Tensor, n_shifts: int = N_CONTROLS) -> list[Tensor]:
    """Return the topics (n_sequences, length) of other sequences, position by position, each of
    another document.

    The s-th result holds, for each sequence, the topics of the one s places before it.
    """
    if len(topics) < 2:
        raise ValueError(f"expected at least 2 sequences, got {len(topics)}; raise sequences=")
    # whole sequences, so that a control has the same runs of equal topics as the text itself
    return [topics.roll(shift, dims=0) for shift in range(1, min(n_shifts, len(topics) - 1) + 1)]


def vector_gaps(x: Tensor, ids: Tensor, labels: Sequence[Tensor]) -> pd.DataFrame:
    """Compute the gaps of vectors (n, dim), from tokens (n,) and topics (n,), -1 for none: their
    own, then others'.

    A row for each product, with the columns of :attr:`TopicMeasurements.embeddings`; control is the
    mean gap under the topics of other documents, control_std its standard deviation over them, NaN
    for a single one.
    """
    rows = []
    for product, kernel in PRODUCTS.items():
        row: dict[str, Any] = {"product": product}
        try:
            for pairs in PAIRS:
                row[pairs] = kernels.topic_mean.or_raise(
                    x, ids, labels[0], product=product, pairs=pairs
                ).item()
            controls = [kernel(x, ids, topics).item() for topics in labels[1:]]
            row |= {"gap": row["same"] - row["different"], "control": np.mean(controls)}
            row["control_std"] = np.std(controls, ddof=1) if len(controls) > 1 else np.nan
        except UndefinedError as error:
            row = {"product": product, "reason": error.reason}
        rows.append(row)
    return pd.DataFrame(rows)


def attention_gaps(
    weights: Sequence[tuple[Tensor, np.ndarray]], ids: Tensor, topics: Tensor, *others: Tensor
) -> pd.DataFrame:
    """Compute the gaps of one layer's attention, from the weights of each sequence, (heads, n, n),
    with the numbers of its tokens, (n,), and ids, topics and those of ``others``, (n_tokens,) of
    the probe; see :func:`over_sequences`."""
    by_name: dict[str, list[Tensor]] = {name: [] for name in (*PAIRS, "gap", "control", "evenness")}
    for of_sequence, tokens in weights:
        words = ids[tokens]
        own_topics = topics[tokens]
        for pairs in PAIRS:
            by_name[pairs].append(
                kernels.attention_topic_mean(of_sequence, words, own_topics, pairs=pairs)
            )
        by_name["gap"].append(by_name["same"][-1] - by_name["different"][-1])
        # the topics of another document may leave a sequence without pairs of one kind
        under_others = [
            kernels.attention_topic_gap(of_sequence, words, labels[tokens]) for labels in others
        ]
        by_name["control"].append(torch.stack(under_others).nanmean(dim=0))
        by_name["evenness"].append(kernels.attention_evenness(of_sequence))
    return over_sequences(
        {name: torch.stack(values).cpu().numpy() for name, values in by_name.items()}
    )


def over_sequences(by_sequence: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Average what was found in sequences: by name, (n_sequences, heads), NaN for a sequence
    without a value.

    There is a row for each head, and one for their mean, whose head is missing. The difference is
    gap minus control, over the sequences that have both; its standard error takes sequences as
    independent.
    """
    difference = by_sequence["gap"] - by_sequence["control"]
    n_sequences = int(np.isfinite(difference).all(axis=1).sum())
    if n_sequences < 2:
        raise UndefinedError(
            f"{n_sequences} of {len(difference)} sequences have pairs of one topic and of "
            "different topics"
        )
    columns = {
        # the mean over heads sequence by sequence, so that it has a standard error of its own
        name: np.column_stack([x, x.mean(axis=1)])
        for name, x in {**by_sequence, "difference": difference}.items()
    }
    frame = pd.DataFrame({name: np.nanmean(values, axis=0) for name, values in columns.items()})
    frame["standard_error"] = np.nanstd(columns["difference"], axis=0, ddof=1) / np.sqrt(
        n_sequences
    )
    return frame.assign(head=pd.array([*range(difference.shape[1]), None], dtype="Int64"))


def onset_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return at which step each topic gap appears in a training: a run, or one stack of its model.

    A gap has reached a share of its final value at the first measured step from which on it is
    never below it, in the direction of the final value. It never appears where the 95% interval of
    the final value contains 0.

    Returns:
        A row for each gap and layer, in the order of onset: metric, layer, final, margin (half of
        the 95% interval of the final value), onset and half (steps, missing if it never appears;
        see :data:`SHARES`), evenness (of the layer's attention when the gap of the lowest layer's
        cosines has reached half; missing if it is not known).
    """
    measured = measurements(rows)
    records = []
    for metric in (name for name in GAPS if name in metrics_of(measured)):
        values, margins = (grid(measured, metric, "all", column) for column in ("value", "margin"))
        for layer in values.index:
            curve = values.loc[layer].dropna()
            final = curve.iloc[-1]
            margin = margins.loc[layer, curve.index[-1]]
            steps = (
                {}
                # a gap that may be 0 in the end has no time at which it appears
                if abs(final) <= margin
                else {name: _reached(curve, share) for name, share in SHARES.items()}
            )
            records.append(
                {"metric": metric, "layer": layer, "final": final, "margin": margin, **steps}
            )
    if not records:
        raise ValueError(
            f"expected a training with one of {', '.join(GAPS)}, got none; name them with metrics="
        )
    table = pd.DataFrame(records).reindex(columns=["metric", "layer", "final", "margin", *SHARES])
    table = table.astype(dict.fromkeys(SHARES, "Int64")).sort_values(
        [*SHARES, "metric", "layer"], ignore_index=True
    )
    formed = select(table, metric="topic_gap", layer=table["layer"].min())["half"].dropna()
    if len(formed) and "attention_evenness" in metrics_of(measured):
        evenness = (
            grid(measured, "attention_evenness", "all")
            .reindex(columns=[formed.iloc[0]])
            .iloc[:, 0]
            .to_dict()
        )
        table["evenness"] = (
            table["layer"].map(evenness).where(table["metric"].str.startswith("attention"))
        )
    return table


def _reached(curve: pd.Series, share: float) -> int:
    """Return the first step from which on a curve never falls below a share of its last value."""
    below = np.flatnonzero(curve.to_numpy() / curve.iloc[-1] < share)
    return int(curve.index[below[-1] + 1 if len(below) else 0])

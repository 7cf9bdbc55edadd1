"""Metrics of tokens: against the vocabulary, through the output head, and of their topics."""

from functools import partial
from math import inf
from typing import Any

from repdyn.metrics.metric import COSINE, LENGTH, SHARE, Metric, of_kernel

_LENS = "nostalgebraist, the logit lens, 2020"
_TOPICS = "Li, Li, Risteski 2023, How Do Transformers Learn Topic Structure (ICML)"
_SOURCE = "token encodings across the attention layers of RoBERTa"

_RANK: dict[str, Any] = {
    "range": (0.0, inf),
    "unit": "input embeddings closer",
    "scale": "log",
    "log_from": 1.0,
}

_of_tokens = partial(
    of_kernel,
    select_inputs="repdyn.metrics.layer_view:tokens_of_states",
    captures=frozenset({"embeddings"}),
    probe_requires="tokens",
    source=_SOURCE,
    family="tokens",
)
_after_attention = partial(
    _of_tokens,
    select_inputs="repdyn.metrics.layer_view:tokens_after_attention",
    captures=frozenset({"embeddings", "after_attention"}),
    position="blocks",
)
_of_lens = partial(
    Metric,
    select_inputs="repdyn.metrics.layer_view:through_output_head",
    captures=frozenset({"last", "output_head"}),
    probe_requires="tokens",
    source=_LENS,
    family="tokens",
    scale="from_zero",
)
_of_topics = partial(
    of_kernel, source=_TOPICS, probe_requires="topics", family="topics", scale="signed"
)
_of_attention = partial(
    _of_topics,
    select_inputs="repdyn.metrics.layer_view:attention_with_topics",
    captures=frozenset({"attention_weights"}),
    position="blocks",
    per_head=True,
    unit="attention weight",
)


def _means_over(pairs: str, words: str) -> list[Metric]:
    """Return the mean inner product and the mean attention of one kind of pairs, whose words are of
    ``words``.
    """
    return [
        _of_topics(
            name=f"topic_{pairs}",
            kernel="topic_mean",
            select_inputs="repdyn.metrics.layer_view:with_topics",
            settings={"product": "dot", "pairs": pairs},
            meaning=f"mean inner product of vectors of different words of {words}",
            title=f"Mean inner product, {words}",
            unit="inner product",
            panel="Mean inner product by topic",
            line=words,
        ),
        _of_attention(
            name=f"attention_topic_{pairs}",
            kernel="attention_topic_mean",
            settings={"pairs": pairs},
            meaning=f"mean attention weight between positions with different words of {words}",
            range=(0.0, 1.0),
            title=f"Mean attention, {words}",
            panel="Mean attention by topic",
            line=words,
        ),
    ]


METRICS = [
    _of_tokens(
        name="token_cosine",
        meaning="mean cosine of each token's vector to its input embedding",
        **COSINE,
        title="Cosine with the own embedding",
    ),
    _of_tokens(
        name="token_rank",
        meaning="input embeddings closer to a token's vector than its own, median over tokens",
        title="Rank of the own embedding",
        **_RANK,
    ),
    _of_tokens(
        name="token_top1_match",
        meaning=(
            "share of tokens whose vector is closer to its own input embedding than to any other"
        ),
        **SHARE,
        title="Tokens closest to their own embedding",
        unit="share of tokens",
    ),
    of_kernel(
        name="token_imbalance",
        select_inputs="repdyn.metrics.layer_view:with_tokens",
        probe_requires="tokens",
        meaning=(
            "how little the distances of a layer tell of which token is which (information "
            "imbalance)"
        ),
        range=(0.0, 2.0),
        source="Glielmo et al. 2022 (PNAS Nexus 1); Acevedo et al. 2025 (arXiv 2505.17101)",
        neighbours=1,
        title="Information imbalance to the tokens",
        unit="imbalance (1: unrelated)",
        family="tokens",
        scale="from_zero",
        shows_embeddings=True,
    ),
    _after_attention(
        name="token_cosine_attention",
        kernel="token_cosine",
        meaning=(
            "token_cosine of the state after the block's attention, before its feed-forward part"
        ),
        **COSINE,
        title="Cosine with the own embedding, after attention",
    ),
    _after_attention(
        name="token_rank_attention",
        kernel="token_rank",
        meaning="token_rank of the state after the block's attention, before its feed-forward part",
        title="Rank of the own embedding, after attention",
        **_RANK,
    ),
    _of_tokens(
        name="token_distance",
        meaning="mean Euclidean distance of each token's vector to its input embedding",
        **LENGTH,
        title="Distance to the own embedding",
        unit="distance",
    ),
    _of_tokens(
        name="token_rank_distance",
        kernel="token_rank",
        select_inputs="repdyn.metrics.layer_view:tokens_by_distance",
        meaning="token_rank by Euclidean distance instead of the cosine",
        title="Rank of the own embedding by distance",
        **_RANK,
    ),
    _of_lens(
        name="lens_kl",
        kernel="repdyn.kernels.lens:lens_kl",
        meaning=(
            "KL divergence of the layer's prediction from the final one, through the model's "
            "output head"
        ),
        range=(0.0, inf),
        title="Logit lens: KL from the final prediction",
        unit="nats",
    ),
    _of_lens(
        name="lens_agreement",
        kernel="repdyn.kernels.lens:lens_agreement",
        meaning="share of vectors from which the output head predicts the final token already",
        range=(0.0, 1.0),
        title="Logit lens: agreement with the final prediction",
        unit="share of vectors",
    ),
    _of_topics(
        name="topic_gap",
        select_inputs="repdyn.metrics.layer_view:with_topics",
        meaning=(
            "mean cosine between vectors of different words of one topic, minus that between topics"
        ),
        range=(-2.0, 2.0),
        title="Topic gap, cosine",
        unit="cosine",
        shows_embeddings=True,
    ),
    _of_topics(
        name="topic_gap_dot",
        select_inputs="repdyn.metrics.layer_view:with_topics",
        meaning="the same of inner products",
        range=(-inf, inf),
        title="Topic gap, inner product",
        unit="inner product",
        shows_embeddings=True,
    ),
    _of_attention(
        name="attention_topic_gap",
        meaning="mean attention weight between positions of one topic, minus that between topics",
        range=(-1.0, 1.0),
        title="Topic gap of the attention",
    ),
    *_means_over("same", "one topic"),
    *_means_over("different", "different topics"),
]

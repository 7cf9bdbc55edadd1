"""Metrics of tokens: against the vocabulary, through the output head, and of their topics."""

from functools import partial
from math import inf

from repdyn.metrics.metric import Metric, of_kernel

_LENS = "nostalgebraist, the logit lens, 2020"
_TOPICS = "Li, Li, Risteski 2023, How Do Transformers Learn Topic Structure (ICML)"
_SOURCE = "token encodings across the attention layers of RoBERTa"

_of_tokens = partial(
    of_kernel,
    select_inputs="repdyn.metrics.inputs:tokens_of_states",
    captures=frozenset({"embeddings"}),
    probe_requires="tokens",
    source=_SOURCE,
)
_after_attention = partial(
    _of_tokens,
    select_inputs="repdyn.metrics.inputs:tokens_after_attention",
    captures=frozenset({"embeddings", "after_attention"}),
    position="blocks",
)
_of_lens = partial(
    Metric,
    select_inputs="repdyn.metrics.inputs:through_output_head",
    captures=frozenset({"last", "output_head"}),
    probe_requires="tokens",
    source=_LENS,
)
_of_topics = partial(
    of_kernel,
    source=_TOPICS,
    probe_requires="topics",
)
_of_attention = partial(
    _of_topics,
    select_inputs="repdyn.metrics.inputs:attention_with_topics",
    captures=frozenset({"attention_weights"}),
    position="blocks",
    per_head=True,
)


def _means_over(pairs: str, words: str) -> list[Metric]:
    """Return the mean inner product and the mean attention of one kind of pairs, whose words are of
    ``words``.
    """
    return [
        _of_topics(
            name=f"topic_{pairs}",
            kernel="topic_mean",
            select_inputs="repdyn.metrics.inputs:with_topics",
            settings={"product": "dot", "pairs": pairs},
            meaning=f"mean inner product of vectors of different words of {words}",
        ),
        _of_attention(
            name=f"attention_topic_{pairs}",
            kernel="attention_topic_mean",
            settings={"pairs": pairs},
            meaning=f"mean attention weight between positions with different words of {words}",
            range=(0.0, 1.0),
        ),
    ]


METRICS = [
    _of_tokens(
        name="token_cosine",
        meaning="mean cosine of each token's vector to its input embedding",
        range=(-1.0, 1.0),
    ),
    _of_tokens(
        name="token_rank",
        meaning="input embeddings closer to a token's vector than its own, median over tokens",
        range=(0.0, inf),
    ),
    _of_tokens(
        name="token_top1_match",
        meaning=(
            "share of tokens whose vector is closer to its own input embedding than to any other"
        ),
        range=(0.0, 1.0),
    ),
    of_kernel(
        name="token_imbalance",
        select_inputs="repdyn.metrics.inputs:with_tokens",
        probe_requires="tokens",
        meaning=(
            "how little the distances of a layer tell of which token is which (information "
            "imbalance)"
        ),
        range=(0.0, 2.0),
        source="Glielmo et al. 2022 (PNAS Nexus 1); Acevedo et al. 2025 (arXiv 2505.17101)",
        neighbours=1,
    ),
    _after_attention(
        name="token_cosine_attention",
        kernel="token_cosine",
        meaning=(
            "token_cosine of the state after the block's attention, before its feed-forward part"
        ),
        range=(-1.0, 1.0),
    ),
    _after_attention(
        name="token_rank_attention",
        kernel="token_rank",
        meaning="token_rank of the state after the block's attention, before its feed-forward part",
        range=(0.0, inf),
    ),
    _of_tokens(
        name="token_distance",
        meaning="mean Euclidean distance of each token's vector to its input embedding",
        range=(0.0, inf),
    ),
    _of_tokens(
        name="token_rank_distance",
        kernel="token_rank",
        select_inputs="repdyn.metrics.inputs:tokens_by_distance",
        meaning="token_rank by Euclidean distance instead of the cosine",
        range=(0.0, inf),
    ),
    _of_lens(
        name="lens_kl",
        kernel="repdyn.kernels.lens:lens_kl",
        meaning=(
            "KL divergence of the layer's prediction from the final one, through the model's "
            "output head"
        ),
        range=(0.0, inf),
    ),
    _of_lens(
        name="lens_agreement",
        kernel="repdyn.kernels.lens:lens_agreement",
        meaning="share of vectors from which the output head predicts the final token already",
        range=(0.0, 1.0),
    ),
    _of_topics(
        name="topic_gap",
        select_inputs="repdyn.metrics.inputs:with_topics",
        meaning=(
            "mean cosine between vectors of different words of one topic, minus that between topics"
        ),
        range=(-2.0, 2.0),
    ),
    _of_topics(
        name="topic_gap_dot",
        select_inputs="repdyn.metrics.inputs:with_topics",
        meaning="the same of inner products",
        range=(-inf, inf),
    ),
    _of_attention(
        name="attention_topic_gap",
        meaning="mean attention weight between positions of one topic, minus that between topics",
        range=(-1.0, 1.0),
    ),
    *_means_over("same", "one topic"),
    *_means_over("different", "different topics"),
]

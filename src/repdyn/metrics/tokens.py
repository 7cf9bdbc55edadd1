"""Metrics of tokens against the vocabulary: how much of its own input embedding a token's vector still shows."""

from __future__ import annotations

from math import inf

from repdyn.kernels import token_cosine, token_rank, token_top1_match
from repdyn.kernels.lens import lens_agreement, lens_kl
from repdyn.metrics.inputs import through_output_head, tokens_after_attention, tokens_of_states
from repdyn.metrics.metric import Metric

_LENS = "nostalgebraist, the logit lens, 2020"
_SOURCE = "token encodings across the attention layers of RoBERTa"

METRICS = [
    Metric(
        name="token_cosine",
        kernel=token_cosine,
        select_inputs=tokens_of_states,
        captures=frozenset({"embeddings"}),
        probe_requires="tokens",
        meaning="mean cosine of each token's vector to its input embedding",
        range=(-1.0, 1.0),
        source=_SOURCE,
        title="Cosine with the own embedding",
        unit="cosine",
        family="tokens",
    ),
    Metric(
        name="token_rank",
        kernel=token_rank,
        select_inputs=tokens_of_states,
        captures=frozenset({"embeddings"}),
        probe_requires="tokens",
        meaning="input embeddings closer to a token's vector than its own, median over tokens",
        range=(0.0, inf),
        source=_SOURCE,
        title="Rank of the own embedding",
        unit="input embeddings closer",
        family="tokens",
        scale="log",
        log_from=1.0,
    ),
    Metric(
        name="token_top1_match",
        kernel=token_top1_match,
        select_inputs=tokens_of_states,
        captures=frozenset({"embeddings"}),
        probe_requires="tokens",
        meaning="share of tokens whose vector is closer to its own input embedding than to any other",
        range=(0.0, 1.0),
        source=_SOURCE,
        title="Tokens closest to their own embedding",
        unit="share of tokens",
        family="tokens",
        scale="from_zero",
    ),
    Metric(
        name="token_cosine_attention",
        kernel=token_cosine,
        select_inputs=tokens_after_attention,
        captures=frozenset({"embeddings", "after_attention"}),
        probe_requires="tokens",
        meaning="token_cosine of the state after the block's attention, before its feed-forward part",
        range=(-1.0, 1.0),
        source=_SOURCE,
        position="blocks",
        title="Cosine with the own embedding, after attention",
        unit="cosine",
        family="tokens",
    ),
    Metric(
        name="token_rank_attention",
        kernel=token_rank,
        select_inputs=tokens_after_attention,
        captures=frozenset({"embeddings", "after_attention"}),
        probe_requires="tokens",
        meaning="token_rank of the state after the block's attention, before its feed-forward part",
        range=(0.0, inf),
        source=_SOURCE,
        position="blocks",
        title="Rank of the own embedding, after attention",
        unit="input embeddings closer",
        family="tokens",
        scale="log",
        log_from=1.0,
    ),
    Metric(
        name="lens_kl",
        kernel=lens_kl,
        select_inputs=through_output_head,
        captures=frozenset({"last", "output_head"}),
        probe_requires="tokens",
        meaning="KL divergence of the layer's prediction from the final one, through the model's output head",
        range=(0.0, inf),
        source=_LENS,
        title="Logit lens: KL from the final prediction",
        unit="nats",
        family="tokens",
        scale="from_zero",
    ),
    Metric(
        name="lens_agreement",
        kernel=lens_agreement,
        select_inputs=through_output_head,
        captures=frozenset({"last", "output_head"}),
        probe_requires="tokens",
        meaning="share of vectors from which the output head predicts the final token already",
        range=(0.0, 1.0),
        source=_LENS,
        title="Logit lens: agreement with the final prediction",
        unit="share of vectors",
        family="tokens",
        scale="from_zero",
    ),
]

"""Metrics of topic structure, on probes whose tokens have topics."""

from __future__ import annotations

from math import inf

from repdyn.metrics.metric import Metric

_SOURCE = "Li, Li, Risteski 2023, How Do Transformers Learn Topic Structure (ICML)"

METRICS = [
    Metric(
        name="topic_gap",
        kernel="repdyn.kernels:topic_gap",
        select_inputs="repdyn.metrics.inputs:with_topics",
        meaning="mean cosine between vectors of different words of one topic, minus that between topics",
        range=(-2.0, 2.0),
        source=_SOURCE,
        probe_requires="topics",
        title="Topic gap, cosine",
        unit="cosine",
        family="topics",
        scale="signed",
        shows_embeddings=True,
    ),
    Metric(
        name="topic_gap_dot",
        kernel="repdyn.kernels:topic_gap_dot",
        select_inputs="repdyn.metrics.inputs:with_topics",
        meaning="the same of inner products",
        range=(-inf, inf),
        source=_SOURCE,
        probe_requires="topics",
        title="Topic gap, inner product",
        unit="inner product",
        family="topics",
        scale="signed",
        shows_embeddings=True,
    ),
    Metric(
        name="attention_topic_gap",
        kernel="repdyn.kernels:attention_topic_gap",
        select_inputs="repdyn.metrics.inputs:attention_with_topics",
        captures=frozenset({"attention_weights"}),
        meaning="mean attention weight between positions of one topic, minus that between topics",
        range=(-1.0, 1.0),
        source=_SOURCE,
        position="blocks",
        per_head=True,
        probe_requires="topics",
        title="Topic gap of the attention",
        unit="attention weight",
        family="topics",
        scale="signed",
    ),
]

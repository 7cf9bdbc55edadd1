"""Metrics of attention sinks and of the vectors of massive norm that come with them."""

from __future__ import annotations

from repdyn.metrics.metric import Metric

METRICS = [
    Metric(
        name="sink_rate",
        kernel="repdyn.kernels:sink_rate",
        select_inputs="repdyn.metrics.inputs:attention_of_sequences",
        captures=frozenset({"attention_weights"}),
        probe_requires="tokens",
        meaning="share of attention heads whose mean attention to the first token exceeds a threshold",
        range=(0.0, 1.0),
        source="Gu et al. 2024, When Attention Sink Emerges in Language Models (arXiv 2410.10781)",
        settings={"threshold": 0.3},
        position="blocks",
        per_head=True,
        whole_sequences=True,
        title="Attention heads with a sink",
        unit="share of heads and sequences",
        family="sinks",
        scale="from_zero",
    ),
    Metric(
        name="top_norm_variance_share",
        kernel="repdyn.kernels:top_norm_variance_share",
        meaning="share of the variance along the first principal direction that the longest 1 % of the vectors carry",
        range=(0.0, 1.0),
        source="this package; after Sun, Chen, Kolter, Liu 2024, Massive Activations (COLM)",
        settings={"share": 0.01},
        # what is left of it without first positions is due to other massive vectors
        subsets=("all", "no_sink"),
        title="First direction due to the longest vectors",
        unit="share of variance along it",
        family="sinks",
        scale="from_zero",
    ),
]

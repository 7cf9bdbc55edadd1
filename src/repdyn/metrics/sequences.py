"""Records of the metrics of whole sequences of states, computed over the tokens of each text window."""

from __future__ import annotations

from math import inf

from repdyn.metrics.metric import Metric

SPECTRUM = [
    Metric(
        name="sequence_entropy",
        kernel="repdyn.kernels:sequence_entropy",
        select_inputs="repdyn.metrics.inputs:sequences_of_states",
        captures=frozenset({"whole_windows"}),
        probe_requires="tokens",
        meaning="entropy of the squared singular values of a sequence's states, as a share of the largest possible",
        range=(0.0, 1.0),
        source="Skean et al. 2025, Layer by Layer (ICML); Queipo-de-Llano et al. 2025 (arXiv 2510.06477)",
        settings={"normalised": True},
        whole_sequences=True,
        title="Entropy of a sequence",
        unit="entropy",
        family="spectrum",
        scale="from_zero",
    ),
]

SIMILARITY = [
    Metric(
        name="sequence_cosine",
        kernel="repdyn.kernels:sequence_cosine",
        select_inputs="repdyn.metrics.inputs:sequences_of_states",
        captures=frozenset({"whole_windows"}),
        probe_requires="tokens",
        meaning="mean cosine between the vectors of two different tokens of one sequence, without centring",
        range=(-1.0, 1.0),
        source="Liu et al. 2026, embedding condensation (arXiv 2602.00217)",
        whole_sequences=True,
        title="Mean cosine within a sequence",
        unit="cosine",
        family="similarity",
    ),
    Metric(
        name="largest_activation",
        kernel="repdyn.kernels:largest_activation",
        select_inputs="repdyn.metrics.inputs:sequences_of_states",
        captures=frozenset({"whole_windows"}),
        probe_requires="tokens",
        meaning="largest magnitude of a coordinate in a sequence, mean over sequences",
        range=(0.0, inf),
        source="Sun, Chen, Kolter, Liu 2024 (COLM); Gallego-Feliciano et al. 2025 (arXiv 2508.03616)",
        whole_sequences=True,
        title="Largest activation",
        unit="magnitude",
        family="similarity",
        scale="log_if_wide",
    ),
]

"""Metrics of two matched clouds: a layer and the next, the last, or itself at the checkpoint before."""

from __future__ import annotations

from math import inf

from repdyn.kernels import (
    alignment_gradient_of,
    alignment_of,
    linear_cka_of,
    linearity_of,
    norm_of,
    step_cosine_of,
    step_length_of,
)
from repdyn.metrics.layer_view import (
    clouds,
    with_earlier,
    with_following,
    with_following_and_last,
    with_following_in_one_space,
    with_last,
)
from repdyn.metrics.metric import Metric

_ANATOMY = "A study on the embedding spaces of the BERT language model, 2024"
_LINEARITY = "Razzhigaev et al. 2024, Your Transformer is Secretly Linear (ACL)"
_CKA = "Kornblith et al. 2019 (ICML); debiased as Nguyen, Raghu, Kornblith 2021 (ICLR)"

METRICS = [
    Metric(
        name="alignment",
        family="convergence",
        kernel=alignment_of,
        select_inputs=with_last,
        captures=frozenset({"last"}),
        meaning="mean cosine of each token's vector to its own in the last layer",
        range=(-1.0, 1.0),
        source="Lee 2024, Fractal Self-Similarity in Semantic Convergence (Fractal Fract. 8:552)",
    ),
    Metric(
        name="alignment_gradient",
        family="convergence",
        kernel=alignment_gradient_of,
        select_inputs=with_following_and_last,
        captures=frozenset({"following", "last"}),
        meaning="what the next layer adds to the alignment",
        range=(-2.0, 2.0),
        source="Lee 2024, Fractal Self-Similarity in Semantic Convergence (Fractal Fract. 8:552)",
        between=True,
    ),
    Metric(
        name="norm",
        family="evolution",
        kernel=norm_of,
        select_inputs=clouds,
        meaning="mean length of the vectors",
        range=(0.0, inf),
        source=_ANATOMY,
        subsets=("all", "no_sink"),
    ),
    Metric(
        name="step_length",
        family="evolution",
        kernel=step_length_of,
        select_inputs=with_following_in_one_space,
        captures=frozenset({"following"}),
        meaning="mean distance of each token's vector to its own in the next layer",
        range=(0.0, inf),
        source=_ANATOMY,
        between=True,
    ),
    Metric(
        name="step_cosine",
        family="evolution",
        kernel=step_cosine_of,
        select_inputs=with_following_in_one_space,
        captures=frozenset({"following"}),
        meaning="mean cosine of each token's vector to its own in the next layer",
        range=(-1.0, 1.0),
        source=_ANATOMY,
        between=True,
    ),
    Metric(
        name="linearity",
        family="evolution",
        kernel=linearity_of,
        select_inputs=with_following,
        captures=frozenset({"following"}),
        meaning="share of the next layer's variance that a linear map of this one explains",
        range=(0.0, 1.0),
        source=_LINEARITY,
        settings={"of": "state", "adjusted": False},
        between=True,
    ),
    Metric(
        name="linearity_step",
        family="evolution",
        kernel=linearity_of,
        select_inputs=with_following_in_one_space,
        captures=frozenset({"following"}),
        meaning="share of what the next block adds, by variance, that a linear map of this layer explains",
        range=(0.0, 1.0),
        source=_LINEARITY,
        settings={"of": "step", "adjusted": False},
        between=True,
    ),
    Metric(
        name="cka_next",
        family="evolution",
        kernel=linear_cka_of,
        select_inputs=with_following,
        captures=frozenset({"following"}),
        meaning="similarity of the layer to the next, whatever the rotation (linear CKA)",
        range=(-1.0, 1.0),
        source=_CKA,
        settings={"debiased": True},
        between=True,
    ),
    Metric(
        name="cka_previous",
        family="change",
        kernel=linear_cka_of,
        select_inputs=with_earlier,
        captures=frozenset({"previous_checkpoint"}),
        meaning="similarity of the layer to itself at the checkpoint before, whatever the rotation (linear CKA)",
        range=(-1.0, 1.0),
        source=_CKA,
        settings={"debiased": True},
    ),
]

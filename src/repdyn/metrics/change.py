"""Metrics of two matched clouds: a layer and the next, the last, or itself at the checkpoint
before.
"""

from functools import partial
from math import inf
from typing import Any

from repdyn.metrics.metric import of_kernel

_ANATOMY = "A study on the embedding spaces of the BERT language model, 2024"
_LINEARITY = "Razzhigaev et al. 2024, Your Transformer is Secretly Linear (ACL)"
_CKA: dict[str, Any] = {
    "kernel": "linear_cka",
    "range": (-1.0, 1.0),
    "source": "Kornblith et al. 2019 (ICML); debiased as Nguyen, Raghu, Kornblith 2021 (ICLR)",
    "settings": {"debiased": True},
}
_SVCCA: dict[str, Any] = {
    "kernel": "svcca",
    "range": (0.0, 1.0),
    "source": "Raghu, Gilmer, Yosinski, Sohl-Dickstein 2017, SVCCA (NeurIPS 30)",
    "settings": {"variance": 0.99},
    "whole_spectrum": True,
}
_MUTUAL_KNN: dict[str, Any] = {
    "range": (-1.0, 1.0),
    "source": (
        "Huh, Cheung, Wang, Isola 2024, The Platonic Representation Hypothesis (ICML); calibrated "
        "here"
    ),
    "settings": {"k": 10, "calibrated": True},
    # the one after k shows whether the k nearest are determined
    "neighbours": 11,
}
_PROCRUSTES: dict[str, Any] = {
    "kernel": "procrustes_distance",
    "range": (0.0, 2.0),
    "source": "Ding, Denain, Steinhardt 2021, Grounding Representation Similarity (NeurIPS 34)",
}
_IMBALANCE: dict[str, Any] = {
    "kernel": "information_imbalance",
    "range": (0.0, 2.0),
    "source": "Glielmo et al. 2022 (PNAS Nexus 1)",
    "settings": {"reverse": False, "points": 2048},
    "neighbours": 1,
}
_CONVERGENCE = "Lee 2024, Fractal Self-Similarity in Semantic Convergence (Fractal Fract. 8:552)"

_to_last = partial(
    of_kernel,
    select_inputs="repdyn.metrics.inputs:with_last",
    captures=frozenset({"last"}),
)
_towards_last = partial(
    of_kernel,
    select_inputs="repdyn.metrics.inputs:with_following_and_last",
    captures=frozenset({"following", "last"}),
    source=_CONVERGENCE,
    position="between",
)
_to_next = partial(
    of_kernel,
    captures=frozenset({"following"}),
    position="between",
)
_to_previous = partial(
    of_kernel,
    select_inputs="repdyn.metrics.inputs:with_previous_checkpoint",
    captures=frozenset({"previous_checkpoint"}),
)

_of_weights = partial(
    of_kernel,
    position="blocks",
    whole_sequences=True,
)
_norm = partial(_of_weights, kernel="weight_norm", range=(0.0, inf))

METRICS = [
    _to_last(
        name="alignment",
        meaning="mean cosine of each token's vector to its own in the last layer",
        range=(-1.0, 1.0),
        source=_CONVERGENCE,
    ),
    _towards_last(
        name="alignment_gradient",
        meaning="what the next layer adds to the alignment",
        range=(-2.0, 2.0),
    ),
    _towards_last(
        name="alignment_falls",
        meaning=(
            "share of tokens whose cosine to their vector in the last layer falls in the next block"
        ),
        range=(0.0, 1.0),
        settings={"more_than": 0.0},
    ),
    _to_last(
        name="mutual_knn",
        meaning=(
            "share of each token's nearest neighbours that are its neighbours in the last layer "
            "too, above chance"
        ),
        **_MUTUAL_KNN,
    ),
    _to_last(
        name="procrustes_last",
        **_PROCRUSTES,
        meaning="squared distance to the last layer after the best rotation, both of unit size",
    ),
    of_kernel(
        name="norm",
        meaning="mean length of the vectors",
        range=(0.0, inf),
        source=_ANATOMY,
        subsets=("all", "no_sink"),
    ),
    _to_next(
        name="step_length",
        select_inputs="repdyn.metrics.inputs:with_following_of_same_dim",
        meaning="mean distance of each token's vector to its own in the next layer",
        range=(0.0, inf),
        source=_ANATOMY,
    ),
    _to_next(
        name="step_cosine",
        kernel="alignment",
        select_inputs="repdyn.metrics.inputs:with_following_of_same_dim",
        meaning="mean cosine of each token's vector to its own in the next layer",
        range=(-1.0, 1.0),
        source=_ANATOMY,
    ),
    _to_next(
        name="linearity",
        select_inputs="repdyn.metrics.inputs:with_following",
        meaning="share of the next layer's variance that a linear map of this one explains",
        range=(0.0, 1.0),
        source=_LINEARITY,
        settings={"of": "state", "adjusted": False},
    ),
    _to_next(
        name="linearity_step",
        kernel="linearity",
        select_inputs="repdyn.metrics.inputs:with_following_of_same_dim",
        meaning=(
            "share of what the next block adds, by variance, that a linear map of this layer "
            "explains"
        ),
        range=(0.0, 1.0),
        source=_LINEARITY,
        settings={"of": "step", "adjusted": False},
    ),
    _to_next(
        name="cka_next",
        **_CKA,
        select_inputs="repdyn.metrics.inputs:with_following",
        meaning="similarity of the layer to the next, whatever the rotation (linear CKA)",
    ),
    _to_next(
        name="svcca_next",
        **_SVCCA,
        select_inputs="repdyn.metrics.inputs:with_following",
        meaning=(
            "mean canonical correlation of the layer and the next, along the directions that hold "
            "99% of the variance of each (SVCCA)"
        ),
    ),
    _to_next(
        name="imbalance_next",
        **_IMBALANCE,
        select_inputs="repdyn.metrics.inputs:with_following",
        meaning=(
            "how little the distances of a layer tell of those of the next (information imbalance)"
        ),
    ),
    _to_previous(
        name="imbalance_previous",
        **_IMBALANCE,
        meaning=(
            "how little the distances of a layer tell of those at the checkpoint before "
            "(information imbalance)"
        ),
    ),
    _to_previous(
        name="cka_previous",
        **_CKA,
        meaning=(
            "similarity of the layer to itself at the checkpoint before, whatever the rotation "
            "(linear CKA)"
        ),
    ),
    _to_previous(
        name="svcca_previous",
        **_SVCCA,
        meaning=(
            "mean canonical correlation of the layer and itself at the checkpoint before, along "
            "the directions that hold 99% of the variance of each (SVCCA)"
        ),
    ),
    _to_previous(
        name="mutual_knn_previous",
        kernel="mutual_knn",
        meaning=(
            "share of each token's nearest neighbours that were so at the checkpoint before too, "
            "above chance"
        ),
        **_MUTUAL_KNN,
    ),
    _to_previous(
        name="procrustes_previous",
        **_PROCRUSTES,
        meaning=(
            "squared distance of the layer to itself at the checkpoint before, after the best "
            "rotation"
        ),
    ),
    # of the blocks themselves, not of vectors; measured where they are named
    _norm(
        name="weight_norm",
        select_inputs="repdyn.metrics.inputs:weights_of_block",
        captures=frozenset({"weights"}),
        meaning="Euclidean norm of all weights of the block",
    ),
    _norm(
        name="gradient_norm",
        select_inputs="repdyn.metrics.inputs:gradients_of_block",
        captures=frozenset({"gradients"}),
        meaning=(
            "Euclidean norm of the gradients of the block's weights, as the optimizer took them"
        ),
    ),
    _of_weights(
        name="update_ratio",
        select_inputs="repdyn.metrics.inputs:with_weights_before",
        captures=frozenset({"weights_before"}),
        meaning=(
            "norm of the change of the block's weights by the last step, relative to the weights"
        ),
        range=(0.0, inf),
    ),
    _of_weights(
        name="weight_stable_rank",
        select_inputs="repdyn.metrics.inputs:matrices_of_block",
        captures=frozenset({"weights"}),
        meaning=(
            "squared Frobenius over squared spectral norm of a weight matrix, mean over the "
            "block's matrices"
        ),
        range=(1.0, inf),
        source="Rudelson, Vershynin 2007 (JACM 54)",
    ),
]

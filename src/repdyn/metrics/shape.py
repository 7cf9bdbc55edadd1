"""Metrics of one layer's point cloud: its shape, its dimension, its spectrum, how its vectors resemble one another."""

from __future__ import annotations

from math import inf

from repdyn.kernels import (
    SCALES,
    alpha_req_of,
    anisotropy_of,
    components_of,
    effective_rank_of,
    gride_of,
    isoscore_of,
    levina_bickel_of,
    massive_activation_share_of,
    mean_cosine_of,
    participation_ratio_of,
    two_nn_of,
)
from repdyn.metrics.metric import Metric

CLOUD = [
    Metric(
        name="anisotropy",
        family="geometry",
        kernel=anisotropy_of,
        meaning="share of variance along the first principal direction",
        range=(0.0, 1.0),
        source="Razzhigaev et al. 2024, The Shape of Learning (Findings of EACL)",
        # A few attention sinks can make up nearly all of it, so it is never shown with sinks alone.
        subsets=("all", "no_sink"),
    ),
    Metric(
        name="two_nn",
        family="geometry",
        kernel=two_nn_of,
        meaning="intrinsic dimension from the ratio of each point's two nearest-neighbour distances",
        range=(0.0, inf),
        source="Facco, d'Errico, Rodriguez, Laio 2017 (Sci. Rep. 7:12140)",
        settings={"discard": 0.1, "duplicates": "collapse", "estimator": "regression"},
        on_distinct=True,
    ),
    *(
        Metric(
            name=f"gride_{k}",
            family="dimension",
            kernel=gride_of,
            meaning=f"intrinsic dimension from the ratio of each point's distances to neighbours {k} and {k // 2}",
            range=(0.0, inf),
            source="Denti, Doimo, Laio, Mira 2022 (Sci. Rep. 12:20005)",
            settings={"k": k},
            on_distinct=True,
            neighbours="k",
        )
        for k in SCALES
    ),
    Metric(
        name="levina_bickel",
        family="dimension",
        kernel=levina_bickel_of,
        meaning="intrinsic dimension from the distances to the k nearest neighbours, by maximum likelihood",
        range=(0.0, inf),
        source="Levina, Bickel 2004 (NeurIPS 17); averaged as MacKay, Ghahramani 2005",
        settings={"k": 20},
        on_distinct=True,
        neighbours="k",
    ),
]
"""``geometry`` and ``dimension``."""

SPECTRUM = [
    Metric(
        name="participation_ratio",
        family="spectrum",
        kernel=participation_ratio_of,
        meaning="number of directions that the variance is spread over",
        range=(1.0, inf),
        source="Gao et al. 2017 (bioRxiv 214262)",
        whole_spectrum=True,
    ),
    Metric(
        name="effective_rank",
        family="spectrum",
        kernel=effective_rank_of,
        meaning="exponential of the entropy of the normalised singular values",
        range=(1.0, inf),
        source="Roy, Vetterli 2007 (EUSIPCO); RankMe, Garrido et al. 2023",
        whole_spectrum=True,
    ),
    Metric(
        name="alpha_req",
        family="spectrum",
        kernel=alpha_req_of,
        meaning="exponent of the power law by which the eigenvalues decay",
        range=(0.0, inf),
        source="Agrawal et al. 2022, alpha-ReQ (NeurIPS 35)",
        settings={"first": 11, "last": 100},
        whole_spectrum=True,
    ),
    *(
        Metric(
            name=f"components_{percent}",
            family="spectrum",
            kernel=components_of,
            meaning=f"principal directions that hold {percent} % of the variance",
            range=(1.0, inf),
            source="Jolliffe 2002, Principal Component Analysis, section 6.1",
            settings={"share": percent / 100},
            whole_spectrum=True,
        )
        for percent in (50, 90, 95, 99)
    ),
]

SIMILARITY = [
    Metric(
        name="mean_cosine",
        family="similarity",
        kernel=mean_cosine_of,
        meaning="mean cosine between the vectors of two different tokens, without centring",
        range=(-1.0, 1.0),
        source="Ethayarajh 2019 (EMNLP)",
        subsets=("all", "no_sink"),
    ),
    Metric(
        name="isoscore",
        family="similarity",
        kernel=isoscore_of,
        meaning="how evenly all coordinates are used: 0 one direction, 1 all alike",
        range=(0.0, 1.0),
        source="Rudman, Gillman, Rayne, Eickhoff 2022 (Findings of ACL)",
        whole_spectrum=True,
    ),
    Metric(
        name="massive_activation_share",
        family="similarity",
        kernel=massive_activation_share_of,
        meaning="share of the sum of squares that massive activations carry",
        range=(0.0, 1.0),
        source="Sun, Chen, Kolter, Liu 2024 (COLM)",
        settings={"magnitude": 100.0, "ratio": 1000.0},
        # they sit on first positions and special tokens more than anywhere else
        subsets=("all", "no_sink"),
    ),
]

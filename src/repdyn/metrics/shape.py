"""Metrics of one layer's cloud: its shape, its dimension, its spectrum, how its vectors resemble
one another.
"""

from collections.abc import Callable
from functools import partial
from math import inf, pi

from repdyn.metrics.metric import Metric, of_kernel
from repdyn.probe.design import WITHOUT_REPEATS

_dimension = partial(
    of_kernel,
    range=(0.0, inf),
)
_directions = partial(
    of_kernel,
    range=(1.0, inf),
    whole_spectrum=True,
)
_of_sequences = partial(
    of_kernel,
    select_inputs="repdyn.metrics.inputs:sequences_of_states",
    captures=frozenset({"whole_windows"}),
    probe_requires="tokens",
    whole_sequences=True,
)
_of_attention = partial(
    of_kernel,
    select_inputs="repdyn.metrics.inputs:attention_of_sequences",
    captures=frozenset({"attention_weights"}),
    probe_requires="tokens",
    range=(0.0, 1.0),
    position="blocks",
    per_head=True,
    whole_sequences=True,
)
_of_queries = partial(
    of_kernel,
    select_inputs="repdyn.metrics.inputs:queries_of_heads",
    captures=frozenset({"queries_and_keys"}),
    position="blocks",
    per_head=True,
)
_of_keys = partial(_of_queries, select_inputs="repdyn.metrics.inputs:keys_of_heads")
_GODEY = "Godey, de la Clergerie, Sagot 2024, Anisotropy Is Inherent to Self-Attention (EACL)"


def _of_heads(vectors: str, define: Callable[..., Metric]) -> list[Metric]:
    """Return the metrics of the queries, or the keys, of attention heads."""
    return [
        define(
            name=f"{vectors}_anisotropy",
            kernel="head_anisotropy",
            meaning=(
                f"share of variance along the first principal direction of the {vectors} vectors "
                "of an attention head"
            ),
            range=(0.0, 1.0),
            source=f"of heads, after {_GODEY}",
            # the key of a first position that heads attend to is far from all others
            subsets=("all", "no_sink"),
        ),
        define(
            name=f"{vectors}_cosine",
            kernel="head_cosine",
            meaning=(
                f"mean cosine between the {vectors} vectors of two tokens in an attention head, "
                "without centring"
            ),
            range=(-1.0, 1.0),
            source=_GODEY,
        ),
    ]


METRICS = [
    of_kernel(
        name="anisotropy",
        meaning="share of variance along the first principal direction",
        range=(0.0, 1.0),
        source="Razzhigaev et al. 2024, The Shape of Learning (Findings of EACL)",
        # A few attention sinks can make up nearly all of it, so it is never shown with sinks alone.
        subsets=("all", "no_sink"),
    ),
    _dimension(
        name="two_nn",
        meaning=(
            "intrinsic dimension from the ratio of each point's two nearest-neighbour distances"
        ),
        source="Facco, d'Errico, Rodriguez, Laio 2017 (Sci. Rep. 7:12140)",
        settings={"discard": 0.1, "duplicates": "collapse", "estimator": "regression"},
        neighbours=2,
        # The nearest neighbour of most vectors may be the same token in another window, and the
        # dimension that of one token's variation: it is always measured without repeats too.
        subsets=("all", WITHOUT_REPEATS),
    ),
    *(
        _dimension(
            name=f"gride_{k}",
            kernel="gride",
            meaning=(
                f"intrinsic dimension from the ratio of each point's distances to neighbours {k} "
                f"and {k // 2}"
            ),
            source="Denti, Doimo, Laio, Mira 2022 (Sci. Rep. 12:20005)",
            settings={"k": k},
            neighbours="k",
        )
        for k in (2, 4, 8, 16, 32)
    ),
    _dimension(
        name="levina_bickel",
        meaning=(
            "intrinsic dimension from the distances to the k nearest neighbours, by maximum "
            "likelihood"
        ),
        source="Levina, Bickel 2004 (NeurIPS 17); averaged as MacKay, Ghahramani 2005",
        settings={"k": 20},
        neighbours="k",
    ),
    _dimension(
        name="local_dimension",
        meaning=(
            "mean intrinsic dimension (TwoNN) of the k nearest neighbours of each of some points"
        ),
        source="Ruppik et al. 2025, Less is More: Local Intrinsic Dimensions (arXiv 2506.01034)",
        settings={"k": 64, "points": 256},
        # inside the neighbourhoods, which are searched for these points alone
        neighbours=2,
    ),
    of_kernel(
        name="local_anisotropy",
        meaning=(
            "share of variance along the first principal direction among the k nearest neighbours "
            "of a point, mean over some points"
        ),
        range=(0.0, 1.0),
        source="after Cai, Huang, Bian, Church 2021, Isotropy: Clusters and Manifolds (ICLR)",
        settings={"k": 64, "points": 256},
        # neighbourhoods are searched for these points alone
        neighbours=1,
    ),
    _dimension(
        name="ph_dimension",
        meaning=(
            "intrinsic dimension from the growth of minimum spanning trees with the number of "
            "points"
        ),
        source="Tulchinskii et al. 2023 (NeurIPS 36); Schweinhart 2020 (Adv. Math. 372)",
        settings={"points": 512, "alpha": 1.0},
        # a tree joins each vector to its nearest neighbour, at least
        neighbours=1,
    ),
    _directions(
        name="participation_ratio",
        meaning="number of directions that the variance is spread over",
        source="Gao et al. 2017 (bioRxiv 214262)",
    ),
    _directions(
        name="unbiased_participation_ratio",
        meaning=(
            "participation ratio of the distribution behind the vectors, corrected for their number"
        ),
        source="arXiv 2509.26560 (ICLR 2026), the correction for samples",
    ),
    _directions(
        name="effective_rank",
        meaning="exponential of the entropy of the normalised singular values",
        source="Roy, Vetterli 2007 (EUSIPCO); not centred, RankMe of Garrido et al. 2023 (ICML)",
        settings={"centred": True},
    ),
    _directions(
        name="effective_rank_of_variance",
        meaning="exponential of the entropy of the eigenvalues' shares of the variance",
        source="arXiv 2509.23024, 2025, which calls it RankMe",
        settings={"centred": True},
    ),
    of_kernel(
        name="lidar",
        select_inputs="repdyn.metrics.inputs:with_windows",
        meaning="directions that tell windows apart from the spread of the vectors within them",
        range=(1.0, inf),
        source=(
            "Thilak et al. 2024, LiDAR (ICLR); the views of a text are the sampled vectors of a "
            "window"
        ),
        settings={"delta": 1e-4},
    ),
    of_kernel(
        name="dime",
        select_inputs="repdyn.metrics.inputs:with_windows",
        meaning=(
            "mutual information of the two halves of the vectors of a window, by matrices of "
            "similarities"
        ),
        source=(
            "Skean et al. 2023, DiME (arXiv 2301.08164); kernel of Skean et al. 2025, Layer by "
            "Layer (ICML)"
        ),
        settings={"pairs": 512, "permutations": 10},
    ),
    of_kernel(
        name="alpha_req",
        meaning="exponent of the power law by which the eigenvalues decay",
        range=(0.0, inf),
        source="Agrawal et al. 2022, alpha-ReQ (NeurIPS 35)",
        settings={"first": 11, "last": 100},
        whole_spectrum=True,
    ),
    *(
        _directions(
            name=f"components_{percent}",
            kernel="components",
            meaning=f"principal directions that hold {percent}% of the variance",
            source="Jolliffe 2002, Principal Component Analysis, section 6.1",
            settings={"share": percent / 100},
        )
        for percent in (50, 90, 95, 99)
    ),
    _of_sequences(
        name="sequence_entropy",
        meaning=(
            "entropy of the squared singular values of a sequence's states, as a share of the "
            "largest possible"
        ),
        range=(0.0, 1.0),
        source=(
            "Skean et al. 2025, Layer by Layer (ICML); Queipo-de-Llano et al. 2025 (arXiv "
            "2510.06477)"
        ),
        settings={"normalised": True},
    ),
    _of_sequences(
        name="prompt_entropy",
        meaning="entropy of the similarities of a sequence's tokens, centred and of unit length",
        range=(0.0, 1.0),
        source="Skean et al. 2025, Layer by Layer (ICML), as its code has it",
        settings={"order": 2},
    ),
    of_kernel(
        name="mean_cosine",
        meaning="mean cosine between the vectors of two different tokens, without centring",
        range=(-1.0, 1.0),
        source="Ethayarajh 2019 (EMNLP)",
        subsets=("all", "no_sink"),
    ),
    of_kernel(
        name="self_similarity",
        select_inputs="repdyn.metrics.inputs:with_tokens",
        probe_requires="tokens",
        meaning="mean cosine of one word's vectors in different contexts, minus that of all pairs",
        range=(-2.0, 2.0),
        source="Ethayarajh 2019 (EMNLP)",
        settings={"min_contexts": 5},
        # a special token that begins every window is no word
        subsets=("no_sink",),
    ),
    of_kernel(
        name="isoscore",
        meaning="how evenly all coordinates are used: 0 one direction, 1 all alike",
        range=(0.0, 1.0),
        source="Rudman, Gillman, Rayne, Eickhoff 2022 (Findings of ACL)",
        whole_spectrum=True,
    ),
    of_kernel(
        name="massive_activation_share",
        meaning="share of the sum of squares that massive activations carry",
        range=(0.0, 1.0),
        source="Sun, Chen, Kolter, Liu 2024 (COLM)",
        settings={"magnitude": 100.0, "ratio": 1000.0},
        # they sit on first positions and special tokens more than anywhere else
        subsets=("all", "no_sink"),
    ),
    of_kernel(
        name="outlier_kurtosis",
        meaning=(
            "how far a few coordinates are larger than the rest: 1 all alike, the width if one has "
            "all"
        ),
        range=(1.0, inf),
        source="He, Noci, Paliotta, Schlag, Hofmann 2024, Outlier Features (arXiv 2405.19279)",
        subsets=("all", "no_sink"),
    ),
    of_kernel(
        name="next_token_variance",
        kernel="class_variance",
        select_inputs="repdyn.metrics.inputs:with_next_tokens",
        probe_requires="tokens",
        meaning=(
            "variance of the vectors before one next token, relative to the distance from those "
            "before another"
        ),
        range=(0.0, inf),
        source="Wu, Papyan 2024, Linguistic Collapse (arXiv 2405.17767)",
        settings={"min_vectors": 2},
        # the embedding output knows nothing of the context, and repeats its vectors
        position="blocks",
    ),
    _of_sequences(
        name="curvature",
        meaning=(
            "mean angle between the steps from token to token, less that of independent vectors"
        ),
        range=(-2 * pi / 3, pi / 3),
        source=(
            "Henaff, Goris, Simoncelli 2019 (Nat. Neurosci. 22); Hosseini, Fedorenko 2023 (NeurIPS "
            "36)"
        ),
    ),
    _of_sequences(
        name="sequence_cosine",
        meaning=(
            "mean cosine between the vectors of two different tokens of one sequence, without "
            "centring"
        ),
        range=(-1.0, 1.0),
        source="Liu et al. 2026, embedding condensation (arXiv 2602.00217)",
    ),
    _of_sequences(
        name="largest_activation",
        meaning="largest magnitude of a coordinate in a sequence, mean over sequences",
        range=(0.0, inf),
        source=(
            "Sun, Chen, Kolter, Liu 2024 (COLM); Gallego-Feliciano et al. 2025 (arXiv 2508.03616)"
        ),
    ),
    _of_attention(
        name="sink_rate",
        meaning=(
            "share of attention heads whose mean attention to the first token exceeds a threshold"
        ),
        source="Gu et al. 2024, When Attention Sink Emerges in Language Models (arXiv 2410.10781)",
        settings={"threshold": 0.3},
    ),
    _of_attention(
        name="attention_evenness",
        meaning=(
            "entropy of the attention weights as a share of the largest possible: 1 even, 0 all on "
            "one position"
        ),
        source="Ghader, Monz 2017 (IJCNLP), relative to even attention",
    ),
    *_of_heads("query", _of_queries),
    *_of_heads("key", _of_keys),
    of_kernel(
        name="top_norm_variance_share",
        meaning=(
            "share of the variance along the first principal direction that the longest 1% of the "
            "vectors carry"
        ),
        range=(0.0, 1.0),
        source="this package; after Sun, Chen, Kolter, Liu 2024, Massive Activations (COLM)",
        settings={"share": 0.01},
        # what is left of it without first positions is due to other massive vectors
        subsets=("all", "no_sink"),
    ),
]

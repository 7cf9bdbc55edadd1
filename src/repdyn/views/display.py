"""How each metric is drawn: its title, the label and scale of its axis, and the figures it shares.

A metric of your own has a :class:`Display` in its definition:
``Metric(..., display=Display(...))``.
"""

from dataclasses import dataclass, fields
from typing import Literal, Required, TypeAlias, TypedDict

from repdyn.metrics import METRICS, metric_info
from repdyn.metrics.names import base_name
from repdyn.store.schema import DESCRIPTIONS

Scale: TypeAlias = Literal["linear", "from_zero", "signed", "log", "log_if_wide"]

FAMILIES = {
    "geometry": "Geometry",
    "dimension": "Intrinsic dimension",
    "spectrum": "Spectrum",
    "similarity": "Similarity of vectors",
    "sinks": "Attention sinks",
    "heads": "Queries and keys",
    "convergence": "Convergence to the last layer",
    "evolution": "Steps from layer to layer",
    "change": "Change between checkpoints",
    "weights": "Weights and gradients",
    "tokens": "Tokens against the vocabulary",
    "topics": "Topic structure",
}
"""Title of each family of metrics, in the order in which they are shown."""
OWN_FAMILY = "own"
"""The family of a metric that names none: each has figures of its own."""


@dataclass(frozen=True, kw_only=True)
class Display:
    """Says how a metric is drawn; every field may be left out.

    Views read it by the metric's name, with whatever settings: :func:`display_of`. That of a metric
    of your own is stored with its rows, so that views in other processes draw it alike.
    """

    title: str = ""
    """What figures call it; its name if empty."""
    unit: str = ""
    """The label of an axis of values; the name if empty."""
    family: str = OWN_FAMILY
    """Metrics of one of :data:`FAMILIES` share overviews; any other family has a figure for each
    metric.
    """
    scale: Scale = "linear"
    """The axis of its values: "linear" around them; "from_zero" for shares, whose small differences
    would else look large; "signed" with a line at 0 and colours that change there; "log" for counts
    that span decades and may be 0; "log_if_wide" for lengths, which are logarithmic where the
    largest is many times the smallest."""
    log_from: float = 0.0
    """Smallest value of a "log" scale: smaller values are drawn as 0."""
    panel: str = ""
    """Title of the panel that it shares with metrics that differ from it in a number only."""
    line: str = ""
    """What its line in that panel is called."""
    shows_embeddings: bool = False
    """Whether the embedding output (layer 0) deserves a line of its own next to the mean over
    layers.
    """


def display_of(metric: str) -> Display:
    """Return how a metric is drawn, by its stored name, with whatever settings.

    A metric of another package that is not installed here is drawn as was stored with its rows, and
    by default under its name.

    >>> display_of("two_nn[discard=0.8]").unit, display_of("my_metric").family
    ('dimension', 'own')
    """
    base = base_name(metric)
    if base in DISPLAYS:
        return DISPLAYS[base]
    if base in METRICS and METRICS[base].display is not None:
        return METRICS[base].display
    stored = DESCRIPTIONS.get(base, {})
    # another version of this package may have stored fields that this one lacks
    return Display(**{name: stored[name] for name in _FIELDS if name in stored})


_FIELDS = tuple(field.name for field in fields(Display))


def is_dimension_of_neighbours(metric: str) -> bool:
    """Return whether a metric is a dimension that is estimated from nearest neighbours.

    >>> is_dimension_of_neighbours("gride_4"), is_dimension_of_neighbours("participation_ratio")
    (True, False)
    """
    return display_of(metric).unit == "dimension" and bool(metric_info(metric).neighbours)


class _Fields(TypedDict, total=False):
    """The fields of a :class:`Display` beside its family."""

    title: Required[str]
    unit: Required[str]
    scale: Scale
    log_from: float
    panel: str
    line: str
    shows_embeddings: bool


_BY_FAMILY: dict[str, dict[str, _Fields]] = {
    "geometry": {
        "anisotropy": {
            "title": "Anisotropy",
            "unit": "share of variance along the first direction",
            "scale": "from_zero",
        },
        "two_nn": {"title": "Intrinsic dimension (TwoNN)", "unit": "dimension"},
        "local_anisotropy": {
            "title": "Anisotropy of neighbourhoods",
            "unit": "share of variance along the first direction",
            "scale": "from_zero",
        },
    },
    "dimension": {
        **{
            f"gride_{k}": {
                "title": f"Intrinsic dimension (Gride, neighbours {k} and {k // 2})",
                "unit": "dimension",
                "panel": "Intrinsic dimension (Gride, scale k)",
                "line": f"k = {k}",
            }
            for k in (2, 4, 8, 16, 32)
        },
        "levina_bickel": {"title": "Intrinsic dimension (Levina-Bickel)", "unit": "dimension"},
        "local_dimension": {"title": "Local intrinsic dimension", "unit": "dimension"},
        "ph_dimension": {"title": "Persistent-homology dimension", "unit": "dimension"},
    },
    "spectrum": {
        "participation_ratio": {"title": "Participation ratio", "unit": "directions"},
        "unbiased_participation_ratio": {
            "title": "Participation ratio, unbiased",
            "unit": "directions",
        },
        "effective_rank": {"title": "Effective rank", "unit": "directions"},
        "effective_rank_of_variance": {
            "title": "Effective rank of the variance",
            "unit": "directions",
        },
        "lidar": {"title": "LiDAR", "unit": "directions"},
        "dime": {
            "title": "Mutual information within a window (DiME)",
            "unit": "nats",
            "scale": "from_zero",
        },
        "alpha_req": {"title": "Decay of the spectrum (alpha-ReQ)", "unit": "exponent"},
        **{
            f"components_{percent}": {
                "title": f"Principal directions for {percent}% of the variance",
                "unit": "directions",
                "panel": "Directions for a share of the variance",
                "line": f"{percent}%",
            }
            for percent in (50, 90, 95, 99)
        },
        "sequence_entropy": {
            "title": "Entropy of a sequence",
            "unit": "entropy",
            "scale": "from_zero",
        },
        "prompt_entropy": {
            "title": "Entropy of a prompt (Layer by Layer)",
            "unit": "entropy",
            "scale": "from_zero",
        },
    },
    "similarity": {
        "mean_cosine": {"title": "Mean cosine of two tokens", "unit": "cosine"},
        "self_similarity": {
            "title": "Self-similarity of a word",
            "unit": "cosine above that of all pairs",
            "shows_embeddings": True,
        },
        "isoscore": {"title": "IsoScore", "unit": "score (1: isotropic)", "scale": "from_zero"},
        "massive_activation_share": {
            "title": "Massive activations",
            "unit": "share of the sum of squares",
            "scale": "log",
            "log_from": 1e-06,
        },
        "outlier_kurtosis": {
            "title": "Kurtosis of the coordinates",
            "unit": "kurtosis (1: none stands out)",
            "scale": "log_if_wide",
        },
        "next_token_variance": {
            "title": "Variance within next-token classes",
            "unit": "variance / squared distance",
            "scale": "log_if_wide",
        },
        "curvature": {
            "title": "Curvature of a sequence",
            "unit": "radians (0: independent)",
            "scale": "signed",
        },
        "sequence_cosine": {"title": "Mean cosine within a sequence", "unit": "cosine"},
        "largest_activation": {
            "title": "Largest activation",
            "unit": "magnitude",
            "scale": "log_if_wide",
        },
    },
    "sinks": {
        "sink_rate": {
            "title": "Attention heads with a sink",
            "unit": "share of heads and sequences",
            "scale": "from_zero",
        },
        "attention_evenness": {
            "title": "Evenness of the attention",
            "unit": "entropy / log of the positions seen",
            "scale": "from_zero",
        },
        "top_norm_variance_share": {
            "title": "First direction due to the longest vectors",
            "unit": "share of variance along it",
            "scale": "from_zero",
        },
    },
    "heads": {
        "query_anisotropy": {
            "title": "Anisotropy of the queries",
            "unit": "share of variance along the first direction",
            "scale": "from_zero",
        },
        "key_anisotropy": {
            "title": "Anisotropy of the keys",
            "unit": "share of variance along the first direction",
            "scale": "from_zero",
        },
        "query_cosine": {"title": "Mean cosine of two queries", "unit": "cosine"},
        "key_cosine": {"title": "Mean cosine of two keys", "unit": "cosine"},
    },
    "convergence": {
        "alignment": {
            "title": "Alignment with the last layer",
            "unit": "cosine",
            "shows_embeddings": True,
        },
        "alignment_gradient": {
            "title": "Gradient of the alignment",
            "unit": "cosine per layer",
            "scale": "signed",
        },
        "alignment_falls": {
            "title": "Tokens that move away from their final vector",
            "unit": "share of tokens",
            "scale": "from_zero",
        },
        "mutual_knn": {
            "title": "Neighbours shared with the last layer",
            "unit": "share above chance",
            "shows_embeddings": True,
        },
        "procrustes_last": {
            "title": "Procrustes distance to the last layer",
            "unit": "squared distance",
            "scale": "from_zero",
            "shows_embeddings": True,
        },
    },
    "evolution": {
        "norm": {"title": "Norm", "unit": "length", "scale": "log_if_wide"},
        "step_length": {
            "title": "Step to the next layer",
            "unit": "length",
            "scale": "log_if_wide",
        },
        "step_cosine": {"title": "Cosine with the next layer", "unit": "cosine"},
        "linearity": {
            "title": "Linearity from this layer to the next",
            "unit": "share of variance",
            "scale": "from_zero",
        },
        "linearity_step": {
            "title": "Linearity of what the next block adds",
            "unit": "share of variance",
            "scale": "from_zero",
        },
        "cka_next": {"title": "Linear CKA with the next layer", "unit": "CKA"},
        "svcca_next": {
            "title": "SVCCA with the next layer",
            "unit": "canonical correlation",
            "scale": "from_zero",
        },
        "imbalance_next": {
            "title": "Information imbalance to the next layer",
            "unit": "imbalance (1: unrelated)",
            "scale": "from_zero",
        },
    },
    "change": {
        "imbalance_previous": {
            "title": "Information imbalance to the checkpoint before",
            "unit": "imbalance (1: unrelated)",
            "scale": "from_zero",
        },
        "cka_previous": {"title": "Linear CKA with the checkpoint before", "unit": "CKA"},
        "svcca_previous": {
            "title": "SVCCA with the checkpoint before",
            "unit": "canonical correlation",
            "scale": "from_zero",
        },
        "mutual_knn_previous": {
            "title": "Neighbours shared with the checkpoint before",
            "unit": "share above chance",
        },
        "procrustes_previous": {
            "title": "Procrustes distance to the checkpoint before",
            "unit": "squared distance",
            "scale": "from_zero",
        },
    },
    "weights": {
        "weight_norm": {
            "title": "Norm of the weights",
            "unit": "norm of the weights",
            "scale": "log_if_wide",
        },
        "gradient_norm": {
            "title": "Norm of the gradients",
            "unit": "norm of the gradients",
            "scale": "log_if_wide",
        },
        "update_ratio": {
            "title": "Update relative to the weights",
            "unit": "update / weights",
            "scale": "log",
            "log_from": 1e-09,
        },
        "weight_stable_rank": {"title": "Stable rank of the weights", "unit": "directions"},
    },
    "tokens": {
        "token_cosine": {"title": "Cosine with the own embedding", "unit": "cosine"},
        "token_rank": {
            "title": "Rank of the own embedding",
            "unit": "input embeddings closer",
            "scale": "log",
            "log_from": 1.0,
        },
        "token_top1_match": {
            "title": "Tokens closest to their own embedding",
            "unit": "share of tokens",
            "scale": "from_zero",
        },
        "token_imbalance": {
            "title": "Information imbalance to the tokens",
            "unit": "imbalance (1: unrelated)",
            "scale": "from_zero",
            "shows_embeddings": True,
        },
        "token_cosine_attention": {
            "title": "Cosine with the own embedding, after attention",
            "unit": "cosine",
        },
        "token_rank_attention": {
            "title": "Rank of the own embedding, after attention",
            "unit": "input embeddings closer",
            "scale": "log",
            "log_from": 1.0,
        },
        "token_distance": {
            "title": "Distance to the own embedding",
            "unit": "distance",
            "scale": "log_if_wide",
        },
        "token_rank_distance": {
            "title": "Rank of the own embedding by distance",
            "unit": "input embeddings closer",
            "scale": "log",
            "log_from": 1.0,
        },
        "lens_kl": {
            "title": "Logit lens: KL from the final prediction",
            "unit": "nats",
            "scale": "from_zero",
        },
        "lens_agreement": {
            "title": "Logit lens: agreement with the final prediction",
            "unit": "share of vectors",
            "scale": "from_zero",
        },
    },
    "topics": {
        "topic_gap": {
            "title": "Topic gap, cosine",
            "unit": "cosine",
            "scale": "signed",
            "shows_embeddings": True,
        },
        "topic_gap_dot": {
            "title": "Topic gap, inner product",
            "unit": "inner product",
            "scale": "signed",
            "shows_embeddings": True,
        },
        "attention_topic_gap": {
            "title": "Topic gap of the attention",
            "unit": "attention weight",
            "scale": "signed",
        },
        "topic_same": {
            "title": "Mean inner product, one topic",
            "unit": "inner product",
            "scale": "signed",
            "panel": "Mean inner product by topic",
            "line": "one topic",
        },
        "attention_topic_same": {
            "title": "Mean attention, one topic",
            "unit": "attention weight",
            "scale": "signed",
            "panel": "Mean attention by topic",
            "line": "one topic",
        },
        "topic_different": {
            "title": "Mean inner product, different topics",
            "unit": "inner product",
            "scale": "signed",
            "panel": "Mean inner product by topic",
            "line": "different topics",
        },
        "attention_topic_different": {
            "title": "Mean attention, different topics",
            "unit": "attention weight",
            "scale": "signed",
            "panel": "Mean attention by topic",
            "line": "different topics",
        },
    },
}

DISPLAYS: dict[str, Display] = {
    metric: Display(family=family, **shown)
    for family, metrics in _BY_FAMILY.items()
    for metric, shown in metrics.items()
}
"""How each metric of this package is drawn, by its name."""

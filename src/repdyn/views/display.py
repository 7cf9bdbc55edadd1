"""How each metric is drawn: its title, the label and scale of its axis, and the figures it shares.

A metric of your own has a :class:`Display` in its definition:
``Metric(..., display=Display(...))``.
"""

from dataclasses import dataclass, fields
from functools import partial
from typing import Literal, TypeAlias

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
    return Display(**{name: stored[name] for name in _FIELDS if name in stored})


_FIELDS = tuple(field.name for field in fields(Display))


def is_dimension_of_neighbours(metric: str) -> bool:
    """Return whether a metric is a dimension that is estimated from nearest neighbours.

    >>> is_dimension_of_neighbours("gride_4"), is_dimension_of_neighbours("participation_ratio")
    (True, False)
    """
    return display_of(metric).unit == "dimension" and bool(metric_info(metric).neighbours)


_geometry = partial(Display, family="geometry")
_dimension = partial(Display, family="dimension", unit="dimension")
_spectrum = partial(Display, family="spectrum")
_similarity = partial(Display, family="similarity")
_sinks = partial(Display, family="sinks")
_convergence = partial(Display, family="convergence", shows_embeddings=True)
_evolution = partial(Display, family="evolution")
_change = partial(Display, family="change")
_weights = partial(Display, family="weights")
_tokens = partial(Display, family="tokens")
_topics = partial(Display, family="topics", scale="signed")

DISPLAYS: dict[str, Display] = {
    "anisotropy": _geometry(
        title="Anisotropy", unit="share of variance along the first direction", scale="from_zero"
    ),
    "two_nn": _geometry(title="Intrinsic dimension (TwoNN)", unit="dimension"),
    **{
        f"gride_{k}": _dimension(
            title=f"Intrinsic dimension (Gride, neighbours {k} and {k // 2})",
            panel="Intrinsic dimension (Gride, scale k)",
            line=f"k = {k}",
        )
        for k in (2, 4, 8, 16, 32)
    },
    "levina_bickel": _dimension(title="Intrinsic dimension (Levina-Bickel)"),
    "local_dimension": _dimension(title="Local intrinsic dimension"),
    "ph_dimension": _dimension(title="Persistent-homology dimension"),
    "participation_ratio": _spectrum(title="Participation ratio", unit="directions"),
    "unbiased_participation_ratio": _spectrum(
        title="Participation ratio, unbiased", unit="directions"
    ),
    "effective_rank": _spectrum(title="Effective rank", unit="directions"),
    "effective_rank_of_variance": _spectrum(
        title="Effective rank of the variance", unit="directions"
    ),
    "lidar": _spectrum(title="LiDAR", unit="directions"),
    "dime": _spectrum(
        title="Mutual information within a window (DiME)", unit="nats", scale="from_zero"
    ),
    "alpha_req": _spectrum(title="Decay of the spectrum (alpha-ReQ)", unit="exponent"),
    **{
        f"components_{percent}": _spectrum(
            title=f"Principal directions for {percent}% of the variance",
            unit="directions",
            panel="Directions for a share of the variance",
            line=f"{percent}%",
        )
        for percent in (50, 90, 95, 99)
    },
    "sequence_entropy": _spectrum(title="Entropy of a sequence", unit="entropy", scale="from_zero"),
    "prompt_entropy": _spectrum(
        title="Entropy of a prompt (Layer by Layer)", unit="entropy", scale="from_zero"
    ),
    "mean_cosine": _similarity(title="Mean cosine of two tokens", unit="cosine"),
    "self_similarity": _similarity(
        title="Self-similarity of a word",
        unit="cosine above that of all pairs",
        shows_embeddings=True,
    ),
    "isoscore": _similarity(title="IsoScore", unit="score (1: isotropic)", scale="from_zero"),
    "massive_activation_share": _similarity(
        title="Massive activations", unit="share of the sum of squares", scale="log", log_from=1e-06
    ),
    "outlier_kurtosis": _similarity(
        title="Kurtosis of the coordinates",
        unit="kurtosis (1: none stands out)",
        scale="log_if_wide",
    ),
    "next_token_variance": _similarity(
        title="Variance within next-token classes",
        unit="variance / squared distance",
        scale="log_if_wide",
    ),
    "curvature": _similarity(
        title="Curvature of a sequence", unit="radians (0: independent)", scale="signed"
    ),
    "sequence_cosine": _similarity(title="Mean cosine within a sequence", unit="cosine"),
    "largest_activation": _similarity(
        title="Largest activation", unit="magnitude", scale="log_if_wide"
    ),
    "sink_rate": _sinks(
        title="Attention heads with a sink", unit="share of heads and sequences", scale="from_zero"
    ),
    "attention_evenness": _sinks(
        title="Evenness of the attention",
        unit="entropy / log of the positions seen",
        scale="from_zero",
    ),
    "top_norm_variance_share": _sinks(
        title="First direction due to the longest vectors",
        unit="share of variance along it",
        scale="from_zero",
    ),
    "alignment": _convergence(title="Alignment with the last layer", unit="cosine"),
    "alignment_gradient": _convergence(
        title="Gradient of the alignment",
        unit="cosine per layer",
        scale="signed",
        shows_embeddings=False,
    ),
    "alignment_falls": _convergence(
        title="Tokens that move away from their final vector",
        unit="share of tokens",
        scale="from_zero",
        shows_embeddings=False,
    ),
    "mutual_knn": _convergence(
        title="Neighbours shared with the last layer", unit="share above chance"
    ),
    "procrustes_last": _convergence(
        title="Procrustes distance to the last layer", unit="squared distance", scale="from_zero"
    ),
    "norm": _evolution(title="Norm", unit="length", scale="log_if_wide"),
    "step_length": _evolution(title="Step to the next layer", unit="length", scale="log_if_wide"),
    "step_cosine": _evolution(title="Cosine with the next layer", unit="cosine"),
    "linearity": _evolution(
        title="Linearity from this layer to the next", unit="share of variance", scale="from_zero"
    ),
    "linearity_step": _evolution(
        title="Linearity of what the next block adds", unit="share of variance", scale="from_zero"
    ),
    "cka_next": _evolution(title="Linear CKA with the next layer", unit="CKA"),
    "imbalance_next": _evolution(
        title="Information imbalance to the next layer",
        unit="imbalance (1: unrelated)",
        scale="from_zero",
    ),
    "imbalance_previous": _change(
        title="Information imbalance to the checkpoint before",
        unit="imbalance (1: unrelated)",
        scale="from_zero",
    ),
    "cka_previous": _change(title="Linear CKA with the checkpoint before", unit="CKA"),
    "mutual_knn_previous": _change(
        title="Neighbours shared with the checkpoint before", unit="share above chance"
    ),
    "procrustes_previous": _change(
        title="Procrustes distance to the checkpoint before",
        unit="squared distance",
        scale="from_zero",
    ),
    "weight_norm": _weights(
        title="Norm of the weights", unit="norm of the weights", scale="log_if_wide"
    ),
    "gradient_norm": _weights(
        title="Norm of the gradients", unit="norm of the gradients", scale="log_if_wide"
    ),
    "update_ratio": _weights(
        title="Update relative to the weights", unit="update / weights", scale="log", log_from=1e-09
    ),
    "weight_stable_rank": _weights(title="Stable rank of the weights", unit="directions"),
    "token_cosine": _tokens(title="Cosine with the own embedding", unit="cosine"),
    "token_rank": _tokens(
        title="Rank of the own embedding", unit="input embeddings closer", scale="log", log_from=1.0
    ),
    "token_top1_match": _tokens(
        title="Tokens closest to their own embedding", unit="share of tokens", scale="from_zero"
    ),
    "token_imbalance": _tokens(
        title="Information imbalance to the tokens",
        unit="imbalance (1: unrelated)",
        scale="from_zero",
        shows_embeddings=True,
    ),
    "token_cosine_attention": _tokens(
        title="Cosine with the own embedding, after attention", unit="cosine"
    ),
    "token_rank_attention": _tokens(
        title="Rank of the own embedding, after attention",
        unit="input embeddings closer",
        scale="log",
        log_from=1.0,
    ),
    "token_distance": _tokens(
        title="Distance to the own embedding", unit="distance", scale="log_if_wide"
    ),
    "token_rank_distance": _tokens(
        title="Rank of the own embedding by distance",
        unit="input embeddings closer",
        scale="log",
        log_from=1.0,
    ),
    "lens_kl": _tokens(
        title="Logit lens: KL from the final prediction", unit="nats", scale="from_zero"
    ),
    "lens_agreement": _tokens(
        title="Logit lens: agreement with the final prediction",
        unit="share of vectors",
        scale="from_zero",
    ),
    "topic_gap": _topics(title="Topic gap, cosine", unit="cosine", shows_embeddings=True),
    "topic_gap_dot": _topics(
        title="Topic gap, inner product", unit="inner product", shows_embeddings=True
    ),
    "attention_topic_gap": _topics(title="Topic gap of the attention", unit="attention weight"),
    "topic_same": _topics(
        title="Mean inner product, one topic",
        unit="inner product",
        panel="Mean inner product by topic",
        line="one topic",
    ),
    "attention_topic_same": _topics(
        title="Mean attention, one topic",
        unit="attention weight",
        panel="Mean attention by topic",
        line="one topic",
    ),
    "topic_different": _topics(
        title="Mean inner product, different topics",
        unit="inner product",
        panel="Mean inner product by topic",
        line="different topics",
    ),
    "attention_topic_different": _topics(
        title="Mean attention, different topics",
        unit="attention weight",
        panel="Mean attention by topic",
        line="different topics",
    ),
}
"""How each metric of this package is drawn, by its name."""

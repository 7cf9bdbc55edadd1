"""How things look: names, units and numbers in short, colours, and a style that ignores the user's matplotlibrc."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import matplotlib.style
import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex
from rich.console import Console

from repdyn.kernels import SCALES
from repdyn.metrics.names import base_name, settings_in_words

LABELS = {
    "anisotropy": ("Anisotropy", "share of variance along the first direction"),
    "two_nn": ("Intrinsic dimension (TwoNN)", "dimension"),
    **{f"gride_{k}": (f"Intrinsic dimension (Gride, neighbours {k} and {k // 2})", "dimension") for k in SCALES},
    "levina_bickel": ("Intrinsic dimension (Levina-Bickel)", "dimension"),
    "participation_ratio": ("Participation ratio", "directions"),
    "effective_rank": ("Effective rank", "directions"),
    "alpha_req": ("Decay of the spectrum (alpha-ReQ)", "exponent"),
    **{
        f"components_{percent}": (f"Principal directions for {percent} % of the variance", "directions")
        for percent in (50, 90, 95, 99)
    },
    "mean_cosine": ("Mean cosine of two tokens", "cosine"),
    "isoscore": ("IsoScore", "score (1: isotropic)"),
    "massive_activation_share": ("Massive activations", "share of the sum of squares"),
    "sink_rate": ("Attention heads with a sink", "share of heads and sequences"),
    "top_norm_variance_share": ("First direction due to the longest vectors", "share of variance along it"),
    "alignment": ("Alignment with the last layer", "cosine"),
    "alignment_gradient": ("Gradient of the alignment", "cosine per layer"),
    "norm": ("Norm", "length"),
    "step_length": ("Step to the next layer", "length"),
    "step_cosine": ("Cosine with the next layer", "cosine"),
    "linearity": ("Linearity from this layer to the next", "share of variance"),
    "linearity_step": ("Linearity of what the next block adds", "share of variance"),
    "cka_next": ("Linear CKA with the next layer", "CKA"),
    "cka_previous": ("Linear CKA with the checkpoint before", "CKA"),
    "token_cosine": ("Cosine with the own embedding", "cosine"),
    "token_rank": ("Rank of the own embedding", "input embeddings closer"),
    "token_top1_match": ("Tokens closest to their own embedding", "share of tokens"),
    "token_cosine_attention": ("Cosine with the own embedding, after attention", "cosine"),
    "token_rank_attention": ("Rank of the own embedding, after attention", "input embeddings closer"),
    "topic_gap": ("Topic gap, cosine", "cosine"),
    "topic_gap_dot": ("Topic gap, inner product", "inner product"),
    "attention_topic_gap": ("Topic gap of the attention", "attention weight"),
}
"""Title and axis label, with unit, of the metrics that have one better than their name."""

FAMILIES = {
    "geometry": "Geometry",
    "dimension": "Intrinsic dimension",
    "spectrum": "Spectrum",
    "similarity": "Similarity of vectors",
    "sinks": "Attention sinks",
    "convergence": "Convergence to the last layer",
    "evolution": "Steps from layer to layer",
    "change": "Change between checkpoints",
    "tokens": "Tokens against the vocabulary",
    "topics": "Topic structure",
}
"""Title of each family of metrics, in the order in which they are shown."""

SUBSET_LABELS = {
    "all": "all tokens",
    "no_sink": "without first positions and special tokens",
    "no_massive": "without vectors of massive norm",
}
SHORT_SUBSET_LABELS = {"all": "all tokens", "no_sink": "no sinks", "no_massive": "no massive norms"}

FROM_ZERO = frozenset(
    {"anisotropy", "isoscore", "linearity_step", "token_top1_match", "sink_rate", "top_norm_variance_share"}
)
"""Shares: their scale starts at 0, lest a uniform profile look like mountains. Not so ``linearity``, all of which lies
close to 1."""
LOG_VALUES = {"token_rank": 1.0, "token_rank_attention": 1.0, "massive_activation_share": 1e-6}
"""Metrics that span decades and may be 0: their scale is logarithmic from this value on, at the lowest."""
LOG_IF_WIDE = frozenset({"norm", "step_length"})
"""Lengths: their scale is logarithmic where the largest is more than :data:`WIDE` times the smallest."""
WIDE = 50.0
SIGNED = frozenset({"alignment_gradient", "topic_gap", "topic_gap_dot", "attention_topic_gap"})
"""Differences, of which the sign matters: a line at 0, and colours that change there."""

# Okabe and Ito's colours, told apart with any colour vision
SUBSET_COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00")
LOSS_COLOUR = "#D55E00"
ALERT_COLOUR = "#D7191C"
SEQUENTIAL = "viridis"
DIVERGING = "RdBu_r"
# of depth, or of members of a group that have an order; apart from the steps' colours
ORDERED = "plasma"
# Two families that stay apart with any colour vision, each from light to dark; grey for what is not known.
KIND_COLOURS = {True: "Blues", False: "Oranges", None: "Greys"}
KINDS = {True: "decoder", False: "encoder", None: "decoder or encoder not known"}

_BARS = "▁▂▃▄▅▆▇█"
_STYLE: list[Any] = [
    "default",
    {
        "font.size": 10,
        "axes.titlesize": 10,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "0.92",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.constrained_layout.use": True,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
        # element ids in an SVG are random unless salted
        "svg.hashsalt": "repdyn",
    },
]

P = ParamSpec("P")
T = TypeVar("T")


def styled(function: Callable[P, T]) -> Callable[P, T]:
    """Draw in this style and leave the global one as it was."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        with matplotlib.style.context(_STYLE):
            return function(*args, **kwargs)

    return wrapper


def shades(colour_map: str, number: int, low: float, high: float) -> list[str]:
    """So many colours of a map at equal distances, between two places of it in [0, 1]."""
    return [to_hex(colour) for colour in colormaps[colour_map](np.linspace(low, high, number))]


def metric_title(metric: str) -> str:
    """Return what a metric is called, with the settings that its name says.

    >>> metric_title("anisotropy"), metric_title("two_nn[discard=0.8]"), metric_title("my_metric")
    ('Anisotropy', 'Intrinsic dimension (TwoNN), discard 0.8', 'my_metric')
    """
    base, said = base_name(metric), settings_in_words(metric)
    title = LABELS.get(base, (base, ""))[0]
    return f"{title}, {said}" if said else title


def metric_unit(metric: str) -> str:
    """
    >>> metric_unit("two_nn"), metric_unit("two_nn[discard=0.8]"), metric_unit("my_metric")
    ('dimension', 'dimension', 'my_metric')
    """
    base = base_name(metric)
    return LABELS.get(base, ("", base))[1]


def subset_title(subset: str) -> str:
    """
    >>> subset_title("all"), subset_title("nouns")
    ('all tokens', 'nouns')
    """
    return SUBSET_LABELS.get(subset, subset)


def short_subset_title(subset: str) -> str:
    """
    >>> short_subset_title("no_sink"), short_subset_title("nouns")
    ('no sinks', 'nouns')
    """
    return SHORT_SUBSET_LABELS.get(subset, subset)


def of_stack(name: str, stack: str | None) -> str:
    """What to call one stack of blocks of a run.

    >>> of_stack("lab/t5", "encoder"), of_stack("lab/gpt", None)
    ('lab/t5 (encoder)', 'lab/gpt')
    """
    return name if stack is None else f"{name} ({stack})"


def short_count(count: float) -> str:
    """A number of parameters or tokens in a few characters.

    >>> [short_count(count) for count in (0, 512, 4096, 44_670_976, 999_999_999, 1.4e9, 3e11)]
    ['0', '512', '4.1k', '45M', '1B', '1.4B', '300B']
    """
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        # what would round to a thousand of the next smaller unit is one of this
        if count >= 0.9995 * size:
            scaled = count / size
            return f"{scaled:.0f}{letter}" if scaled >= 9.95 else f"{scaled:.1f}".removesuffix(".0") + letter
    return f"{count:.0f}"


def short_value(value: float) -> str:
    """Four characters where that is possible, and one more for a sign.

    >>> short_value(0.0532), short_value(12.34), short_value(1234.0), short_value(123456.0), short_value(math.nan)
    ('0.05', '12.3', '1234', '1e+05', ' nan')
    >>> short_value(-12.34)
    '-12.3'
    """
    if math.isnan(value):
        return " nan"
    size = abs(value)
    if size >= 9999.5:
        return f"{value:.0e}"
    return f"{value:4.{2 if size < 9.995 else 1 if size < 99.95 else 0}f}"


def sparkline(values: Sequence[float]) -> str:
    """The values as bars between their lowest and highest; a blank for NaN, the lowest bar throughout if all are equal.

    >>> sparkline([0.0, 0.5, math.nan, 1.0])
    '▁▅ █'
    """
    known = [value for value in values if not math.isnan(value)]
    low, extent = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    unit = extent / (len(_BARS) - 1) or 1.0
    return "".join(" " if math.isnan(value) else _BARS[int((value - low) / unit + 0.5)] for value in values)


def plain(text: str, console: Console) -> str:
    """The text as this terminal can print it: in ASCII where anything else would raise."""
    return text.replace("±", "+-").encode("ascii", "replace").decode() if console.options.ascii_only else text

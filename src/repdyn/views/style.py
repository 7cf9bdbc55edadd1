"""How the figures look: names and units of metrics, colours, and a style that ignores the user's matplotlibrc."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import matplotlib.style

LABELS = {
    "anisotropy": ("Anisotropy", "share of variance along the first direction"),
    "two_nn": ("Intrinsic dimension (TwoNN)", "dimension"),
}
"""Title and axis label, with unit, of the metrics that have one better than their name."""

SUBSET_LABELS = {"all": "all tokens", "no_sink": "without first positions and special tokens"}

FROM_ZERO = frozenset({"anisotropy"})
"""Shares: their scale starts at 0, lest a uniform profile look like mountains."""

# Okabe and Ito's colours, told apart with any colour vision
SUBSET_COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00")
LOSS_COLOUR = "#D55E00"
SEQUENTIAL = "viridis"

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


def metric_title(metric: str) -> str:
    """
    >>> metric_title("anisotropy"), metric_title("my_metric")
    ('Anisotropy', 'my_metric')
    """
    return LABELS.get(metric, (metric, ""))[0]


def metric_unit(metric: str) -> str:
    """
    >>> metric_unit("two_nn"), metric_unit("my_metric")
    ('dimension', 'my_metric')
    """
    return LABELS.get(metric, ("", metric))[1]


def subset_title(subset: str) -> str:
    """
    >>> subset_title("all"), subset_title("nouns")
    ('all tokens', 'nouns')
    """
    return SUBSET_LABELS.get(subset, subset)

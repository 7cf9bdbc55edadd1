"""How things look: names, units and numbers in short, colours, and a style that ignores the user's matplotlibrc."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import matplotlib.style
from rich.console import Console

from repdyn.kernels import SCALES

LABELS = {
    "anisotropy": ("Anisotropy", "share of variance along the first direction"),
    "two_nn": ("Intrinsic dimension (TwoNN)", "dimension"),
    **{f"gride_{k}": (f"Intrinsic dimension (Gride, neighbours {k} and {k // 2})", "dimension") for k in SCALES},
    "participation_ratio": ("Participation ratio", "directions"),
    "effective_rank": ("Effective rank", "directions"),
}
"""Title and axis label, with unit, of the metrics that have one better than their name."""

SUBSET_LABELS = {"all": "all tokens", "no_sink": "without first positions and special tokens"}

FROM_ZERO = frozenset({"anisotropy"})
"""Shares: their scale starts at 0, lest a uniform profile look like mountains."""

# Okabe and Ito's colours, told apart with any colour vision
SUBSET_COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00")
LOSS_COLOUR = "#D55E00"
SEQUENTIAL = "viridis"
# Two families that stay apart with any colour vision, each from light to dark; grey for what is not known.
KIND_COLOURS = {True: "Blues", False: "Oranges", None: "Greys"}
KINDS = {True: "decoder", False: "encoder", None: "decoder or encoder not known"}

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
    """Four characters where that is possible.

    >>> short_value(0.0532), short_value(12.34), short_value(1234.0), short_value(123456.0), short_value(math.nan)
    ('0.05', '12.3', '1234', '1e+05', ' nan')
    """
    if math.isnan(value):
        return " nan"
    if value >= 9999.5:
        return f"{value:.0e}"
    return f"{value:4.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def plain(text: str, console: Console) -> str:
    """The text as this terminal can print it: in ASCII where anything else would raise."""
    return text.replace("±", "+-").encode("ascii", "replace").decode() if console.options.ascii_only else text

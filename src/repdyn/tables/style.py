"""How things look: names, units and numbers in short, colours, and a style that ignores the user's matplotlibrc."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from rich.console import Console

from repdyn.metrics import FAMILIES, OWN_FAMILY, metric_info
from repdyn.metrics.names import base_name, settings_in_words
from repdyn.probe.design import view_of
from repdyn.utils.printing import in_one_line

_SUBSETS = {
    "all": ("all tokens", "all tokens"),
    "no_sink": ("without first positions and special tokens", "no sinks"),
    "no_massive": ("without vectors of massive norm", "no massive norms"),
    "last_token": ("last tokens of windows", "last tokens"),
    "window_mean": ("means over windows", "window means"),
    "differences": ("differences of neighbouring tokens", "differences"),
}
"""Name of each token subset in titles, and in narrow columns."""

# Okabe and Ito's colours, told apart with any colour vision
SUBSET_COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00")
LOSS_COLOUR = "#D55E00"
ALERT_COLOUR = "#D7191C"
SEQUENTIAL = "viridis"
DIVERGING = "RdBu_r"
# of depth, or of members of a group that have an order; apart from the steps' colours
ORDERED = "plasma"
# Of the classes of decoders and of encoders, each from light to dark; grey for what is not known.
KIND_COLOURS = {True: ("Blues", "Greens", "Purples"), False: ("Oranges", "Reds"), None: ("Greys",)}
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
        from matplotlib import style  # not for the tables in a terminal

        with style.context(_STYLE):
            return function(*args, **kwargs)

    return wrapper


def shades(colour_map: str, number: int, low: float, high: float) -> list[str]:
    """Return a number of colours of a map at equal distances, between two places of it in [0, 1]."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colour) for colour in colormaps[colour_map](np.linspace(low, high, number))]


def family_title(family: str) -> str:
    """Return what a family of metrics is called.

    >>> family_title("spectrum"), family_title("own"), family_title("fractals")
    ('Spectrum', 'Your own', 'fractals')
    """
    return {**FAMILIES, OWN_FAMILY: "Your own"}.get(family, family)


def metric_title(metric: str) -> str:
    """Return what a metric is called, with the settings in its name.

    >>> metric_title("anisotropy"), metric_title("two_nn[discard=0.8]"), metric_title("my_metric")
    ('Anisotropy', 'Intrinsic dimension (TwoNN), discard 0.8', 'my_metric')
    """
    title, settings = metric_info(metric).title or base_name(metric), settings_in_words(metric)
    return f"{title}, {settings}" if settings else title


def metric_unit(metric: str) -> str:
    """Return the label of an axis of a metric's values.

    >>> metric_unit("two_nn"), metric_unit("two_nn[discard=0.8]"), metric_unit("my_metric")
    ('dimension', 'dimension', 'my_metric')
    """
    return metric_info(metric).unit or base_name(metric)


def subset_title(subset: str) -> str:
    """Return the name of a token subset in titles and legends.

    >>> subset_title("all"), subset_title("nouns"), subset_title("last_token.normed")
    ('all tokens', 'nouns', 'last tokens of windows after the final norm')
    """
    view = view_of(subset)
    return _SUBSETS.get(view.vectors, (view.vectors, ""))[0] + view.normed * " after the final norm"


def short_subset_title(subset: str) -> str:
    """Return the short name of a token subset, for narrow columns.

    >>> short_subset_title("no_sink"), short_subset_title("nouns")
    ('no sinks', 'nouns')
    """
    view = view_of(subset)
    return _SUBSETS.get(view.vectors, ("", view.vectors))[1] + view.normed * ", normed"


def of_stack(name: str, stack: str | None) -> str:
    """Return what to call one stack of blocks of a run.

    >>> of_stack("lab/t5", "encoder"), of_stack("lab/gpt", None)
    ('lab/t5 (encoder)', 'lab/gpt')
    """
    return name if stack is None else f"{name} ({stack})"


def plain(text: str, console: Console) -> str:
    """Return the text of one line as this terminal can print it: in ASCII where anything else would raise."""
    text = in_one_line(text)
    return text.replace("±", "+-").encode("ascii", "replace").decode() if console.options.ascii_only else text

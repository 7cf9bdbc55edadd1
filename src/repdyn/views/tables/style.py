"""How things look: names, units and numbers in short, families of metrics, colours, and a style for
figures.

Imports only what loads quickly: commands show names and numbers before they read a store.
"""

from collections.abc import Callable, Collection, Iterable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

from repdyn.metrics.names import base_name, settings_in_words
from repdyn.probe.design import DISTINCT, view_of
from repdyn.views.display import FAMILIES, OWN_FAMILY, display_of

_SHORT_TITLES = {
    "all": "all tokens",
    "no_sink": "no sinks",
    "no_massive": "no massive norms",
    "gaussian": "Gaussian control",
    "distinct_inputs": "distinct inputs",
    "types": "distinct tokens",
    "last_token": "last tokens",
    "window_mean": "window means",
    "differences": "differences",
}
"""Name of each subset in narrow columns."""

# Okabe and Ito's colours, told apart with any colour vision
SUBSET_COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00")
# of all vectors, and of those without repeats beside them, in every chart
ALL_COLOUR, DISTINCT_COLOUR = SUBSET_COLOURS[:2]
CLOUD_COLOURS = {"all": ALL_COLOUR} | dict.fromkeys(DISTINCT, DISTINCT_COLOUR)
LOSS_COLOUR = "#D55E00"
ALERT_COLOUR = "#D7191C"
SEQUENTIAL = "viridis"
DIVERGING = "RdBu_r"
# of steps, whose first ones differ in hue too; and of layers, or of members of a group that have an
# order
STEPS, ORDERED = "plasma", "viridis"
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
        # a line that a dashed one covers shows in the gaps
        "lines.dashed_pattern": (3.5, 3.0),
        # element ids in an SVG are random unless salted
        "svg.hashsalt": "repdyn",
    },
]

P = ParamSpec("P")
T = TypeVar("T")


def styled(function: Callable[P, T]) -> Callable[P, T]:
    """Draw in this style, whatever the user's matplotlibrc, and leave the global one as it was."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        from matplotlib import style  # not for the tables in a terminal

        with style.context(_STYLE):
            return function(*args, **kwargs)

    return wrapper


@lru_cache(maxsize=256)
def shades(colour_map: str, number: int, low: float, high: float) -> tuple[str, ...]:
    """Return a number of colours of a map at equal distances, between two places of it in
    [0, 1].
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    places = [low + (high - low) * place / max(1, number - 1) for place in range(number)]
    return tuple(to_hex(colormaps[colour_map](place)) for place in places)


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
    title = display_of(metric).title or base_name(metric)
    settings = settings_in_words(metric)
    return f"{title}, {settings}" if settings else title


def metric_unit(metric: str) -> str:
    """Return the label of an axis of a metric's values.

    >>> metric_unit("two_nn"), metric_unit("two_nn[discard=0.8]"), metric_unit("my_metric")
    ('dimension', 'dimension', 'my_metric')
    """
    return display_of(metric).unit or base_name(metric)


def subset_title(subset: str, of: str = "tokens") -> str:
    """Return the name of a subset in titles and legends, ``of`` what :attr:`MeasuredRun.vectors_of`
    says.

    >>> subset_title("all"), subset_title("nouns"), subset_title("last_token.normed")
    ('all tokens', 'nouns', 'last tokens of windows after the final norm')
    >>> subset_title("all", "positions")
    'all positions'
    """
    return view_of(subset).title.replace("tokens", of)


def short_subset_title(subset: str, of: str = "tokens") -> str:
    """Return the short name of a subset, for narrow columns, as :func:`subset_title`.

    >>> short_subset_title("no_sink"), short_subset_title("nouns")
    ('no sinks', 'nouns')
    """
    view = view_of(subset)
    title = _SHORT_TITLES.get(view.vectors, view.vectors)
    if view.normed:
        title += ", normed"
    return title.replace("tokens", of)


def title_among(subset: str, subsets: Collection[str], title: str) -> str:
    """Return the title of a subset in a chart of several: all tokens are called all vectors where
    one vector of each distinct token or input stands beside them.

    >>> title_among("all", ["all", "types"], "all tokens")
    'all vectors'
    >>> title_among("all", ["all", "no_sink"], "all tokens")
    'all tokens'
    """
    has_distinct = not set(DISTINCT).isdisjoint(subsets)
    return "all vectors" if subset == "all" and has_distinct else title


def of_stack(name: str, stack: str | None) -> str:
    """Return what to call one stack of blocks of a run.

    >>> of_stack("lab/t5", "encoder"), of_stack("lab/gpt", None)
    ('lab/t5 (encoder)', 'lab/gpt')
    """
    return name if stack is None else f"{name} ({stack})"


BELOW_ONE = (
    "the vectors lie in tight pairs or clusters, as in a small or barely trained model, and the "
    "estimate does not describe a dimension"
)


def by_family(metrics: Iterable[str]) -> dict[str, list[str]]:
    """Return metrics by the title of their family, in the order in which families are shown."""
    families: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for metric in metrics:
        families.setdefault(display_of(metric).family, []).append(metric)
    return {family_title(family): members for family, members in families.items() if members}


def has_own_figures(metric: str) -> bool:
    """Return whether a metric has figures of its own, as those of geometry and the user's have,
    instead of overviews.

    >>> has_own_figures("anisotropy"), has_own_figures("norm"), has_own_figures("my_metric")
    (True, False, True)
    """
    family = display_of(metric).family
    return family == "geometry" or family not in FAMILIES


def overview_families(metrics: Iterable[str]) -> list[str]:
    """Return the families whose metrics are drawn in overviews, in the order in which they are
    shown.
    """
    there = {display_of(metric).family for metric in metrics if not has_own_figures(metric)}
    return [family for family in FAMILIES if family in there]

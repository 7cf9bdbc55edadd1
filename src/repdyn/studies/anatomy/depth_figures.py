"""Pictures of two sentences on their way through the layers: lengths, steps, turns, and paths in one plane."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from repdyn.figures.drawing import entitle
from repdyn.studies.anatomy.depth import (
    TokenTrajectory,
    cross_sentence_cosine,
    lengths,
    matched,
    plane,
    step_cosines,
    steps,
)
from repdyn.tables.style import styled

_GREY = "0.72"
_MAX_NAMED = 7
_PALETTE = "tab10"
_LEADER = {"arrowstyle": "-", "linewidth": 0.5, "alpha": 0.6}


class _Label(NamedTuple):
    """A name at the end of a path."""

    end: np.ndarray
    before: np.ndarray
    text: str
    colour: str


@styled
def depth_figure(name: str, one: TokenTrajectory, other: TokenTrajectory) -> Figure:
    """Length of each token's state, its step and cosine to the next layer, and how alike the sentences are.

    One line for each token of the first sentence, those named that stand out or are changed; the black line is the mean
    over tokens. The last panel has one line for each pair of matched tokens of the two sentences.

    Args:
        name: of the model.
        one, other: the same stack of layers.
    """
    figure = Figure(figsize=(11, 7.4))
    panels = figure.subplots(2, 2).ravel()
    last = len(one.layers) - 1
    quantities = (lengths(one.states), steps(one.states), step_cosines(one.states))
    named = _named(quantities, one, other)
    titles = ("length of the state |h|", "length of the step to the next layer", "cosine with the next layer")
    for panel, values, title in zip(panels, quantities, titles, strict=False):
        between = len(values) == last
        _tokens(panel, np.arange(len(values)) + (0.5 if between else 0.0), values, named)
        panel.set_title(title)
        panel.set_xlabel("between layers" if between else "layer")
    panels[2].set_ylim(min(0.0, float(np.nanmin(quantities[2]))), 1.02)
    _apart(panels[3], one, other, named)
    handles = [Line2D([], [], color="black", linewidth=2.4), *(Line2D([], [], color=c) for c in named.values())]
    figure.legend(handles, ["mean", *_names(one, other, named)], loc="outside lower center", ncols=len(handles))
    entitle(figure, f"{name}: tokens through the layers", _sentences(one, other))
    return figure


def _named(quantities: Iterable[np.ndarray], one: TokenTrajectory, other: TokenTrajectory) -> dict[int, str]:
    """Colours of the tokens that the other sentence lacks, and of those farthest from the rest, by their places."""
    n_tokens = len(one.tokens)
    strangeness = np.zeros(n_tokens)
    for values in quantities:
        middle = np.nanmedian(values, axis=1, keepdims=True)
        spread = np.nanmedian(np.abs(values - middle), axis=1, keepdims=True)
        strangeness += np.nan_to_num(np.abs(values - middle) / np.maximum(spread, 1e-12)).mean(0)
    changed = sorted(set(range(n_tokens)) - {a for a, _, equal in matched(one.tokens, other.tokens) if equal})
    others = [int(place) for place in np.argsort(-strangeness) if place not in changed]
    return {place: _colour(number) for number, place in enumerate([*changed, *others][:_MAX_NAMED])}


def _names(one: TokenTrajectory, other: TokenTrajectory, named: Iterable[int]) -> list[str]:
    partner = {a: other.tokens[b] for a, b, _ in matched(one.tokens, other.tokens)}
    both = {place: [one.tokens[place], partner.get(place, one.tokens[place])] for place in named}
    return [" / ".join(dict.fromkeys(map(_shown, tokens))) for tokens in both.values()]


def _tokens(axes: Axes, x: np.ndarray, values: np.ndarray, named: Mapping[int, str]) -> None:
    for place in sorted(range(values.shape[1]), key=lambda place: place in named):
        width = 1.5 if place in named else 0.9
        axes.plot(x, values[:, place], color=named.get(place, _GREY), linewidth=width)
    axes.plot(x, np.nanmean(values, axis=1), color="black", linewidth=2.4)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


def _apart(axes: Axes, one: TokenTrajectory, other: TokenTrajectory, named: Mapping[int, str]) -> None:
    values = cross_sentence_cosine(one, other)
    for number, (place, *_) in enumerate(matched(one.tokens, other.tokens)):
        width = 1.5 if place in named else 0.9
        axes.plot(values[:, number], color=named.get(place, _GREY), linewidth=width)
    axes.set_title("cosine of the two sentences' tokens at the same place")
    axes.set_xlabel("layer")
    axes.set_ylim(top=1.02)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


@styled
def paths_figure(name: str, one: TokenTrajectory, other: TokenTrajectory) -> Figure:
    """The tokens' paths from layer 0 to the last in the plane of most variance of both sentences' states.

    Matched tokens have one colour; the first sentence is solid, the second dashed. An arrow ends at the last layer,
    where the token is named; the small dots are the layers between.

    Args:
        name: of the model.
        one, other: the same stack of layers.
    """
    found = plane(one.states, other.states)
    figure = Figure(figsize=(10, 7.6))
    axes = figure.subplots()
    pairs = matched(one.tokens, other.tokens)
    partner = {b: a for a, b, _ in pairs}
    changed = {a for a, _, equal in pairs if not equal} | (set(range(len(one.tokens))) - {a for a, *_ in pairs})
    labels = []
    for journey, path, is_first in ((one, found.paths[0], True), (other, found.paths[1], False)):
        for place, token in enumerate(journey.tokens):
            number = place if is_first else partner.get(place, len(one.tokens) + place)
            points = path[:, place]
            if np.isnan(points).any():
                continue
            _arrow(axes, points, _colour(number), solid=is_first)
            if is_first or place not in partner or partner[place] in changed:
                labels.append(_Label(points[-1], points[-2], _shown(token), _colour(number)))
    axes.set_xlabel(f"first component ({found.shares[0]:.0%} of the variance)")
    axes.set_ylabel(f"second component ({found.shares[1]:.0%})")
    axes.margins(0.08)
    _label(figure, axes, labels)
    left_out = sorted({_shown(j.tokens[p]) for j, gone in zip((one, other), found.left_out, strict=True) for p in gone})
    note = f"; left out for their length: {', '.join(left_out)}" if left_out else ""
    caption = f"{_sentences(one, other)}\nsolid: the first, dashed: the second; hollow: layer 0, arrow: layer "
    entitle(figure, f"{name}: paths of the tokens", f"{caption}{one.layers[-1].index}{note}")
    return figure


def _arrow(axes: Axes, points: np.ndarray, colour: str, *, solid: bool) -> None:
    style = "-" if solid else (0, (4, 2))
    axes.plot(*points[:-1].T, color=colour, linewidth=1.1, linestyle=style, alpha=0.85)
    axes.plot(*points[1:-1].T, ".", color=colour, markersize=4)
    axes.plot(*points[0], "o", color=colour, markerfacecolor="white", markersize=5)
    arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.1, "linestyle": style, "shrinkA": 0, "shrinkB": 0}
    axes.plot(*points[-1], alpha=0)  # an arrow alone would not be given room
    axes.annotate("", points[-1], points[-2], arrowprops=arrow)


def _label(figure: Figure, axes: Axes, labels: Sequence[_Label]) -> None:
    """Names ahead of the arrows, pushed apart up and down where they would cover each other."""
    figure.draw_without_rendering()
    boxes: list[tuple[float, float, float, float]] = []
    for label in sorted(labels, key=lambda label: -label.end[1]):
        ahead = 1 if label.end[0] >= label.before[0] else -1
        x, y = axes.transData.transform(label.end) * 72 / figure.dpi
        width, height = 6.2 * len(label.text) + 4, 11.0
        left = x + 6 if ahead > 0 else x - 6 - width
        shift = next(s for s in _shifts(height) if not any(_covers((left, y + s, width, height), b) for b in boxes))
        boxes.append((left, y + shift, width, height))
        axes.annotate(
            label.text,
            (float(label.end[0]), float(label.end[1])),
            (6 * ahead, shift),
            textcoords="offset points",
            ha="left" if ahead > 0 else "right",
            va="center",
            color=label.colour,
            fontsize=9.5,
            arrowprops=_LEADER | {"color": label.colour} if abs(shift) > height else None,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )


def _shifts(height: float) -> Iterable[float]:
    yield 0.0
    number = 1
    while True:
        yield -number * height / 2
        yield number * height / 2
        number += 1


def _covers(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    (x, y, width, height), (u, v, wide, high) = one, other
    return x < u + wide and u < x + width and y < v + high and v < y + height


def _colour(number: int) -> str:
    return to_hex(colormaps[_PALETTE](number % 10))


def _shown(token: str) -> str:
    """A token as a reader knows it.

    >>> _shown("\u0120bank"), _shown(".")
    ('bank', '"."')
    """
    word = _plain(token)
    return word if any(map(str.isalnum, word)) else f'"{word}"'


def _plain(token: str) -> str:
    """Without the marks of a space before it; a dollar would begin a formula."""
    return (token.lstrip("\u0120\u2581") or "_").replace("$", r"\$")


def _sentences(one: TokenTrajectory, other: TokenTrajectory) -> str:
    return "\n".join(" ".join(map(_plain, journey.tokens)) for journey in (one, other))

"""Draw two sentences through the layers: norms, steps, angles, and paths in one plane."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from repdyn.figures.drawing import entitle
from repdyn.studies.anatomy.trajectories import (
    TokenTrajectory,
    cross_sentence_cosine,
    fit_plane,
    match_tokens,
    norms,
    step_cosines,
    step_norms,
)
from repdyn.studies.output import layer_axis
from repdyn.tables.style import styled

_GREY = "0.72"
_MAX_NAMED = 7


class _Label(NamedTuple):
    """A name at the end of a path."""

    end: np.ndarray
    before: np.ndarray
    text: str
    colour: Any


@styled
def depth_figure(name: str, one: TokenTrajectory, other: TokenTrajectory) -> Figure:
    """Draw the norm of each token's state, its step and cosine to the next layer, and how alike the sentences are.

    There is a line for each token of the first sentence; those that stand out or differ are named, and the black line
    is the mean over tokens. The last panel has a line for each pair of matched tokens of the two sentences.

    Args:
        name: of the model.
        one, other: the same stack of layers.
    """
    figure = Figure(figsize=(11, 7.4))
    panels = figure.subplots(2, 2).ravel()
    quantities = {
        "length of the state |h|": norms(one.states),
        "length of the step to the next layer": step_norms(one.states),
        "cosine with the next layer": step_cosines(one.states),
    }
    named = _named_tokens(quantities.values(), one, other)
    for panel, (title, values) in zip(panels, quantities.items(), strict=False):
        between = len(values) < len(one.layers)
        x = np.arange(len(values)) + (0.5 if between else 0.0)
        _draw_tokens(panel, x, values, range(len(one.tokens)), named)
        panel.plot(x, np.nanmean(values, axis=1), color="black", linewidth=2.4)
        panel.set_title(title)
        layer_axis(panel, label="between layers" if between else "layer")
    panels[2].set_ylim(min(0.0, float(np.nanmin(quantities["cosine with the next layer"]))), 1.02)
    pairs = match_tokens(one.tokens, other.tokens)
    _draw_tokens(
        panels[3], np.arange(len(one.layers)), cross_sentence_cosine(one, other), [a for a, *_ in pairs], named
    )
    panels[3].set_title("cosine of the two sentences' tokens at the same place")
    panels[3].set_ylim(top=1.02)
    layer_axis(panels[3])
    partner = {a: other.tokens[b] for a, b, _ in pairs}
    both = ([one.tokens[place], partner.get(place, one.tokens[place])] for place in named)
    names = [" / ".join(dict.fromkeys(map(_display, tokens))) for tokens in both]
    handles = [Line2D([], [], color="black", linewidth=2.4), *(Line2D([], [], color=c) for c in named.values())]
    figure.legend(handles, ["mean", *names], loc="outside lower center", ncols=len(handles))
    entitle(figure, f"{name}: tokens through the layers", _sentences(one, other))
    return figure


def _named_tokens(quantities: Iterable[np.ndarray], one: TokenTrajectory, other: TokenTrajectory) -> dict[int, Any]:
    """Return the colours of the tokens that the other sentence lacks and of the most unusual ones, by their places."""
    n_tokens = len(one.tokens)
    strangeness = np.zeros(n_tokens)
    for values in quantities:
        middle = np.nanmedian(values, axis=1, keepdims=True)
        spread = np.nanmedian(np.abs(values - middle), axis=1, keepdims=True)
        strangeness += np.nan_to_num(np.abs(values - middle) / np.maximum(spread, 1e-12)).mean(0)
    changed = sorted(set(range(n_tokens)) - {a for a, _, equal in match_tokens(one.tokens, other.tokens) if equal})
    others = [int(place) for place in np.argsort(-strangeness) if place not in changed]
    return {place: _colour(number) for number, place in enumerate([*changed, *others][:_MAX_NAMED])}


def _draw_tokens(
    axes: Axes, x: np.ndarray, values: np.ndarray, places: Sequence[int], named: Mapping[int, Any]
) -> None:
    for place, of_token in zip(places, values.T, strict=True):
        axes.plot(x, of_token, color=named.get(place, _GREY), linewidth=1.5 if place in named else 0.9)


@styled
def paths_figure(name: str, one: TokenTrajectory, other: TokenTrajectory) -> Figure:
    """Draw the tokens' paths from layer 0 to the last in the plane of most variance of both sentences' states.

    Matched tokens have one colour; the first sentence is solid, the second dashed. An arrow ends at the last layer,
    where the token is named; the small dots are the layers between.

    Args:
        name: of the model.
        one, other: the same stack of layers.
    """
    plane = fit_plane(one.states, other.states)
    figure = Figure(figsize=(10, 7.6))
    axes = figure.subplots()
    pairs = match_tokens(one.tokens, other.tokens)
    partner = {b: a for a, b, _ in pairs}
    same = {a for a, _, equal in pairs if equal}
    labels = []
    for trajectory, path, is_first in zip((one, other), plane.paths, (True, False), strict=True):
        for place, token in enumerate(trajectory.tokens):
            points, number = path[:, place], place if is_first else partner.get(place, len(one.tokens) + place)
            if np.isnan(points).any():
                continue
            _draw_path(axes, points, _colour(number), "-" if is_first else (0, (4, 2)))
            if is_first or partner.get(place) not in same:
                labels.append(_Label(points[-1], points[-2], _display(token), _colour(number)))
    axes.set_xlabel(f"first component ({plane.shares[0]:.0%} of the variance)")
    axes.set_ylabel(f"second component ({plane.shares[1]:.0%})")
    axes.margins(0.08)
    _place_labels(figure, axes, labels)
    left_out = {
        _display(trajectory.tokens[place])
        for trajectory, places in zip((one, other), plane.left_out, strict=True)
        for place in places
    }
    note = f"; left out for their norm: {', '.join(sorted(left_out))}" if left_out else ""
    caption = f"{_sentences(one, other)}\nsolid: the first, dashed: the second; hollow: layer 0, arrow: layer "
    entitle(figure, f"{name}: paths of the tokens", f"{caption}{one.layers[-1].index}{note}")
    return figure


def _draw_path(axes: Axes, points: np.ndarray, colour: Any, style: Any) -> None:
    axes.plot(*points[:-1].T, color=colour, linewidth=1.1, linestyle=style, alpha=0.85)
    axes.plot(*points[1:-1].T, ".", color=colour, markersize=4)
    axes.plot(*points[0], "o", color=colour, markerfacecolor="white", markersize=5)
    arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.1, "linestyle": style, "shrinkA": 0, "shrinkB": 0}
    axes.plot(*points[-1], alpha=0)  # annotations do not widen the axes
    axes.annotate("", points[-1], points[-2], arrowprops=arrow)


def _place_labels(figure: Figure, axes: Axes, labels: Sequence[_Label]) -> None:
    """Write names ahead of the arrows, moved up or down where they would overlap."""
    figure.draw_without_rendering()
    boxes: list[Bbox] = []
    height = 11.0
    for label in sorted(labels, key=lambda label: -label.end[1]):
        ahead = 1 if label.end[0] >= label.before[0] else -1
        x, y = axes.transData.transform(label.end) * 72 / figure.dpi
        width = 6.2 * len(label.text) + 4
        left = x + 6 if ahead > 0 else x - 6 - width
        tried = ((shift, Bbox.from_bounds(left, y + shift, width, height)) for shift in _shifts(height))
        shift, box = next((shift, box) for shift, box in tried if not any(map(box.overlaps, boxes)))
        boxes.append(box)
        leader = {"arrowstyle": "-", "linewidth": 0.5, "alpha": 0.6, "color": label.colour}
        axes.annotate(
            label.text,
            (float(label.end[0]), float(label.end[1])),
            (6 * ahead, shift),
            textcoords="offset points",
            ha="left" if ahead > 0 else "right",
            va="center",
            color=label.colour,
            fontsize=9.5,
            arrowprops=leader if abs(shift) > height else None,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )


def _shifts(height: float) -> Iterator[float]:
    """Yield 0, then ever larger shifts down and up."""
    yield 0.0
    for number in count(1):
        yield from (-number * height / 2, number * height / 2)


def _colour(number: int) -> Any:
    return colormaps["tab10"](number % 10)


def _display(token: str) -> str:
    """Return a token without the mark of a space before it, punctuation in quotes.

    >>> _display("\u0120bank"), _display(".")
    ('bank', '"."')
    """
    word = _plain(token)
    return word if any(map(str.isalnum, word)) else f'"{word}"'


def _plain(token: str) -> str:
    # a dollar would begin a formula
    return (token.lstrip("\u0120\u2581") or "_").replace("$", r"\$")


def _sentences(one: TokenTrajectory, other: TokenTrajectory) -> str:
    return "\n".join(" ".join(map(_plain, trajectory.tokens)) for trajectory in (one, other))

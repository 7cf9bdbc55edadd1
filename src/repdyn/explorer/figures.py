"""Figures of the explorer: a token across the layers, the paths of two sentences in a plane, and attention weights.

Text and grid take their colours from the page (see ``page/page.css``), so that they are read in light
and dark alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import product
from typing import Any, Literal, TypeAlias

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from repdyn.explorer.session import LayerHeads, SentencePaths, TokenStates
from repdyn.studies.paths import match_tokens
from repdyn.studies.study import select
from repdyn.studies.token_measurements import Measure, State, measure_of

Quantity: TypeAlias = Measure | Literal["rank"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's colours, distinct with any colour vision, without black and yellow: one of the two would be invisible
on a dark or a light page."""
STATES: dict[State, str] = {"block": "after the block", "attention": "after the attention"}
_TITLES: dict[Quantity, str] = {
    "cosine": "cosine to the token's own input embedding",
    "distance": "distance to the token's own input embedding",
    "rank": "rank: closer rows of the vocabulary",
}
_LOOKS: dict[State, tuple[str, int, str]] = {"block": ("solid", 7, "circle"), "attention": ("dot", 5, "diamond-open")}
"""Dash of the line, size and symbol of its markers."""
_GREY = "#767676"
_ROWS = {1: 560, 2: 430}
"""Height of a row of planes, by their number in it."""
_MAX_NAMED = 16
_AROUND = {"middle right": (1, 0), "middle left": (-1, 0), "top center": (0, 1), "bottom center": (0, -1)}
"""Directions in which a label lies from the end of its path."""
_MAP_HEIGHT, _TOKEN_HEIGHT, _MAP_MARGINS = 420, 14, 160
"""Least height of a map, height of a token in it, and height of the labels around it."""
_SENDING = ["sendChartToCloud", "sendDataToCloud"]
"""Buttons that upload a figure; which of them there is depends on the version of plotly.js that gradio brings."""


def across_layers(tokens: Sequence[TokenStates], quantity: Quantity) -> go.Figure:
    """Draw one colour per checkpoint, solid after the block, dotted after the attention.

    A state after the attention stands half a layer before that after its block, where it is on the way. Ranks have a
    logarithmic scale, of rank + 1.
    """
    figure = go.Figure()
    for (number, one), state in product(enumerate(tokens), STATES):
        lines = select(one.table, state=state)
        if lines.empty:
            continue
        (dash, size, symbol), measure = _LOOKS[state], measure_of(lines)
        values = lines["rank"] + 1 if quantity == "rank" else lines[quantity]
        texts = [
            f"<b>{_text(one.token)}</b>, {STATES[state]} {layer}<br>{measure} {value:.4f}, rank {rank:,}"
            for layer, value, rank in zip(lines["layer"], lines[measure], lines["rank"], strict=True)
        ]
        figure.add_scatter(
            x=(lines["layer"] - (0.5 if state == "attention" else 0.0)).tolist(),
            y=values.tolist(),
            name=_text(f"{one.name}, {STATES[state]}"),
            mode="lines+markers",
            line={"color": COLOURS[number % len(COLOURS)], "width": 2, "dash": dash},
            marker={"size": size, "symbol": symbol},
            hovertext=texts,
            hoverinfo="text",
        )
    _arrange(figure, 420)
    deepest = max((one.table["layer"].to_numpy().max() for one in tokens), default=0)
    figure.update_xaxes(title_text="layer (0: what enters the first block)", dtick=max(1, round(deepest / 16)))
    figure.update_yaxes(title_text=_TITLES[quantity])
    if quantity == "rank":
        largest = max((one.table["rank"].to_numpy().max() for one in tokens), default=0)
        marks = [0, *(step * 10**power for power in range(7) for step in (1, 3))]
        figure.update_yaxes(
            type="log",
            tickvals=[mark + 1 for mark in marks],
            ticktext=[f"{mark:,}" for mark in marks],
            range=[-0.15, np.log10(max(largest, 9) + 1) + 0.08],
        )
        if tokens and largest == 0:
            said = "rank 0 at every layer: no row is closer than the token's own"
            figure.add_annotation(text=said, xref="paper", yref="paper", x=0.5, y=0.5, showarrow=False)
    return figure


def paths(sentences: Sequence[SentencePaths]) -> go.Figure:
    """Draw the paths of two sentences' tokens, a plane for each checkpoint: the first solid, the second dotted.

    The chosen token and those that differ have colours, all others are grey; the open circle is layer 0, the arrowhead
    the last layer.
    """
    n_columns = min(max(_ROWS), max(1, len(sentences)))
    n_rows = -(-max(1, len(sentences)) // n_columns)
    titles = [_text(one.name) for one in sentences]
    figure = make_subplots(n_rows, n_columns, subplot_titles=titles, vertical_spacing=0.18 / n_rows)
    for number, one in enumerate(sentences):
        row, column = number // n_columns + 1, number % n_columns + 1
        # emphasised paths lie above the others
        traces = [trace for _, trace in sorted(_traces(one), key=lambda drawn: drawn[0])]
        _spread_labels([trace for trace in reversed(traces) if trace.text and trace.text[-1]])
        for trace in traces:
            figure.add_trace(trace, row=row, col=column)
        across, up = one.plane.shares
        figure.update_xaxes(title_text=f"first component ({across:.0%} of the variance)", row=row, col=column)
        figure.update_yaxes(title_text=f"second component ({up:.0%})", row=row, col=column)
    _arrange(figure, n_rows * _ROWS[n_columns] + 60)
    figure.update_layout(showlegend=False)
    return figure


def _traces(one: SentencePaths) -> Iterator[tuple[bool, go.Scatter]]:
    """Yield the traces of both sentences' tokens, and whether they are emphasised; common tokens are named once."""
    pairs = match_tokens(one.one.tokens, one.other.tokens)
    partner, same = {b: a for a, b, _ in pairs}, {a for a, _, equal in pairs if equal}
    differing = len(one.one.tokens) + len(one.other.tokens) - 2 * len(same)
    for trajectory, found, is_first in ((one.one, one.plane.paths[0], True), (one.other, one.plane.paths[1], False)):
        for place, token in enumerate(trajectory.tokens):
            points, at = found[:, place], place if is_first else partner.get(place)
            if np.isnan(points).any():
                continue
            chosen = at is not None and at == one.place
            emphasised = chosen or (at not in same and differing <= _MAX_NAMED)
            named = (is_first or at not in same) and (emphasised or len(trajectory.tokens) <= _MAX_NAMED)
            colour = COLOURS[0] if chosen else _GREY if at in same else COLOURS[1]
            title = f"<b>{_text(token)}</b>, {'first' if is_first else 'second'} sentence, layer "
            common = {
                "opacity": 1.0 if emphasised else 0.75,
                "hovertext": [f"{title}{layer}" for layer in trajectory.layers],
                "hoverinfo": "text",
            }
            n_between = max(0, len(points) - 2)
            yield (
                emphasised,
                go.Scatter(
                    x=points[:, 0].tolist(),
                    y=points[:, 1].tolist(),
                    mode="lines+markers+text",
                    line={"color": colour, "width": 2.5 if emphasised else 1.2, "dash": "solid" if is_first else "dot"},
                    marker={
                        "size": [0, *[4] * n_between, 11],
                        "symbol": ["circle", *["circle"] * n_between, "arrow"],
                        "angleref": "previous",
                        "line": {"width": 0},
                    },
                    text=[*[""] * (len(points) - 1), _text(token) if named else ""],
                    textposition=_beyond(points),
                    textfont={"color": colour, "size": 14 if emphasised else 11},
                    **common,
                ),
            )
            start = {"color": colour, "size": 8, "symbol": "circle-open", "line": {"width": 2}}
            x, y = points[:1].T.tolist()
            yield emphasised, go.Scatter(x=x, y=y, mode="markers", marker=start, **common)


def attention(layers: Sequence[LayerHeads], names: Sequence[str], head: int) -> go.Figure:
    """Draw the weights of one head, a row for each token that attends, a map for each stack of the checkpoint."""
    # tokens that occur twice are two rows
    labels = [f"{place} {_text(name)}" for place, name in enumerate(names)]
    titles = [_text(f"{one.name}: attention of head {head} in layer {one.layer}") for one in layers]
    figure = make_subplots(1, max(1, len(layers)), subplot_titles=titles, horizontal_spacing=0.15)
    for column, one in enumerate(layers, start=1):
        figure.add_trace(
            go.Heatmap(
                x=labels,
                y=labels,
                z=one.weights[head].float().cpu().numpy(),
                coloraxis="coloraxis",
                hovertemplate="%{y} to %{x}: %{z:.3f}<extra></extra>",
            ),
            row=1,
            col=column,
        )
        figure.update_xaxes(title_text="to the token", tickangle=-90, row=1, col=column)
        figure.update_yaxes(title_text="from the token", autorange="reversed", row=1, col=column)
    _arrange(figure, _MAP_MARGINS + max(_MAP_HEIGHT, _TOKEN_HEIGHT * len(labels)))
    figure.update_layout(
        coloraxis={
            "cmin": 0,
            "cmax": 1,
            "colorscale": [[0, "rgba(0, 114, 178, 0)"], [1, "rgba(0, 114, 178, 1)"]],
            "colorbar": {"title": {"text": "attention weight", "side": "right"}, "tickvals": [0, 0.25, 0.5, 0.75, 1]},
        },
    )
    for update in (figure.update_xaxes, figure.update_yaxes):
        update(type="category", showgrid=False, ticks="", automargin=True)
    return figure


def _beyond(points: np.ndarray) -> str:
    """Return the text position of a label such that the path points to it."""
    x, y = points[-1] - points[-2] if len(points) > 1 else (0.0, 1.0)
    if abs(x) > abs(y):
        return "middle right" if x > 0 else "middle left"
    return "top center" if y >= 0 else "bottom center"


def _spread_labels(traces: Sequence[Any]) -> None:
    """Put each label where it covers none of those before it, or leave it to the hover text where there is no room."""
    if not traces:
        return
    places = np.concatenate([np.stack([trace.x, trace.y], axis=1).astype(float) for trace in traces])
    span = np.ptp(places, axis=0) + 1e-12
    taken: list[tuple[np.ndarray, np.ndarray]] = []
    for trace in traces:
        end, size = np.array([trace.x[-1], trace.y[-1]]) / span, np.array([0.014 * len(trace.text[-1]) + 0.01, 0.05])
        for position in dict.fromkeys([trace.textposition, *_AROUND]):
            centre = end + np.array(_AROUND[position]) * (size / 2 + 0.01)
            if all((abs(centre - other) >= (size + of_other) / 2).any() for other, of_other in taken):
                trace.textposition = position
                taken.append((centre, size))
                break
        else:
            trace.text = [""] * len(trace.text)


def _arrange(figure: go.Figure, height: int) -> None:
    clear = "rgba(0,0,0,0)"
    figure.update_layout(
        template="none",
        height=height,
        paper_bgcolor=clear,
        plot_bgcolor=clear,
        margin={"l": 70, "r": 20, "t": 40, "b": 60},
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        showlegend=True,
        hovermode="closest",
        modebar={"remove": _SENDING},
    )
    for update in (figure.update_xaxes, figure.update_yaxes):
        update(zeroline=False, showgrid=True, title={"font": {"size": 14}, "standoff": 8})


def _text(typed: str) -> str:
    """Return text without the markup that plotly would interpret."""
    return escape(typed, quote=False)

"""Figures of the explorer: a token across the layers, and attention weights, with the colours of
``page/page.css``.
"""

from collections.abc import Sequence
from functools import partial
from html import escape

import numpy as np
import pandas as pd
import plotly.express as px
import plotly.graph_objects as go
from torch import Tensor

from repdyn.lab.explorer.session import TokenStates
from repdyn.lab.studies.token_measurements import QUANTITIES, STATES, Quantity, measure_of

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's colours, distinct with any colour vision, without black and yellow: one of the
two would be invisible on a dark or a light page."""
_MAP_HEIGHT, _TOKEN_HEIGHT, _MAP_MARGINS = 420, 14, 160
"""Least height of a map, height of a token in it, and height of the labels around it."""
_text = partial(escape, quote=False)
"""Return text without the markup that plotly would interpret."""
_SENDING = ["sendChartToCloud", "sendDataToCloud"]
"""Buttons that upload a figure; which of them there is depends on the version of plotly.js that
gradio brings.
"""


def across_layers(tokens: Sequence[TokenStates], quantity: Quantity) -> go.Figure:
    """Draw a colour per checkpoint, dotted after the attention, half a layer before its block;
    ranks on a log scale.
    """
    figure = go.Figure()
    is_rank = quantity == "rank"
    if tokens:
        table = pd.concat(
            [tokens_of.table.assign(checkpoint=_text(name)) for name, tokens_of in tokens],
            ignore_index=True,
        )
        # the state after a block's attention stands half way before the block's end
        places = table["layer"].where(table["state"] != "attention", table["layer"] - 0.5)
        table = table.assign(
            place=places, value=table[quantity] + is_rank, token=table["token"].map(_text)
        )
        table = table.assign(state=table["state"].replace(STATES))
        look = {"color": "checkpoint", "line_dash": "state", "symbol": "state", "markers": True}
        look |= {
            "category_orders": {"state": [*STATES.values()]},
            "color_discrete_sequence": COLOURS,
        }
        look |= {"hover_name": "token", "hover_data": ["layer", measure_of(table), "rank"]}
        figure = px.line(table, x="place", y="value", line_dash_sequence=["solid", "dot"], **look)
    _arrange(figure, 420)
    figure.update_xaxes(title_text="layer (0: input of the first block)")
    figure.update_yaxes(title_text=QUANTITIES[quantity])
    if is_rank:
        largest = max(
            (tokens_of.table["rank"].to_numpy().max() for _, tokens_of in tokens), default=0
        )
        marks = [0, *(10**power for power in range(7))]
        ends = [-0.15, np.log10(max(largest, 9) + 1) + 0.08]
        ticks = {
            "tickvals": [mark + 1 for mark in marks],
            "ticktext": [f"{mark:,}" for mark in marks],
        }
        figure.update_yaxes(type="log", range=ends, **ticks)
        if tokens and largest == 0:
            said = "rank 0 at every layer: no row is closer than the token's own"
            figure.add_annotation(
                text=said, xref="paper", yref="paper", x=0.5, y=0.5, showarrow=False
            )
    return figure


def attention(weights: Tensor, names: Sequence[str], title: str) -> go.Figure:
    """Draw the weights of one head, (n, n), a row for each of the first n tokens that attends."""
    if len(names) > len(weights):
        title += f": the first {len(weights)} of {len(names)} tokens, without those that follow"
    # tokens that occur twice are two rows
    labels = [f"{place} {_text(name)}" for place, name in enumerate(names[: len(weights)])]
    figure = px.imshow(
        weights.float().cpu().numpy(),
        title=_text(title),
        zmin=0,
        zmax=1,
        color_continuous_scale=["rgba(0, 114, 178, 0)", "rgba(0, 114, 178, 1)"],
        aspect="auto",
    )
    figure.update_traces(x=labels, y=labels, hovertemplate="%{y} to %{x}: %{z:.3f}<extra></extra>")
    _arrange(figure, _MAP_MARGINS + max(_MAP_HEIGHT, _TOKEN_HEIGHT * len(labels)))
    bar = {
        "title": {"text": "attention weight", "side": "right"},
        "tickvals": [0, 0.25, 0.5, 0.75, 1],
    }
    figure.update_coloraxes(colorbar=bar)
    for update, title in (
        (figure.update_xaxes, "to the token"),
        (figure.update_yaxes, "from the token"),
    ):
        update(
            type="category",
            showgrid=False,
            showticklabels=True,
            ticks="",
            automargin=True,
            title_text=title,
        )
    figure.update_xaxes(tickangle=-90)
    return figure


def _arrange(figure: go.Figure, height: int) -> None:
    clear = "rgba(0,0,0,0)"
    figure.update_layout(
        template="none",
        height=height,
        paper_bgcolor=clear,
        plot_bgcolor=clear,
        margin={"l": 70, "r": 20, "t": 40, "b": 60},
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={"title": {"text": ""}, "orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        showlegend=True,
        hovermode="closest",
        modebar={"remove": _SENDING},
    )
    for update in (figure.update_xaxes, figure.update_yaxes):
        update(zeroline=False, showgrid=True, title={"font": {"size": 14}, "standoff": 8})

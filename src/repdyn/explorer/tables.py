"""Return parts of the explorer's page as HTML, with all text escaped: nearest tokens, conventions, remarks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import pandas as pd
import torch

from repdyn.explorer.session import Session, TokenStates
from repdyn.reading import LoadedModel
from repdyn.studies.study import select
from repdyn.studies.token_measurements import State

CONVENTIONS = (
    "Layer 0 is what enters the first block, the last layer what the last block puts out, before a final norm. "
    "After the attention: what entered the block plus what its attention puts out, before the feed-forward part. "
    "The cosine is that of the token's vector to its own row of the input embedding; its rank is how many rows of the "
    "vocabulary have a larger one: rank 0 means that its own row is the closest."
)


def nearest_tables(tokens: Sequence[TokenStates], state: State, layer: int | None) -> str:
    """Return the nearest tokens of the vocabulary: of one layer side by side, or a table for each checkpoint."""
    if layer is not None:
        return _table(f"Layer {layer}", "checkpoint", [(one.name, one, layer) for one in tokens], state)
    return "".join(
        _table(
            f"{one.name}: {one.token}",
            "layer",
            [(str(number), one, number) for number in select(one.table, state=state)["layer"]],
            state,
        )
        for one in tokens
    )


def _table(caption: str, corner: str, columns: Sequence[tuple[str, TokenStates, int]], state: State) -> str:
    """Return a table with a column, given by its title, for each token at a layer."""
    own = [select(token.table, state=state, layer=layer) for _, token, layer in columns]
    near = [select(token.nearest, state=state, layer=layer) for _, token, layer in columns]
    if all(lines.empty for lines in own):
        return f"<p>{escape(caption)}: no such state.</p>"
    ranks = [f"{lines['rank'].iloc[0]:,}" if len(lines) else "" for lines in own]
    cosines = [f"{lines['cosine'].iloc[0]:.3f}" if len(lines) else "" for lines in own]
    rows = [_row("own row's rank", ranks, "own-numbers"), _row("own row's cosine", cosines, "own-numbers")]
    for place in range(1, max(len(lines) for lines in near) + 1):
        cells = [_nearest(token, lines, place) for (_, token, _), lines in zip(columns, near, strict=True)]
        rows.append(_row(f"nearest {place}", cells))
    heads = "".join(f'<th scope="col">{escape(title)}</th>' for title, *_ in columns)
    head = f'<thead><tr><th scope="col">{escape(corner)}</th>{heads}</tr></thead>'
    table = f"<table><caption>{escape(caption)}</caption>{head}<tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="nearest" tabindex="0" role="region" aria-label="{escape(caption)}">{table}</div>'


def _row(title: str, cells: Sequence[str], kind: str = "") -> str:
    return f'<tr class="{kind}"><th scope="row">{title}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _nearest(token: TokenStates, lines: pd.DataFrame, place: int) -> str:
    if len(lines) < place:
        return ""
    line = lines.iloc[place - 1]
    name = f"<span>{escape(str(line['nearest']))}</span>"
    name = f'<strong title="the token itself">{name}</strong>' if line["nearest_id"] == token.token_id else name
    return f"{name} <small>{line['cosine']:.3f}</small>"


def about(session: Session) -> str:
    """Return what the page shows and what its numbers mean."""
    models = "".join(f"<li>{_described(loaded)}</li>" for loaded in session.models)
    return f"<ul>{models}</ul><details><summary>What is measured</summary><p>{CONVENTIONS}</p></details>"


def _described(loaded: LoadedModel) -> str:
    config = loaded.model.config.get_text_config()
    parts = [
        type(loaded.model).__name__,
        f"{getattr(config, 'num_hidden_layers', '?')} blocks",
        f"width {getattr(config, 'hidden_size', '?')}",
        f"vocabulary of {getattr(config, 'vocab_size', '?'):,}",
        str(loaded.model.dtype).removeprefix("torch."),
        f"on {torch.device(loaded.model.device).type}",
    ]
    return f"<strong>{escape(loaded.name)}</strong> {escape(', '.join(parts))}"


def remarks(lines: Sequence[str]) -> str:
    """Return what is missing and why; empty if nothing is."""
    return (
        f'<ul class="remarks" role="status">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'
        if lines
        else ""
    )


def refusal(reason: str) -> str:
    """Return the reason for rejecting an input."""
    return f'<p class="refusal" role="alert">{escape(reason)}</p>'

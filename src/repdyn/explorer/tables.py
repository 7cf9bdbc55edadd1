"""Parts of the explorer's page as HTML, with all text escaped: the logit lens, nearest tokens, conventions, remarks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Literal, NamedTuple, TypeAlias

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from repdyn.explorer.session import SentenceLens, Session, TokenStates
from repdyn.kernels.lens import LensReading
from repdyn.reading import LoadedModel
from repdyn.studies.study import select
from repdyn.studies.token_measurements import State, measure_of, token_names

Colour: TypeAlias = Literal["probability", "entropy", "kl"]
COLOURS: dict[Colour, str] = {
    "probability": "probability",
    "entropy": "entropy",
    "kl": "KL from the final prediction",
}
LENS_CONVENTIONS = (
    "Each cell is the most probable token if the model ended at this layer: its states go through the model's own "
    "final norm and unembedding (logit lens, nostalgebraist 2020). No translation of the layers is learned, as the "
    "tuned lens of Belrose et al. 2023 does, so early layers may be read badly. KL is KL(final || layer) in nats. "
    "Settled at: the first layer from which on the most probable token is the final one."
)
_BYTES = {symbol: byte for byte, symbol in bytes_to_unicode().items()}
_SHOWN = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}
CONVENTIONS = (
    "Layer 0 is what enters the first block, the last layer what the last block puts out, before a final norm. "
    "After the attention: what entered the block plus what its attention puts out, before the feed-forward part. "
    "The cosine is that of the token's vector to its own row of the input embedding; its rank is how many rows of the "
    "vocabulary have a larger one: rank 0 means that its own row is the closest. By distance it is how many are closer."
)


class Cell(NamedTuple):
    """A layer at a token."""

    layer: int
    place: int


def last_cell(lens: SentenceLens) -> Cell:
    """Return the cell of the model's own prediction at the last token."""
    return Cell(len(lens.layers) - 1, len(lens.ids) - 1)


def grid(loaded: LoadedModel, lens: SentenceLens, colour: Colour, chosen: Cell) -> str:
    """Return a table with a row for each layer, the last one on top, and a column for each token of the sentence."""
    names, shades = readable_tokens(loaded.tokenizer, lens.ids), _shades(lens, colour)
    rows = []
    for number, layer in reversed(list(enumerate(lens.layers))):
        predicted = readable_tokens(loaded.tokenizer, layer.ids[:, 0].tolist())
        cells = []
        for place, (name, shade) in enumerate(zip(predicted, shades[number].tolist(), strict=True)):
            hover = f"layer {number} at {names[place]}: {name}, {_numbers(layer, place)}"
            pressed = "true" if chosen == (number, place) else "false"
            cells.append(
                f'<button type="button" data-layer="{number}" data-place="{place}" aria-pressed="{pressed}" '
                f'title="{escape(hover)}" style="--shade: {shade:.0%}">{escape(name)}</button>'
            )
        rows.append(_row(str(number), cells))
    rows.append(_row("settled at", [str(layer) for layer in lens.settled], "own-numbers"))
    masked = "the token itself, each masked in turn (special tokens are not)"
    caption = f"{loaded.name}: {masked if lens.masked else 'the next token'}"
    return _table(caption, ["layer", *(f"<span>{escape(name)}</span>" for name in names)], rows, "nearest lens")


def top(loaded: LoadedModel, lens: SentenceLens, cell: Cell) -> str:
    """Return the most probable tokens of a cell."""
    if not (0 <= cell.layer < len(lens.layers) and 0 <= cell.place < len(lens.ids)):
        raise ValueError("expected a cell of the grid, got one beyond it; choose another")
    layer = lens.layers[cell.layer]
    at = readable_tokens(loaded.tokenizer, [lens.ids[cell.place]])[0]
    names = readable_tokens(loaded.tokenizer, layer.ids[cell.place].tolist())
    found = zip(names, layer.probabilities[cell.place].tolist(), strict=True)
    rows = [
        _row(str(number), [f"<span>{escape(name)}</span>", f"{probability:.4f}"])
        for number, (name, probability) in enumerate(found, start=1)
    ]
    caption = f"Layer {cell.layer}, {'instead of' if cell.place in lens.masked else 'at'} {at}"
    return _table(caption, ["", "token", "probability"], rows, after=f"<p>{escape(_numbers(layer, cell.place))}</p>")


def readable_tokens(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    r"""Return tokens as text, spaces and line breaks as signs, and bytes that are no whole character as ``\xe2``."""
    return [
        _of_bytes(name) if name == tokenizer.convert_ids_to_tokens(number) else name.replace("▁", "␣")
        for name, number in zip(token_names(tokenizer, ids), ids, strict=True)
    ]


def _of_bytes(token: str) -> str:
    """Return a token that is spelled in the signs of byte-level vocabularies as text; any other one as it is."""
    if token.isascii() or any(sign not in _BYTES for sign in token):
        return token.replace("▁", "␣")
    text = bytes(_BYTES[sign] for sign in token).decode(errors="backslashreplace")
    return "".join(_SHOWN.get(sign, sign if sign.isprintable() else f"\\x{ord(sign):02x}") for sign in text)


def _numbers(layer: LensReading, place: int) -> str:
    return (
        f"probability {layer.probabilities[place, 0]:.4f}, entropy {layer.entropy[place]:.3f} nats, "
        f"KL from the final prediction {layer.kl[place]:.3f} nats, "
        f"the final prediction is number {int(layer.final_rank[place]) + 1:,} here"
    )


def _shades(lens: SentenceLens, colour: Colour) -> Tensor:
    """Return the strength of each cell's colour, from 0 to 1: (n_layers, n_tokens)."""
    if colour == "probability":
        return torch.stack([layer.probabilities[:, 0] for layer in lens.layers])
    values = torch.stack([layer.entropy if colour == "entropy" else layer.kl for layer in lens.layers])
    finite = values.where(values.isfinite(), 0.0)
    largest = float(finite.max())
    return (values / largest if math.isfinite(largest) and largest > 0 else finite).clamp(0, 1)


def nearest_tables(tokens: Sequence[TokenStates], state: State, layer: int | None) -> str:
    """Return the nearest tokens of the vocabulary: of one layer side by side, or a table for each checkpoint."""
    if layer is not None:
        return _nearest_table(f"Layer {layer}", "checkpoint", [(one.name, one, layer) for one in tokens], state)
    return "".join(
        _nearest_table(
            f"{one.name}: {one.token}",
            "layer",
            [(str(number), one, number) for number in select(one.table, state=state)["layer"]],
            state,
        )
        for one in tokens
    )


def _nearest_table(caption: str, corner: str, columns: Sequence[tuple[str, TokenStates, int]], state: State) -> str:
    """Return a table with a column, given by its title, for each token at a layer."""
    own = [select(token.table, state=state, layer=layer) for _, token, layer in columns]
    near = [select(token.nearest, state=state, layer=layer) for _, token, layer in columns]
    if all(lines.empty for lines in own):
        return f"<p>{escape(caption)}: no such state.</p>"
    ranks = [f"{lines['rank'].iloc[0]:,}" if len(lines) else "" for lines in own]
    measure = measure_of(own[0])
    values = [f"{lines[measure].iloc[0]:.3f}" if len(lines) else "" for lines in own]
    rows = [_row("own row's rank", ranks, "own-numbers"), _row(f"own row's {measure}", values, "own-numbers")]
    for place in range(1, max(len(lines) for lines in near) + 1):
        cells = [_nearest(token, lines, place) for (_, token, _), lines in zip(columns, near, strict=True)]
        rows.append(_row(f"nearest {place}", cells))
    return _table(caption, [corner, *(escape(title) for title, *_ in columns)], rows)


def _table(caption: str, headings: Iterable[str], rows: Iterable[str], kind: str = "nearest", after: str = "") -> str:
    """Return a table that can be scrolled by keyboard, from headings and rows of HTML."""
    caption, heads = escape(caption), "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    return (
        f'<div class="{kind}" tabindex="0" role="region" aria-label="{caption}"><table><caption>{caption}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>{after}</div>"
    )


def _row(title: str, cells: Sequence[str], kind: str = "") -> str:
    return f'<tr class="{kind}"><th scope="row">{title}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _nearest(token: TokenStates, lines: pd.DataFrame, place: int) -> str:
    if len(lines) < place:
        return ""
    line = lines.iloc[place - 1]
    name = f"<span>{escape(str(line['nearest']))}</span>"
    name = f'<strong title="the token itself">{name}</strong>' if line["nearest_id"] == token.token_id else name
    return f"{name} <small>{line[measure_of(lines)]:.3f}</small>"


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
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="remarks" role="status">{items}</ul>' if lines else ""


def refusal(reason: str) -> str:
    """Return the reason for rejecting an input."""
    return f'<p class="refusal" role="alert">{escape(reason)}</p>'

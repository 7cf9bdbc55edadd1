"""Parts of the explorer's page as HTML, with all text escaped: the logit lens, nearest tokens,
conventions, remarks.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from repdyn.activations import LoadedModel
from repdyn.kernels.lens import LensReading
from repdyn.lab.explorer.session import SentenceLens, Session, TokenStates
from repdyn.lab.studies.study import select
from repdyn.lab.studies.token_measurements import State, measure_of, token_names

Cell: TypeAlias = tuple[int, int]
"""A layer, and the place of a token."""
Colour: TypeAlias = Literal["probability", "entropy", "kl"]
COLOURS: dict[Colour, str] = {
    "probability": "probability",
    "entropy": "entropy",
    "kl": "KL from the final prediction",
}
LENS_CONVENTIONS = (
    "Each cell is the most probable token if the model ended at this layer: its states go through "
    "the model's own final norm and unembedding (logit lens, nostalgebraist 2020). No translation "
    "of the layers is learned, as the tuned lens of Belrose et al. 2023 does, so early layers may "
    "be read badly. KL is KL(final || layer) in nats. Settled at: the first layer from which on "
    "the most probable token is the final one."
)
CONVENTIONS = (
    "Layer 0 is what enters the first block, the last layer what the last block puts out, before a "
    "final norm. After the attention: what entered the block plus what its attention puts out, "
    "before the feed-forward part. The cosine is that of the token's vector to its own row of the "
    "input embedding; its rank is how many rows of the vocabulary have a larger one: rank 0 means "
    "that its own row is the closest. By distance it is how many are closer."
)


def grid(loaded: LoadedModel, lens: SentenceLens, colour: Colour, chosen: Cell) -> str:
    """Return a table with a row for each layer, the last one on top, and a column for each token of
    the sentence.
    """
    names = token_names(loaded.tokenizer, lens.ids)
    shades = _shades(lens, colour)
    rows = []
    # the last layer on top, as a model is drawn: a prediction rises through it
    for number, layer in reversed(list(enumerate(lens.layers))):
        predicted = token_names(loaded.tokenizer, layer.ids[:, 0].tolist())
        cells = []
        for position, (name, shade) in enumerate(
            zip(predicted, shades[number].tolist(), strict=True)
        ):
            hover = f"layer {number} at {names[position]}: {name}, {_numbers(layer, position)}"
            pressed = "true" if chosen == (number, position) else "false"
            cells.append(
                f'<button type="button" data-layer="{number}" data-place="{position}" '
                f'aria-pressed="{pressed}" title="{escape(hover)}" style="--shade: '
                f'{shade:.0%}">{escape(name)}</button>'
            )
        rows.append(_row(str(number), cells))
    rows.append(_row("settled at", [str(layer) for layer in lens.settled], "own-numbers"))
    masked = "the token itself, each masked in turn (special tokens are not)"
    caption = f"{loaded.name}: {masked if lens.masked else 'the next token'}"
    return _table(
        caption,
        ["layer", *(f"<span>{escape(name)}</span>" for name in names)],
        rows,
        "nearest lens",
    )


def top(loaded: LoadedModel, lens: SentenceLens, cell: Cell) -> str:
    """Return the most probable tokens of a cell."""
    number, position = cell
    if not (0 <= number < len(lens.layers) and 0 <= position < len(lens.ids)):
        raise ValueError("expected a cell of the grid, got one beyond it; choose another")
    layer = lens.layers[number]
    at = token_names(loaded.tokenizer, [lens.ids[position]])[0]
    names = token_names(loaded.tokenizer, layer.ids[position].tolist())
    predictions = zip(names, layer.probabilities[position].tolist(), strict=True)
    rows = [
        _row(str(rank), [f"<span>{escape(name)}</span>", f"{probability:.4f}"])
        for rank, (name, probability) in enumerate(predictions, start=1)
    ]
    caption = f"Layer {number}, {'instead of' if position in lens.masked else 'at'} {at}"
    return _table(
        caption,
        ["", "token", "probability"],
        rows,
        after=f"<p>{escape(_numbers(layer, position))}</p>",
    )


def _numbers(layer: LensReading, position: int) -> str:
    return (
        f"probability {layer.probabilities[position, 0]:.4f}, "
        f"entropy {layer.entropy[position]:.3f} nats, "
        f"KL from the final prediction {layer.kl[position]:.3f} nats, "
        f"the final prediction is number {int(layer.final_rank[position]) + 1:,} here"
    )


def _shades(lens: SentenceLens, colour: Colour) -> Tensor:
    """Return the strength of each cell's colour, from 0 to 1: (n_layers, n_tokens)."""
    if colour == "probability":
        return torch.stack([layer.probabilities[:, 0] for layer in lens.layers])
    values = torch.stack(
        [layer.entropy if colour == "entropy" else layer.kl for layer in lens.layers]
    )
    # one value that is no number must not take the colours of all others
    finite = values.where(values.isfinite(), 0.0)
    largest = float(finite.max())
    return (values / largest if math.isfinite(largest) and largest > 0 else finite).clamp(0, 1)


def nearest_tables(tokens: Sequence[TokenStates], state: State) -> str:
    """Return the nearest tokens of the vocabulary at every layer: a table for each checkpoint."""
    tables = []
    for name, token in tokens:
        own_rows, near = (select(frame, state=state) for frame in (token.table, token.nearest))
        caption = f"{name}: {token.table['token'].iloc[0]}"
        measure = measure_of(own_rows)
        # of a model whose blocks have no such state, beside one whose blocks have
        if own_rows.empty:
            tables.append(f"<p>{escape(caption)}: no such state.</p>")
            continue
        rows = [_row("own row's rank", [f"{rank:,}" for rank in own_rows["rank"]], "own-numbers")]
        rows.append(
            _row(
                f"own row's {measure}",
                [f"{value:.3f}" for value in own_rows[measure]],
                "own-numbers",
            )
        )
        for position, lines in near.groupby("place"):
            cells = [_nearest(line, measure) for line in lines.to_dict("records")]
            rows.append(_row(f"nearest {position}", cells))
        tables.append(_table(caption, ["layer", *map(str, own_rows["layer"])], rows))
    return "".join(tables)


def _nearest(line: Mapping[Hashable, Any], measure: str) -> str:
    name = f"<span>{escape(line['nearest'])}</span>"
    name = (
        f'<strong title="the token itself">{name}</strong>'
        if line["nearest_id"] == line["token_id"]
        else name
    )
    return f"{name} <small>{line[measure]:.3f}</small>"


def _table(
    caption: str,
    headings: Iterable[str],
    rows: Iterable[str],
    kind: str = "nearest",
    after: str = "",
) -> str:
    """Return a table that can be scrolled by keyboard, from headings and rows of HTML."""
    caption = escape(caption)
    heads = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    return (
        f'<div class="{kind}" tabindex="0" role="region" '
        f'aria-label="{caption}"><table><caption>{caption}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>{after}</div>"
    )


def _row(title: str, cells: Sequence[str], kind: str = "") -> str:
    return (
        f'<tr class="{kind}"><th '
        f'scope="row">{title}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
    )


def about(session: Session) -> str:
    """Return what the page shows and what its numbers mean."""
    described = [
        (each.name, f"{type(each.model).__name__}, {each.model.dtype}") for each in session.models
    ]
    models = "".join(
        f"<li><strong>{escape(name)}</strong> {escape(text)}</li>" for name, text in described
    )
    return (
        f"<ul>{models}</ul><details><summary>What is "
        f"measured</summary><p>{CONVENTIONS}</p></details>"
    )


def remarks(lines: Sequence[str]) -> str:
    """Return what is missing and why; empty if nothing is."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="remarks" role="status">{items}</ul>' if lines else ""


def refusal(reason: str) -> str:
    """Return the reason for rejecting an input."""
    return f'<p class="refusal" role="alert">{escape(reason)}</p>'

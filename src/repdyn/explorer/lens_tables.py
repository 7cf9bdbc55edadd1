"""The logit lens: what each layer predicts at each token, and as HTML, with all text escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from repdyn.kernels.lens import LensReading, read_predictions
from repdyn.reading import LayerPatterns, LoadedModel, layer_states, output_head
from repdyn.studies.token_measurements import token_names

# copies of a sentence, each with another token masked, whose states are in memory at once
_MASKED_AT_ONCE = 16
Colour: TypeAlias = Literal["probability", "entropy", "kl"]
COLOURS: dict[Colour, str] = {
    "probability": "probability",
    "entropy": "entropy",
    "kl": "KL from the final prediction",
}
CONVENTIONS = (
    "Each cell is the most probable token if the model ended at this layer: its states go through the model's own "
    "final norm and unembedding (logit lens, nostalgebraist 2020). No translation of the layers is learned, as the "
    "tuned lens of Belrose et al. 2023 does, so early layers may be read badly. KL is KL(final || layer) in nats. "
    "Settled at: the first layer from which on the most probable token is the final one."
)
CLICKS = """
element.addEventListener("click", (event) => {
  const cell = event.target.closest("button[data-layer]");
  if (!cell) return;
  element.querySelectorAll("button[aria-pressed=true]").forEach((other) => other.setAttribute("aria-pressed", "false"));
  cell.setAttribute("aria-pressed", "true");
  trigger("click", { layer: Number(cell.dataset.layer), place: Number(cell.dataset.place) });
});
"""
"""Reports the layer and the token of the cell that is clicked."""
_BYTES = {symbol: byte for byte, symbol in bytes_to_unicode().items()}
_SHOWN = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}


class SentenceLens(NamedTuple):
    """The predictions of each layer at each token of a sentence."""

    ids: tuple[int, ...]
    masked: tuple[int, ...]
    """Places of the tokens that were hidden from the model when it predicted them, one at a time; none in a decoder."""
    layers: tuple[LensReading, ...]
    """From layer 0, what enters the first block, to the last; a row for each token."""

    @property
    def is_masked(self) -> bool:
        """True if a token itself is predicted, as in an encoder, rather than the next one."""
        return bool(self.masked)

    @property
    def settled(self) -> list[int]:
        """For each token the first layer from which on the most probable token is the final one."""
        agrees = torch.stack([layer.final_rank == 0 for layer in self.layers])
        return (len(self.layers) - agrees.flip(0).long().cumprod(0).sum(0)).tolist()


def sentence_lens(loaded: LoadedModel, ids: Sequence[int], k: int, layers: LayerPatterns = None) -> SentenceLens:
    """Read the predictions of all layers at all tokens of a sentence.

    A decoder reads the sentence once, and predicts the next token at each. An encoder reads it once for each ordinary
    token, which is then replaced by the mask token, and predicts what was there; special tokens are never masked.
    """
    head, masked = output_head(loaded, ids, layers), _masked_places(loaded, ids)
    # a single token stands for the mask, which the annotations of transformers do not say
    states = _states(loaded, ids, masked, cast(int, loaded.tokenizer.mask_token_id), layers)
    readings = [read_predictions(layer, states[-1], head, k) for layer in states]
    return SentenceLens(tuple(ids), masked, tuple(LensReading(*(p.cpu() for p in each)) for each in readings))


def _masked_places(loaded: LoadedModel, ids: Sequence[int]) -> tuple[int, ...]:
    if not type(loaded.with_head).__name__.endswith("ForMaskedLM"):
        return ()
    if loaded.tokenizer.mask_token_id is None:
        raise ValueError(f"expected a tokenizer with a mask token for the logit lens of {loaded.name}, got one without")
    special = set(loaded.tokenizer.all_special_ids)
    return tuple(place for place, token in enumerate(ids) if token not in special)


def _states(
    loaded: LoadedModel, ids: Sequence[int], masked: Sequence[int], mask: int, layers: LayerPatterns
) -> list[Tensor]:
    """Return the states of all tokens at each layer, (n_tokens, dim); of a masked one from where it is masked."""
    whole = replace(loaded, model=cast(PreTrainedModel, loaded.with_head))  # that patterns of layers name
    plain = [layer.states for layer in layer_states(whole, [ids], layers)]
    for start in range(0, len(masked), _MASKED_AT_ONCE):
        places = masked[start : start + _MASKED_AT_ONCE]
        copies = [[mask if at == place else token for at, token in enumerate(ids)] for place in places]
        rows = torch.tensor([number * len(ids) + place for number, place in enumerate(places)])
        for states, layer in zip(plain, layer_states(whole, copies, layers), strict=True):
            states[list(places)] = layer.states[rows]
    return plain


class Cell(NamedTuple):
    """A layer at a token."""

    layer: int
    place: int


def last_cell(lens: SentenceLens) -> Cell:
    """Return the cell of the model's own prediction at the last token."""
    return Cell(len(lens.layers) - 1, len(lens.ids) - 1)


def grid(loaded: LoadedModel, lens: SentenceLens, colour: Colour, chosen: Cell) -> str:
    """Return a table with a row for each layer, the last one on top, and a column for each token of the sentence."""
    names = readable_tokens(loaded.tokenizer, lens.ids)
    shades = _shades(lens, colour)
    heads = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in names)
    rows = [
        _row(loaded, layer, number, names, shades[number], chosen)
        for number, layer in reversed(list(enumerate(lens.layers)))
    ]
    settled = "".join(f"<td>{layer}</td>" for layer in lens.settled)
    caption = f"{loaded.name}: {_protocol(lens)}"
    table = (
        f"<table><caption>{escape(caption)}</caption>"
        f'<thead><tr><th scope="col">layer</th>{heads}</tr></thead><tbody>{"".join(rows)}'
        f'<tr class="own-numbers"><th scope="row">settled at</th>{settled}</tr></tbody></table>'
    )
    return f'<div class="nearest lens" role="region" aria-label="{escape(caption)}">{table}</div>'


def top(loaded: LoadedModel, lens: SentenceLens, cell: Cell) -> str:
    """Return the most probable tokens of a cell."""
    if not (0 <= cell.layer < len(lens.layers) and 0 <= cell.place < len(lens.ids)):
        raise ValueError("expected a cell of the grid, got one beyond it; choose another")
    layer = lens.layers[cell.layer]
    at = readable_tokens(loaded.tokenizer, [lens.ids[cell.place]])[0]
    names = readable_tokens(loaded.tokenizer, layer.ids[cell.place].tolist())
    rows = "".join(
        f'<tr><th scope="row">{number}</th><td><span>{escape(name)}</span></td><td>{probability:.4f}</td></tr>'
        for number, (name, probability) in enumerate(
            zip(names, layer.probabilities[cell.place].tolist(), strict=True), start=1
        )
    )
    caption = f"Layer {cell.layer}, {'instead of' if cell.place in lens.masked else 'at'} {at}"
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("", "token", "probability"))
    table = (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        f"<p>{escape(_numbers(layer, cell.place))}</p>"
    )
    return f'<div class="nearest" role="region" aria-label="{escape(caption)}">{table}</div>'


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


def _protocol(lens: SentenceLens) -> str:
    if lens.is_masked:
        return "the token itself, each masked in turn (special tokens are not)"
    return "the next token"


def _row(
    loaded: LoadedModel, layer: LensReading, number: int, names: Sequence[str], shades: Tensor, chosen: Cell
) -> str:
    predicted = readable_tokens(loaded.tokenizer, layer.ids[:, 0].tolist())
    cells = []
    for place, (name, shade) in enumerate(zip(predicted, shades.tolist(), strict=True)):
        hover = f"layer {number} at {names[place]}: {name}, {_numbers(layer, place)}"
        pressed = "true" if chosen == (number, place) else "false"
        cells.append(
            f'<td><button type="button" data-layer="{number}" data-place="{place}" aria-pressed="{pressed}" '
            f'title="{escape(hover)}" style="--shade: {shade:.0%}">{escape(name)}</button></td>'
        )
    return f'<tr><th scope="row">{number}</th>{"".join(cells)}</tr>'


def _numbers(layer: LensReading, place: int) -> str:
    parts = [
        f"probability {layer.probabilities[place, 0]:.4f}",
        f"entropy {layer.entropy[place]:.3f} nats",
        f"KL from the final prediction {layer.kl[place]:.3f} nats",
        f"the final prediction is number {int(layer.final_rank[place]) + 1:,} here",
    ]
    return ", ".join(parts)


def _shades(lens: SentenceLens, colour: Colour) -> Tensor:
    """Return the strength of each cell's colour, from 0 to 1: (n_layers, n_tokens)."""
    if colour == "probability":
        return torch.stack([layer.probabilities[:, 0] for layer in lens.layers])
    values = torch.stack([layer.entropy if colour == "entropy" else layer.kl for layer in lens.layers])
    finite = values.where(values.isfinite(), 0.0)
    largest = float(finite.max())
    return (values / largest if math.isfinite(largest) and largest > 0 else finite).clamp(0, 1)

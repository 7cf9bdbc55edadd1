"""Which tables a model looks its tokens, positions and segments up in: found by watching it run, for any family."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from repdyn.capture.forward import device_of, evaluation_mode

Kind: TypeAlias = Literal["input", "position", "segment"]
KINDS: tuple[Kind, ...] = ("input", "position", "segment")

_LENGTH = 8
# a looked-up table is known by where its numbers lie
_Place: TypeAlias = tuple[int, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class LookUp:
    """A table whose rows a model adds up into what enters its first block."""

    kind: Kind
    parameter: str
    """Its name in the model."""
    weight: Tensor
    """(n_rows, dim), as the model has it: what scales, projects or normalises a row afterwards is left out."""
    first_row: int
    """Row of position 0, where a family keeps some rows for other purposes (RoBERTa and OPT: 2); 0 for other kinds."""


def find_lookups(model: PreTrainedModel, token_ids: Sequence[int]) -> list[LookUp]:
    """The context-free tables of a model: input first, then position, then segment.

    The model runs once on two short sequences, and every look-up in a table is watched. One at the ids of the tokens
    is the input table's; one at consecutive rows, the same for both sequences, is a position table's; one at the
    segments (``token_type_ids``) is a segment table's. Positions that enter otherwise (rotary, relative, sinusoids
    that are added without a look-up) have no table.

    Args:
        model: any model of transformers that takes ``input_ids``; left as it was found.
        token_ids: ids of at least 16 ordinary tokens, no padding among them, not in ascending order.

    Raises:
        ValueError: too few token ids, or no table is looked up at the tokens' ids.
    """
    if len(token_ids) < 2 * _LENGTH:
        raise ValueError(f"expected at least {2 * _LENGTH} token ids, got {len(token_ids)}; give ordinary tokens")
    ids = torch.tensor(token_ids[: 2 * _LENGTH]).view(2, _LENGTH)
    segments = (torch.arange(_LENGTH) * _n_segments(model) // _LENGTH).expand(2, _LENGTH)
    watch = _watched(model, ids, segments)
    names = _names(model)
    found: dict[_Place, LookUp] = {}
    for weight, rows in watch.seen:
        kind = _kind(weight, rows.reshape(-1, _LENGTH), ids, segments) if rows.shape[-1:] == (_LENGTH,) else None
        place = _place(weight)
        # GPT-2 looks segments up among its tokens
        if kind is not None and (place not in found or kind == "input"):
            first = int(rows.reshape(-1)[0]) if kind == "position" else 0
            found[place] = LookUp(kind, names.get(place, "unnamed"), weight.detach(), first)
    if not any(lookup.kind == "input" for lookup in found.values()):
        raise ValueError(
            f"expected a model that looks its tokens up in a table, but {type(model).__name__} looks up none at their "
            "ids; its input embeddings cannot be studied"
        )
    return sorted(found.values(), key=lambda lookup: KINDS.index(lookup.kind))


def _n_segments(model: PreTrainedModel) -> int:
    """Segments that can be told apart: a table of one row knows none but segment 0."""
    return max(1, min(2, getattr(model.config, "type_vocab_size", None) or 1))


class _Watch(TorchDispatchMode):
    """Notes every look-up in a table, by whichever module or function it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.embedding.default:
            self.seen.append((args[0], args[1].cpu()))
        return func(*args, **(kwargs or {}))


def _watched(model: PreTrainedModel, ids: Tensor, segments: Tensor) -> _Watch:
    device, parameters = device_of(model), inspect.signature(model.forward).parameters
    offered = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": segments.contiguous(),
        "decoder_input_ids": ids,
    }
    taken = {name: value.to(device) for name, value in offered.items() if name in parameters}
    cache = {"use_cache": False} if "use_cache" in parameters else {}
    watch = _Watch()
    with evaluation_mode(model, device), watch:
        model(**taken, **cache)
    return watch


def _kind(weight: Tensor, rows: Tensor, ids: Tensor, segments: Tensor) -> Kind | None:
    if torch.equal(rows, ids):
        return "input"
    if torch.equal(rows, rows[0, 0] + torch.arange(_LENGTH).expand_as(rows)):
        return "position"
    # a table of one row is looked up at 0, and so is much else
    if torch.equal(rows, segments[:1].expand_as(rows)) and (len(weight) == 1 or bool(segments.any())):
        return "segment"
    return None


def _place(weight: Tensor) -> _Place:
    return weight.data_ptr(), tuple(weight.shape)


def _names(model: PreTrainedModel) -> dict[_Place, str]:
    return {_place(tensor): name for name, tensor in chain(model.named_buffers(), model.named_parameters())}

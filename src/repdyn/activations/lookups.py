"""Find the tables in which a model looks up its tokens, positions and segments, by
watching it run.
"""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from repdyn.capture.forward import evaluating
from repdyn.capture.model import device_of
from repdyn.utils.internals import watching_operations

TableKind: TypeAlias = Literal["input", "position", "segment"]
TABLE_KINDS: tuple[TableKind, ...] = ("input", "position", "segment")

_LENGTH = 8
"""Tokens of each of the two sequences on which the model runs."""
_Memory: TypeAlias = tuple[int, tuple[int, ...]]
"""The address and shape of a weight, by which a table is known: the tensor that a lookup sees is
another object than the parameter, with the same memory.
"""


@dataclass(frozen=True, eq=False)
class Lookup:
    """A table whose rows a model adds up into the input of its first block."""

    kind: TableKind
    parameter: str
    """The name of the table in the model."""
    weight: Tensor
    """(n_rows, dim), before the model scales, projects or normalises a row."""
    first_row: int
    """Row of position 0, where a family reserves the first rows (RoBERTa and OPT: 2); 0 for other
    kinds.
    """


def ordinary_tokens(ids: Iterable[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return 16 of the token ids in random order, special tokens left out, as :func:`find_lookups`
    takes them.
    """
    ordinary = sorted(set(ids) - set(tokenizer.all_special_ids))
    return np.random.RandomState(0).permutation(ordinary)[: 2 * _LENGTH].tolist()


def find_lookups(model: PreTrainedModel, token_ids: Sequence[int]) -> list[Lookup]:
    """Find the context-free tables of a model: input first, then position, then segment.

    The model runs once on two short sequences, and every lookup in a table is recorded. A lookup at
    the token ids belongs to the input table; one at consecutive rows, the same for both sequences,
    to a position table; one at the segments (``token_type_ids``) to a segment table. Positions that
    enter otherwise (rotary, relative, sinusoids that are added without a lookup) have no table.

    Args:
        model: any model of transformers that takes ``input_ids``; left as it was found.
        token_ids: ids of at least 16 ordinary tokens, no padding among them, not in ascending
            order.

    Raises:
        ValueError: too few token ids, or no table is looked up at the tokens' ids.
    """
    if len(token_ids) < 2 * _LENGTH:
        raise ValueError(
            f"expected at least {2 * _LENGTH} token ids, got {len(token_ids)}; give ordinary tokens"
        )
    ids = torch.tensor(token_ids[: 2 * _LENGTH]).view(2, _LENGTH)
    # how many segments the model distinguishes, 2 at most; a table of one row has only segment 0
    n_segments = max(1, min(2, getattr(model.config, "type_vocab_size", None) or 1))
    segments = (torch.arange(_LENGTH) * n_segments // _LENGTH).expand(2, _LENGTH)
    device = device_of(model)
    parameters = inspect.signature(model.forward).parameters
    available = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": segments.contiguous(),
        "decoder_input_ids": ids,
    }
    accepted = {name: value.to(device) for name, value in available.items() if name in parameters}
    cache = {"use_cache": False} if "use_cache" in parameters else {}
    seen: list[tuple[Tensor, Tensor]] = []

    def keep_lookup(operation: Any, arguments: tuple[Any, ...]) -> None:
        if operation is torch.ops.aten.embedding.default:
            seen.append((arguments[0], arguments[1].cpu()))

    with evaluating(model, device) as (shadow, _), watching_operations(keep_lookup):
        shadow.module(**accepted, **cache)
        tensors = chain(shadow.module.named_buffers(), shadow.module.named_parameters())
        names = {_memory(tensor): name for name, tensor in tensors}
    lookups: dict[_Memory, Lookup] = {}
    for weight, rows in seen:
        # a lookup of another length is of something else, such as relative positions
        if rows.shape[-1:] != (_LENGTH,):
            continue
        kind = _kind(weight, rows.reshape(-1, _LENGTH), ids, segments)
        memory = _memory(weight)
        # GPT-2 looks up segments in its token table, which is the input table nevertheless
        if kind is not None and (memory not in lookups or kind == "input"):
            first = int(rows.reshape(-1)[0]) if kind == "position" else 0
            lookups[memory] = Lookup(
                kind=kind,
                parameter=names.get(memory, "unnamed"),
                weight=weight.detach(),
                first_row=first,
            )
    if not any(lookup.kind == "input" for lookup in lookups.values()):
        raise ValueError(
            f"expected a model that looks its tokens up in a table, but {type(model).__name__} "
            "looks up none at their ids; its input embeddings cannot be studied"
        )
    return sorted(lookups.values(), key=lambda lookup: TABLE_KINDS.index(lookup.kind))


def _kind(weight: Tensor, rows: Tensor, ids: Tensor, segments: Tensor) -> TableKind | None:
    """Return what a table holds, from the rows that both sequences look up in it."""
    if torch.equal(rows, ids):
        return "input"
    if torch.equal(rows, rows[0, 0] + torch.arange(_LENGTH).expand_as(rows)):
        return "position"
    # where all segments are 0, a lookup at row 0 may be of anything, unless there is no other row
    is_telling = len(weight) == 1 or bool(segments.any())
    if is_telling and torch.equal(rows, segments[:1].expand_as(rows)):
        return "segment"
    return None


def _memory(weight: Tensor) -> _Memory:
    return weight.data_ptr(), tuple(weight.shape)

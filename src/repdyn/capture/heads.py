"""Queries and keys: what the attention of each block compares, at the sampled tokens.

They are taken from the calls of torch's own attention, whose arguments are queries and keys by
definition: after the norms and the rotation of positions that a model applies to them. So no name
of a projection and no layout of a fused weight is guessed. A block that computes its attention by
other means (eagerly, by flash_attn or flex_attention) has none, and the reason says so.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

NO_CALL = (
    "nothing in the block calls torch's scaled_dot_product_attention, which would show its queries "
    "and keys; a transformers model does if it is loaded with attn_implementation='sdpa'"
)
NESTED = "the blocks lie inside one another"

_Layer: TypeAlias = tuple[str | None, int]
"""A stack and a layer."""


@dataclass(frozen=True)
class QueriesAndKeys:
    """Holds the queries and keys of the attention of one block."""

    queries: Tensor
    """(n_sampled, n_heads * dim), rows as in ``States.rows_of``, head after head."""
    keys: Tensor
    """The same shape: a key that several heads share is with each of them."""
    n_heads: int

    def by_head(self, vectors: Tensor) -> Tensor:
        """Return (n, n_heads * dim) as (n_heads, n, dim)."""
        return vectors.unflatten(1, (self.n_heads, -1)).movedim(1, 0)


class AttentionCalls(TorchFunctionMode):
    """A mode that hands on the queries and the keys of each attention that torch computes.

    Args:
        keep: called with both, (n_sequences, n_heads, length, dim), before the attention is
            computed.
    """

    def __init__(self, keep: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__()
        self._keep = keep

    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            of_call = {**dict(zip(("query", "key"), args, strict=False)), **kwargs}
            self._keep(of_call["query"], of_call["key"])
        elif name == "multi_head_attention_forward":
            # what it calls in turn is hidden from a mode
            of_call = _PARAMETERS.bind(*args, **kwargs).arguments
            self._keep(*_projected(of_call))
        return func(*args, **kwargs)


_PARAMETERS = inspect.signature(functional.multi_head_attention_forward)


def _projected(of_call: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the queries and keys of a call of ``multi_head_attention_forward``, which
    ``nn.MultiheadAttention`` makes, as it computes them itself.
    """
    if of_call.get("use_separate_proj_weight"):
        weights = (of_call["q_proj_weight"], of_call["k_proj_weight"])
    else:
        weights = of_call["in_proj_weight"].chunk(3)[:2]
    bias = of_call["in_proj_bias"]
    biases = (None, None) if bias is None else bias.chunk(3)[:2]
    inputs = (of_call["query"], of_call["key"])
    queries, keys = (
        # (length, n_sequences, n_heads * dim)
        functional.linear(rows, weight, of_part).unflatten(-1, (of_call["num_heads"], -1))
        for rows, weight, of_part in zip(inputs, weights, biases, strict=True)
    )
    return queries.movedim(0, -2), keys.movedim(0, -2)


class QueriesAndKeysRecorder:
    """Copies the queries and keys of the sampled tokens, layer by layer, as blocks run.

    Of several attentions in a block it takes the first, a decoder's self-attention.

    Args:
        rows_of: turns (n_sequences, length, dim) into rows of the batch that runs, None where they
            are not one for each token.
        select: returns the sampled ones of such rows.
        new_buffer: returns an empty tensor with a row for each sampled token of all batches.
    """

    def __init__(
        self,
        rows_of: Callable[[Tensor], Tensor | None],
        select: Callable[[Tensor], Tensor],
        new_buffer: Callable[[Tensor], Tensor],
    ) -> None:
        self._rows_of = rows_of
        self._select = select
        self._new_buffer = new_buffer
        self._by_layer: dict[_Layer, QueriesAndKeys | str] = {}
        self._running: list[_Layer] = []
        self._seen: set[_Layer] = set()
        """The layers whose attention has been computed in this batch."""
        self._target = torch.empty(0, dtype=torch.int64)

    def of(self, stack: str | None, layer: int) -> QueriesAndKeys | str | None:
        """Return what was recorded of a layer, or why nothing was; None of what is no block's
        output.
        """
        return self._by_layer.get((stack, layer))

    def begin(self, target: Tensor) -> AttentionCalls:
        """Begin with a batch, whose sampled tokens have these rows in the buffers; return the mode
        under which it runs.
        """
        self._running.clear()
        self._seen.clear()
        self._target = target
        return AttentionCalls(self._keep)

    def enter(self, layer: _Layer) -> None:
        """Begin with the block of a layer."""
        if self._running:
            self._by_layer[layer] = self._by_layer[self._running[-1]] = NESTED
        self._running.append(layer)

    def leave(self) -> None:
        """End with the block that was entered last."""
        layer = self._running.pop()
        if layer in self._seen:
            return
        recorded = self._by_layer.setdefault(layer, NO_CALL)
        if isinstance(recorded, QueriesAndKeys):
            # it was computed for an earlier batch; other ranks wait for a tensor from this one
            recorded.queries[self._target] = torch.nan
            recorded.keys[self._target] = torch.nan

    def _keep(self, queries: Tensor, keys: Tensor) -> None:
        if not self._running or self._running[-1] in self._seen:
            return
        layer = self._running[-1]
        self._seen.add(layer)
        if isinstance(self._by_layer.get(layer), str):
            return
        queries_of_tokens = self._of_tokens(queries)
        keys_of_tokens = None
        if keys.ndim == 4 and queries.shape[1] % keys.shape[1] == 0:
            shared_by = queries.shape[1] // keys.shape[1]
            keys_of_tokens = self._of_tokens(keys.repeat_interleave(shared_by, dim=1))
        if queries_of_tokens is None or keys_of_tokens is None:
            self._by_layer[layer] = (
                f"its attention compares queries of shape {tuple(queries.shape)} with keys of "
                f"shape {tuple(keys.shape)}, not one of each for each token and head"
            )
            return
        recorded = self._by_layer.get(layer)
        if not isinstance(recorded, QueriesAndKeys):
            recorded = self._by_layer[layer] = QueriesAndKeys(
                queries=self._new_buffer(queries_of_tokens),
                keys=self._new_buffer(keys_of_tokens),
                n_heads=queries.shape[1],
            )
        recorded.queries[self._target] = queries_of_tokens.to(recorded.queries)
        recorded.keys[self._target] = keys_of_tokens.to(recorded.keys)

    def _of_tokens(self, vectors: Tensor) -> Tensor | None:
        """Return (n_sequences, n_heads, length, dim) as rows of the sampled tokens, None where they
        are not.
        """
        if vectors.ndim != 4:
            return None
        rows = self._rows_of(vectors.transpose(1, 2).flatten(2))
        return None if rows is None else self._select(rows)[: len(self._target)]

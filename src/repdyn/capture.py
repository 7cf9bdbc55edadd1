"""Capture: each layer's states of any model, at the sampled tokens and nowhere else.

Layer 0 is what enters the first block (the embedding output); layer l is what block l puts out. For every family
alike the last layer is therefore the last block's output *before* a final normalisation, the same residual stream
as the layers below it. To measure the normalised output too, name its module in ``layers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repdyn.blocks import Blocks, Layers, find_blocks, listing, without_compilation
from repdyn.forward import Forward, call_with_tokens, device_of, smallest_with, undisturbed
from repdyn.layer_states import STATES_BYTES, Buffers, LayerStates, States
from repdyn.probe import Probe, ProbeBatch


def capture(
    model: nn.Module,
    probe: Probe,
    subsets: Sequence[str],
    layers: Layers = None,
    *,
    forward: Forward | None = None,
    tokens_per_forward: int = 8192,
    states_bytes: int = STATES_BYTES,
    progress: Callable[[float], None] | None = None,
) -> States:
    """Run the probe through the model once and keep the vectors that the subsets sample.

    The model is left as it was found: training flags module by module, hooks, gradients and RNG state.

    Args:
        model: a Hugging Face model or any module built of a list of blocks.
        probe: the tokens.
        subsets: whose samples to keep. Rows stand in the order of the first one's sample, whose metric batches are
            thereby slices; what only the others sample follows.
        layers: name pattern of the blocks, ``*`` standing for one part of a dotted name ("model.layers.*"), or
            several; None finds them.
        forward: ``forward(model, batch)`` runs the model on a :class:`repdyn.probe.ProbeBatch`; None calls it with
            ``input_ids`` and, where it takes one, ``attention_mask``.
        tokens_per_forward: bounds the size of one forward pass.
        states_bytes: how much the states may take in memory, all layers together, on the model's device; layers beyond
            wait in the system's temporary folder (TMPDIR).
        progress: called after each forward pass with the share of the probe that has run.

    Raises:
        ValueError: the blocks cannot be told; the message lists the candidates.
        RuntimeError: a block did not run, or its output is not one vector for each token.
        OSError: the temporary folder has too little space.
    """
    sampled = list(dict.fromkeys(np.concatenate([probe.sample(subset).ravel() for subset in subsets]).tolist()))
    rows = np.full(len(probe.tokens), -1)
    rows[sampled] = np.arange(len(sampled))
    batches = probe.batches(max(1, tokens_per_forward // int(probe.lengths.max())))
    return _run(model, _watched(batches, len(probe.tokens), progress), rows, layers, forward, states_bytes)


def _watched(
    batches: Iterable[ProbeBatch], n_tokens: int, progress: Callable[[float], None] | None
) -> Iterator[ProbeBatch]:
    for batch in batches:
        yield batch
        if progress:
            progress((batch.first_token + len(batch.positions)) / n_tokens)


def is_causal(
    model: nn.Module,
    probe: Probe,
    layers: Layers = None,
    *,
    forward: Forward | None = None,
    states_bytes: int = STATES_BYTES,
) -> bool | None:
    """Whether no position sees a later one: change the second half of a sequence, and look at the states of the first.

    Args: as for :func:`capture`.

    Returns:
        True for a decoder, False for an encoder, None where it cannot be told (states that are not finite, a probe
        of one and the same token).
    """
    longest = int(probe.lengths.argmax())
    tokens = probe.tokens.split(probe.lengths.tolist())[longest]
    vocabulary = probe.tokens.unique()
    if len(vocabulary) == 1:
        return None
    length, half = len(tokens), len(tokens) // 2
    changed = tokens.clone()
    changed[half:] = vocabulary[(torch.searchsorted(vocabulary, tokens[half:]) + 1) % len(vocabulary)]
    # Two passes of one shape, so that equal inputs meet the same arithmetic.
    batches = [
        ProbeBatch(ids[None], torch.ones(1, length, dtype=torch.long), np.arange(length), first_token=first)
        for ids, first in ((tokens, 0), (changed, length))
    ]
    last = _run(model, batches, np.arange(2 * length), layers, forward, states_bytes).layers[-1].states.double()
    before, after = last[:half], last[length : length + half]
    if not bool(last.isfinite().all()):
        return None
    # Equal but for rounding, which differs where tokens are sorted into batches of their own, as experts do.
    return bool((before - after).abs().max() <= 1e-5 * before.square().mean().sqrt())


def _run(
    model: nn.Module,
    batches: Iterable[ProbeBatch],
    rows: np.ndarray,
    layers: Layers,
    forward: Forward | None,
    states_bytes: int,
) -> States:
    model = without_compilation(model)
    blocks = find_blocks(model, layers)
    body = model if forward else smallest_with(blocks, model)
    call = forward or call_with_tokens
    recorder = _Recorder(blocks, rows, Buffers(states_bytes, n_expected=1 + len(blocks)), stacks=listing(model))
    device = device_of(model)
    with undisturbed(model), recorder.attached():
        for batch in batches:
            on_device = replace(
                batch, input_ids=batch.input_ids.to(device), attention_mask=batch.attention_mask.to(device)
            )
            with recorder.expecting(batch):
                call(body, on_device)
    return recorder.states()


class _Recorder:
    """Forward hooks that copy the sampled rows of what passes, layer by layer in the order the blocks run."""

    def __init__(self, blocks: Blocks, rows: np.ndarray, buffers: Buffers, stacks: str) -> None:
        self._blocks = blocks
        self._stacks = stacks
        self._rows = rows
        self._buffers = buffers
        self._kept: list[tuple[str, Tensor, torch.device]] = []
        self._n_calls: int | None = None  # as many as in the first batch

    @contextmanager
    def attached(self) -> Iterator[None]:
        handles = []
        try:
            for name, block in self._blocks:
                handles.append(block.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True))
                handles.append(block.register_forward_hook(partial(self._leave, name)))
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def expecting(self, batch: ProbeBatch) -> Iterator[None]:
        """While one batch passes: know which of its rows are sampled, and afterwards that every block ran."""
        rows = self._rows[batch.first_token :][: len(batch.positions)]
        self._target = torch.from_numpy(rows[rows >= 0])
        self._source = torch.from_numpy(batch.positions[rows >= 0])
        self._shape = tuple(batch.input_ids.shape)
        self._calls: list[str] = []
        yield
        silent = [name for name, _ in self._blocks if name not in self._calls]
        if silent:
            raise RuntimeError(
                f"expected every block to run, but {len(silent)} of {len(self._blocks)} did not: {_few(silent)}; the "
                f"forward pass does not go through them. Name the blocks it does go through with layers=; the "
                f"model has {self._stacks}"
            )
        self._n_calls = self._n_calls or len(self._calls)
        if len(self._calls) != self._n_calls:
            raise RuntimeError(
                f"expected the same number of block calls for every batch, got {len(self._calls)} after "
                f"{self._n_calls}; name the blocks that always run with layers="
            )

    def states(self) -> States:
        last = len(self._kept) - 1
        return States([LayerStates(i, i / last, *kept) for i, kept in enumerate(self._kept)], self._rows)

    def _enter(self, name: str, _module: nn.Module, args: tuple, kwargs: dict) -> None:
        if not self._calls:
            self._keep(0, name, (*args, *(kwargs[k] for k in _STATE_ARGUMENTS if k in kwargs)))

    def _leave(self, name: str, _module: nn.Module, _args: tuple, output: Any) -> None:
        self._calls.append(name)
        self._keep(len(self._calls), name, output)

    def _keep(self, layer: int, name: str, value: Any) -> None:
        states = self._as_rows(name, value)
        if self._n_calls is None:
            self._kept.append((name, self._buffers.new(int(self._rows.max()) + 1, states), states.device))
        if layer < len(self._kept):  # a call too many is refused when the batch has passed
            buffer = self._kept[layer][1]
            buffer[self._target] = states[self._source.to(states.device)].to(buffer)

    def _as_rows(self, name: str, value: Any) -> Tensor:
        """(n_sequences * length, dim), whichever way round the block has its first two dimensions."""
        parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else [value]
        states = next((part for part in parts if isinstance(part, Tensor)), None)
        if states is not None and states.ndim == 3 and states.is_floating_point():
            if tuple(states.shape[:2]) == self._shape:
                return states.flatten(0, 1)
            if tuple(states.shape[:2]) == self._shape[::-1]:
                return states.transpose(0, 1).flatten(0, 1)
        received = f"{tuple(states.shape)} of {states.dtype}" if states is not None else type(value).__name__
        raise RuntimeError(
            f"expected states of shape {(*self._shape, 'dim')} at {name!r}, got {received}; name blocks that pass one "
            "vector for each token with layers="
        )


# Names under which families pass the states to a block as a keyword.
_STATE_ARGUMENTS = ("hidden_states", "src", "x", "input", "inputs")


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")

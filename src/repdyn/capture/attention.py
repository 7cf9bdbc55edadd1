"""Attention weights of every layer, on a part of the probe.

Fused attention never has its weights in memory, so Hugging Face models are told to compute eagerly for these few
forward passes. What modules inside a block put out is looked through for weights (an attention puts them out, or the
dropout upon them), so that layers are numbered as in :mod:`repdyn.capture.capture`.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from repdyn.capture.attention_weights import weights_in
from repdyn.capture.blocks import Block, Blocks, LayerPatterns, find_blocks, unwrapped
from repdyn.capture.forward import (
    Forward,
    call_with_tokens,
    check_no_prompt_tuning,
    device_of,
    evaluation_mode,
    smallest_with,
)
from repdyn.capture.fsdp import inside_fsdp_root
from repdyn.capture.states import STATES_BYTES, Buffers
from repdyn.capture.token_states import TokenPositions, TokenStates
from repdyn.kernels import Undefined
from repdyn.probe import Probe, ProbeBatch

TOKENS = 2048
"""The first sequences of the probe are looked at, so many tokens in all, unless others are asked for."""
LENGTH = 256
"""Each sequence is cut to so many tokens: weights take the square of it in every head, all layers at once."""


@dataclass(frozen=True)
class AttentionWeights:
    """What the positions of the first sequences of a probe attend to, in every layer."""

    tokens: Sequence[np.ndarray]
    """Of each sequence, the numbers of its tokens in the probe, (n,)."""
    kept: Mapping[tuple[str | None, int], _Kept | str]
    """By stack and layer the weights, or the reason why there are none."""
    reason: str = ""
    """Why there are none at all."""

    def of(self, stack: str | None, layer: int) -> list[tuple[Tensor, np.ndarray]]:
        """Weights (heads, n, n), from each position to each, and numbers of the tokens (n,), sequence by sequence.

        Args:
            stack: name of the stack, None in a model that has one.
            layer: as :func:`repdyn.capture.capture.capture` numbers them: layer l is the l-th block that runs. Of
                several attentions in a block it is the first, which a decoder pays to itself.

        Returns:
            Weights on the device where the model had them.

        Raises:
            Undefined: the layer has no attention weights.
        """
        kept = self.kept.get((stack, layer), "no block ran as this layer" if layer else "it is no block's output")
        if self.reason or isinstance(kept, str):
            raise Undefined(self.reason or str(kept))
        return [(kept.sequence(number).to(kept.device), tokens) for number, tokens in enumerate(self.tokens)]


def attention_weights(
    model: nn.Module,
    probe: Probe,
    layers: LayerPatterns = None,
    *,
    forward: Forward | None = None,
    token_positions: TokenPositions | None = None,
    n_tokens: int = TOKENS,
    states_bytes: int = STATES_BYTES,
    root_module: nn.Module | None = None,
) -> AttentionWeights:
    """Run the first sequences of the probe through the model, one by one, and keep every layer's attention weights.

    The model is left as it was found, as by :func:`repdyn.capture.capture.capture`, and so is its configuration.

    Args:
        model: a Hugging Face model; or any module built of a list of blocks in which there is an
            ``nn.MultiheadAttention``, or another module that puts out weights.
        probe: the tokens; of its sequences the first :data:`LENGTH` tokens.
        layers, forward, token_positions, root_module: as for :func:`repdyn.capture.capture.capture`. Weights between
            positions of which one is no token's are left out.
        n_tokens: how many in all, from the first sequence on.
        states_bytes: how much the weights may take in memory, all layers together, on the model's device; layers beyond
            wait in the system's temporary folder.

    Returns:
        The weights; for a layer that has none to show, or a model that does not compute them, the reason.

    Raises:
        ValueError: the blocks cannot be told.
    """
    outer = model if root_module is None else root_module
    model = unwrapped(model)
    check_no_prompt_tuning(model, token_positions)
    blocks = find_blocks(model, layers)
    body = model if forward else smallest_with(blocks, model)
    batches = list(_first_sequences(probe, n_tokens))
    sizes, buffers = [len(batch.positions) for batch in batches], Buffers(states_bytes, len(blocks))
    listener = _Listener(blocks, sizes, buffers, TokenStates(token_positions))
    device = device_of(model, outer)
    reason = ""
    with (
        evaluation_mode(model, device),
        computed_eagerly(model),
        listener.attached(),
        inside_fsdp_root(outer, body) as run,
    ):
        try:
            for batch in batches:
                ids, mask = batch.input_ids.to(device), batch.attention_mask.to(device)
                with listener.next_sequence(batch):
                    run(partial(forward or call_with_tokens, body, replace(batch, input_ids=ids, attention_mask=mask)))
        except Exception as error:  # what is wrong beside its attention, capture says
            reason = f"the model does not run with eager attention: {type(error).__name__}: {error}"
    return AttentionWeights([batch.tokens for batch in batches], listener.kept, reason)


def _first_sequences(probe: Probe, n_tokens: int) -> Iterator[ProbeBatch]:
    """One by one, so that none is padded, and no more than one sequence's weights are at hand beside what is kept.

    None is cut for want of room: a few positions tell less than many, and would weigh as much.
    """
    left, first_token = n_tokens, 0
    for tokens in probe.tokens.split(probe.lengths.tolist()):
        cut = tokens[:LENGTH]
        if len(cut) > left:
            return
        if len(cut) > 1:
            positions = np.arange(len(cut))
            yield ProbeBatch(cut[None], torch.ones_like(cut[None]), positions, first_token + positions)
            left -= len(cut)
        first_token += len(tokens)


@contextmanager
def computed_eagerly(model: nn.Module) -> Iterator[None]:
    """Attention computed step by step in the Hugging Face models inside; their configurations as before on leaving.

    It is what ``set_attn_implementation("eager")`` does, without its reports. Models that chose their attention when
    they were built take no notice. Those that put out weights only when asked are asked; the others would have hooks
    put upon them by that, and need not be.
    """
    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    unasked = {id(one.config) for one in models if getattr(one, "_can_record_outputs", None)}
    configs = {id(config): config for one in models for config in _with_parts(one.config)}
    before = [(config, dict(vars(config))) for config in configs.values()]
    try:
        for config in configs.values():
            vars(config)["_attn_implementation_internal"] = "eager"
            if id(config) not in unasked:
                vars(config)["_output_attentions"] = True
        yield
    finally:
        for config, fields in before:
            vars(config).clear()
            vars(config).update(fields)


def _with_parts(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    yield config
    for part in vars(config).values():
        if isinstance(part, PreTrainedConfig):
            yield from _with_parts(part)


@dataclass(frozen=True)
class _Kept:
    """The weights of one layer, sequence after sequence."""

    rows: Tensor
    """(sum of heads * n over sequences, largest n)."""
    n_heads: int
    sizes: Sequence[int]
    """n of each sequence."""
    device: torch.device
    """Where the model had them."""

    def sequence(self, number: int) -> Tensor:
        """(heads, n, n), a view."""
        n = self.sizes[number]
        rows = self.rows.split([self.n_heads * size for size in self.sizes])[number]
        return rows.unflatten(0, (self.n_heads, n))[:, :, :n]


@dataclass
class _Call:
    """A block while it runs."""

    block: Block
    weights: Tensor | None = None


class _Listener:
    """Finds the weights that modules inside the blocks put out, one sequence after the other.

    Args:
        blocks: of which the l-th call in a stack is layer l.
        sizes: tokens of each sequence.
        buffers: makes the buffer of each layer.
        token_states: tells which positions are the tokens'.
    """

    def __init__(self, blocks: Blocks, sizes: Sequence[int], buffers: Buffers, token_states: TokenStates) -> None:
        self._blocks = blocks
        self._sizes = sizes
        self._buffers = buffers
        self._token_states = token_states
        self._number = -1
        self.kept: dict[tuple[str | None, int], _Kept | str] = {}

    @contextmanager
    def attached(self) -> Iterator[None]:
        with ExitStack() as hooks:

            def add(register: Callable[..., Any], hook: Callable[..., Any], **how: Any) -> None:
                hooks.callback(register(hook, **how).remove)

            for block in self._blocks:
                add(block.module.register_forward_pre_hook, partial(self._enter, block))
            for module in dict.fromkeys(inner for block in self._blocks for inner in block.module.modules()):
                question = _Question() if type(module).forward is nn.MultiheadAttention.forward else None
                if question:
                    add(module.register_forward_pre_hook, question.ask, with_kwargs=True)
                add(module.register_forward_hook, self._hear)
                if question:
                    add(module.register_forward_hook, question.answer)
            for block in self._blocks:
                add(block.module.register_forward_hook, self._leave)
            yield

    @contextmanager
    def next_sequence(self, batch: ProbeBatch) -> Iterator[None]:
        """While one more sequence passes."""
        self._token_states.begin(batch)
        self._number += 1
        self._running: list[_Call] = []
        self._n_calls: Counter[str | None] = Counter()
        yield

    def _enter(self, block: Block, _module: nn.Module, _args: Any) -> None:
        self._running.append(_Call(block))

    def _hear(self, _module: nn.Module, _args: Any, output: Any) -> None:
        if self._running and self._running[-1].weights is None:
            self._running[-1].weights = weights_in(output, self._token_states)

    def _leave(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        call = self._running.pop()
        self._n_calls[call.block.stack] += 1
        layer = call.block.stack, self._n_calls[call.block.stack]
        if call.weights is None:
            self.kept[layer] = f"nothing in {call.block.name!r} puts out attention weights, from each token to each"
            return
        kept = self.kept[layer] if layer in self.kept else self._room_for(call.weights)
        if isinstance(kept, _Kept):
            kept.sequence(self._number).copy_(call.weights)
        self.kept[layer] = kept

    def _room_for(self, weights: Tensor) -> _Kept:
        n_heads = len(weights)
        rows = self._buffers.new(n_heads * sum(self._sizes), weights.new_empty(0, max(self._sizes)))
        return _Kept(rows, n_heads, self._sizes, weights.device)


class _Question:
    """Has an ``nn.MultiheadAttention`` compute its weights head by head, and gives its caller what that asked for."""

    def __init__(self) -> None:
        self._asked: list[tuple[bool, bool]] = []

    def ask(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        given = inspect.signature(module.forward).bind(*args, **kwargs)
        given.apply_defaults()
        self._asked.append((given.arguments["need_weights"], given.arguments["average_attn_weights"]))
        given.arguments.update(need_weights=True, average_attn_weights=False)
        return given.args, given.kwargs

    def answer(self, _module: nn.Module, _args: Any, output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
        states, weights = output
        needed, averaged = self._asked.pop()
        if not needed:
            return states, None
        return states, weights.mean(dim=-3) if averaged else weights

"""Attention weights of every layer, on a part of the probe.

Fused attention never has its weights in memory, so Hugging Face models are set to compute eagerly
for these few forward passes. The weights are searched for in the outputs of the modules inside a
block (an attention returns them, or the dropout applied to them), so that layers are numbered as in
:mod:`repdyn.capture.capture`.
"""

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repdyn.capture.blocks import Block
from repdyn.capture.forward import contents_restored
from repdyn.capture.model import RunnableModel
from repdyn.capture.states import STATES_BYTES, Buffers
from repdyn.capture.token_states import Slot, by_slot, exact_device, watched
from repdyn.capture.wrappers import is_a
from repdyn.kernels import UndefinedError
from repdyn.probe import Probe, ProbeBatch
from repdyn.utils.caller_state import plain_state

TOKENS = 2048
"""How many tokens are examined by default, from the first sequence of the probe on."""
LENGTH = 256
"""Each sequence is cut to this many tokens: weights take the square of it in every head, all layers
at once.
"""


@dataclass(frozen=True)
class AttentionWeights:
    """The attention weights of the first sequences of a probe, in every layer."""

    tokens: Sequence[np.ndarray]
    """For each sequence, the numbers of its tokens in the probe, (n,)."""
    layers: Mapping[tuple[str | None, int], list[tuple[Tensor, torch.device]] | str]
    """By stack and layer the weights of each sequence and where the model had them, or why there
    are none.
    """
    reason: str = ""
    """Why there are none at all."""

    def of(self, stack: str | None, layer: int) -> list[tuple[Tensor, np.ndarray]]:
        """Return weights (heads, n, n), from each position to each, and numbers of the tokens (n,),
        by sequence.

        Args:
            stack: name of the stack, None in a model that has one.
            layer: as :func:`repdyn.capture.capture.capture` numbers them: layer l is the l-th block
                that runs. Of several attentions in a block it is the first, a decoder's
                self-attention.

        Returns:
            Weights on the device where the model had them, if it has float64.

        Raises:
            UndefinedError: the layer has no attention weights.
        """
        sequences = self.layers.get(
            (stack, layer), "no block ran as this layer" if layer else "it is no block's output"
        )
        if self.reason or isinstance(sequences, str):
            raise UndefinedError(self.reason or str(sequences))
        return [
            (weights.to(device), at)
            for (weights, device), at in zip(sequences, self.tokens, strict=True)
        ]


@plain_state()
def attention_weights(
    model: RunnableModel, probe: Probe, *, n_tokens: int = TOKENS
) -> AttentionWeights:
    """Run the first sequences of the probe through the model, one by one, and keep every layer's
    attention weights.

    The model and its configuration are left unchanged, as by
    :func:`repdyn.capture.capture.capture`.

    Args:
        model: made by :func:`repdyn.capture.trial.prepare` from a Hugging Face model, or
            from any module built of a list of blocks in which there is an
            ``nn.MultiheadAttention``, or another module that returns weights.
        probe: the tokens; the first :data:`LENGTH` tokens of each sequence.
        n_tokens: total number of tokens, from the first sequence on.

    Returns:
        The weights; for a layer without any, or a model that does not compute them, the reason.
    """
    batches = list(_first_sequences(probe, n_tokens))
    search = _Search()
    reason = ""
    with model.evaluating() as run, eager_attention(run.model.module), ExitStack() as hooks:
        blocks = run.model.blocks
        hooks.enter_context(watched(blocks, search.enter))
        for module in dict.fromkeys(inner for block in blocks for inner in block.module.modules()):
            hook = module.register_forward_hook(search.look, with_kwargs=True)
            hooks.enter_context(hook)
        hooks.enter_context(watched(blocks, leave=search.leave))
        try:
            for batch in batches:
                search.begin(batch)
                run(batch)
        except Exception as error:  # errors outside its attention appear in capture
            cause = error.__cause__ or error
            reason = f"the model does not run with eager attention: {type(cause).__name__}: {cause}"
    return AttentionWeights([batch.tokens for batch in batches], search.layers, reason)


class _Search:
    """Looks in what the modules inside of blocks put out for the attention weights of each layer,
    as one sequence after the other runs.
    """

    def __init__(self) -> None:
        self.layers: dict[tuple[str | None, int], list[tuple[Tensor, torch.device]] | str] = {}
        self._buffers = Buffers(STATES_BYTES)
        self._running: list[Tensor | None] = []
        """The weights that the blocks which have been entered have put out so far."""
        self._n_calls = Counter[str | None]()
        """The l-th call of a block in a stack is layer l."""
        self._n_tokens = 0

    def begin(self, batch: ProbeBatch) -> None:
        """Begin with a sequence, which runs next."""
        self._running.clear()
        self._n_calls.clear()
        self._n_tokens = batch.input_ids.shape[1]

    def enter(self, _block: Block, _taken: Mapping[Slot, Any]) -> None:
        """Begin with a block."""
        self._running.append(None)

    def look(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        """Keep the weights that a module inside of a block puts out, if they are the first."""
        if not self._running or self._running[-1] is not None:
            return
        # which is asked for what its block does not want
        if type(module).forward is nn.MultiheadAttention.forward:
            call = inspect.signature(module.forward).bind(*args, **kwargs)
            call.arguments.update(need_weights=True, average_attn_weights=False)
            output = module.forward(*call.args, **call.kwargs)
        self._running[-1] = find_weights(by_slot(output), self._n_tokens)

    def leave(self, block: Block, _returned: Mapping[Slot, Any]) -> None:
        """Keep the weights of a block as those of its layer."""
        weights = self._running.pop()
        self._n_calls[block.stack] += 1
        layer = block.stack, self._n_calls[block.stack]
        sequences = self.layers.setdefault(layer, [])
        if weights is None:
            self.layers[layer] = (
                f"nothing in {block.name!r} puts out attention weights, from each token to each"
            )
        elif not isinstance(sequences, str):
            rows = weights.flatten(0, 1)
            buffer = self._buffers.new(len(rows), rows)
            copied = buffer.copy_(rows).unflatten(0, (len(weights), -1))
            sequences.append((copied, exact_device(weights.device)))


def _first_sequences(probe: Probe, n_tokens: int) -> Iterator[ProbeBatch]:
    """Yield sequences one by one, so that none is padded and one sequence's weights at a time are
    in memory.

    The last one is not cut to fit: a few positions show less than many, and would weigh as much.
    """
    for batch in probe.batches(1):
        ids = batch.input_ids[:, :LENGTH]
        mask = batch.attention_mask[:, :LENGTH]
        n = ids.shape[1]
        if n > n_tokens:
            return
        if n > 1:
            yield ProbeBatch(
                input_ids=ids,
                attention_mask=mask,
                positions=np.arange(n),
                tokens=batch.tokens[:n],
            )
            n_tokens -= n


@contextmanager
def eager_attention(model: nn.Module) -> Iterator[None]:
    """Compute attention step by step in the Hugging Face models inside; restore their
    configurations on leaving.

    It is what ``set_attn_implementation("eager")`` does, without its messages. Models that chose
    their attention when they were built ignore it. ``output_attentions`` is set only for models
    that return weights on request alone: the others would attach hooks because of it.
    """
    models = [module for module in model.modules() if is_a(module, "transformers.PreTrainedModel")]
    recording = {
        id(model_of_library.config)
        for model_of_library in models
        if getattr(model_of_library, "_can_record_outputs", None)
    }
    values = [
        config
        for model_of_library in models
        for config in (model_of_library.config, *vars(model_of_library.config).values())
    ]
    configs = {
        id(config): config
        for config in values
        if is_a(config, "PreTrainedConfig", "PretrainedConfig")
    }
    with contents_restored(map(vars, configs.values())):
        for config in configs.values():
            vars(config)["_attn_implementation_internal"] = "eager"
            if id(config) not in recording:
                vars(config)["_output_attentions"] = True
        yield


_EXCESS = 0.02
"""How far a row of weights may exceed a sum of 1, in half precision."""


def find_weights(returned: Mapping[Slot, Any], n: int) -> Tensor | None:
    """Return the attention weights (heads, n, n) among a module's outputs for one sequence: shares
    that sum to 1.
    """
    for tensor in returned.values():
        if (
            not isinstance(tensor, Tensor)
            or not tensor.is_floating_point()
            or tensor.ndim not in {3, 4}
        ):
            continue
        weights = tensor[0] if tensor.ndim == 4 and len(tensor) == 1 else tensor
        # (1, n, n) may be the sequence's states
        if (
            weights.ndim != 3
            or weights.shape[1:] != (n, n)
            or (tensor.ndim == 3 and len(tensor) == 1)
        ):
            continue
        sums = weights.sum(dim=-1, dtype=torch.float32)
        if (weights >= 0).all() and (sums > 0).all() and (sums <= 1 + _EXCESS).all():
            return weights
    return None

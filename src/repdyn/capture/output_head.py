"""The output head of any language model: the modules between its last block and its logits.

They are found by what flows through them: in a forward pass, each takes what the one before returned, from the states
that the last block puts out to the logits. A head is only returned where these modules, run by themselves on the same
states in another order, give the model's own logits up to rounding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from repdyn.capture.after_attention import inputs_by_slot, outputs_by_slot
from repdyn.capture.blocks import hugging_face_model
from repdyn.capture.forward import Forward, evaluation_mode
from repdyn.capture.fsdp import is_sharded
from repdyn.capture.prepared_model import PreparedModel
from repdyn.probe import ProbeBatch

NO_LOGITS = "the model returns no logits: it has no output head, or was loaded without it"
SHARDED = "the weights of the output head are sharded over processes"
SEVERAL_STACKS = "the model has several stacks of blocks"
NO_NORM = "the model has no norm after its last block"
NO_LAST_STATE = "the model returns no last_hidden_state"
NOT_A_CHAIN = "no modules lead from the states of the last block to the logits, each taking what the one before returns"
NOT_FINITE = "the model's logits are not finite"
NOT_REPRODUCED = "the modules after the last block do not reproduce the model's logits by themselves"

# rounding errors of the largest logit
_TOLERANCE = 32


class OutputScale(NamedTuple):
    """A factor and a soft cap that a model applies to the output of its last module, in this order."""

    factor: float = 1.0
    cap: float | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        scaled = logits if self.factor == 1 else logits * self.factor
        return scaled if self.cap is None else self.cap * torch.tanh(scaled / self.cap)


@dataclass(frozen=True, eq=False)
class OutputHead:
    """A function that maps states of a block, usually the last one, to logits."""

    modules: nn.ModuleList
    """Applied in turn: usually a final norm and the unembedding."""
    scale: OutputScale
    device: torch.device

    def __call__(self, states: Tensor) -> Tensor:
        """Return the logits (n, vocabulary) of states (n, dim), on the model's device and without gradients."""
        with evaluation_mode(self.modules, self.device):
            values = states.to(self.device).unsqueeze(0)
            for module in self.modules:
                values = module(values)
            return self.scale(values).squeeze(0)


class _Call(NamedTuple):
    module: nn.Module
    taken: Tensor
    returned: Tensor


def find_output_head(model: PreparedModel, input_ids: Tensor) -> OutputHead | str:
    """Return the output head of a model, or the reason why it has none.

    Args:
        model: prepared with its head, as an instance of ``AutoModelForCausalLM`` or ``AutoModelForMaskedLM``.
        input_ids: (n_sequences, length) tokens that it is tried on.
    """
    if reason := _unsupported(model):
        return reason
    last, calls, output = _run(model, input_ids, model.module, model.forward)
    logits = _logits(output, model.module, {part.shape[-1] for part in last})
    if logits is None:
        return NO_LOGITS
    return _head_between(last, calls, logits, _soft_cap(model.module), model.device)


def find_final_norm(model: PreparedModel, input_ids: Tensor) -> OutputHead | str:
    """Return the modules between a model's last block and its unembedding, or the reason why they are not known.

    In a Hugging Face model these modules compute ``last_hidden_state``; in any other they are all modules of its output
    head except the last one. Usually there is one, the final norm.

    Args:
        model, input_ids: as for :func:`find_output_head`; a Hugging Face model need not have a head.
    """
    if reason := _unsupported(model):
        return reason
    if (whole := hugging_face_model(model.module)) is None:
        head = find_output_head(model, input_ids)
        if isinstance(head, str):
            return head
        return replace(head, modules=head.modules[:-1], scale=OutputScale()) if len(head.modules) > 1 else NO_NORM
    last, calls, output = _run(model, input_ids, whole.base_model, None)
    states = getattr(output, "last_hidden_state", None)
    if not isinstance(states, Tensor):
        return NO_LAST_STATE
    if any(_equal(part, states.reshape(-1, states.shape[-1])) for part in last):
        return NO_NORM
    return _head_between(last, calls, states, None, model.device)


def _unsupported(model: PreparedModel) -> str | None:
    if len(model.stacks) > 1:
        return SEVERAL_STACKS
    return SHARDED if is_sharded(model.root_module) else None


def _head_between(
    last: list[Tensor], calls: list[_Call], wanted: Tensor, cap: float | None, device: torch.device
) -> OutputHead | str:
    """Return the head that maps the output of the last block to the wanted tensor, or the reason why there is none."""
    if not bool(wanted.isfinite().all()):
        return NOT_FINITE
    for start in last:
        if (found := _chain(start, calls, wanted, cap)) is not None:
            head = OutputHead(nn.ModuleList(found[0]), found[1], device)
            return head if _reproduces(head, start, wanted) else NOT_REPRODUCED
    return NOT_A_CHAIN


def _run(
    model: PreparedModel, input_ids: Tensor, module: nn.Module, forward: Forward | None
) -> tuple[list[Tensor], list[_Call], Any]:
    """Run a module; return the outputs of the last block, the calls of modules outside the blocks, and its output.

    Args:
        module: the module to run: the model, or a part of it that contains all blocks.
        forward: function that runs it on a batch; None to call it with the tokens.
    """
    blocks = [block.module for block in model.blocks]
    inside = {module for block in blocks for module in block.modules()}
    outside = [m for m in model.module.modules() if m not in inside and not set(blocks) & set(m.modules())]
    last: list[Tensor] = []
    calls: list[_Call] = []

    def keep_last(_module: nn.Module, _args: tuple, output: Any) -> None:
        last[:] = _states(outputs_by_slot(output))

    def keep_call(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        taken, returned = _states(inputs_by_slot(args, kwargs)), _states(outputs_by_slot(output))
        if len(taken) == len(returned) == 1:
            calls.append(_Call(module, taken[0], returned[0]))

    n_tokens = np.arange(input_ids.numel())
    ids = input_ids.to(model.device)
    batch = ProbeBatch(ids, torch.ones_like(ids), n_tokens, n_tokens)
    forward = forward or partial(model.way, logits=True)
    with ExitStack() as hooks, evaluation_mode(model.module, model.device):
        hooks.enter_context(blocks[-1].register_forward_hook(keep_last))
        for each in outside:
            hooks.enter_context(each.register_forward_hook(keep_call, with_kwargs=True))
        output = forward(module, batch)
    return last, calls, output


def _logits(output: Any, model: nn.Module, dims: Collection[int]) -> Tensor | None:
    """Return the logits in the output of a model.

    An unnamed tensor is taken for logits if its last dimension is the number of input embeddings and differs from the
    width of the states, which a model without a head returns.
    """
    named = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named
    embeddings = (module for module in model.modules() if isinstance(module, nn.Embedding))
    vocabularies = {module.num_embeddings for module in embeddings} - {*dims}
    parts = output if isinstance(output, tuple | list) else [output]
    return next((p for p in parts if isinstance(p, Tensor) and p.ndim == 3 and p.shape[-1] in vocabularies), None)


def _states(parts: Any) -> list[Tensor]:
    """Return the floating-point tensors among arguments or outputs, as rows."""
    tensors = [part for part in parts.values() if isinstance(part, Tensor)]
    return [part.reshape(-1, part.shape[-1]) for part in tensors if part.is_floating_point() and part.ndim > 1]


def _chain(
    start: Tensor, calls: list[_Call], logits: Tensor, cap: float | None
) -> tuple[list[nn.Module], OutputScale] | None:
    """Return the shortest chain of modules from the states to the logits, and the scale of the last one's output."""
    wanted = logits.reshape(-1, logits.shape[-1])
    reached: deque[tuple[Tensor, list[nn.Module]]] = deque([(start, [])])
    left = list(calls)
    while reached:
        states, modules = reached.popleft()
        if modules and (scale := _scale_between(states, wanted, cap)) is not None:
            return modules, scale
        following = [call for call in left if _equal(call.taken, states)]
        left = [call for call in left if not any(call is other for other in following)]
        reached.extend((call.returned, [*modules, call.module]) for call in following)
    return None


def _scale_between(output: Tensor, logits: Tensor, cap: float | None) -> OutputScale | None:
    """Return the scale that maps a module's output to the logits; None if there is none."""
    if output.shape != logits.shape:
        return None
    a, b = output.double(), logits.double()
    factor = float((a * b).sum() / a.square().sum()) if bool(a.any()) else 1.0
    # the cap first: it changes small logits by less than their rounding
    scales = [*([OutputScale(cap=cap)] if cap else []), OutputScale(), OutputScale(factor)]
    return next((scale for scale in scales if _close(scale(output), logits, output.dtype)), None)


def _reproduces(head: OutputHead, start: Tensor, logits: Tensor) -> bool:
    """Return whether the head gives the logits when it gets the positions in the reverse order."""
    try:
        found = head(start.flip(0))
    except Exception:  # modules of any model may need more than the states of single positions
        return False
    wanted = logits.reshape(-1, logits.shape[-1]).flip(0)
    return found.shape == wanted.shape and _close(found, wanted, start.dtype)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.device == other.device and torch.equal(one, other)


def _close(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> bool:
    coarser = max(torch.finfo(dtype).eps, torch.finfo(wanted.dtype).eps)
    allowed = _TOLERANCE * coarser * wanted.double().abs().amax()
    return bool((found.double() - wanted.double()).abs().amax() <= allowed)


def _soft_cap(model: nn.Module) -> float | None:
    whole = hugging_face_model(model)
    return None if whole is None else getattr(whole.config.get_text_config(), "final_logit_softcapping", None)

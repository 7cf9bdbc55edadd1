"""The output head of any language model: the modules between its last block and its logits.

They are found by what flows through them: in a forward pass, each takes what the one before
returned, from the states that the last block puts out to the logits. A head is only returned where
these modules, run by themselves on the same states in another order, give the model's own logits up
to rounding.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from repdyn.capture.calls import as_batch
from repdyn.capture.forward import restoring
from repdyn.capture.model import RunnableModel, RunningModel
from repdyn.capture.token_states import Slot, are_equal, watched, widened
from repdyn.capture.wrappers import is_sharded
from repdyn.probe import ProbeBatch

NO_LOGITS = "the model returns no logits: it has no output head, or was loaded without it"
SHARDED = "the weights of the output head are sharded over processes"
SEVERAL_STACKS = "the model has several stacks of blocks"
NO_NORM = "the model has no norm after its last block"
NO_LAST_STATE = "the model returns no last_hidden_state"
NOT_A_CHAIN = (
    "no modules lead from the states of the last block to the logits, each taking what the one "
    "before returns"
)
NOT_FINITE = "the model's logits are not finite"
NOT_REPRODUCED = (
    "the modules after the last block do not reproduce the model's logits by themselves"
)

# rounding errors of the largest logit
_TOLERANCE = 32


class OutputScale(NamedTuple):
    """A factor and a soft cap that a model applies to the output of its last module, in
    this order.
    """

    factor: float = 1.0
    cap: float | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        scaled = logits if self.factor == 1 else logits * self.factor
        return scaled if self.cap is None else self.cap * torch.tanh(scaled / self.cap)


@dataclass(frozen=True, eq=False)
class OutputHead:
    """A function that maps states of a block, usually the last one, to logits."""

    modules: nn.ModuleList
    """Applied in turn, usually a final norm and the unembedding: of a shadow, or of the model."""
    scale: OutputScale
    device: torch.device

    def __call__(self, states: Tensor) -> Tensor:
        """Return the logits (n, vocabulary) of states (n, dim), on the device of the states and
        without gradients.
        """
        with restoring(self.modules, self.device):
            values = states.to(self.device).unsqueeze(0)
            for module in self.modules:
                values = module(values)
            return self.scale(values).squeeze(0).to(states.device)


class _Call(NamedTuple):
    module: nn.Module
    taken: Tensor
    returned: Tensor


def find_final_norm(model: RunnableModel, input_ids: Tensor) -> OutputHead | str:
    """Return the modules between a model's last block and its unembedding, or the reason why they
    are not known.

    In a Hugging Face model, with a head or without, these modules compute ``last_hidden_state``; in
    any other they are all modules of its output head except the last one. Usually there is one, the
    final norm.
    """
    if model.whole is not None:
        return find_output_head(model, input_ids, to_last_state=True)
    head = find_output_head(model, input_ids)
    if isinstance(head, str):
        return head
    return (
        replace(head, modules=head.modules[:-1], scale=OutputScale())
        if len(head.modules) > 1
        else NO_NORM
    )


def find_output_head(
    model: RunnableModel, input_ids: Tensor, *, to_last_state: bool = False
) -> OutputHead | str:
    """Return the output head of a model, or the reason why it has none.

    Args:
        model: prepared with its head, as an instance of ``AutoModelForCausalLM`` or
            ``AutoModelForMaskedLM``.
        input_ids: (n_sequences, length) tokens that it is tried on.
        to_last_state: return the modules that lead to ``last_hidden_state`` instead.
    """
    if len(model.stacks) > 1:
        return SEVERAL_STACKS
    if is_sharded(model.root_module):
        return SHARDED
    with model.evaluating() as run:
        whole = run.model.whole
        called = whole.base_model if whole is not None and to_last_state else None
        output, last, calls = _watched_pass(run, as_batch(input_ids), called)
        cap = None
        if to_last_state:
            logits = _last_state(output, last)
        else:
            logits = _logits(output, run.model.module, {states.shape[-1] for states in last})
            if whole is not None:
                cap = getattr(whole.config.get_text_config(), "final_logit_softcapping", None)
        if isinstance(logits, str):
            return logits
        if not bool(logits.isfinite().all()):
            return NOT_FINITE
        for start in last:
            chain = _chain(start, calls, logits, cap)
            if chain is not None:
                modules, scale = chain
                head = OutputHead(nn.ModuleList(modules), scale, run.model.device)
                return head if _reproduces(head, start, logits) else NOT_REPRODUCED
        return NOT_A_CHAIN


def _watched_pass(
    run: RunningModel, batch: ProbeBatch, called: nn.Module | None
) -> tuple[Any, list[Tensor], list[_Call]]:
    """Run one batch through a part of the model, or all of it.

    Returns:
        What it returns; what the last block puts out, as rows; and the calls of modules outside of
        the blocks.
    """
    last: list[Tensor] = []
    running: list[list[Tensor]] = []  # what the modules that have been entered took
    calls: list[_Call] = []

    def keep_last(_module: nn.Module, returned: Mapping[Slot, Any]) -> None:
        last[:] = _states(returned)

    def enter(_module: nn.Module, taken: Mapping[Slot, Any]) -> None:
        running.append(_states(taken))

    def leave(module: nn.Module, parts: Mapping[Slot, Any]) -> None:
        taken = running.pop()
        returned = _states(parts)
        if len(taken) == len(returned) == 1:
            calls.append(_Call(module, taken[0], returned[0]))

    blocks = [block.module for block in run.model.blocks]
    inside = {module for block in blocks for module in block.modules()}
    outside = [
        module
        for module in run.model.module.modules()
        if module not in inside and not set(blocks) & set(module.modules())
    ]
    with watched([blocks[-1]], leave=keep_last), watched(outside, enter, leave):
        output = run(batch, called, logits=True)
    return output, last, calls


def _last_state(output: Any, last: Sequence[Tensor]) -> Tensor | str:
    """Return the ``last_hidden_state`` of a model's output, or why there is none beside what the
    last block puts out.
    """
    state = getattr(output, "last_hidden_state", None)
    if not isinstance(state, Tensor):
        return NO_LAST_STATE
    rows = state.reshape(-1, state.shape[-1])
    return NO_NORM if any(are_equal(states, rows) for states in last) else state


def _logits(output: Any, model: nn.Module, dims: Collection[int]) -> Tensor | str:
    """Return the logits in a model's output, those so named, or a tensor as wide as a vocabulary,
    but not as states; or why there are none.
    """
    named = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named
    embeddings = (module for module in model.modules() if isinstance(module, nn.Embedding))
    vocabularies = {module.num_embeddings for module in embeddings} - {*dims}
    for value in output if isinstance(output, tuple | list) else [output]:
        if isinstance(value, Tensor) and value.ndim == 3 and value.shape[-1] in vocabularies:
            return value
    return NO_LOGITS


def _states(parts: Any) -> list[Tensor]:
    """Return the floating-point tensors among arguments or outputs, as rows."""
    tensors = [tensor for tensor in parts.values() if isinstance(tensor, Tensor)]
    return [
        tensor.reshape(-1, tensor.shape[-1])
        for tensor in tensors
        if tensor.is_floating_point() and tensor.ndim > 1
    ]


def _chain(
    start: Tensor, calls: list[_Call], logits: Tensor, cap: float | None
) -> tuple[list[nn.Module], OutputScale] | None:
    """Return the shortest chain of modules from the states to the logits, and the scale of the last
    one's output.
    """
    target = logits.reshape(-1, logits.shape[-1])
    reached: deque[tuple[Tensor, list[nn.Module]]] = deque([(start, [])])
    left = list(calls)
    while reached:
        states, modules = reached.popleft()
        if modules and (scale := _scale_between(states, target, cap)) is not None:
            return modules, scale
        following = [call for call in left if are_equal(call.taken, states)]
        left = [call for call in left if not any(call is other for other in following)]
        reached.extend((call.returned, [*modules, call.module]) for call in following)
    return None


def _scale_between(output: Tensor, logits: Tensor, cap: float | None) -> OutputScale | None:
    """Return the scale that maps a module's output to the logits; None if there is none."""
    if output.shape != logits.shape:
        return None
    wide = widened(output)
    if bool(wide.any()):
        factor = float((wide * widened(logits)).sum() / wide.square().sum())
    else:
        factor = 1.0
    # the cap first: it changes small logits by less than their rounding
    scales = [*([OutputScale(cap=cap)] if cap else []), OutputScale(), OutputScale(factor)]
    return next((scale for scale in scales if _close(scale(output), logits, output.dtype)), None)


def _reproduces(head: OutputHead, start: Tensor, logits: Tensor) -> bool:
    """Return whether the head gives the logits when it gets the positions in the reverse order."""
    try:
        output = head(start.flip(0))
    except Exception:  # modules of any model may need more than the states of single positions
        return False
    wanted = logits.reshape(-1, logits.shape[-1]).flip(0)
    return output.shape == wanted.shape and _close(output, wanted, start.dtype)


def _close(output: Tensor, logits: Tensor, dtype: torch.dtype) -> bool:
    coarser = max(torch.finfo(dtype).eps, torch.finfo(logits.dtype).eps)
    allowed = _TOLERANCE * coarser * widened(logits).abs().amax()
    return bool((widened(output) - widened(logits)).abs().amax() <= allowed)

"""A model as it runs on a probe, which a trial has shown, and the model while it runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from repdyn.capture.blocks import Block, is_a
from repdyn.capture.calls import call_with_inputs
from repdyn.capture.forward import evaluating, inside_fsdp_root, restoring
from repdyn.capture.forward_errors import ForwardError, explain, is_own
from repdyn.capture.located_model import LocatedModel, device_of
from repdyn.capture.streams import SUM
from repdyn.capture.token_states import InputStates, Slot, TokenStates
from repdyn.capture.write_guard import WriteGuard
from repdyn.probe import ProbeBatch
from repdyn.probe.inputs import moved

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")

Way: TypeAlias = Literal["shadow", "restored"]


@dataclass(frozen=True, eq=False, kw_only=True)
class RunnableModel(LocatedModel):
    """A model and how it runs on a probe; made by :func:`repdyn.capture.trial.prepare`."""

    way: Way
    """Whether a shadow runs in the model's place, or the model itself, which is then restored."""
    call: Callable[..., Any]
    """How the model is called where ``forward`` is None; :func:`call_with_inputs` on a probe of
    inputs.
    """
    positions_first: bool = False
    """Whether its states of inputs have the positions in the first dimension, and the inputs in the
    second.
    """
    reports_states: bool = False
    """Whether the layers are the hidden states that a Hugging Face model reports, rather than
    outputs of blocks.
    """
    slots: Mapping[str | None, tuple[Slot, Slot]] = field(default_factory=dict)
    """By stack, which part of what its blocks take and which of what they return the states are,
    where it is known.
    """
    sums: Mapping[str | None, tuple[Slot, Slot]] = field(default_factory=dict)
    """By stack, the two parts of what its blocks return whose sum the states are: an output, and
    the residual that the next block adds it to.
    """
    any_length: bool = False
    """Whether it runs on windows that are cut anywhere."""
    acting: Collection[int]
    """The numbers of its hooks that act."""
    structure: Sequence[tuple] = ()
    """The modules, classes and hooks that all this was found for; see :meth:`fits`."""
    causal: Mapping[str | None, bool | None] = field(default_factory=dict)
    """By stack, whether no position sees a later one, where that has been tried, and padding too.
    """

    @property
    def is_causal(self) -> bool | None:
        """Tell whether no position sees a later one; None where that is unknown, or the stacks
        differ.
        """
        found = set(self.causal.values())
        return found.pop() if len(found) == 1 else None

    @cached_property
    def description(self) -> dict[str, Any]:
        """Return what :class:`repdyn.store.schema.Checkpoint` records of the model."""
        device = self.device
        # FSDP1 keeps parameters in flat pieces
        is_known = not any(
            is_a(module, "torch.FullyShardedDataParallel") for module in self.root_module.modules()
        )
        n_parameters = sum(
            parameter.numel() for parameter in self.module.parameters() if not is_lazy(parameter)
        )
        return {
            "causal": self.is_causal,
            "parameters": n_parameters if is_known else None,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "way": self.way,
        }

    def token_states(self) -> TokenStates:
        """Return a search for the states of a batch's tokens, or of what is sampled of a batch of
        inputs.
        """
        if self.call is call_with_inputs:
            return InputStates(positions_first=self.positions_first)
        return TokenStates(pads_right=self.pads_right)

    def fits(self, root_module: nn.Module) -> bool:
        """Return whether a model is still as it was when it was tried: of the same modules and
        hooks, on its device.

        Its weights may be others.
        """
        is_same = (
            root_module is self.root_module and device_of(self.module, root_module) == self.device
        )
        return is_same and self.structure == structure_of(root_module)

    @contextmanager
    def evaluating(self) -> Iterator[RunningModel]:
        """Yield what runs the model on batches, in evaluation mode and with FSDP's weights
        gathered.

        Raises:
            RuntimeError: the weights were overwritten by code invisible to PyTorch.
        """
        if self.way == "restored":
            with (
                restoring(self.module, self.device) as guard,
                inside_fsdp_root(self.root_module, self.body) as inside,
            ):
                yield RunningModel(self, guard, inside)
            return
        with evaluating(
            self.module, self.device, parameters=self.parameters, acting=self.acting
        ) as (shadow, guard):
            of = shadow.of
            if self.reports_states:  # in the configuration, which is the shadow's own
                for module in shadow.module.modules():
                    if is_a(module, "transformers.PreTrainedModel"):
                        module.config.output_hidden_states = True
            model = replace(
                self,
                module=shadow.module,
                root_module=shadow.module,
                body=of(self.body),
                blocks=self.blocks
                if self.reports_states
                else [b._replace(module=of(b.module)) for b in self.blocks],
                whole=None if self.whole is None else cast("PreTrainedModel", of(self.whole)),
            )
            yield RunningModel(model, guard)

    def with_sum(self, block: Block, returned: Mapping[Slot, Any]) -> Mapping[Slot, Any]:
        """Return what a block returned, with the sum that the states are, if they are one."""
        if block.stack not in self.sums:
            return returned
        one, other = self.sums[block.stack]
        return {SUM: returned[one] + returned[other], **returned}


def structure_of(model: nn.Module) -> list[tuple]:
    """Return the modules of a model by name, with the class, the hooks and any forward of its own
    of each.
    """
    named = [(name, module, vars(module)) for name, module in model.named_modules()]
    return [
        (
            name,
            id(module),
            type(module),
            *(tuple(state.get(kind, ())) for kind in _HOOKS),
            id(state.get("forward")),
        )
        for name, module, state in named
    ]


@dataclass(frozen=True, eq=False)
class RunningModel:
    """A function that runs a model on batches, made by :meth:`RunnableModel.evaluating`."""

    model: RunnableModel
    """The model that runs, the shadow if there is one; hooks belong on its blocks."""
    guard: WriteGuard
    inside: Callable[[Callable[[], Any]], Any] = operator.call
    """Calls a function where the weights are gathered."""

    def __call__(
        self, batch: ProbeBatch, module: nn.Module | None = None, *, logits: bool = False
    ) -> Any:
        """Return what the model returns for a batch, or ``module``, a part of it that is called in
        its place.
        """
        model = self.model
        # copies, since a forward pass may write into its inputs, which are the probe's own tensors
        ids = batch.input_ids.to(model.device, copy=True)
        mask = batch.attention_mask.to(model.device, copy=True)
        inputs = batch.inputs
        if inputs is not None:  # in the precision of the first weights of floating type
            dtypes = (parameter.dtype for parameter in model.module.parameters())
            dtype = next(
                (d for d in dtypes if d in {torch.float32, torch.float16, torch.bfloat16}), None
            )
            inputs = moved(inputs, model.device, dtype)
        there = replace(batch, input_ids=ids, attention_mask=mask, inputs=inputs)
        if model.forward is not None and module is None:
            call = model.forward
        else:
            call = partial(model.call, logits=logits or model.needs_logits)
        if module is None:
            module = model.module if logits else model.body
        try:
            output = self.inside(partial(call, module, there))
        except (OSError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if is_own(error):
                raise
            raise ForwardError(explain(model, batch, error)) from error
        if model.reports_states and model.blocks:
            states = list(self.reported_states(output, batch).values())
            for block, entered, left in zip(model.blocks, states[:-1], states[1:], strict=True):
                block.module(entered, left)
        return output

    def reported_states(self, output: Any, batch: ProbeBatch) -> dict[str, Tensor]:
        """Return the hidden states in a model's output that have one vector for each token, by
        name.
        """
        reported = getattr(output, "hidden_states", None) or ()
        search = self.model.token_states()
        search.batch = batch
        return {
            f"hidden_states.{index}": states
            for index, states in enumerate(reported)
            if isinstance(states, Tensor) and search.rows_of(states) is not None
        }


class ReportedState(nn.Module):
    """A block that a hidden state which a model reports passes through."""

    def forward(self, entered: Tensor, left: Tensor) -> Tensor:
        return left

"""A model whose blocks are located, the same as it runs on a probe, which a trial has shown, and
while it runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from repdyn.capture.blocks import (
    Blocks,
    LayerPatterns,
    find_blocks,
    find_network,
    hugging_face_model,
)
from repdyn.capture.calls import Forward, call_with_inputs
from repdyn.capture.forward import evaluating, inside_fsdp_root, restoring
from repdyn.capture.forward_errors import explained, is_own
from repdyn.capture.input_states import InputStates
from repdyn.capture.shadow import own_names
from repdyn.capture.token_states import Slot, TokenStates
from repdyn.capture.wrappers import check_no_tensor_parallelism, class_name, is_a, unwrapped
from repdyn.capture.write_guard import WriteGuard
from repdyn.probe import Probe, ProbeBatch
from repdyn.probe.inputs import moved

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")

Way: TypeAlias = Literal["shadow", "restored"]


@dataclass(frozen=True, eq=False, kw_only=True)
class LocatedModel:
    """A model, its blocks and its device; made by :func:`locate`."""

    module: nn.Module
    """The model without the wrappers of ``torch.compile``, DistributedDataParallel, DataParallel
    and FSDP.
    """
    root_module: nn.Module
    """The module that the model is a part of where that is sharded as a whole, or the model itself.
    """
    blocks: Blocks
    """The modules whose outputs are layers, stack after stack."""
    blocks_named: bool
    """Whether the caller named the blocks; found ones must pass states from one to the next."""
    device: torch.device
    forward: Forward | None
    """How the caller runs it; None where it is called."""
    whole: PreTrainedModel | None
    """The Hugging Face model that it is, or wraps as the only one."""
    body: nn.Module
    """What is called: the model without the head of a Hugging Face model, whose logits are not
    needed, where it can.
    """
    needs_logits: bool
    """Whether a call without the logits could leave out a block."""
    pads_right: bool
    """Whether that pads sequences on the right: Longformer and similar ones do, to whole windows,
    blocks or chunks.
    """
    parameters: Mapping[str, Tensor]
    """By name, what stands in for the model's own parameters."""
    unfound: str
    """Why no blocks were found."""

    @property
    def stacks(self) -> list[str | None]:
        """Return the names of the stacks, [None] in a model that has one."""
        return list(dict.fromkeys(block.stack for block in self.blocks))


def locate(
    model: nn.Module,
    layers: LayerPatterns = None,
    *,
    forward: Forward | None = None,
    root_module: nn.Module | None = None,
    parameters: Mapping[str, Tensor] | None = None,
) -> LocatedModel:
    """Find the blocks of a model.

    Args:
        model: a Hugging Face model or any module built of a list of blocks, wrapped or not; a
            module whose class has no ``forward`` stands for the one network in it.
        layers: names of the blocks, see :func:`repdyn.capture.blocks.find_blocks`.
        forward: ``forward(model, batch)`` runs the model on a :class:`repdyn.probe.ProbeBatch`;
            None calls it as :func:`repdyn.capture.calls.call_with_tokens` does.
        root_module: the module that the model is a part of, where that is sharded as a whole; None
            for the model itself.
        parameters: by their names in the model, what to take in place of its own parameters and
            buffers, such as averages of them.

    Raises:
        ValueError: the blocks cannot be identified (the message lists the candidates),
            ``parameters`` have other shapes, or ranks hold parts of one layer.
    """
    if root_module is None:
        root_module = model
    model = unwrapped(model)
    check_no_tensor_parallelism(root_module)
    if forward is None:
        model = find_network(model)
    whole = hugging_face_model(model)
    unfound = ""
    blocks = []
    try:
        blocks = find_blocks(model, layers)
    except ValueError as error:
        if layers is not None or whole is None:
            raise
        unfound = str(error)
    body, needs_logits = (model, True) if forward is not None else body_of(model, whole, blocks)
    return LocatedModel(
        module=model,
        root_module=root_module,
        blocks=blocks,
        blocks_named=layers is not None,
        device=device_of(model, root_module),
        forward=forward,
        whole=whole,
        body=body,
        needs_logits=needs_logits,
        pads_right=any(map(_pads_right, model.modules())),
        parameters=own_names(model, parameters) if parameters else {},
        unfound=unfound,
    )


def _pads_right(module: nn.Module) -> bool:
    """Return whether a Hugging Face model pads sequences on the right; ProphetNet adds predicting
    streams there.
    """
    if not is_a(module, "transformers.PreTrainedModel"):
        return False
    kind = type(module)
    return kind.__name__.startswith(("PegasusX", "ProphetNet")) or any(
        n.startswith("_pad_to_") for n in dir(kind)
    )


def device_of(model: nn.Module, root_module: nn.Module | None = None) -> torch.device:
    """Return the device on which a model takes its input: that of its first parameter that
    has one.
    """
    for module in (model, root_module):  # FSDP may have taken over all parameters of the model
        for parameter in module.parameters() if module is not None else ():
            if parameter.device.type != "meta":  # accelerate loads such ones as they are needed
                return parameter.device
    return torch.device("cpu")


def body_of(
    model: nn.Module, whole: PreTrainedModel | None, blocks: Blocks
) -> tuple[nn.Module, bool]:
    """Return the module that is called, and whether all of its logits are needed for a measured
    block.

    The model itself is called where a measured block is in the head, and where its forward pass is
    not the library's own: in a class of the user's, or in a function or hooks attached to it.
    """
    inside = set() if whole is None else set(whole.base_model.modules())
    if whole is None or not all(block.module in inside for block in blocks):
        return model, True
    hooks = (*model._forward_pre_hooks.values(), *model._forward_hooks.values())
    # fully_shard replaces the class with one of its own
    homes = (kind.__module__ for kind in type(model).__mro__)
    has_library_forward = (
        next(home for home in homes if not home.startswith("torch.distributed.")).startswith(
            "transformers."
        )
        # accelerate attaches its autocast and its loading of weights to an instance, which makes no
        # difference here
        and (
            "forward" not in vars(model)
            or bool({"_original_forward", "_old_forward"} & set(vars(model)))
        )
        and all(getattr(hook, "__module__", "").startswith("torch.distributed.") for hook in hooks)
    )
    # of a model of timm in one of transformers, the inner one takes its inputs by other names
    has_own_names = not is_a(unwrapped(whole.base_model), "transformers.PreTrainedModel")
    if whole is not model or not has_library_forward or has_own_names:
        return model, False
    return whole.base_model, False


class Passes(NamedTuple):
    """The forward passes over a probe, and what they are for."""

    sampled: np.ndarray
    """The numbers of the tokens, or means, that are sampled, in the order of their rows."""
    rows: np.ndarray
    """(n_tokens,) the row of each token in the states, -1 where it is not sampled."""
    batches: list[ProbeBatch]


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
    passes: MutableMapping[Probe, dict[tuple, Passes]] = field(default_factory=WeakKeyDictionary)
    """The forward passes by probe and by what is sampled of it, the same in each measurement."""

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
            "model": class_name(self.module),
            "attention": attention_implementation(self.module),
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


def attention_implementation(module: nn.Module) -> str | None:
    """Return the attention implementation of a transformers model, or of those inside a module of
    one's own, joined with commas where they differ; None where there is none.
    """
    names: dict[str, None] = {}
    waiting = [module]
    while waiting:
        inner = waiting.pop()
        name = getattr(getattr(inner, "config", None), "_attn_implementation", None)
        if isinstance(name, str):
            names[name] = None
        else:
            waiting += inner.children()
    return ", ".join(sorted(names)) or None


def structure_of(model: nn.Module) -> list[tuple]:
    """Return the modules of a model by name, with the class, the hooks, any forward of its own and
    the attention implementation of each.
    """
    named = [(name, module, vars(module)) for name, module in model.named_modules()]
    return [
        (
            name,
            id(module),
            type(module),
            *(tuple(state.get(kind, ())) for kind in _HOOKS),
            id(state.get("forward")),
            getattr(state.get("config"), "_attn_implementation", None),
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
            by_caller = model.forward is not None
            raise explained(model.module, batch, error, by_caller=by_caller) from error
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

"""A model whose blocks are located, before anything has run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from repdyn.capture.blocks import (
    Blocks,
    LayerPatterns,
    check_no_tensor_parallelism,
    find_blocks,
    find_network,
    hugging_face_model,
    is_a,
    unwrapped,
)
from repdyn.capture.calls import Forward
from repdyn.capture.hooks import KeepHooks
from repdyn.capture.shadow import own_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
    keep_hooks: KeepHooks
    """The user's own hooks that act without a trial."""

    @property
    def stacks(self) -> list[str | None]:
        """The names of the stacks, (None,) in a model that has one."""
        return list(dict.fromkeys(block.stack for block in self.blocks))


def locate(
    model: nn.Module,
    layers: LayerPatterns = None,
    *,
    forward: Forward | None = None,
    root_module: nn.Module | None = None,
    parameters: Mapping[str, Tensor] | None = None,
    keep_hooks: KeepHooks = (),
) -> LocatedModel:
    """Find the blocks of a model.

    Args:
        model: a Hugging Face model or any module built of a list of blocks, wrapped or not; a
            module whose class has no ``forward`` stands for the one network in it.
        layers: names of the blocks, see :func:`repdyn.capture.blocks.find_blocks`.
        forward: ``forward(model, batch)`` runs the model on a :class:`repdyn.probe.ProbeBatch`;
            None calls it as :func:`repdyn.capture.forward.call_with_tokens` does.
        root_module: the module that the model is a part of, where that is sharded as a whole; None
            for the model itself.
        parameters: by their names in the model, what to take in place of its own parameters and
            buffers, such as averages of them.
        keep_hooks: forward hooks of the user's own that act, see :mod:`repdyn.capture.hooks`.

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
        keep_hooks=keep_hooks,
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

"""What a model is wrapped in, and what it is sharded by.

Classes of transformers, of DeepSpeed and of torch's sharding are recognised without importing them:
an object exists only after the module of its class has been imported, and a training that uses none
does not wait for it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeGuard

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

# What torch.compile, FSDP, checkpoint_wrapper and Lightning Fabric put into the names of what they
# wrap.
WRAPPINGS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside all wrappers: those of :data:`WRAPPINGS`, (Distributed)DataParallel
    and DeepSpeed.
    """
    while True:
        named = (getattr(model, name, None) for name in WRAPPINGS)
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif is_a(model, "deepspeed.DeepSpeedEngine"):
            model = model.get_submodule("module")  # whose own forward pass prepares a backward one
        elif (
            inner := next((each for each in named if isinstance(each, nn.Module)), None)
        ) is not None:
            model = inner
        else:
            return model


def is_a(candidate: object, *names: str) -> TypeGuard[Any]:
    """Return whether something is of a class that may not have been imported, by one of its names:
    with the package, such as "torch.DTensor", or, of whichever of Lightning's two packages,
    without."""
    return not _class_names(type(candidate)).isdisjoint(names)


@cache
def _class_names(kind: type) -> frozenset[str]:
    names = ((str(each.__module__).partition(".")[0], each.__name__) for each in kind.__mro__)
    return frozenset(each for package, name in names for each in (name, f"{package}.{name}"))


def is_fsdp(candidate: object) -> bool:
    """Return whether something is a module whose weights FSDP shards, of its first or its second
    version.
    """
    return is_a(candidate, "torch.FullyShardedDataParallel", "torch.FSDPModule")


def is_sharded(model: nn.Module) -> bool:
    """Return whether a rank holds only a part of the weights, so that each forward pass needs all
    ranks.
    """
    by_fsdp = any(map(is_fsdp, model.modules()))
    return by_fsdp or any(
        is_a(p, "torch.DTensor") or hasattr(p, "ds_id") for p in model.parameters()
    )


def check_no_tensor_parallelism(root_module: nn.Module) -> None:
    """Raise ValueError for models whose ranks must run the same tokens together, as shares of a
    probe are not.
    """
    by_fsdp = any(is_a(module, "torch.FSDPModule") for module in root_module.modules())
    for name, parameter in root_module.named_parameters():
        placements = parameter.placements if is_a(parameter, "torch.DTensor") else ()
        if sum(place.is_shard() for place in placements) > by_fsdp or hasattr(parameter, "ds_id"):
            kind = (
                "DeepSpeed's ZeRO stage 3" if hasattr(parameter, "ds_id") else "tensor parallelism"
            )
            raise ValueError(
                f"expected whole layers on each rank, or shards of FSDP, got {kind} ({name}); save "
                "checkpoints during training and measure them afterwards with "
                "analyze_checkpoints.py"
            )


def class_name(model: nn.Module) -> str:
    """Return the name of a model's original class: ``fully_shard`` and ``replicate`` replace it
    with one of their own.
    """
    is_replaced = is_a(model, "torch.FSDPModule", "torch.DDP")
    return type(model).__mro__[2 if is_replaced else 0].__name__

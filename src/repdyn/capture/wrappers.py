"""Classes that models are made of or wrapped in, and models whose weights are sharded over the ranks (FSDP).

Classes of transformers, of DeepSpeed and of torch's sharding are recognised without importing them: an object exists
only after the module of its class has been imported, and a training that uses none does not wait for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from torch import nn
from torch.nn.parameter import is_lazy

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from torch.distributed.tensor import DTensor
    from transformers import PreTrainedConfig, PreTrainedModel

T = TypeVar("T")


def is_pretrained_model(candidate: object) -> TypeGuard[PreTrainedModel]:
    """Return whether something is a Hugging Face model."""
    return _is_a(candidate, "transformers.modeling_utils", "PreTrainedModel")


def is_pretrained_config(candidate: object) -> TypeGuard[PreTrainedConfig]:
    """Return whether something is the configuration of a Hugging Face model."""
    return _is_a(candidate, "transformers.configuration_utils", "PreTrainedConfig")


def is_fsdp1(candidate: object) -> TypeGuard[FullyShardedDataParallel]:
    """Return whether something is a module wrapped in FullyShardedDataParallel."""
    return _is_a(candidate, "torch.distributed.fsdp", "FullyShardedDataParallel")


def is_fsdp2(candidate: object) -> TypeGuard[FSDPModule]:
    """Return whether something is a module that ``fully_shard`` was applied to."""
    return _is_a(candidate, "torch.distributed.fsdp", "FSDPModule")


def is_dtensor(candidate: object) -> TypeGuard[DTensor]:
    """Return whether something is a tensor that is distributed over ranks."""
    return _is_a(candidate, "torch.distributed.tensor", "DTensor")


def is_deepspeed_engine(candidate: object) -> bool:
    """Return whether something is a module wrapped in the engine of DeepSpeed."""
    return _is_a(candidate, "deepspeed.runtime.engine", "DeepSpeedEngine")


def _is_a(candidate: object, module: str, name: str) -> bool:
    kind: Any = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(candidate, kind)


def is_sharded(model: nn.Module) -> bool:
    """Return whether a rank holds only a part of the weights, so that each forward pass needs all ranks."""
    return any(_is_fsdp(module) for module in model.modules()) or any(
        is_dtensor(parameter) for parameter in model.parameters()
    )


def check_no_tensor_parallelism(root_module: nn.Module) -> None:
    """Reject models whose ranks must run the same tokens together: their shares of a probe would be mixed up.

    Raises:
        ValueError: tensor parallelism, or stage 3 of DeepSpeed's ZeRO.
    """
    by_fsdp = any(map(is_fsdp2, root_module.modules()))
    for name, parameter in root_module.named_parameters():
        shards = _n_shards(parameter)
        if shards > by_fsdp or hasattr(parameter, "ds_id"):
            kind = "DeepSpeed's ZeRO stage 3" if hasattr(parameter, "ds_id") else "tensor parallelism"
            raise ValueError(
                f"expected whole layers on each rank, or shards of FSDP, got {kind} ({name}); save checkpoints during "
                "training and measure them afterwards with analyze_checkpoints.py"
            )


def _n_shards(parameter: nn.Parameter) -> int:
    if not is_dtensor(parameter):
        return 0
    from torch.distributed.tensor import Shard  # as lazily as its class

    return sum(isinstance(place, Shard) for place in parameter.placements)


def own_class(model: nn.Module) -> type:
    """Return the original class of a model: ``fully_shard`` replaces it with one of its own."""
    kind = type(model)
    return kind.__mro__[2] if is_fsdp2(model) else kind


def class_name(model: nn.Module) -> str:
    """Return the name of the original class of a model."""
    return own_class(model).__name__


def count_parameters(model: nn.Module, root_module: nn.Module | None = None) -> int | None:
    """Return the number of parameters of the whole model; None where FSDP1 keeps them in flat pieces."""
    if any(map(is_fsdp1, (model if root_module is None else root_module).modules())):
        return None
    return sum(parameter.numel() for parameter in model.parameters() if not is_lazy(parameter))


@contextmanager
def inside_fsdp_root(root_module: nn.Module, body: nn.Module) -> Iterator[Callable[[Callable[[], T]], T]]:
    """Yield a function that calls another one inside the outermost sharded module, with the weights gathered.

    FSDP needs each forward pass to begin there: the module called first becomes the root that gathers the weights.
    Where nothing is sharded it is a plain call.

    Args:
        root_module: the module that the model is a part of, or the model itself.
        body: the module that will be called.
    """
    outer = next(
        (m for m in root_module.modules() if _is_fsdp(m) and any(body is inner for inner in m.modules())), None
    )
    try:
        if outer is None or outer is body:
            yield lambda function: function()
        else:
            yield partial(_inside, outer)
    finally:
        for module in root_module.modules():
            if is_fsdp2(module):
                _reshard(module)


def _reshard(module: FSDPModule) -> None:
    """Reshard a module: a root would wait for the backward pass, which never comes.

    A forward pass that failed leaves the module in the state of running it, where it would not reshard, and the next
    training step would run on stale weights.
    """
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    for part in filter(None, (state, *groups)):
        part._training_state = type(part._training_state).IDLE
    module.reshard()


def _inside(outer: nn.Module, function: Callable[[], T]) -> T:
    wrapped = outer.module if is_fsdp1(outer) else outer
    own = {name: value for name, value in vars(wrapped).items() if name == "forward"}  # accelerate's, under autocast
    outcome: list[T] = []

    def forward() -> None:
        restore()  # the function may call this very module
        outcome.append(function())  # its result bypasses the wrapper, which would search it for tensors

    def restore() -> None:
        vars(wrapped).pop("forward", None)
        vars(wrapped).update(own)

    wrapped.forward = forward
    try:
        outer()
    finally:
        restore()
    return outcome.pop()


def _is_fsdp(module: nn.Module) -> bool:
    return is_fsdp1(module) or is_fsdp2(module)

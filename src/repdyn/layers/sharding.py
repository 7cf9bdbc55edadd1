"""Models whose weights lie spread over the ranks (FSDP): run through the module that brings them together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor

T = TypeVar("T")


def is_sharded(model: nn.Module) -> bool:
    """Whether a rank holds only a part of the weights, so that each forward pass takes all ranks."""
    return any(_gathers(module) for module in model.modules()) or any(
        isinstance(parameter, DTensor) for parameter in model.parameters()
    )


def class_name(model: nn.Module) -> str:
    """The class a model was written as: ``fully_shard`` puts one of its own in its place."""
    kind = type(model)
    return (kind.__mro__[2] if isinstance(model, FSDPModule) else kind).__name__


def count_parameters(model: nn.Module, within: nn.Module | None = None) -> int | None:
    """Parameters of the whole model; None where FSDP keeps them, or those it is within, in flat pieces."""
    if any(isinstance(module, FullyShardedDataParallel) for module in (model if within is None else within).modules()):
        return None
    return sum(parameter.numel() for parameter in model.parameters())


@contextmanager
def through(within: nn.Module, body: nn.Module) -> Iterator[Callable[[Callable[[], T]], T]]:
    """A way to run something inside the outermost sharded module around a model, as its own forward pass runs.

    FSDP wants each forward pass to begin there: what is first called becomes the root that gathers the weights.

    Args:
        within: what the model is a part of, or the model itself.
        body: the module that will be called.

    Yields:
        A function that calls another one with the weights at hand; a plain call where nothing is sharded.
    """
    outer = next((m for m in within.modules() if _gathers(m) and any(body is inner for inner in m.modules())), None)
    if outer is None or outer is body:
        yield lambda function: function()
    else:
        yield partial(_inside, outer)
    for module in within.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # a root waits for the backward pass with that, and none comes


def _inside(outer: nn.Module, function: Callable[[], T]) -> T:
    wrapped = outer.module if isinstance(outer, FullyShardedDataParallel) else outer
    outcome: list[T] = []

    def forward() -> None:
        del wrapped.forward  # the function may call this very module
        outcome.append(function())  # and what it returns goes round the wrapper, which would search it for tensors

    wrapped.forward = forward
    try:
        outer()
    finally:
        vars(wrapped).pop("forward", None)
    return outcome.pop()


def _gathers(module: nn.Module) -> bool:
    return isinstance(module, FSDPModule | FullyShardedDataParallel)

"""Every private name of torch that this package imports, and what happens where a version lacks it.

None is needed to import the package, and each function says what is lost without its name. Private
attributes of objects (the forward that accelerate keeps, the module inside a wrapper) are looked up
by name where they are used, and are absent where nothing has set them. Of Lightning, transformers
and huggingface_hub nothing private is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

NAMES = (
    "torch._C._len_torch_function_stack",
    "torch.overrides._pop_mode",
    "torch.overrides._push_mode",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils._python_dispatch._disable_current_modes",
    "torch.utils._device",
    "torch.utils._pytree.tree_map_only",
)


@cache
def private(name: str) -> Any:
    """Return what a name of :data:`NAMES` stands for, None where this version of torch lacks it."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute, None)
    except ImportError:
        return None


def without_dispatch_modes() -> AbstractContextManager[Any]:
    """Run without modes that see each operation, such as a counter of operations.

    Where torch lacks the name, they see those of a measurement too.
    """
    disabling = private("torch.utils._python_dispatch._disable_current_modes")
    return nullcontext() if disabling is None else disabling()


@contextmanager
def without_function_modes() -> Iterator[None]:
    """Run without modes that see or change calls of torch, such as a default device.

    Where torch lacks a name, all of them stay.
    """
    count = private("torch._C._len_torch_function_stack")
    pop = private("torch.overrides._pop_mode")
    push = private("torch.overrides._push_mode")
    if count is None or pop is None or push is None:
        yield
        return
    modes = [pop() for _ in range(count())]  # the innermost first
    try:
        yield
    finally:
        for mode in reversed(modes):
            push(mode)


def default_device() -> torch.device:
    """Return the default device, which ``torch.get_default_device`` would ask modes for; the CPU
    where torch lacks the name.
    """
    return getattr(private("torch.utils._device"), "CURRENT_DEVICE", None) or torch.device("cpu")


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Return a structure with a function applied to its tensors.

    Where torch lacks the name, it looks into mappings, lists and tuples alone.
    """
    mapping = private("torch.utils._pytree.tree_map_only")
    if mapping is not None:
        return mapping(Tensor, function, value)
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(function, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([map_tensors(function, item) for item in value])
    return value


def watching_operations(see: Callable[[Any, tuple[Any, ...]], None]) -> AbstractContextManager[Any]:
    """Call ``see(operation, arguments)`` before each operation that runs inside.

    Raises:
        RuntimeError: this version of torch has no such mode.
    """
    mode = private("torch.utils._python_dispatch.TorchDispatchMode")
    if mode is None:
        raise RuntimeError(
            f"expected a torch with TorchDispatchMode, got {torch.__version__}; install another"
        )

    class Watching(mode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            see(func, args)
            return func(*args, **(kwargs or {}))

    return Watching()

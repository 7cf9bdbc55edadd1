"""Restores models that change themselves when they run.

RWKV rescales its weights in place when it is first evaluated, BigBird replaces its attention modules when
sequences are short, rotary embeddings recompute their buffers for longer ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@contextmanager
def preserve_model_state(model: nn.Module) -> Iterator[None]:
    """Restore on leaving a model's flags, submodules, weights, buffers and plain attributes.

    Plain attributes are numbers, strings and None under names without a leading underscore; changes inside a list or a
    dictionary persist, and so does a new attribute. Weights and buffers are copied only when an operation is about to
    overwrite them, so that models that do not change themselves cost nothing. A weight that is replaced by another
    one, or whose ``data`` is, stays replaced: FSDP gathers weights in that way and accelerate loads them.

    Raises:
        RuntimeError: a weight or a buffer was overwritten by code invisible to PyTorch, and cannot be restored.
    """
    modules = [(module, _plain_attributes(module), _members(module)) for module in model.modules()]
    tensors = {name: tensor for name, tensor in _tensors(model) if not tensor.is_inference()}
    versions = {name: tensor._version for name, tensor in tensors.items()}
    overwritten = _CopyBeforeWrite(tensors)
    try:
        with overwritten:
            yield
    finally:
        overwritten.restore()
        for module, attributes, members in modules:
            _restore(module, attributes, members)
    lost = [n for n, t in tensors.items() if t._version != versions[n] and n not in overwritten.saved]
    if lost:
        raise RuntimeError(
            f"expected a forward pass that does not change the weights, but it overwrote {lost[0]!r}, which cannot be "
            "restored; measure a copy of the model, copy.deepcopy(model)"
        )


class _CopyBeforeWrite(TorchFunctionMode):
    """A mode that copies each of the given tensors before it is overwritten."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self._tensors = tensors
        self._names: dict[int, list[str]] = {}
        for name, tensor in tensors.items():
            if tensor.device.type != "meta":
                self._names.setdefault(_storage(tensor), []).append(name)
        self.saved: dict[str, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for target in _targets(func, args, kwargs):
            for name in self._names.get(_storage(target), ()):
                if name not in self.saved:
                    self.saved[name] = self._tensors[name].detach().clone()
        return func(*args, **kwargs)

    def restore(self) -> None:
        with torch.no_grad():
            for name, before in self.saved.items():
                self._tensors[name].copy_(before)


_SETTERS = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"}


def _targets(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Yield the tensors that a call may write to: the first argument of an in-place one, tensor or list; ``out``."""
    name = getattr(func, "__name__", "")
    values = [*args, *kwargs.values()]
    if name in _SETTERS or (name.endswith("_") and not name.endswith("__")):
        yield from _tensors_in(values[:1])
    elif _updates_arguments(name, kwargs):
        yield from _tensors_in(values)
    yield from _tensors_in([kwargs.get("out")])


def _updates_arguments(name: str, kwargs: Any) -> bool:
    """Return whether a function updates its arguments internally, invisibly to the mode."""
    if name in {"batch_norm", "instance_norm"}:
        return bool(kwargs.get("training") or kwargs.get("use_input_stats"))
    return name in {"embedding", "embedding_bag"} and kwargs.get("max_norm") is not None


def _tensors_in(values: list[Any]) -> Iterator[Tensor]:
    for value in values:
        parts = value if isinstance(value, list | tuple) else [value]
        yield from (part for part in parts if isinstance(part, Tensor))


def _storage(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # tensors without a storage of their own, such as sparse ones
        return id(tensor)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    # Private ones hold the state of wrappers such as FSDP, which must not be restored.
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and isinstance(value, bool | int | float | str | None)
    }


def _members(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    return dict(module._modules), dict(module._buffers)


def _restore(module: nn.Module, attributes: dict[str, Any], members: tuple[dict[str, Any], dict[str, Any]]) -> None:
    for name, value in attributes.items():
        if vars(module).get(name) is not value:
            vars(module)[name] = value
    for now, before in zip((module._modules, module._buffers), members, strict=True):
        if len(now) != len(before) or any(now.get(name) is not member for name, member in before.items()):
            now.clear()
            now.update(before)

"""A guard against writes to a model's own memory, which a shadow shares with it.

Tensors are copied before an operation overwrites them, and put back in the end.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

_SETTERS = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"}
"""Operations that write to their first argument, beside those whose names end with an underscore.
"""
_PACKAGES = ("torch.nn.", "transformers.")


class WriteGuard(TorchFunctionMode):
    """A mode that copies tensors before they are overwritten, and notes autocast that a model
    enters itself.

    Args:
        device: where the model runs.
        model: the model that runs, for the names in an error.
        tensors: those whose memory is guarded.
    """

    def __init__(self, device: torch.device, model: nn.Module, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._model = model
        self._device_type = device.type if torch.amp.is_autocast_available(device.type) else None
        self._versions: list[tuple[Tensor, int]] = []
        self._by_address: dict[int, list[Tensor]] = {}
        for tensor in tensors:
            # a tensor of inference mode refuses to be written to
            if not is_lazy(tensor) and not tensor.is_inference():
                self._versions.append((tensor, tensor._version))
                if tensor.device.type != "meta":
                    self._by_address.setdefault(address(tensor), []).append(tensor)
        self._saved: dict[int, list[Tensor]] = {}
        self.autocast: torch.dtype | None = None
        """The precision of autocast; None while none has been met."""
        self._is_resting = False

    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kind = self._device_type
        if kind is not None and self.autocast is None and torch.is_autocast_enabled(kind):
            self.autocast = torch.get_autocast_dtype(kind)
        name = getattr(func, "__name__", "")
        if "out" in kwargs:
            self._save(kwargs["out"])
        if name in _SETTERS or (name.endswith("_") and not name.endswith("__")):
            self._save([*args, *kwargs.values()][:1])
        elif kwargs.get("max_norm") is not None:  # a lookup that renormalises rows of its table
            self._save([*args, *kwargs.values()])
        return func(*args, **kwargs)

    def rest(self) -> None:
        """See no more operations, each of which costs a call of Python, once a pass has run: what
        it has overwritten is saved, and a later one overwrites the same.
        """
        if not self._is_resting:
            super().__exit__(None, None, None)
            self._is_resting = True

    def _save(self, written: Any) -> None:
        """Copy what is about to be overwritten: a tensor, or tensors among the values of a list."""
        if isinstance(written, list | tuple):
            for value in written:
                self._save(value)
        elif isinstance(written, Tensor):
            start = address(written)
            if start in self._by_address and start not in self._saved:
                tensors = self._by_address[start]
                self._saved[start] = [tensor.detach().clone() for tensor in tensors]

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Restore what was overwritten; raise RuntimeError where something was that was
        not seen.
        """
        if not self._is_resting:
            super().__exit__(kind, error, trace)
        with torch.no_grad():
            for place, copies in self._saved.items():
                for tensor, before in zip(self._by_address[place], copies, strict=True):
                    tensor.copy_(before)
        changed = {address(t) for t, version in self._versions if t._version != version}
        unseen = changed - self._saved.keys()
        if unseen and kind is None:
            named = [*self._model.named_parameters(), *self._model.named_buffers()]
            lost = next((name for name, tensor in named if address(tensor) in unseen), "a tensor")
            raise RuntimeError(
                "expected a forward pass that does not change the weights, but it overwrote "
                f"{lost!r}, which cannot be restored; measure a copy of the model, "
                "copy.deepcopy(model)"
            )


def address(x: Tensor) -> int:
    """Return where a tensor's memory begins; of one without memory of its own, such as a sparse
    one, what tells it apart.
    """
    try:
        return x.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return id(x)


@contextmanager
def parameters_restored(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Put back the data and the attributes of parameters, which layers of quantised weights pack
    anew as they run.
    """
    before = [(parameter, parameter.data, dict(vars(parameter))) for parameter in parameters]
    try:
        yield
    finally:
        for parameter, data, attributes in before:
            if address(parameter) != address(data):
                parameter.data = data
            vars(parameter).clear()
            vars(parameter).update(attributes)


@contextmanager
def losses_taken_back(model: nn.Module) -> Iterator[None]:
    """Take out of lists outside of the model the tensors that a pass appends there.

    Routers of mixtures of experts keep their balancing losses in a list of a Python module, or of
    an object in one, which the training adds up in its next step. What is appended inside has no
    gradient, so that the losses of a training in another thread stay.
    """
    variables: list[Any] = []
    for home in {type(module).__module__ for module in model.modules()}:
        if not home.startswith(_PACKAGES):
            variables += [*getattr(sys.modules.get(home), "__dict__", {}).values()]
    objects = [
        vars(value)
        for value in variables
        if hasattr(value, "__dict__") and not isinstance(value, _NO_HOLDERS)
    ]
    values = [*variables, *(value for attributes in objects for value in [*attributes.values()])]
    lists = [(value, len(value)) for value in values if type(value) is list]
    try:
        yield
    finally:
        for losses, n in lists:
            if any(map(_is_of_a_pass, losses[n:])):
                losses[n:] = [loss for loss in losses[n:] if not _is_of_a_pass(loss)]


_NO_HOLDERS = (types.ModuleType, types.FunctionType, type, nn.Module)


def _is_of_a_pass(value: object) -> bool:
    return isinstance(value, Tensor) and not value.requires_grad

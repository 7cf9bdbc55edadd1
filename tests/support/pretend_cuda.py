"""A CUDA device without a GPU: tensors that claim to be on it, are computed on the CPU and refused
what CUDA refuses.

    with PretendCuda() as cuda:
        model.to("cuda")
        measure(model, probe)
    assert cuda.syncs.total() < 100

``PretendCuda("mps")`` claims to be a GPU of Apple, which has no float64. It finds operations that
mix devices, and counts how often the host waits for the device. It says nothing of CUDA's own
rounding, of dtypes that its kernels lack, of memory or of time. Each call from Python is checked as
a whole: what torch does inside it counts as correct.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
from internals import TorchDispatchMode
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

CUDA = torch.device("cuda", 0)
_devices = [CUDA]  # the last one is claimed
_CAPABILITY = (9, 0)

# What they return is a number for the host, or a tensor whose size only the device knows; linear
# algebra reads back whether it succeeded.
_SYNCHRONISING = {
    *("item", "tolist", "is_nonzero", "equal", "allclose"),
    *("__bool__", "__int__", "__float__", "__index__"),
    *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"),
    *(
        "linalg_eigh",
        "linalg_eigvalsh",
        "linalg_svd",
        "linalg_cholesky",
        "linalg_solve",
        "linalg_inv",
        "linalg_lstsq",
    ),
}
_MOVING = {"to", "type_as", "cpu", "cuda"}
# they accept tensors of both devices, mostly for the shape of one
_ANY_DEVICE = {"expand_as", "view_as", "reshape_as", "copy_", "_has_compatible_shallow_copy_type"}
# they accept no CPU tensor, not even one without dimensions
_STRICT = {
    "cat",
    "concat",
    "stack",
    "hstack",
    "vstack",
    "scatter",
    "scatter_",
    "index_copy_",
    "index_fill_",
    "__set__",
}
_INDEXING = {"__getitem__", "__setitem__"}


class CudaTensor(Tensor):
    """A CPU tensor that claims to be on a CUDA device, inside :class:`PretendCuda`."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class PretendCuda(TorchFunctionMode):
    """A context in which ``tensor.to("cuda")``, ``model.to("cuda")`` and ``device="cuda"`` work
    without a GPU.

    Attributes:
        syncs: how often the host has waited for the device, by the operation that made it wait.
        launches: how often the host has launched something on the device, by operation; views
            launch nothing.
    """

    def __init__(self, kind: str = "cuda") -> None:
        super().__init__()
        self._device = torch.device(kind, 0)
        self.syncs: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()
        self._patches = mock.patch.multiple(
            torch.cuda,
            get_device_capability=lambda *_: _CAPABILITY,
            get_device_name=lambda *_: "pretended",
        )
        # a measurement leaves out the modes of its caller, and this one is the device
        self._staying = mock.patch("repdyn.utils.caller_state.without_function_modes", nullcontext)

    def __enter__(self) -> PretendCuda:
        self._patches.start()
        self._staying.start()
        _devices.append(self._device)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patches.stop()
        self._staying.stop()
        _devices.pop()

    # a branch for each kind of function that a device treats otherwise
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # the mode is off in here: what torch itself does to compute the result, it does with
        # tensors of the CPU
        name = getattr(func, "__name__", "")
        kwargs = dict(kwargs or {})
        first: Any = args[0] if args else None
        tensors = _tensors_in((args, kwargs))
        on_cuda = any(map(_is_cuda, tensors))
        if name == "__get__":
            return _attribute(func, first)
        if name == "__set__" and func.__self__ is Tensor.data:
            return _set_data(func, *args)
        if name in _MOVING:
            return self._move(func, *args, **kwargs)
        if on_cuda:
            _refuse_mixture(name, args, kwargs, tensors)
            if _synchronises(name, args, kwargs):
                self.syncs[name] += 1
        to_cuda = _is_cuda(first) if name in {*_ANY_DEVICE, "__getitem__"} else on_cuda
        if kwargs.get("device") is not None:
            to_cuda = _is_cuda(kwargs["device"])
            if on_cuda and not to_cuda:
                self.syncs["to"] += 1
            kwargs["device"] = "cpu"
        if to_cuda and kwargs.get("generator") is not None:
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        with _Launches(self.launches) if on_cuda or to_cuda else nullcontext():
            result = func(*args, **kwargs)
        return _on_cuda(result) if to_cuda else result

    def _move(self, func: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Call ``Tensor.to`` or its like: the result is a copy wherever the device changes."""
        if func in {Tensor.cpu, Tensor.cuda}:
            kwargs = {}
            args = (func.__name__,)
            func = Tensor.to
        targets = [
            value
            for value in (*args, *kwargs.values())
            if isinstance(value, Tensor | torch.device | str)
        ]
        to_cuda = _is_cuda(targets[0] if targets else tensor)
        here = (
            [_with_cpu(value) for value in args],
            {key: _with_cpu(value) for key, value in kwargs.items()},
        )
        moved = func(tensor, *here[0], **here[1])
        if _is_cuda(tensor) and not to_cuda:
            self.syncs["to"] += 1
        if _is_cuda(tensor) != to_cuda and moved is tensor:
            moved = moved.clone()
        return _on_cuda(moved) if to_cuda else moved


class _Launches(TorchDispatchMode):
    """Counts the operations inside that compute something."""

    def __init__(self, launches: Counter[str]) -> None:
        super().__init__()
        self._launches = launches

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self._launches[str(func)] += 1
        return func(*args, **(kwargs or {}))


def _tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = (
        value.values()
        if isinstance(value, Mapping)
        else value
        if isinstance(value, list | tuple)
        else ()
    )
    return [tensor for part in parts for tensor in _tensors_in(part)]


def _is_cuda(value: Any) -> bool:
    """Return whether a tensor claims to be on a CUDA device, or a device or its name is one."""
    if isinstance(value, torch.device | str):
        return torch.device(value).type == _devices[-1].type
    return isinstance(value, CudaTensor)


def _on_cuda(value: Any) -> Any:
    """Return a result, in which all tensors claim to be on the device."""
    if isinstance(value, Tensor):
        if value.dtype == torch.float64 and _devices[-1].type == "mps":
            raise TypeError(
                "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't "
                "support float64."
            )
        return value if isinstance(value, CudaTensor) else value.as_subclass(CudaTensor)
    if isinstance(value, dict):
        return {key: _on_cuda(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(map(_on_cuda, value))
    if isinstance(value, tuple) and hasattr(value, "n_sequence_fields"):  # as topk returns
        return type(value)(map(_on_cuda, value))
    return type(value)(map(_on_cuda, value)) if type(value) in {list, tuple} else value


def _with_cpu(value: Any) -> Any:
    return "cpu" if isinstance(value, torch.device | str) else value


def _attribute(getter: Any, tensor: Tensor) -> Any:
    value = getter(tensor)
    if not isinstance(tensor, CudaTensor):
        return value
    device = _devices[-1]
    claims = {
        "device": device,
        "is_cuda": device.type == "cuda",
        "is_mps": device.type == "mps",
        "is_cpu": False,
    }
    return claims.get(getter.__self__.__name__, _on_cuda(value))


def _set_data(setter: Any, tensor: Tensor, data: Tensor) -> None:
    """Do what ``tensor.data = data`` does, by which ``model.to()`` moves its parameters."""
    setter(tensor, data)
    is_parameter = isinstance(tensor, nn.Parameter)
    tensor.__class__ = CudaTensor if _is_cuda(data) else nn.Parameter if is_parameter else Tensor
    if is_parameter:
        tensor._is_param = True


# a branch for each of the rules of CUDA
def _refuse_mixture(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Tensor]
) -> None:
    """Raise what torch raises for tensors of both devices, or for a CUDA tensor that is read as an
    array.
    """
    first = args[0] if args else None
    if name in {"numpy", "__array__", "__dlpack__"}:
        raise TypeError(
            f"can't convert {CUDA} device type tensor to numpy. Use Tensor.cpu() to copy the "
            f"tensor first."
        )
    if name in _INDEXING:
        indices = _tensors_in(args[1])
        values = _tensors_in(args[2:])
        # an index of the CPU is uploaded; values are copied between devices unless they are
        # scattered by indices
        strangers = [*([] if _is_cuda(first) else indices), *(values if indices else [])]
        mixed = [t for t in strangers if _is_cuda(t) != _is_cuda(first) and t.dim() > 0]
    elif name in _ANY_DEVICE:
        mixed = []
    else:
        # a CPU tensor without dimensions is read as a number, but cannot be written to
        written = _tensors_in(kwargs.get("out")) + _tensors_in(
            first if name.endswith("_") else None
        )
        exempt = (
            []
            if name in _STRICT
            else [t for t in tensors if t.dim() == 0 and all(t is not w for w in written)]
        )
        mixed = [
            t for t in tensors if not _is_cuda(t) and all(t is not scalar for scalar in exempt)
        ]
    if mixed:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            "cuda:0 and cpu! "
            f"({name} with {_shapes(tensors)})"
        )


def _shapes(tensors: Sequence[Tensor]) -> str:
    return ", ".join(f"{tuple(t.shape)} on {'cuda:0' if _is_cuda(t) else 'cpu'}" for t in tensors)


def _synchronises(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the host waits for the device."""
    if name == "repeat_interleave":
        return (
            any(map(_is_cuda, [*args[1:], kwargs.get("repeats")])) and "output_size" not in kwargs
        )
    if name == "where":
        return len(args) + len(kwargs) == 1
    if name == "copy_":
        return not _is_cuda(args[0])
    if name in _INDEXING:
        indices = [index for index in _tensors_in(args[1]) if _is_cuda(index)]
        # a mask has to be turned into positions, unless it is filled with a number
        masks = [
            index
            for index in indices
            if index.dtype == torch.bool and (name == "__getitem__" or _tensors_in(args[2:]))
        ]
        numbers = [index for index in indices if index.dtype != torch.bool and index.dim() == 0]
        return bool(masks or numbers) or not _is_cuda(args[0])
    return name in _SYNCHRONISING

"""A shadow of a model: a second tree of modules over the same weights, which runs in the model's
place.

It is ``copy.deepcopy(model, memo)``. The memo says what is not copied in the ordinary way:

- a parameter is a second one over the same memory, or over another tensor that stands in for it,
  such as an average;
- a tensor of more than 1 MiB is shared, and so is what is not the model's own data: optimizers,
  data sets, loggers, trainers, see :func:`contents_of`;
- hooks are left out but for those that act, see :mod:`repdyn.capture.hooks`;
- ``torch.compile``'s wrapper is the module inside it.

So whatever a forward pass writes is the shadow's own and goes with it. What it writes to shared
memory is restored, see :mod:`repdyn.capture.write_guard`. Variables outside of the model, of Python
modules and classes, are nobody's copy: what a pass does to them stays.
"""

from __future__ import annotations

import copy
import functools
import types
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils.data import DataLoader, Dataset

from repdyn.capture.hooks import HOOKS, MODULE_HOOKS, acting_hooks, functions_of
from repdyn.capture.wrappers import WRAPPINGS, is_a, is_sharded

SHARED_BYTES = 1 << 20
"""Larger tensors and arrays share their memory with the model's."""
_SIMPLE = {int, float, bool, str, bytes, complex, type(None), range, slice, object}
_SIMPLE |= {torch.dtype, torch.device, torch.Size}
_WHOLE = (
    *(type, np.ndarray, torch.Generator),
    *(np.random.Generator, np.random.RandomState, np.random.BitGenerator),
)
"""What deepcopy makes a second of, or shares, without a look at what is in it."""
_FOREIGN = (
    *(torch.optim.Optimizer, DataLoader, Dataset, torch.Stream, torch.Event),
    types.ModuleType,
)


class ShadowError(ValueError):
    """Why a model has no shadow."""


class Shadow:
    """A second module tree over the parameters of a model, or over others.

    Args:
        model: the model.
        parameters: parameters or buffers that stand in for the model's own, such as averages, as
            :func:`own_names` returns them.
        acting: the numbers of the hooks that act; None for those that do so without a trial, see
            :mod:`repdyn.capture.hooks`.

    Raises:
        ShadowError: a part of the model is of TorchScript, or of a class that refuses to be copied.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        parameters: Mapping[str, Tensor] | None = None,
        acting: Collection[int] | None = None,
    ) -> None:
        acting = acting_hooks(model) if acting is None else acting
        self.shared: list[Tensor] = []
        """The tensors whose memory is the model's."""
        self.own_parameters: list[nn.Parameter] = []
        """Parameters that are the model's own objects, since their class is not torch's."""
        self._memo: dict[int, Any] = {}
        self._seen: dict[int, Any] = {}
        self._data: dict[int, Any] = {}
        self._modules: list[nn.Module] = []
        self._compiled: list[nn.Module] = []
        try:
            if parameters:
                self._stand_in(model, parameters)
            self._look_through([model, *(functions_of(model, acting) if acting else ())])
            self.module: nn.Module = copy.deepcopy(model, self._memo)
            for module in self._modules:
                self._complete(module, copy.deepcopy(module, self._memo), acting)
        except (ShadowError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # code of any class runs here: __deepcopy__, __setstate__
            raise ShadowError(
                f"no second {type(model).__name__} can be made: {type(error).__name__}: {error}"
            ) from error

    def of(self, module: nn.Module) -> nn.Module:
        """Return the shadow of a module of the model."""
        return self._memo[id(module)]

    def hook(self, function: Any) -> Any:
        """Return a second hook, which holds the shadow's modules where the first holds the
        model's.
        """
        self._look_through([function])
        return self._second(function)

    def _stand_in(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> None:
        tensors: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
        tensors.update(model.named_buffers(remove_duplicate=False))
        for name, tensor in parameters.items():
            self._memo[id(tensors[name])] = self._second_tensor(tensors[name], tensor)

    def _look_through(self, values: Iterable[Any]) -> None:
        """Fill the memo for all that is in the given values."""
        todo = list(values)
        while todo:
            value = todo.pop()
            if type(value) in _SIMPLE or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            if isinstance(value, Tensor):
                if id(value) not in self._memo:
                    self._memo[id(value)] = self._second_tensor(value, value)
            elif isinstance(value, nn.Module):
                todo += self._parts_of_module(value)
            elif self._is_foreign(value):
                self._memo[id(value)] = value
            else:
                todo += contents_of(value) or ()
        while self._compiled:
            wrapper = self._compiled.pop()
            self._memo[id(wrapper)] = copy.deepcopy(wrapper._modules["_orig_mod"], self._memo)

    def _parts_of_module(self, module: nn.Module) -> Iterable[Any]:
        if isinstance(module, torch.jit.ScriptModule):
            raise ShadowError("a part of the model is of TorchScript")
        state = vars(module)
        if isinstance(inner := state["_modules"].get("_orig_mod"), nn.Module):
            self._compiled.append(module)
            return [inner]
        self._modules.append(module)
        for name in MODULE_HOOKS & state.keys():
            self._memo[id(state[name])] = type(state[name])()
        left_out = {"_compiled_call_impl", *MODULE_HOOKS}
        return [value for name, value in state.items() if name not in left_out]

    def _second_tensor(self, tensor: Tensor, data: Tensor) -> Tensor:
        """Return a second tensor; of a parameter one over the memory of ``data``."""
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            kind: Any = type(tensor)
            return kind(tensor.requires_grad, tensor.device, tensor.dtype)
        shared = data.detach()
        if isinstance(tensor, nn.Parameter):
            is_plain = type(tensor) is nn.Parameter and type(tensor.data) is Tensor
            if data is tensor and not is_plain:
                self.own_parameters.append(tensor)
                self.shared.append(tensor.detach())
                return tensor
            second = nn.Parameter(shared, requires_grad=tensor.requires_grad)
            vars(second).update(vars(tensor))
            self.shared.append(shared)
            return second
        if type(tensor) is not Tensor or tensor.device.type == "meta":
            return shared
        if tensor.numel() * tensor.itemsize <= SHARED_BYTES:
            return shared.clone()
        self.shared.append(shared)
        return shared

    def _is_foreign(self, value: Any) -> bool:
        """Return whether something is not the model's own data: whether anything that it holds
        is not.
        """
        if isinstance(value, np.ndarray):
            return value.nbytes > SHARED_BYTES
        if isinstance(value, list | tuple | set | frozenset | deque | dict | types.FunctionType):
            return False
        todo = [value]
        met: dict[int, Any] = {}
        while todo:
            inner = todo.pop()
            if type(inner) in _SIMPLE or isinstance(inner, nn.Module | Tensor):
                continue
            if id(inner) in met or id(inner) in self._data:
                continue
            met[id(inner)] = inner
            contents = contents_of(inner)
            if contents is None:
                return True
            todo += contents
        self._data |= met
        return False

    def _second(self, value: Any) -> Any:
        """Return a second value; deepcopy shares functions, and of one with a closure this makes a
        second with copies of what is in it.
        """
        if not isinstance(value, types.FunctionType):
            return copy.deepcopy(value, self._memo)
        if not value.__closure__:
            return value
        if id(value) not in self._memo:
            cells = [
                (cell, self._memo.setdefault(id(cell), types.CellType()))
                for cell in value.__closure__
            ]
            second = types.FunctionType(
                code=value.__code__,
                globals=value.__globals__,
                name=value.__name__,
                argdefs=None,
                closure=tuple(new for _, new in cells),
            )
            self._memo[id(value)] = second
            second.__defaults__ = self._second(value.__defaults__)
            second.__kwdefaults__ = self._second(value.__kwdefaults__)
            vars(second).update(vars(value))
            for cell, new in cells:
                for content in _content_of(cell):
                    new.cell_contents = self._second(content)
        return self._memo[id(value)]

    def _complete(self, module: nn.Module, second: nn.Module, acting: Collection[int]) -> None:
        """Give a copied module what deepcopy leaves out or shares: hooks that act, functions that
        hold modules, and the trainer.
        """
        state = vars(module)
        new = vars(second)
        for name, value in state.items():
            if isinstance(value, types.FunctionType) and new.get(name) is value:
                new[name] = self._second(value)
            elif isinstance(value, types.MethodType):
                # deepcopy binds the same function, whose closure may hold the model's own forward
                new[name] = types.MethodType(self._second(value.__func__), new[name].__self__)
        # under which accelerate keeps what it has wrapped
        if "_original_forward" in new and "forward" in new:
            new["forward"] = new["_original_forward"]
        if is_a(module, "LightningModule"):
            new.update(_trainer=state.get("_trainer"), log=_say_nothing, log_dict=_say_nothing)
        for kind, with_kwargs in HOOKS.items():
            for number, hook in state[kind].items():
                if number not in acting:
                    continue
                new[kind][number] = self._second(hook)
                for flags in (with_kwargs, "_forward_hooks_always_called"):
                    if number in state[flags]:
                        new[flags][number] = True


def check_can_be_copied(model: nn.Module) -> None:
    """Raise ShadowError where a second tree of modules would not run: all ranks must run a sharded
    model, and accelerate moves weights as it does.
    """
    if is_sharded(model):
        raise ShadowError("the weights are sharded")
    if any(hasattr(module, "_hf_hook") for module in model.modules()):
        raise ShadowError("accelerate moves the weights as the model runs")


def contents_of(value: Any) -> Collection[Any] | None:
    """Return what a value consists of; None for what only its owner can have a second of.

    That are optimizers, data sets, tokenizers, whatever has an end of its own (``__del__``), and
    objects that Python sees no attributes of and that are told apart by identity: files, locks,
    sockets, process groups. So a trainer or a logger is not the model's own either: it holds some
    of these.
    """
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return value
    if isinstance(value, types.FunctionType | types.MethodType | functools.partial):
        return _contents_of_callable(value)
    if isinstance(value, _FOREIGN) or is_a(value, "transformers.PreTrainedTokenizerBase"):
        return None
    if isinstance(value, _WHOLE):
        return ()
    if hasattr(type(value), "__del__"):
        return None
    state: Any = object.__getstate__(value)
    if isinstance(state, tuple):
        return [*(state[0] or {}).values(), *state[1].values()]
    if isinstance(state, dict):
        return state.values()
    is_told_by_value = type(value).__hash__ not in {object.__hash__, None}
    return () if hasattr(value, "__dict__") or is_told_by_value else None


def _contents_of_callable(value: Any) -> Collection[Any]:
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    cells = [content for cell in value.__closure__ or () for content in _content_of(cell)]
    return [*cells, value.__defaults__, value.__kwdefaults__] if cells else ()


def _content_of(cell: types.CellType) -> list[Any]:
    """Return what is in a cell of a closure, which may be empty."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _say_nothing(*_: Any, **__: Any) -> None:
    """Stand in for what a LightningModule logs with: what it says of the probe is not of the
    training.
    """


def own_names(model: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return parameters by the names that the model has for its own, without those of wrappers."""
    named = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    by_plain_name = {_plain_name(name): (name, tensor) for name, tensor in named}
    stand_ins = {}
    for name_given, tensor in parameters.items():
        name, original = by_plain_name[_plain_name(name_given)]
        if original.shape != tensor.shape:
            raise ValueError(
                f"expected {name_given!r} in parameters= of shape {tuple(original.shape)}, got "
                f"{tuple(tensor.shape)}"
            )
        stand_ins[name] = tensor.detach().to(original.device, original.dtype)
    return stand_ins


def _plain_name(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in {"module", *WRAPPINGS})

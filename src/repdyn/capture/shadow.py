"""A shadow of a model: a second tree of modules over the same weights, which runs in the model's place.

Whatever a forward pass writes is the shadow's own and goes with it: attributes, lists, counters, caches, buffers,
flags, the state of a generator. So the model is left as it was found because nothing touches it. Weights and large
tensors share the model's memory; what a pass writes there all the same is restored, see
:class:`repdyn.capture.forward.Watch`.

Not copied are what modules do not own: classes, functions without state, and the objects of optimizers, loggers,
trainers and of the standard library. Variables of a Python module that a forward pass changes are restored instead,
see :func:`variables_restored`.
"""

from __future__ import annotations

import copy
import enum
import functools
import itertools
import random
import sys
import types
import warnings
import weakref
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils.hooks import RemovableHandle

from repdyn.capture.blocks import is_dtensor, is_fsdp

_WRAPPINGS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"}
_SHARED_BYTES = 1 << 20
"""Larger tensors share their memory with the model's."""
_MOST_OBJECTS = 300_000
_ATOMS = {int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size, range, slice}
_FOREIGN = sys.stdlib_module_names - {"abc", "typing", "collections", "dataclasses", "types", "argparse"} | {
    *("torch", "numpy", "lightning", "pytorch_lightning", "lightning_fabric", "wandb", "tensorboard", "tensorboardX"),
    *("mlflow", "comet_ml", "tokenizers", "datasets", "accelerate", "deepspeed", "ray", "pandas", "pyarrow", "repdyn"),
}
"""Packages whose objects are shared: what they hold is theirs, or has no copy."""
_ITERATORS = (itertools.count, itertools.cycle, type(iter([])), type(iter(range(0))))
_ONLOOKERS = ("wandb.", "comet_ml.", "torch.utils.flop_counter", "torch.utils.module_tracker", "torch.profiler")
"""Modules whose hooks only look on, so that they need not be tried."""
_HOOKS = {"_forward_hooks": "_forward_hooks_with_kwargs", "_forward_pre_hooks": "_forward_pre_hooks_with_kwargs"}
_BACKWARD = {"_backward_hooks", "_backward_pre_hooks"}
_GLOBAL = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")


class NoShadow(ValueError):
    """Why a model has no shadow."""


class Shadow:
    """A second module tree over the parameters of a model, or over others.

    Args:
        model: the model; wrappers of ``torch.compile`` inside it are left out.
        parameters: by their names in the model, parameters or buffers that stand in for its own, such as averages.
        onlookers: the numbers of hooks that change nothing, as a pass of a former shadow has shown, and which are left
            out; None where none has run: then the hooks are tried.

    Raises:
        NoShadow: the model is sharded, of TorchScript, or moved between devices as it runs; a class or an object in it
            refuses to be copied.
        ValueError: ``parameters`` have unknown names or other shapes.
    """

    def __init__(
        self, model: nn.Module, *, parameters: Mapping[str, Tensor] | None = None, onlookers: set[int] | None = None
    ) -> None:
        self.onlookers, self._tries_hooks = onlookers or set(), onlookers is None
        self.shared: list[Tensor] = []
        """The tensors whose memory is the model's."""
        self._memo: dict[int, Any] = {}
        self._originals: list[Any] = []  # an id is only that of its object while this lives
        if onlookers is None:
            _check(model)
        if parameters:
            own = dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)])
            for name, tensor in own_names(model, parameters).items():
                self._remember(own[name], self._parameter(own[name], tensor))
        try:
            self.module: nn.Module = self._copy(model)
        except (NoShadow, MemoryError):
            raise
        except Exception as error:  # code of any class may run here: properties, __setattr__
            raise NoShadow(f"no second {type(model).__name__} can be made: {type(error).__name__}: {error}") from error

    def of(self, module: nn.Module) -> nn.Module:
        """Return the shadow of a module of the model."""
        return self._memo[id(module)]

    def _remember(self, original: Any, copied: Any) -> Any:
        self._memo[id(original)] = copied
        self._originals.append(original)
        if len(self._memo) > _MOST_OBJECTS:
            raise NoShadow(f"the model holds more than {_MOST_OBJECTS} objects")
        return copied

    def _copy(self, x: Any) -> Any:
        kind = type(x)
        if kind in _ATOMS or isinstance(x, type):
            return x
        if id(x) in self._memo:
            return self._memo[id(x)]
        if isinstance(x, Tensor):
            return self._remember(x, self._parameter(x, x) if isinstance(x, nn.Parameter) else self._tensor(x))
        if isinstance(x, nn.Module):
            return self._module(x)
        if isinstance(x, list | set | deque | dict):
            return self._container(x)
        if isinstance(x, tuple | frozenset):
            parts = [self._copy(part) for part in x]
            if all(new is old for new, old in zip(parts, x, strict=True)):
                return x
            return kind._make(parts) if hasattr(kind, "_make") else kind(parts)
        if isinstance(x, types.FunctionType | types.MethodType | functools.partial):
            return self._callable(x)
        if isinstance(x, weakref.ref):
            return x if x() is None else self._remember(x, weakref.ref(self._copy(x())))
        if isinstance(x, torch.Generator):
            return self._remember(x, x.clone_state())
        if isinstance(x, np.random.Generator | np.random.RandomState | np.random.BitGenerator | random.Random):
            return self._remember(x, copy.deepcopy(x))
        if isinstance(x, np.ndarray | array | bytearray):  # of any size: nothing tells that one was written into
            return self._remember(x, copy.copy(x))
        if isinstance(x, _ITERATORS):
            with warnings.catch_warnings(action="ignore"), suppress(TypeError):  # those of itertools not from 3.14 on
                return self._remember(x, copy.copy(x))
        return self._object(x)

    def _parameter(self, original: Tensor, tensor: Tensor) -> Tensor:
        """Return a parameter over the memory of ``tensor``; of a class of its own, the tensor itself."""
        if isinstance(original, UninitializedParameter):
            return UninitializedParameter(original.requires_grad, device=original.device, dtype=original.dtype)  # type: ignore[call-arg]
        if tensor is original and (type(original) is not nn.Parameter or type(original.data) is not Tensor):
            return self._share(original)
        new = nn.Parameter(self._share(tensor.detach()), requires_grad=original.requires_grad)
        vars(new).update(vars(original))
        return new

    def _tensor(self, x: Tensor) -> Tensor:
        if type(x) is UninitializedBuffer:
            return UninitializedBuffer(x.requires_grad, x.device, x.dtype)  # type: ignore[arg-type]
        if type(x) is not Tensor or x.device.type == "meta":
            return x.detach()
        if x.layout != torch.strided or x.numel() * x.itemsize <= _SHARED_BYTES:
            return x.detach().clone()
        return self._share(x.detach())

    def _share(self, x: Tensor) -> Tensor:
        self.shared.append(x)
        return x

    def _module(self, x: nn.Module) -> nn.Module:
        if isinstance(inner := x.__dict__.get("_modules", {}).get("_orig_mod"), nn.Module):
            new = self._remember(x, self._copy(inner))
            self._add_hooks(x, new)
            return new
        if isinstance(x, torch.jit.ScriptModule):
            raise NoShadow("a part of the model is of TorchScript")
        new = self._remember(x, object.__new__(type(x)))
        state = x.__dict__
        own = {name: {} for name in _BACKWARD if name in state}
        for name in (*_HOOKS, *_HOOKS.values(), "_forward_hooks_always_called"):
            if name in state:
                own[name] = self._remember(state[name], type(state[name])())
        for name in ("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks"):
            if name in state:
                own[name] = copy.copy(state[name])
        # accelerate keeps the forward that it has wrapped in autocast under another name
        left_out = {"_compiled_call_impl", *(["forward"] if "_original_forward" in state else [])}
        new.__dict__.update(own, _compiled_call_impl=None)
        for name, value in state.items():
            if name not in own and name not in left_out:
                new.__dict__[name] = self._copy(value)
        if "_original_forward" in state and "forward" in state:
            new.__dict__["forward"] = self._copy(state["_original_forward"])
        self._copy_slots(x, new)
        self._add_hooks(x, new)
        return new

    def _add_hooks(self, x: nn.Module, new: nn.Module) -> None:
        for name, with_kwargs in _HOOKS.items():
            for number, hook in x.__dict__.get(name, {}).items():
                if number in self.onlookers or _looks_on(hook):
                    continue
                getattr(new, name)[number] = self._hook(number, hook)
                if number in getattr(x, with_kwargs):
                    getattr(new, with_kwargs)[number] = True
                if name == "_forward_hooks" and number in x._forward_hooks_always_called:
                    new._forward_hooks_always_called[number] = True

    def _hook(self, number: int, hook: Any) -> Any:
        copied = self._copy(hook)
        return _Tried(copied, number, self.onlookers) if self._tries_hooks else copied

    def _container(self, x: Any) -> Any:
        kind = type(x)
        if not x and kind in {list, set, dict, OrderedDict}:  # most of them
            return self._remember(x, kind())
        values = x.values() if isinstance(x, dict) else x
        if kind in {list, set, dict, deque} and set(map(type, values)) <= _ATOMS:
            return self._remember(x, x.copy())
        new: Any
        try:
            new = copy.copy(x) if kind not in {list, set, dict} else kind()
            new.clear()
        except Exception:  # a container of rules of its own, such as one that is read only
            return self._remember(x, x)
        self._remember(x, new)
        if isinstance(x, dict):
            for key, value in x.items():
                new[self._copy(key)] = self._copy(value)
        elif isinstance(x, set):
            new.update(self._copy(value) for value in x)
        else:
            new.extend(self._copy(value) for value in x)
        if hasattr(x, "__dict__"):
            new.__dict__.update({name: self._copy(value) for name, value in x.__dict__.items()})
        return new

    def _callable(self, x: Any) -> Any:
        if isinstance(x, types.MethodType):
            return self._remember(x, types.MethodType(self._copy(x.__func__), self._copy(x.__self__)))
        if isinstance(x, functools.partial):
            keywords = {name: self._copy(value) for name, value in x.keywords.items()}
            return self._remember(x, type(x)(self._copy(x.func), *map(self._copy, x.args), **keywords))
        if not (x.__closure__ or x.__dict__ or _has_state(x.__defaults__) or _has_state(x.__kwdefaults__)):
            return x
        cells = tuple(self._memo.setdefault(id(cell), types.CellType()) for cell in x.__closure__ or ())
        new = types.FunctionType(x.__code__, x.__globals__, x.__name__, None, cells)
        self._remember(x, new)
        for old, cell in zip(x.__closure__ or (), cells, strict=True):
            self._originals.append(old)
            if _is_filled(old) and not _is_filled(cell):
                cell.cell_contents = self._copy(old.cell_contents)
        new.__defaults__, new.__kwdefaults__ = self._copy(x.__defaults__), self._copy(x.__kwdefaults__)
        new.__dict__.update({name: self._copy(value) for name, value in x.__dict__.items()})
        new.__qualname__, new.__module__ = x.__qualname__, x.__module__
        return new if _state_of(new) != _state_of(x) else self._remember(x, x)

    def _object(self, x: Any) -> Any:
        kind = type(x)
        if kind is not RemovableHandle and not _is_owned(kind):
            return x
        try:
            new = kind() if kind is types.SimpleNamespace else object.__new__(kind)
        except TypeError:  # it has state that Python does not see
            return x
        self._remember(x, new)
        if hasattr(x, "__dict__"):
            new.__dict__.update({name: self._copy(value) for name, value in x.__dict__.items()})
        self._copy_slots(x, new)
        return new

    def _copy_slots(self, x: Any, new: Any) -> None:
        for kind in type(x).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                name = f"_{kind.__name__.lstrip('_')}{name}" if name[:2] == "__" != name[-2:] else name
                member = kind.__dict__.get(name)
                if isinstance(member, types.MemberDescriptorType) and hasattr(x, name):
                    member.__set__(new, self._copy(member.__get__(x)))

    @contextmanager
    def global_hooks(self) -> Iterator[None]:
        """Put those of torch's hooks on every module that act in place of all of them, and restore these on leaving."""
        with ExitStack() as stack:
            for name in _GLOBAL:
                hooks = getattr(torch_module, name)
                before = dict(hooks)
                if not before:
                    continue
                stack.callback(hooks.update, before)
                stack.callback(hooks.clear)
                hooks.clear()
                if "backward" not in name:
                    kept = {n: h for n, h in before.items() if n not in self.onlookers and not _looks_on(h)}
                    hooks.update({number: self._hook(number, hook) for number, hook in kept.items()})
            yield


class _Tried:
    """A copy of a user's hook whose effect is watched: it changes what passes through, or it only looks on."""

    def __init__(self, hook: Any, number: int, onlookers: set[int]) -> None:
        self._hook = hook
        self._number = number
        self._onlookers = onlookers
        self._acts = False

    def __call__(self, module: nn.Module, *passed: Any) -> Any:
        tensors = [t for t in _tensors(passed) if not t.is_inference()]
        before = [t._version for t in tensors]
        own = dict(module.__dict__), dict(module._parameters), dict(module._buffers), dict(module._modules)
        result = self._hook(module, *passed)
        after = module.__dict__, module._parameters, module._buffers, module._modules
        self._acts |= (
            result is not None
            or before != [t._version for t in tensors]
            or any(
                then.keys() != now.keys() or any(now[k] is not then[k] for k in then)
                for then, now in zip(own, after, strict=True)
            )
        )
        (self._onlookers.discard if self._acts else self._onlookers.add)(self._number)
        return result


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _check(model: nn.Module) -> None:
    for module in model.modules():
        if is_fsdp(module):
            raise NoShadow("the weights are sharded")
        if hasattr(module, "_hf_hook"):
            raise NoShadow("accelerate moves the weights as the model runs")
    for parameter in model.parameters():
        if is_dtensor(parameter) or hasattr(parameter, "ds_id"):
            raise NoShadow("the weights are sharded")


def own_names(model: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return parameters by the names that the model has for its own, without those of wrappers.

    Raises:
        ValueError: a name or a shape that the model does not have.
    """
    if not parameters:
        return {}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    own = {_plain_name(name): (name, tensor) for name, tensor in named}
    found = {}
    for given, tensor in parameters.items():
        name, original = own.get(_plain_name(given), ("", None))
        if original is None:
            raise ValueError(
                f"expected parameters= by their names in {type(model).__name__}, such as {next(iter(own), None)!r}, "
                f"got {given!r}; name them as the measured module's named_parameters() do"
            )
        if original.shape != tensor.shape:
            raise ValueError(
                f"expected {given!r} in parameters= of shape {tuple(original.shape)}, got {tuple(tensor.shape)}"
            )
        found[name] = tensor.detach().to(original.device, original.dtype)
    return found


def _plain_name(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPINGS)


def _looks_on(hook: Any) -> bool:
    function = getattr(hook, "func", hook)
    return (getattr(function, "__module__", None) or type(function).__module__).startswith(_ONLOOKERS)


def address(x: Tensor) -> int:
    try:
        return x.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # a tensor without memory of its own, such as a sparse one
        return id(x)


def _state_of(function: types.FunctionType) -> list[int]:
    """Return the identities of what a function holds."""
    cells = [id(cell.cell_contents) if _is_filled(cell) else 0 for cell in function.__closure__ or ()]
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *function.__dict__.values())
    return [*cells, *map(id, defaults)]


def _has_state(values: Any) -> bool:
    parts = values.values() if isinstance(values, dict) else values or ()
    return any(type(part) not in _ATOMS for part in parts)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@contextmanager
def variables_restored(model: nn.Module) -> Iterator[None]:
    """Restore what the Python modules and classes of a model's code keep in variables: numbers, lists, generators.

    A shadow cannot have variables of its own. Restored are the variables of the modules that define the model's classes
    and its hooks, the attributes of these classes, and the lists, dictionaries, sets and generators in them.
    """
    classes = {kind for module in model.modules() for kind in type(module).__mro__}
    hooks = [h for module in model.modules() for name in _HOOKS for h in module.__dict__.get(name, {}).values()]
    hooks += [h for name in _GLOBAL for h in getattr(torch_module, name).values()]
    names = {getattr(each, "__module__", None) for each in (*classes, *hooks)}
    owners: list[Any] = [kind for kind in classes if kind.__module__.partition(".")[0] not in _FOREIGN | {"builtins"}]
    owners += [sys.modules[name] for name in names if name in sys.modules and name.partition(".")[0] not in _FOREIGN]
    bound: list[tuple[Any, str, Any]] = []
    contents: dict[int, tuple[Any, Any]] = {}

    def save(value: Any) -> None:
        if id(value) in contents or len(contents) > _MOST_OBJECTS:
            return
        if isinstance(value, _GENERATORS):
            contents[id(value)] = value, _generator_state(value)
        elif type(value) in _CONTAINERS:
            contents[id(value)] = value, value.copy()
            for part in value.values() if isinstance(value, dict) else value:
                save(part)

    for owner in owners:
        for name, value in list(vars(owner).items()):
            if not name.startswith("__") and (type(value) in _NUMBERS | _CONTAINERS or isinstance(value, _GENERATORS)):
                bound.append((owner, name, value))
                save(value)
    try:
        yield
    finally:
        for owner, name, value in bound:
            if vars(owner).get(name) is not value:
                setattr(owner, name, value)
        for value, before in contents.values():
            if isinstance(value, _GENERATORS):
                _restore_generator(value, before)
            elif len(value) != len(before) or any(a is not b for a, b in zip(_flat(value), _flat(before), strict=True)):
                value.clear()
                (value.extend if isinstance(value, list | deque) else value.update)(before)


_NUMBERS = {int, float, bool, type(None)}
_CONTAINERS = {list, dict, set, deque, defaultdict, OrderedDict, Counter}
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


def _flat(value: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(value.items()) if isinstance(value, dict) else iter(value)


def _generator_state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _restore_generator(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        (generator.setstate if isinstance(generator, random.Random) else generator.set_state)(state)


@functools.cache
def _is_owned(kind: type) -> bool:
    """Return whether the objects of a class are a model's own data."""
    if issubclass(kind, enum.Enum | BaseException | types.ModuleType):
        return False
    bases = [base for base in kind.__mro__ if base is not object]
    packages = {base.__module__.partition(".")[0] for base in bases}
    names = (base.__module__ for base in bases)
    return not packages & (_FOREIGN | {"builtins"}) and not any(
        name.startswith(("transformers.tokenization", "transformers.trainer")) for name in names
    )

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
import dis
import enum
import functools
import itertools
import random
import sys
import sysconfig
import types
import warnings
import weakref
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from repdyn.capture.blocks import is_sharded

_WRAPPINGS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"}
_SHARED_BYTES = 1 << 20
"""Larger tensors share their memory with the model's."""
_MOST_OBJECTS = 300_000
_ATOMS = {int, float, bool, str, bytes, complex, type(None), range, slice, object}
_ATOMS |= {torch.dtype, torch.device, torch.Size}
_FOREIGN = sys.stdlib_module_names - {"abc", "typing", "collections", "dataclasses", "types", "argparse"} | {
    *("torch", "numpy", "lightning", "pytorch_lightning", "lightning_fabric", "wandb", "tensorboard", "tensorboardX"),
    *("mlflow", "trackio", "comet_ml", "tokenizers", "datasets", "accelerate", "deepspeed", "ray", "pandas", "pyarrow"),
    "repdyn",
}
"""Packages whose objects are shared: what they hold is theirs, or has no copy."""
_WRITERS = ("wandb.", "trackio.", "comet_ml.", "mlflow.", "tensorboard", "torch.utils.tensorboard")
"""Modules whose objects write what the training alone should."""
_ONLOOKERS = (*_WRITERS, "torch.utils.flop_counter", "torch.utils.module_tracker", "torch.profiler")
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
        shared: objects that the shadow has in common with the model.

    Raises:
        NoShadow: the model is sharded, of TorchScript, or moved between devices as it runs; a class or an object in it
            refuses to be copied.
        ValueError: ``parameters`` have unknown names or other shapes.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        parameters: Mapping[str, Tensor] | None = None,
        onlookers: set[int] | None = None,
        shared: Iterable[Any] = (),
    ) -> None:
        self.onlookers, self._tries_hooks = onlookers or set(), onlookers is None
        self.shared: list[Tensor] = []
        """The tensors whose memory is the model's."""
        self._originals: list[Any] = [*shared]  # an id is only that of its object while this lives
        self._memo: dict[int, Any] = {id(each): each for each in self._originals}
        if onlookers is None:
            if is_sharded(model):
                raise NoShadow("the weights are sharded")
            if any(hasattr(module, "_hf_hook") for module in model.modules()):
                raise NoShadow("accelerate moves the weights as the model runs")
        if parameters:
            own = dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)])
            for name, tensor in own_names(model, parameters).items():
                self._remember(own[name], self._tensor(own[name], tensor))
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
            return self._remember(x, self._tensor(x, x))
        if isinstance(x, nn.Module):
            return self._module(x)
        if isinstance(x, list | set | deque | dict):
            return self._container(x)
        if isinstance(x, functools._lru_cache_wrapper):
            return self._remember(x, functools.lru_cache(**x.cache_parameters())(self._copy(x.__wrapped__)))
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
            is_fixed = isinstance(x, np.ndarray) and (isinstance(x, np.memmap) or not x.flags.writeable)
            return x if is_fixed else self._remember(x, copy.copy(x))
        if kind.__module__ in {"builtins", "itertools"} and hasattr(x, "__next__"):
            return self._iterator(x)
        return self._object(x)

    def _tensor(self, x: Tensor, data: Tensor) -> Tensor:
        """Return a second tensor; of a parameter one over the memory of ``data``, or itself if its class is its own."""
        if isinstance(x, UninitializedParameter | UninitializedBuffer):
            return type(x)(x.requires_grad, x.device, x.dtype)  # type: ignore[call-arg]
        shared = data.detach()
        if isinstance(x, nn.Parameter):
            if data is x and (type(x) is not nn.Parameter or type(x.data) is not Tensor):
                shared = x
            else:
                x, own = nn.Parameter(shared, requires_grad=x.requires_grad), vars(x)
                vars(x).update(own)
        elif type(x) is not Tensor or x.device.type == "meta":
            return shared
        elif x.layout != torch.strided or x.numel() * x.itemsize <= _SHARED_BYTES:
            return shared.clone()
        else:
            x = shared
        self.shared.append(shared)
        return x

    def _module(self, x: nn.Module) -> nn.Module:
        if isinstance(inner := x.__dict__.get("_modules", {}).get("_orig_mod"), nn.Module):
            new = self._remember(x, self._copy(inner))
            self._add_hooks(x, new)
            return new
        if isinstance(x, torch.jit.ScriptModule):
            raise NoShadow("a part of the model is of TorchScript")
        if hasattr(type(x), "__del__"):
            raise NoShadow(f"the end of a second {type(x).__name__} would end what the first holds")
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
        if any(kind.__name__ == "LightningModule" for kind in type(x).__mro__):
            new.__dict__.update(log=_Silent(), log_dict=_Silent())
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

    def _iterator(self, x: Any) -> Any:
        with warnings.catch_warnings(action="ignore"):
            try:
                make, arguments, *state = x.__reduce__()
            except TypeError:  # generators, files, and what itertools makes from Python 3.14 on
                return x
            new = self._remember(x, make(*map(self._copy, arguments)))
            for each in state:
                new.__setstate__(self._copy(each))
        return new

    def _object(self, x: Any) -> Any:
        kind = type(x)
        if kind.__module__.startswith(_WRITERS):
            return _Silent()
        # the end of a copy would end what the object holds
        if (kind is not RemovableHandle and not _is_owned(kind)) or hasattr(kind, "__del__"):
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
        self._acts = _may_act(hook)

    def __call__(self, module: nn.Module, *passed: Any) -> Any:
        tensors = [t for t in tree_leaves(passed) if isinstance(t, Tensor) and not t.is_inference()]
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


def _may_act(hook: Any) -> bool:
    """Return whether a hook decides at each call whether it acts, such as one that waits for the end of a warm-up."""
    function = getattr(hook, "func", hook)
    function = function if hasattr(function, "__code__") else type(function).__call__
    steps = list(dis.get_instructions(function)) if hasattr(function, "__code__") else []
    returns = any(
        now.opname == "RETURN_VALUE" and (now.is_jump_target or (before.opname, before.argval) != ("LOAD_CONST", None))
        for before, now in itertools.pairwise(steps)
    )
    writes = any(now.opname in {"LOAD_METHOD", "LOAD_ATTR"} and now.argval.endswith("_") for now in steps)
    return (returns or writes) and any("JUMP" in now.opname for now in steps)


class _Silent:
    """Stands in for what a forward pass logs to: what it says of the probe is not of the training."""

    def __getattr__(self, name: str) -> _Silent:
        return self

    def __call__(self, *_: Any, **__: Any) -> _Silent:
        return self


def own_names(model: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return parameters by the names that the model has for its own, without those of wrappers."""
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


class ExternalState(NamedTuple):
    """Holds what the code of a model refers to outside of the model."""

    tensors: list[Tensor]
    """Those that :class:`repdyn.capture.forward.Watch` restores."""
    objects: list[Any]
    """Objects without parts, such as sentinels and settings, which are what they are by identity."""


@contextmanager
def variables_restored(model: nn.Module, attributes: Iterable[Any] = ()) -> Iterator[ExternalState]:
    """Restore what the code of a model keeps outside of it: in variables of Python modules, classes and functions.

    A shadow cannot have variables of its own. Restored are those that the code of the model's classes and hooks names,
    and the functions of the user's that it calls: what they are bound to, and what is in these containers, generators,
    arrays and objects. Others, such as a flag that a signal handler sets, are not touched. What is in ``attributes`` of
    a model that has no shadow is restored likewise.
    """
    held: dict[int, Any] = {}
    todo: list[Any] = [model]
    while todo and len(held) < _MOST_OBJECTS:
        each = todo.pop()
        if id(each) in held or type(each) in _ATOMS or isinstance(each, Tensor):
            continue
        held[id(each)] = each
        if isinstance(each, dict | list | tuple | set):
            todo += each.values() if isinstance(each, dict) else each
        elif isinstance(each, nn.Module) or (_is_owned(type(each)) and not _is_installed(type(each))):
            todo += getattr(each, "__dict__", {}).values()
    modules = [each for each in held.values() if isinstance(each, nn.Module)]
    hooks = [vars(module).get(kind, {}) for module in modules for kind in _HOOKS]
    hooks += [getattr(torch_module, kind) for kind in _GLOBAL]
    run = [*held.values(), *(hook for each in hooks for hook in each.values())]
    code = (each if isinstance(each, types.FunctionType) else type(each) for each in run)
    bound = [(place, name, _value(place, name)) for place, name in _variables(frozenset(code))]
    shared = (vars(each) for each in model.parameters() if type(each) is not nn.Parameter)  # as quantised weights are
    outside = ExternalState([], [])
    with ExitStack() as undo:
        _keep([*(value for _, _, value in bound), *shared, *attributes], modules, outside, undo)
        try:
            for place, name, value in bound:
                if _writes(value):
                    _bind(place, name, _Silent())
            yield outside
        finally:
            for place, name, value in bound:
                if _value(place, name) is not value:
                    _bind(place, name, value)


def _value(place: Any, name: str) -> Any:
    if isinstance(place, dict | type):
        return (vars(place) if isinstance(place, type) else place).get(name)
    return getattr(place, name, None)


def _bind(place: Any, name: str, value: Any) -> None:
    place.update({name: value}) if isinstance(place, dict) else setattr(place, name, value)


def _writes(value: Any) -> bool:
    """Return whether a variable is what a forward pass logs to: a package, one of its functions or of its objects."""
    if isinstance(value, types.FunctionType | types.MethodType):
        return f"{value.__module__}.".startswith(_WRITERS)
    return f"{value.__name__ if isinstance(value, types.ModuleType) else type(value).__module__}.".startswith(_WRITERS)


def _keep(values: Iterable[Any], inside: Iterable[nn.Module], outside: ExternalState, undo: ExitStack) -> None:
    """Find what is in values that are not ``inside`` a model; ``undo`` restores containers, generators and arrays."""
    todo, known = list(values), {id(module) for module in inside}
    while todo and len(known) < _MOST_OBJECTS:
        value = todo.pop()
        if id(value) in known or type(value) in _ATOMS:
            continue
        known.add(id(value))
        if isinstance(value, Tensor):
            outside.tensors.append(value)
        elif isinstance(value, torch.Generator | np.random.RandomState):
            undo.callback(value.set_state, value.get_state())  # type: ignore[arg-type]
        elif isinstance(value, random.Random):
            undo.callback(value.setstate, value.getstate())
        elif isinstance(value, np.random.Generator):
            undo.callback(setattr, value.bit_generator, "state", value.bit_generator.state)
        elif isinstance(value, np.ndarray) and value.flags.writeable and value.nbytes <= _SHARED_BYTES:
            undo.callback(np.copyto, value, value.copy())
        elif type(value) in _CONTAINERS:
            undo.callback(_refill, value, value.copy())
            todo += value.values() if isinstance(value, dict) else value
        elif isinstance(value, nn.Module) or (_is_owned(type(value)) and not _is_installed(type(value))):
            todo.append(getattr(value, "__dict__", {}))
            if all(type(part) in _ATOMS for part in getattr(value, "__dict__", {}).values()):
                outside.objects.append(value)


_CONTAINERS = {list, dict, set, deque, defaultdict, OrderedDict, Counter}


def _refill(value: Any, before: Any) -> None:
    """Restore a container, unless it still holds the very same parts."""
    now, then = ([*each, *(each.values() if isinstance(each, dict) else ())] for each in (value, before))
    if len(now) != len(then) or any(a is not b for a, b in zip(now, then, strict=True)):
        value.clear()
        (value.extend if isinstance(value, list | deque) else value.update)(before)


@functools.lru_cache(maxsize=8)
def _variables(code: frozenset[type | types.FunctionType]) -> list[tuple[Any, str]]:
    """Return the variables that functions and the methods of classes name: where they are, and how they are called."""
    found: dict[tuple[int, str], tuple[Any, str]] = {}
    todo, seen = list(code), set()
    while todo:
        each = todo.pop()
        if each in seen or (each.__module__ or "").partition(".")[0] in _FOREIGN | {"builtins"}:
            continue
        seen.add(each)
        if isinstance(each, type):
            own = [getattr(value, "__func__", getattr(value, "fget", value)) for value in vars(each).values()]
            todo += [*each.__mro__, *(code for value in own for code in _code_in(value))]
            found |= {(id(each), name): (each, name) for name in vars(each) if not name.startswith("__")}
            continue
        cells = [cell for cell in each.__closure__ or () if _is_filled(cell)]
        places = [(cell, "cell_contents", cell.cell_contents) for cell in cells]
        names, spaces = _names(each.__code__), [each.__globals__]
        for space in spaces:
            places += [(space, name, space[name]) for name in names & space.keys()]
            modules = [v for *_, v in places if isinstance(v, types.ModuleType) and not _is_installed(v)]
            spaces += [vars(m) for m in modules if all(vars(m) is not known for known in spaces)]
        for place, name, value in places:
            found[id(place), name] = place, name
            todo += [] if _is_installed(each) else _code_in(value)
    return list(found.values())


def _code_in(value: Any) -> list[type | types.FunctionType]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else [value]
    return [part if isinstance(part, type | types.FunctionType) else type(part) for part in parts]


def _names(code: types.CodeType) -> set[str]:
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _is_installed(x: Any) -> bool:
    """Return whether a Python module, class or function is of a package, rather than of the user's own code."""
    top = (x.__name__ if isinstance(x, types.ModuleType) else x.__module__ or "").partition(".")[0]
    path = getattr(sys.modules.get(top), "__file__", None) or ""
    return top in _FOREIGN or path.startswith(sysconfig.get_paths()["purelib"])


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

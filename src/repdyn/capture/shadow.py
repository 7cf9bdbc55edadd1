"""A shadow of a model: a second tree of modules over the same weights, which runs in the model's
place.

Whatever a forward pass writes is the shadow's own and goes with it: attributes, lists, counters,
caches, buffers, flags, the state of a generator. So the model is left as it was found because
nothing touches it. Weights and large tensors share the model's memory; what a pass writes there all
the same is restored, see :class:`repdyn.capture.forward.Watch`.

Not copied are what modules do not own: classes, functions without state, and the objects of
optimizers, loggers, trainers and of the standard library. Variables of a Python module that a
forward pass changes are restored instead, see :func:`variables_restored`.
"""

from __future__ import annotations

import copy
import dis
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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from repdyn.capture.blocks import WRAPPINGS, is_a, is_sharded

_SHARED_BYTES = 1 << 20
"""Larger tensors share their memory with the model's."""
_MOST_OBJECTS = 300_000
_ATOMS = {int, float, bool, str, bytes, complex, type(None), range, slice, object}
_ATOMS |= {torch.dtype, torch.device, torch.Size}
_FOREIGN = sys.stdlib_module_names - {
    "abc",
    "typing",
    "collections",
    "dataclasses",
    "types",
    "argparse",
} | {
    *(
        "torch",
        "numpy",
        "lightning",
        "pytorch_lightning",
        "lightning_fabric",
        "wandb",
        "tensorboard",
        "tensorboardX",
    ),
    *(
        "mlflow",
        "trackio",
        "comet_ml",
        "tokenizers",
        "datasets",
        "accelerate",
        "deepspeed",
        "ray",
        "pandas",
        "pyarrow",
    ),
    "repdyn",
}
"""Packages whose objects are shared: what they hold is theirs, or has no copy."""
_WRITERS = ("wandb.", "trackio.", "comet_ml.", "mlflow.", "tensorboard", "torch.utils.tensorboard")
"""Modules whose objects write what the training alone should."""
_ONLOOKERS = (*_WRITERS, "torch.utils.flop_counter", "torch.utils.module_tracker", "torch.profiler")
"""Modules whose hooks only look on, so that they need not be tried."""
_HOOKS = {
    "_forward_hooks": "_forward_hooks_with_kwargs",
    "_forward_pre_hooks": "_forward_pre_hooks_with_kwargs",
}
_MODULE_HOOKS = {name for name in vars(nn.Module()) if "hooks" in name}
_GLOBAL = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


class ShadowError(ValueError):
    """Why a model has no shadow."""


class Shadow:
    """A second module tree over the parameters of a model, or over others.

    Args:
        model: the model; wrappers of ``torch.compile`` inside it are left out.
        parameters: parameters or buffers that stand in for the model's own, such as averages, as
            :func:`own_names` returns them.
        onlookers: the numbers of hooks that change nothing, as a pass of a former shadow has shown,
            and which are left out; None where none has run: then the hooks are tried.
        shared: objects that the shadow has in common with the model.

    Raises:
        ShadowError: the model is sharded, of TorchScript, or moved between devices as it runs; a
            class or an object in it refuses to be copied.
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
        # by id, which is only that of its object while this lives: an object, and what stands for
        # it
        self._memo: dict[int, tuple[Any, Any]] = {id(each): (each, each) for each in shared}
        if onlookers is None:
            if is_sharded(model):
                raise ShadowError("the weights are sharded")
            if any(hasattr(module, "_hf_hook") for module in model.modules()):
                raise ShadowError("accelerate moves the weights as the model runs")
        if parameters:
            own = dict(
                [
                    *model.named_parameters(remove_duplicate=False),
                    *model.named_buffers(remove_duplicate=False),
                ]
            )
            for name, tensor in parameters.items():
                self._memo[id(own[name])] = own[name], self._tensor(own[name], tensor)
        try:
            self.module: nn.Module = self._copy(model)
        except (ShadowError, MemoryError):
            raise
        except Exception as error:  # code of any class may run here: properties, __setattr__
            raise ShadowError(
                f"no second {type(model).__name__} can be made: {type(error).__name__}: {error}"
            ) from error

    def of(self, module: nn.Module) -> nn.Module:
        """Return the shadow of a module of the model."""
        return self._memo[id(module)][1]

    def _copy(self, x: Any) -> Any:
        kind, new = type(x), x
        if kind in _ATOMS or isinstance(x, type):
            return x
        if id(x) in self._memo:
            return self._memo[id(x)][1]
        if len(self._memo) > _MOST_OBJECTS:
            raise ShadowError(f"the model holds more than {_MOST_OBJECTS} objects")
        if isinstance(x, nn.Module):
            return self._module(x)
        if isinstance(x, list | set | deque | dict):
            return self._object(x)
        if isinstance(x, types.FunctionType):
            return self._function(x)
        if isinstance(x, Tensor):
            new = self._tensor(x, x)
        elif isinstance(x, tuple | frozenset):
            parts = [self._copy(part) for part in x]
            if any(part is not old for part, old in zip(parts, x, strict=True)):
                new = kind._make(parts) if hasattr(kind, "_make") else kind(parts)
        elif isinstance(x, types.MethodType):
            new = types.MethodType(self._copy(x.__func__), self._copy(x.__self__))
        elif isinstance(x, functools._lru_cache_wrapper):
            new = functools.lru_cache(**x.cache_parameters())(self._copy(x.__wrapped__))
        elif isinstance(x, weakref.ref):
            new = x if x() is None else weakref.ref(self._copy(x()))
        elif isinstance(x, torch.Generator):
            new = x.clone_state()
        elif isinstance(
            x, np.random.Generator | np.random.RandomState | np.random.BitGenerator | random.Random
        ):
            new = copy.deepcopy(x)
        elif isinstance(
            x, np.ndarray | array | bytearray
        ):  # of any size: nothing tells that one was written into
            is_fixed = isinstance(x, np.ndarray) and (
                isinstance(x, np.memmap) or not x.flags.writeable
            )
            new = x if is_fixed else copy.copy(x)
        elif isinstance(x, partial) or (
            kind.__module__ in {"builtins", "itertools"} and hasattr(x, "__next__")
        ):
            new = self._rebuilt(x)
        else:
            return self._object(x)
        self._memo[id(x)] = x, new
        return new

    def _tensor(self, x: Tensor, data: Tensor) -> Tensor:
        """Return a second tensor; of a parameter one over the memory of ``data``, or itself if its
        class is its own.
        """
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

    def _module(self, x: nn.Module) -> Any:
        state = x.__dict__
        inner = state.get("_modules", {}).get("_orig_mod")
        if isinstance(inner, nn.Module):  # compiled
            new = self._copy(inner)
            self._memo[id(x)] = x, new
        elif isinstance(x, torch.jit.ScriptModule):
            raise ShadowError("a part of the model is of TorchScript")
        elif hasattr(type(x), "__del__"):
            raise ShadowError(
                f"the end of a second {type(x).__name__} would end what the first holds"
            )
        else:
            new = object.__new__(type(x))
            self._memo[id(x)] = x, new
            for name in _MODULE_HOOKS & state.keys():
                new.__dict__[name] = state[name] if "state_dict" in name else type(state[name])()
                self._memo[id(state[name])] = state[name], new.__dict__[name]
            new.__dict__["_compiled_call_impl"] = None
            # under which accelerate keeps what it has wrapped
            if "_original_forward" in state and "forward" in state:
                new.__dict__["forward"] = self._copy(state["_original_forward"])
            if is_a(x, "LightningModule"):
                new.__dict__.update(log=_Silent(), log_dict=_Silent())
            self._fill(x, new, {*new.__dict__})
        for name, with_kwargs in _HOOKS.items():
            for number, hook in state.get(name, {}).items():
                if number in self.onlookers or _looks_on(hook):
                    continue
                getattr(new, name)[number] = self._hook(number, hook)
                for flags in (with_kwargs, "_forward_hooks_always_called"):
                    if number in state[flags]:
                        getattr(new, flags)[number] = True
        return new

    def _fill(self, x: Any, new: Any, present: Collection[str] = ()) -> None:
        """Give a new object copies of the attributes of another, those in slots too, beside those
        that are present.
        """
        for name, value in getattr(x, "__dict__", {}).items():
            if name not in present:
                new.__dict__[name] = value if type(value) in _ATOMS else self._copy(value)
        for name, value in _slots(x).items():
            object.__setattr__(new, name, self._copy(value))

    def _hook(self, number: int, hook: Any) -> Any:
        copied = self._copy(hook)
        return _Tried(copied, number, self.onlookers) if self._tries_hooks else copied

    def _function(self, x: types.FunctionType) -> types.FunctionType:
        """Return a function with copies of what it holds, or itself where that is nothing that
        changes.
        """
        if all(type(each) in _ATOMS for each in _held(x)):
            return x
        cells: list[types.CellType] = []
        for cell in x.__closure__ or ():
            is_new = id(cell) not in self._memo
            cells.append(self._memo.setdefault(id(cell), (cell, types.CellType()))[1])
            if is_new and _is_filled(cell):
                cells[-1].cell_contents = self._copy(cell.cell_contents)
        if id(x) in self._memo:  # it is in a closure of its own
            return self._memo[id(x)][1]
        new = types.FunctionType(x.__code__, x.__globals__, x.__name__, None, tuple(cells))
        self._memo[id(x)] = x, new
        new.__defaults__, new.__kwdefaults__ = (
            self._copy(x.__defaults__),
            self._copy(x.__kwdefaults__),
        )
        new.__qualname__, new.__module__ = x.__qualname__, x.__module__
        self._fill(x, new)
        if [*map(id, _held(new))] == [*map(id, _held(x))]:
            self._memo[id(x)] = x, x
        return self._memo[id(x)][1]

    def _rebuilt(self, x: Any) -> Any:
        """Return an iterator, or a partial function, that is made of copies of what it was
        made of.
        """
        with warnings.catch_warnings(action="ignore"):
            try:
                make, arguments, *state = x.__reduce__()
            except TypeError:  # generators, files, and what itertools makes from Python 3.14 on
                return x
            new = make(*map(self._copy, arguments))
            for each in state:
                if each is not None:  # Python 3.12 says so that there is nothing to set
                    new.__setstate__(self._copy(each))
        return new

    def _object(self, x: Any) -> Any:
        """Return a container or an object with copies of what is in it, or itself where it is not
        the model's own.
        """
        kind, is_container = type(x), isinstance(x, list | set | deque | dict)
        if not is_container:
            if kind.__module__.startswith(_WRITERS):
                return _Silent()
            if (kind is not RemovableHandle and not _is_owned(kind)) or hasattr(kind, "__del__"):
                return x  # the end of a copy would end what the object holds
        values = [*x, *x.values()] if isinstance(x, dict) else x if is_container else ()
        is_plain = kind in {list, set, dict, OrderedDict, deque}
        new: Any
        try:
            if is_plain and {*map(type, values)} <= _ATOMS:
                new, values = x.copy(), ()
            elif is_container:
                new = copy.copy(x)
                new.clear()
            else:
                new = (
                    types.SimpleNamespace()
                    if kind is types.SimpleNamespace
                    else object.__new__(kind)
                )
        # it has rules of its own, such as being read only, or state that Python does not see
        except Exception:
            return x
        self._memo[id(x)] = x, new
        copies = [each if type(each) in _ATOMS else self._copy(each) for each in values]
        if isinstance(x, dict):
            for key, value in zip(copies, copies[len(copies) // 2 :], strict=False):
                new[key] = value
        elif is_container:
            (new.update if isinstance(x, set) else new.extend)(copies)
        if not is_plain:
            self._fill(x, new)
        return new

    @contextmanager
    def global_hooks(self) -> Iterator[None]:
        """Put those of torch's hooks on every module that act in place of all of them, and restore
        these on leaving.
        """
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
                    kept = {
                        n: h
                        for n, h in before.items()
                        if n not in self.onlookers and not _looks_on(h)
                    }
                    hooks.update(
                        {number: self._hook(number, hook) for number, hook in kept.items()}
                    )
            yield


class _Tried:
    """A copy of a user's hook whose effect is watched: it changes what passes through, or it only
    looks on.
    """

    def __init__(self, hook: Any, number: int, onlookers: set[int]) -> None:
        self._hook, self._number, self._onlookers, self._acts = (
            hook,
            number,
            onlookers,
            _may_act(hook),
        )

    def __call__(self, module: nn.Module, *passed: Any) -> Any:
        tensors = [t for t in tree_leaves(passed) if isinstance(t, Tensor) and not t.is_inference()]
        versions, then = [t._version for t in tensors], _parts_of(module)
        result = self._hook(module, *passed)
        now = _parts_of(module)
        self._acts |= (
            result is not None
            or versions != [t._version for t in tensors]
            or then.keys() != now.keys()
            or any(now[name] is not then[name] for name in then)
        )
        (self._onlookers.discard if self._acts else self._onlookers.add)(self._number)
        return result


def _parts_of(module: nn.Module) -> dict[str, Any]:
    return {**module.__dict__, **module._parameters, **module._buffers, **module._modules}


def _may_act(hook: Any) -> bool:
    """Return whether a hook decides at each call whether it acts, such as one that waits for the
    end of a warm-up.
    """
    function = getattr(hook, "func", hook)
    function = function if hasattr(function, "__code__") else type(function).__call__
    steps = list(dis.get_instructions(function)) if hasattr(function, "__code__") else []
    returns = any(
        now.opname == "RETURN_VALUE"
        and (now.is_jump_target or (before.opname, before.argval) != ("LOAD_CONST", None))
        for before, now in itertools.pairwise(steps)
    )
    writes = any(
        now.opname in {"LOAD_METHOD", "LOAD_ATTR"} and now.argval.endswith("_") for now in steps
    )
    return (returns or writes) and any("JUMP" in now.opname for now in steps)


class _Silent:
    """Stands in for what a forward pass logs to: what it says of the probe is not of the
    training.
    """

    def __getattr__(self, name: str) -> _Silent:
        return self

    def __call__(self, *_: Any, **__: Any) -> _Silent:
        return self


def own_names(model: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return parameters by the names that the model has for its own, without those of wrappers."""
    if not parameters:
        return {}
    named = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    own = {_plain_name(name): (name, tensor) for name, tensor in named}
    found = {}
    for given, tensor in parameters.items():
        name, original = own[_plain_name(given)]
        if original.shape != tensor.shape:
            raise ValueError(
                f"expected {given!r} in parameters= of shape {tuple(original.shape)}, got "
                f"{tuple(tensor.shape)}"
            )
        found[name] = tensor.detach().to(original.device, original.dtype)
    return found


def _plain_name(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in {"module", *WRAPPINGS})


def _looks_on(hook: Any) -> bool:
    return _home(getattr(hook, "func", hook)).startswith(_ONLOOKERS)


def _home(x: Any) -> str:
    """Return the name of the Python module that something is, or that it or its class is defined
    in.
    """
    return (
        x.__name__
        if isinstance(x, types.ModuleType)
        else getattr(x, "__module__", None) or type(x).__module__
    )


def address(x: Tensor) -> int:
    try:
        return x.untyped_storage().data_ptr()
    # a tensor without memory of its own, such as a sparse one
    except (
        NotImplementedError,
        RuntimeError,
    ):
        return id(x)


def _held(function: types.FunctionType) -> list[Any]:
    """Return what a function holds: in its closure, as defaults and in attributes."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return [*cells, *defaults, *function.__dict__.values()]


def _slots(x: Any) -> dict[str, Any]:
    """Return the attributes of an object that are in slots."""
    state: Any = object.__getstate__(x)
    return state[1] if isinstance(state, tuple) else {}


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@contextmanager
def variables_restored(
    model: nn.Module, attributes: Iterable[Any] = ()
) -> Iterator[tuple[list[Tensor], list[Any]]]:
    """Restore what the code of a model keeps outside of it: in variables of Python modules, classes
    and functions.

    A shadow cannot have variables of its own. Restored are those that the code of the model's
    classes and hooks names, and the functions of the user's that it calls: what they are bound to,
    and what is in these containers, generators, arrays and objects. Others, such as a flag that a
    signal handler sets, are not touched. What is in ``attributes`` of a model that has no shadow is
    restored likewise.

    Yields:
        The tensors among all this, which :class:`repdyn.capture.forward.Watch` restores, and the
        objects without parts, such as sentinels and settings, which are what they are by identity.
    """
    held = [*_reachable([model, *(getattr(torch_module, kind) for kind in _GLOBAL)])]
    modules = [each for each in held if isinstance(each, nn.Module)]
    variables = _variables(
        frozenset(each if isinstance(each, types.FunctionType) else type(each) for each in held)
    )
    before = [read() for read, _ in variables]
    # quantised weights are of classes of their own, and their layers may pack their data anew as
    # they run
    quantised = [
        each for each in held if isinstance(each, nn.Parameter) and type(each) is not nn.Parameter
    ]
    packed = [(each, each.data, address(each)) for each in quantised if not is_lazy(each)]
    parts = [
        part for each in quantised for part in vars(each).values() if hasattr(part, "__dict__")
    ]
    states = [part for part in parts if _is_owned(type(part)) and not isinstance(part, nn.Module)]
    shared = [vars(each) for each in [*quantised, *states]]
    tensors, objects, containers = [], [], []
    with ExitStack() as undo:
        for value in _reachable([*before, *shared, *attributes], modules):
            if isinstance(value, Tensor):
                tensors.append(value)
            elif isinstance(value, torch.Generator | np.random.RandomState):
                undo.callback(value.set_state, value.get_state())  # type: ignore[arg-type]
            elif isinstance(value, random.Random):
                undo.callback(value.setstate, value.getstate())
            elif isinstance(value, np.random.Generator):
                undo.callback(setattr, value.bit_generator, "state", value.bit_generator.state)
            elif (
                isinstance(value, np.ndarray)
                and value.flags.writeable
                and value.nbytes <= _SHARED_BYTES
            ):
                undo.callback(np.copyto, value, value.copy())
            elif type(value) in _REFILLED:
                containers.append((value, value.copy()))
            elif _is_own(type(value)):
                for name, part in _slots(value).items():
                    undo.callback(object.__setattr__, value, name, part)
                if {*map(type, getattr(value, "__dict__", {}).values())} <= _ATOMS:
                    objects.append(value)
        try:
            for (_, write), value in zip(variables, before, strict=True):
                # what a forward logs to
                if not isinstance(value, type) and f"{_home(value)}.".startswith(_WRITERS):
                    write(_Silent())
                elif isinstance(value, functools._lru_cache_wrapper) and not _is_installed(
                    _home(value)
                ):
                    # which keeps no shadow
                    write(functools.lru_cache(**value.cache_parameters())(value.__wrapped__))
            yield tensors, objects
        finally:
            for weight, data, place in packed:
                if address(weight) != place:
                    weight.data = data
            for (read, write), value in zip(variables, before, strict=True):
                if read() is not value:
                    write(value)
            for value, copied in containers:  # unless it still holds the very same parts
                now, then = (
                    [*each, *(each.values() if isinstance(each, dict) else ())]
                    for each in (value, copied)
                )
                if [*map(id, now)] != [*map(id, then)]:
                    value.clear()
                    (value.extend if isinstance(value, list | deque) else value.update)(copied)


def _reachable(values: Iterable[Any], known: Iterable[Any] = ()) -> Iterator[Any]:
    """Yield values and what is in them once each: in containers, modules, and objects of the user's
    own classes.
    """
    todo, seen = list(values), {id(each): each for each in known}
    while todo and len(seen) < _MOST_OBJECTS:
        each = todo.pop()
        if id(each) in seen or type(each) in _ATOMS:
            continue
        seen[id(each)] = each
        yield each
        is_own = isinstance(each, nn.Module) or _is_own(type(each))
        if isinstance(each, dict | list | tuple | set | deque) and (
            is_own or type(each) in _CONTAINERS
        ):
            todo += each.values() if isinstance(each, dict) else each
        if is_own:
            todo += [getattr(each, "__dict__", {}), *_slots(each).values()]


_REFILLED = {list, dict, set, deque, defaultdict, OrderedDict, Counter}
_CONTAINERS = {*_REFILLED, tuple}


@functools.lru_cache(maxsize=8)
def _variables(
    code: frozenset[type | types.FunctionType],
) -> list[tuple[Callable[[], Any], Callable[[Any], None]]]:
    """Return what reads and what writes each variable that functions and the methods of classes
    name.
    """
    found: dict[tuple[int, str], tuple[Callable[[], Any], Callable[[Any], None]]] = {}
    todo, seen = list(code), set()
    while todo:
        each = todo.pop()
        if each in seen or _home(each).partition(".")[0] in _FOREIGN | {"builtins"}:
            continue
        seen.add(each)
        if isinstance(each, type):
            own = {name: value for name, value in vars(each).items() if not name.startswith("__")}
            methods = [
                getattr(value, "__func__", getattr(value, "fget", value))
                for value in vars(each).values()
            ]
            todo += [*each.__mro__, *(code for value in methods for code in _code_in(value))]
            for name, value in own.items():
                if isinstance(value, functools._lru_cache_wrapper) or not hasattr(value, "__get__"):
                    found[id(each), name] = (
                        partial(vars(each).get, name),
                        partial(setattr, each, name),
                    )
            continue
        values = []
        for cell in filter(_is_filled, each.__closure__ or ()):
            found[id(cell), ""] = (
                partial(getattr, cell, "cell_contents"),
                partial(setattr, cell, "cell_contents"),
            )
            values.append(cell.cell_contents)
        names, spaces = _names(each.__code__), [each.__globals__]
        for space in spaces:
            for name in names & space.keys():
                found[id(space), name] = partial(space.get, name), partial(space.__setitem__, name)
                values.append(space[name])
            modules = [
                v for v in values if isinstance(v, types.ModuleType) and not _is_installed(_home(v))
            ]
            spaces += [vars(m) for m in modules if all(vars(m) is not known for known in spaces)]
        if not _is_installed(_home(each)):
            todo += [code for value in values for code in _code_in(value)]
    return list(found.values())


def _code_in(value: Any) -> list[type | types.FunctionType]:
    # of other classes even a look may act: mappings of transformers import what they hold
    parts = (
        [value]
        if type(value) not in _CONTAINERS
        else value.values()
        if isinstance(value, dict)
        else value
    )
    return [part if isinstance(part, type | types.FunctionType) else type(part) for part in parts]


def _names(code: types.CodeType) -> set[str]:
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _is_installed(home: str) -> bool:
    """Return whether a Python module, by its name, is of a package, rather than of the user's own
    code.
    """
    top = home.partition(".")[0]
    path = getattr(sys.modules.get(top), "__file__", None) or ""
    # a user's own folder of packages, or those of the environment below, as well as this
    # environment's
    return top in _FOREIGN or "site-packages" in path or "dist-packages" in path


@functools.cache
def _is_own(kind: type) -> bool:
    """Return whether the objects of a class are data of the user's own code."""
    return _is_owned(kind) and not _is_installed(kind.__module__)


@functools.cache
def _is_owned(kind: type) -> bool:
    """Return whether the objects of a class are a model's own data."""
    if issubclass(kind, enum.Enum | BaseException | types.ModuleType):
        return False
    homes = {base.__module__ for base in kind.__mro__ if base is not object}
    if any(
        home.startswith(("transformers.tokenization", "transformers.trainer")) for home in homes
    ):
        return False
    return not {home.partition(".")[0] for home in homes} & (_FOREIGN | {"builtins"})

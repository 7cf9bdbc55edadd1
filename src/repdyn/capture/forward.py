"""Forward passes that leave a model unchanged: of a shadow, or of the model itself, which is then
restored; and the settings of PyTorch that they run under.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from repdyn.capture.hooks import GLOBAL_HOOKS, acting_hooks
from repdyn.capture.shadow import Shadow
from repdyn.capture.wrappers import is_a, is_fsdp
from repdyn.capture.write_guard import WriteGuard, losses_taken_back, parameters_restored
from repdyn.kernels import full_precision
from repdyn.utils.caller_state import defaults_of_model, isolated_rng, plain_state

T = TypeVar("T")


@contextmanager
def evaluating(
    model: nn.Module,
    device: torch.device,
    *,
    parameters: Mapping[str, Tensor] | None = None,
    acting: Collection[int] | None = None,
) -> Iterator[tuple[Shadow, WriteGuard]]:
    """Yield a shadow of a model in evaluation mode, and run what is inside without gradients and in
    full precision.

    Args:
        model: the model.
        device: where it runs.
        parameters, acting: as for :class:`repdyn.capture.shadow.Shadow`; None for the hooks that
            act without a trial.

    Raises:
        repdyn.capture.shadow.ShadowError: the model has none; see :func:`restoring`.
        RuntimeError: the weights were overwritten by code invisible to PyTorch.
    """
    acting = acting_hooks(model) if acting is None else acting
    with plain_state():
        shadow = Shadow(model, parameters=parameters, acting=acting)
        guard = WriteGuard(device, shadow.module, shadow.shared)
        dtype = next((p.dtype for p in shadow.module.parameters() if p.is_floating_point()), None)
        with (
            parameters_restored(shadow.own_parameters),
            losses_taken_back(model),
            settings(device),
            defaults_of_model(device, dtype),
            _global_hooks(acting, shadow.hook),
            guard,
        ):
            shadow.module.eval()  # in which LoRA layers may merge their weights
            yield shadow, guard


@contextmanager
def _global_hooks(acting: Collection[int], second: Callable[[Any], Any]) -> Iterator[None]:
    """Leave torch's hooks on every module out, but for those that act, and restore them on leaving.

    Args:
        acting: the numbers of those that act.
        second: returns what stands in for such a hook.
    """
    with ExitStack() as stack:
        for name in GLOBAL_HOOKS:
            hooks = vars(torch_module)[name]
            before = dict(hooks)
            if not before:
                continue
            stack.callback(hooks.update, before)
            stack.callback(hooks.clear)
            hooks.clear()
            kept = {number: hook for number, hook in before.items() if number in acting}
            hooks.update({number: second(hook) for number, hook in kept.items()})
        yield


@contextmanager
def restoring(model: nn.Module, device: torch.device) -> Iterator[WriteGuard]:
    """Run a model that has no shadow in evaluation mode, and restore on leaving what it changes in
    itself.

    These are its flags, submodules, weights and buffers, and attributes without a leading
    underscore, with what is in lists and dictionaries among them, but not in others inside of
    these; a new attribute persists. A weight that is replaced by another one, or whose ``data`` is,
    stays replaced: FSDP gathers weights in that way and accelerate loads them. All hooks act.

    Raises:
        RuntimeError: a weight or a buffer was overwritten by code invisible to PyTorch, and cannot
            be restored.
    """
    modules = []
    containers = []
    for module in model.modules():
        # Private attributes hold the state of wrappers such as FSDP, which must not be restored.
        attributes = {
            name: value
            for name, value in vars(module).items()
            if not name.startswith("_") and not isinstance(value, Tensor)
        }
        modules.append((module, module.training, attributes))
        containers += [*attributes.values(), module._modules, module._buffers]
    try:
        with (
            plain_state(),
            losses_taken_back(model),
            settings(device),
            contents_restored(containers),
            WriteGuard(device, model, [*model.parameters(), *model.buffers()]) as guard,
        ):
            # accelerate has wrapped it in autocast
            if {"_original_forward", "forward"} <= vars(model).keys():
                vars(model).update(forward=vars(model)["_original_forward"])
            model.eval()
            yield guard
    finally:
        for module, is_training, attributes in modules:
            vars(module).update(attributes)
            if module.training != is_training:  # of TorchScript it is no plain attribute
                module.training = is_training


@contextmanager
def contents_restored(values: Iterable[Any]) -> Iterator[None]:
    """Put back what those of the values hold that are lists or dictionaries."""
    before = [(value, value.copy()) for value in values if isinstance(value, list | dict)]
    try:
        yield
    finally:
        for value, copied in before:
            # left alone where nothing changed: another thread may be reading it
            if _contents(value) == _contents(copied):
                continue
            value.clear()
            if isinstance(value, list):
                value.extend(copied)
            else:
                value.update(copied)


def _contents(value: list | dict) -> list[int]:
    """Return the identities of what a list or a dictionary holds."""
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    return [id(part) for part in parts]


@contextmanager
def settings(device: torch.device) -> Iterator[None]:
    """Set full precision and no fused paths, and restore all of it and the global generators on
    leaving.
    """
    fast_path = torch.backends.mha.get_fastpath_enabled()
    # nn.TransformerEncoder's fast path would hand hooks nested tensors, and compiled code would not
    # call them at all.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # a seed, so that noise that a model adds even in evaluation is the same in a training and
        # in a sweep
        with isolated_rng(seed=0), full_precision(device), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


@contextmanager
def inside_fsdp_root(
    root_module: nn.Module, body: nn.Module
) -> Iterator[Callable[[Callable[[], T]], T]]:
    """Yield a function that calls another one inside the outermost sharded module, with the weights
    gathered.

    FSDP needs each forward pass to begin there: the module called first becomes the root that
    gathers the weights. Where nothing is sharded it is a plain call.
    """
    outer = next(
        (
            m
            for m in root_module.modules()
            if is_fsdp(m) and any(body is inner for inner in m.modules())
        ),
        None,
    )
    try:
        if outer is None or outer is body:
            yield lambda function: function()
        else:
            yield partial(_inside, outer)
    finally:
        # A root would wait for the backward pass, which never comes. A forward pass that failed
        # leaves a module in the state of running it, where it would not reshard, and the next
        # training step would run on stale weights.
        for module in [each for each in root_module.modules() if is_a(each, "torch.FSDPModule")]:
            state: Any = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None) or [
                getattr(state, "_fsdp_param_group", None)
            ]
            for part in filter(None, (state, *groups)):
                part._training_state = type(part._training_state).IDLE
            module.reshard()


def _inside(outer: nn.Module, function: Callable[[], T]) -> T:
    wrapped = outer.module if is_a(outer, "torch.FullyShardedDataParallel") else outer
    attributes = {
        name: value for name, value in vars(wrapped).items() if name == "forward"
    }  # accelerate's, under autocast
    outcome: list[T] = []

    def forward() -> None:
        restore()  # the function may call this very module
        # its result bypasses the wrapper, which would search it for tensors
        outcome.append(function())

    def restore() -> None:
        vars(wrapped).pop("forward", None)
        vars(wrapped).update(attributes)

    wrapped.forward = forward
    try:
        outer()
    finally:
        restore()
    return outcome.pop()

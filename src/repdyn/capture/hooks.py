"""Which forward hooks act when a model is measured, and which are left out of its shadow.

Hooks of torch itself (weight normalisation, pruning, lazy modules), of transformers and of adapters
make the model what it is: they act. Others of the user's are left out, since most only look on, and
what they count is the training's; those named by ``keep_hooks=`` act. A hook that changes what the
model puts out, and is not named, would be missed: so one sequence runs with them and without, and
those that make a difference act, which a line in the log says.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

HOOKS = {
    "_forward_hooks": "_forward_hooks_with_kwargs",
    "_forward_pre_hooks": "_forward_pre_hooks_with_kwargs",
}
"""A module's dictionaries of hooks, and those that say which of them get keyword arguments."""
MODULE_HOOKS = {name for name in vars(nn.Module()) if "hooks" in name}
GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")
_ACTING = ("torch.nn.", "torch.ao.", "transformers.", "peft.", "adapters.", "repdyn.lab.")
"""Where the hooks are from that make a model what it is; a study that leaves out a block does so by
a hook."""
_LEFT_OUT = ("torch.utils.", "torch.profiler.", "wandb.")
"""Where the hooks are from that only look on, so that they need no trial."""

KeepHooks = Sequence[Callable[..., Any]]

_log = logging.getLogger(__name__)


class Hook(NamedTuple):
    """A forward hook."""

    number: int
    function: Any
    place: str
    """The name of its module; "" for the model itself and for a hook on every module."""


def forward_hooks(model: nn.Module) -> list[Hook]:
    """Return the forward hooks of a model, and torch's on every module."""
    homes: list[tuple[str, Mapping[str, Any], tuple[str, ...]]] = [
        ("", vars(torch_module), GLOBAL_HOOKS)
    ]
    homes += [(name, vars(module), tuple(HOOKS)) for name, module in model.named_modules()]
    hooks = []
    for name, attributes, kinds in homes:
        for kind in kinds:
            hooks += [Hook(number, hook, name) for number, hook in attributes[kind].items()]
    return hooks


def functions_of(model: nn.Module, numbers: Collection[int]) -> list[Any]:
    """Return the hooks of some numbers."""
    return [hook.function for hook in forward_hooks(model) if hook.number in numbers]


def acting_hooks(model: nn.Module, keep: KeepHooks = ()) -> set[int]:
    """Return the numbers of the hooks that act without a trial."""
    hooks = forward_hooks(model)
    return {hook.number for hook in hooks if _is_of(hook, _ACTING) or hook.function in keep}


def doubtful_hooks(model: nn.Module, acting: Collection[int]) -> list[Hook]:
    """Return the hooks that a trial must decide about."""
    hooks = forward_hooks(model)
    return [hook for hook in hooks if hook.number not in acting and not _is_of(hook, _LEFT_OUT)]


def _is_of(hook: Hook, homes: tuple[str, ...]) -> bool:
    function: Any = hook.function
    while isinstance(function, functools.partial):
        function = function.func
    kinds = [kind for kind in type(function).__mro__ if kind is not object]
    names = [getattr(function, "__module__", None) or "", *(kind.__module__ for kind in kinds)]
    return any(name.startswith(homes) for name in names)


def changing_hooks(
    doubtful: Sequence[Hook], outputs: Callable[[Collection[int]], Sequence[Tensor]]
) -> set[int]:
    """Return the numbers of the hooks that change what a model puts out, and say which they are.

    Args:
        doubtful: the hooks in question.
        outputs: runs the model with the hooks of some numbers, and returns what it puts out.
    """
    if not doubtful:
        return set()
    without = outputs(())
    if _are_equal(without, outputs([hook.number for hook in doubtful])):
        return set()
    changing = [hook for hook in doubtful if not _are_equal(without, outputs([hook.number]))]
    # together they make a difference that none makes alone
    changing = changing or list(doubtful)
    for hook in changing:
        name = getattr(hook.function, "__qualname__", type(hook.function).__qualname__)
        _log.warning(
            "the hook %s on %r changes what the model puts out, so that it acts when the model is "
            "measured; keep_hooks= names it without a trial",
            name,
            hook.place,
        )
    return {hook.number for hook in changing}


def _are_equal(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(first, second, strict=True)
    )

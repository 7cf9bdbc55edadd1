"""Validation of a metric's settings."""

from __future__ import annotations

import difflib
import inspect
import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    from repdyn.kernels import Cloud

Kernel: TypeAlias = Callable[..., Any]
_TRIAL_POINTS, _TRIAL_DIMENSIONS = 64, 3


def checked(metric: str, kernel: Kernel, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings, each in the type that the kernel takes.

    Args:
        metric: its name without settings, for the message.
        kernel: its keyword-only parameters are the settings.
        defaults: values of the settings that are not given.
        given: settings by name.

    Raises:
        ValueError: a setting that the kernel does not have, or a value of another type.
    """
    known = {**_kernel_defaults(kernel), **defaults}
    for name in given:
        if name not in known:
            raise ValueError(_unknown(metric, name, sorted(known)))
    return {name: _typed(metric, name, value, like=known[name]) for name, value in given.items()}


def require_usable(metric: str, kernel: Kernel, settings: Mapping[str, Any]) -> None:
    """Run a kernel of this package on a small fixed cloud, so that an invalid value is rejected at once.

    A kernel of another package, or with other inputs than clouds or attention weights, is not run.

    Raises:
        ValueError: what the kernel raised.
    """
    if not getattr(kernel, "__module__", "").startswith("repdyn.kernels."):
        return
    try:
        _try_out(kernel, json.dumps(dict(settings), sort_keys=True))
    except ValueError as error:
        raise ValueError(f"{metric}: {error}") from error


@lru_cache(maxsize=256)
def _try_out(kernel: Kernel, settings: str) -> None:
    inputs = [
        _trial_input(parameter)
        for parameter in _parameters(kernel)
        if parameter.kind is not parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    ]
    known = [value for value in inputs if value is not None]
    if len(known) == len(inputs):
        kernel(*known, **json.loads(settings))


def _trial_input(parameter: inspect.Parameter) -> Cloud | Tensor | None:
    import torch

    from repdyn.kernels import Cloud

    generator = torch.Generator().manual_seed(0)
    if "Cloud" in str(parameter.annotation):
        return Cloud(torch.rand(_TRIAL_POINTS, _TRIAL_DIMENSIONS, generator=generator, device="cpu"))
    if parameter.name == "weights":
        scores = torch.rand(2, 8, 8, generator=generator, device="cpu").tril()
        return scores / scores.sum(-1, keepdim=True)
    return None


def _parameters(kernel: Kernel) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(kernel).parameters.values())
    except (TypeError, ValueError):  # it is written in another language
        return []


def _kernel_defaults(kernel: Kernel) -> dict[str, Any]:
    return {p.name: p.default for p in _parameters(kernel) if p.kind is p.KEYWORD_ONLY}


def _unknown(metric: str, name: str, known: list[str]) -> str:
    if not known:
        return f"expected no settings of {metric}, which has none, got {name!r}; write {metric} alone"
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"expected a setting of {metric} ({', '.join(known)}), got {name!r}{hint}"


def _typed(metric: str, name: str, value: Any, like: Any) -> Any:
    what = None
    if isinstance(like, bool):
        what = None if isinstance(value, bool) else "true or false"
    elif isinstance(like, int):
        what = None if isinstance(value, Integral) and not isinstance(value, bool) else "a whole number"
        value = value if what else int(value)
    elif isinstance(like, float):
        is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        what = None if is_number else "a finite number"
        value = value if what else float(value)
    elif isinstance(like, str):
        what = None if isinstance(value, str) else "a word"
    if what:
        raise ValueError(f"expected {name} of {metric} to be {what}, got {value!r}")
    return value

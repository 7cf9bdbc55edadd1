"""A metric as it is asked for: with values for all its settings, on one subset of the tokens.

Settings are checked when they are given: their names, their types, and whether the kernel takes
their values.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeAlias

from repdyn.metrics.metric import Metric
from repdyn.metrics.names import spelled
from repdyn.utils.mistyped import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

Kernel: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class MetricRequest:
    """A metric with values for all its settings, on one subset; as :func:`requested` makes it."""

    metric: Metric
    subset: str
    """The subset of the tokens, or the view of them, as rows have it."""
    settings: Mapping[str, Any]
    """A value for each keyword-only argument of the kernel."""
    name: str
    """The name in rows, with the settings that it does not stand for by itself:
    ``two_nn[discard=0.8]``."""

    def compute(self, *inputs: Any) -> Tensor:
        """Return the kernel's value for the inputs of one batch, as ``select_inputs`` of the metric
        gives them.

        Raises:
            repdyn.kernels.UndefinedError: there is none, with the reason.
        """
        function = self.metric.function
        return getattr(function, "or_raise", function)(*inputs, **self.settings)

    @cached_property
    def settings_json(self) -> str:
        """Return the settings as rows have them."""
        return json.dumps(dict(self.settings), sort_keys=True)

    @cached_property
    def compares(self) -> bool:
        """Return whether it compares a checkpoint with the one measured before."""
        return "previous_checkpoint" in self.metric.captures

    @cached_property
    def collapses_duplicates(self) -> bool:
        """Return whether exact duplicates count once, so that few distinct vectors are a small
        sample.
        """
        return bool(self.metric.neighbours) and self.settings.get("duplicates") != "count"

    @cached_property
    def n_neighbours(self) -> int:
        """Return the number of nearest neighbours of each vector that are used."""
        neighbours = self.metric.neighbours
        return self.settings[neighbours] if isinstance(neighbours, str) else neighbours


def requested(
    metric: Metric,
    subset: str,
    explicit: Mapping[str, Any],
    *,
    of_design: Mapping[str, Any] | None = None,
) -> MetricRequest:
    """Return a request for a metric on a subset.

    Args:
        metric, subset: what to measure, and on which vectors.
        explicit: the settings in the brackets of a name; the others have their defaults.
        of_design: settings that the name without brackets stands for in the design of the probe.

    Raises:
        ValueError: a setting that the metric does not have, or a value that it does not take.
    """
    defaults = {**metric.settings, **_checked(metric, of_design or {})}
    settings = {**defaults, **_checked(metric, explicit)}
    # the defaults are known to work
    if explicit or of_design:
        _require_usable(metric.name, metric.function, json.dumps(settings, sort_keys=True))
    differing = {
        name: value
        for name, value in settings.items()
        if name not in defaults or defaults[name] != value
    }
    return MetricRequest(
        metric=metric, subset=subset, settings=settings, name=spelled(metric.name, differing)
    )


def _checked(metric: Metric, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings, each in the type that the kernel takes."""
    if not settings:
        return {}
    accepted = {p.name: p.default for p in _parameters(metric.function) if p.kind is p.KEYWORD_ONLY}
    accepted |= metric.settings
    for name in settings:
        if name not in accepted:
            choices = ", ".join(sorted(accepted)) or "it has none"
            hint = did_you_mean(name, accepted)
            raise ValueError(f"expected a setting of {metric.name} ({choices}), got {name!r}{hint}")
    return {
        name: _typed(metric.name, name, value, like=accepted[name])
        for name, value in settings.items()
    }


def _typed(metric: str, name: str, value: Any, like: Any) -> Any:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if isinstance(like, bool):
        fits, what = isinstance(value, bool), "true or false"
    elif isinstance(like, int):
        fits, what = is_number and isinstance(value, Integral), "a whole number"
    elif isinstance(like, float):
        fits, what = is_number and math.isfinite(value), "a finite number"
    else:
        fits, what = isinstance(value, str) or not isinstance(like, str), "a word"
    if not fits:
        raise ValueError(f"expected {name} of {metric} to be {what}, got {value!r}")
    # 1 in place of 1.0 is the same setting, and has to have the same name
    kind: Any = type(like)
    return kind(value) if isinstance(like, int | float) else value


def _parameters(kernel: Kernel) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(kernel).parameters.values())
    except (TypeError, ValueError):  # it is written in another language
        return []


@lru_cache(maxsize=256)
def _require_usable(metric: str, kernel: Kernel, settings: str) -> None:
    """Run a kernel of this package on a cloud or attention weights, so that an invalid value is
    rejected at once.
    """
    if not getattr(kernel, "__module__", "").startswith("repdyn.kernels."):
        return
    import torch

    from repdyn.kernels import Cloud

    inputs = []
    for parameter in _parameters(kernel):
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
            continue
        # of its own: the random numbers of a training stay what they are
        generator = torch.Generator().manual_seed(0)
        if "Cloud" in str(parameter.annotation):
            inputs.append(Cloud(torch.rand(64, 3, generator=generator, device="cpu")))
        elif parameter.name == "weights":
            scores = torch.rand(2, 8, 8, generator=generator, device="cpu").tril()
            inputs.append(scores / scores.sum(-1, keepdim=True))
        else:
            return
    try:
        kernel(*inputs, **json.loads(settings))
    except ValueError as error:
        raise ValueError(f"{metric}: {error}") from error

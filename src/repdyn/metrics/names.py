"""Names of metrics with settings and a subset, ``two_nn[discard=0.8]@no_sink``, and which settings a kernel takes."""

from __future__ import annotations

import difflib
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    from repdyn.kernels import Cloud

_WITH_SUBSET = re.compile(r"([^\[\]@]*)(\[[^\[\]@]*\])?\s*(?:@(.*))?", re.DOTALL)
_SPELLED = re.compile(r"([^\[\]@]+)\[([A-Za-z_]\w*=.*)\]", re.DOTALL)
_SETTING = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\S+)\s*", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_UNSAFE = re.compile(r"[^\w.=+-]")
_HOW = "write NAME, NAME[setting=value,setting=value] or either with @SUBSET, such as two_nn[discard=0.8]@no_sink"
Kernel: TypeAlias = Callable[..., Any]
_TRIAL_POINTS, _TRIAL_DIMENSIONS = 64, 3


class ParsedName(NamedTuple):
    """The parts of a metric's name."""

    base: str
    """The name of the registered metric."""
    settings: dict[str, Any]
    """The given settings, as numbers, booleans and strings."""
    subset: str
    """The token subset, "" where none was given."""


def parsed(name: str) -> ParsedName:
    """Read the name of a metric.

    >>> parsed("two_nn[discard=0.8, duplicates=count]@no_sink")
    ParsedName(base='two_nn', settings={'discard': 0.8, 'duplicates': 'count'}, subset='no_sink')
    """
    found = _WITH_SUBSET.fullmatch(name)
    if not found:
        raise ValueError(f"expected a metric by its name, got {name!r}; {_HOW}")
    base, brackets, subset = found.groups()
    if subset is not None and not subset.strip():
        raise ValueError(f"expected a token subset after the @, got {name!r}; {_HOW}")
    settings: dict[str, Any] = {}
    for part in brackets[1:-1].split(",") if brackets else ():
        setting = _SETTING.fullmatch(part)
        if not setting:
            raise ValueError(f"expected settings as name=value, got {part.strip()!r} in {name!r}; {_HOW}")
        if setting[1] in settings:
            raise ValueError(f"expected each setting once, got {setting[1]} twice in {name!r}")
        settings[setting[1]] = _value(setting[2], name)
    return ParsedName(base.strip(), settings, (subset or "").strip())


def spelled(base: str, settings: Mapping[str, Any]) -> str:
    """Return the canonical name of a metric with these settings.

    >>> spelled("two_nn", {"estimator": "regression", "discard": 0.8}), spelled("two_nn", {})
    ('two_nn[discard=0.8,estimator=regression]', 'two_nn')
    """
    listed = ",".join(f"{name}={written(value)}" for name, value in sorted(settings.items()))
    return f"{base}[{listed}]" if listed else base


def base_name(metric: str) -> str:
    """Return the name without settings.

    >>> base_name("two_nn[discard=0.8]"), base_name("two_nn"), base_name("my [own] metric")
    ('two_nn', 'two_nn', 'my [own] metric')
    """
    found = _SPELLED.fullmatch(metric)
    return found[1] if found else metric


def settings_in_words(metric: str) -> str:
    """Return the settings in a name, for people; "" if there are none.

    >>> settings_in_words("two_nn[discard=0.8,duplicates=count]"), settings_in_words("two_nn")
    ('discard 0.8, duplicates count', '')
    """
    found = _SPELLED.fullmatch(metric)
    return found[2].replace("=", " ").replace(",", ", ") if found else ""


def file_stem(metric: str) -> str:
    """Return the name as a part of a file name without characters special to shells or file systems.

    >>> file_stem("two_nn[discard=0.8,duplicates=count]"), file_stem("anisotropy")
    ('two_nn-discard=0.8-duplicates=count', 'anisotropy')
    """
    found = _SPELLED.fullmatch(metric)
    return f"{found[1]}-{_UNSAFE.sub('-', found[2])}" if found else metric


def written(value: Any) -> str:
    """Return the value of a setting as it is written in a name.

    >>> written(50.0), written(True), written("count")
    ('50', 'true', 'count')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        return repr(float(value)).removesuffix(".0")
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _value(text: str, name: str) -> Any:
    if text in {"true", "false"}:
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    if _WORD.fullmatch(text):
        return text
    raise ValueError(f"expected the value of a setting to be a number, true, false or a word, got {text!r} in {name!r}")


def checked(metric: str, kernel: Kernel, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings, each in the type that the kernel takes."""
    known = {**_kernel_defaults(kernel), **defaults}
    for name in given:
        if name not in known:
            raise ValueError(_unknown(metric, name, sorted(known)))
    return {name: _typed(metric, name, value, like=known[name]) for name, value in given.items()}


def require_usable(metric: str, kernel: Kernel, settings: Mapping[str, Any]) -> None:
    """Run a kernel of this package on a small fixed cloud, so that an invalid value is rejected at once.

    A kernel of another package, or with other inputs than clouds or attention weights, is not run.
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

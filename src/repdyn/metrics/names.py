"""Names of metrics with settings and a token subset, such as ``two_nn[discard=0.8]@no_sink``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

_WITH_SUBSET = re.compile(r"([^\[\]@]*)(\[[^\[\]@]*\])?\s*(?:@(.*))?", re.DOTALL)
_SPELLED = re.compile(r"([^\[\]@]+)\[([A-Za-z_]\w*=.*)\]", re.DOTALL)
_SETTING = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\S+)\s*", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_UNSAFE = re.compile(r"[^\w.=+-]")
_HOW = "write NAME, NAME[setting=value,setting=value] or either with @SUBSET, such as two_nn[discard=0.8]@no_sink"


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

    Raises:
        ValueError: the name is not of this form, a setting is given twice, or a value is neither a number nor true,
            false or a word.

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

"""Names of metrics as they are requested and stored: ``two_nn[discard=0.8]@no_sink``."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

_WITH_SUBSET = re.compile(r"([^\[\]@]*)(\[[^\[\]@]*\])?\s*(?:@(.*))?", re.DOTALL)
_SPELLED = re.compile(r"([^\[\]@]+)\[([A-Za-z_]\w*=.*)\]", re.DOTALL)
_SETTING = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\S+)\s*", re.ASCII)
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_UNSAFE = re.compile(r"[^\w.=+-]")
_HOW = (
    "write NAME, NAME[setting=value,setting=value] or either with @SUBSET, such as "
    "two_nn[discard=0.8]@no_sink"
)


def parsed(name: str) -> tuple[str, dict[str, Any], str]:
    """Return the name of the registered metric, the given settings, and the subset, "" where none
    was given.

    >>> parsed("two_nn[discard=0.8, duplicates=count]@no_sink")
    ('two_nn', {'discard': 0.8, 'duplicates': 'count'}, 'no_sink')
    """
    matched = _WITH_SUBSET.fullmatch(name)
    if not matched:
        raise ValueError(f"expected a metric by its name, got {name!r}; {_HOW}")
    base, brackets, subset = matched.groups()
    if subset is not None and not subset.strip():
        raise ValueError(f"expected a subset after the @, got {name!r}; {_HOW}")
    settings: dict[str, Any] = {}
    for assignment in brackets[1:-1].split(",") if brackets else ():
        setting = _SETTING.fullmatch(assignment)
        if not setting:
            raise ValueError(
                f"expected settings as name=value, got {assignment.strip()!r} in {name!r}; {_HOW}"
            )
        settings[setting[1]] = _value(setting[2], name)
    return base.strip(), settings, (subset or "").strip()


def spelled(base: str, settings: Mapping[str, Any]) -> str:
    """Return the canonical name of a metric with these settings.

    >>> spelled("two_nn", {"estimator": "regression", "discard": 0.8}), spelled("two_nn", {})
    ('two_nn[discard=0.8,estimator=regression]', 'two_nn')
    """
    listed = ",".join(f"{name}={written(value)}" for name, value in sorted(settings.items()))
    return f"{base}[{listed}]" if listed else base


@cache
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
    """Return the name as a part of a file name without characters special to shells or file
    systems.

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
    if isinstance(value, str):
        return value
    # one zero
    return json.dumps(value + 0.0 if isinstance(value, float) else value, default=str).removesuffix(
        ".0"
    )


def _value(text: str, name: str) -> Any:
    if _WORD.fullmatch(text):
        return {"true": True, "false": False}.get(text, text)
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    raise ValueError(
        f"expected the value of a setting to be a number, true, false or a word, got {text!r} in "
        f"{name!r}"
    )

"""Values of a recipe's YAML as the types of the fields that they fill."""

from __future__ import annotations

import math
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from repdyn.checkpoints.suite_entries import Entry


def typed(entry: Entry, key: str, value: Any, hint: Any) -> Any:
    """Return a value as the type of a field: a literal, number, flag, string or tuple.

    Args:
        entry: where the value is, for messages.
        key: its key.
        value: as read from YAML.
        hint: type of the field.

    Raises:
        ValueError: the value has another type.
    """
    inner = get_args(hint)
    if get_origin(hint) is Literal:
        if value not in inner:
            raise entry.error(f"{key} among {', '.join(inner)}", value, "choose one of them")
        return value
    if get_origin(hint) is tuple:
        n = None if inner[-1] is Ellipsis else len(inner)
        if not isinstance(value, list) or not value or n not in {None, len(value)}:
            raise entry.error(f"a list of {n or 'one or more'} values under {key}", value, "write [0.25, 0.75]")
        found = tuple(typed(entry, key, each, inner[0]) for each in value)
        if n == 2 and found[0] > found[1]:
            raise entry.error(f"the lower bound first under {key}", value, "exchange them")
        return found
    if get_origin(hint) is UnionType:
        return typed(entry, key, value, inner[0])
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise entry.error(f"a finite number under {key}", value, "write 0.1 for 10%")
        return float(value)
    if not isinstance(value, hint):
        raise entry.error(f"{'true or false' if hint is bool else 'a string'} under {key}", value, "correct it")
    return value


def text_of(entry: Entry, key: str, value: object) -> str:
    """Return a value if it is a string that is not blank, and raise ValueError otherwise."""
    if not isinstance(value, str) or not value.strip():
        raise entry.error(f"strings under {key}", value, "put it in quotes")
    return value

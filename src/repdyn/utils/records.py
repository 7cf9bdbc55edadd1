"""What other programs share: strict JSON, and YAML read as plain data."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from repdyn.utils.mistyped import did_you_mean


def json_values(content: Any) -> Any:
    """Return dictionaries, lists and plain values with None for each number that is not finite.

    >>> json_values({"range": (0.0, math.inf), "value": math.nan})
    {'range': [0.0, None], 'value': None}
    """
    if isinstance(content, dict):
        return {name: json_values(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [json_values(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        ValueError: not YAML, or with a repeated key.
        OSError: it cannot be read.
    """
    try:
        # a subclass of SafeLoader: no tag of it makes an object
        return yaml.load(path.read_text(encoding="utf-8"), _PlainLoader)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"expected YAML in {path}, got something that does not parse: {error}") from error


def validated(kind: Any, content: Any, where: str) -> Any:
    """Return plain data as a dataclass, or another kind that pydantic knows, each field in its annotated type.

    Raises:
        ValueError: the first field that is missing, unknown or of another type, of a record described by ``where``.
    """
    from pydantic import ValidationError  # an optional dependency

    try:
        return _adapter(kind).validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "content"
        is_unknown = "unexpected" in first["type"]
        hint = did_you_mean(key, getattr(kind, "__dataclass_fields__", ())) if is_unknown else ""
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"expected a valid {key} in {where}, got {first['input']!r:.400}: {message}{hint}") from error


@cache  # it takes longer to make than to use
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


class _PlainLoader(yaml.SafeLoader):
    """A loader that rejects repeated keys, of which YAML would take the last one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := [key for key, number in keys.items() if number > 1]:
            raise yaml.YAMLError(f"expected each key once, got {twice[0]!r:.80} more often{node.start_mark}")
        return super().construct_mapping(node, deep)

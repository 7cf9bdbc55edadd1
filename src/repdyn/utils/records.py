"""What other programs share: strict JSON, and YAML read as plain data."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from repdyn.utils.mistyped import did_you_mean


def json_values(content: Any) -> Any:
    """Return dictionaries, lists and plain values with None for each number that is not finite.

    >>> json_values({"range": (0.0, float("inf")), "value": float("nan")})
    {'range': [0.0, None], 'value': None}
    """
    return json.loads(json.dumps(content), parse_constant=lambda name: None)


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        ValueError: not YAML, or nested too deeply.
        OSError: it cannot be read.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(
            f"expected YAML in {path}, got something that does not parse: {error}"
        ) from error
    except RecursionError as error:
        raise ValueError(
            f"expected YAML in {path}, got one that is nested too deeply; check its brackets"
        ) from error


def validated(kind: Any, content: Any, where: str) -> Any:
    """Return plain data as a dataclass, or another kind that pydantic knows, each field in its
    annotated type.

    Raises:
        ValueError: the first field that is missing, unknown or of another type, of a record
            described by ``where``.
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
        raise ValueError(
            f"expected a valid {key} in {where}, got {first['input']!r:.400}: {message}{hint}"
        ) from error


@cache  # it takes longer to make than to use
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)

"""Output that any JSON parser reads."""

from __future__ import annotations

import json
import math
from typing import Any


def print_json(content: Any) -> None:
    """Print JSON in ASCII; NaN and infinity, which it does not have, become null."""
    print(json.dumps(_finite(content), indent=2, allow_nan=False))


def _finite(content: Any) -> Any:
    """Return dictionaries, lists and plain values with None for each number that is not finite.

    >>> _finite({"range": (0.0, math.inf), "value": math.nan})
    {'range': [0.0, None], 'value': None}
    """
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content

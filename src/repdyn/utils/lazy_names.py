"""Names of a package that are imported when they are first used, so that the package itself is quick to import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that imports names when they are used.

    Args:
        package: its name, ``__name__``.
        homes: the module that defines each name.
    """

    def get(name: str) -> Any:
        if name in homes:
            return getattr(import_module(homes[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(homes)}")

    return get

"""What people look at: each view is a function of stored rows."""

from importlib import import_module
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    """Import ``repdyn.views.plots`` and its like when they are asked for: their packages are
    optional.
    """
    if name in {"alerts", "plots", "report"}:
        return import_module(f"repdyn.views.{name}")
    raise AttributeError(f"module 'repdyn.views' has no attribute {name!r}")

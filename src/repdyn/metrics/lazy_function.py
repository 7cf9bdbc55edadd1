"""Functions that a record names, and that are imported when they are first used."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any, overload


class LazyFunction:
    """A field of a dataclass: set to a function or to where it is, ``"module:function"``; read as the function.

    Names and meanings of metrics can so be listed without torch, which their kernels need.

    Args:
        default: the value of a field that is not set; None if it must be.
    """

    def __init__(self, default: str | None = None) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> str: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Callable[..., Any]: ...

    def __get__(self, instance: object | None, owner: type) -> str | Callable[..., Any]:
        if instance is None:
            if self._default is None:
                raise AttributeError(self._name)  # by which dataclasses know that the field has no default
            return self._default
        given = instance.__dict__[self._name]
        if isinstance(given, str):
            given = instance.__dict__[self._name] = resolve_name(given)
        return given

    def __set__(self, instance: object, value: str | Callable[..., Any]) -> None:
        instance.__dict__[self._name] = value

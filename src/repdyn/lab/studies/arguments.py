"""Check the arguments of a study that is called in Python, as the command checks its options."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from cyclopts import Parameter
from cyclopts.validators import Number

P = ParamSpec("P")
T = TypeVar("T")


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function raise ValueError for arguments that its annotations rule out: numbers below
    the smallest, and names that are no choice.
    """
    signature = inspect.signature(function)
    hints = get_type_hints(function, include_extras=True)

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            _check(name, value, hints[name])
        return function(*args, **kwargs)

    return wrapper


def _check(name: str, value: Any, hint: Any) -> None:
    if value is None:
        return
    parameters = [it for it in getattr(hint, "__metadata__", ()) if isinstance(it, Parameter)]
    for validator in (it for parameter in parameters for it in _validators(parameter)):
        if validator.gte is not None and not value >= validator.gte:
            raise ValueError(f"expected {name}= of at least {validator.gte}, got {value}")
    chosen = [value] if get_origin(hint) is Literal else value
    choices = get_args(hint) if get_origin(hint) is Literal else _choices(parameters)
    if choices and (wrong := [it for it in chosen if it not in choices]):
        raise ValueError(
            f"expected {name}= of {', '.join(map(str, choices))}, got {', '.join(map(str, wrong))}"
        )


def _validators(parameter: Parameter) -> list[Number]:
    validators: Any = parameter.validator
    return [it for it in validators or () if isinstance(it, Number)]


def _choices(parameters: list[Parameter]) -> tuple[Any, ...]:
    choices: list[Any] = [parameter.choices or () for parameter in parameters]
    return tuple(choice for of_parameter in choices for choice in of_parameter)

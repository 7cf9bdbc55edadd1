"""Names that do not exist, and those that were probably meant."""

# Imports only what is quick to import: --help must not wait for torch.
import difflib
from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any, TypeVar

Options = TypeVar("Options")


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the known name that most likely replaces a mistyped one, or None."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1)), None)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of an error message that suggests the closest of the known names; "" where
    none is close.

    >>> did_you_mean("twonn", ["anisotropy", "two_nn"]), did_you_mean("x", ["two_nn"])
    ("; did you mean 'two_nn'?", '')
    """
    near = closest(name, names)
    return f"; did you mean {near!r}?" if near else ""


def options_of(kind: Callable[..., Options], caller: Callable[..., Any], **options: Any) -> Options:
    """Return a dataclass of options; TypeError with a suggestion for an option that it lacks.

    Args:
        kind: the dataclass.
        caller: the function or class that its user has called with these options.
        options: the options by name.
    """
    parameters = signature(kind).parameters
    for name in options.keys() - parameters.keys():
        hint = did_you_mean(name, [*parameters, *signature(caller).parameters])
        raise TypeError(f"{caller.__name__}() got an unexpected argument {name!r}{hint}")
    return kind(**options)

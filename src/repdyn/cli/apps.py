"""Functions as commands: their signature and docstring are options and help."""

import re
from collections.abc import Callable
from inspect import cleandoc
from typing import Any

from cyclopts import App, Parameter

from repdyn.utils.arguments import OPTIONS


class DescribedApp(App):
    """A command with a help of its own, whatever line stood for it before it was imported."""

    @property
    def help(self) -> str:
        inherited: Any = App.help
        return inherited.fget(self)

    @help.setter
    def help(self, value: str | None) -> None:
        """Leave the line of the list of commands there."""


def app_of(name: str, kind: type[App] = App, **settings: Any) -> App:
    """Return a command of repdyn, which takes options as all of them do."""
    return kind(
        name=name,
        help_format="plaintext",
        default_parameter=Parameter(negative=(), consume_multiple=1, show_default=_shown),
        group_parameters=OPTIONS,
        suppress_keyboard_interrupt=False,
        **settings,
    )


def command_of(function: Callable[..., int | None], name: str, **settings: Any) -> App:
    """Return the command of a function whose examples, the last section of its docstring, end its
    help.
    """
    # the lines of a paragraph are joined, since the help breaks them where the terminal ends
    function.__doc__ = re.sub(
        r"(?<=\S)\n(?=\S)|\n {8}(?=\S)", " ", cleandoc(function.__doc__ or "")
    )
    examples = function.__doc__.partition("\nExamples:\n")[2]
    app = app_of(name, DescribedApp, help_epilogue="Examples:\n" + examples, **settings)
    app.default(function)
    return app


def _shown(default: Any) -> str | None:
    """Return a default as the help shows it; None for those that say nothing."""
    if default is None or default is False or default == ():
        return None
    return " ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)

"""What the command lines share: a parser that makes suggestions, and whole numbers from some number on."""

# Only what is quick to import stands here: --help must not wait for torch.
from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable
from typing import Any, NoReturn


class SuggestingParser(argparse.ArgumentParser):
    """A parser that says which choice of its positional argument, or which of its options, a mistyped one resembles.

    Args:
        choice: what the positional argument with choices names, as "a command"; where there is none, any words.
        settings: as for :class:`argparse.ArgumentParser`.
    """

    def __init__(self, *, choice: str = "a choice", **settings: Any) -> None:
        super().__init__(**settings)
        self._choice = choice

    def error(self, message: str) -> NoReturn:
        chosen = next((action for action in self._actions if action.choices and not action.option_strings), None)
        if chosen is not None:
            message = self._of_choice(message, str(chosen.metavar), list(chosen.choices or ()))
        if typed := re.match(r"unrecognized arguments:.*?(--[\w-]+)", message):
            close = difflib.get_close_matches(typed[1], self._options(), n=1)
            message += f"; did you mean {close[0]}?" if close else "; see --help"
        super().error(message)

    def _options(self) -> list[str]:
        """Its own, and those of its commands, on whose behalf it complains."""
        choices = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        parsers = [self, *(parser for commands in choices for parser in commands.values())]
        return [option for parser in parsers for option in parser._option_string_actions]

    def _of_choice(self, message: str, metavar: str, choices: list[str]) -> str:
        there_are = f"there are {', '.join(choices)}"
        if typed := re.match(rf"argument {re.escape(metavar)}: invalid choice: '([^']*)'", message):
            close = difflib.get_close_matches(typed[1], choices, n=1)
            return f"expected {self._choice}, got {typed[1]!r}; {f'did you mean {close[0]!r}?' if close else there_are}"
        if message.endswith(f"required: {metavar}"):
            return f"expected {self._choice}, got none; {there_are}"
        return message


def at_least(smallest: int) -> Callable[[str], int]:
    """The type of an option that takes a whole number."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < smallest:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {smallest}, got {text!r}")
        return int(text)

    return number

"""Argument parsing that the command lines share: a parser that makes suggestions, and bounded integers."""

# Import only what is quick to import here: --help must not wait for torch.
from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

FORMER_NAMES = {
    "alarms": "alerts",
    "emit": "export",
    "--online": "--wandb-online",
    "--project": "--wandb-project",
    "--revision": "--revisions",
    "--words": "--classes",
    "data.source": "data.text",
    "data.probe_classes": "data.classes",
    "data.probe_design": "data.design",
    "data.probe_max_vectors": "data.max_vectors",
    "data.probe_batch_vectors": "data.batch_vectors",
}
"""Commands and options that go by another name today, which is suggested where the former one is used."""


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a mistyped or former one most likely stands for, or None."""
    known = list(known)
    if (renamed := FORMER_NAMES.get(name)) in known:
        return renamed
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


class SuggestingParser(argparse.ArgumentParser):
    """A parser that suggests the closest choice or option for a mistyped one.

    Args:
        choice: what the positional argument with choices is called in messages, such as "a command".
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
            close = closest(typed[1], self._options())
            message += f"; did you mean {close}?" if close else "; see --help"
        super().error(message)

    def _options(self) -> list[str]:
        """Return its own options and those of its commands, whose errors it reports."""
        choices = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        parsers = [self, *(parser for commands in choices for parser in commands.values())]
        return [option for parser in parsers for option in parser._option_string_actions]

    def _of_choice(self, message: str, metavar: str, choices: list[str]) -> str:
        there_are = f"there are {', '.join(choices)}"
        if typed := re.match(rf"argument {re.escape(metavar)}: invalid choice: '([^']*)'", message):
            close = closest(typed[1], choices)
            return f"expected {self._choice}, got {typed[1]!r}; {f'did you mean {close!r}?' if close else there_are}"
        if message.endswith(f"required: {metavar}"):
            return f"expected {self._choice}, got none; {there_are}"
        return message


def at_least(smallest: int) -> Callable[[str], int]:
    """Return the type of an option that takes a whole number of at least ``smallest``."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < smallest:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {smallest}, got {text!r}")
        return int(text)

    return number

"""Argument parsing for all commands: a parser that suggests names, options of stores, bounded integers."""

# Import only what is quick to import here: --help must not wait for torch.
from __future__ import annotations

import argparse
import difflib
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from repdyn.utils.addresses import path_or_url


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that most likely replaces a mistyped one, or None."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help whose paragraphs and examples fit the terminal.

    Indented lines are kept; one that is too long is continued with a backslash, and its comment, which two spaces
    separate, stands above.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        paragraph: list[str] = []
        for line in [*text.splitlines(), ""]:
            if line and not line[0].isspace() and not line.endswith(":"):
                paragraph.append(line)
                continue
            lines += textwrap.wrap(" ".join(paragraph), width)
            paragraph = []
            lines += _example_lines(line, width)
        return "\n".join(indent + line for line in lines[:-1])


def _example_lines(line: str, width: int) -> list[str]:
    """Return an example in lines that fit; quoted words are not broken."""
    if len(line) <= width:
        return [line]
    command, _, comment = re.sub(r"(?<=\S) {2,}", "\0", line, count=1).partition("\0")
    lines = [f"  # {comment}"] if comment else []
    current = " "
    for word in re.findall(r"""(?:"[^"]*"|'[^']*'|\S)+""", command):
        if len(f"{current} {word} \\") > width:
            lines.append(f"{current} \\")
            current = " " * 5
        current += f" {word}"
    return [*lines, current]


class SuggestingParser(argparse.ArgumentParser):
    """A parser that suggests the closest choice or option for a mistyped one.

    Args:
        choice: description of the positional argument with choices in messages, such as "a command".
        settings: as for :class:`argparse.ArgumentParser`.
    """

    def __init__(self, *, choice: str = "a choice", **settings: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, **settings})
        self._choice = choice
        self._given: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        chosen = next((action for action in self._actions if action.choices and not action.option_strings), None)
        if chosen is not None:
            message = self._choice_message(message, str(chosen.metavar), list(chosen.choices or ()))
        if typed := re.match(r"unrecognized arguments:.*?(--[\w-]+)", message):
            close = closest(typed[1], self._options())
            message += f"; did you mean {close}?" if close else "; see --help"
        super().error(message)

    def _options(self) -> list[str]:
        """Return the options of this parser and of the subcommand that was given."""
        choices = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        given = [commands[word] for commands in choices for word in self._given if word in commands][:1]
        return [option for parser in (self, *given) for option in parser._option_string_actions]

    def _choice_message(self, message: str, metavar: str, choices: list[str]) -> str:
        there_are = f"there are {', '.join(choices)}"
        if typed := re.match(rf"argument {re.escape(metavar)}: invalid choice: '([^']*)'", message):
            close = closest(typed[1], choices)
            return f"expected {self._choice}, got {typed[1]!r}; {f'did you mean {close!r}?' if close else there_are}"
        if message.endswith(f"required: {metavar}"):
            return f"expected {self._choice}, got none; {there_are}"
        return message


def add_store_options(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Add the options of commands that read stores: RUN (``nargs`` of them), --run and --probe."""
    parser.add_argument(
        "store",
        type=path_or_url,
        metavar="RUN",
        nargs=nargs,
        help="folder of a run, a store or its URL, or a folder with a single store",
    )
    parser.add_argument("--run", nargs="+", metavar="NAME", help="runs to include (default: all)")
    parser.add_argument(
        "--probe", metavar="HASH", help="probe to include, by its hash or the first digits of it (default: all)"
    )


def add_seeds_option(parser: argparse.ArgumentParser) -> None:
    """Add --seeds, which names the runs that are seeds of one model."""
    parser.add_argument(
        "--seeds",
        nargs="+",
        metavar="PATTERN",
        help="runs that are seeds of one model, with * for any characters (default: by names that differ in the number "
        "behind seed, such as a-seed1 and a-seed2; none: each run on its own)",
    )


def given_seeds(options: argparse.Namespace) -> list[str] | None:
    """Return the patterns given to --seeds; None without the option, and an empty list for "none"."""
    return [] if options.seeds == ["none"] else options.seeds


def add_store_command(
    commands: argparse._SubParsersAction[SuggestingParser],
    name: str,
    description: str,
    examples: str,
    run_command: Callable[[argparse.Namespace], None],
    nargs: str | None = None,
) -> argparse.ArgumentParser:
    """Add a subcommand for the runs of a store, with ``nargs`` of RUN."""
    parser = commands.add_parser(
        name,
        help=description,
        description=f"{description[0].upper()}{description[1:]}.",
        epilog=examples,
    )
    parser.set_defaults(run_command=run_command)
    add_store_options(parser, nargs)
    return parser


def at_least(smallest: int) -> Callable[[str], int]:
    """Return the type of an option that takes a whole number of at least ``smallest``."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < smallest:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {smallest}, got {text!r}")
        return int(text)

    return number

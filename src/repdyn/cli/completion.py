"""The parser with every option of every command, and the script by which a shell completes them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

from repdyn.cli.study import KINDS

_FOLDERS = {"MODEL", "RUN"}
"""Arguments that may be folders though they are parsed as text."""


def complete_parser(parser: argparse.ArgumentParser, modules: Mapping[str, str]) -> argparse.ArgumentParser:
    """Replace the parsers of commands that parse their own options by complete ones; imports all commands.

    Args:
        parser: of the command ``repdyn``; changed.
        modules: by the name of a command, the module with its ``build_parser``.
    """
    commands = _commands(parser)
    for name, module in modules.items():
        commands[name] = import_module(module).build_parser(f"{parser.prog} {name}")
    # the kind is the first argument of a study, as a command is of repdyn
    study = argparse.ArgumentParser(prog=commands["study"].prog, add_help=False)
    kinds = study.add_subparsers(metavar="KIND")
    for kind, description in KINDS.items():
        kinds.add_parser(kind, help=description, add_help=False)
        of_kind = import_module(f"repdyn.studies.{kind}").STUDY.parser(f"{study.prog} {kind}")
        _commands(study)[kind] = of_kind
    commands["study"] = study
    return parser


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script that completes a complete parser's commands, options, choices, files and folders.

    Args:
        parser: from :func:`complete_parser`.
        shell: bash, zsh or tcsh.
    """
    import shtab

    for action in (action for each in all_parsers(parser) for action in each._actions):
        if action.type is Path or action.metavar in _FOLDERS:
            kind = shtab.FILE if action.metavar == "FILE" else shtab.DIRECTORY
            action.complete = kind  # type: ignore[attr-defined]
    return shtab.complete(parser, shell=shell)


def all_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of its commands."""
    yield parser
    for each in _commands(parser).values():
        yield from all_parsers(each)


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    choices = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return choices[0] if choices else {}  # type: ignore[return-value]

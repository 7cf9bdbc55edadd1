"""The command ``repdyn``: its commands, what they print when something is wrong, and their exit
status.

A command is a function of :mod:`repdyn.cli.measure`, :mod:`repdyn.cli.show` or
:mod:`repdyn.lab.commands`: its signature and docstring are its options and its help. It returns its
exit status, None for 0, and raises what :func:`main` explains in one line.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from importlib.metadata import entry_points, version
from io import TextIOWrapper
from typing import Any

from cyclopts import App, CycloptsError, Group

from repdyn.cli import measure, show
from repdyn.cli.apps import app_of, command_of
from repdyn.cli.flags import in_flags
from repdyn.utils.extras import MissingPackageError, with_extra
from repdyn.utils.printing import Lossy
from repdyn.utils.redaction import redacted

OK = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130
"""The exit status of shells for a program that SIGINT has ended: 128 + 2."""
_FOR_HELP = ([], ["-h"], ["--help"])
_MISTAKES = (  # errors of the user, told from failures by their type
    CycloptsError,
    ValueError,
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
)
_COMMANDS = {
    "Measure": (measure.attach, measure.sweep, measure.audit),
    "See": (
        show.report,
        show.watch,
        show.figures,
        show.compare,
        show.insights,
        show.demo,
    ),
    "Use": (show.query, show.export, show.metrics),
}
LAB = {
    "reproduce": (
        "Measure what a paper measured, and compare with what it published.",
        "Measure",
    ),
    "study": ("Study one aspect of one or several models.", "Measure"),
    "explore": ("Explore the tokens of a sentence in a browser.", "See"),
}
"""Commands of ``repdyn.lab.commands``, also where no entry point names them, as in a checkout that
was not installed: their help, which needs no import, and the title that they stand under.
"""
ENTRY_POINTS = "repdyn.commands"
"""Group of the entry points of further commands, each a function or an App of cyclopts."""
_EXAMPLES = """Examples:
  repdyn attach train.py --lr 1e-3      run a training script, tracked
  repdyn sweep gpt2                     measure a published model
  repdyn report RUN --open              what a run's store contains, as a page
  repdyn watch runs                     all runs in the browser, live
  repdyn COMMAND --help                 every option of a command, with examples

Exit status: 0 done; 1 something failed, or nothing was written; 2 a mistaken
command or input; 130 stopped by Ctrl-C. Errors are one line on standard error.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command, with the arguments of the process unless given.

    Raises:
        SystemExit: with the status, unless it is 0.
    """
    if arguments is None and sys.argv[1:2] == ["attach"] and sys.argv[2:3] not in _FOR_HELP:
        # a script's streams, errors and exit status are its own
        return measure.attach(*sys.argv[2:])
    if arguments is None:
        # a full or closed standard error neither ends a command nor changes its status
        stderr: Any = Lossy(sys.stderr or open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        sys.stderr = stderr
        if sys.stdout is None:  # closed: what a command prints is not wanted
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        # cp1252, say: a name with other letters must not end a command
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
    status = _run(sys.argv[1:] if arguments is None else list(arguments))
    try:
        sys.stdout.flush()
    except OSError as error:
        status = _without_reader(error) or status
    hub: Any = sys.modules.get("repdyn.checkpoints.hub")
    if hub and hub.has_abandoned_threads():
        # a normal exit would join the threads, for a minute where the hub does not respond; the
        # temporary files of their downloads are deleted already
        os._exit(status)
    if status:
        sys.exit(status)


def _run(arguments: Sequence[str]) -> int:
    """Run a command, print its error in one line, and return the exit status."""
    try:
        app = command_line()
        status = app(
            arguments, print_error=False, exit_on_error=False, result_action="return_value"
        )
        return status or OK
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else OK
    except KeyboardInterrupt as error:
        return _print_line("; ".join(["stopped", *map(str, error.args)]), INTERRUPTED)
    except BrokenPipeError as error:
        return _without_reader(error)
    except ImportError as error:
        missing = _missing_package(error, " ".join(["repdyn", *arguments[:1]]))
        if missing is None:
            raise
        return _print_line(f"error: {missing}", USAGE)
    except Exception as error:
        status = _status_of_error(error)
        if status is None:
            raise
        return status


def _missing_package(error: ImportError, command: str) -> MissingPackageError | None:
    """Return the error that names the extra with a missing package; None for any other error."""
    # cyclopts imports some commands when they are called, and raises an error of its own whose
    # cause is the missing package
    cause = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    return with_extra(cause, command) if isinstance(cause, ModuleNotFoundError) else None


def _status_of_error(error: Exception) -> int | None:
    """Print an expected error in a line, and return the status; None for an unexpected one, whose
    traceback the user should see.
    """
    if isinstance(error, _MISTAKES):
        return _print_line(f"error: {error}", USAGE)
    if isinstance(error, OSError) and error.errno in {ENOSPC, EDQUOT}:
        advice = "free some space, then repeat the command"
        return _print_line(f"stopped: the disk is full ({error}); {advice}", FAILED)
    if isinstance(error, OSError):
        return _print_line(f"error: {error}", FAILED)
    # a command that has not imported this module, with the hub's client, raises none of its errors
    errors: Any = sys.modules.get("repdyn.checkpoints.errors")
    if errors and isinstance(error, errors.NoConnectionError):
        return _print_line(f"stopped: {error}; the same command goes on from there", FAILED)
    if errors and isinstance(error, errors.SweepStoppedError):
        return _print_line(f"stopped: {error}", FAILED)
    if errors and isinstance(error, errors.CheckpointError):
        return _print_line(f"error: {error}", FAILED)
    return None


def command_line() -> App:
    """Return the command with all of its commands; those of the lab, and of other packages, are
    imported when they are called.
    """
    app = app_of(
        "repdyn",
        help=(
            "Track the geometry of a transformer's layers during training and over published "
            "checkpoints."
        ),
        help_epilogue=_EXAMPLES,
        version=f"repdyn {version('repdyn')}",
    )
    groups = {name: Group.create_ordered(name) for name in (*_COMMANDS, "Other")}
    for group, functions in _COMMANDS.items():
        for number, function in enumerate(functions):
            settings = {"group": groups[group], "sort_key": number}
            app.command(command_of(function, function.__name__, **settings))
    for number, (name, (text, group)) in enumerate(LAB.items(), start=len(_COMMANDS["See"])):
        settings = {"group": groups[group], "sort_key": number}
        app.command(f"repdyn.lab.commands:{name}", name=name, help=text, **settings)
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name not in app:
            app.command(entry.value, name=entry.name, group=groups["Other"])
    app.register_install_completion_command(group=groups["Other"])
    for flag in ("--help", "--version"):
        app[flag].group = groups["Other"]
    return app


def _print_line(line: str, status: int) -> int:
    """Print a line to standard error, with flags in place of arguments, and return the status."""
    with suppress(OSError, ValueError):
        print(redacted(in_flags(line)), file=sys.stderr)
    return status


def _without_reader(error: OSError) -> int:
    """Give up standard output, and return the status: a reader that has seen enough, such as head,
    is no failure.
    """
    # Python would complain once more when it closes the stream
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return OK
    return _print_line(f"error: standard output: {error}", FAILED)

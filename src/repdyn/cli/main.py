"""The command ``repdyn``: its commands, what they print when something is wrong, and their exit
status.

A command is a function of :mod:`repdyn.cli.measure` or :mod:`repdyn.cli.show`: its signature and
docstring are its options and its help. It returns its exit status, None for 0, and raises what
:func:`main` explains in one line.
"""

import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from importlib import import_module
from importlib.metadata import version
from inspect import cleandoc
from io import TextIOWrapper
from typing import Any

from cyclopts import App, CycloptsError, Group, Parameter

from repdyn.cli import measure, show
from repdyn.cli.flags import in_flags
from repdyn.utils.arguments import OPTIONS
from repdyn.utils.extras import with_extra
from repdyn.utils.printing import Lossy
from repdyn.utils.redaction import redacted

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
_FOR_HELP = ([], ["-h"], ["--help"])
_MISTAKES = (
    CycloptsError,
    ValueError,
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
)
_COMMANDS = {
    "Measure": (measure.attach, measure.sweep, measure.audit, measure.reproduce),
    "See": (
        show.report,
        show.watch,
        show.figures,
        show.compare,
        show.insights,
        show.explore,
        show.demo,
    ),
    "Use": (show.query, show.export, show.metrics),
}
STUDIES = {
    "convergence": "how tokens approach their last layer, and at what rate",
    "tokens": "the tokens of a sentence against the vocabulary, layer by layer",
    "topics": "topics in embeddings and attention",
    "anatomy": "embedding tables, and paths of tokens through the layers",
    "sentences": "sentence vectors at every layer",
}
"""Each is the function of its name in ``repdyn.lab.studies.NAME``, which is imported when it is
needed.
"""
_EXAMPLES = """Examples:
  repdyn attach train.py --lr 1e-3      run a training script, tracked
  repdyn sweep gpt2                     measure a published model
  repdyn report RUN --open              what a run's store contains, as a page
  repdyn watch runs                     all runs in the browser, live
  repdyn COMMAND --help                 every option of a command, with examples

Exit status: 0 done; 1 something failed, or nothing was written; 2 a mistaken
command or input; 130 stopped by Ctrl-C. Errors are one line on standard error.
"""
_STUDY_EXAMPLES = """Examples:
  repdyn study convergence bert-base-uncased --text builtin -o FOLDER
  repdyn study tokens roberta-base -o FOLDER
  repdyn study topics --help                      every option of a study
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
        # an unresponsive hub would delay the exit by a minute; files of downloads are deleted
        # already
        os._exit(status)
    if status:
        sys.exit(status)


def _run(arguments: Sequence[str]) -> int:
    """Run a command, print its error in one line, and return the exit status."""
    try:
        # of which the command line needs the options
        studies = tuple(STUDIES) if "-completion" in " ".join(arguments[:1]) else arguments[1:2]
        app = command_line(studies)
        return (
            app(arguments, print_error=False, exit_on_error=False, result_action="return_value")
            or OK
        )
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else OK
    except KeyboardInterrupt as error:
        return _said("; ".join(["stopped", *map(str, error.args)]), INTERRUPTED)
    except BrokenPipeError as error:
        return _without_reader(error)
    except ModuleNotFoundError as error:
        missing = with_extra(error, " ".join(["repdyn", *arguments[:1]]))
        if missing is None:
            raise
        return _said(f"error: {missing}", USAGE)
    except _MISTAKES as error:
        return _said(f"error: {error}", USAGE)
    except OSError as error:
        if error.errno in {ENOSPC, EDQUOT}:
            return _said(
                f"stopped: the disk is full ({error}); free some space, then repeat the command",
                FAILED,
            )
        return _said(f"error: {error}", FAILED)
    except Exception as error:
        # with the hub's client, if it was needed
        errors: Any = sys.modules.get("repdyn.checkpoints.errors")
        if errors and isinstance(error, errors.SweepStoppedError):
            later = "; the same command goes on from there" * isinstance(
                error, errors.NoConnectionError
            )
            return _said(f"stopped: {error}{later}", FAILED)
        if errors and isinstance(error, errors.CheckpointError):
            return _said(f"error: {error}", FAILED)
        raise


def command_line(studies: Collection[str] = tuple(STUDIES)) -> App:
    """Return the command with all of its commands; studies are imported, with torch, for their
    options.
    """
    app = App(
        name="repdyn",
        help=(
            "Track the geometry of a transformer's layers during training and over published "
            "checkpoints."
        ),
        help_epilogue=_EXAMPLES,
        help_format="plaintext",
        version=f"repdyn {version('repdyn')}",
        default_parameter=Parameter(negative=(), consume_multiple=1, show_default=_shown),
        group_parameters=OPTIONS,
        suppress_keyboard_interrupt=False,
    )
    groups = {name: Group.create_ordered(name) for name in (*_COMMANDS, "Other")}
    for group, functions in _COMMANDS.items():
        for number, function in enumerate(functions):
            _add(app, function, group=groups[group], sort_key=number)
    study = App(
        name="study",
        help="Study one aspect of one or several models.",
        help_epilogue=_STUDY_EXAMPLES,
        group=groups["Measure"],
        sort_key=len(_COMMANDS["Measure"]),
    )
    for number, (name, text) in enumerate(STUDIES.items()):
        if name in studies:
            _add(study, getattr(import_module(f"repdyn.lab.studies.{name}"), name), sort_key=number)
        else:
            study.command(lambda: None, name=name, help=text, sort_key=number)
    app.command(study)
    app.register_install_completion_command(group=groups["Other"])
    for flag in ("--help", "--version"):
        app[flag].group = groups["Other"]
    return app


def _add(app: App, function: Callable[..., int | None], **place: Any) -> None:
    """Add a command whose examples, the last section of its docstring, end its help."""
    # the lines of a paragraph are joined, since the help breaks them where the terminal ends
    function.__doc__ = re.sub(
        r"(?<=\S)\n(?=\S)|\n {8}(?=\S)", " ", cleandoc(function.__doc__ or "")
    )
    app.command(
        function,
        help_epilogue="Examples:\n" + function.__doc__.partition("\nExamples:\n")[2],
        **place,
    )


def _shown(default: Any) -> str | None:
    """Return a default as the help shows it; None for those that say nothing."""
    if default is None or default is False or default == ():
        return None
    return " ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)


def _said(line: str, status: int) -> int:
    """Print a line to standard error, if it can be printed, with flags in place of arguments, and
    return the status.
    """
    with suppress(OSError, ValueError):
        print(redacted(in_flags(line)), file=sys.stderr)
    return status


def _without_reader(error: OSError) -> int:
    """Give up standard output; a reader that has seen enough, such as head, is no failure."""
    # Python would complain once more when it closes the stream
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return (
        OK
        if isinstance(error, BrokenPipeError)
        else _said(f"error: standard output: {error}", FAILED)
    )

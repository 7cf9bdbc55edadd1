"""The command ``repdyn``: sweep published or local checkpoints, study models, draw what a store holds, replay it.

repdyn sweep --help
repdyn study --help
repdyn figures runs/quickstart/TIME/repdyn
repdyn emit runs/quickstart/TIME/repdyn --to wandb tensorboard
"""

# Only what is quick to import stands here: --help must not wait for torch.
from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from repdyn.redaction import redacted

_COMMANDS = ("sweep", "study", "metrics", "figures", "emit")
_EXAMPLES = """examples:
  repdyn sweep runs/quickstart/TIME                       measure the checkpoints of a run
  repdyn study convergence bert-base-uncased -o FOLDER    how its tokens approach their last layer
  repdyn metrics                                          what can be measured
  repdyn figures runs/quickstart/TIME/repdyn              draw and summarise what a store holds
  repdyn emit runs/quickstart/TIME/repdyn --to wandb      replay it into W&B, offline
  repdyn COMMAND --help                                   every option of a command
"""
_FIGURES_EXAMPLES = """examples:
  repdyn figures runs/quickstart/TIME/repdyn
  repdyn figures STORE --run EleutherAI/pythia-70m EleutherAI/pythia-160m
  repdyn figures STORE --probe 3f2ab1c0 -o pictures
"""
_EMIT_EXAMPLES = """examples:
  repdyn emit runs/quickstart/TIME/repdyn
  repdyn emit STORE --run EleutherAI/pythia-70m --to wandb tensorboard csv -o logs
  repdyn emit STORE --online --project my-project         send to W&B as it goes (needs an account)

Each call makes complete new runs beside those of earlier calls.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one subcommand; exits with 2 where something was not as expected, with 130 on Ctrl-C."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser()
    try:
        if given[:1] == ["sweep"]:
            _sweep(given[1:])
            return
        if given[:1] == ["study"]:
            _study(given[1:])
            return
        options = parser.parse_args(given)
        options.act(options)
    except (ValueError, OSError) as error:
        parser.exit(2, f"error: {redacted(str(error))}\n")
    except KeyboardInterrupt:
        parser.exit(130, "stopped\n")


def _parser() -> argparse.ArgumentParser:
    parser = _SuggestingParser(
        prog="repdyn",
        description="Watch the inner geometry of transformers change while they train.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"repdyn {version('repdyn')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    commands.add_parser("sweep", help="measure published or local checkpoints", add_help=False)
    commands.add_parser("study", help="study one aspect of one or several models", add_help=False)
    metrics = commands.add_parser("metrics", help="list every metric", description="List every metric.")
    metrics.add_argument("--markdown", action="store_true", help="with settings and sources, as docs/all_metrics.md")
    metrics.set_defaults(act=_metrics)
    figures = _add(
        commands, "figures", "write the figures of a store and print its summary", _FIGURES_EXAMPLES, _figures
    )
    figures.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="folder for the figures (default: STORE/figures)"
    )
    emit = _add(commands, "emit", "replay what a store holds into loggers", _EMIT_EXAMPLES, _emit)
    emit.add_argument(
        "--to",
        nargs="+",
        choices=("wandb", "tensorboard", "csv"),
        default=["wandb"],
        metavar="LOGGER",
        help="wandb, tensorboard, csv or several of them (default: wandb)",
    )
    emit.add_argument(
        "--online", action="store_true", help="send to the W&B cloud instead of keeping files for a later wandb sync"
    )
    emit.add_argument("--project", default="repdyn", help="project in W&B (default: %(default)s)")
    emit.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="folder for the loggers' files (default: STORE/emitted)"
    )
    return parser


def _add(
    commands: argparse._SubParsersAction[_SuggestingParser],
    name: str,
    does: str,
    examples: str,
    act: Callable[[argparse.Namespace], None],
) -> argparse.ArgumentParser:
    """A subcommand that works on runs of a store."""
    parser = commands.add_parser(
        name,
        help=does,
        description=f"{does[0].upper()}{does[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(act=act)
    parser.add_argument("store", type=Path, metavar="STORE", help="folder of a store")
    parser.add_argument("--run", nargs="+", metavar="NAME", help="some of its runs (default: every run)")
    parser.add_argument("--probe", metavar="HASH", help="one probe, by hash or its beginning (default: every probe)")
    return parser


def _sweep(arguments: Sequence[str]) -> None:
    from repdyn.sweep.cli import main as sweep

    sweep(arguments, prog="repdyn sweep")


def _study(arguments: Sequence[str]) -> None:
    from repdyn.studies.cli import main as study

    study(arguments, prog="repdyn study")


def _metrics(options: argparse.Namespace) -> None:
    from repdyn.views.metric_table import markdown, print_metrics

    if options.markdown:
        print(markdown(), end="")
    else:
        print_metrics()


def _figures(options: argparse.Namespace) -> None:
    from repdyn.store import open_store
    from repdyn.views.show import show_store

    show_store(open_store(options.store), options.run, probe=options.probe, folder=options.output)


def _emit(options: argparse.Namespace) -> None:
    if options.online and "wandb" not in options.to:
        raise ValueError(f"expected --online with --to wandb, got --to {' '.join(options.to)}; leave out --online")
    from repdyn.store import open_store
    from repdyn.views.emission import emit_store

    for line in emit_store(
        open_store(options.store),
        options.run,
        to=options.to,
        probe=options.probe,
        folder=options.output,
        project=options.project,
        online=options.online,
    ):
        print(line)


class _SuggestingParser(argparse.ArgumentParser):
    """A parser that says which command a mistyped one resembles."""

    def error(self, message: str) -> NoReturn:
        if typed := re.search(r"argument COMMAND: invalid choice: '([^']*)'", message):
            close = difflib.get_close_matches(typed[1], _COMMANDS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(_COMMANDS)}"
            message = f"expected a command, got {typed[1]!r}; {hint}"
        elif message.endswith("required: COMMAND"):
            message = f"expected a command, got none; there are {', '.join(_COMMANDS)}"
        super().error(message)

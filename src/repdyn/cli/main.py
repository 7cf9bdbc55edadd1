"""The command ``repdyn``: sweep checkpoints, study and explore models, show and export the content of stores."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from repdyn.cli.listings import add_listings
from repdyn.utils.arguments import SuggestingParser, add_seeds_option, add_store_command, given_seeds
from repdyn.utils.extras import with_extra
from repdyn.utils.names import printable
from repdyn.utils.redaction import redacted

_OWN_PARSER = {
    "demo": ("repdyn.cli.demo", "open the report of a finished run that comes with repdyn"),
    "audit": ("repdyn.cli.audit", "find what is wrong with published checkpoints"),
    "sweep": ("repdyn.cli.sweep", "measure published or local checkpoints"),
    "reproduce": ("repdyn.cli.reproduce", "reproduce the measurements of a paper"),
    "study": ("repdyn.cli.study", "study one aspect of one or several models"),
    "explore": ("repdyn.cli.explore", "explore the tokens of a sentence in the browser"),
    "watch": ("repdyn.cli.watch", "watch runs in the browser, live"),
    "report": ("repdyn.cli.report", "write a web page that shows what stores contain"),
    "query": ("repdyn.cli.query", "query the measurements of stores in SQL"),
}
"""Commands whose module parses its own options."""
_EXAMPLES = """examples:
  repdyn audit pythia-2.8b           copies among published checkpoints
  repdyn sweep RUN                   measure the checkpoints of a run
  repdyn reproduce --list            papers whose measurements can be repeated
  repdyn study convergence bert-base-uncased -o FOLDER
  repdyn metrics                     list every metric
  repdyn explore gpt2                the tokens of a sentence, in the browser
  repdyn insights RUN                what happened in a run
  repdyn watch RUN                   all runs in the browser, live
  repdyn report RUN                  write one self-contained web page
  repdyn figures RUN                 draw figures and print a summary
  repdyn alerts RUN                  list the alerts of a run
  repdyn export RUN --to wandb       write the values to W&B, offline
  repdyn query "select * from runs"  SQL over all stores below this folder
  repdyn COMMAND --help              every option of a command
"""
_FIGURES_EXAMPLES = """examples:
  repdyn figures runs/quickstart/TIME
  repdyn figures sweeps --run EleutherAI/pythia-70m EleutherAI/pythia-160m
  repdyn figures RUN --probe 3f2ab1c0 -o figures
  repdyn figures runs/a-seed1 runs/a-seed2 runs/b    compare runs: a as a band over its seeds, b as a line
"""
_EXPORT_EXAMPLES = """examples:
  repdyn export runs/quickstart/TIME
  repdyn export sweeps --run EleutherAI/pythia-70m --to wandb csv -o logs
  repdyn export RUN --wandb-online --wandb-project my-project    upload (account)

Each call creates new, complete runs and leaves those of earlier calls alone.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one subcommand; exits with status 2 on an error and with 130 on Ctrl-C."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser()
    try:
        if given[:1] and given[0] in _OWN_PARSER:
            module, _ = _OWN_PARSER[given[0]]
            import_module(module).main(given[1:], prog=f"repdyn {given[0]}")
            return
        options = parser.parse_args(given)
        options.run_command(options)
    except BrokenPipeError:
        # the reader, such as head, has seen enough; Python would complain once more when it closes the stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ModuleNotFoundError as error:
        missing = with_extra(error, " ".join(["repdyn", *given[:1]]))
        if missing is None:
            raise
        parser.exit(2, f"error: {missing}\n")
    except (ValueError, OSError) as error:
        parser.exit(2, f"error: {printable(redacted(str(error)))}\n")
    except KeyboardInterrupt:
        parser.exit(130, "stopped\n")


def _parser() -> argparse.ArgumentParser:
    parser = SuggestingParser(
        choice="a command",
        prog="repdyn",
        description="Track the geometry of a transformer's layers during training and over published checkpoints.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"repdyn {version('repdyn')}")
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        choices=("bash", "zsh", "tcsh"),
        help="print the script by which a shell completes commands and options, and exit",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (_, description) in _OWN_PARSER.items():
        commands.add_parser(name, help=description, add_help=False)
    add_listings(commands)
    figures = add_store_command(
        commands, "figures", "draw the figures of a store and print a summary", _FIGURES_EXAMPLES, _figures, nargs="+"
    )
    add_seeds_option(figures)
    figures.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="folder for the figures (default: figures in the store)"
    )
    export = add_store_command(
        commands, "export", "write the values of a store to experiment loggers", _EXPORT_EXAMPLES, _export
    )
    export.add_argument(
        "--to",
        nargs="+",
        choices=("wandb", "tensorboard", "csv", "mlflow"),
        default=["wandb"],
        metavar="LOGGER",
        help="one or several of wandb, tensorboard and csv (default: wandb)",
    )
    export.add_argument(
        "--wandb-online", action="store_true", help="upload to W&B instead of writing files for a later wandb sync"
    )
    export.add_argument(
        "--log-layers",
        nargs="+",
        default=["default"],
        metavar="METRIC",
        help="metrics of which every layer is written, with * for any characters, or one of the words default "
        "(anisotropy and two_nn), all, none",
    )
    export.add_argument("--wandb-project", default="repdyn", help="W&B project (default: %(default)s)")
    export.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="folder of the loggers' files (default: exports in the store)",
    )
    return parser


class _PrintCompletion(argparse.Action):
    """Prints the script and exits, before a command is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: object, shell: Any, option: object = None) -> None:
        from repdyn.cli.completion import complete_parser, completion_script

        modules = {name: module for name, (module, _) in _OWN_PARSER.items()}
        print(completion_script(complete_parser(parser, modules), shell))
        parser.exit()


def _figures(options: argparse.Namespace) -> None:
    from repdyn.publish.results import compare_stores, show_store
    from repdyn.store import find_store

    stores = [find_store(store) for store in options.store]
    given = {"probe": options.probe, "folder": options.output, "seeds": given_seeds(options)}
    if len(stores) > 1:
        compare_stores(stores, options.run, **given)
    else:
        show_store(stores[0], options.run, **given)


def _export(options: argparse.Namespace) -> None:
    if options.wandb_online and "wandb" not in options.to:
        raise ValueError(
            f"expected --wandb-online with --to wandb, got --to {' '.join(options.to)}; leave out --wandb-online"
        )
    from repdyn.publish.export import export_store
    from repdyn.store import find_store

    for line in export_store(
        find_store(options.store),
        options.run,
        to=options.to,
        probe=options.probe,
        folder=options.output,
        project=options.wandb_project,
        online=options.wandb_online,
        log_layers=options.log_layers[0] if options.log_layers[0] in {"default", "all", "none"} else options.log_layers,
    ):
        print(printable(line))

"""The command ``repdyn``: sweep checkpoints, study and explore models, show and export the content of stores."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from repdyn.utils.arguments import SuggestingParser, add_store_options
from repdyn.utils.redaction import redacted
from repdyn.utils.untrusted_names import printable

_OWN_PARSER = {
    "sweep": ("repdyn.cli.sweep", "measure published or local checkpoints"),
    "study": ("repdyn.cli.study", "study one aspect of one or several models"),
    "explore": ("repdyn.cli.explore", "explore the tokens of a sentence in the browser"),
    "report": ("repdyn.cli.report", "write a web page that shows what stores contain"),
}
"""Commands whose module parses its own options."""
_EXAMPLES = """examples:
  repdyn sweep runs/quickstart/TIME                       measure the checkpoints of a run
  repdyn study convergence bert-base-uncased -o FOLDER    how its tokens approach their last layer
  repdyn metrics                                          list every metric
  repdyn explore gpt2                                     type a sentence and click its tokens, in the browser
  repdyn report runs/quickstart/TIME               write one self-contained web page
  repdyn figures runs/quickstart/TIME              draw figures and print a summary
  repdyn alerts runs/quickstart/TIME               list the alerts of a run
  repdyn export runs/quickstart/TIME --to wandb    write the stored values to W&B, offline
  repdyn COMMAND --help                                   every option of a command
"""
_FIGURES_EXAMPLES = """examples:
  repdyn figures runs/quickstart/TIME
  repdyn figures RUN --run EleutherAI/pythia-70m EleutherAI/pythia-160m
  repdyn figures RUN --probe 3f2ab1c0 -o figures
"""
_ALERTS_EXAMPLES = """examples:
  repdyn alerts runs/quickstart/TIME
  repdyn alerts sweeps --run EleutherAI/pythia-70m --rules alerts.yaml
  repdyn alerts --print-rules > alerts.yaml               the default rules, as a file to edit
  repdyn alerts RUN --fail && echo healthy              exit status 1 if there is an alert
"""
_EXPORT_EXAMPLES = """examples:
  repdyn export runs/quickstart/TIME
  repdyn export RUN --run EleutherAI/pythia-70m --to wandb tensorboard csv -o logs
  repdyn export RUN --wandb-online --wandb-project my-project    upload to W&B (needs an account)

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
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"repdyn {version('repdyn')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (_, description) in _OWN_PARSER.items():
        commands.add_parser(name, help=description, add_help=False)
    metrics = commands.add_parser("metrics", help="list every metric", description="List every metric.")
    metrics.add_argument("--markdown", action="store_true", help="with settings and sources, as docs/all_metrics.md")
    metrics.set_defaults(run_command=_metrics)
    figures = _add(commands, "figures", "draw the figures of a store and print a summary", _FIGURES_EXAMPLES, _figures)
    figures.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="folder for the figures (default: figures in the store)"
    )
    alerts = _add(commands, "alerts", "list the alerts of the runs of a store", _ALERTS_EXAMPLES, _alerts, nargs="?")
    alerts.add_argument("--rules", type=Path, metavar="FILE", help="YAML file of rules (default: those of each run)")
    alerts.add_argument("--print-rules", action="store_true", help="print the default rules, as such a file")
    alerts.add_argument("--fail", action="store_true", help="exit with status 1 if there is an alert")
    export = _add(commands, "export", "write the values of a store to experiment loggers", _EXPORT_EXAMPLES, _export)
    export.add_argument(
        "--to",
        nargs="+",
        choices=("wandb", "tensorboard", "csv"),
        default=["wandb"],
        metavar="LOGGER",
        help="one or several of wandb, tensorboard and csv (default: wandb)",
    )
    export.add_argument(
        "--wandb-online", action="store_true", help="upload to W&B instead of writing files for a later wandb sync"
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


def _add(
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
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run_command=run_command)
    add_store_options(parser, nargs)
    return parser


def _metrics(options: argparse.Namespace) -> None:
    from repdyn.terminal.metric_list import markdown, print_metrics

    if options.markdown:
        print(markdown(), end="")
    else:
        print_metrics()


def _figures(options: argparse.Namespace) -> None:
    from repdyn.publish.results import show_store
    from repdyn.store import find_store

    show_store(find_store(options.store), options.run, probe=options.probe, folder=options.output)


def _alerts(options: argparse.Namespace) -> None:
    from repdyn.alerts import RULES, as_yaml, read_rules
    from repdyn.store import find_store
    from repdyn.terminal.alerts import print_alerts

    if options.print_rules:
        print(as_yaml(RULES), end="")
        return
    if options.store is None:
        raise ValueError("expected the folder of a run or a store, got none; or --print-rules for the default rules")
    rules = read_rules(options.rules) if options.rules else None
    found = print_alerts(find_store(options.store), options.run, probe=options.probe, rules=rules)
    if found and options.fail:
        raise SystemExit(1)


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
    ):
        print(printable(line))

"""The command ``repdyn``: sweep published or local checkpoints, study and explore models, show what a store holds.

repdyn sweep --help
repdyn study --help
repdyn explore MODEL
repdyn report runs/quickstart/TIME/repdyn
repdyn figures runs/quickstart/TIME/repdyn
repdyn alerts runs/quickstart/TIME/repdyn
repdyn emit runs/quickstart/TIME/repdyn --to wandb tensorboard
"""

# Only what is quick to import stands here: --help must not wait for torch.
from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from repdyn.utils.arguments import SuggestingParser
from repdyn.utils.redaction import redacted

_PASSED_ON = {
    "sweep": "repdyn.cli.sweep",
    "study": "repdyn.cli.study",
    "explore": "repdyn.cli.explore",
    "report": "repdyn.cli.report",
}
"""Commands with a command line of their own."""
_EXAMPLES = """examples:
  repdyn sweep runs/quickstart/TIME                       measure the checkpoints of a run
  repdyn study convergence bert-base-uncased -o FOLDER    how its tokens approach their last layer
  repdyn metrics                                          what can be measured
  repdyn explore gpt2                                     type a sentence, click its tokens, in the browser
  repdyn report runs/quickstart/TIME/repdyn               one page to look at, which needs no network
  repdyn figures runs/quickstart/TIME/repdyn              draw and summarise what a store holds
  repdyn alerts runs/quickstart/TIME/repdyn               what went wrong in it
  repdyn emit runs/quickstart/TIME/repdyn --to wandb      replay it into W&B, offline
  repdyn COMMAND --help                                   every option of a command
"""
_FIGURES_EXAMPLES = """examples:
  repdyn figures runs/quickstart/TIME/repdyn
  repdyn figures STORE --run EleutherAI/pythia-70m EleutherAI/pythia-160m
  repdyn figures STORE --probe 3f2ab1c0 -o pictures
"""
_ALERTS_EXAMPLES = """examples:
  repdyn alerts runs/quickstart/TIME/repdyn
  repdyn alerts sweeps --run EleutherAI/pythia-70m --rules alerts.yaml
  repdyn alerts --print-rules > alerts.yaml               the default rules, to begin one's own with
  repdyn alerts STORE --fail && echo healthy              exit status 1 where an alert is raised
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
        if given[:1] and given[0] in _PASSED_ON:
            import_module(_PASSED_ON[given[0]]).main(given[1:], prog=f"repdyn {given[0]}")
            return
        options = parser.parse_args(given)
        options.act(options)
    except (ValueError, OSError) as error:
        parser.exit(2, f"error: {redacted(str(error))}\n")
    except KeyboardInterrupt:
        parser.exit(130, "stopped\n")


def _parser() -> argparse.ArgumentParser:
    parser = SuggestingParser(
        choice="a command",
        prog="repdyn",
        description="Watch the inner geometry of transformers change while they train.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"repdyn {version('repdyn')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    commands.add_parser("sweep", help="measure published or local checkpoints", add_help=False)
    commands.add_parser("study", help="study one aspect of one or several models", add_help=False)
    commands.add_parser("explore", help="the tokens of a sentence, in the browser", add_help=False)
    commands.add_parser("report", help="one page that shows what stores hold", add_help=False)
    metrics = commands.add_parser("metrics", help="list every metric", description="List every metric.")
    metrics.add_argument("--markdown", action="store_true", help="with settings and sources, as docs/all_metrics.md")
    metrics.set_defaults(act=_metrics)
    figures = _add(
        commands, "figures", "write the figures of a store and print its summary", _FIGURES_EXAMPLES, _figures
    )
    figures.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="folder for the figures (default: STORE/figures)"
    )
    alerts = _add(
        commands, "alerts", "list what went wrong in the runs of a store", _ALERTS_EXAMPLES, _alerts, store="?"
    )
    alerts.add_argument("--rules", type=Path, metavar="FILE", help="YAML file of rules (default: those of each run)")
    alerts.add_argument("--print-rules", action="store_true", help="print the default rules, as such a file")
    alerts.add_argument("--fail", action="store_true", help="exit with status 1 where an alert is raised")
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
    commands: argparse._SubParsersAction[SuggestingParser],
    name: str,
    does: str,
    examples: str,
    act: Callable[[argparse.Namespace], None],
    store: str | None = None,
) -> argparse.ArgumentParser:
    """A subcommand that works on runs of a store; ``store`` as argparse's nargs."""
    parser = commands.add_parser(
        name,
        help=does,
        description=f"{does[0].upper()}{does[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(act=act)
    parser.add_argument("store", type=Path, metavar="STORE", nargs=store, help="folder of a store")
    parser.add_argument("--run", nargs="+", metavar="NAME", help="some of its runs (default: every run)")
    parser.add_argument("--probe", metavar="HASH", help="one probe, by hash or its beginning (default: every probe)")
    return parser


def _metrics(options: argparse.Namespace) -> None:
    from repdyn.terminal.metric_list import markdown, print_metrics

    if options.markdown:
        print(markdown(), end="")
    else:
        print_metrics()


def _figures(options: argparse.Namespace) -> None:
    from repdyn.publish.results import show_store
    from repdyn.store import open_store

    show_store(open_store(options.store), options.run, probe=options.probe, folder=options.output)


def _alerts(options: argparse.Namespace) -> None:
    from repdyn.alerts import RULES, as_yaml, read_rules
    from repdyn.store import open_store
    from repdyn.terminal.alerts import print_alerts

    if options.print_rules:
        print(as_yaml(RULES), end="")
        return
    if options.store is None:
        raise ValueError("expected the folder of a store, got none; or --print-rules for the default rules")
    rules = read_rules(options.rules) if options.rules else None
    found = print_alerts(open_store(options.store), options.run, probe=options.probe, rules=rules)
    if found and options.fail:
        raise SystemExit(1)


def _emit(options: argparse.Namespace) -> None:
    if options.online and "wandb" not in options.to:
        raise ValueError(f"expected --online with --to wandb, got --to {' '.join(options.to)}; leave out --online")
    from repdyn.publish.export import export_store
    from repdyn.store import open_store

    for line in export_store(
        open_store(options.store),
        options.run,
        to=options.to,
        probe=options.probe,
        folder=options.output,
        project=options.project,
        online=options.online,
    ):
        print(line)

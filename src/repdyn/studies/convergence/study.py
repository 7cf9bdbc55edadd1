"""``repdyn study convergence``: profiles with intervals, gaps between classes, changes, and what goes with the loss."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from repdyn.text.source import DEFAULT_TEXT
from repdyn.store import open_store
from repdyn.studies import models as subjects
from repdyn.studies.convergence import figures, summary
from repdyn.studies.convergence.loss import loss_correlations, summaries_with_loss
from repdyn.studies.convergence.measured import WORDS, results_of
from repdyn.studies.convergence.results import (
    Result,
    change,
    change_table,
    class_table,
    gap_table,
    profile,
    profile_table,
)
from repdyn.studies.output import Findings, print_written
from repdyn.tables.frames import by_stack
from repdyn.tables.selection import select
from repdyn.tables.style import of_stack
from repdyn.utils.arguments import at_least

HELP = "How the tokens of a model approach what they are after its last layer: alignment A_l, gradient G_l, and gaps."
EXAMPLES = """examples:
  repdyn study convergence bert-base-uncased distilbert-base-uncased -o FOLDER
  repdyn study convergence stories260K-hf --text builtin --sentences 0 -o FOLDER
  repdyn study convergence RUN/hf_checkpoints/step100 RUN/hf_checkpoints/step1000 --before-after -o FOLDER
  repdyn study convergence EleutherAI/pythia-70m@step1000 EleutherAI/pythia-70m --before-after -o FOLDER
  repdyn study convergence --store RUN/repdyn -o FOLDER       does the alignment go with the training loss?
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What is read, how much of it, and what is compared."""
    subjects.add_options(parser, fewest=0)
    text = parser.add_argument_group("what the models read")
    text.add_argument("--text", default=DEFAULT_TEXT, help="enwik8, builtin, or a path (default: %(default)s)")
    text.add_argument(
        "--sequence-length",
        type=at_least(2),
        default=128,
        help="tokens in a sequence, at most the model's context (default: %(default)s)",
    )
    text.add_argument(
        "--max-vectors", type=at_least(3), default=16384, help="tokens of the text (default: %(default)s)"
    )
    text.add_argument(
        "--words",
        nargs="*",
        choices=WORDS,
        default=list(WORDS),
        metavar="CLASS",
        help="classes of its words to hold against one another; without a name none (default: %(default)s)",
    )
    text.add_argument(
        "--sentences",
        type=at_least(0),
        default=1000,
        help="made-up sentences of either kind, simple and complex; 0 for none (default: %(default)s)",
    )
    group = parser.add_argument_group("what is worked out")
    group.add_argument("--layers", help='name pattern of the blocks, such as "layers.*" (default: found)')
    group.add_argument("--resamples", type=at_least(1), default=1000, help="of the bootstrap (default: %(default)s)")
    group.add_argument("--seed", type=at_least(0), default=0, help="of the bootstrap (default: %(default)s)")
    group.add_argument("--before-after", action="store_true", help="the second of two models minus the first")
    group.add_argument(
        "--store", type=Path, metavar="STORE", help="of runs with the metric alignment: correlation with train/loss"
    )
    group.add_argument("--run", nargs="+", metavar="NAME", help="some of the store's runs (default: every run)")


def run(options: argparse.Namespace) -> None:
    """Print the study, and write its tables and figures.

    Raises:
        ValueError, OSError, CheckpointError: a mistaken option, or a model or text that is not as it must be.
    """
    _validate_options(options)
    findings = Findings()
    if options.models:
        of_models = [results_of(subject, options) for subject in subjects.subjects(options)]
        _profiles([result for results in of_models for result in results], options, findings)
        if options.before_after:
            _change(*of_models, options=options, findings=findings)
    if options.store:
        _correlations(options, findings)
    print_written(options.output, findings.write(options.output))


def _validate_options(options: argparse.Namespace) -> None:
    if not options.models and not options.store:
        raise ValueError("expected a model or --store STORE, got neither; see --help")
    if options.before_after and len(options.models) != 2:
        raise ValueError(f"expected two models with --before-after, got {len(options.models)}; name first and second")
    if options.run and not options.store:
        raise ValueError("expected --run with --store, got it alone; name the store that holds the run")


def _profiles(results: Sequence[Result], options: argparse.Namespace, findings: Findings) -> None:
    found = {result.name: profile(result, options.resamples, options.seed) for result in results}
    findings.tables["profiles"] = pd.concat([profile_table(*named) for named in found.items()], ignore_index=True)
    findings.tables["classes"] = class_table(results)
    if not (gaps := gap_table(results)).empty:
        findings.tables["gaps"] = gaps
    findings.figures["profiles"] = figures.profile_figure(found)
    for result in results:
        one, folder = found[result.name], subjects.file_name(result.name)
        summary.print_profile(result, one)
        findings.figures[f"{folder}/gradient"] = figures.gradient_figure(result.name, one)
        if of_result := result.gaps():
            findings.figures[f"{folder}/gaps"] = figures.gap_figure(result.name, of_result)


def _change(
    before: Sequence[Result], after: Sequence[Result], *, options: argparse.Namespace, findings: Findings
) -> None:
    if len(before) != len(after):
        names = ", ".join(result.name for result in (*before, *after))
        raise ValueError(
            f"expected two models with as many stacks of blocks, got {names}; compare two checkpoints of one model"
        )
    changes = {
        f"{later.name} minus {earlier.name}": change(earlier, later, options.resamples, options.seed)
        for earlier, later in zip(before, after, strict=True)
    }
    findings.tables["change"] = pd.concat([change_table(*named) for named in changes.items()], ignore_index=True)
    for title, one in changes.items():
        summary.print_change(title, one)
        findings.figures[f"{subjects.file_name(title)}/change"] = figures.change_figure(title, one)


def _correlations(options: argparse.Namespace, findings: Findings) -> None:
    lines = []
    for (name, probe), frame in select(open_store(options.store), options.run).items():
        for stack, rows in by_stack(frame).items():
            title = of_stack(name, stack)
            try:
                table = summaries_with_loss(rows)
                found = loss_correlations(table)
            except ValueError as error:
                raise ValueError(f"{title} on the probe {probe[:8]}: {error}") from error
            summary.print_correlations(title, found)
            lines.append(table.reset_index().assign(run=title, probe=probe))
            drawn = figures.loss_figure(title, table, found)
            findings.figures[f"{subjects.file_name(title)}/loss_{probe[:8]}"] = drawn
    findings.tables["loss"] = pd.concat(lines, ignore_index=True)

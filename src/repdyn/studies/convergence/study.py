"""``repdyn study convergence``: alignment profiles, gaps between classes, changes, and correlation with the loss."""

from __future__ import annotations

import argparse

import pandas as pd

from repdyn.probe.class_names import CLASS_OPTIONS, CLASSES
from repdyn.store import find_store
from repdyn.studies.convergence import figures, summary
from repdyn.studies.convergence.gaps import class_gaps
from repdyn.studies.convergence.loss import loss_correlations, summaries_with_loss
from repdyn.studies.convergence.profiles import (
    ConvergenceMeasurements,
    class_table,
    estimate_change,
    estimate_profile,
    measure_convergence,
)
from repdyn.studies.driver import Study, add_layers_option, add_number
from repdyn.studies.models import LoadedModel, file_name
from repdyn.studies.output import Output, join_tables
from repdyn.tables.frames import by_stack
from repdyn.tables.losses import loss_of_run
from repdyn.tables.selection import select
from repdyn.tables.style import of_stack
from repdyn.text.source import DEFAULT_TEXT
from repdyn.utils.addresses import path_or_url


class ConvergenceStudy(Study):
    """Study of how the tokens of a model approach their states at the last layer."""

    help = "How the tokens of a model approach their states at the last layer: alignment A_l, gradient G_l, and gaps."
    examples = """examples:
  repdyn study convergence bert-base-uncased distilbert-base-uncased -o FOLDER
  repdyn study convergence stories260K-hf --text builtin --sentences 0 -o FOLDER
  repdyn study convergence RUN/hf_checkpoints/step100 RUN/hf_checkpoints/step1000 --before-after -o FOLDER
  repdyn study convergence EleutherAI/pythia-70m@step1000 EleutherAI/pythia-70m --before-after -o FOLDER
  repdyn study convergence --store RUN/repdyn -o FOLDER       is the alignment correlated with the loss?
"""
    fewest_models = 0

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        text = parser.add_argument_group("text")
        text.add_argument("--text", default=DEFAULT_TEXT, help="enwik8, builtin, or a path (default: %(default)s)")
        add_number(text, "--sequence-length", 128, 2, "tokens in a sequence, at most the model's context")
        add_number(text, "--max-vectors", 16384, 3, "tokens of the text")
        text.add_argument(
            "--classes",
            nargs="+",
            choices=CLASS_OPTIONS,
            default=["words"],
            metavar="CLASS",
            help=f"word classes to compare: {', '.join(CLASSES)}, words for all of them, or none (default: words)",
        )
        add_number(text, "--sentences", 1000, 0, "generated sentences of each kind, simple and complex; 0 for none")
        group = parser.add_argument_group("analysis")
        add_layers_option(group)
        add_number(group, "--resamples", 1000, 1, "of the bootstrap")
        add_number(group, "--seed", 0, 0, "of the bootstrap")
        group.add_argument("--before-after", action="store_true", help="the second of two models minus the first")
        group.add_argument(
            "--store",
            type=path_or_url,
            metavar="RUN",
            help="runs or a store with the metric alignment: correlation with the loss",
        )
        group.add_argument("--run", nargs="+", metavar="NAME", help="some of the store's runs (default: every run)")

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        if not options.models and not options.store:
            raise ValueError("expected a model or --store RUN, got neither; see --help")
        if options.before_after and len(options.models) != 2:
            raise ValueError(
                f"expected two models with --before-after, got {len(options.models)}; name first and second"
            )
        if options.run and not options.store:
            raise ValueError("expected --run with --store, got it alone; name the store that holds the run")
        self.output = Output()
        self.models: list[list[ConvergenceMeasurements]] = []

    def measure(self, loaded: LoadedModel) -> None:
        self.models.append(measure_convergence(loaded, self.options))

    def finish(self) -> None:
        if self.models:
            self._report_profiles()
        if self.options.before_after:
            self._report_change(*self.models)
        if self.options.store:
            self._report_correlations()
        self.write(self.output)

    def _report_profiles(self) -> None:
        measured = {one.name: one for stacks in self.models for one in stacks}
        estimates, gaps = {}, {}
        for name, one in measured.items():
            estimates[name] = profile = estimate_profile(one, self.options.resamples, self.options.seed)
            found = class_gaps(one.classes)
            summary.print_profile(one, profile, found)
            self.output.figures[f"{file_name(name)}/gradient"] = figures.gradient_figure(name, profile)
            if found:
                gaps |= {(name, *pair): gap for pair, gap in found.items()}
                self.output.figures[f"{file_name(name)}/gaps"] = figures.gap_figure(name, found)
        profiles = {name: profile.table for name, profile in estimates.items()}
        self.output.figures["profiles"] = figures.profile_figure(profiles)
        self.output.tables["profiles"] = join_tables(profiles, "model")
        self.output.tables["classes"] = join_tables({name: class_table(one) for name, one in measured.items()}, "model")
        if gaps:
            self.output.tables["gaps"] = join_tables(gaps, "model", "first", "second")

    def _report_change(self, before: list[ConvergenceMeasurements], after: list[ConvergenceMeasurements]) -> None:
        if len(before) != len(after):
            names = ", ".join(one.name for one in (*before, *after))
            raise ValueError(
                f"expected two models with as many stacks of blocks, got {names}; compare two checkpoints of one model"
            )
        changes = {}
        for pair in zip(before, after, strict=True):
            title = f"{pair[1].name} minus {pair[0].name}"
            change = estimate_change(*pair, self.options.resamples, self.options.seed)
            summary.print_change(title, change)
            changes[title] = change.table
            self.output.figures[f"{file_name(title)}/change"] = figures.change_figure(title, change.table)
        self.output.tables["change"] = join_tables(changes, "model")

    def _report_correlations(self) -> None:
        frames = []
        for (name, probe), run in select(find_store(self.options.store), self.options.run).items():
            for stack, rows in by_stack(run).items():
                title, loss = of_stack(name, stack), loss_of_run(rows).title
                try:
                    table = summaries_with_loss(rows)
                    correlations = loss_correlations(table)
                except ValueError as error:
                    raise ValueError(f"{title} on the probe {probe[:8]}: {error}") from error
                summary.print_correlations(title, len(table), correlations, loss)
                frames.append(table.reset_index().assign(run=title, probe=probe))
                figure = figures.loss_figure(title, table, correlations, loss)
                self.output.figures[f"{file_name(title)}/loss_{probe[:8]}"] = figure
        self.output.tables["loss"] = pd.concat(frames, ignore_index=True)


STUDY = ConvergenceStudy

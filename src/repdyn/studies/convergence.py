"""``repdyn study convergence``: alignment profiles, gaps between classes, changes, and correlation with the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pandas as pd
from cyclopts import Parameter

from repdyn.probe.design import CLASS_OPTIONS
from repdyn.reading import LoadedModel, file_name
from repdyn.store import find_store
from repdyn.studies import skipped_blocks
from repdyn.studies.convergence_estimates import (
    ANY_STEP,
    THRESHOLD,
    ProfileEstimate,
    class_gaps,
    class_table,
    estimate_change,
    estimate_profile,
    fall_table,
    key_layers,
    loss_correlations,
    summaries_with_loss,
)
from repdyn.studies.convergence_figures import (
    bound_figure,
    change_figure,
    falls_figure,
    gap_figure,
    levels_figure,
    loss_figure,
    profile_figure,
    skipped_figure,
    steps_figure,
)
from repdyn.studies.convergence_measurements import ConvergenceMeasurements, measure_convergence
from repdyn.studies.study import (
    Folder,
    Output,
    Study,
    join_tables,
    print_line,
    print_table,
    print_title,
    run_study,
    select,
)
from repdyn.tables.frames import by_stack, loss_of_run
from repdyn.tables.runs import select as select_runs
from repdyn.tables.style import of_stack
from repdyn.text.corpus import DEFAULT_TEXT
from repdyn.utils.arguments import Count, ModelOptions, Models, Place, at_least


class ConvergenceStudy(Study):
    """Study of how the tokens of a model approach their states at the last layer."""

    def __init__(self, options: Any) -> None:
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
        self.skipped: dict[str, pd.DataFrame] = {}
        self.with_heads = options.skip_blocks

    def measure(self, loaded: LoadedModel) -> None:
        self.models.append(measure_convergence(loaded, self.options))
        if self.options.skip_blocks:
            found = skipped_blocks.skip_blocks(loaded, self.options)
            self.skipped |= {of_stack(loaded.name, stack): table for stack, table in found.items()}

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
        draws = self.options.resamples, self.options.seed
        profiles, classes, falls, gaps = {}, {}, {}, {}
        for name, one in measured.items():
            profile, found = estimate_profile(one, *draws), class_gaps(one.classes)
            profiles[name] = profile.table
            classes[name], falls[name] = class_table(one, *draws), fall_table(one, *draws)
            print_profile(one, profile, found, falls[name])
            if found:
                gaps |= {(name, *pair): gap for pair, gap in found.items()}
                self.output.figures[f"{file_name(name)}/gaps"] = gap_figure(name, found)
        drawn = {"profiles": profile_figure, "steps": steps_figure, "bound": bound_figure}
        self.output.figures.update({name: draw(profiles) for name, draw in drawn.items()})
        self.output.figures["falls"] = falls_figure(falls)
        tables = {"profiles": profiles, "classes": classes, "falls": falls}
        self.output.tables.update({name: join_tables(of_models, "model") for name, of_models in tables.items()})
        if self.skipped:
            self.output.tables["skipped"] = skipped = join_tables(self.skipped, "model")
            self.output.figures["skipped"] = skipped_figure(self.skipped, profiles)
            print_table(skipped)
            print_line("")
        if gaps:
            self.output.tables["gaps"] = join_tables(gaps, "model", "first", "second")
            self.output.tables["key_layers"] = levels = key_layers(self.output.tables["classes"])
            self.output.figures["levels"] = levels_figure(classes)
            print_table(levels)
            print_line("")

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
            print_title(title)
            print_table(change.table)
            print_line(f"average rate {change.rate:+.4f} [{change.rate_low:.4f}, {change.rate_high:.4f}]\n")
            changes[title] = change.table
            self.output.figures[f"{file_name(title)}/change"] = change_figure(title, change.table)
        self.output.tables["change"] = join_tables(changes, "model")

    def _report_correlations(self) -> None:
        frames = []
        for (name, probe), run in select_runs(find_store(self.options.store), self.options.run).items():
            for stack, rows in by_stack(run).items():
                title, loss = of_stack(name, stack), loss_of_run(rows).title
                try:
                    table = summaries_with_loss(rows)
                    correlations = loss_correlations(table)
                except ValueError as error:
                    raise ValueError(f"{title} on the probe {probe[:8]}: {error}") from error
                print_title(title, f"{len(table)} checkpoints; correlation with the {loss}")
                print_table(correlations.rename_axis("value").reset_index())
                print_line("Checkpoints of one training are not independent: these correlations have no p-value.\n")
                frames.append(table.reset_index().assign(run=title, probe=probe))
                figure = loss_figure(title, table, correlations, loss)
                self.output.figures[f"{file_name(title)}/loss_{probe[:8]}"] = figure
        self.output.tables["loss"] = pd.concat(frames, ignore_index=True)


def convergence(
    models: Models = (),
    /,
    *,
    output: Folder,
    loading: ModelOptions = ModelOptions(),
    text: str = DEFAULT_TEXT,
    sequence_length: Annotated[int, at_least(2)] = 128,
    max_vectors: Annotated[int, at_least(3)] = 16384,
    classes: Annotated[Sequence[str], Parameter(choices=CLASS_OPTIONS)] = ("words",),
    sentences: Annotated[int, at_least(0)] = 1000,
    skip_blocks: bool = False,
    layers: str | None = None,
    resamples: Count = 1000,
    seed: Annotated[int, at_least(0)] = 0,
    before_after: bool = False,
    store: Place | None = None,
    run: list[str] | None = None,
) -> None:
    """Study convergence: how tokens approach their states at the last layer, and at what rate.

    Args:
        models: Hub repository, also as REPOSITORY@REVISION, folder of save_pretrained, or folder of a run.
        output: Folder for tables and figures.
        text: Use enwik8, builtin, or a path.
        sequence_length: Tokens in a sequence, at most the model's context.
        max_vectors: Tokens of the text.
        classes: Word classes to compare; words for all of them, or none.
        sentences: Generated sentences of each kind, simple and complex; 0 for none.
        skip_blocks: Measure loss and final alignment without each block, too, on up to 4,096 tokens.
        layers: Pattern of the blocks' names, such as "layers.*" (default: detected).
        resamples: Of the bootstrap.
        seed: Of the bootstrap.
        before_after: Compare two models: the second minus the first.
        store: Runs or a store with the metric alignment, for its correlation with the loss.
        run: Some of the store's runs (default: every run).

    Examples:
      repdyn study convergence bert-base-uncased distilbert-base-uncased -o FOLDER
      repdyn study convergence gpt2 --text builtin --sentences 0 -o FOLDER
      repdyn study convergence RUN --revisions step100,step1000 --before-after -o F
      repdyn study convergence --store RUN/repdyn -o FOLDER
    """
    run_study(ConvergenceStudy, loading, locals())


def print_profile(
    measured: ConvergenceMeasurements,
    profile: ProfileEstimate,
    gaps: Mapping[tuple[str, str], pd.DataFrame],
    falls: pd.DataFrame,
) -> None:
    """Print the profile of a model layer by layer, its falls, and the gaps between its classes."""
    tokens, sequences = measured.all_tokens.n_tokens, len(measured.all_tokens.counts)
    print_title(measured.name, f"{tokens:,} tokens of {sequences:,} sequences")
    print_table(profile.table)
    print_line(f"average rate {profile.rate:.4f} [{profile.rate_low:.4f}, {profile.rate_high:.4f}]")
    print_line(_describe_fit(profile.table))
    print_line(_describe_falls(falls))
    for pair, gap in gaps.items():
        print_line(_describe_gap(pair, gap))
    print_line("")


def _describe_fit(profile: pd.DataFrame) -> str:
    steps, fit = (profile[column].to_numpy(float)[:-1] for column in ("gradient", "isotonic_fit"))
    above, largest = np.flatnonzero(fit > steps + 1e-12), int(steps.argmax())
    text = f"largest step {steps[largest]:.4f} (layer {largest} to {largest + 1}), last step {steps[-1]:.4f}"
    if not len(above):
        return f"{text}; the isotonic fit is nowhere above the gradient"
    return f"{text}; the isotonic fit is above the gradient, and so no lower bound, at {_layers(above)}"


def _describe_falls(falls: pd.DataFrame) -> str:
    ever = select(falls, layer=ANY_STEP, **{"class": "all"}).set_index("more_than")["share"]
    sizes = ", ".join(f"{share:.1%} by more than {size:g}" for size, share in ever.items())
    return f"tokens whose cosine to their final vector falls at some step: {sizes}"


def _describe_gap(pair: tuple[str, str], gap: pd.DataFrame) -> str:
    difference, is_significant = gap["gap"].to_numpy(float), gap["p_holm"].to_numpy(float) < THRESHOLD
    higher = {pair[0]: is_significant & (difference > 0), pair[1]: is_significant & (difference < 0)}
    found = [f"{name} higher at {_layers(np.flatnonzero(chosen))}" for name, chosen in higher.items() if chosen.any()]
    test = f"{gap['test'].iloc[0]}, {gap['n'].iloc[0]}, Holm, {THRESHOLD:.0%}"
    return f"{pair[0]} against {pair[1]} ({test}): {' and '.join(found) or 'no layer differs'}"


def _layers(numbers: np.ndarray) -> str:
    return f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers.tolist()))}"

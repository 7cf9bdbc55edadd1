"""``repdyn study convergence``: alignment profiles, falls, classes, changes, blocks left out, and correlations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from cyclopts import Parameter

from repdyn.probe.design import CLASS_OPTIONS
from repdyn.reading import LoadedModel, file_name
from repdyn.studies import convergence_estimates as estimates
from repdyn.studies import convergence_figures as draw
from repdyn.studies.bootstrap import Estimate, bootstrap
from repdyn.studies.convergence_measurements import ConvergenceMeasurements, measure_convergence, skip_blocks
from repdyn.studies.study import (
    Folder,
    Study,
    join_tables,
    print_line,
    print_table,
    print_title,
    read_phrases,
    run_study,
    select,
    stored_runs,
)
from repdyn.tables.frames import loss_of_run, scalar
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
        self.phrases = read_phrases(options.class_file)
        self.models: list[list[ConvergenceMeasurements]] = []
        self.skipped: dict[str, pd.DataFrame] = {}
        self.with_heads = options.skip_blocks

    def measure(self, loaded: LoadedModel) -> None:
        self.models.append(measure_convergence(loaded, self.options, self.phrases))
        if self.options.skip_blocks:
            found = skip_blocks(loaded, self.options)
            self.skipped |= {of_stack(loaded.name, stack): table for stack, table in found.items()}

    def finish(self) -> None:
        if self.models:
            self._report_profiles()
        if self.options.before_after:
            self._report_change(*self.models)
        if self.options.store:
            self._report_correlations()
        self.write()

    def _report_profiles(self) -> None:
        draws = self.options.resamples, self.options.seed
        profiles, classes, falls, gaps = {}, {}, {}, {}
        for one in (one for stacks in self.models for one in stacks):
            name, [profile] = one.name, bootstrap([one.all_tokens], *draws)
            profiles[name], found = estimates.profile_table(profile), estimates.class_gaps(one.classes, self.phrases)
            classes[name], falls[name] = estimates.class_table(one, *draws), estimates.fall_table(one, *draws)
            print_title(name, f"{one.all_tokens.n_tokens:,} tokens of {len(one.all_tokens.counts):,} sequences")
            print_table(profiles[name])
            findings = [_describe_rate(profile), _describe_fit(profiles[name]), _describe_falls(falls[name])]
            print_line("\n".join([*findings, *(_describe_gap(pair, gap) for pair, gap in found.items()), ""]))
            if found:
                gaps |= {(name, *pair): gap for pair, gap in found.items()}
                self.figures[f"{file_name(name)}/gaps"] = draw.gap_figure(name, found)
        pairs = list(dict.fromkeys((first, second) for _, first, second in gaps))
        marked = list(dict.fromkeys(name for pair in pairs for name in pair if name != "no_sink"))
        self.figures["profiles"] = draw.profile_figure(profiles)
        self.figures["steps"] = draw.steps_figure(profiles)
        self.figures["bound"] = draw.bound_figure(profiles)
        self.figures["falls"] = draw.falls_figure(falls, marked)
        tables = {"profiles": profiles, "classes": classes, "falls": falls}
        self.tables.update({name: join_tables(of_models, "model") for name, of_models in tables.items()})
        if self.skipped:
            self.add("skipped", join_tables(self.skipped, "model"))
            self.figures["skipped"] = draw.skipped_figure(self.skipped, profiles)
            print_line("")
        if gaps:
            self.tables["gaps"] = join_tables(gaps, "model", "first", "second")
            self.add("key_layers", estimates.key_layers(self.tables["classes"]))
            self.figures["levels"] = draw.levels_figure(classes, pairs)
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
            change = estimates.estimate_change(*pair, self.options.resamples, self.options.seed)
            changes[title] = estimates.profile_table(change, with_fits=False)
            print_title(title)
            print_table(changes[title])
            print_line(f"{_describe_rate(change, '+')}\n")
            self.figures[f"{file_name(title)}/change"] = draw.change_figure(title, changes[title])
        self.tables["change"] = join_tables(changes, "model")

    def _report_correlations(self) -> None:
        frames, found = [], []
        for title, probe, rows in stored_runs(self.options):
            for of_run in self.options.scalars or [loss_of_run(rows).name]:
                try:
                    table = estimates.summaries_with(rows, _stored(rows, of_run))
                    of_table = estimates.correlations(table)
                except ValueError as error:
                    raise ValueError(f"{title} on the probe {probe[:8]}, {of_run}: {error}") from error
                print_title(title, f"{len(table)} checkpoints; correlation with {of_run}")
                print_table(of_table)
                print_line("Checkpoints of one training are not independent: these correlations have no p-value.\n")
                keys = {"run": title, "probe": probe, "scalar": of_run}
                frames.append(table.reset_index().assign(**keys))
                found.append(of_table.assign(**keys))
                path = f"{file_name(title)}/{file_name(of_run)}_{probe[:8]}"
                self.figures[path] = draw.correlation_figure(title, of_run, table, of_table)
        self.tables["summaries"] = pd.concat(frames, ignore_index=True)
        self.tables["correlations"] = pd.concat(found, ignore_index=True)


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
    class_file: Path | None = None,
    long_sentences: bool = False,
    skip_blocks: bool = False,
    layers: str | None = None,
    resamples: Count = 1000,
    seed: Annotated[int, at_least(0)] = 0,
    before_after: bool = False,
    store: Place | None = None,
    scalars: list[str] | None = None,
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
        class_file: Further classes: YAML {name: [word or phrase, ...]}, or CSV with the columns class and phrase.
        long_sentences: Make sentences of up to 512 tokens, and of random words of the model's vocabulary, by length.
        skip_blocks: Measure loss and final alignment without each block, too, on up to 4,096 tokens.
        layers: Pattern of the blocks' names, such as "layers.*" (default: detected).
        resamples: Of the bootstrap.
        seed: Of the bootstrap.
        before_after: Compare two models: the second minus the first.
        store: Runs or a store with the metric alignment, for its correlation with the loss.
        scalars: Other stored scalars to correlate with, such as val/loss (default: the loss).
        run: Some of the store's runs (default: every run).

    Examples:
      repdyn study convergence bert-base-uncased distilbert-base-uncased -o FOLDER
      repdyn study convergence gpt2 --text builtin --sentences 0 -o FOLDER
      repdyn study convergence RUN --revisions step100,step1000 --before-after -o F
      repdyn study convergence --store RUN/repdyn -o FOLDER
    """
    run_study(ConvergenceStudy, loading, locals())


def _stored(rows: pd.DataFrame, name: str) -> pd.Series:
    values = scalar(rows, name)
    if values.empty:
        known = sorted(rows.loc[rows["layer"].isna(), "metric"].dropna().unique())
        raise ValueError(f"expected a stored scalar, got {name}; stored are {', '.join(known) or 'none'}")
    return values


def _describe_rate(profile: Estimate, sign: str = "") -> str:
    rate = profile.map(estimates.average_rate)
    low, high = rate.interval
    return f"average rate {rate.values:{sign}.4f} [{low:.4f}, {high:.4f}]"


def _describe_fit(profile: pd.DataFrame) -> str:
    steps, fit = (profile[column].to_numpy(float)[:-1] for column in ("gradient", "isotonic_fit"))
    above, largest = np.flatnonzero(fit > steps + 1e-12), int(steps.argmax())
    text = f"largest step {steps[largest]:.4f} (layer {largest} to {largest + 1}), last step {steps[-1]:.4f}"
    if not len(above):
        return f"{text}; the isotonic fit is nowhere above the gradient"
    return f"{text}; the isotonic fit is above the gradient, and so no lower bound, at {_layers(above)}"


def _describe_falls(falls: pd.DataFrame) -> str:
    ever = select(falls, layer=estimates.ANY_STEP, **{"class": "all"}).set_index("more_than")["share"]
    sizes = ", ".join(f"{share:.1%} by more than {size:g}" for size, share in ever.items())
    return f"tokens whose cosine to their final vector falls at some step: {sizes}"


def _describe_gap(pair: tuple[str, str], gap: pd.DataFrame) -> str:
    difference, is_significant = gap["gap"].to_numpy(float), gap["p_holm"].to_numpy(float) < estimates.THRESHOLD
    higher = {pair[0]: is_significant & (difference > 0), pair[1]: is_significant & (difference < 0)}
    found = [f"{name} higher at {_layers(np.flatnonzero(chosen))}" for name, chosen in higher.items() if chosen.any()]
    test = f"{gap['test'].iloc[0]}, {gap['n'].iloc[0]}, Holm, {estimates.THRESHOLD:.0%}"
    return f"{pair[0]} against {pair[1]} ({test}): {' and '.join(found) or 'no layer differs'}"


def _layers(numbers: np.ndarray) -> str:
    return f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers.tolist()))}"

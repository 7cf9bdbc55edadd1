"""``repdyn study convergence``: alignment profiles, gaps between classes, changes, and correlation with the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pandas as pd
from cyclopts import Parameter
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from repdyn.figures.drawing import entitle
from repdyn.probe.design import CLASS_OPTIONS
from repdyn.reading import LoadedModel, file_name
from repdyn.store import find_store
from repdyn.studies.convergence_measurements import (
    SUMMARIES,
    THRESHOLD,
    ConvergenceMeasurements,
    ProfileEstimate,
    class_gaps,
    class_table,
    estimate_change,
    estimate_profile,
    loss_correlations,
    measure_convergence,
    summaries_with_loss,
)
from repdyn.studies.study import (
    Folder,
    Output,
    Study,
    join_tables,
    layer_axis,
    line_with_band,
    print_line,
    print_table,
    print_title,
    run_study,
    series_colour,
)
from repdyn.tables.frames import by_stack, loss_of_run
from repdyn.tables.runs import select
from repdyn.tables.style import LOSS_COLOUR, SEQUENTIAL, SUBSET_COLOURS, of_stack, styled
from repdyn.text.corpus import DEFAULT_TEXT
from repdyn.utils.arguments import Count, ModelOptions, Models, Place, at_least

_BARS = "#9ecae1"
_BAND = "Band: 95 % interval of a bootstrap over sequences."
_MAX_MARKED = 40


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
            print_profile(one, profile, found)
            self.output.figures[f"{file_name(name)}/gradient"] = gradient_figure(name, profile)
            if found:
                gaps |= {(name, *pair): gap for pair, gap in found.items()}
                self.output.figures[f"{file_name(name)}/gaps"] = gap_figure(name, found)
        profiles = {name: profile.table for name, profile in estimates.items()}
        self.output.figures["profiles"] = profile_figure(profiles)
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
            print_title(title)
            print_table(change.table)
            print_line(f"average rate {change.rate:+.4f} [{change.rate_low:.4f}, {change.rate_high:.4f}]\n")
            changes[title] = change.table
            self.output.figures[f"{file_name(title)}/change"] = change_figure(title, change.table)
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
    measured: ConvergenceMeasurements, profile: ProfileEstimate, gaps: Mapping[tuple[str, str], pd.DataFrame]
) -> None:
    """Print the profile of a model layer by layer, and the gaps between its classes."""
    tokens, sequences = measured.all_tokens.n_tokens, len(measured.all_tokens.counts)
    print_title(measured.name, f"{tokens:,} tokens of {sequences:,} sequences")
    print_table(profile.table)
    print_line(f"average rate {profile.rate:.4f} [{profile.rate_low:.4f}, {profile.rate_high:.4f}]")
    print_line(_describe_fit(profile.table))
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


def _describe_gap(pair: tuple[str, str], gap: pd.DataFrame) -> str:
    difference, is_significant = gap["gap"].to_numpy(float), gap["p_holm"].to_numpy(float) < THRESHOLD
    higher = {pair[0]: is_significant & (difference > 0), pair[1]: is_significant & (difference < 0)}
    found = [f"{name} higher at {_layers(np.flatnonzero(chosen))}" for name, chosen in higher.items() if chosen.any()]
    test = f"{gap['test'].iloc[0]}, {gap['n'].iloc[0]}, Holm, {THRESHOLD:.0%}"
    return f"{pair[0]} against {pair[1]} ({test}): {' and '.join(found) or 'no layer differs'}"


def _layers(numbers: np.ndarray) -> str:
    return f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers.tolist()))}"


@styled
def profile_figure(profiles: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw alignment against depth, a line for each model; against layers if all have the same number of them."""
    figure = Figure(figsize=(7.5, 4.5))
    axes = figure.subplots()
    same_depth = len({len(table) for table in profiles.values()}) == 1
    for number, (name, table) in enumerate(profiles.items()):
        depth = table["layer"] / (1 if same_depth else len(table) - 1)
        _draw_profile(axes, depth, table, "alignment", series_colour(number), label=name)
    if same_depth:
        layer_axis(axes)
    else:
        axes.set_xlabel("relative depth (layer / last layer)")
    axes.set_ylabel("mean cosine to the last layer")
    axes.legend()
    entitle(figure, "Alignment with the last layer", _BAND)
    return figure


@styled
def gradient_figure(name: str, profile: ProfileEstimate) -> Figure:
    """Draw the steps of a profile, with their isotonic fit and their lower envelope."""
    figure = Figure(figsize=(7.5, 4.5))
    axes = figure.subplots()
    steps = profile.table.head(-1)
    errors = steps["gradient"] - steps["gradient_low"], steps["gradient_high"] - steps["gradient"]
    bars = {"color": _BARS, "capsize": 3, "label": "gradient"}
    axes.bar(steps["layer"], steps["gradient"], 0.6, yerr=np.maximum(errors, 0), **bars)
    axes.axhline(profile.rate, color="0.5", linestyle=":", label=f"average rate {profile.rate:.4f}")
    look: dict[str, Any] = {"baseline": None, "linewidth": 2, "zorder": 3}
    edges = np.arange(len(steps) + 1) - 0.5
    axes.stairs(steps["isotonic_fit"], edges, color=SUBSET_COLOURS[0], label="isotonic fit", **look)
    axes.stairs(steps["lower_envelope"], edges, color=LOSS_COLOUR, linestyle="--", label="lower envelope", **look)
    axes.axhline(0, color="black", linewidth=0.8)
    layer_axis(axes)
    axes.set_ylabel("gradient: alignment gained\nfrom this layer to the next")
    axes.legend()
    entitle(figure, f"{name}: steps of the alignment", "Bars: 95 % interval of a bootstrap over sequences.")
    return figure


@styled
def gap_figure(name: str, gaps: Mapping[tuple[str, str], pd.DataFrame]) -> Figure:
    """Draw a panel for each pair of classes; markers are filled where the gap is significant."""
    figure = Figure(figsize=(7.5, 1.2 + 2.4 * len(gaps)))
    panels = figure.subplots(len(gaps), sharex=True, squeeze=False)[:, 0]
    for number, (axes, ((first, second), gap)) in enumerate(zip(panels, gaps.items(), strict=True)):
        colour, is_significant = series_colour(number), gap["p_holm"].to_numpy(float) < THRESHOLD
        errors = gap["gap"] - gap["gap_low"], gap["gap_high"] - gap["gap"]
        axes.axhline(0, color="black", linewidth=0.8)
        axes.errorbar(gap["layer"], gap["gap"], errors, color=colour, capsize=2)
        looks = {f"adjusted p < {THRESHOLD}": colour, "not significant": "white"}
        for (label, fill), chosen in zip(looks.items(), (is_significant, ~is_significant), strict=True):
            if chosen.any():
                look = {"color": colour, "markerfacecolor": fill, "label": label}
                axes.plot(gap["layer"][chosen], gap["gap"][chosen], "o", **look)
        axes.set_title(f"{first} minus {second}: {gap['test'].iloc[0]}, {gap['n'].iloc[0]}")
        axes.set_ylabel("gap of alignment")
        axes.legend(fontsize=8)
    layer_axis(panels[-1])
    entitle(figure, f"{name}: alignment of one class minus that of another", "Bars: 95 % interval of the test.")
    return figure


@styled
def change_figure(title: str, change: pd.DataFrame) -> Figure:
    """Draw how the alignment and its steps differ between two checkpoints."""
    figure = Figure(figsize=(7.5, 6.0))
    panels = figure.subplots(2, sharex=True)
    for axes, column, colour in zip(panels, ("alignment", "gradient"), SUBSET_COLOURS, strict=False):
        rows = change.dropna(subset=column)
        _draw_profile(axes, rows["layer"], rows, column, colour)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_ylabel(f"difference of {column}")
    layer_axis(panels[1])
    entitle(figure, title, _BAND)
    return figure


@styled
def loss_figure(name: str, table: pd.DataFrame, correlations: pd.DataFrame, loss: str) -> Figure:
    """Draw each summary of a profile against the loss of that title, checkpoint by checkpoint."""
    figure = Figure(figsize=(9, 6.5))
    panels = figure.subplots(2, -(-len(SUMMARIES) // 2)).ravel()
    for axes, (summary, found) in zip(panels, correlations.iterrows(), strict=True):
        axes.plot(table["loss"], table[summary], color="0.8", linewidth=1, zorder=1)
        axes.scatter(table["loss"], table[summary], c=np.arange(len(table)), cmap=SEQUENTIAL, zorder=2)
        axes.set_title(f"{summary}: Spearman {found['spearman']:.2f}, Pearson {found['pearson']:.2f}")
        axes.set_xlabel(loss, color=LOSS_COLOUR)
    entitle(figure, f"{name}: convergence and loss", f"{len(table)} checkpoints, from dark (first) to light (last).")
    return figure


def _draw_profile(axes: Axes, x: ArrayLike, table: pd.DataFrame, column: str, colour: str, **look: Any) -> None:
    look |= {"color": colour, "marker": "o", "markersize": 4 if len(table) <= _MAX_MARKED else 0, "band_alpha": 0.25}
    line_with_band(axes, x, table[column], table[f"{column}_low"], table[f"{column}_high"], **look)

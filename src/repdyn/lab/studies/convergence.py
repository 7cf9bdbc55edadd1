"""``repdyn study convergence``: alignment profiles, falls, classes, changes, blocks left out, and
correlations.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import pandas as pd
from cyclopts import Parameter
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from repdyn.activations import LoadedModel, file_name
from repdyn.lab.studies import convergence_measurements as measured
from repdyn.lab.studies.arguments import checked
from repdyn.lab.studies.bootstrap import Estimate, bootstrap
from repdyn.lab.studies.convergence_measurements import FALLS, THRESHOLD, ClassCosines
from repdyn.lab.studies.panels import (
    facets,
    layer_axis,
    line_with_band,
    panels,
    series_colour,
    zero_line,
)
from repdyn.lab.studies.result import StudyResult, join_tables
from repdyn.lab.studies.study import (
    Study,
    Subjects,
    named,
    read_groups,
    require_subjects,
    select,
    stored_runs,
    text_probe,
)
from repdyn.probe import Probe
from repdyn.probe.corpus import DEFAULT_TEXT
from repdyn.probe.design import CLASS_OPTIONS, class_names
from repdyn.utils.arguments import Count, ModelOptions, Place, at_least
from repdyn.utils.printing import plural
from repdyn.views.tables.frames import loss_of_run, scalar
from repdyn.views.tables.style import LOSS_COLOUR, SUBSET_COLOURS

RELATIVE_DEPTH = "relative depth (layer / last layer)"
_BARS = "#9ecae1"
_BAND = "Band: 95% interval of a bootstrap over sequences."
_MAX_MARKED = 40
_MOST_TICKS = 16


class ConvergenceStudy(Study):
    """Study of how the tokens of a model approach their states at the last layer."""

    def __init__(
        self,
        *,
        text: str,
        sequence_length: int,
        max_vectors: int,
        classes: Sequence[str],
        sentences: int,
        class_file: Path | None,
        long_sentences: bool,
        skip_blocks: bool,
        resamples: int,
        seed: int,
        before_after: bool,
        store: Place | None,
        scalars: Sequence[str] | None,
        run: Sequence[str] | None,
    ) -> None:
        super().__init__()
        self.text = text
        self.sequence_length = sequence_length
        self.max_vectors = max_vectors
        self.classes = class_names(classes)
        self.sentences = sentences
        self.long_sentences = long_sentences
        self.with_heads = skip_blocks
        self.draws = (resamples, seed)
        self.before_after = before_after
        self.store = store
        self.scalars = scalars
        self.stored = run
        self.phrases: dict[str, list[str]] = {}
        if class_file:
            groups = read_groups(class_file, "class", "phrase")
            self.phrases = groups.groupby("class", sort=False)["phrase"].agg(list).to_dict()
        self.measured: dict[str, dict[str, ClassCosines]] = {}
        self.probes: list[str] = []
        self.skipped: dict[str, pd.DataFrame] = {}

    def measure(self, loaded: LoadedModel) -> None:
        try:
            # of all classes at once, so that they are of the same tokens; an error if one of them
            # is too rare
            probe = self._probe(loaded, self.max_vectors, self.classes, self.phrases)
        except ValueError:
            probe = self._probe_of_what_is_there(loaded)
        self.probes.append(probe.hash)
        classes = [name for name in (*self.classes, *self.phrases) if name in probe.classes]
        cosines = measured.convergence_of_text(loaded, probe, classes)
        if self.sentences:
            cosines |= measured.convergence_of_sentences(
                loaded, self.sentences, are_long=self.long_sentences
            )
        self.measured[loaded.name] = cosines
        if self.with_heads:
            # the model runs once for each block, hence on fewer tokens
            few = self._probe(loaded, min(self.max_vectors, measured.MAX_SKIPPED))
            self.skipped[loaded.name] = measured.skip_blocks(loaded, few)

    def _probe_of_what_is_there(self, loaded: LoadedModel) -> Probe:
        """Return the probe of the classes that the text has enough tokens of, and say which ones
        are left out.
        """
        self._probe(loaded, self.max_vectors)  # what is wrong with the text itself is an error
        classes = []
        phrases = {}
        for name in [*self.classes, *self.phrases]:
            of_file = {name: self.phrases[name]} if name in self.phrases else {}
            try:
                self._probe(loaded, self.max_vectors, [] if of_file else [name], of_file)
            except ValueError as error:
                self.show(f"left out, class {name!r}: {error}")
            else:
                phrases |= of_file
                classes += [] if of_file else [name]
        return self._probe(loaded, self.max_vectors, classes, phrases)

    def _probe(
        self,
        loaded: LoadedModel,
        max_vectors: int,
        classes: Sequence[str] = (),
        phrases: Mapping[str, Sequence[str]] | None = None,
    ) -> Probe:
        return text_probe(
            loaded,
            self.text,
            sequence_length=self.sequence_length,
            max_vectors=max_vectors,
            classes=classes,
            phrases=phrases,
        )

    def finish(self) -> None:
        if self.measured:
            self._report_profiles()
        if self.before_after:
            self._report_change()
        if self.store:
            self._report_correlations()
        self.complete()

    def _report_profiles(self) -> None:
        classes = {
            name: measured.class_table(cosines, *self.draws)
            for name, cosines in self.measured.items()
        }
        falls = {
            name: measured.fall_table(cosines, *self.draws)
            for name, cosines in self.measured.items()
        }
        profiles = {}
        gaps = {}
        for name, cosines in self.measured.items():
            sums = cosines["all"].alignment
            [profile] = bootstrap([sums], *self.draws)
            profiles[name] = measured.profile_table(profile)
            of_pairs = measured.class_gaps(cosines, self.phrases)
            self.show_title(name, f"{sums.n_tokens:,} tokens of {len(sums.counts):,} sequences")
            self.show(profiles[name])
            of_gaps = (_describe_gap(pair, gap) for pair, gap in of_pairs.items())
            falling = _describe_falls(falls[name])
            self.show("\n".join([_describe_rate(profile), falling, *of_gaps, ""]))
            if of_pairs:
                gaps |= {(name, *pair): gap for pair, gap in of_pairs.items()}
                self.figures[f"{file_name(name)}/gaps"] = gap_figure(name, of_pairs)
        # each once, in the order of the models
        pairs = list(dict.fromkeys((first, second) for _, first, second in gaps))
        marked = [name for name in dict.fromkeys(chain(*pairs)) if name != "no_sink"]
        self.figures["profiles"] = profile_figure(profiles)
        self.figures["steps"] = steps_figure(profiles)
        self.figures["bound"] = bound_figure(profiles)
        self.figures["falls"] = falls_figure(falls, marked)
        tables = {"profiles": profiles, "classes": classes, "falls": falls}
        self.tables.update(
            {name: join_tables(of_models, "model") for name, of_models in tables.items()}
        )
        if self.skipped:
            self.add("skipped", join_tables(self.skipped, "model"))
            self.figures["skipped"] = skipped_figure(self.skipped, profiles)
            self.show("")
        if gaps:
            self.tables["gaps"] = join_tables(gaps, "model", "first", "second")
            self.add("key_layers", measured.key_layers(self.tables["classes"]))
            self.figures["levels"] = levels_figure(classes, pairs)
            self.show("")

    def _report_change(self) -> None:
        of_all = {name: cosines["all"].alignment for name, cosines in self.measured.items()}
        layers = [
            (probe, probe_cosines.sums.shape)
            for probe, probe_cosines in zip(self.probes, of_all.values(), strict=True)
        ]
        # each stack of the first model, then each of the second: the same number if they are one
        # model
        n_stacks = len(layers) // 2
        if layers[:n_stacks] != layers[n_stacks:]:
            raise ValueError(
                f"expected two checkpoints of one model, got {', '.join(of_all)}: they differ in "
                "their layers, or in the tokens that they cut the text into"
            )
        changes = {}
        for probe_cosines, other in zip(of_all, [*of_all][n_stacks:], strict=False):
            title = f"{other} minus {probe_cosines}"
            # of the same sequences, so that the differences are paired
            earlier, later = bootstrap(
                [of_all[name] for name in (probe_cosines, other)], *self.draws
            )
            change = later.map(np.subtract, earlier)
            changes[title] = measured.profile_table(change, with_fits=False)
            self.show_title(title)
            self.show(changes[title])
            self.show(f"{_describe_rate(change, '+')}\n")
            self.figures[f"{file_name(title)}/change"] = change_figure(title, changes[title])
        self.tables["change"] = join_tables(changes, "model")

    def _report_correlations(self) -> None:
        summaries = []
        tables = []
        for title, probe, rows in stored_runs(cast(Place, self.store), self.stored):
            for of_run in self.scalars or [loss_of_run(rows)[0]]:
                try:
                    values = scalar(rows, of_run)
                    metrics = rows.loc[rows["layer"].isna(), "metric"].dropna().unique()
                    if values.empty:
                        stored = ", ".join(sorted(metrics)) or "none"
                        raise ValueError(
                            f"expected a stored scalar, got {of_run}; stored are {stored}"
                        )
                    table = measured.summaries_with(rows, values)
                    of_table = measured.correlations(table)
                except ValueError as error:
                    raise ValueError(
                        f"{title} on the probe {probe[:8]}, {of_run}: {error}"
                    ) from error
                self.show_title(title, f"{len(table)} checkpoints; correlation with {of_run}")
                self.show(of_table)
                self.show(
                    "Checkpoints of one training are not independent: these correlations have no "
                    "p-value.\n"
                )
                keys = {"run": title, "probe": probe, "scalar": of_run}
                summaries.append(table.reset_index().assign(**keys))
                tables.append(of_table.assign(**keys))
        self.tables["summaries"] = pd.concat(summaries, ignore_index=True)
        self.tables["correlations"] = pd.concat(tables, ignore_index=True)


@checked
def convergence(
    models: Subjects = (),
    /,
    *,
    loading: ModelOptions = ModelOptions(),
    text: str = DEFAULT_TEXT,
    sequence_length: Annotated[int, at_least(2)] = 128,
    max_vectors: Annotated[int, at_least(3)] = 16384,
    classes: Annotated[Sequence[str], Parameter(choices=CLASS_OPTIONS)] = ("words",),
    sentences: Annotated[int, at_least(0)] = 1000,
    class_file: Path | None = None,
    long_sentences: bool = False,
    skip_blocks: bool = False,
    resamples: Count = 1000,
    seed: Annotated[int, at_least(0)] = 0,
    before_after: bool = False,
    store: Place | None = None,
    scalars: list[str] | None = None,
    run: list[str] | None = None,
) -> StudyResult:
    """Study convergence: how tokens approach their states at the last layer, and at what rate.

    Args:
        text: Use enwik8, builtin, or a path.
        sequence_length: Tokens in a sequence, at most the model's context.
        max_vectors: Tokens of the text.
        classes: Word classes to compare; words for all of them, or none.
        sentences: Generated sentences of each kind, simple and complex; 0 for none.
        class_file: Further classes: YAML {name: [word or phrase, ...]}, or CSV with the columns
            class and phrase.
        long_sentences: Make sentences of up to 512 tokens, and of random words of the model's
            vocabulary, by length.
        skip_blocks: Measure loss and final alignment without each block, too, on up to 4,096
            tokens.
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
    require_subjects(models, store, run)
    if before_after and len(named(models)) != 2:
        raise ValueError(
            f"expected two models with before_after=, got {len(named(models))}; name first and "
            "second"
        )
    study = ConvergenceStudy(
        text=text,
        sequence_length=sequence_length,
        max_vectors=max_vectors,
        classes=classes,
        sentences=sentences,
        class_file=class_file,
        long_sentences=long_sentences,
        skip_blocks=skip_blocks,
        resamples=resamples,
        seed=seed,
        before_after=before_after,
        store=store,
        scalars=scalars,
        run=run,
    )
    return study.run(models, loading)


def _describe_rate(profile: Estimate, sign: str = "") -> str:
    rate = profile.map(
        lambda alignment: (alignment[..., -1] - alignment[..., 0]) / (alignment.shape[-1] - 1)
    )
    low, high = rate.interval
    return f"average rate {rate.values:{sign}.4f} [{low:.4f}, {high:.4f}]"


def _describe_falls(falls: pd.DataFrame) -> str:
    """Return how many tokens ever turn away from their final vector, by how much."""
    ever = select(falls, layer=measured.ANY_STEP, **{"class": "all"})
    shares = ever.set_index("more_than")["share"]
    sizes = ", ".join(f"{share:.1%} by more than {size:g}" for size, share in shares.items())
    return f"tokens whose cosine to their final vector falls at some step: {sizes}"


def _describe_gap(pair: tuple[str, str], gap: pd.DataFrame) -> str:
    difference = gap["gap"].to_numpy(float)
    is_significant = gap["p_holm"].to_numpy(float) < THRESHOLD
    higher = {
        pair[0]: is_significant & (difference > 0),
        pair[1]: is_significant & (difference < 0),
    }
    at = {name: np.flatnonzero(chosen).tolist() for name, chosen in higher.items() if chosen.any()}
    sides = [
        f"{name} higher at {plural(len(of), 'layer')} {', '.join(map(str, of))}"
        for name, of in at.items()
    ]
    test = f"{gap['test'].iloc[0]}, {gap['n'].iloc[0]}, Holm, {THRESHOLD:.0%}"
    return f"{pair[0]} against {pair[1]} ({test}): {' and '.join(sides) or 'no layer differs'}"


def profile_figure(profiles: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw alignment against depth, a line for each model; against layers if all have the same
    number of them.
    """
    figure, axes = panels("Alignment with the last layer", _BAND, (7.5, 4.5))
    same_depth = len({len(table) for table in profiles.values()}) == 1
    for number, (name, table) in enumerate(profiles.items()):
        depth = table["layer"] / (1 if same_depth else len(table) - 1)
        _draw_profile(axes, table, "alignment", depth, **_look(number), label=name)
    axes.set(xlabel=RELATIVE_DEPTH, ylabel="mean cosine to the last layer")
    if same_depth:
        layer_axis(axes)
    axes.legend()
    return figure


def steps_figure(profiles: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the steps of each profile in a panel of its own, with their isotonic fit and their lower
    envelope.
    """

    def draw(axes: Axes, table: pd.DataFrame) -> None:
        steps = table.head(-1)
        bars = {"color": _BARS, "capsize": 3, "label": "gradient"}
        axes.bar(steps["layer"], steps["gradient"], 0.6, yerr=_errors(steps, "gradient"), **bars)
        axes.axhline(
            float(np.mean(steps["gradient"])), color="0.5", linestyle=":", label="average rate"
        )
        look: dict[str, Any] = {
            "edges": np.arange(len(steps) + 1) - 0.5,
            "baseline": None,
            "linewidth": 2,
            "zorder": 3,
        }
        axes.stairs(steps["isotonic_fit"], color=SUBSET_COLOURS[0], label="isotonic fit", **look)
        axes.stairs(
            steps["lower_envelope"],
            color=LOSS_COLOUR,
            linestyle="--",
            label="lower envelope",
            **look,
        )
        zero_line(axes)
        layer_axis(axes)

    caption = "Bars: 95% interval of a bootstrap over sequences."
    label = "gradient: alignment gained\nfrom this layer to the next"
    return facets("Steps of the alignment", caption, profiles, draw, label)


def bound_figure(profiles: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the gradient of each layer against its alignment, with the largest non-decreasing
    function below it.
    """

    def draw(axes: Axes, table: pd.DataFrame) -> None:
        steps = table.head(-1).sort_values("alignment")
        edges = [min(0.0, steps["alignment"].iloc[0]), *steps["alignment"]]
        axes.stairs(
            steps["bound"], edges, baseline=None, color=LOSS_COLOUR, linewidth=2, label="bound f"
        )
        axes.plot(
            steps["alignment"],
            steps["gradient"],
            "o",
            color=SUBSET_COLOURS[0],
            label="a layer, by its number",
        )
        _number(axes, steps["layer"], steps["alignment"], steps["gradient"])
        zero_line(axes)
        axes.set_xlabel("alignment of the layer, A")

    caption = "The bound f is the largest non-decreasing function with G >= f(A)."
    return facets(
        "Gradient against alignment", caption, profiles, draw, "gradient to the next layer, G"
    )


def falls_figure(tables: Mapping[str, pd.DataFrame], marked: Sequence[str]) -> Figure:
    """Draw the share of each model's tokens that fall at each step and at any, by size, with some
    classes as marks.
    """

    def draw(axes: Axes, table: pd.DataFrame) -> None:
        places = {layer: x for x, layer in enumerate(table["layer"].unique())}
        for number, size in enumerate(FALLS):
            shown = select(table, more_than=size, **{"class": "all"})
            look: dict[str, Any] = {"yerr": _errors(shown, "share"), "ecolor": "0.4"}
            look |= {
                "color": (_BARS, SUBSET_COLOURS[0])[number],
                "label": f"all tokens, by more than {size:g}",
            }
            axes.bar(range(len(shown)), shown["share"], 0.7 - 0.3 * number, **look)
        for number, of_class in enumerate(name for name in marked if name in set(table["class"])):
            rows = select(table, more_than=FALLS[0], **{"class": of_class})
            marks = {
                "marker": "<>^vsDPX*"[number % 9],
                "color": f"C{number + 1}",
                "s": 22,
                "zorder": 3,
            }
            axes.scatter(
                [places[layer] for layer in rows["layer"]], rows["share"], label=of_class, **marks
            )
        every = -(-len(places) // _MOST_TICKS)
        shown = [
            (x, layer)
            for layer, x in places.items()
            if x % every == 0 or layer == measured.ANY_STEP
        ]
        axes.set_xticks([x for x, _ in shown], [f"{layer}" for _, layer in shown])
        axes.set_xlabel("layer before the step; any: at least one step")

    caption = (
        "Marks: falls of any size, by class. Grey lines: 95% interval of a bootstrap over "
        "sequences."
    )
    label = "share of tokens whose cosine\nto the final vector falls"
    return facets("Tokens that do not approach their final vector", caption, tables, draw, label)


def levels_figure(tables: Mapping[str, pd.DataFrame], pairs: Sequence[tuple[str, str]]) -> Figure:
    """Draw the alignment of classes that are compared, a panel for each pair and all models in
    each.
    """

    def draw(axes: Axes, pair: tuple[str, str]) -> None:
        for number, (name, table) in enumerate(tables.items()):
            for of_class, dashes in zip(pair, ("-", "--"), strict=True):
                rows = select(table, **{"class": of_class})
                look = {**_look(number), "linestyle": dashes, "label": f"{name}, {of_class}"}
                _draw_profile(
                    axes, rows, "alignment", rows["layer"] / max(1, len(rows) - 1), **look
                )
        axes.set_xlabel(RELATIVE_DEPTH)

    panels = {" and ".join(pair): pair for pair in pairs}
    return facets(
        "Alignment by class", _BAND, panels, draw, "mean cosine to the last layer", legends=True
    )


def skipped_figure(
    skipped: Mapping[str, pd.DataFrame], profiles: Mapping[str, pd.DataFrame]
) -> Figure:
    """Draw final alignment and loss without each block against the gradient that the block adds, a
    column a model.
    """
    title, size = "What is lost without one block", (2.5 + 3.4 * len(skipped), 6.4)
    layout = {"sharey": "row", "squeeze": False}
    figure, grid = panels(
        title, "Numbers: the block left out, from 1.", size, 2, len(skipped), **layout
    )
    for column, (name, table) in zip(grid.T, skipped.items(), strict=True):
        without = table.tail(-1)
        gradient = profiles[name]["gradient"].to_numpy()[without["layer"]]
        for axes, quantity in zip(column, ("final_alignment", "loss"), strict=True):
            axes.plot(gradient, without[quantity], "o", color=SUBSET_COLOURS[0])
            _number(axes, without["layer"] + 1, gradient, without[quantity])
            axes.set_xlabel("gradient that the block adds, G")
            axes.axhline(table[quantity].iloc[0], color="0.5", linestyle=":", label="whole model")
        column[0].set_title(name)
        if reason := table["reason"].iloc[0]:
            column[1].set_xticks([])
            column[1].text(
                0.5,
                0.5,
                f"no loss:\n{reason}",
                transform=column[1].transAxes,
                ha="center",
                wrap=True,
            )
    grid[0, 0].set_ylabel("cosine of the last states to\nthose of the whole model")
    grid[1, 0].set_ylabel("loss")
    grid[0, 0].legend(fontsize=8)
    return figure


def gap_figure(name: str, gaps: Mapping[tuple[str, str], pd.DataFrame]) -> Figure:
    """Draw a panel for each pair of classes; markers are filled where the gap is significant."""
    title = f"{name}: alignment of one class minus that of another"
    layout = {"sharex": True, "sharey": True, "squeeze": False}
    figure, grid = panels(
        title, "Bars: 95% interval of the test.", (7.5, 1.2 + 2.4 * len(gaps)), len(gaps), **layout
    )
    for number, (axes, ((first, second), gap)) in enumerate(
        zip(grid[:, 0], gaps.items(), strict=True)
    ):
        colour = series_colour(number)
        is_significant = gap["p_holm"].to_numpy(float) < THRESHOLD
        zero_line(axes)
        axes.errorbar(gap["layer"], gap["gap"], _errors(gap, "gap"), color=colour, capsize=2)
        looks = {f"adjusted p < {THRESHOLD}": colour, "not significant": "white"}
        for (label, fill), chosen in zip(
            looks.items(), (is_significant, ~is_significant), strict=True
        ):
            if chosen.any():
                look = {"color": colour, "markerfacecolor": fill, "label": label}
                axes.plot(gap["layer"][chosen], gap["gap"][chosen], "o", **look)
        axes.set(
            title=f"{first} minus {second}: {gap['test'].iloc[0]}, {gap['n'].iloc[0]}",
            ylabel="gap of alignment",
        )
        axes.legend(fontsize=8)
    layer_axis(grid[-1, 0])
    return figure


def change_figure(title: str, change: pd.DataFrame) -> Figure:
    """Draw how the alignment and its steps differ between two checkpoints."""
    figure, grid = panels(title, _BAND, (7.5, 6.0), 2, sharex=True)
    for axes, column, colour in zip(grid, ("alignment", "gradient"), SUBSET_COLOURS, strict=False):
        _draw_profile(axes, change.dropna(subset=column), column, color=colour, marker="o")
        axes.set_ylabel(f"difference of {column}")
    zero_line(*grid)
    layer_axis(grid[1])
    return figure


def _look(number: int) -> dict[str, Any]:
    """Return colour and marker of one of several models."""
    return {"color": series_colour(number), "marker": "os^Dv"[number % 5]}


def _draw_profile(
    axes: Axes, table: pd.DataFrame, column: str, x: ArrayLike | None = None, **look: Any
) -> None:
    look |= {"markersize": 4 if len(table) <= _MAX_MARKED else 0, "band_alpha": 0.25}
    line_with_band(axes, table, column, x=x, **look)


def _errors(table: pd.DataFrame, column: str) -> np.ndarray:
    """Return the distances of the ends of an interval to the value, (2, n)."""
    return np.maximum(
        (table[column] - table[f"{column}_low"], table[f"{column}_high"] - table[column]), 0
    )


def _number(axes: Axes, numbers: ArrayLike, x: ArrayLike, y: ArrayLike) -> None:
    """Write a number beside each point, unless that of another point is there."""
    places = np.column_stack([np.asarray(x, float), np.asarray(y, float)])
    # of the width and the height of what is drawn
    fractions = np.array([0.04, 0.05])
    room = np.ptp(places, axis=0) * fractions
    taken: list[np.ndarray] = []
    for number, point in zip(np.asarray(numbers), places, strict=True):
        if not any((np.abs(point - other) < room).all() for other in taken):
            taken.append(point)
            axes.annotate(f"{number}", tuple(point), (4, 4), textcoords="offset points", fontsize=8)

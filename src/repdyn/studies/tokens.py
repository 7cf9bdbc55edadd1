"""``repdyn study tokens``: the tokens of a sentence and the words of a text against the vocabulary, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from repdyn.figures.drawing import entitle
from repdyn.reading import LoadedModel
from repdyn.studies.study import (
    Folder,
    Output,
    Study,
    layer_axis,
    line_with_band,
    print_line,
    print_table,
    print_title,
    run_study,
    select,
    stem,
)
from repdyn.studies.token_measurements import (
    NEIGHBOURS,
    capture_sentence,
    compare_sentence,
    higher_share,
    measure_text,
    without_causal_mask,
)
from repdyn.tables.frames import by_stack
from repdyn.tables.style import SEQUENTIAL, SUBSET_COLOURS, of_stack, styled
from repdyn.utils.arguments import Count, ModelOptions, Models, at_least

_MAX_LAYERS = 9
STATES = {"attention": "after the attention", "block": "after the block (0: input of the first)"}
_COLOURS = {"function": SUBSET_COLOURS[0], "content": SUBSET_COLOURS[3]}
_QUANTITIES = {"cosine": "cosine to the token's own embedding", "rank": "closer rows of the vocabulary (rank)"}
# more cells than that leave no room for text
_MAX_CELLS = 400
_MAX_NAMED = 20


class TokenStudy(Study):
    """The tokens of a sentence, and the words of a text, against the vocabulary."""

    def measure(self, loaded: LoadedModel) -> None:
        self._measure(loaded, loaded.name, loaded.folder_name)
        if self.options.no_causal_mask:
            with without_causal_mask(loaded, self.options.sentence):
                self._measure(loaded, f"{loaded.name} (no causal mask)", f"{loaded.folder_name}-no-causal-mask")

    def _measure(self, loaded: LoadedModel, name: str, folder: str) -> None:
        output = Output()
        self._add_sentence(loaded, name, output)
        if self.options.text:
            self._add_text(loaded, name, output)
        self.write(output, folder)

    def _add_sentence(self, loaded: LoadedModel, name: str, output: Output) -> None:
        sentence, positions = self.options.sentence, self.options.positions
        states = capture_sentence(loaded, sentence, self.options.layers)
        found = compare_sentence(loaded, states, k=self.options.nearest, with_positions=positions)
        output.tables.update(tokens=found.table, nearest=found.nearest)
        caption = "Compared with the input embeddings"
        caption += ", the token's position embedding added to every row." if positions else "."
        nearest = by_stack(found.nearest)
        for stack, table in by_stack(found.table).items():
            title, prefix = of_stack(name, stack), "" if stack is None else f"{stack} "
            print_sentence(title, table, [why for why in states.reasons if why.startswith(f"{prefix}layer ")])
            for quantity in ("cosine", "rank"):
                figure = trajectory_figure(title, sentence, table, quantity, caption)
                output.figures[stem(quantity, stack)] = figure
            output.figures[stem("heatmap", stack)] = heatmap(title, sentence, table, nearest[stack], caption)

    def _add_text(self, loaded: LoadedModel, name: str, output: Output) -> None:
        text, tables = measure_text(loaded, self.options)
        output.tables.update(tables)
        steps = by_stack(tables["steps"])
        for stack, table in by_stack(tables["classes"]).items():
            title = of_stack(name, stack)
            print_title(f"{title}: words of {text}")
            print_table(table, "layer", "state", "class", "tokens", "cosine", "rank", "kept")
            print_line("mean cosine of two tokens' steps, of one sequence and of different sequences:")
            print_table(steps[stack], "layer", "within", "between")
            output.figures[stem("classes", stack)] = class_figure(title, text, table)
            output.figures[stem("steps", stack)] = step_figure(title, text, steps[stack])
        print_density(tables["density"])
        output.figures["density"] = density_figure(name, text, tables["density"])


def tokens(
    models: Models,
    /,
    *,
    output: Folder,
    loading: ModelOptions = ModelOptions(),
    sentence: str = "The £1 coin lies on the table.",
    nearest: Count = 10,
    positions: bool = False,
    no_causal_mask: bool = False,
    layers: str | None = None,
    text: str | None = None,
    sequence_length: Annotated[int, at_least(3)] = 128,
    max_vectors: Annotated[int, at_least(3)] = 2048,
) -> None:
    """Study tokens: those of a sentence against the vocabulary, layer by layer, by cosine and rank.

    Every model has a folder of its own in FOLDER, with tables as CSV and figures as PNG and SVG.

    Args:
        models: Hub repository, also as REPOSITORY@REVISION, folder of save_pretrained, or folder of a run.
        output: Folder for tables and figures.
        sentence: Its tokens are followed.
        nearest: Number of nearest tokens.
        positions: Add the token's position embedding to every row of the vocabulary.
        no_causal_mask: Measure a decoder once more, with every token seeing all others.
        layers: Pattern of the blocks' names, such as "layers.*" (default: detected).
        text: Compare function words and content words of enwik8, builtin, or a path too.
        sequence_length: Tokens in a sequence of the text, at most the model's context.
        max_vectors: Tokens of the text.

    Examples:
      repdyn study tokens roberta-base -o FOLDER
      repdyn study tokens gpt2 --sentence "Time flies." --nearest 20 -o FOLDER
      repdyn study tokens roberta-base --positions -o FOLDER
      repdyn study tokens gpt2 --no-causal-mask -o FOLDER
      repdyn study tokens roberta-base --text builtin -o FOLDER
    """
    run_study(TokenStudy, loading, locals())


def print_sentence(name: str, table: pd.DataFrame, reasons: Sequence[str]) -> None:
    """Print the rank of each token's own embedding after some of the blocks, and missing states after attention."""
    blocks = select(table, state="block")
    layers = np.unique(np.linspace(0, blocks["layer"].nunique() - 1, _MAX_LAYERS).round().astype(int))
    ranks = blocks.pivot(index=["position", "token"], columns="layer", values="rank").iloc[:, layers]
    print_title(f"{name}: rank of each token's own embedding among the input embeddings")
    print_table(ranks.add_prefix("layer ").reset_index("token"))
    if reasons:
        print_line(f"no state after attention at {len(reasons)} layers, as at {reasons[0]}")


def print_density(table: pd.DataFrame) -> None:
    """Print how crowded it is around function words and content words."""
    classes = {label: rows["density"].to_numpy() for label, rows in table.groupby("class")}
    means = [f"{label} words {values.mean():.4f} ({len(values):,} tokens)" for label, values in classes.items()]
    print_line(f"mean cosine to the {NEIGHBOURS} nearest other input embeddings: {', '.join(means)}")
    if len(classes) == 2:
        share = higher_share(classes["function"], classes["content"])
        frequency = pd.Series(table["count"]).corr(pd.Series(table["density"]), method="spearman")
        print_line(
            f"the embedding of a function word is in the denser place in {share:.1%} of all pairs with a content word; "
            f"rank correlation of density and occurrences {frequency:.2f}"
        )


@styled
def trajectory_figure(name: str, sentence: str, table: pd.DataFrame, quantity: str, caption: str) -> Figure:
    """Draw a line for each token across the layers, after the attention and after the block."""
    figure = Figure(figsize=(11, 5.2))
    states = _states(table)
    panels = figure.subplots(1, len(states), sharex=True, sharey=True, squeeze=False)[0]
    colours = _token_colours(len(set(table["position"])))
    for axes, state in zip(panels, states, strict=True):
        for (_, line), colour in zip(select(table, state=state).groupby("position"), colours, strict=True):
            look = {"color": colour, "marker": "o", "markersize": 3, "linewidth": 1.4}
            axes.plot(line["layer"], line[quantity], label=line["token"].iloc[0], **look)
        axes.set_title(STATES[state])
    layer_axis(*panels)
    if quantity == "rank":
        _rank_axis(panels[0], max(table["rank"]))
    panels[0].set_ylabel(_QUANTITIES[quantity])
    if len(colours) <= _MAX_NAMED:
        figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside right center", fontsize=9)
    entitle(figure, f"{name}: {sentence}", caption)
    return figure


def _token_colours(n_tokens: int) -> Sequence[Any]:
    """Return distinct colours, or for many tokens those of a sequential colour map."""
    if n_tokens > _MAX_NAMED:
        return [colormaps[SEQUENTIAL](number / (n_tokens - 1)) for number in range(n_tokens)]
    return [colormaps["tab10" if n_tokens <= 10 else "tab20"](number) for number in range(n_tokens)]


@styled
def heatmap(name: str, sentence: str, table: pd.DataFrame, nearest: pd.DataFrame, caption: str) -> Figure:
    """Draw tokens by layers, after the block: colour is the cosine, text the nearest token of the vocabulary."""
    blocks = select(table, state="block")
    cosines = blocks.pivot(index="position", columns="layer", values="cosine")
    names = select(nearest, state="block", place=1).pivot(index="position", columns="layer", values="nearest")
    n_tokens, n_layers = cosines.shape
    figure = Figure(figsize=(min(2.2 + 0.85 * n_layers, 16), 1.8 + 0.32 * n_tokens))
    axes = figure.subplots()
    image = axes.imshow(cosines, cmap=SEQUENTIAL, aspect="auto", interpolation="nearest")
    axes.grid(False)
    axes.set_yticks(range(n_tokens), blocks.groupby("position")["token"].first())
    axes.set_xticks(range(n_layers), cosines.columns)
    axes.set_xlabel("layer")
    figure.colorbar(image, ax=axes, label=_QUANTITIES["cosine"])
    if cosines.size <= _MAX_CELLS:
        values = cosines.to_numpy()
        middle = (values.min() + values.max()) / 2
        for (row, column), cosine in np.ndenumerate(values):
            look = {"color": "black" if cosine > middle else "white", "fontsize": 7, "parse_math": False}
            axes.text(column, row, str(names.iloc[row, column])[:10], ha="center", va="center", **look)
        caption += " Cells: nearest token of the vocabulary."
    entitle(figure, f"{name}: {sentence}", caption)
    return figure


@styled
def class_figure(name: str, text: str, table: pd.DataFrame) -> Figure:
    """Draw function words and content words across the layers of one stack: mean cosine, ranks, share of rank 0."""
    states = _states(table)
    figure = Figure(figsize=(11, 9))
    panels = figure.subplots(3, len(states), sharex=True, sharey="row", squeeze=False)
    for (cosine, rank, kept), state in zip(panels.T, states, strict=True):
        for label, rows in select(table, state=state).groupby("class", sort=False):
            layers = rows["layer"].to_numpy()
            look = {"marker": "o", "markersize": 3.5, "color": _COLOURS[str(label)]}
            cosine.plot(layers, rows["cosine"], label=f"{label} words ({rows['tokens'].iloc[0]:,} tokens)", **look)
            line_with_band(rank, layers, rows["rank"], rows["rank_q25"], rows["rank_q75"], band_alpha=0.18, **look)
            kept.plot(layers, rows["kept"], **look)
        cosine.set_title(STATES[state])
        kept.set_ylim(0, 1.03)
    layer_axis(*panels[-1])
    panels[0, 0].set_ylabel("mean cosine to the\ntoken's own embedding")
    panels[1, 0].set_ylabel("closer rows of the\nvocabulary (rank)")
    panels[2, 0].set_ylabel("share of rank 0")
    _rank_axis(panels[1, 0], max(table["rank_q75"]))
    panels[0, -1].legend()
    entitle(figure, f"{name}: words of {text}", "Ranks: median, and the band from the first to the third quartile.")
    return figure


@styled
def step_figure(name: str, text: str, table: pd.DataFrame) -> Figure:
    """Draw the mean cosine between the steps of two tokens, within a sequence and between sequences."""
    figure = Figure(figsize=(7.5, 4.2))
    axes = figure.subplots()
    labels = {"within": "of one sequence", "between": "of different sequences"}
    for (column, label), colour in zip(labels.items(), SUBSET_COLOURS, strict=False):
        axes.plot(table["layer"] + 0.5, table[column], marker="o", markersize=4, color=colour, label=label)
    axes.axhline(0, color="black", linewidth=0.8)
    layer_axis(axes, label="between layers")
    axes.set_ylabel("mean cosine of two tokens' steps")
    axes.set_ylim(min(0.0, 1.1 * float(table[["within", "between"]].min(axis=None))), 1)
    axes.legend()
    entitle(figure, f"{name}: do tokens move together?", f"Steps from one layer to the next, {text}; 1: all alike.")
    return figure


@styled
def density_figure(name: str, text: str, table: pd.DataFrame) -> Figure:
    """Draw how crowded it is around the embeddings of function words and content words, and against frequency."""
    figure = Figure(figsize=(11, 4.4))
    left, right = figure.subplots(1, 2, sharey=True)
    edges = np.histogram_bin_edges(table["density"], bins=24)
    for label, rows in table.groupby("class", sort=False):
        look = {"color": _COLOURS[str(label)], "label": f"{label} words ({len(rows):,} tokens of the vocabulary)"}
        shares = np.full(len(rows), 1 / len(rows))
        left.hist(rows["density"], edges, weights=shares, orientation="horizontal", alpha=0.55, **look)
        right.scatter(rows["count"], rows["density"], s=9, alpha=0.6, linewidths=0, **look)
    left.set_xlabel("share of the class")
    left.set_ylabel(f"mean cosine to the {NEIGHBOURS} nearest other rows")
    left.legend()
    right.set_xscale("log")
    right.set_xlabel("occurrences in the text")
    entitle(figure, f"{name}: how crowded the input embeddings are", f"Tokens of {text}.")
    return figure


def _rank_axis(axes: Axes, highest: float) -> None:
    """Make a y axis logarithmic from 1 on, with 0 below it."""
    axes.set_yscale("symlog", linthresh=1, linscale=0.3)
    axes.set_ylim(-0.15, max(2.0, 1.5 * highest))
    powers = [10.0**power for power in range(9) if 10.0**power <= axes.get_ylim()[1]]
    axes.set_yticks([0, *powers], ["0", *(f"{power:,.0f}" for power in powers)])
    axes.yaxis.set_minor_locator(NullLocator())


def _states(table: pd.DataFrame) -> list[str]:
    return [state for state in STATES if state in set(table["state"])]

"""``repdyn study tokens``: the tokens of a sentence and the words of a text against the vocabulary,
layer by layer.
"""

from dataclasses import replace
from typing import Annotated, Any, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from repdyn.activations import LoadedModel
from repdyn.lab.studies import token_measurements as measured
from repdyn.lab.studies.arguments import checked
from repdyn.lab.studies.panels import (
    draw_heads,
    heads_size,
    layer_axis,
    line_with_band,
    panels,
    zero_line,
)
from repdyn.lab.studies.result import StudyResult
from repdyn.lab.studies.study import Study, Subjects, require_subjects, select, text_probe
from repdyn.lab.studies.token_measurements import (
    ANY,
    CLASSES,
    GAP,
    QUANTITIES,
    STATES,
    Quantity,
    measure_of,
)
from repdyn.utils.arguments import Count, ModelOptions, at_least
from repdyn.views.tables.style import SUBSET_COLOURS

_COLOURS = {"function": SUBSET_COLOURS[0], "content": SUBSET_COLOURS[3], GAP: "0.35"}
_MARKED: dict[str, Any] = {"marker": "o", "markersize": 3.5}
_MAX_LAYERS = 9
_MAX_NAMED = 30
_DASHES = ("-", "--", ":")


class TokenStudy(Study):
    """The tokens of a sentence, and the words of a text, against the vocabulary."""

    def __init__(
        self,
        *,
        sentence: str,
        nearest: int,
        positions: bool,
        distance: bool,
        no_causal_mask: bool,
        text: str | None,
        sequence_length: int,
        max_vectors: int,
    ) -> None:
        super().__init__()
        self.sentence = sentence
        self.nearest = nearest
        self.positions = positions
        self.distance = distance
        self.no_causal_mask = no_causal_mask
        self.text = text
        self.sequence_length = sequence_length
        self.max_vectors = max_vectors

    def measure(self, loaded: LoadedModel) -> None:
        self._measure(loaded)
        if self.no_causal_mask:
            with measured.without_causal_mask(loaded, self.sentence):
                self._measure(replace(loaded, name=f"{loaded.name}-no-causal-mask"))

    def _measure(self, loaded: LoadedModel) -> None:
        self._add_sentence(loaded)
        if self.text:
            self._add_text(loaded)
        self.complete(loaded.folder_name)

    def _add_sentence(self, loaded: LoadedModel) -> None:
        name = loaded.name
        sentence = self.sentence
        positions = self.positions
        states = measured.capture_sentence(loaded, sentence)
        settings = {"k": self.nearest, "by_distance": self.distance}
        comparison = measured.compare_sentence(loaded, states, with_positions=positions, **settings)
        table = comparison.table
        caption = "Compared with the input embeddings."
        self.tables.update(tokens=table, nearest=comparison.nearest)
        if positions:
            caption = (
                "Compared with the input embeddings, the token's position embedding added to every "
                "row."
            )
            self.show_title(f"{name}: what the embeddings of positions change, mean over tokens")
            self.add(
                "positions",
                position_effect(comparison, measured.compare_sentence(loaded, states, **settings)),
            )
        self.show_title(f"{name}: rank of each token's own embedding among the input embeddings")
        self.show(_ranks(table))
        if states.reasons:
            self.show(
                f"no state after attention at {len(states.reasons)} layers, as at "
                f"{states.reasons[0]}"
            )
        for quantity in (measure_of(table), "rank"):
            self.figures[quantity] = trajectory_figure(name, table, sentence, quantity, caption)

    def _add_text(self, loaded: LoadedModel) -> None:
        name = loaded.name
        probe = text_probe(
            loaded,
            cast(str, self.text),
            sequence_length=self.sequence_length,
            max_vectors=self.max_vectors,
            classes=CLASSES,
        )
        text = probe.name
        tables = measured.measure_text(loaded, probe, by_distance=self.distance)
        self.tables.update(tables)
        measure = measure_of(tables["classes"])
        self.show_title(f"{name}: words of {text}")
        self.show(tables["classes"], "layer", "state", "class", "tokens", measure, "rank", "kept")
        self.show(
            "largest change of each class from one layer to the next, and the part that is taken "
            "back later:"
        )
        self.show(tables["jumps"])
        self.figures["classes"] = class_figure(name, tables["classes"], text)
        self.figures["changes"] = change_figure(name, tables["changes"], text, measure)
        self.figures["points"] = points_figure(
            name, tables["points"], tables["changes"], text, measure
        )
        self.figures["steps"] = step_figure(name, tables["steps"], text)
        self.figures["density"] = density_figure(name, text, tables["density"])
        if len(tables["attention"]):
            self.figures["attention"] = attention_figure(name, tables["attention"], text)


@checked
def tokens(
    models: Subjects,
    /,
    *,
    loading: ModelOptions = ModelOptions(),
    sentence: str = "The £1 coin lies on the table.",
    nearest: Count = 10,
    positions: bool = False,
    distance: bool = False,
    no_causal_mask: bool = False,
    text: str | None = None,
    sequence_length: Annotated[int, at_least(3)] = 128,
    max_vectors: Annotated[int, at_least(3)] = 2048,
) -> StudyResult:
    """Study tokens: those of a sentence against the vocabulary, layer by layer, by cosine and rank.

    Args:
        sentence: Its tokens are followed.
        nearest: Number of nearest tokens.
        positions: Add the token's position embedding to every row of the vocabulary, and report
            what that changes.
        distance: Compare by Euclidean distance instead of the cosine.
        no_causal_mask: Measure a decoder once more, with every token seeing all others.
        text: Compare function and content words of enwik8, builtin, or a path, and the attention
            they receive, too.
        sequence_length: Tokens in a sequence of the text, at most the model's context.
        max_vectors: Tokens of the text.

    Examples:
      repdyn study tokens roberta-base -o FOLDER
      repdyn study tokens gpt2 --sentence "Time flies." --nearest 20 -o FOLDER
      repdyn study tokens roberta-base --positions -o FOLDER
      repdyn study tokens gpt2 --no-causal-mask -o FOLDER
      repdyn study tokens roberta-base --text builtin -o FOLDER
    """
    require_subjects(models)
    study = TokenStudy(
        sentence=sentence,
        nearest=nearest,
        positions=positions,
        distance=distance,
        no_causal_mask=no_causal_mask,
        text=text,
        sequence_length=sequence_length,
        max_vectors=max_vectors,
    )
    return study.run(models, loading)


def position_effect(
    added: measured.VocabularyComparison, plain: measured.VocabularyComparison
) -> pd.DataFrame:
    """Return what adding the embeddings of positions changes, layer by layer, as means over the
    tokens of a sentence.

    Columns: layer, state, change (of the cosine or distance), size (of it, without sign), ranks
    (change of rank, without sign), same_rank (share of tokens), same_nearest (share of tokens with
    the same nearest token).
    """
    keys = ["layer", "state"]
    measure = measure_of(plain.table)
    change = added.table[measure] - plain.table[measure]
    ranks = (added.table["rank"] - plain.table["rank"]).abs()
    nearest = [select(one.nearest, place=1)["nearest_id"].to_numpy() for one in (added, plain)]
    columns = {"change": change, "size": change.abs(), "ranks": ranks, "same_rank": ranks == 0}
    table = plain.table[keys].assign(**columns, same_nearest=nearest[0] == nearest[1])
    return pd.DataFrame(table.groupby(keys, sort=False, as_index=False).mean())


def _ranks(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rank of each token's own embedding after some of the blocks."""
    blocks = select(table, state="block")
    layers = np.unique(
        np.linspace(0, blocks["layer"].nunique() - 1, _MAX_LAYERS).round().astype(int)
    )
    ranks = blocks.pivot(index=["position", "token"], columns="layer", values="rank").iloc[
        :, layers
    ]
    return ranks.add_prefix("layer ").reset_index("token")


def _by_state(
    title: str, caption: str, size: tuple[float, float], table: pd.DataFrame, *labels: str
) -> tuple[Figure, np.ndarray, list[pd.DataFrame]]:
    """Return a figure with a column of panels for each state of a table and a row for each label,
    and its rows.
    """
    states = sorted(set(table["state"]))
    layout = {"sharex": True, "sharey": "row", "squeeze": False}
    figure, grid = panels(title, caption, size, len(labels), len(states), **layout)
    for axes, state in zip(grid[0], states, strict=True):
        axes.set_title(STATES[state])
    for axes, label in zip(grid[:, 0], labels, strict=True):
        axes.set_ylabel(label)
    return figure, grid, [select(table, state=state) for state in states]


def trajectory_figure(
    name: str, table: pd.DataFrame, sentence: str, quantity: Quantity, caption: str
) -> Figure:
    """Draw a line for each token across the layers, after the attention and after the block."""
    n_tokens = len(set(table["position"]))
    is_rank = quantity == "rank"
    caption += " Grey: rank 0, a line for each token." if is_rank else ""
    figure, [grid], of_states = _by_state(
        f"{name}: {sentence}", caption, (11, 5.2), table, QUANTITIES[quantity]
    )
    for axes, rows in zip(grid, of_states, strict=True):
        for number, (position, line) in enumerate(rows.groupby("position")):
            values = line[quantity]
            if is_rank:  # tokens of rank 0 would hide each other: each has a height of its own
                values = values + np.where(
                    values == 0, -(cast(int, position) + 1) / (n_tokens + 1), 0
                )
            look = {"color": f"C{number % 10}", "linestyle": _DASHES[number // 10 % len(_DASHES)]}
            look |= {"marker": "o", "markersize": 3, "linewidth": 1.4}
            axes.plot(line["layer"], values, label=line["token"].iloc[0], **look)
        if is_rank:
            _rank_axis(axes, max(table["rank"]), lanes=True)
    layer_axis(*grid)
    if n_tokens <= _MAX_NAMED:
        figure.legend(*grid[-1].get_legend_handles_labels(), loc="outside right center", fontsize=9)
    return figure


def class_figure(name: str, table: pd.DataFrame, text: str) -> Figure:
    """Draw function words and content words across the layers of one stack: mean cosine, ranks,
    share of rank 0.
    """
    measure, caption = (
        measure_of(table),
        "Ranks: median, and the band from the first to the third quartile.",
    )
    labels = (
        f"mean {measure} to the\ntoken's own embedding",
        "closer rows of the\nvocabulary (rank)",
        "share of rank 0",
    )
    figure, grid, of_states = _by_state(
        f"{name}: words of {text}", caption, (11, 9), table, *labels
    )
    for (cosine, rank, top1_match), of_state in zip(grid.T, of_states, strict=True):
        for label, rows in of_state.groupby("class", sort=False):
            look = {**_MARKED, "color": _COLOURS[str(label)]}
            of_class = f"{label} words ({rows['tokens'].iloc[0]:,} tokens)"
            cosine.plot(rows["layer"], rows[measure], label=of_class, **look)
            line_with_band(rank, rows, "rank", ("rank_q25", "rank_q75"), band_alpha=0.18, **look)
            top1_match.plot(rows["layer"], rows["kept"], **look)
        top1_match.set_ylim(0, 1.03)
    layer_axis(*grid[-1])
    _rank_axis(grid[1, 0], max(table["rank_q75"]))
    grid[0, -1].legend()
    return figure


def change_figure(name: str, table: pd.DataFrame, text: str, measure: str) -> Figure:
    """Draw how rank and cosine of each class change from layer to layer, and the share of tokens
    that come nearer.
    """
    labels = {
        "log_rank_change": "change of log10(1 + rank)",
        f"{measure}_change": f"change of the {measure}",
    }
    labels["nearer_by_0.01"] = "share of tokens nearer\nby more than 0.01"
    title = f"{name}: how words of {text} move"
    caption = "From the layer before. Band: 95% interval of a bootstrap over sequences."
    figure, grid, of_states = _by_state(title, caption, (11, 9), table, *labels.values())
    for column, of_state in zip(grid.T, of_states, strict=True):
        # what is of all layers together has no place on the axis of layers
        is_of_layer = of_state["layer"] != ANY
        of_layers = of_state.loc[is_of_layer]
        for axes, quantity in zip(column, labels, strict=True):
            for of_class in (*CLASSES, GAP)[: 2 if quantity.startswith("nearer") else 3]:
                rows = select(of_layers, quantity=quantity, **{"class": of_class})
                look = {**_MARKED, "color": _COLOURS[of_class], "label": of_class}
                look |= {"linestyle": ":", "linewidth": 1.2} if of_class == GAP else {}
                line_with_band(
                    axes, rows, "value", ("low", "high"), x=rows["layer"].astype(int), **look
                )
    zero_line(*grid.flat)
    layer_axis(*grid[-1])
    grid[0, -1].legend(fontsize=8)
    return figure


def points_figure(
    name: str, points: pd.DataFrame, changes: pd.DataFrame, text: str, measure: Quantity
) -> Figure:
    """Draw rank against cosine (or distance), a point for each token and layer."""
    caption = f"A point for each layer and token, up to {measured.POINTS} tokens of a class. "
    caption += "Ranks per 0.01: all changes, summed."
    title = f"{name}: rank against {measure}, words of {text}"
    of_all = select(changes, quantity="ranks_per_0.01", layer=ANY)
    figure, [grid], of_states = _by_state(title, caption, (11, 4.8), points, QUANTITIES["rank"])
    for axes, of_state in zip(grid, of_states, strict=True):
        for of_class, rows in of_state.groupby("class", sort=False):
            per = select(of_all, state=rows["state"].iloc[0], **{"class": of_class})["value"].item()
            label = f"{of_class} words: {per:.3g} ranks per 0.01 of the {measure}"
            # ranks of 0 would lie on each other
            shown = rows["rank"].where(
                rows["rank"] > 0, -np.random.RandomState(0).random_sample(len(rows))
            )
            axes.scatter(
                rows[measure],
                shown,
                s=5,
                alpha=0.4,
                linewidths=0,
                color=_COLOURS[str(of_class)],
                label=label,
            )
        _rank_axis(axes, max(points["rank"]), lanes=True)
        axes.set_xlabel(QUANTITIES[measure])
        axes.legend(fontsize=8, markerscale=3)
    return figure


def attention_figure(name: str, table: pd.DataFrame, text: str) -> Figure:
    """Draw what attention each class of words receives, layer by layer and head by head."""
    heads = table.loc[(table["class"] == GAP) & table["head"].notna()].pivot(
        index="layer", columns="head"
    )
    values, low, high = (heads[column] for column in ("beyond", "beyond_low", "beyond_high"))
    width, height = heads_size(values)
    caption = "Left: mean over heads; dashed: what position alone explains; 1: even attention. "
    caption += "Right, bold: 95% interval without 0."
    title = f"{name}: attention received by words of {text}"
    size = (5 + width, max(4.2, height))
    figure, (left, right) = panels(title, caption, size, 1, 2, width_ratios=[5, width])
    for of_class in CLASSES:
        rows = select(table, head=None, **{"class": of_class})
        colour = _COLOURS[of_class]
        line_with_band(left, rows, "received", **_MARKED, color=colour, label=f"{of_class} words")
        left.plot(rows["layer"], rows["by_position"], color=colour, linestyle="--", linewidth=1.2)
    left.axhline(1, color="black", linewidth=0.8)
    left.set(ylim=(0, None), ylabel="attention received, times even attention")
    layer_axis(left)
    left.legend(fontsize=8)
    draw_heads(
        right, values, (low > 0) | (high < 0), "function minus content words,\nbeyond position"
    )
    return figure


def step_figure(name: str, table: pd.DataFrame, text: str) -> Figure:
    """Draw the mean cosine between the steps of two tokens, within a sequence and between
    sequences.
    """
    caption = f"Steps from one layer to the next, {text}; 1: all alike."
    figure, axes = panels(f"{name}: do tokens move together?", caption, (7.5, 4.2))
    pairs = {"within": "of one sequence", "between": "of different sequences"}
    for (column, label), colour in zip(pairs.items(), SUBSET_COLOURS, strict=False):
        axes.plot(
            table["layer"] + 0.5, table[column], marker="o", markersize=4, color=colour, label=label
        )
    zero_line(axes)
    layer_axis(axes, label="between layers")
    lowest = float(table[["within", "between"]].min(axis=None))
    axes.set(ylabel="mean cosine of two tokens' steps", ylim=(min(0.0, 1.1 * lowest), 1))
    axes.legend()
    return figure


def density_figure(name: str, text: str, table: pd.DataFrame) -> Figure:
    """Draw how crowded it is around the embeddings of function words and content words, and against
    frequency.
    """
    title = f"{name}: how crowded the input embeddings are"
    figure, (left, right) = panels(title, f"Tokens of {text}.", (11, 4.4), 1, 2, sharey=True)
    edges = np.histogram_bin_edges(table["density"], bins=24)
    for label, rows in table.groupby("class", sort=False):
        look = {
            "color": _COLOURS[str(label)],
            "label": f"{label} words ({len(rows):,} tokens of the vocabulary)",
        }
        shares = np.full(len(rows), 1 / len(rows))
        left.hist(
            rows["density"], edges, weights=shares, orientation="horizontal", alpha=0.55, **look
        )
        right.scatter(rows["count"], rows["density"], s=9, alpha=0.6, linewidths=0, **look)
    left.set(
        xlabel="share of the class",
        ylabel=f"mean cosine to the {measured.NEIGHBOURS} nearest other rows",
    )
    left.legend()
    right.set(xscale="log", xlabel="occurrences in the text")
    return figure


def _rank_axis(axes: Axes, highest: float, *, lanes: bool = False) -> None:
    """Make a y axis logarithmic from 1 on, with 0 below it, or with lanes from 0 to -1 for several
    lines of rank 0.
    """
    axes.set_yscale("symlog", linthresh=1, linscale=0.9 if lanes else 0.3)
    axes.set_ylim(-1 if lanes else -0.15, max(2.0, 1.5 * highest))
    powers = [10.0**power for power in range(9) if 10.0**power <= axes.get_ylim()[1]]
    axes.set_yticks([-0.5 if lanes else 0, *powers], ["0", *(f"{power:,.0f}" for power in powers)])
    axes.yaxis.set_minor_locator(NullLocator())
    if lanes:
        axes.axhspan(-1, 0, color="0.95", zorder=0)

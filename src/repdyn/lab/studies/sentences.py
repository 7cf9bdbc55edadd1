"""``repdyn study sentences``: vectors of paraphrases, of sentences with one thing changed, and of a
collection.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from sklearn.decomposition import PCA

from repdyn.activations import LoadedModel
from repdyn.lab.studies import sentence_measurements as measured
from repdyn.lab.studies.arguments import checked
from repdyn.lab.studies.panels import (
    layer_axis,
    legend_below,
    line_with_band,
    outline,
    panels,
    plane_figure,
    plane_table,
    series_colour,
    zero_line,
)
from repdyn.lab.studies.result import StudyResult
from repdyn.lab.studies.sentence_measurements import (
    FIRST,
    LAST,
    MAXIMUM,
    MEAN,
    SENSE,
    SentenceVectors,
    over_layers,
)
from repdyn.lab.studies.study import Study, Subjects, read_groups, require_subjects, select
from repdyn.utils.arguments import ModelOptions, at_least
from repdyn.views.tables.style import DIVERGING

_COLOURS = {FIRST: "#CC79A7", MEAN: "#0072B2", LAST: "#E69F00", MAXIMUM: "#009E73"}
SIGNIFICANT = 0.05
DrawnVector: TypeAlias = Literal["mean", "first", "last"]
_DRAWN: dict[DrawnVector, str] = {"mean": MEAN, "first": FIRST, "last": LAST}
_IN_CAPTIONS = {MEAN: "mean of the tokens", FIRST: "first token", LAST: "last token"}
_SHOWN_QUANTILES = (0.002, 0.998)
_MOST_COLOURS = 4
"""Groups that a plane tells apart; of more, all have one colour."""


class SentenceStudy(Study):
    """Vectors of sentences at every layer."""

    def __init__(
        self,
        *,
        groups: str,
        changes: str,
        collections: Sequence[str],
        n_texts: int,
        max_tokens: int,
        vector: DrawnVector,
        seed: int,
    ) -> None:
        super().__init__()
        self.drawn = _DRAWN[vector]
        self.max_tokens = max_tokens
        self.seed = seed
        of_groups = measured.BUILT_IN.get(groups, Path(groups))
        self.groups = measured.fill_slots(read_groups(of_groups, "group", "sentence"))
        of_changes = measured.BUILT_IN.get(changes, Path(changes))
        self.changes = read_groups(of_changes, "kind", "before", "after")
        self.collections = dict(measured.read_collection(source, n_texts) for source in collections)

    def measure(self, loaded: LoadedModel) -> None:
        self.show_title(loaded.name)
        self._add_groups(loaded)
        self._add_nonsense(loaded)
        self._add_changes(loaded)
        self._add_collections(loaded)
        self.complete(loaded.folder_name)

    def _add_groups(self, loaded: LoadedModel) -> None:
        sequences = self._encode(loaded, self.groups["sentence"])
        # paraphrases share words: what is told apart without a model is no merit of it
        baseline = measured.shared_token_cosines(sequences, loaded.tokenizer.all_special_ids)
        vectors = measured.sentence_vectors(loaded, sequences, "paraphrases")
        table = measured.separation_table(
            vectors, baseline, self.groups["group"].tolist(), seed=self.seed
        )
        self.tables["separation"] = table
        self.figures["separation"] = separation_figure(loaded.name, table)
        self.show("paraphrases at the last layer, and without a model:")
        self.show(
            table.groupby("vector", sort=False).tail(1),
            "vector",
            "within",
            "between",
            "effect",
            "nearest",
        )

    def _add_nonsense(self, loaded: LoadedModel) -> None:
        nonsense = measured.nonsense(len(self.groups), self.seed)
        texts = pd.concat(
            [self.groups[["sentence"]].assign(kind=SENSE), nonsense], ignore_index=True
        )
        vectors = self._vectors(loaded, texts["sentence"], "nonsense")
        kinds = texts["kind"].to_numpy()
        table = pd.DataFrame(over_layers(vectors, lambda x: measured.nonsense_rows(x, kinds)))
        self.tables["nonsense"] = table
        groups = self.groups["group"]
        # more groups than colours are drawn as one kind
        of_sense = groups if len(set(groups)) <= _MOST_COLOURS else [SENSE for _ in groups]
        labels = {"sentence": texts["sentence"].tolist(), "kind": [*of_sense, *nonsense["kind"]]}
        self.show(
            "nearest sentence is of the same side, sense or nonsense, and of the same kind of "
            "nonsense:"
        )
        self.show(_of_last(table), "vector", "nonsense", "kinds")
        self._add_plane(
            "plane_of_sentences", f"{loaded.name}: sentences and nonsense", vectors, labels
        )
        if of_sense is groups:
            labels = {"sentence": self.groups["sentence"].tolist(), "kind": groups.tolist()}
            self._add_plane("plane_of_groups", f"{loaded.name}: sentences", vectors, labels)

    def _add_changes(self, loaded: LoadedModel) -> None:
        seed, changes, kinds = self.seed, self.changes, self.changes["kind"].tolist()
        # each sentence is read once, however many changes it is part of
        sentences = pd.Index(changes[["before", "after"]].to_numpy().ravel("F")).unique()
        before, after = (
            sentences.get_indexer(changes[side].tolist()) for side in ("before", "after")
        )
        vectors = self._vectors(loaded, sentences, "changes")
        of_layers = over_layers(
            vectors, lambda x: measured.change_rows(x[before], x[after], changes, seed=seed)
        )
        self.tables["changes"] = table = pd.DataFrame(of_layers)
        of_layers = over_layers(
            vectors, lambda x: measured.kind_matrix(x[before], x[after], kinds, seed=seed)
        )
        self.tables["kinds_of_change"] = matrix = pd.DataFrame(of_layers)
        last = last_layer(vectors)
        drawn = vectors[last, self.drawn]
        title = f"{loaded.name}: what a change adds, {_IN_CAPTIONS[self.drawn]} after layer {last}"
        self.figures["plane_of_changes"] = differences_figure(
            title, drawn[after] - drawn[before], kinds
        )
        if len(matrix):
            self.figures["kinds_of_change"] = kinds_figure(loaded.name, matrix)
        if len(table):
            self.figures["changes"] = change_figure(loaded.name, table)
            self.show("cosine of two differences at the last layer:")
            self.show(_of_last(table), "vector", "change", "n", "within", "across", "p", "length")

    def _add_collections(self, loaded: LoadedModel) -> None:
        (name, *other), sizes = self.collections, [*map(len, self.collections.values())]
        labels = np.repeat([name, *other], sizes)
        vectors = self._vectors(
            loaded, [text for texts in self.collections.values() for text in texts], "texts"
        )
        table = pd.DataFrame(over_layers(vectors, lambda x: measured.collection_rows(x, labels)))
        self.tables["collections"], cosines = table, select(table, texts=name, quantity="cosine")
        last = last_layer(vectors)
        poolings = _poolings(table)
        at_last = {
            pooling: measured.collection_values(vectors[last, pooling], labels)
            for pooling in poolings
        }
        last_cosines = {pooling: values[name]["cosine"] for pooling, values in at_last.items()}
        self.figures["collection"] = collection_figure(loaded.name, cosines, last_cosines, name)
        self.show(f"cosine of two texts at the last layer ({name}):")
        self.show(_of_last(cosines), "vector", "mean", "q05", "median", "q95", "min", "positive")
        if other:
            title = f"{loaded.name}: two collections of texts"
            caption = self._add_plane(
                "plane_of_collections", title, vectors, {"texts": labels.tolist()}
            )
            of_drawn = at_last[self.drawn]
            self.figures["two_collections"] = collections_figure(title, caption, of_drawn)
            self.show(
                f"lengths, and pairs of texts, at the last layer ({_IN_CAPTIONS[self.drawn]}) of "
                f"{other[0]} as well:"
            )
            self.show(
                select(_of_last(table), vector=self.drawn),
                "texts",
                "quantity",
                "mean",
                "q05",
                "q95",
                "nearest",
            )

    def _add_plane(
        self, name: str, title: str, vectors: SentenceVectors, labels: dict[str, list[str]]
    ) -> str:
        """Add a plane of the vectors at the last layer, of those first ones that have labels, and
        coloured by the last label; return its caption.
        """
        last = last_layer(vectors)
        *_, colour = labels
        caption = f"{_IN_CAPTIONS[self.drawn]} after layer {last}"
        places = torch.from_numpy(vectors[last, self.drawn][: len(labels[colour])])
        self.tables[name] = plane_table(places, labels, self.seed)
        self.figures[name] = plane_figure(title, caption, self.tables[name], colour)
        return caption

    def _vectors(self, loaded: LoadedModel, texts: Iterable[str], title: str) -> SentenceVectors:
        return measured.sentence_vectors(loaded, self._encode(loaded, texts), title)

    def _encode(self, loaded: LoadedModel, sentences: Iterable[str]) -> list[list[int]]:
        limit = min(self.max_tokens, loaded.context)
        return loaded.tokenizer([*sentences], truncation=True, max_length=limit)["input_ids"]


def last_layer(vectors: SentenceVectors) -> int:
    """Return the number of the last layer."""
    return max(layer for layer, _ in vectors)


def _of_last(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the last layer."""
    return select(table, layer=table["layer"].max())


@checked
def sentences(
    models: Subjects,
    /,
    *,
    loading: ModelOptions = ModelOptions(),
    groups: str = "paraphrases",
    changes: str = "grammar",
    text: str = "builtin",
    other: str | None = None,
    texts: Annotated[int, at_least(3)] = 500,
    max_tokens: Annotated[int, at_least(2)] = 128,
    vector: DrawnVector = "mean",
    seed: Annotated[int, at_least(0)] = 0,
) -> StudyResult:
    """Study sentences: do vectors of paraphrases lie together, does one kind of change move them
    one way?

    The files of groups and changes are JSON, {"group": ["sentence", ...]} and {"kind": [["before",
    "after"], ...]}, or CSV with the columns group, sentence and kind, before, after.

    Args:
        groups: File of groups of paraphrases, or built-in ones: paraphrases (12 groups of 5), or
            templates (27, 27, 27 and 10 sentences). A sentence may have slots: "{Hello|Hi} there!"
            stands for two.
        changes: File of changed sentences, or built-in ones: grammar (number, negation, tense, he
            to she), or concepts (light, profession, gender, nationality, mood, laughter).
        text: Collection of texts: builtin, enwik8, or a path.
        other: Second collection, for comparison.
        texts: Paragraphs of each, spread evenly.
        max_tokens: Tokens of a sentence or paragraph; longer ones are cut off.
        vector: Vector of a sentence in the planes and in the figure of two collections: the mean of
            its tokens, the first one ([CLS] of BERT), or the last one.
        seed: Of bootstrap and permutations.

    Examples:
      repdyn study sentences bert-base-cased gpt2 -o FOLDER
      repdyn study sentences bert-base-cased --changes concepts -o FOLDER
      repdyn study sentences bert-base-cased --vector first -o FOLDER     of [CLS]
      repdyn study sentences gpt2 --groups templates -o FOLDER
      repdyn study sentences gpt2 --text enwik8 --other tweets.txt -o FOLDER
    """
    require_subjects(models)
    study = SentenceStudy(
        groups=groups,
        changes=changes,
        collections=[text] if other is None else [text, other],
        n_texts=texts,
        max_tokens=max_tokens,
        vector=vector,
        seed=seed,
    )
    return study.run(models, loading)


def separation_figure(name: str, table: pd.DataFrame) -> Figure:
    """Draw cosines within and between groups for each pooling, and how well they separate
    groups.
    """
    poolings = _poolings(table)
    n_panels = len(poolings) + 1
    title, caption = (
        f"{name}: paraphrases against other sentences",
        "bands: 95% of a bootstrap over groups",
    )
    figure, (*of_poolings, last) = panels(title, caption, (2.9 * n_panels + 0.6, 4.2), 1, n_panels)
    of_vectors = table.loc[table["vector"] != measured.SHARED_TOKENS, ["within_low", "between_low"]]
    lowest = float(of_vectors.to_numpy(float).min())
    look = {"marker": "o", "markersize": 3}
    for pooling, axes in zip(poolings, of_poolings, strict=True):
        rows = select(table, vector=pooling)
        line_with_band(axes, rows, "within", color="#009E73", label="paraphrases", **look)
        line_with_band(axes, rows, "between", color="#D55E00", label="other sentences", **look)
        axes.set(title=f"cosine: {pooling}", ylim=(min(0.0, lowest) - 0.02, 1.02))
        line_with_band(last, rows, "probability", color=_COLOURS[pooling], label=pooling, **look)
    figure.axes[0].legend(loc="lower left")
    baseline = select(table, vector=measured.SHARED_TOKENS)["probability"].item()
    last.axhline(baseline, label=measured.SHARED_TOKENS, color="0.4", linestyle="--", linewidth=1)
    last.set(title="paraphrases are closer: how often", ylim=(0.45, 1.02))
    last.legend(loc="lower right")
    layer_axis(*figure.axes)
    return figure


def change_figure(name: str, table: pd.DataFrame) -> Figure:
    """Draw how alike the differences of one kind of change are over the layers, a panel for each
    pooling.
    """
    poolings = _poolings(table)
    kinds = [kind for kind in table["change"].unique() if kind != measured.ALL_KINDS]
    title = f"{name}: does one kind of change move sentences one way?"
    caption = (
        f"hollow: not larger than across kinds (p >= {SIGNIFICANT}, permutation test, not "
        "corrected)"
    )
    size = 3.7 * len(poolings) + 1.4, 4.4
    figure, [grid] = panels(title, caption, size, 1, len(poolings), squeeze=False, sharey=True)
    for axes, pooling in zip(grid, poolings, strict=True):
        rows = select(table, vector=pooling)
        for number, change in enumerate(kinds):
            of_change = select(rows, change=change)
            colour = f"C{number % 10}"
            axes.plot(of_change["layer"], of_change["within"], color=colour, label=change)
            is_clear = of_change["p"] < SIGNIFICANT
            for chosen, fill in ((is_clear, colour), (~is_clear, "white")):
                look = {"color": colour, "markersize": 5, "markerfacecolor": fill}
                axes.plot(
                    of_change["layer"].where(chosen), of_change["within"].where(chosen), "o", **look
                )
        across = select(rows, change=measured.ALL_KINDS)
        axes.plot(
            across["layer"], across["across"], color="0.4", linestyle="--", label="different kinds"
        )
        axes.set_title(pooling)
    zero_line(*grid, color="0.7", zorder=0)
    grid[0].set_ylabel("mean cosine of two differences")
    legend_below(figure, grid[0])
    layer_axis(*grid)
    return figure


def kinds_figure(name: str, matrix: pd.DataFrame) -> Figure:
    """Draw the cosines of the mean differences of each two kinds at the last layer, and the largest
    over the layers.
    """
    poolings = _poolings(matrix)
    last = matrix["layer"].to_numpy(int).max()
    names = list(dict.fromkeys([*matrix["kind"], *matrix["other"]]))
    title = f"{name}: do two kinds of change point one way?"
    caption = (
        "bold: 95% interval of a bootstrap over the changes without 0; below, the four largest of "
        "the last layer"
    )
    layout = {"squeeze": False, "height_ratios": (1.15, 1)}
    figure, grid = panels(
        title, caption, (3.7 * len(poolings) + 1.0, 7.2), 2, len(poolings), **layout
    )
    for (above, below), pooling in zip(grid.T, poolings, strict=True):
        rows = select(matrix, vector=pooling)
        of_last = select(rows, layer=last)
        cells = of_last.pivot(index="other", columns="kind", values="cosine").reindex(
            names[1:], columns=names[:-1]
        )
        frame = (-0.5, len(names) - 1.5, len(names) - 0.5, 0.5)
        above.imshow(cells, cmap=DIVERGING, vmin=-1, vmax=1, extent=frame)
        for row in of_last.to_dict("records"):
            is_clear = row["low"] > 0 or row["high"] < 0
            look = {
                "weight": "bold" if is_clear else "normal",
                "alpha": 1 if is_clear else 0.6,
                "fontsize": 8,
            }
            at = names.index(row["kind"]), names.index(row["other"])
            above.text(*at, f"{row['cosine']:.2f}", ha="center", va="center", **look)
        above.set_xticks(range(len(names) - 1), names[:-1], rotation=40, ha="right")
        above.set_yticks(range(1, len(names)), names[1:])
        above.grid(visible=False)
        above.set_title(f"{pooling}, layer {last}")
        largest = of_last.assign(size=of_last["cosine"].abs()).nlargest(4, "size")
        for number, row in enumerate(largest.to_dict("records")):
            of_kinds = select(rows, kind=row["kind"], other=row["other"])
            look = {"color": f"C{number % 10}", "label": f"{row['kind']}, {row['other']}"}
            line_with_band(below, of_kinds, "cosine", ("low", "high"), band_alpha=0.12, **look)
        below.set_ylim(-1, 1)
        below.legend(fontsize=7, loc="lower left")
    zero_line(*grid[1], color="0.5")
    layer_axis(*grid[1])
    grid[1, 0].set_ylabel("cosine of two mean differences")
    return figure


def differences_figure(title: str, differences: np.ndarray, kinds: Sequence[str]) -> Figure:
    """Draw differences in the plane of two principal components, with an arrow for the mean of each
    kind.
    """
    # the randomised solver would draw the plane differently each time
    components = PCA(2, svd_solver="full").fit(differences)
    share = components.explained_variance_ratio_.sum()
    caption = f"PCA, {share:.0%} of the variance; arrows from no change (+) to the mean of a kind"
    figure, axes = panels(title, caption, (6.4, 5.4))
    # PCA moves its mean to 0: where no change would lie has to be computed
    [origin] = components.transform(np.zeros((1, differences.shape[1])))
    for number, kind in enumerate(dict.fromkeys(kinds)):
        is_of_kind = np.asarray(kinds) == kind
        places = components.transform(differences[is_of_kind])
        colour = f"C{number % 10}"
        axes.scatter(*places.T, color=colour, s=18, linewidths=0, alpha=0.7, label=kind)
        axes.annotate(
            "", places.mean(0), origin, arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2}
        )
    axes.plot(*origin, "k+", markersize=9)
    axes.set(xticks=[], yticks=[])
    legend_below(figure, axes, 3)
    return figure


def collection_figure(
    name: str, table: pd.DataFrame, at_last: dict[str, np.ndarray], source: str
) -> Figure:
    """Draw the cosines of all pairs of texts: quantiles over the layers, and the distribution at
    the last.
    """
    poolings = _poolings(table)
    last = table["layer"].to_numpy(int).max()
    n_panels = len(poolings) + 1
    caption = (
        f"{source}; {table['n'].to_numpy(int).max():,} pairs of texts; bands: 50, 90 and 98% of "
        "them"
    )
    title = f"{name}: how alike are any two texts?"
    size = (2.9 * n_panels + 0.6, 4.2)
    figure, (*of_poolings, right) = panels(title, caption, size, 1, n_panels)
    lowest = min(0.0, table["q01"].to_numpy(float).min())
    for pooling, axes in zip(poolings, of_poolings, strict=True):
        rows = select(table, vector=pooling)
        colour = _COLOURS[pooling]
        for low, high, alpha in (("q01", "q99", 0.12), ("q05", "q95", 0.2), ("q25", "q75", 0.3)):
            axes.fill_between(
                rows["layer"], rows[low], rows[high], color=colour, alpha=alpha, linewidth=0
            )
        axes.plot(rows["layer"], rows["median"], color=colour)
        axes.set(title=f"cosine: {pooling}", ylim=(lowest - 0.03, 1.02))
        heights, edges = np.histogram(at_last[pooling], np.linspace(-1, 1, 201))
        outline(right, heights / heights.max(), edges, pooling, color=colour)
    zero_line(*of_poolings, color="0.5")
    layer_axis(*of_poolings)
    right.axvline(0, color="0.5", linewidth=0.8)
    right.set(title="the last layer", xlabel=f"cosine at layer {last}", yticks=[])
    right.legend()
    return figure


def collections_figure(
    title: str, caption: str, values: dict[str, dict[str, np.ndarray]]
) -> Figure:
    """Draw lengths, distances, dot products and cosines of two collections, and of pairs of both,
    over each other.
    """
    figure, grid = panels(title, caption, (10.5, 3.4), 1, 4)
    for axes, quantity in zip(grid, ("length", "distance", "dot", "cosine"), strict=True):
        drawn = {texts: each[quantity] for texts, each in values.items() if quantity in each}
        # a few outliers would squeeze all else into one bin
        low, high = np.nanquantile(np.concatenate([*drawn.values()]), _SHOWN_QUANTILES)
        for number, (texts, of_pairs) in enumerate(drawn.items()):
            heights, edges = np.histogram(of_pairs, bins=60, range=(low, high), density=True)
            if texts == measured.BETWEEN:
                axes.stairs(heights, edges, color="0.35", linestyle="--", label=texts)
            else:
                outline(axes, heights, edges, texts, color=series_colour(number))
        axes.set(title="dot product" if quantity == "dot" else quantity, yticks=[])
    legend_below(figure, grid[-1])
    return figure


def _poolings(table: pd.DataFrame) -> list[str]:
    return [pooling for pooling in measured.POOLINGS if pooling in set(table["vector"])]

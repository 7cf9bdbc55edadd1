"""``repdyn study sentences``: vectors of paraphrases, of sentences with one thing changed, and of a collection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from sklearn.decomposition import PCA

from repdyn.figures.drawing import entitle
from repdyn.reading import LoadedModel
from repdyn.studies.panels import layer_axis, line_with_band
from repdyn.studies.planes import plane_figure, plane_table
from repdyn.studies.sentence_measurements import (
    ALL_KINDS,
    BUILT_IN_CHANGES,
    BUILT_IN_GROUPS,
    CONCEPTS,
    FIRST,
    LAST,
    MAXIMUM,
    MEAN,
    POOLINGS,
    SENSE,
    SHARED_TOKENS,
    TEMPLATES,
    SentenceVectors,
    change_table,
    collection_histograms,
    collection_table,
    fill_slots,
    kind_matrix,
    nonsense,
    nonsense_table,
    read_collection,
    read_texts,
    sentence_vectors,
    separation_table,
    shared_token_cosines,
)
from repdyn.studies.study import (
    Folder,
    Study,
    print_line,
    print_table,
    print_title,
    run_study,
    select,
    stem,
)
from repdyn.studies.two_collections import collection_values, collections_figure, collections_table
from repdyn.tables.frames import by_stack
from repdyn.tables.style import DIVERGING, of_stack, styled
from repdyn.utils.arguments import ModelOptions, Models, at_least

_COLOURS = {FIRST: "#CC79A7", MEAN: "#0072B2", LAST: "#E69F00", MAXIMUM: "#009E73"}
SIGNIFICANT = 0.05
_MOST_COLOURS = 4
"""Groups that a plane tells apart; of more, all have one colour."""


class SentenceStudy(Study):
    """Vectors of sentences at every layer."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        groups = {"paraphrases": BUILT_IN_GROUPS, "templates": TEMPLATES}.get(options.groups, Path(options.groups))
        self.groups = fill_slots(read_texts(groups, "group", "sentence"))
        changes = {"grammar": BUILT_IN_CHANGES, "concepts": CONCEPTS}.get(options.changes, Path(options.changes))
        self.changes = read_texts(changes, "kind", "before", "after")
        self.collection = read_collection(options.text, options.texts)
        self.other = read_collection(options.other, options.texts) if options.other else None
        if self.other and self.other[0] == self.collection[0]:
            raise ValueError(f"expected two different texts, got {self.other[0]} twice; name another with --other")

    def measure(self, loaded: LoadedModel) -> None:
        print_title(loaded.name)
        self._add_groups(loaded)
        self._add_changes(loaded)
        self._add_collection(loaded)
        self.write(loaded.folder_name)

    def _add_groups(self, loaded: LoadedModel) -> None:
        sequences = self._encode(loaded, self.groups["sentence"])
        baseline = shared_token_cosines(sequences, loaded.tokenizer.all_special_ids)
        vectors = sentence_vectors(loaded, sequences, "paraphrases")
        table = separation_table(vectors, baseline, self.groups["group"].tolist(), seed=self.options.seed)
        self.tables["separation"] = table
        for stack, rows in by_stack(table).items():
            print_line("paraphrases at the last layer, and without a model:")
            print_table(rows.groupby("vector", sort=False).tail(1), "vector", "within", "between", "effect", "nearest")
            figure = separation_figure(of_stack(loaded.name, stack), rows)
            self.figures[stem("separation", stack)] = figure
        self._add_nonsense(loaded)

    def _add_nonsense(self, loaded: LoadedModel) -> None:
        made = nonsense(len(self.groups), self.options.seed)
        texts = pd.concat([self.groups[["sentence"]].assign(kind=SENSE), made], ignore_index=True)
        vectors = sentence_vectors(loaded, self._encode(loaded, texts["sentence"]), "nonsense")
        self.tables["nonsense"] = table = nonsense_table(vectors, texts["kind"].tolist())
        groups = self.groups["group"].tolist()
        of_sense = groups if len(set(groups)) <= _MOST_COLOURS else [SENSE] * len(groups)
        labels = {"sentence": texts["sentence"].tolist(), "kind": [*of_sense, *made["kind"]]}
        for stack, one in _last_means(vectors).items():
            rows = select(table, stack=stack, layer=one.layer)
            print_line("nearest sentence is of the same side, sense or nonsense, and of the same kind of nonsense:")
            print_table(rows, "vector", "nonsense", "kinds")
            planes = plane_table(torch.from_numpy(one.vectors), labels, self.options.seed)
            title = f"{of_stack(loaded.name, stack)}: sentences and nonsense"
            caption = f"mean of the tokens after layer {one.layer}"
            self.tables[stem("plane_of_sentences", stack)] = planes
            self.figures[stem("plane_of_sentences", stack)] = plane_figure(title, caption, planes, "kind")

    def _add_changes(self, loaded: LoadedModel) -> None:
        sentences = pd.Index(self.changes[["before", "after"]].to_numpy().ravel("F")).unique()
        vectors = sentence_vectors(loaded, self._encode(loaded, sentences), "changes")
        before, after = (
            [replace(one, vectors=one.vectors[sentences.get_indexer(self.changes[side].tolist())]) for one in vectors]
            for side in ("before", "after")
        )
        self.tables["changes"] = table = change_table(before, after, self.changes, seed=self.options.seed)
        kinds = self.changes["kind"].tolist()
        self.tables["kinds_of_change"] = matrix = kind_matrix(before, after, kinds, seed=self.options.seed)
        for stack, rows in {} if matrix.empty else by_stack(matrix).items():
            self.figures[stem("kinds_of_change", stack)] = kinds_figure(of_stack(loaded.name, stack), rows)
        for stack, one in _last_means(before).items():
            other = next(each for each in after if each.keys == one.keys)
            title = f"{of_stack(loaded.name, stack)}: what a change adds, mean of the tokens after layer {one.layer}"
            figure = differences_figure(title, other.vectors - one.vectors, kinds)
            self.figures[stem("plane_of_changes", stack)] = figure
        for stack, rows in {} if table.empty else by_stack(table).items():
            print_line("cosine of two differences at the last layer:")
            last = select(rows, layer=rows["layer"].max())
            print_table(last, "vector", "change", "n", "within", "across", "p", "length")
            self.figures[stem("changes", stack)] = change_figure(of_stack(loaded.name, stack), rows)

    def _add_collection(self, loaded: LoadedModel) -> None:
        name, texts = self.collection
        vectors = sentence_vectors(loaded, self._encode(loaded, texts), "texts")
        table, histograms = collection_table(vectors), collection_histograms(vectors)
        self.tables.update(collection=table, collection_histograms=histograms)
        counts = by_stack(histograms)
        for stack, rows in by_stack(table).items():
            print_line(f"cosine of two texts at the last layer ({name}):")
            last = select(rows, layer=rows["layer"].max())
            print_table(last, "vector", "mean", "q05", "median", "q95", "min", "positive")
            figure = collection_figure(of_stack(loaded.name, stack), name, rows, counts[stack])
            self.figures[stem("collection", stack)] = figure
        if self.other is not None:
            self._add_other(loaded, vectors, *self.other)

    def _add_other(
        self, loaded: LoadedModel, vectors: Sequence[SentenceVectors], name: str, texts: Sequence[str]
    ) -> None:
        others = sentence_vectors(loaded, self._encode(loaded, texts), "other texts")
        labels = np.repeat([self.collection[0], name], [len(self.collection[1]), len(texts)])
        both = [
            replace(one, vectors=np.concatenate([one.vectors, other.vectors]))
            for one, other in zip(vectors, others, strict=True)
        ]
        self.tables["two_collections"] = collections_table(both, labels)
        for stack, one in _last_means(both).items():
            title = f"{of_stack(loaded.name, stack)}: two collections of texts"
            caption = f"mean of the tokens after layer {one.layer}"
            planes = plane_table(torch.from_numpy(one.vectors), {"texts": labels.tolist()}, self.options.seed)
            self.tables[stem("plane_of_collections", stack)] = planes
            self.figures[stem("plane_of_collections", stack)] = plane_figure(title, caption, planes, "texts")
            figure = collections_figure(title, caption, collection_values(one, labels))
            self.figures[stem("two_collections", stack)] = figure
            print_line(f"lengths, and pairs of texts, at the last layer (mean of the tokens) of {name} as well:")
            rows = select(self.tables["two_collections"], **one.keys)
            print_table(rows, "texts", "quantity", "mean", "q05", "q95", "nearest")

    def _encode(self, loaded: LoadedModel, sentences: Iterable[str]) -> list[list[int]]:
        limit, sequences = min(self.options.max_tokens, loaded.context), []
        for sentence in sentences:
            sequences.append(list(loaded.tokenizer(sentence, truncation=True, max_length=limit)["input_ids"]))
            if not sequences[-1]:
                raise ValueError(
                    f"expected sentences of at least one token, got {sentence!r}, which has none in {loaded.name}"
                )
        return sequences


def sentences(
    models: Models,
    /,
    *,
    output: Folder,
    loading: ModelOptions = ModelOptions(),
    groups: str = "paraphrases",
    changes: str = "grammar",
    text: str = "builtin",
    other: str | None = None,
    texts: Annotated[int, at_least(3)] = 500,
    max_tokens: Annotated[int, at_least(2)] = 128,
    seed: Annotated[int, at_least(0)] = 0,
) -> None:
    """Study sentences: do vectors of paraphrases lie together, does one kind of change move them one way?

    Every model has a folder of its own in FOLDER, with tables as CSV and figures as PNG and SVG. The files of groups
    and changes are JSON, {"group": ["sentence", ...]} and {"kind": [["before", "after"], ...]}, or CSV with the
    columns group, sentence and kind, before, after.

    Args:
        models: Hub repository, also as REPOSITORY@REVISION, folder of save_pretrained, or folder of a run.
        output: Folder for tables and figures.
        groups: File of groups of paraphrases, or built-in ones: paraphrases (12 groups of 5), or templates (27, 27, 27
            and 10 sentences). A sentence may have slots: "{Hello|Hi} there!" stands for two.
        changes: File of changed sentences, or built-in ones: grammar (number, negation, tense, he to she), or concepts
            (light, profession, gender, nationality, mood, laughter).
        text: Collection of texts: builtin, enwik8, or a path.
        other: Second collection, for comparison.
        texts: Paragraphs of each, spread evenly.
        max_tokens: Tokens of a sentence or paragraph; longer ones are cut off.
        seed: Of bootstrap and permutations.

    Examples:
      repdyn study sentences bert-base-cased gpt2 -o FOLDER
      repdyn study sentences bert-base-cased --changes concepts -o FOLDER
      repdyn study sentences gpt2 --groups templates -o FOLDER
      repdyn study sentences gpt2 --text enwik8 --other tweets.txt -o FOLDER
    """
    run_study(SentenceStudy, loading, locals())


@styled
def separation_figure(name: str, table: pd.DataFrame) -> Figure:
    """Draw cosines within and between groups for each pooling, and how well they separate groups."""
    of_vectors, baseline = table.loc[table["vector"] != SHARED_TOKENS], select(table, vector=SHARED_TOKENS)
    poolings = _poolings(of_vectors)
    figure = Figure(figsize=(2.9 * (len(poolings) + 1) + 0.6, 4.2))
    panels = figure.subplots(1, len(poolings) + 1, squeeze=False)[0]
    lowest = float(of_vectors[["within_low", "between_low"]].to_numpy(float).min())
    curves = {"within": ("#009E73", "paraphrases"), "between": ("#D55E00", "other sentences")}
    drawn = [
        (panel, pooling, column, colour, label)
        for panel, pooling in zip(panels, poolings, strict=False)
        for column, (colour, label) in curves.items()
    ]
    drawn += [(panels[-1], pooling, "probability", _COLOURS[pooling], pooling) for pooling in poolings]
    for panel, pooling, column, colour, label in drawn:
        rows = select(of_vectors, vector=pooling)
        line_with_band(panel, rows, column, color=colour, marker="o", markersize=3, label=label)
    for panel, pooling in zip(panels, poolings, strict=False):
        panel.set_title(f"cosine: {pooling}")
        panel.set_ylim(min(0.0, lowest) - 0.02, 1.02)
    panels[0].legend(loc="lower left")
    look = {"color": "0.4", "linestyle": "--", "linewidth": 1}
    panels[-1].axhline(baseline["probability"].item(), label=SHARED_TOKENS, **look)
    panels[-1].set_title("paraphrases are closer: how often")
    panels[-1].set_ylim(0.45, 1.02)
    panels[-1].legend(loc="lower right")
    layer_axis(*panels)
    entitle(figure, f"{name}: paraphrases against other sentences", "bands: 95 % of a bootstrap over groups")
    return figure


@styled
def change_figure(name: str, table: pd.DataFrame) -> Figure:
    """Draw how alike the differences of one kind of change are over the layers, a panel for each pooling."""
    poolings, changes = _poolings(table), [change for change in table["change"].unique() if change != ALL_KINDS]
    figure = Figure(figsize=(3.7 * len(poolings) + 1.4, 4.4))
    panels = figure.subplots(1, len(poolings), squeeze=False, sharey=True)[0]
    for panel, pooling in zip(panels, poolings, strict=True):
        rows = select(table, vector=pooling)
        for number, change in enumerate(changes):
            one, colour = select(rows, change=change), to_hex(colormaps["tab10"](number % 10))
            panel.plot(one["layer"], one["within"], color=colour, label=change)
            is_clear = one["p"] < SIGNIFICANT
            for chosen, fill in ((is_clear, colour), (~is_clear, "white")):
                look = {"color": colour, "markersize": 5, "markerfacecolor": fill}
                panel.plot(one["layer"].where(chosen), one["within"].where(chosen), "o", **look)
        across = select(rows, change=ALL_KINDS)
        panel.plot(across["layer"], across["across"], color="0.4", linestyle="--", label="different kinds")
        panel.axhline(0, color="0.7", linewidth=0.8, zorder=0)
        panel.set_title(pooling)
    panels[0].set_ylabel("mean cosine of two differences")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    layer_axis(*panels)
    caption = f"hollow: not larger than across kinds (p >= {SIGNIFICANT}, permutation test, not corrected)"
    entitle(figure, f"{name}: does one kind of change move sentences one way?", caption)
    return figure


def _last_means(vectors: Sequence[SentenceVectors]) -> dict[str | None, SentenceVectors]:
    """Return the means over tokens at the last layer, by stack."""
    return {one.stack: one for one in sorted(vectors, key=lambda one: one.layer) if one.pooling == MEAN}


@styled
def kinds_figure(name: str, matrix: pd.DataFrame) -> Figure:
    """Draw the cosines of the mean differences of each two kinds at the last layer, and the largest over the layers."""
    poolings, last = _poolings(matrix), matrix["layer"].to_numpy(int).max()
    names = list(dict.fromkeys([*matrix["kind"], *matrix["other"]]))
    figure = Figure(figsize=(3.7 * len(poolings) + 1.0, 7.2))
    panels = figure.subplots(2, len(poolings), squeeze=False, height_ratios=(1.15, 1))
    for (above, below), pooling in zip(panels.T, poolings, strict=True):
        rows = select(matrix, vector=pooling)
        of_last = select(rows, layer=last)
        cells = np.full((len(names), len(names)), np.nan)
        for row in of_last.to_dict("records"):
            at = names.index(row["other"]), names.index(row["kind"])
            cells[at] = row["cosine"]
            is_clear = row["low"] > 0 or row["high"] < 0
            look = {"weight": "bold" if is_clear else "normal", "alpha": 1 if is_clear else 0.6}
            above.text(at[1], at[0], f"{row['cosine']:.2f}", ha="center", va="center", fontsize=8, **look)
        above.imshow(
            cells[1:, :-1], cmap=DIVERGING, vmin=-1, vmax=1, extent=(-0.5, len(names) - 1.5, len(names) - 0.5, 0.5)
        )
        above.set_xticks(range(len(names) - 1), names[:-1], rotation=40, ha="right")
        above.set_yticks(range(1, len(names)), names[1:])
        above.grid(visible=False)
        above.set_title(f"{pooling}, layer {last}")
        largest = of_last.assign(size=of_last["cosine"].abs()).nlargest(4, "size")
        for number, row in enumerate(largest.to_dict("records")):
            one = select(rows, kind=row["kind"], other=row["other"])
            look = {"color": to_hex(colormaps["tab10"](number)), "label": f"{row['kind']}, {row['other']}"}
            line_with_band(below, one, "cosine", ("low", "high"), band_alpha=0.12, **look)
        below.axhline(0, color="0.5", linewidth=0.8)
        below.set_ylim(-1, 1)
        below.legend(fontsize=7, loc="lower left")
        layer_axis(below)
    panels[1][0].set_ylabel("cosine of two mean differences")
    caption = "bold: 95 % interval of a bootstrap over the changes without 0; below, the four largest of the last layer"
    entitle(figure, f"{name}: do two kinds of change point one way?", caption)
    return figure


@styled
def differences_figure(title: str, differences: np.ndarray, kinds: Sequence[str]) -> Figure:
    """Draw differences in the plane of two principal components, with an arrow for the mean of each kind."""
    found = PCA(2, svd_solver="full").fit(differences)
    figure, labels = Figure(figsize=(6.4, 5.4)), np.asarray(kinds)
    axes = figure.subplots()
    origin = found.transform(np.zeros((1, differences.shape[1])))[0]
    for number, kind in enumerate(dict.fromkeys(kinds)):
        colour = to_hex(colormaps["tab10"](number % 10))
        places = found.transform(differences[labels == kind])
        axes.scatter(*places.T, color=colour, s=18, linewidths=0, alpha=0.7, label=kind)
        look = {"arrowstyle": "-|>", "color": colour, "lw": 2}
        axes.annotate("", places.mean(0), origin, arrowprops=look)
    axes.plot(*origin, "k+", markersize=9)
    axes.set(xticks=[], yticks=[])
    figure.legend(loc="outside lower center", ncols=3)
    share = found.explained_variance_ratio_.sum()
    entitle(figure, title, f"PCA, {share:.0%} of the variance; arrows from no change (+) to the mean of a kind")
    return figure


@styled
def collection_figure(name: str, source: str, table: pd.DataFrame, histograms: pd.DataFrame) -> Figure:
    """Draw the cosines of all pairs of texts: quantiles over the layers, and the distribution at the last."""
    poolings, last = _poolings(table), table["layer"].to_numpy(int).max()
    figure = Figure(figsize=(2.9 * (len(poolings) + 1) + 0.6, 4.2))
    panels = figure.subplots(1, len(poolings) + 1, squeeze=False)[0]
    lowest = min(0.0, table["q01"].to_numpy(float).min())
    for panel, pooling in zip(panels, poolings, strict=False):
        rows, colour = select(table, vector=pooling), _COLOURS[pooling]
        for low, high, alpha in (("q01", "q99", 0.12), ("q05", "q95", 0.2), ("q25", "q75", 0.3)):
            panel.fill_between(rows["layer"], rows[low], rows[high], color=colour, alpha=alpha, linewidth=0)
        panel.plot(rows["layer"], rows["median"], color=colour)
        panel.axhline(0, color="0.5", linewidth=0.8)
        panel.set_ylim(lowest - 0.03, 1.02)
        panel.set_title(f"cosine: {pooling}")
        bins = select(histograms, vector=pooling, layer=last)
        heights, edges = bins["count"] / bins["count"].max(), np.append(bins["low"], bins["high"].iloc[-1])
        panels[-1].stairs(heights, edges, color=colour, fill=True, alpha=0.35, label=pooling)
        panels[-1].stairs(heights, edges, color=colour)
    layer_axis(*panels[:-1])
    panels[-1].axvline(0, color="0.5", linewidth=0.8)
    panels[-1].set_yticks([])
    panels[-1].set_xlabel(f"cosine at layer {last}")
    panels[-1].set_title("the last layer")
    panels[-1].legend()
    pairs = f"{table['n'].to_numpy(int).max():,} pairs of texts"
    entitle(figure, f"{name}: how alike are any two texts?", f"{source}; {pairs}; bands: 50, 90 and 98 % of them")
    return figure


def _poolings(table: pd.DataFrame) -> list[str]:
    return [pooling for pooling in POOLINGS if pooling in set(table["vector"])]

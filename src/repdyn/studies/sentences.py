"""``repdyn study sentences``: vectors of paraphrases, of sentences with one thing changed, and of a collection."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from repdyn.figures.drawing import entitle
from repdyn.reading import LoadedModel
from repdyn.studies.sentence_measurements import (
    ALL_KINDS,
    BUILT_IN_CHANGES,
    BUILT_IN_GROUPS,
    FIRST,
    LAST,
    MEAN,
    POOLINGS,
    SHARED_TOKENS,
    change_table,
    collection_histograms,
    collection_table,
    read_collection,
    read_texts,
    sentence_vectors,
    separation_table,
    shared_token_cosines,
)
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
from repdyn.tables.frames import by_stack
from repdyn.tables.style import of_stack, styled
from repdyn.utils.arguments import ModelOptions, Models, at_least

_COLOURS = {FIRST: "#CC79A7", MEAN: "#0072B2", LAST: "#E69F00"}
SIGNIFICANT = 0.05


class SentenceStudy(Study):
    """Vectors of sentences at every layer."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.groups = read_texts(options.groups or BUILT_IN_GROUPS, "group", "sentence")
        self.changes = read_texts(options.changes or BUILT_IN_CHANGES, "kind", "before", "after")
        self.collection = read_collection(options.text, options.texts)

    def measure(self, loaded: LoadedModel) -> None:
        output = Output()
        print_title(loaded.name)
        self._add_groups(loaded, output)
        self._add_changes(loaded, output)
        self._add_collection(loaded, output)
        self.write(output, loaded.folder_name)

    def _add_groups(self, loaded: LoadedModel, output: Output) -> None:
        sequences = self._encode(loaded, self.groups["sentence"])
        baseline = shared_token_cosines(sequences, loaded.tokenizer.all_special_ids)
        vectors = sentence_vectors(loaded, sequences, "paraphrases")
        table = separation_table(vectors, baseline, self.groups["group"].tolist(), seed=self.options.seed)
        output.tables["separation"] = table
        for stack, rows in by_stack(table).items():
            print_line("paraphrases at the last layer, and without a model:")
            print_table(rows.groupby("vector", sort=False).tail(1), "vector", "within", "between", "effect", "nearest")
            figure = separation_figure(of_stack(loaded.name, stack), rows)
            output.figures[stem("separation", stack)] = figure

    def _add_changes(self, loaded: LoadedModel, output: Output) -> None:
        sentences = pd.Index(self.changes[["before", "after"]].to_numpy().ravel("F")).unique()
        vectors = sentence_vectors(loaded, self._encode(loaded, sentences), "changes")
        before, after = (
            [one.take(sentences.get_indexer(self.changes[side].tolist())) for one in vectors]
            for side in ("before", "after")
        )
        output.tables["changes"] = table = change_table(before, after, self.changes, seed=self.options.seed)
        for stack, rows in {} if table.empty else by_stack(table).items():
            print_line("cosine of two differences at the last layer:")
            last = select(rows, layer=rows["layer"].max())
            print_table(last, "vector", "change", "n", "within", "across", "p", "length")
            output.figures[stem("changes", stack)] = change_figure(of_stack(loaded.name, stack), rows)

    def _add_collection(self, loaded: LoadedModel, output: Output) -> None:
        name, texts = self.collection
        vectors = sentence_vectors(loaded, self._encode(loaded, texts), "texts")
        table, histograms = collection_table(vectors), collection_histograms(vectors)
        output.tables.update(collection=table, collection_histograms=histograms)
        counts = by_stack(histograms)
        for stack, rows in by_stack(table).items():
            print_line(f"cosine of two texts at the last layer ({name}):")
            last = select(rows, layer=rows["layer"].max())
            print_table(last, "vector", "mean", "q05", "median", "q95", "min", "positive")
            figure = collection_figure(of_stack(loaded.name, stack), name, rows, counts[stack])
            output.figures[stem("collection", stack)] = figure

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
    groups: Path | None = None,
    changes: Path | None = None,
    text: str = "builtin",
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
        groups: File of groups of paraphrases (default: 12 built-in ones).
        changes: File of changed sentences (default: 48 built-in ones).
        text: Collection of texts: builtin, enwik8, or a path.
        texts: Paragraphs of it, spread evenly.
        max_tokens: Tokens of a sentence or paragraph; longer ones are cut off.
        seed: Of bootstrap and permutations.

    Examples:
      repdyn study sentences bert-base-cased gpt2 -o FOLDER
      repdyn study sentences gpt2 --groups paraphrases.json -o FOLDER
      repdyn study sentences bert-base-cased --text enwik8 --texts 1000 -o FOLDER
    """
    run_study(SentenceStudy, loading, locals())


@styled
def separation_figure(name: str, table: pd.DataFrame) -> Figure:
    """Draw cosines within and between groups for each pooling, and how well they separate groups."""
    of_vectors, baseline = table.loc[table["vector"] != SHARED_TOKENS], select(table, vector=SHARED_TOKENS)
    poolings = _poolings(of_vectors)
    figure = Figure(figsize=(3.4 * (len(poolings) + 1) + 0.6, 4.2))
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
        values = (rows[end] for end in ("layer", column, f"{column}_low", f"{column}_high"))
        line_with_band(panel, *values, color=colour, marker="o", markersize=3, label=label)
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


@styled
def collection_figure(name: str, source: str, table: pd.DataFrame, histograms: pd.DataFrame) -> Figure:
    """Draw the cosines of all pairs of texts: quantiles over the layers, and the distribution at the last."""
    poolings, last = _poolings(table), table["layer"].to_numpy(int).max()
    figure = Figure(figsize=(3.4 * (len(poolings) + 1) + 0.6, 4.2))
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

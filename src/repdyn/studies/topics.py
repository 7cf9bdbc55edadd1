"""``repdyn study topics``: topics found in a text, and how far embeddings and attention of models follow them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from repdyn.figures.drawing import entitle
from repdyn.reading import LoadedModel, file_name
from repdyn.studies.study import (
    Folder,
    Output,
    Study,
    layer_axis,
    print_line,
    print_table,
    print_title,
    run_study,
    select,
    series_colour,
)
from repdyn.studies.topic_measurements import (
    CERTAINTY,
    N_TOPICS,
    TABLE,
    TokensOfWords,
    TopicMeasurements,
    documents_of,
    find_topics,
    measure_topics,
)
from repdyn.tables.style import DIVERGING, of_stack, styled
from repdyn.text.corpus import DEFAULT_TEXT, load_corpus
from repdyn.utils.arguments import ModelOptions, Models, at_least

_N_WORDS = 8
BOLD_FROM = 3.0
"""Standard errors from 0, from which on a head's gap is printed in bold."""
_MAX_NUMBERED = 16
"""Heads that leave room for a number in each cell."""
_UNIT = "times even attention"


class TopicStudy(Study):
    """Study of whether embeddings and attention follow the topics of a text."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        if not 0 <= options.certainty <= 1:
            raise ValueError(f"expected --certainty between 0 and 1, got {options.certainty}")
        corpus = load_corpus(options.text)
        documents = documents_of(corpus.data.decode(errors="replace"))
        if len(documents) > options.documents:
            drawn = np.random.RandomState(options.seed).choice(len(documents), options.documents, replace=False)
            documents = [documents[number] for number in sorted(drawn)]
        self.text, self.topics = corpus.name, find_topics(documents, options.topics, seed=options.seed)
        self.measured: dict[str, TopicMeasurements] = {}
        print_title(self.text, f"{len(documents):,} documents, {len(self.topics.words):,} words with topics")
        print_table(self.topics.table(_N_WORDS))

    def measure(self, loaded: LoadedModel) -> None:
        options = self.options
        probe = self.topics.probe(
            loaded.tokenizer,
            sequence_length=min(options.sequence_length, loaded.context),
            n_sequences=options.sequences,
            tokens_of_words=options.tokens_of_words,
            certainty=options.certainty,
            seed=options.seed,
            name=self.text,
        )
        for one in measure_topics(loaded, probe, options.layers, title=loaded.name, seed=options.seed):
            title = of_stack(loaded.name, one.stack)
            print_gaps(title, one)
            self.measured[title] = one

    def finish(self) -> None:
        tables = {"topics": self.topics.table()}
        for kind in ("embeddings", "attention"):
            frames = [getattr(one, kind).dropna(subset="gap").assign(model=name) for name, one in self.measured.items()]
            tables[kind] = pd.concat(frames).drop(columns="reason")
        drawn = {"depth": depth_figure(self.measured)}
        for name, one in self.measured.items():
            if len(one.attention.dropna(subset="gap")):
                drawn[f"{file_name(name)}_heads"] = heads_figure(name, one)
        self.write(Output(tables, drawn))


def topics(
    models: Models,
    /,
    *,
    output: Folder,
    loading: ModelOptions = ModelOptions(),
    text: str = DEFAULT_TEXT,
    topics: Annotated[int, at_least(2)] = N_TOPICS,
    documents: Annotated[int, at_least(2)] = 3000,
    seed: Annotated[int, at_least(0)] = 0,
    sequences: Annotated[int, at_least(2)] = 128,
    sequence_length: Annotated[int, at_least(8)] = 128,
    tokens_of_words: TokensOfWords = "whole",
    certainty: float = CERTAINTY,
    layers: str | None = None,
) -> None:
    """Study topics: do words of one topic lie closer together, and attend more to each other, than others?

    Topics are found by Latent Dirichlet Allocation: pip install 'repdyn[topics]'. Every gap has a control: the same
    tokens under the topics of another document.

    Args:
        models: Hub repository, also as REPOSITORY@REVISION, folder of save_pretrained, or folder of a run.
        output: Folder for tables and figures.
        text: Use enwik8, builtin, or a path; blank lines separate documents.
        topics: Number of topics.
        documents: Documents of at least 100 words to find topics in, drawn from the text.
        seed: Of all random draws.
        sequences: Number of sequences, each the beginning of a document.
        sequence_length: Tokens in each, at most the model's context.
        tokens_of_words: Tokens with a topic: those that are a whole word, or the last one of a word.
        certainty: Probability from which on a word has a topic.
        layers: Pattern of the blocks' names, such as "layers.*" (default: detected).

    Examples:
      repdyn study topics bert-base-uncased roberta-base --text enwik8 -o FOLDER
      repdyn study topics gpt2 --text wikipedia.txt.xz --topics 50 -o FOLDER
      repdyn study topics stories260K-hf --tokens-of-words last -o FOLDER
    """
    run_study(TopicStudy, loading, locals())


def print_gaps(name: str, measured: TopicMeasurements) -> None:
    """Print the gaps of a model layer by layer, those of the attention as means over heads."""
    print_title(name, f"{len(measured.ids):,} tokens with topics, {len(measured.ids.unique()):,} different")
    print_table(select(measured.embeddings, product="cosine"), "layer", "gap", "control")
    attention = select(measured.attention, head=None).copy()
    attention[["gap", "control", "difference", "standard_error"]] *= measured.length
    print_line(f"attention, times even attention (a weight of 1 / {measured.length}):")
    print_table(attention, "layer", "gap", "control", "difference", "standard_error")
    for reason in pd.concat([measured.embeddings["reason"], measured.attention["reason"]]).dropna().unique():
        print_line(f"no value where {reason}")


@styled
def depth_figure(measured: Mapping[str, TopicMeasurements]) -> Figure:
    """Draw the gaps of the embeddings, and of the attention minus its control, a line for each model."""
    figure = Figure(figsize=(9.5, 4.6))
    left, right = figure.subplots(1, 2)
    for number, (name, one) in enumerate(measured.items()):
        _draw_embeddings(left, one, name, series_colour(number))
        _draw_attention(right, one, series_colour(number))
    left.set_ylabel("gap of the cosine")
    right.set_ylabel(f"gap of the attention minus control,\nmean over heads, {_UNIT}")
    layer_axis(left, right)
    for axes in (left, right):
        axes.axhline(0, color="black", linewidth=0.8)
    left.legend(fontsize=8)
    entitle(
        figure,
        "Topic gaps: words of one topic minus words of different topics",
        "Left: solid under their own topics, dashed under those of other documents (band: standard deviation over "
        "them); square: input embeddings, each word once (bar: the same). Right: bars of two standard errors.",
    )
    return figure


@styled
def heads_figure(name: str, measured: TopicMeasurements) -> Figure:
    """Draw the gap of each head of each layer minus its control, as a multiple of even attention."""
    heads = measured.attention.dropna(subset=["gap", "head"])
    values, errors = (
        heads.pivot(index="layer", columns="head", values=column) * measured.length
        for column in ("difference", "standard_error")
    )
    n_layers, n_heads = values.shape
    figure = Figure(figsize=(min(11.0, 2.5 + 0.6 * n_heads), 1.8 + 0.4 * n_layers))
    axes = figure.subplots()
    limit = float(np.nanmax(np.abs(values))) or 1.0
    image = axes.imshow(values, cmap=DIVERGING, vmin=-limit, vmax=limit, aspect="auto", origin="lower")
    figure.colorbar(image, ax=axes, label=f"gap minus control,\n{_UNIT}")
    axes.grid(False)
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_yticks(range(n_layers), values.index)
    if n_heads <= _MAX_NUMBERED:
        for (row, column), value in np.ndenumerate(values.to_numpy()):
            weight = "bold" if abs(value) >= BOLD_FROM * errors.iloc[row, column] else "normal"
            look = {"fontsize": 7, "color": "white" if abs(value) > 0.6 * limit else "black", "weight": weight}
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", **look)
    entitle(figure, f"{name}: topic gap of each head", f"Bold: {BOLD_FROM:g} standard errors from 0, or more.")
    return figure


def _draw_embeddings(axes: Axes, one: TopicMeasurements, name: str, colour: str) -> None:
    gaps = select(one.embeddings, product="cosine").dropna(subset="gap")
    layers, table = gaps.loc[gaps["layer"] != TABLE], select(gaps, layer=TABLE)
    x, control, spread = layers["layer"].astype(int), layers["control"], layers["control_std"]
    axes.plot(x, layers["gap"], color=colour, marker="o", markersize=4, label=name)
    axes.plot(x, control, color=colour, linestyle="--", linewidth=1.2)
    axes.fill_between(x, control - spread, control + spread, color=colour, alpha=0.18, linewidth=0)
    look = {"color": colour, "marker": "s", "markersize": 5, "capsize": 2}
    for gap, deviation in zip(table["gap"], table["control_std"], strict=True):
        axes.errorbar([-0.35], [gap], deviation, **look)


def _draw_attention(axes: Axes, one: TopicMeasurements, colour: str) -> None:
    means = select(one.attention, head=None).dropna(subset="gap")
    values, errors = means["difference"] * one.length, 2 * (means["standard_error"] * one.length)
    axes.errorbar(means["layer"], values, errors, color=colour, marker="o", markersize=4, capsize=2)

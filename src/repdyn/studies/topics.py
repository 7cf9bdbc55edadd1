"""``repdyn study topics``: topics found in a text, and how far embeddings and attention of models follow them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from repdyn.figures.drawing import entitle
from repdyn.probe import Probe
from repdyn.reading import LoadedModel, file_name
from repdyn.studies import topic_measurements as measured
from repdyn.studies.panels import draw_heads, heads_size, layer_axis, series_colour
from repdyn.studies.study import (
    Folder,
    Study,
    join_tables,
    print_line,
    print_table,
    print_title,
    run_study,
    select,
    stored_runs,
)
from repdyn.studies.topic_measurements import CERTAINTY, N_TOPICS, TokensOfWords, TopicMeasurements, WordProducts
from repdyn.tables.style import SEQUENTIAL, of_stack, styled
from repdyn.text.corpus import DEFAULT_TEXT, load_corpus
from repdyn.utils.arguments import ModelOptions, Models, Place, at_least

_N_WORDS = 8
BOLD_FROM = 3.0
"""Standard errors from 0, from which on a head's gap is printed in bold."""
_UNIT = "times even attention"


class TopicStudy(Study):
    """Study of whether embeddings and attention follow the topics of a text."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        if not 0 <= options.certainty <= 1:
            raise ValueError(f"expected --certainty between 0 and 1, got {options.certainty}")
        if not options.models and not options.store:
            raise ValueError("expected a model or --store RUN, got neither; see --help")
        self.found: dict[str, TopicMeasurements] = {}
        self.known = Probe.load(options.probe) if options.probe else None
        if options.models and self.known is None:
            self._find_topics()

    def _find_topics(self) -> None:
        options = self.options
        corpus = load_corpus(options.text)
        documents = measured.documents_of(corpus.data.decode(errors="replace"))
        if len(documents) > options.documents:
            drawn = np.random.RandomState(options.seed).choice(len(documents), options.documents, replace=False)
            documents = [documents[number] for number in sorted(drawn)]
        self.text, self.topics = corpus.name, measured.find_topics(documents, options.topics, seed=options.seed)
        self.tables["topics"] = self.topics.table()
        print_title(self.text, f"{len(documents):,} documents, {len(self.topics.words):,} words with topics")
        print_table(self.topics.table(_N_WORDS))

    def measure(self, loaded: LoadedModel) -> None:
        options = self.options
        probe = self.known or self.topics.probe(
            loaded.tokenizer,
            sequence_length=min(options.sequence_length, loaded.context),
            n_sequences=options.sequences,
            tokens_of_words=options.tokens_of_words,
            certainty=options.certainty,
            seed=options.seed,
            name=self.text,
        )
        for one in measured.measure_topics(loaded, probe, options.layers, title=loaded.name, seed=options.seed):
            title = of_stack(loaded.name, one.stack)
            print_gaps(title, one)
            self.found[title] = one

    def finish(self) -> None:
        if self.found:
            for kind in ("embeddings", "attention"):
                of_models = {name: getattr(one, kind).dropna(subset="gap") for name, one in self.found.items()}
                table = pd.concat([table.assign(model=name) for name, table in of_models.items()])
                self.tables[kind] = table.drop(columns="reason")
            self.figures["depth"] = depth_figure(self.found)
        words = {name: one.words for name, one in self.found.items() if one.words}
        if words:
            self.tables["blocks"] = join_tables({name: of_model.table() for name, of_model in words.items()}, "model")
        for name, one in self.found.items():
            if one.words:
                self.figures[f"{file_name(name)}_blocks"] = blocks_figure(name, one.words)
            if len(one.attention.dropna(subset="gap")):
                self.figures[f"{file_name(name)}_heads"] = heads_figure(name, one)
        if self.options.store:
            self._report_learning()
        self.write()

    def _report_learning(self) -> None:
        onsets = {}
        for title, _, rows in stored_runs(self.options):
            onsets[title] = measured.onset_table(rows)
            print_title(title, "step from which on a gap keeps a tenth, and half, of its final value")
            print_table(onsets[title])
        self.tables["onsets"] = join_tables(onsets, "run")


def topics(
    models: Models = (),
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
    probe: Path | None = None,
    store: Place | None = None,
    run: list[str] | None = None,
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
        probe: File of a probe whose tokens have topics, in place of a text.
        store: Trainings measured with topic_gap and attention_topic_gap: in which order the gaps appear.
        run: Some of the store's runs (default: every run).

    Examples:
      repdyn study topics bert-base-uncased roberta-base --text enwik8 -o FOLDER
      repdyn study topics gpt2 --text wikipedia.txt.xz --topics 50 -o FOLDER
      repdyn study topics stories260K-hf --tokens-of-words last -o FOLDER
      repdyn study topics --store RUN/repdyn -o FOLDER
    """
    run_study(TopicStudy, loading, locals())


def print_gaps(name: str, found: TopicMeasurements) -> None:
    """Print the gaps of a model layer by layer, those of the attention as means over heads."""
    print_title(name, f"{len(found.ids):,} tokens with topics, {len(found.ids.unique()):,} different")
    for product, unit in (("cosine", "cosine"), ("dot", "inner product")):
        print_line(f"{unit} of two words of the same topic, of different topics:")
        print_table(select(found.embeddings, product=product), "layer", "same", "different", "gap", "control")
    attention = select(found.attention, head=None).copy()
    shown = ["same", "different", "gap", "control", "difference", "standard_error"]
    attention[shown] *= found.length
    print_line(f"attention, times even attention (a weight of 1 / {found.length}):")
    print_table(attention, "layer", *shown, "evenness")
    for reason in pd.concat([found.embeddings["reason"], found.attention["reason"]]).dropna().unique():
        print_line(f"no value where {reason}")


@styled
def depth_figure(models: Mapping[str, TopicMeasurements]) -> Figure:
    """Draw the means over words of one topic and of different topics, and below their gap, a colour for each model."""
    figure = Figure(figsize=(9.5, 7.4))
    (cosine, attention), (cosine_gap, attention_gap) = panels = figure.subplots(2, 2, sharex="col")
    for number, (name, one) in enumerate(models.items()):
        look: dict[str, Any] = {"color": series_colour(number), "marker": "o", "markersize": 4}
        found = select(one.embeddings, product="cosine").dropna(subset="gap")
        layers, table = found.loc[found["layer"] != measured.TABLE], select(found, layer=measured.TABLE)
        x, control, spread = layers["layer"].astype(int), layers["control"], layers["control_std"]
        _draw_means(cosine, x, layers, look, name)
        cosine_gap.plot(x, layers["gap"], **look)
        cosine_gap.plot(x, control, color=look["color"], linestyle="--", linewidth=1.2)
        cosine_gap.fill_between(x, control - spread, control + spread, color=look["color"], alpha=0.18, linewidth=0)
        of_table = {**look, "marker": "s", "markersize": 5, "linestyle": ""}
        before = np.full(len(table), -0.35)
        _draw_means(cosine, before, table, of_table)
        cosine_gap.errorbar(before, table["gap"], table["control_std"], capsize=2, **of_table)
        means = select(one.attention, head=None).dropna(subset="gap")
        scaled = means.reindex(columns=[*measured.PAIRS, "difference", "standard_error"]).mul(one.length)
        _draw_means(attention, means["layer"], scaled, look)
        attention_gap.errorbar(means["layer"], scaled["difference"], 2 * scaled["standard_error"], capsize=2, **look)
    labels = "mean cosine", f"mean attention,\n{_UNIT}", "gap of the cosine"
    for axes, label in zip(panels.flat, (*labels, f"gap of the attention\nminus control, {_UNIT}"), strict=True):
        axes.set_ylabel(label)
        axes.axhline(0, color="black", linewidth=0.8)
    layer_axis(*panels[1])
    cosine.legend(fontsize=8)
    attention.legend(["same topic", "different topics"], fontsize=8)
    entitle(
        figure,
        "Topics: words of one topic, and of different topics",
        "Above: solid two words of one topic, dotted of different topics. Below: their difference; left, dashed: under "
        "the topics of other documents (band: standard deviation); right: bars of two standard errors. Square: input "
        "embeddings, each word once.",
    )
    return figure


def _draw_means(axes: Axes, x: ArrayLike, rows: pd.DataFrame, look: dict[str, Any], label: str | None = None) -> None:
    axes.plot(x, rows["same"], label=label, **look)
    axes.plot(x, rows["different"], **{"linestyle": ":", **look, "markerfacecolor": "white"})


@styled
def blocks_figure(name: str, words: WordProducts) -> Figure:
    """Draw the inner products of the input embeddings of words, ordered by topic."""
    figure = Figure(figsize=(6.4, 5.6))
    axes = figure.subplots()
    others = words.products[~np.eye(len(words.topics), dtype=bool)]
    low, high = np.quantile(others, [0.01, 0.99])
    image = axes.imshow(words.products, cmap=SEQUENTIAL, vmin=low, vmax=high, interpolation="nearest")
    figure.colorbar(image, ax=axes, label="inner product", extend="both")
    axes.grid(False)
    topics, starts, sizes = np.unique(words.topics, return_index=True, return_counts=True)
    for set_ticks in (axes.set_xticks, axes.set_yticks):
        set_ticks(starts + sizes / 2 - 0.5, topics, fontsize=7)
    axes.set(xlabel="topic", ylabel="topic")
    table = words.table()
    within, means = table["topic"] == table["other"], table["mean"]
    caption = f"Mean of the blocks on the diagonal {means[within].mean():.3g}, of all others "
    caption += f"{means[~within].mean():.3g}; up to {measured.WORDS_OF_TOPIC} words of each topic."
    entitle(figure, f"{name}: products of the input embeddings of words, by topic", caption)
    return figure


@styled
def heads_figure(name: str, found: TopicMeasurements) -> Figure:
    """Draw the gap of each head of each layer minus its control, as a multiple of even attention."""
    heads = found.attention.dropna(subset=["gap", "head"])
    values, errors = (
        heads.pivot(index="layer", columns="head", values=column) * found.length
        for column in ("difference", "standard_error")
    )
    figure = Figure(figsize=heads_size(values))
    draw_heads(figure.subplots(), values, abs(values) >= BOLD_FROM * errors, f"gap minus control,\n{_UNIT}")
    entitle(figure, f"{name}: topic gap of each head", f"Bold: {BOLD_FROM:g} standard errors from 0, or more.")
    return figure

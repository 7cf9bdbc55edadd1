"""``repdyn study topics``: topics found in a text, and how far embeddings and attention of models
follow them.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from repdyn.activations import LoadedModel, file_name
from repdyn.lab.studies import topic_measurements as measured
from repdyn.lab.studies.arguments import checked
from repdyn.lab.studies.panels import (
    draw_heads,
    heads_size,
    image,
    layer_axis,
    panels,
    series_colour,
    zero_line,
)
from repdyn.lab.studies.result import StudyResult, join_tables
from repdyn.lab.studies.study import (
    Study,
    Subjects,
    named,
    require_subjects,
    select,
    stored_runs,
)
from repdyn.lab.studies.topic_measurements import N_TOPICS, TABLE, TokensOfWords, TopicMeasurements
from repdyn.probe import Probe
from repdyn.probe.corpus import DEFAULT_TEXT, load_corpus
from repdyn.utils.arguments import ModelOptions, Place, at_least
from repdyn.views.tables.style import SEQUENTIAL

_N_WORDS, _FEWEST_WORDS = 8, 100
BOLD_FROM = 3.0
"""Standard errors from 0, from which on a head's gap is printed in bold."""
_UNIT = "times even attention"


class TopicStudy(Study):
    """Study of whether embeddings and attention follow the topics of a text."""

    def __init__(
        self,
        *,
        seed: int,
        sequences: int,
        sequence_length: int,
        tokens_of_words: TokensOfWords,
        probe: Path | None,
        store: Place | None,
        run: Sequence[str] | None,
    ) -> None:
        super().__init__()
        self.seed = seed
        self.sequences = sequences
        self.sequence_length = sequence_length
        self.tokens_of_words: TokensOfWords = tokens_of_words
        self.store = store
        self.stored = run
        self.measurements: dict[str, TopicMeasurements] = {}
        self.probe = Probe.load(probe) if probe else None

    def find_topics(self, text: str, n_topics: int, n_documents: int) -> None:
        """Find the topics of a text, whose words the models are measured on."""
        corpus = load_corpus(text)
        parts = re.split(r"\n\s*\n", corpus.text)
        documents = [part for part in parts if len(part.split()) >= _FEWEST_WORDS]
        if len(documents) > n_documents:
            # the legacy generator, whose draws no later version of NumPy changes
            drawn = np.random.RandomState(self.seed).choice(
                len(documents), n_documents, replace=False
            )
            documents = [documents[number] for number in sorted(drawn)]
        self.text = corpus.name
        self.topics = measured.find_topics(documents, n_topics, seed=self.seed)
        self.tables["topics"] = self.topics.table()
        self.show_title(
            self.text, f"{len(documents):,} documents, {len(self.topics.words):,} words with topics"
        )
        self.show(self.topics.table(_N_WORDS))

    def measure(self, loaded: LoadedModel) -> None:
        probe = self.probe or self.topics.probe(
            loaded.tokenizer,
            sequence_length=min(self.sequence_length, loaded.context),
            n_sequences=self.sequences,
            tokens_of_words=self.tokens_of_words,
            seed=self.seed,
            name=self.text,
        )
        measurements = measured.measure_topics(loaded, probe, title=loaded.name, seed=self.seed)
        self._show_gaps(loaded.name, measurements)
        self.measurements[loaded.name] = measurements

    def finish(self) -> None:
        if self.measurements:
            for kind in ("embeddings", "attention"):
                of_models = [
                    getattr(measurements, kind).assign(model=name)
                    for name, measurements in self.measurements.items()
                ]
                table = pd.concat(of_models)
                self.tables[kind] = table.dropna(subset="gap").drop(columns="reason")
            self.figures["depth"] = depth_figure(self.measurements)
        blocks = {}
        for name, measurements in self.measurements.items():
            if measurements.words is not None:
                blocks[name] = measured.block_table(measurements.words)
                self.figures[f"{file_name(name)}_blocks"] = blocks_figure(
                    name, measurements.words, blocks[name]
                )
            if len(measurements.attention.dropna(subset="gap")):
                self.figures[f"{file_name(name)}_heads"] = heads_figure(name, measurements)
        if blocks:
            self.tables["blocks"] = join_tables(blocks, "model")
        if self.store:
            onsets = {}
            for title, _, rows in stored_runs(self.store, self.stored):
                onsets[title] = measured.onset_table(rows)
                self.show_title(
                    title, "step from which on a gap keeps a tenth, and half, of its final value"
                )
                self.show(onsets[title])
            self.tables["onsets"] = join_tables(onsets, "run")
        self.complete()

    def _show_gaps(self, name: str, measurements: TopicMeasurements) -> None:
        """Print the gaps of a model layer by layer, those of the attention as means over heads."""
        self.show_title(
            name,
            f"{len(measurements.ids):,} tokens with topics, "
            f"{len(measurements.ids.unique()):,} different",
        )
        self.show("cosine and inner product of two words of the same topic, of different topics:")
        self.show(
            measurements.embeddings, "layer", "product", "same", "different", "gap", "control"
        )
        attention = select(measurements.attention, head=None).copy()
        shown = ["same", "different", "gap", "control", "difference", "standard_error"]
        # weights of longer sequences are smaller, as each row sums to 1
        attention[shown] *= measurements.length
        self.show(f"attention, times even attention (a weight of 1 / {measurements.length}):")
        self.show(attention, "layer", *shown, "evenness")
        for reason in (
            pd.concat([measurements.embeddings["reason"], measurements.attention["reason"]])
            .dropna()
            .unique()
        ):
            self.show(f"no value where {reason}")


@checked
def topics(
    models: Subjects = (),
    /,
    *,
    loading: ModelOptions = ModelOptions(),
    text: str = DEFAULT_TEXT,
    topics: Annotated[int, at_least(2)] = N_TOPICS,
    documents: Annotated[int, at_least(2)] = 3000,
    seed: Annotated[int, at_least(0)] = 0,
    sequences: Annotated[int, at_least(2)] = 128,
    sequence_length: Annotated[int, at_least(8)] = 128,
    tokens_of_words: TokensOfWords = "whole",
    probe: Path | None = None,
    store: Place | None = None,
    run: list[str] | None = None,
) -> StudyResult:
    """Study topics: do words of one topic lie closer together, and attend more to each other, than
    others?

    Topics are found by Latent Dirichlet Allocation, with the extra lab. Every gap has a
    control: the same tokens under the topics of another document.

    Args:
        text: Use enwik8, builtin, or a path; blank lines separate documents.
        topics: Number of topics.
        documents: Documents of at least 100 words to find topics in, drawn from the text.
        seed: Of all random draws.
        sequences: Number of sequences, each the beginning of a document.
        sequence_length: Tokens in each, at most the model's context.
        tokens_of_words: Tokens with a topic: those that are a whole word, or the last one of a
            word.
        probe: File of a probe whose tokens have topics, in place of a text.
        store: Trainings measured with topic_gap and attention_topic_gap: in which order the gaps
            appear.
        run: Some of the store's runs (default: every run).

    Examples:
      repdyn study topics bert-base-uncased roberta-base --text enwik8 -o FOLDER
      repdyn study topics gpt2 --text wikipedia.txt.xz --topics 50 -o FOLDER
      repdyn study topics stories260K-hf --tokens-of-words last -o FOLDER
      repdyn study topics --store RUN/repdyn -o FOLDER
    """
    require_subjects(models, store, run)
    study = TopicStudy(
        seed=seed,
        sequences=sequences,
        sequence_length=sequence_length,
        tokens_of_words=tokens_of_words,
        probe=probe,
        store=store,
        run=run,
    )
    if named(models) and probe is None:
        study.find_topics(text, topics, documents)
    return study.run(models, loading)


def depth_figure(models: Mapping[str, TopicMeasurements]) -> Figure:
    """Draw the means over words of one topic and of different topics, and below their gap, a colour
    for each model.
    """
    caption = (
        "dashed: topics of other documents, band: standard deviation; bars: two standard errors; "
        "square: "
    )
    caption += "input embeddings"
    title = "Topics: words of one topic, and of different topics"
    figure, grid = panels(title, caption, (9.5, 7.4), 2, 2, sharex="col")
    (cosine, attention), (cosine_gap, attention_gap) = grid
    for number, (name, measurements) in enumerate(models.items()):
        look: dict[str, Any] = {"color": series_colour(number), "marker": "o", "markersize": 4}
        gaps = select(measurements.embeddings, product="cosine").dropna(subset="gap")
        is_of_layer = gaps["layer"] != TABLE
        layers = gaps.loc[is_of_layer]
        table = select(gaps, layer=TABLE)
        x = layers["layer"].astype(int)
        control = layers["control"]
        spread = layers["control_std"]
        _draw_means(cosine, x, layers, look, name)
        cosine_gap.plot(x, layers["gap"], **look)
        cosine_gap.plot(x, control, color=look["color"], linestyle="--", linewidth=1.2)
        cosine_gap.fill_between(
            x, control - spread, control + spread, color=look["color"], alpha=0.18, linewidth=0
        )
        of_table = {**look, "marker": "s", "markersize": 5, "linestyle": ""}
        # the table is not a layer: left of layer 0, and joined to it by no line
        before = np.full(len(table), -0.35)
        _draw_means(cosine, before, table, of_table)
        cosine_gap.errorbar(before, table["gap"], table["control_std"], capsize=2, **of_table)
        means = select(measurements.attention, head=None).dropna(subset="gap")
        scaled = means.reindex(columns=[*measured.PAIRS, "difference", "standard_error"]).mul(
            measurements.length
        )
        _draw_means(attention, means["layer"], scaled, look)
        attention_gap.errorbar(
            means["layer"], scaled["difference"], 2 * scaled["standard_error"], capsize=2, **look
        )
    labels = "mean cosine", f"mean attention,\n{_UNIT}", "gap of the cosine"
    for axes, label in zip(
        grid.flat, (*labels, f"gap of the attention\nminus control, {_UNIT}"), strict=True
    ):
        axes.set_ylabel(label)
    zero_line(*grid.flat)
    layer_axis(*grid[1])
    cosine.legend(fontsize=8)
    attention.legend(["same topic", "different topics"], fontsize=8)
    return figure


def _draw_means(
    axes: Axes, x: ArrayLike, rows: pd.DataFrame, look: dict[str, Any], label: str | None = None
) -> None:
    axes.plot(x, rows["same"], label=label, **look)
    axes.plot(x, rows["different"], **{"linestyle": ":", **look, "markerfacecolor": "white"})


def blocks_figure(name: str, words: pd.DataFrame, blocks: pd.DataFrame) -> Figure:
    """Draw the inner products of the input embeddings of words, ordered by topic."""
    within = blocks["topic"] == blocks["other"]
    means = blocks["mean"]
    caption = (
        f"mean within topics {means[within].mean():.3g}, between {means[~within].mean():.3g}; "
    )
    caption += f"up to {measured.WORDS_OF_TOPIC} words of each"
    title = f"{name}: inner products of input embeddings, by topic"
    figure, axes = panels(title, caption, (6.4, 5.6))
    # products of a word with itself are far larger, and would leave one colour for all others
    low, high = np.quantile(words.to_numpy()[~np.eye(len(words), dtype=bool)], [0.01, 0.99])
    look = {"cmap": SEQUENTIAL, "vmin": low, "vmax": high, "interpolation": "nearest"}
    image(axes, words, "inner product", bar={"extend": "both"}, **look)
    topics, starts, sizes = np.unique(words.index, return_index=True, return_counts=True)
    for ticks in (axes.set_xticks, axes.set_yticks):
        ticks(starts + sizes / 2 - 0.5, topics, fontsize=7)
    axes.set(xlabel="topic", ylabel="topic")
    return figure


def heads_figure(name: str, measurements: TopicMeasurements) -> Figure:
    """Draw the gap of each head of each layer minus its control, as a multiple of even
    attention.
    """
    heads = measurements.attention.dropna(subset=["gap", "head"])
    values, errors = (
        heads.pivot(index="layer", columns="head", values=column) * measurements.length
        for column in ("difference", "standard_error")
    )
    caption = f"Bold: {BOLD_FROM:g} standard errors from 0, or more."
    figure, axes = panels(f"{name}: topic gap of each head", caption, heads_size(values))
    draw_heads(axes, values, abs(values) >= BOLD_FROM * errors, f"gap minus control,\n{_UNIT}")
    return figure

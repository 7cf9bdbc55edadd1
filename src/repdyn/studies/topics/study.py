"""``repdyn study topics``: topics found in a text, and how far embeddings and attention of models follow them."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pandas as pd

from repdyn.checkpoints.errors import model_errors
from repdyn.studies.driver import Folder, Study, run
from repdyn.studies.models import LoadedModel, file_name
from repdyn.studies.output import Output, print_line, print_table, print_title, select
from repdyn.studies.topics import figures
from repdyn.studies.topics.measurements import TABLE, TopicMeasurements, measure_topics
from repdyn.studies.topics.text_topics import CERTAINTY, N_TOPICS, TextTopics, TokensOfWords, documents_of, find_topics
from repdyn.tables.style import of_stack
from repdyn.text.source import DEFAULT_TEXT, load_corpus
from repdyn.utils.arguments import ModelOptions, Models, at_least


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
        print_topics(self.topics, self.text)

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
        with model_errors(f"{loaded.name} cannot be measured"):
            stacks = measure_topics(loaded.model, probe, options.layers, title=loaded.name, seed=options.seed)
        for one in stacks:
            title = of_stack(loaded.name, one.stack)
            print_gaps(title, one)
            self.measured[title] = one

    def finish(self) -> None:
        tables = {"topics": self.topics.table()}
        for kind in ("embeddings", "attention"):
            frames = [getattr(one, kind).dropna(subset="gap").assign(model=name) for name, one in self.measured.items()]
            tables[kind] = pd.concat(frames).drop(columns="reason")
        drawn = {"depth": figures.depth_figure(self.measured)}
        for name, one in self.measured.items():
            if len(one.attention.dropna(subset="gap")):
                drawn[f"{file_name(name)} heads"] = figures.heads_figure(name, one)
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
    run(TopicStudy, loading, locals())


_N_WORDS = 8
_COLUMNS = [
    ("layer", "{layer:}"),
    ("cosine", "{gap:.4f}"),
    ("control", "{control:.4f}"),
    ("attention", "{gap_mean:.3f}"),
]
_COLUMNS += [("control", "{control_mean:.3f}"), ("difference", "{difference:.3f} ± {standard_error:.3f}")]
_COLUMNS += [("largest head", "{head_largest}: {difference_largest:.2f} ± {standard_error_largest:.2f}")]


def print_topics(found: TextTopics, name: str) -> None:
    """Print the topics by their most frequent words."""
    print_title(name, f"{len(found.documents):,} documents, {len(found.words):,} words with topics")
    print_table(found.table(_N_WORDS), [("topic", "{topic:d}"), ("share", "{share:.3f}"), ("words", "{words}")])
    print_line("")


def print_gaps(name: str, measured: TopicMeasurements) -> None:
    """Print the gaps of a model layer by layer."""
    attention = measured.attention.copy()
    attention[["gap", "control", "difference", "standard_error"]] *= measured.length
    heads = attention.dropna(subset=["gap", "head"])
    largest = heads.loc[heads.groupby("layer")["difference"].idxmax()]
    table = select(measured.embeddings, product="cosine").replace({"layer": {TABLE: "input"}})
    table = table.merge(select(attention, head=None), "left", "layer", suffixes=("", "_mean"))
    print_title(name, f"{len(measured.ids):,} tokens with topics, {len(measured.ids.unique()):,} different")
    print_table(table.merge(largest, "left", "layer", suffixes=("", "_largest")), _COLUMNS)
    for reason in pd.concat([measured.embeddings["reason"], measured.attention["reason"]]).dropna().unique():
        print_line(f"no value where {reason}")
    even = f"even attention (a weight of 1 / {measured.length})"
    print_line(f"attention: mean over heads, times {even}; ± standard error\n")

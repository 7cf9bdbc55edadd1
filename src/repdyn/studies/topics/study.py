"""``repdyn study topics``: topics found in a text, and how far embeddings and attention of models follow them."""

from __future__ import annotations

import argparse
from typing import get_args

import numpy as np
import pandas as pd

from repdyn.text.source import DEFAULT_TEXT, load_corpus
from repdyn.hub.errors import model_errors
from repdyn.studies import models as subjects
from repdyn.studies.models import LoadedModel
from repdyn.studies.output import Findings, print_written
from repdyn.studies.topics import figures, summary
from repdyn.studies.topics.gaps import AttentionGap
from repdyn.studies.topics.measured import TopicMeasurements, measure_topics
from repdyn.studies.topics.text_topics import CERTAINTY, N_TOPICS, TextTopics, TokensOfWords, documents_of, find_topics
from repdyn.tables.style import of_stack
from repdyn.utils.arguments import at_least

HELP = "Whether words of one topic lie closer together, and attend more to each other, than words of different topics."
EXAMPLES = """examples:
  repdyn study topics bert-base-uncased roberta-base --text enwik8 -o FOLDER
  repdyn study topics gpt2 --text wikipedia.txt.xz --topics 50 --documents 10000 -o FOLDER
  repdyn study topics stories260K-hf --tokens-of-words last --text enwik8 -o FOLDER      words of several tokens

Topics are found by Latent Dirichlet Allocation: pip install 'repdyn[topics]'. Every gap has a control beside it: the
same tokens under the topics of another document.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which text, how many topics, how much of it."""
    subjects.add_options(parser)
    group = parser.add_argument_group("topics")
    group.add_argument(
        "--text",
        default=DEFAULT_TEXT,
        help="enwik8, builtin, or a path; documents are what stands between blank lines (default: %(default)s)",
    )
    group.add_argument(
        "--topics", type=at_least(2), default=N_TOPICS, metavar="N", help="to find (default: %(default)s)"
    )
    group.add_argument(
        "--documents",
        type=at_least(2),
        default=3000,
        metavar="N",
        help="to find them in, of at least 100 words each, drawn from the text (default: %(default)s)",
    )
    group.add_argument("--seed", type=at_least(0), default=0, help="of all that is drawn (default: 0)")
    group = parser.add_argument_group("what the models read")
    group.add_argument(
        "--sequences",
        type=at_least(2),
        default=128,
        metavar="N",
        help="beginnings of so many of the documents (default: %(default)s)",
    )
    group.add_argument(
        "--sequence-length",
        type=at_least(8),
        default=128,
        help="tokens in each, at most the model's context (default: %(default)s)",
    )
    group.add_argument(
        "--tokens-of-words",
        choices=get_args(TokensOfWords),
        default="whole",
        help="tokens with a topic: those that are a whole word, or the last one of each word (default: %(default)s)",
    )
    group.add_argument(
        "--certainty",
        type=float,
        default=CERTAINTY,
        help="probability from which on a word has a topic (default: %(default)s)",
    )
    group.add_argument("--layers", help='name pattern of the blocks, such as "layers.*" (default: found)')


def run(options: argparse.Namespace) -> None:
    """Print the study of each model, and write its tables and figures.

    Raises:
        ValueError, OSError, CheckpointError: a mistaken option, a text that is too short, scikit-learn missing, or a
            model that cannot be studied.
    """
    topics, name = _topics(options)
    summary.print_topics(topics, name)
    found: dict[str, TopicMeasurements] = {}
    for subject in subjects.subjects(options):
        for one in _measured(subject, topics, name, options):
            title = of_stack(subject.name, one.stack)
            summary.print_gaps(title, one)
            found[title] = one
    tables = {
        "topics": _topics_table(topics),
        "embeddings": pd.concat([one.embeddings_table().assign(model=title) for title, one in found.items()]),
        "attention": pd.concat([one.attention_table().assign(model=title) for title, one in found.items()]),
    }
    drawn = {"depth": figures.depth_figure(found)}
    for title, one in found.items():
        if any(isinstance(gap, AttentionGap) for gap in one.attention.values()):
            drawn[f"{subjects.file_name(title)} heads"] = figures.heads_figure(title, one)
    print_written(options.output, Findings(tables, drawn).write(options.output))


def _topics(options: argparse.Namespace) -> tuple[TextTopics, str]:
    """The topics of the text, and its name."""
    if not 0 <= options.certainty <= 1:
        raise ValueError(f"expected --certainty between 0 and 1, got {options.certainty}")
    corpus = load_corpus(options.text)
    documents = documents_of(corpus.data.decode(errors="replace"))
    if len(documents) > options.documents:
        drawn = np.random.RandomState(options.seed).choice(len(documents), options.documents, replace=False)
        documents = [documents[number] for number in sorted(drawn)]
    return find_topics(documents, options.topics, seed=options.seed), corpus.name


def _measured(
    subject: LoadedModel, topics: TextTopics, name: str, options: argparse.Namespace
) -> list[TopicMeasurements]:
    probe = topics.probe(
        subject.tokenizer,
        sequence_length=min(options.sequence_length, subject.context),
        n_sequences=options.sequences,
        tokens_of_words=options.tokens_of_words,
        certainty=options.certainty,
        seed=options.seed,
        name=name,
    )
    with model_errors(f"{subject.name} cannot be measured"):
        return measure_topics(subject.model, probe, options.layers, title=subject.name, seed=options.seed)


def _topics_table(topics: TextTopics) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "topic": range(len(topics.word_shares)),
            "share": topics.document_shares.mean(axis=0),
            "words": [" ".join(words) for words in topics.top_words(20)],
        }
    )

"""Print what a study of topics found."""

from __future__ import annotations

import pandas as pd

from repdyn.studies.charts import select
from repdyn.studies.output import print_line, print_table, print_title
from repdyn.studies.topics.measurements import TABLE, TopicMeasurements
from repdyn.studies.topics.text_topics import TextTopics

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

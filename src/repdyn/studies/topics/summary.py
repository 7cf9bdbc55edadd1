"""Print what a study of topics found."""

from __future__ import annotations

from repdyn.studies.output import print_line, print_table, print_title
from repdyn.studies.topics.gaps import AttentionGap, VectorGap
from repdyn.studies.topics.measurements import TABLE, TopicMeasurements
from repdyn.studies.topics.text_topics import TextTopics

_N_WORDS = 8


def print_topics(found: TextTopics, name: str) -> None:
    """Print the topics by their most frequent words."""
    shares = found.document_shares.mean(axis=0)
    print_title(name, f"{len(found.documents):,} documents, {len(found.words):,} words with topics")
    rows = [(str(n), f"{shares[n]:.3f}", " ".join(words)) for n, words in enumerate(found.top_words(_N_WORDS))]
    print_table(("topic", "share", "words"), rows, left={"words"})
    print_line("")


def print_gaps(name: str, measured: TopicMeasurements) -> None:
    """Print the gaps of a model layer by layer."""
    rows = []
    for (layer, product), gap in measured.embeddings.items():
        if product == "cosine":
            cells = [f"{gap.value:.4f}", f"{gap.control:.4f}"] if isinstance(gap, VectorGap) else ["", ""]
            of_layer = measured.attention_gaps.get(layer) if isinstance(layer, int) else None
            cells += _attention(of_layer, measured.length) if of_layer else []
            rows.append(("input" if layer == TABLE else str(layer), *cells))
    print_title(name, f"{len(measured.ids):,} tokens with topics, {len(measured.ids.unique()):,} different")
    columns = ("layer", "cosine", "control", "attention", "control", "difference", "largest head")
    print_table(columns, rows)
    gaps = (*measured.embeddings.values(), *measured.attention.values())
    for reason in dict.fromkeys(gap for gap in gaps if isinstance(gap, str)):
        print_line(f"no value where {reason}")
    even = f"even attention (a weight of 1 / {measured.length})"
    print_line(f"attention: mean over heads, times {even}; ± standard error\n")


def _attention(gap: AttentionGap, length: int) -> list[str]:
    mean, largest = gap.mean_over_heads, int(gap.difference.argmax())
    return [
        f"{length * mean.value[0]:.3f}",
        f"{length * mean.control[0]:.3f}",
        f"{length * mean.difference[0]:.3f} ± {length * mean.error[0]:.3f}",
        f"{largest}: {length * gap.difference[largest]:.2f} ± {length * gap.error[largest]:.2f}",
    ]

"""What a study of topics says in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from repdyn.studies.topics.gaps import AttentionGap, Gap
from repdyn.studies.topics.measured import TABLE, TopicMeasurements
from repdyn.studies.topics.text_topics import TextTopics

_WORDS = 8


def print_topics(found: TextTopics, name: str, console: Console | None = None) -> None:
    """The topics by the words they use most."""
    console = console or Console()
    documents, words = len(found.documents), len(found.words)
    console.print(Text.assemble((name, "bold"), f"  {documents:,} documents, {words:,} words with topics"))
    table = _table("topic", "share", "words")
    shares = found.document_shares.mean(axis=0)
    for topic, used in enumerate(found.top_words(_WORDS)):
        table.add_row(str(topic), f"{shares[topic]:.3f}", " ".join(used))
    console.print(table)
    console.print()


def print_gaps(name: str, one: TopicMeasurements, console: Console | None = None) -> None:
    """The gaps of a model layer by layer."""
    console = console or Console()
    tokens, words = len(one.ids), len(one.ids.unique())
    console.print(Text.assemble((name, "bold"), f"  {tokens:,} tokens with topics, {words:,} different"))
    table = _table("layer", "cosine", "control", "attention", "control", "difference", "largest head")
    for (layer, product), gap in one.embeddings.items():
        if product == "cosine":
            cells = [f"{gap.value:.4f}", f"{gap.control:.4f}"] if isinstance(gap, Gap) else ["", ""]
            of_layer = one.attention.get(layer) if isinstance(layer, int) else None
            if isinstance(of_layer, AttentionGap):
                cells += _attention(of_layer, one.length)
            table.add_row("input" if layer == TABLE else str(layer), *cells)
    console.print(table)
    reasons = [gap for gap in (*one.embeddings.values(), *one.attention.values()) if isinstance(gap, str)]
    for reason in dict.fromkeys(reasons):
        _say(console, f"no value where {reason}")
    _say(console, f"attention: mean over heads, times even attention (a weight of 1 / {one.length}); ± standard error")
    console.print()


def _attention(gap: AttentionGap, length: int) -> list[str]:
    mean, largest = gap.mean_over_heads, int(gap.difference.argmax())
    return [
        f"{length * mean.value[0]:.3f}",
        f"{length * mean.control[0]:.3f}",
        f"{length * mean.difference[0]:.3f} ± {length * mean.error[0]:.3f}",
        f"{largest}: {length * gap.difference[largest]:.2f} ± {length * gap.error[largest]:.2f}",
    ]


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        words = column == "words"
        table.add_column(column, justify="left" if words else "right", no_wrap=not words)
    return table


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False)

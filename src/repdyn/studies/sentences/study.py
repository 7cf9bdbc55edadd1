"""``repdyn study sentences``: vectors of paraphrases, of sentences with one thing changed, and of a collection."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import pandas as pd

from repdyn.studies.driver import Folder, Study, run
from repdyn.studies.models import LoadedModel
from repdyn.studies.output import Output, print_line, print_table, print_title, select
from repdyn.studies.sentences import figures, tables
from repdyn.studies.sentences.inputs import read_changes, read_collection, read_groups
from repdyn.studies.sentences.tables import SHARED_TOKENS
from repdyn.studies.sentences.vectors import POOLINGS, sentence_vectors, shared_token_cosines
from repdyn.tables.frames import by_stack
from repdyn.tables.style import of_stack
from repdyn.utils.arguments import ModelOptions, Models, at_least


class SentenceStudy(Study):
    """Vectors of sentences at every layer."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.groups, self.changes = read_groups(options.groups), read_changes(options.changes)
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
        vectors = sentence_vectors(loaded.model, sequences, "paraphrases")
        table = tables.separation_table(vectors, baseline, self.groups["group"].tolist(), seed=self.options.seed)
        output.tables["separation"] = table
        for stack, rows in by_stack(table).items():
            print_separation(rows)
            figure = figures.separation_figure(of_stack(loaded.name, stack), rows)
            output.figures[_stem("separation", stack)] = figure

    def _add_changes(self, loaded: LoadedModel, output: Output) -> None:
        sentences = pd.Index(self.changes[["before", "after"]].to_numpy().ravel("F")).unique()
        vectors = sentence_vectors(loaded.model, self._encode(loaded, sentences), "changes")
        before, after = (
            [one.take(sentences.get_indexer(self.changes[side].tolist())) for one in vectors]
            for side in ("before", "after")
        )
        output.tables["changes"] = table = tables.change_table(before, after, self.changes, seed=self.options.seed)
        for stack, rows in {} if table.empty else by_stack(table).items():
            print_changes(rows)
            output.figures[_stem("changes", stack)] = figures.change_figure(of_stack(loaded.name, stack), rows)

    def _add_collection(self, loaded: LoadedModel, output: Output) -> None:
        name, texts = self.collection
        vectors = sentence_vectors(loaded.model, self._encode(loaded, texts), "texts")
        table, histograms = tables.collection_table(vectors), tables.collection_histograms(vectors)
        output.tables.update(collection=table, collection_histograms=histograms)
        counts = by_stack(histograms)
        for stack, rows in by_stack(table).items():
            print_collection(name, rows)
            figure = figures.collection_figure(of_stack(loaded.name, stack), name, rows, counts[stack])
            output.figures[_stem("collection", stack)] = figure

    def _encode(self, loaded: LoadedModel, sentences: Iterable[str]) -> list[list[int]]:
        limit, sequences = min(self.options.max_tokens, loaded.context), []
        for sentence in sentences:
            sequences.append(list(loaded.tokenizer(sentence, truncation=True, max_length=limit)["input_ids"]))
            if not sequences[-1]:
                raise ValueError(
                    f"expected sentences of at least one token, got {sentence!r}, which has none in {loaded.name}"
                )
        return sequences


def _stem(name: str, stack: str | None) -> str:
    return name if stack is None else f"{name}_{stack}"


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
    run(SentenceStudy, loading, locals())


def print_separation(table: pd.DataFrame) -> None:
    """Print how well paraphrases are separated at the last layer, and the best layer of each pooling."""
    found = {name: rows for name in (*POOLINGS, SHARED_TOKENS) if len(rows := select(table, vector=name))}
    print_line("paraphrases at the last layer:")
    columns = [
        ("vector", "{vector}"),
        ("within", "{within:.3f}"),
        ("between", "{between:.3f}"),
        ("effect", "{effect:.2f}"),
    ]
    columns += [("95 %", "[{effect_low:.2f}, {effect_high:.2f}]"), ("closer", "{probability:.3f}")]
    print_table(pd.concat([rows.tail(1) for rows in found.values()]), [*columns, ("nearest", "{nearest:.0%}")])
    best = {name: rows.loc[rows["probability"].idxmax()] for name, rows in found.items() if name != SHARED_TOKENS}
    named = [f"{name} {row['layer']:.0f} ({row['probability']:.3f})" for name, row in best.items()]
    print_line(f"the layer at which paraphrases are closer most often: {', '.join(named)}")


def print_changes(table: pd.DataFrame) -> None:
    """Print how alike the differences are at the last layer."""
    columns = [("vector", "{vector}"), ("change", "{change}"), ("n", "{n:d}"), ("within", "{within:.3f}")]
    columns += [("across", "{across:.3f}"), ("p", "{p:.4f}"), ("length", "{length:.3f}")]
    print_line("cosine of two differences at the last layer:")
    print_table(select(table, layer=table["layer"].max()), columns)


def print_collection(source: str, table: pd.DataFrame) -> None:
    """Print how alike any two texts are at the last layer."""
    columns = [("vector", "{vector}"), ("mean", "{mean:.3f}"), ("5 %", "{q05:.3f}"), ("median", "{median:.3f}")]
    columns += [("95 %", "{q95:.3f}"), ("min", "{min:.3f}"), ("above 0", "{positive:.1%}")]
    print_line(f"cosine of two texts at the last layer ({source}):")
    print_table(select(table, layer=table["layer"].max()), columns)

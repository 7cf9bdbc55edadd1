"""``repdyn study sentences``: vectors of paraphrases, of sentences with one thing changed, and of a collection."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from tqdm import tqdm

from repdyn.studies.driver import Study
from repdyn.studies.models import LoadedModel
from repdyn.studies.output import Output, print_title
from repdyn.studies.sentences import figures, summary, tables
from repdyn.studies.sentences.inputs import read_changes, read_collection, read_groups
from repdyn.studies.sentences.vectors import SentenceVectors, sentence_vectors, shared_token_cosines
from repdyn.tables.frames import by_stack
from repdyn.tables.style import of_stack
from repdyn.utils.arguments import at_least


class SentenceStudy(Study):
    """Vectors of sentences at every layer."""

    help = (
        "Vectors of sentences at every layer: do paraphrases lie together, does one kind of change move them one way?"
    )
    examples = """examples:
  repdyn study sentences bert-base-cased sentence-transformers/all-MiniLM-L6-v2 -o FOLDER
  repdyn study sentences gpt2 --groups paraphrases.json --changes changes.csv -o FOLDER
  repdyn study sentences bert-base-cased --text enwik8 --texts 1000 -o FOLDER

paraphrases.json: {"group": ["sentence", ...], ...}          or CSV with the columns group, sentence
changes.json:     {"kind": [["before", "after"], ...], ...}  or CSV with the columns kind, before, after

Every model has a folder of its own in FOLDER, with tables as CSV and figures as PNG and SVG.
"""

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("sentences")
        group.add_argument(
            "--groups", type=Path, metavar="FILE", help="groups of paraphrases (default: 12 built-in ones)"
        )
        group.add_argument("--changes", type=Path, metavar="FILE", help="changed sentences (default: 48 built-in ones)")
        group.add_argument(
            "--text", default="builtin", help="collection of texts: builtin, enwik8, or a path (default: %(default)s)"
        )
        group.add_argument(
            "--texts",
            type=at_least(3),
            default=500,
            metavar="N",
            help="paragraphs of it, spread evenly (default: %(default)s)",
        )
        group.add_argument(
            "--max-tokens",
            type=at_least(2),
            default=128,
            metavar="N",
            help="tokens of a sentence or paragraph; longer ones are cut off (default: %(default)s)",
        )
        group.add_argument(
            "--seed", type=at_least(0), default=0, help="of bootstrap and permutations (default: %(default)s)"
        )

    def __init__(self, options: argparse.Namespace) -> None:
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
        sequences = self._encode(loaded, self.groups.sentences)
        baseline = shared_token_cosines(sequences, loaded.tokenizer.all_special_ids)
        vectors = sentence_vectors(loaded.model, sequences, _bar("paraphrases"))
        table = tables.separation_table(vectors, baseline, self.groups.groups, seed=self.options.seed)
        output.tables["separation"] = table
        for stack, rows in by_stack(table).items():
            summary.print_separation(rows)
            figure = figures.separation_figure(of_stack(loaded.name, stack), rows)
            output.figures[_stem("separation", stack)] = figure

    def _add_changes(self, loaded: LoadedModel, output: Output) -> None:
        changes = self.changes
        sentences = list(dict.fromkeys([*changes.before, *changes.after]))
        vectors = sentence_vectors(loaded.model, self._encode(loaded, sentences), _bar("changes"))
        before, after = (
            _take(vectors, [sentences.index(text) for text in texts]) for texts in (changes.before, changes.after)
        )
        table = tables.change_table(before, after, changes.kinds, changes.before, seed=self.options.seed)
        output.tables["changes"] = table
        for stack, rows in {} if table.empty else by_stack(table).items():
            summary.print_changes(rows)
            output.figures[_stem("changes", stack)] = figures.change_figure(of_stack(loaded.name, stack), rows)

    def _add_collection(self, loaded: LoadedModel, output: Output) -> None:
        name, texts = self.collection
        vectors = sentence_vectors(loaded.model, self._encode(loaded, texts), _bar("texts"))
        table, histograms = tables.collection_table(vectors), tables.collection_histograms(vectors)
        output.tables.update(collection=table, collection_histograms=histograms)
        counts = by_stack(histograms)
        for stack, rows in by_stack(table).items():
            summary.print_collection(name, rows)
            figure = figures.collection_figure(of_stack(loaded.name, stack), name, rows, counts[stack])
            output.figures[_stem("collection", stack)] = figure

    def _encode(self, loaded: LoadedModel, sentences: Sequence[str]) -> list[list[int]]:
        limit = min(self.options.max_tokens, loaded.context)
        sequences = [
            list(loaded.tokenizer(sentence, truncation=True, max_length=limit)["input_ids"]) for sentence in sentences
        ]
        if not all(sequences):
            empty = sentences[sequences.index([])]
            raise ValueError(
                f"expected sentences of at least one token, got {empty!r}, which has none in {loaded.name}"
            )
        return sequences


def _take(vectors: Iterable[SentenceVectors], numbers: Sequence[int]) -> list[SentenceVectors]:
    return [SentenceVectors(one.layer, one.pooling, one.vectors[list(numbers)]) for one in vectors]


def _stem(name: str, stack: str | None) -> str:
    return name if stack is None else f"{name}_{stack}"


def _bar(title: str) -> partial[tqdm[int]]:
    return partial(tqdm, desc=title, leave=False)


STUDY = SentenceStudy

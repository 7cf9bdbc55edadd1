"""``repdyn study sentences``: paraphrases, sentences with one thing changed, and a collection, as sentence vectors."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from tqdm import tqdm

from repdyn.studies import models as subjects
from repdyn.studies.models import LoadedModel
from repdyn.studies.output import Findings, print_written
from repdyn.studies.sentences import figures, results, summary
from repdyn.studies.sentences.inputs import Changes, Collection, Groups, read_changes, read_collection, read_groups
from repdyn.studies.sentences.vectors import SentenceVectors, sentence_vectors, tokens_in_common
from repdyn.tables.frames import by_stack
from repdyn.tables.style import of_stack
from repdyn.utils.arguments import at_least

HELP = "Vectors of sentences at every layer: do paraphrases lie together, does one kind of change move them one way?"
EXAMPLES = """examples:
  repdyn study sentences bert-base-cased sentence-transformers/all-MiniLM-L6-v2 -o FOLDER
  repdyn study sentences gpt2 --groups paraphrases.json --changes changes.csv -o FOLDER
  repdyn study sentences bert-base-cased --text enwik8 --texts 1000 -o FOLDER

paraphrases.json: {"group": ["sentence", ...], ...}          or CSV with the columns group, sentence
changes.json:     {"kind": [["before", "after"], ...], ...}  or CSV with the columns kind, before, after

Every model has a folder of its own in FOLDER, with tables as CSV and figures as PNG and SVG.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which sentences."""
    subjects.add_options(parser)
    group = parser.add_argument_group("which sentences")
    group.add_argument("--groups", type=Path, metavar="FILE", help="groups of paraphrases (default: 12 built-in ones)")
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
        help="of a sentence or paragraph, the rest is cut off (default: %(default)s)",
    )
    group.add_argument(
        "--seed", type=at_least(0), default=0, help="of bootstrap and permutations (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> None:
    """Print the study of each model, and write its tables and figures.

    Raises:
        ValueError, OSError, CheckpointError: a mistaken option or file, or a model that cannot be studied.
    """
    groups, changes = read_groups(options.groups), read_changes(options.changes)
    collection = read_collection(options.text, options.texts)
    for subject in subjects.subjects(options):
        findings = Findings()
        summary.print_name(subject.name)
        _groups(subject, groups, options, findings)
        _changes(subject, changes, options, findings)
        _collection(subject, collection, options, findings)
        folder = options.output / subject.folder_name
        print_written(folder, findings.write(folder))


def _groups(subject: LoadedModel, groups: Groups, options: argparse.Namespace, findings: Findings) -> None:
    sequences = _tokens(subject, groups.sentences, options.max_tokens)
    words = tokens_in_common(sequences, subject.tokenizer.all_special_ids)
    vectors = sentence_vectors(subject.model, sequences, _bar("paraphrases"))
    table = results.separation_table(vectors, words, groups.groups, seed=options.seed)
    findings.tables["separation"] = table
    for stack, rows in by_stack(table).items():
        summary.print_separation(rows)
        findings.figures[_stem("separation", stack)] = figures.separation_figure(of_stack(subject.name, stack), rows)


def _changes(subject: LoadedModel, changes: Changes, options: argparse.Namespace, findings: Findings) -> None:
    sentences = list(dict.fromkeys([*changes.before, *changes.after]))
    places = {sentence: number for number, sentence in enumerate(sentences)}
    vectors = sentence_vectors(subject.model, _tokens(subject, sentences, options.max_tokens), _bar("changes"))
    before, after = (_of(vectors, [places[text] for text in texts]) for texts in (changes.before, changes.after))
    table = results.change_table(before, after, changes.kinds, changes.before, seed=options.seed)
    findings.tables["changes"] = table
    for stack, rows in {} if table.empty else by_stack(table).items():
        summary.print_changes(rows)
        findings.figures[_stem("changes", stack)] = figures.change_figure(of_stack(subject.name, stack), rows)


def _collection(subject: LoadedModel, collection: Collection, options: argparse.Namespace, findings: Findings) -> None:
    sequences = _tokens(subject, collection.texts, options.max_tokens)
    vectors = sentence_vectors(subject.model, sequences, _bar("texts"))
    table, histograms = results.collection_table(vectors), results.collection_histograms(vectors)
    findings.tables["collection"], findings.tables["collection_histograms"] = table, histograms
    counts = by_stack(histograms)
    for stack, rows in by_stack(table).items():
        summary.print_collection(collection.name, rows)
        findings.figures[_stem("collection", stack)] = figures.collection_figure(
            of_stack(subject.name, stack), collection.name, rows, counts[stack]
        )


def _tokens(subject: LoadedModel, sentences: Sequence[str], most: int) -> list[list[int]]:
    limit = min(most, subject.context)
    sequences = [
        list(subject.tokenizer(sentence, truncation=True, max_length=limit)["input_ids"]) for sentence in sentences
    ]
    if not all(sequences):
        empty = next(sentence for sentence, tokens in zip(sentences, sequences, strict=True) if not tokens)
        raise ValueError(f"expected sentences of at least one token, got {empty!r}, which has none in {subject.name}")
    return sequences


def _of(vectors: Iterable[SentenceVectors], numbers: Sequence[int]) -> list[SentenceVectors]:
    return [SentenceVectors(one.layer, one.kind, one.vectors[list(numbers)]) for one in vectors]


def _stem(name: str, stack: str | None) -> str:
    return name if stack is None else f"{name}_{stack}"


def _bar(what: str) -> partial[tqdm[int]]:
    return partial(tqdm, desc=what, leave=False)

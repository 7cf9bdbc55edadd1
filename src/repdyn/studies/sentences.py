"""``repdyn study sentences``: vectors of paraphrases, of sentences with one thing changed, and of a collection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch

from repdyn.reading import LoadedModel
from repdyn.studies import sentence_figures as draw
from repdyn.studies import sentence_measurements as measured
from repdyn.studies.planes import plane_figure, plane_table
from repdyn.studies.sentence_measurements import MEAN, SENSE, SentenceVectors, sentence_vectors
from repdyn.studies.study import Folder, Study, print_line, print_table, print_title, run_study, select, stem
from repdyn.tables.frames import by_stack
from repdyn.tables.style import of_stack
from repdyn.utils.arguments import ModelOptions, Models, at_least

_MOST_COLOURS = 4
"""Groups that a plane tells apart; of more, all have one colour."""


class SentenceStudy(Study):
    """Vectors of sentences at every layer."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        groups, changes = (measured.BUILT_IN.get(name, Path(name)) for name in (options.groups, options.changes))
        self.groups = measured.fill_slots(measured.read_texts(groups, "group", "sentence"))
        self.changes = measured.read_texts(changes, "kind", "before", "after")
        self.collection = measured.read_collection(options.text, options.texts)
        self.other = measured.read_collection(options.other, options.texts) if options.other else None
        if self.other and self.other[0] == self.collection[0]:
            raise ValueError(f"expected two different texts, got {self.other[0]} twice; name another with --other")

    def measure(self, loaded: LoadedModel) -> None:
        print_title(loaded.name)
        self._add_groups(loaded)
        self._add_nonsense(loaded)
        self._add_changes(loaded)
        vectors = self._add_collection(loaded)
        if self.other is not None:
            self._add_other(loaded, vectors, *self.other)
        self.write(loaded.folder_name)

    def _add_groups(self, loaded: LoadedModel) -> None:
        sequences = self._encode(loaded, self.groups["sentence"])
        baseline = measured.shared_token_cosines(sequences, loaded.tokenizer.all_special_ids)
        vectors = sentence_vectors(loaded, sequences, "paraphrases")
        table = measured.separation_table(vectors, baseline, self.groups["group"].tolist(), seed=self.options.seed)
        self.tables["separation"] = table
        for stack, rows in by_stack(table).items():
            print_line("paraphrases at the last layer, and without a model:")
            print_table(rows.groupby("vector", sort=False).tail(1), "vector", "within", "between", "effect", "nearest")
            self.figures[stem("separation", stack)] = draw.separation_figure(of_stack(loaded.name, stack), rows)

    def _add_nonsense(self, loaded: LoadedModel) -> None:
        made = measured.nonsense(len(self.groups), self.options.seed)
        texts = pd.concat([self.groups[["sentence"]].assign(kind=SENSE), made], ignore_index=True)
        vectors = sentence_vectors(loaded, self._encode(loaded, texts["sentence"]), "nonsense")
        self.tables["nonsense"] = table = measured.nonsense_table(vectors, texts["kind"].tolist())
        groups = self.groups["group"]
        of_sense = groups if len(set(groups)) <= _MOST_COLOURS else [SENSE] * len(groups)
        labels = {"sentence": texts["sentence"].tolist(), "kind": [*of_sense, *made["kind"]]}
        for stack, one in _last_means(vectors).items():
            print_line("nearest sentence is of the same side, sense or nonsense, and of the same kind of nonsense:")
            print_table(select(table, stack=stack, layer=one.layer), "vector", "nonsense", "kinds")
            title = f"{of_stack(loaded.name, stack)}: sentences and nonsense"
            self._add_plane(stem("plane_of_sentences", stack), title, one, labels)

    def _add_changes(self, loaded: LoadedModel) -> None:
        seed, sentences = self.options.seed, pd.Index(self.changes[["before", "after"]].to_numpy().ravel("F")).unique()
        vectors = sentence_vectors(loaded, self._encode(loaded, sentences), "changes")
        before, after = (
            [replace(one, vectors=one.vectors[sentences.get_indexer(self.changes[side].tolist())]) for one in vectors]
            for side in ("before", "after")
        )
        kinds = self.changes["kind"].tolist()
        self.tables["changes"] = table = measured.change_table(before, after, self.changes, seed=seed)
        self.tables["kinds_of_change"] = matrix = measured.kind_matrix(before, after, kinds, seed=seed)
        for stack, rows in {} if matrix.empty else by_stack(matrix).items():
            self.figures[stem("kinds_of_change", stack)] = draw.kinds_figure(of_stack(loaded.name, stack), rows)
        others = _last_means(after)
        for stack, one in _last_means(before).items():
            title = f"{of_stack(loaded.name, stack)}: what a change adds, mean of the tokens after layer {one.layer}"
            figure = draw.differences_figure(title, others[stack].vectors - one.vectors, kinds)
            self.figures[stem("plane_of_changes", stack)] = figure
        for stack, rows in {} if table.empty else by_stack(table).items():
            print_line("cosine of two differences at the last layer:")
            last = select(rows, layer=rows["layer"].max())
            print_table(last, "vector", "change", "n", "within", "across", "p", "length")
            self.figures[stem("changes", stack)] = draw.change_figure(of_stack(loaded.name, stack), rows)

    def _add_collection(self, loaded: LoadedModel) -> list[SentenceVectors]:
        name, texts = self.collection
        vectors = sentence_vectors(loaded, self._encode(loaded, texts), "texts")
        self.tables["collection"], self.tables["collection_histograms"] = measured.collection_tables(vectors)
        counts = by_stack(self.tables["collection_histograms"])
        for stack, rows in by_stack(self.tables["collection"]).items():
            print_line(f"cosine of two texts at the last layer ({name}):")
            last = select(rows, layer=rows["layer"].max())
            print_table(last, "vector", "mean", "q05", "median", "q95", "min", "positive")
            figure = draw.collection_figure(of_stack(loaded.name, stack), name, rows, counts[stack])
            self.figures[stem("collection", stack)] = figure
        return vectors

    def _add_other(self, loaded: LoadedModel, vectors: list[SentenceVectors], name: str, texts: Sequence[str]) -> None:
        others = sentence_vectors(loaded, self._encode(loaded, texts), "other texts")
        labels = np.repeat([self.collection[0], name], [len(self.collection[1]), len(texts)])
        both = [
            replace(one, vectors=np.concatenate([one.vectors, other.vectors]))
            for one, other in zip(vectors, others, strict=True)
        ]
        self.tables["two_collections"] = measured.collections_table(both, labels)
        for stack, one in _last_means(both).items():
            title = f"{of_stack(loaded.name, stack)}: two collections of texts"
            caption = self._add_plane(stem("plane_of_collections", stack), title, one, {"texts": labels.tolist()})
            figure = draw.collections_figure(title, caption, measured.collection_values(one, labels))
            self.figures[stem("two_collections", stack)] = figure
            print_line(f"lengths, and pairs of texts, at the last layer (mean of the tokens) of {name} as well:")
            rows = select(self.tables["two_collections"], **one.keys)
            print_table(rows, "texts", "quantity", "mean", "q05", "q95", "nearest")

    def _add_plane(self, path: str, title: str, one: SentenceVectors, labels: dict[str, list[str]]) -> str:
        """Add a plane of vectors, coloured by the last label; return its caption."""
        caption = f"mean of the tokens after layer {one.layer}"
        self.tables[path] = plane_table(torch.from_numpy(one.vectors), labels, self.options.seed)
        self.figures[path] = plane_figure(title, caption, self.tables[path], [*labels][-1])
        return caption

    def _encode(self, loaded: LoadedModel, sentences: Iterable[str]) -> list[list[int]]:
        limit, sequences = min(self.options.max_tokens, loaded.context), []
        for sentence in sentences:
            sequences.append(list(loaded.tokenizer(sentence, truncation=True, max_length=limit)["input_ids"]))
            if not sequences[-1]:
                raise ValueError(
                    f"expected sentences of at least one token, got {sentence!r}, which has none in {loaded.name}"
                )
        return sequences


def _last_means(vectors: Sequence[SentenceVectors]) -> dict[str | None, SentenceVectors]:
    """Return the means over tokens at the last layer, by stack."""
    return {one.stack: one for one in sorted(vectors, key=lambda one: one.layer) if one.pooling == MEAN}


def sentences(
    models: Models,
    /,
    *,
    output: Folder,
    loading: ModelOptions = ModelOptions(),
    groups: str = "paraphrases",
    changes: str = "grammar",
    text: str = "builtin",
    other: str | None = None,
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
        groups: File of groups of paraphrases, or built-in ones: paraphrases (12 groups of 5), or templates (27, 27, 27
            and 10 sentences). A sentence may have slots: "{Hello|Hi} there!" stands for two.
        changes: File of changed sentences, or built-in ones: grammar (number, negation, tense, he to she), or concepts
            (light, profession, gender, nationality, mood, laughter).
        text: Collection of texts: builtin, enwik8, or a path.
        other: Second collection, for comparison.
        texts: Paragraphs of each, spread evenly.
        max_tokens: Tokens of a sentence or paragraph; longer ones are cut off.
        seed: Of bootstrap and permutations.

    Examples:
      repdyn study sentences bert-base-cased gpt2 -o FOLDER
      repdyn study sentences bert-base-cased --changes concepts -o FOLDER
      repdyn study sentences gpt2 --groups templates -o FOLDER
      repdyn study sentences gpt2 --text enwik8 --other tweets.txt -o FOLDER
    """
    run_study(SentenceStudy, loading, locals())

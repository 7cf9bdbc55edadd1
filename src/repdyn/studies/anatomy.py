"""``repdyn study anatomy``: a model's embedding tables, and the paths of two sentences through its layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch

from repdyn.probe.word_classes import is_function_word
from repdyn.reading import LoadedModel, file_name
from repdyn.studies.anatomy_figures import (
    depth_figure,
    path_figure,
    paths_figure,
    plain,
    similarity_figure,
    tables_figure,
)
from repdyn.studies.embedding_tables import (
    MAX_PAIRS,
    EmbeddingTable,
    TableMeasurements,
    closest_table,
    cosine_matrix,
    embedding_tables,
    measure_table,
    tabulate,
    without_twins,
)
from repdyn.studies.known_words import compare_opposites, probe_words, word_rows
from repdyn.studies.paths import (
    MIN_POSITIONS,
    TokenTrajectory,
    by_offset,
    cross_sentence_cosine,
    cross_sentence_table,
    find_order_end,
    find_rotation,
    match_tokens,
    principal,
    sentence_trajectories,
    trajectory_table,
)
from repdyn.studies.planes import plane_figure, plane_table
from repdyn.studies.study import Folder, Output, Study, print_line, print_table, print_title, run_study, stem
from repdyn.studies.table_geometry import (
    dimension_figure,
    dimension_table,
    known_clouds,
    loops_table,
    quantisation_table,
    sinusoids,
)
from repdyn.studies.table_relations import (
    about_mean_figure,
    across_tables,
    ends_about_mean,
    extreme_pairs,
    looks_of,
    looks_table,
    position_image,
    shared_vocabulary,
    start_of_text,
    token_kinds,
    vocabulary_table,
)
from repdyn.tables.style import of_stack
from repdyn.utils.arguments import SENTENCES, Count, ModelOptions, Models, at_least, converted, listed


class AnatomyStudy(Study):
    """The embedding tables of a model, and the paths of tokens through its layers."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.vocabularies: dict[str, pd.DataFrame] = {}

    def measure(self, loaded: LoadedModel) -> None:
        output = Output()
        print_title(loaded.name)
        trajectories = sentence_trajectories(loaded, self.options.pair)
        self._add_tables(loaded, output)
        for stack, pair in trajectories.items():
            _add_trajectories(of_stack(loaded.name, stack), stack, pair, self.options.follow, output)
        self.write(output, loaded.folder_name)

    def _add_tables(self, loaded: LoadedModel, output: Output) -> None:
        options, tables, known = self.options, [], {}
        for table in embedding_tables(loaded.model, loaded.tokenizer, unused=options.unused):
            if table.kind == "input" and not options.unused:
                table, known[table.name] = without_twins(table, options.closest)
            if table.kind == "position" and options.positions is not None:
                table = table.subset(np.arange(min(options.positions, len(table.rows))), "beyond --positions")
            tables.append(table)
        positions = [table for table in tables if table.kind == "position"]
        beside = [sinusoids(positions[0])] if positions else []
        measured = [measure_table(each, pairs=options.pairs, seed=options.seed) for each in (*tables, *beside)]
        output.tables.update(tabulate(measured))
        output.tables["closest"] = closest_table(tables, options.closest, known)
        output.tables["known_clouds"] = dimension_table(known_clouds(options.seed))
        output.figures["tables"] = tables_figure(loaded.name, measured[: len(tables)])
        curves = {one.table.name: one.explained for one in measured if len(one.explained)}
        output.figures["dimension_curves"] = dimension_figure(loaded.name, curves, options.seed)
        self.vocabularies[loaded.name] = token_kinds(loaded.tokenizer)
        self._add_relations(loaded, tables, measured[0], output)
        print_table(output.tables["distributions"], "table", "quantity", "mean", "q05", "median", "q95", "min", "max")
        print_table(output.tables["tables"], "table", "parameter", "rows", "dim", "left_out", "all_pairs", "mean_share")
        self._add_words(tables[0], self.vocabularies[loaded.name], output)
        layouts = [_add_positions(loaded, table, output, options.seed) for table in (*positions, *beside)]
        self._add_start(loaded, tables[0], positions, output)
        if positions:
            output.tables["position_layouts"] = pd.DataFrame(layouts)
            print_table(output.tables["position_layouts"])
            loops = [loops_table(table, options.seed) for table in (*positions, *beside)] if find_spec("ripser") else []
            output.tables.update({"position_loops": pd.concat(loops)} if loops else {})
            print_line("" if loops else "loops of the positions are not searched: pip install 'repdyn[topology]'")
        else:
            print_line(
                "no position table is looked up: positions enter otherwise (rotary, relative, sinusoids), or not"
            )

    def _add_start(
        self, loaded: LoadedModel, words: EmbeddingTable, positions: Sequence[EmbeddingTable], output: Output
    ) -> None:
        """Add how the input embedding of the token that starts a text relates to position 0."""
        token = loaded.tokenizer.cls_token or loaded.tokenizer.bos_token
        for table in positions:
            start = start_of_text(words, table, token if isinstance(token, str) else None)
            if start:
                output.tables[f"{_file_stem(table)}_start"] = pd.DataFrame([start])
                print_table(output.tables[f"{_file_stem(table)}_start"])

    def _add_words(self, words: EmbeddingTable, kinds: pd.DataFrame, output: Output) -> None:
        """Add what few bits do to the input table, and what it says of parts of speech and opposites."""
        seed, rows = self.options.seed, word_rows(words, kinds)
        output.tables["quantisation"] = quantisation_table(words, seed)
        print_table(output.tables["quantisation"])
        found = {**compare_opposites(words, rows, seed), **probe_words(words, rows, seed)}
        output.tables.update(found)
        for table in found.values():
            print_table(table)
        if "word_probe" not in found:
            print_line("parts of speech are not read from the input table: too few of the known words are in it")

    def _add_relations(
        self, loaded: LoadedModel, tables: Sequence[EmbeddingTable], measured: TableMeasurements, output: Output
    ) -> None:
        words, kinds = measured.table, self.vocabularies[loaded.name]
        values, looks = measured.about.assign(label=words.labels), looks_of(words.labels, kinds)
        output.tables["vocabulary"] = vocabulary_table(kinds)
        output.tables["extreme_pairs"] = extreme_pairs(words, self.options.closest)
        output.tables["about_mean"] = ends_about_mean(values, self.options.closest)
        output.tables["across_tables"] = across_tables(tables)
        output.tables["kinds_of_tokens"] = looks_table(looks, values, measured.values["norm"])
        output.figures["about_mean"] = about_mean_figure(loaded.name, values)
        print_table(output.tables["vocabulary"], "kind", "tokens", "share")
        print_table(output.tables["kinds_of_tokens"])
        planes = {"plane_of_tokens": [words]}
        for table in tables:
            if table.kind == "position" and table.rows.shape[1] == words.rows.shape[1]:
                planes[f"plane_of_tokens_and_{_file_stem(table)}"] = [words, table]
            if table.kind == "position" and len(table.rows) > 3:
                planes[f"{_file_stem(table)}_plane"] = [table]
        for name, together in planes.items():
            labels = {
                "label": [label for each in together for label in each.labels],
                "position": [
                    float(label) if each.kind == "position" else math.nan for each in together for label in each.labels
                ],
                "kind": [
                    kind for each in together for kind in (looks if each is words else ["position"] * len(each.labels))
                ],
            }
            plane = plane_table(torch.cat([each.rows for each in together]), labels, self.options.seed)
            drawn = f"{len(plane) // plane['method'].nunique():,} rows, of each kind alike"
            output.tables[name] = plane
            output.figures[name] = plane_figure(
                f"{loaded.name}: embeddings in a plane", drawn, plane, "kind", "position"
            )

    def finish(self) -> None:
        if len(self.vocabularies) > 1:
            output = Output(tables={"shared_vocabulary": shared_vocabulary(self.vocabularies)})
            print_table(output.tables["shared_vocabulary"])
            self.write(output)


def _file_stem(table: EmbeddingTable) -> str:
    return file_name(table.name.replace(": ", " "))


def _add_positions(loaded: LoadedModel, table: EmbeddingTable, output: Output, seed: int) -> dict[str, Any]:
    """Add tables and figures of the layout of positions; return its numbers."""
    name, stem = f"{loaded.name}, {table.name}", _file_stem(table)
    matrix, components = cosine_matrix(table.rows), principal(table.rows)
    offsets, rotation = by_offset(matrix), find_rotation(components)
    order_end = find_order_end(table.rows) if len(table.rows) >= MIN_POSITIONS else None
    output.tables[f"{stem}_offsets"] = offsets
    coordinates = {f"component_{number}": values for number, values in enumerate(components.scores.T, start=1)}
    output.tables[f"{stem}_components"] = pd.DataFrame({"position": range(len(table.rows)), **coordinates})
    output.figures[f"{stem}_image"] = position_image(name, table.rows)
    output.figures[f"{stem}_cosines"] = similarity_figure(name, matrix, offsets, order_end)
    if components.scores.shape[1] >= 3:
        output.figures[f"{stem}_path"] = path_figure(name, components, rotation)
    if rotation is not None:
        output.tables[f"{stem}_turns"] = rotation.windows
    neighbours = offsets.loc[offsets["offset"] == 1, "mean"]
    layout = {
        "table": table.name,
        "positions": len(table.rows),
        "neighbours": neighbours.mean(),
        "order_end": order_end,
    }
    if rotation is not None:
        layout |= {"period": rotation.period, "share": rotation.share, "purity": rotation.purity, "ends": rotation.ends}
    return layout


def _add_trajectories(
    name: str,
    stack: str | None,
    pair: tuple[TokenTrajectory, TokenTrajectory],
    follow: Sequence[str],
    output: Output,
) -> None:
    frames = [trajectory_table(one).assign(sentence=number) for number, one in enumerate(pair, start=1)]
    output.tables[stem("depth", stack)] = pd.concat(frames, ignore_index=True)
    output.tables[stem("depth_apart", stack)] = cross_sentence_table(*pair)
    output.figures[stem("depth", stack)] = depth_figure(name, *pair)
    output.figures[stem("paths", stack)] = paths_figure(name, *pair)
    if len(pair[0].layers) > 2:
        early = [replace(one, states=one.states[:-1], layers=one.layers[:-1]) for one in pair]
        output.figures[stem("paths_without_last", stack)] = paths_figure(f"{name} without its last layer", *early)
    chosen = [
        replace(one, tokens=tuple(one.tokens[place] for place in places), states=one.states[:, places])
        for one, places in zip(pair, followed(*pair, follow), strict=True)
    ]
    if any(one.tokens for one in chosen):
        output.figures[stem("paths_followed", stack)] = paths_figure(name, *chosen)


def followed(one: TokenTrajectory, other: TokenTrajectory, words: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the places of some tokens in two sentences.

    Args:
        words: tokens without the mark of a space; if none, the content word of both sentences that ends least
            alike is taken.

    Raises:
        ValueError: neither sentence has any of them.
    """
    if words:
        places = [[place for place, token in enumerate(each.tokens) if plain(token) in words] for each in (one, other)]
        if not any(places):
            tokens = ", ".join(dict.fromkeys(map(plain, (*one.tokens, *other.tokens))))
            raise ValueError(f"expected tokens of the sentences to follow, got {', '.join(words)}; they have {tokens}")
        return places[0], places[1]
    cosines = zip(cross_sentence_cosine(one, other)[-1].tolist(), match_tokens(one.tokens, other.tokens), strict=True)
    shared = [(cosine, a, b) for cosine, (a, b, equal) in cosines if equal]
    content = [each for each in shared if (word := plain(one.tokens[each[1]])).isalpha() and not is_function_word(word)]
    return ([min(content)[1]], [min(content)[2]]) if content else ([], [])


def anatomy(
    models: Models,
    /,
    *,
    output: Folder,
    loading: ModelOptions = ModelOptions(),
    pair: tuple[str, str] = SENTENCES,
    follow: Annotated[tuple[str, ...], converted(listed, "TOKENS")] = (),
    closest: Count = 20,
    pairs: Count = MAX_PAIRS,
    seed: Annotated[int, at_least(0)] = 0,
    positions: Count | None = None,
    unused: bool = False,
) -> None:
    """Study anatomy: context-free embeddings (input, position, segment), and paths of tokens through the layers.

    Every model has a folder of its own in FOLDER, with tables as CSV and figures as PNG and SVG.

    Args:
        models: Hub repository, also as REPOSITORY@REVISION, folder of save_pretrained, or folder of a run.
        output: Folder for tables and figures.
        pair: Two sentences.
        follow: Tokens whose paths are drawn alone, separated by commas (default: the word of both that ends
            least alike, but no function word).
        closest: Number of closest, of furthest and of other extreme pairs and tokens.
        pairs: Pairs of rows sampled for a distribution; all if there are no more.
        seed: Of that sample.
        positions: Number of the first positions that are measured (default: all).
        unused: Keep rows of the input table that training did not distinguish.

    Examples:
      repdyn study anatomy bert-base-cased -o FOLDER
      repdyn study anatomy gpt2 facebook/opt-125m --closest 50 -o FOLDER
      repdyn study anatomy gpt2 --pair "He plays the bass." "He eats the bass." -o F
    """
    run_study(AnatomyStudy, loading, locals())

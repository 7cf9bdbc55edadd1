"""``repdyn study anatomy``: a model's embedding tables, and the paths of two sentences through its layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch

from repdyn.reading import LoadedModel, file_name
from repdyn.studies.anatomy_figures import depth_figure, path_figure, paths_figure, similarity_figure, tables_figure
from repdyn.studies.embedding_tables import (
    MAX_PAIRS,
    EmbeddingTable,
    closest_table,
    cosine_matrix,
    embedding_tables,
    measure_table,
    tabulate,
    without_twins,
)
from repdyn.studies.paths import (
    MIN_POSITIONS,
    Rotation,
    TokenTrajectory,
    by_offset,
    cross_sentence_table,
    find_order_end,
    find_rotation,
    principal,
    sentence_trajectories,
    trajectory_table,
)
from repdyn.studies.planes import plane_figure, plane_table
from repdyn.studies.study import Folder, Output, Study, print_line, print_table, print_title, run_study, stem
from repdyn.studies.table_relations import (
    about_mean,
    about_mean_figure,
    across_tables,
    ends_about_mean,
    extreme_pairs,
    kinds_of,
    position_image,
    shared_vocabulary,
    start_of_text,
    token_kinds,
    vocabulary_table,
)
from repdyn.tables.style import of_stack
from repdyn.utils.arguments import SENTENCES, Count, ModelOptions, Models, at_least


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
            _add_trajectories(of_stack(loaded.name, stack), stack, pair, output)
        self.write(output, loaded.folder_name)

    def _add_tables(self, loaded: LoadedModel, output: Output) -> None:
        options, tables, known = self.options, [], {}
        for table in embedding_tables(loaded.model, loaded.tokenizer, unused=options.unused):
            if table.kind == "input" and not options.unused:
                table, known[table.name] = without_twins(table, options.closest)
            if table.kind == "position" and options.positions is not None:
                table = table.subset(np.arange(min(options.positions, len(table.rows))), "beyond --positions")
            tables.append(table)
        measured = [measure_table(table, pairs=options.pairs, seed=options.seed) for table in tables]
        output.tables.update(tabulate(measured))
        output.tables["closest"] = closest_table(tables, options.closest, known)
        output.figures["tables"] = tables_figure(loaded.name, measured)
        self._add_relations(loaded, tables, output)
        print_tables(output.tables["tables"], output.tables["distributions"])
        positions = [table for table in tables if table.kind == "position"]
        for table in positions:
            _add_positions(loaded, table, tables[0], output, options.seed)
        if not positions:
            print_line(
                "no position table is looked up: positions enter otherwise (rotary, relative, sinusoids), or not"
            )

    def _add_relations(self, loaded: LoadedModel, tables: Sequence[EmbeddingTable], output: Output) -> None:
        words, kinds, seed = tables[0], token_kinds(loaded.tokenizer), self.options.seed
        self.vocabularies[loaded.name] = kinds
        values = about_mean(words)
        output.tables["vocabulary"] = vocabulary_table(kinds)
        output.tables["extreme_pairs"] = extreme_pairs(words, self.options.closest)
        output.tables["about_mean"] = ends_about_mean(values, self.options.closest)
        output.tables["across_tables"] = across_tables(tables)
        output.figures["about_mean"] = about_mean_figure(loaded.name, values)
        print_table(output.tables["vocabulary"], "kind", "tokens", "share")
        width = words.rows.shape[1]
        beside = [table for table in tables[1:] if table.kind == "position" and table.rows.shape[1] == width]
        for together in ([words], *([words, table] for table in beside)):
            labels = {
                "label": [label for each in together for label in each.labels],
                "position": [math.nan] * len(words.labels) + [float(n) for each in together[1:] for n in each.labels],
                "kind": kinds_of(words.labels, kinds) + ["position" for each in together[1:] for _ in each.labels],
            }
            planes = plane_table(torch.cat([each.rows for each in together]), labels, seed)
            name = file_name("_and_".join(["plane_of_tokens", *(each.name for each in together[1:])]))
            title, drawn = f"{loaded.name}: embeddings in a plane", len(planes) // planes["method"].nunique()
            output.tables[name] = planes
            output.figures[name] = plane_figure(
                title, f"{drawn:,} rows, of each kind alike", planes, "kind", "position"
            )

    def finish(self) -> None:
        if len(self.vocabularies) > 1:
            output = Output(tables={"shared_vocabulary": shared_vocabulary(self.vocabularies)})
            print_table(output.tables["shared_vocabulary"])
            self.write(output)


def _add_positions(
    loaded: LoadedModel, table: EmbeddingTable, words: EmbeddingTable, output: Output, seed: int
) -> None:
    name, stem = f"{loaded.name}, {table.name}", file_name(table.name.replace(": ", " "))
    matrix, components = cosine_matrix(table.rows), principal(table.rows)
    offsets, rotation = by_offset(matrix), find_rotation(components)
    order_end = find_order_end(table.rows) if len(table.rows) >= MIN_POSITIONS else None
    output.tables[f"{stem}_offsets"] = offsets
    coordinates = {f"component_{number}": values for number, values in enumerate(components.scores.T, start=1)}
    output.tables[f"{stem}_components"] = pd.DataFrame({"position": range(len(table.rows)), **coordinates})
    output.figures[f"{stem}_image"] = position_image(name, table.rows)
    if len(table.rows) > 3:
        labels = {"position": [*range(len(table.rows))], "kind": [table.name] * len(table.rows)}
        planes = output.tables[f"{stem}_plane"] = plane_table(table.rows, labels, seed)
        title = f"{name}: the rows in a plane"
        output.figures[f"{stem}_plane"] = plane_figure(title, "coloured by number", planes, "kind", "position")
    output.figures[f"{stem}_cosines"] = similarity_figure(name, matrix, offsets, order_end)
    if components.scores.shape[1] >= 3:
        output.figures[f"{stem}_path"] = path_figure(name, components, rotation)
    if rotation is not None:
        output.tables[f"{stem}_turns"] = rotation.windows
    found = loaded.tokenizer.cls_token or loaded.tokenizer.bos_token
    token = found if isinstance(found, str) else None
    start = start_of_text(words, table, token)
    if start:
        output.tables[f"{stem}_start"] = pd.DataFrame([start])
    print_positions(table, offsets, rotation, order_end, start)


def _add_trajectories(
    name: str, stack: str | None, pair: tuple[TokenTrajectory, TokenTrajectory], output: Output
) -> None:
    frames = [trajectory_table(one).assign(sentence=number) for number, one in enumerate(pair, start=1)]
    output.tables[stem("depth", stack)] = pd.concat(frames, ignore_index=True)
    output.tables[stem("depth_apart", stack)] = cross_sentence_table(*pair)
    output.figures[stem("depth", stack)] = depth_figure(name, *pair)
    output.figures[stem("paths", stack)] = paths_figure(name, *pair)


def anatomy(
    models: Models,
    /,
    *,
    output: Folder,
    loading: ModelOptions = ModelOptions(),
    pair: tuple[str, str] = SENTENCES,
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


def print_tables(overview: pd.DataFrame, distributions: pd.DataFrame) -> None:
    """Print a row for each table and quantity, and what was left out."""
    print_table(distributions, "table", "quantity", "mean", "q05", "median", "q95", "min", "max")
    for row in overview.to_dict("records"):
        left_out = f"; left out: {row['left_out']}" if row["left_out"] else ""
        pairs = "all pairs" if row["all_pairs"] else f"{row['pairs']:,} pairs drawn"
        print_line(
            f"{row['table']}: {row['rows']:,} rows of {row['dim']} ({row['parameter']}), {pairs}{left_out}; "
            f"the mean row holds {row['mean_share']:.1%} of the squared length"
        )


def print_positions(
    table: EmbeddingTable,
    offsets: pd.DataFrame,
    rotation: Rotation | None,
    order_end: int | None,
    start: Mapping[str, Any],
) -> None:
    """Print the layout of positions: neighbours, rotation, order, and position 0 with the token that starts a text."""
    neighbours = offsets.loc[offsets["offset"] == 1, "mean"]
    n = len(table.rows)
    if len(neighbours):
        print_line(f"{table.name}: cosine of neighbours {float(neighbours.iloc[0]):.3f} on average")
    if rotation is not None and rotation.is_clear:
        a, b = (number + 1 for number in rotation.components)
        end = "to the last" if rotation.ends == n else f"up to position {rotation.ends}"
        print_line(
            f"{table.name}: one turn per {rotation.period:.2f} positions in components {a} and {b}, "
            f"{rotation.share:.1%} of the variance, {end}"
        )
    elif rotation is not None:
        print_line(f"{table.name}: no plane rotates clearly (the best has a purity of {rotation.purity:.2f})")
    if order_end is not None:
        end = "order holds to the last position" if order_end == n else f"order ends near {order_end}"
        print_line(f"{table.name}: {end}")
    if start:
        print_line(
            f"the input embedding of {start['token']} and position 0: cosine {start['cosine']:.3f}, lengths "
            f"{start['length']:.3f} and {start['length_of_position']:.3f}, distance {start['distance']:.3f}, largest "
            f"difference of a coordinate {start['largest_difference']:.3f}"
        )

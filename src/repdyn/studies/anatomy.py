"""``repdyn study anatomy``: a model's embedding tables, and the paths of two sentences through its layers."""

from __future__ import annotations

import math
from typing import Annotated

import pandas as pd

from repdyn.reading import LoadedModel, file_name
from repdyn.studies.anatomy_figures import depth_figure, path_figure, paths_figure, similarity_figure, tables_figure
from repdyn.studies.embedding_tables import (
    MAX_PAIRS,
    EmbeddingTable,
    closest_table,
    cosine_matrix,
    embedding_tables,
    measure_table,
    start_cosine,
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
from repdyn.studies.study import Folder, Output, Study, print_line, print_table, print_title, run_study, stem
from repdyn.tables.style import of_stack
from repdyn.utils.arguments import SENTENCES, Count, ModelOptions, Models, at_least

"""One word differs, and another changes its meaning."""


class AnatomyStudy(Study):
    """The embedding tables of a model, and the paths of tokens through its layers."""

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
            tables.append(table)
        measured = [measure_table(table, pairs=options.pairs, seed=options.seed) for table in tables]
        output.tables.update(tabulate(measured))
        output.tables["closest"] = closest_table(tables, options.closest, known)
        output.figures["tables"] = tables_figure(loaded.name, measured)
        print_tables(output.tables["tables"], output.tables["distributions"])
        positions = [table for table in tables if table.kind == "position"]
        for table in positions:
            _add_positions(loaded, table, tables[0], output)
        if not positions:
            print_line(
                "no position table is looked up: positions enter otherwise (rotary, relative, sinusoids), or not"
            )


def _add_positions(loaded: LoadedModel, table: EmbeddingTable, words: EmbeddingTable, output: Output) -> None:
    name, stem = f"{loaded.name}, {table.name}", file_name(table.name.replace(": ", " "))
    matrix, components = cosine_matrix(table.rows), principal(table.rows)
    offsets, rotation = by_offset(matrix), find_rotation(components)
    order_end = find_order_end(table.rows) if len(table.rows) >= MIN_POSITIONS else None
    output.tables[f"{stem}_offsets"] = offsets
    coordinates = {f"component_{number}": values for number, values in enumerate(components.scores.T, start=1)}
    output.tables[f"{stem}_components"] = pd.DataFrame({"position": range(len(table.rows)), **coordinates})
    output.figures[f"{stem}_cosines"] = similarity_figure(name, matrix, offsets, order_end)
    if components.scores.shape[1] >= 3:
        output.figures[f"{stem}_path"] = path_figure(name, components, rotation)
    if rotation is not None:
        output.tables[f"{stem}_turns"] = rotation.windows
    found = loaded.tokenizer.cls_token or loaded.tokenizer.bos_token
    token = found if isinstance(found, str) else None
    print_positions(table, offsets, rotation, order_end, (token, start_cosine(words, table, token)))


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
    unused: bool = False,
) -> None:
    """Study anatomy: context-free embeddings (input, position, segment), and paths of tokens through the layers.

    Every model has a folder of its own in FOLDER, with tables as CSV and figures as PNG and SVG.

    Args:
        models: Hub repository, also as REPOSITORY@REVISION, folder of save_pretrained, or folder of a run.
        output: Folder for tables and figures.
        pair: Two sentences.
        closest: Number of closest pairs.
        pairs: Pairs of rows sampled for a distribution; all if there are no more.
        seed: Of that sample.
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
    start: tuple[str | None, float],
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
    if not math.isnan(start[1]):
        print_line(f"cosine of the input embedding of {start[0]} and position 0: {start[1]:.3f}")

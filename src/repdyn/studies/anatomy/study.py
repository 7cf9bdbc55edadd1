"""``repdyn study anatomy``: a model's embedding tables, and the paths of two sentences through its layers."""

from __future__ import annotations

import argparse

import pandas as pd

from repdyn.studies.anatomy import summary
from repdyn.studies.anatomy.geometry import MAX_PAIRS, cosine_matrix
from repdyn.studies.anatomy.measurements import closest_table, measure_table, start_cosine, tabulate, without_twins
from repdyn.studies.anatomy.positions import MIN_POSITIONS, by_offset, find_order_end, find_rotation, principal
from repdyn.studies.anatomy.table_figures import path_figure, similarity_figure, tables_figure
from repdyn.studies.anatomy.tables import EmbeddingTable, embedding_tables
from repdyn.studies.anatomy.trajectories import (
    TokenTrajectory,
    cross_sentence_table,
    sentence_trajectories,
    trajectory_table,
)
from repdyn.studies.anatomy.trajectory_figures import depth_figure, paths_figure
from repdyn.studies.driver import Study, add_number
from repdyn.studies.models import LoadedModel, file_name
from repdyn.studies.output import Output, print_line, print_title
from repdyn.tables.style import of_stack

PAIR = ("She walked to the river bank this morning.", "She walked to the savings bank this morning.")
"""One word differs, and another changes its meaning."""


class AnatomyStudy(Study):
    """The embedding tables of a model, and the paths of tokens through its layers."""

    help = (
        "The context-free embeddings of a model (input, position, segment), and the paths of tokens through its layers."
    )
    examples = """examples:
  repdyn study anatomy bert-base-cased -o FOLDER
  repdyn study anatomy gpt2 facebook/opt-125m --closest 50 -o FOLDER
  repdyn study anatomy bert-base-cased --pair "He plays the bass." "He eats the bass." -o FOLDER

Every model has a folder of its own in FOLDER, with tables as CSV and figures as PNG and SVG.
"""

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("analysis")
        group.add_argument(
            "--pair",
            nargs=2,
            default=PAIR,
            metavar=("A", "B"),
            help=f'two sentences (default: "{PAIR[0]}" "{PAIR[1]}")',
        )
        add_number(group, "--closest", 20, 1, "closest pairs", "K")
        text = "pairs of rows sampled for a distribution; all if there are no more"
        add_number(group, "--pairs", MAX_PAIRS, 1, text, "N")
        add_number(group, "--seed", 0, 0, "of that sample")
        group.add_argument(
            "--unused", action="store_true", help="keep rows of the input table that training did not distinguish"
        )

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
        summary.print_tables(output.tables["tables"], output.tables["distributions"])
        summary.print_closest(output.tables["closest"])
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
    summary.print_positions(table, offsets, rotation, order_end, (token, start_cosine(words, table, token)))


def _add_trajectories(
    name: str, stack: str | None, pair: tuple[TokenTrajectory, TokenTrajectory], output: Output
) -> None:
    suffix = "" if stack is None else f"_{stack}"
    frames = [trajectory_table(one).assign(sentence=number) for number, one in enumerate(pair, start=1)]
    output.tables[f"depth{suffix}"] = pd.concat(frames, ignore_index=True)
    output.tables[f"depth{suffix}_apart"] = cross_sentence_table(*pair)
    output.figures[f"depth{suffix}"] = depth_figure(name, *pair)
    output.figures[f"paths{suffix}"] = paths_figure(name, *pair)
    summary.print_depth(stack, frames[0])


STUDY = AnatomyStudy

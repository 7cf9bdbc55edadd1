"""``repdyn study anatomy``: the tables that a model looks up, and the paths of two sentences through its layers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import pandas as pd

from repdyn.studies import models as subjects
from repdyn.studies.anatomy import measured, summary
from repdyn.studies.anatomy.depth import TokenTrajectory, cross_sentence_cosine, evolution, matched
from repdyn.studies.anatomy.depth_figures import depth_figure, paths_figure
from repdyn.studies.anatomy.geometry import MAX_PAIRS
from repdyn.studies.anatomy.position_figures import path_figure, similarity_figure
from repdyn.studies.anatomy.positions import (
    MIN_POSITIONS,
    by_offset,
    cosine_matrix,
    find_turn,
    order_ends,
    principal,
)
from repdyn.studies.anatomy.states import Layer, token_states
from repdyn.studies.anatomy.table_figures import tables_figure
from repdyn.studies.anatomy.tables import Table, tables_of
from repdyn.studies.models import LoadedModel
from repdyn.studies.output import Findings, print_written
from repdyn.tables.style import of_stack
from repdyn.utils.arguments import at_least

HELP = "The context-free embeddings of a model (input, position, segment), and the paths of tokens through its layers."
EXAMPLES = """examples:
  repdyn study anatomy bert-base-cased -o FOLDER
  repdyn study anatomy gpt2 facebook/opt-125m --closest 50 -o FOLDER
  repdyn study anatomy bert-base-cased --pair "He plays the bass." "He eats the bass." -o FOLDER

Every model has a folder of its own in FOLDER, with tables as CSV and figures as PNG and SVG.
"""

PAIR = ("She walked to the river bank this morning.", "She walked to the savings bank this morning.")
"""One word differs, and another changes its meaning."""

_SHOWN_PAIRS = 5


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which sentences, how many pairs, which rows."""
    subjects.add_options(parser)
    group = parser.add_argument_group("what is looked at")
    group.add_argument(
        "--pair", nargs=2, default=PAIR, metavar=("A", "B"), help=f'two sentences (default: "{PAIR[0]}" "{PAIR[1]}")'
    )
    group.add_argument(
        "--closest", type=at_least(1), default=20, metavar="K", help="closest pairs (default: %(default)s)"
    )
    group.add_argument(
        "--pairs",
        type=at_least(1),
        default=MAX_PAIRS,
        metavar="N",
        help="pairs of rows drawn for a distribution, all of them where there are no more (default: %(default)s)",
    )
    group.add_argument("--seed", type=at_least(0), default=0, help="of that draw (default: %(default)s)")
    group.add_argument(
        "--unused", action="store_true", help="keep rows of the input table that no training has told apart"
    )


def run(options: argparse.Namespace) -> None:
    """Print the study of each model, and write its tables and figures.

    Raises:
        ValueError, OSError, CheckpointError: a mistaken option, or a model that cannot be studied.
    """
    for subject in subjects.subjects(options):
        findings = Findings()
        summary.print_name(subject.name)
        paths = journeys(subject, options.pair)
        _tables(subject, options, findings)
        _depth(subject, paths, findings)
        folder = options.output / subject.folder_name
        print_written(folder, findings.write(folder))


def _tables(subject: LoadedModel, options: argparse.Namespace, findings: Findings) -> None:
    tables, known = [], {}
    for table in tables_of(subject.model, subject.tokenizer, unused=options.unused):
        if table.kind == "input" and not options.unused:
            table, known[table.name] = measured.without_twins(table, options.closest)
        tables.append(table)
    found = [measured.measure_table(table, pairs=options.pairs, seed=options.seed) for table in tables]
    pairs = measured.closest(tables, options.closest, known)
    findings.tables["tables"] = measured.overview(found)
    findings.tables["distributions"] = measured.distributions(found)
    findings.tables["histograms"] = measured.histograms(found)
    findings.tables["dimension_curves"] = measured.curves(found)
    findings.tables["closest"] = pairs
    findings.figures["tables"] = tables_figure(subject.name, found)
    summary.print_tables(findings.tables["tables"], findings.tables["distributions"])
    summary.print_closest(pairs.groupby("tables", sort=False).head(_SHOWN_PAIRS))
    positions = [table for table in tables if table.kind == "position"]
    for table in positions:
        _positions(subject, table, tables[0], findings)
    if not positions:
        summary.say("no position table is looked up: positions enter otherwise (rotary, relative, sinusoids), or not")


def _positions(subject: LoadedModel, table: Table, words: Table, findings: Findings) -> None:
    name, stem = f"{subject.name}, {table.name}", subjects.file_name(table.name.replace(": ", " "))
    matrix, components = cosine_matrix(table.rows), principal(table.rows)
    offsets, turn = by_offset(matrix), find_turn(components)
    ends = order_ends(table.rows) if len(table.rows) >= MIN_POSITIONS else None
    findings.tables[f"{stem}_offsets"] = offsets
    coordinates = {f"component_{number}": values for number, values in enumerate(components.scores.T, start=1)}
    findings.tables[f"{stem}_components"] = pd.DataFrame({"position": range(len(table.rows)), **coordinates})
    findings.figures[f"{stem}_cosines"] = similarity_figure(name, matrix, offsets, ends)
    if components.scores.shape[1] >= 3:
        findings.figures[f"{stem}_path"] = path_figure(name, components, turn)
    if turn is not None:
        findings.tables[f"{stem}_turns"] = turn.windows
    found = subject.tokenizer.cls_token or subject.tokenizer.bos_token
    starts = found if isinstance(found, str) else None
    summary.print_positions(table, offsets, turn, ends, starts, measured.start_and_position(words, table, starts))


def _depth(
    subject: LoadedModel, paths: Sequence[tuple[str | None, TokenTrajectory, TokenTrajectory]], findings: Findings
) -> None:
    for stack, one, other in paths:
        name, stem = of_stack(subject.name, stack), "depth" if stack is None else f"depth_{stack}"
        frames = [evolution(journey).assign(sentence=number) for number, journey in ((1, one), (2, other))]
        findings.tables[stem] = pd.concat(frames, ignore_index=True)
        findings.tables[f"{stem}_apart"] = _apart(one, other)
        findings.figures[stem] = depth_figure(name, one, other)
        findings.figures[stem.replace("depth", "paths")] = paths_figure(name, one, other)
        summary.print_depth(stack, one)


def _apart(one: TokenTrajectory, other: TokenTrajectory) -> pd.DataFrame:
    """Cosine of the two sentences' tokens at the same place, a line for each layer and place."""
    values = cross_sentence_cosine(one, other)
    parts = [
        pd.DataFrame(
            {
                "layer": [layer.index for layer in one.layers],
                "first": one.tokens[a],
                "second": other.tokens[b],
                "place_in_first": a,
                "place_in_second": b,
                "cosine": values[:, number],
            }
        )
        for number, (a, b, _) in enumerate(matched(one.tokens, other.tokens))
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def journeys(subject: LoadedModel, pair: tuple[str, str]) -> list[tuple[str | None, TokenTrajectory, TokenTrajectory]]:
    """Both sentences through each stack of the model's layers: its name, the first sentence, the second.

    Raises:
        ValueError: a sentence without tokens, or longer than the model's context.
    """
    ids = [list(subject.tokenizer(sentence)["input_ids"]) for sentence in pair]
    if not all(ids):
        raise ValueError(
            f"expected two sentences with tokens, got {pair[0]!r} and {pair[1]!r}; give others with --pair"
        )
    if (longest := max(map(len, ids))) > subject.context:
        raise ValueError(
            f"expected sentences of at most {subject.context} tokens, what fits into {subject.name}, got one of "
            f"{longest}; give shorter ones with --pair"
        )
    names = [tuple(map(str, subject.tokenizer.convert_ids_to_tokens(sequence))) for sequence in ids]
    of_stacks: dict[str | None, list[tuple[Layer, np.ndarray]]] = {}
    for layer, states in token_states(subject.model, ids):
        of_stacks.setdefault(layer.stack, []).append((layer, states.double().cpu().numpy()))
    found = []
    for stack, parts in of_stacks.items():
        layers, whole = tuple(layer for layer, _ in parts), np.stack([states for _, states in parts])
        cut = len(ids[0])
        found.append(
            (
                stack,
                TokenTrajectory(names[0], whole[:, :cut], layers),
                TokenTrajectory(names[1], whole[:, cut:], layers),
            )
        )
    return found

"""Print what a study of anatomy found."""

from __future__ import annotations

import math

import pandas as pd

from repdyn.studies.anatomy.positions import Rotation
from repdyn.studies.anatomy.tables import EmbeddingTable
from repdyn.studies.output import print_line, print_table

_MAX_PAIRS = 5


def print_tables(overview: pd.DataFrame, distributions: pd.DataFrame) -> None:
    """Print a row for each table and quantity, and what was left out.

    Args:
        overview, distributions: of :mod:`repdyn.studies.anatomy.measurements`.
    """
    columns = [("table", "{table}"), ("quantity", "{quantity}"), ("mean", "{mean:.3f}"), ("5 %", "{q05:.3f}")]
    columns += [("median", "{median:.3f}"), ("95 %", "{q95:.3f}"), ("min", "{min:.3f}"), ("max", "{max:.3f}")]
    print_table(distributions, columns)
    for row in overview.to_dict("records"):
        left_out = f"; left out: {row['left_out']}" if row["left_out"] else ""
        pairs = "all pairs" if row["all_pairs"] else f"{row['pairs']:,} pairs drawn"
        shares = {name.removeprefix("components_"): row[name] for name in row if name.startswith("components_")}
        needed = ", ".join(f"{share} %: {count:.0f}" for share, count in shares.items() if not math.isnan(count))
        print_line(
            f"{row['table']}: {row['rows']:,} rows of {row['dim']} ({row['parameter']}), {pairs}{left_out}; "
            f"the mean row holds {row['mean_share']:.1%} of the squared length"
            + (f"; components for a share of variance, {needed}" if needed else "")
        )


def print_closest(pairs: pd.DataFrame) -> None:
    """Print a few of the closest pairs within and across tables."""
    for tables, group in pairs.groupby("tables", sort=False):
        rows = group.head(_MAX_PAIRS).to_dict("records")
        print_line(
            f"closest, {tables}: " + "; ".join(f"{row['first']} {row['second']} {row['cosine']:.4f}" for row in rows)
        )


def print_positions(
    table: EmbeddingTable,
    offsets: pd.DataFrame,
    rotation: Rotation | None,
    order_end: int | None,
    start: tuple[str | None, float],
) -> None:
    """Print the layout of positions: neighbours, rotation, order, and position 0 with the token that starts a text.

    Args:
        table: the positions.
        offsets, rotation, order_end: of :mod:`repdyn.studies.anatomy.positions`.
        start: the token that starts a text, and the cosine of its input embedding with position 0.
    """
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


def print_depth(stack: str | None, table: pd.DataFrame) -> None:
    """Print means over the tokens of a sentence, layer by layer.

    Args:
        stack: name of the stack of blocks.
        table: of :func:`repdyn.studies.anatomy.trajectories.trajectory_table`.
    """
    means = table.pivot_table(index="layer", values=["norm", "step", "cosine"]).reset_index()
    columns = [("layer" if stack is None else f"{stack} layer", "{layer:.0f}"), ("|h|", "{norm:.3f}")]
    print_table(means, [*columns, ("step", "{step:.3f}"), ("cosine with next", "{cosine:.3f}")])

"""Which metrics are shown together: their families, and what a metric has no value for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from repdyn.metrics import FAMILIES, metric_info
from repdyn.store.schema import too_few_distinct
from repdyn.tables.frames import in_order, metrics_of, of_metric
from repdyn.tables.texts import counted, filled


def family_of(metric: str) -> str:
    """Return the family that a metric is shown with.

    >>> family_of("two_nn[discard=0.8]"), family_of("effective_rank"), family_of("my_metric")
    ('geometry', 'spectrum', 'own')
    """
    return metric_info(metric).family


def has_own_figures(metric: str) -> bool:
    """Return whether a metric has figures of its own, as those of geometry and the user's have, instead of overviews.

    >>> has_own_figures("anisotropy"), has_own_figures("norm"), has_own_figures("my_metric")
    (True, False, True)
    """
    family = family_of(metric)
    return family == "geometry" or family not in FAMILIES


def overview_families(metrics: Iterable[str]) -> list[str]:
    """Return the families whose metrics are drawn in overviews, in the order in which they are shown."""
    there = {family_of(metric) for metric in metrics if not has_own_figures(metric)}
    return [family for family in FAMILIES if family in there]


def members_of(rows: pd.DataFrame, family: str) -> list[str]:
    """Return the measured metrics of a family; a ValueError if there are none."""
    found = [metric for metric in metrics_of(rows) if family_of(metric) == family]
    if not found:
        there = sorted({family_of(metric) for metric in metrics_of(rows)})
        raise ValueError(f"expected a family of measured metrics, got {family!r}; measured were {', '.join(there)}")
    return found


def is_between(metric: str) -> bool:
    """Return whether a value lies between a layer and the next."""
    return metric_info(metric).position == "between"


def compares_checkpoints(metric: str) -> bool:
    """Return whether a value compares a checkpoint with an earlier one, so that the first has none."""
    return "previous_checkpoint" in metric_info(metric).captures


def places(metric: str, layers: Sequence[int]) -> np.ndarray:
    """Return positions on an axis of layers: halfway to the next layer for a metric between two.

    >>> places("anisotropy", [0, 1]).tolist(), places("step_length", [0, 1]).tolist()
    ([0.0, 1.0], [0.5, 1.5])
    """
    return np.asarray(layers, float) + 0.5 * is_between(metric)


def defined_subsets(rows: pd.DataFrame, metric: str) -> list[str]:
    """Return the token subsets on which a metric has a value at some layer and step; in any order."""
    return rows.loc[(rows["metric"] == metric) & rows["value"].notna(), "subset"].unique().tolist()


def undefined(rows: pd.DataFrame) -> dict[str, list[str]]:
    """Return the metrics of overviews that have no value anywhere on some subset, by reason."""
    valued = rows.loc[rows["value"].notna(), ["metric", "subset"]].drop_duplicates()
    empty = rows.loc[rows["value"].isna(), ["metric", "subset", "reason"]]
    found: dict[str, list[str]] = {}
    for metric in metrics_of(empty):
        if has_own_figures(metric):
            continue
        cells, there = of_metric(empty, metric), set(of_metric(valued, metric)["subset"])
        for subset in in_order(set(cells["subset"]) - there):
            reason = most_common_reason(cells.loc[cells["subset"] == subset])
            name = f"{metric} ({subset})" if there else metric
            if name not in found.setdefault(reason, []):
                found[reason].append(name)
    return found


def drop_first_comparison(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without those of the first step that would need an earlier checkpoint."""
    comparing = [metric for metric in rows["metric"].unique() if compares_checkpoints(metric)]
    at_first = rows["step"] == rows["step"].min()
    return rows.loc[~(rows["metric"].isin(comparing) & at_first & rows["value"].isna())]


def without_distinct_embeddings(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of layer 0 that lack a value because its vectors are those of a small vocabulary, as of bytes."""
    cells = rows.loc[(rows["layer"] == 0) & rows["value"].isna()]
    samples = zip(cells["on_distinct"], cells["n_unique"], cells["n_vectors"], strict=True)
    return cells.loc[cells["reason"].astype(object) == [too_few_distinct(*sample) for sample in samples]]


def most_common_reason(missing: pd.DataFrame) -> str:
    """Return the most common reason why these rows have no value, without the number of the batch."""
    reason = counted(filled(pd.Series(missing["reason"]), "no reason given")).index[0]
    return re.sub(r"^batch \d+: ", "", str(reason))

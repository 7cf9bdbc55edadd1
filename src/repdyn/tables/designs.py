"""What a view says of sampling: how batches were drawn, and what their intervals mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from repdyn.store.schema import Row
from repdyn.tables.frames import NOT_RECORDED, concatenated, design_names

OWN_WINDOW_SHARE = 0.05
"""Share of points with their nearest neighbour in their own window up to which a dimension passes for the cloud's."""
_INTERVAL = "95 % interval over probes"
_MAX_GROUPS = 3
_WINDOW_COLUMNS = ("n_vectors", "n_windows", "vectors_per_window", "window_tokens", "own_window_excluded")


def sampling(rows: pd.DataFrame) -> str:
    """Describe how many vectors each value of measurements rests on, and by which design they were drawn.

    >>> counts = {"probe": ["a"], "n_batches": [4], "n_vectors": [4096], "design": ["independent"]}
    >>> windows = {"n_windows": [342], "vectors_per_window": [12], "window_tokens": [96], "own_window_excluded": [True]}
    >>> sampling(pd.DataFrame(counts | windows))
    "independent design: 4 batches of 4,096 vectors, 12 of each of 342 windows of 96 tokens, own window's neighbours \
left out"
    """
    names = design_names(rows)
    batches = f"{_span(rows['n_batches'])} batch{'es' * bool((rows['n_batches'] != 1).any())}"
    size = f"{batches} of {_span(rows['n_vectors'])} vectors"
    if names == [NOT_RECORDED]:
        return f"{size}, sampling design not recorded"
    known = rows.loc[rows["design"].notna(), [*_WINDOW_COLUMNS]]
    designs = f"{' and '.join(names)} design{'s' * (len(names) > 1)}"
    n_windows, most = known["n_windows"], known["vectors_per_window"]
    as_even_as_possible = bool((n_windows * most < known["n_vectors"] + n_windows).all())
    share = f"{'' if as_even_as_possible else 'up to '}{_span(most)} of each of {_span(n_windows)} windows"
    windows = f"{share} of {_span(known['window_tokens'])} tokens"
    # in metrics that look at neighbours
    left_out = set(known["own_window_excluded"].dropna().astype(bool))
    what = "in part left out" if len(left_out) > 1 else "left out" if left_out == {True} else "counted"
    return f"{designs}: {size}, {windows}" + f", own window's neighbours {what}" * bool(left_out)


def brief_sampling(rows: pd.DataFrame) -> str:
    """Return the number of vectors of measurements and their designs in a few words.

    >>> brief_sampling(pd.DataFrame({"probe": ["a"], "n_batches": [4], "n_vectors": [4096], "design": ["independent"]}))
    '4 x 4,096 vectors (independent)'
    """
    batches, names = _span(rows["n_batches"]), [name for name in design_names(rows) if name != NOT_RECORDED]
    size = f"{f'{batches} x ' * (batches != '1')}{_span(rows['n_vectors'])} vectors"
    return f"{size} ({', '.join(names)})" if names else size


def sampling_of_runs(runs: Mapping[str, pd.DataFrame]) -> str:
    """Describe the sampling of several runs, given the rows of each by its label: in one phrase where it is the same,
    and otherwise of each group of runs."""
    groups: dict[str, list[str]] = {}
    for name, rows in ((name, rows) for name, rows in runs.items() if len(rows)):
        groups.setdefault(sampling(rows), []).append(name)
    if len(groups) == 1:
        return next(iter(groups))
    if len(groups) > _MAX_GROUPS:
        return sampling(concatenated([*runs.values()]))
    return "\n".join(f"{', '.join(names)}: {text}" for text, names in groups.items())


def intervals(rows: pd.DataFrame, mark: str = "band") -> str:
    """Say what a band, or another mark, of measurements means, or why there is none; empty where none has a value."""
    valued = rows.loc[rows["value"].notna(), ["margin", "n_batches"]]
    unknown = valued.loc[valued["margin"].isna()]
    if valued.empty:
        return ""
    if unknown.empty:
        return f"{mark}: {_INTERVAL}"
    single = bool((unknown["n_batches"] < 2).all())
    why = f"no interval: {'a single batch' if single else 'batches share windows'}"
    return why if len(unknown) == len(valued) else f"{mark}: {_INTERVAL}; elsewhere {why}"


def own_window_warning(rows: Iterable[Row]) -> str | None:
    """Say that a design lets neighbours in a point's own window count, and that many points of a checkpoint have one:
    more than :data:`OWN_WINDOW_SHARE` in some row, of which the one with most is described."""
    shares = [(row.same_window_share or 0.0, row) for row in rows if row.own_window_excluded is False]
    share, worst = max(shares, key=lambda pair: pair[0], default=(0.0, None))
    if worst is None or share <= OWN_WINDOW_SHARE:
        return None
    return (
        f"the nearest neighbour of {share:.0%} of the vectors of layer {worst.layer} lies in their own window of text, "
        f"which the sampling design {worst.design!r} lets count, so {worst.metric} describes paths within windows "
        'rather than the representation; take a probe with design="independent", unless the value is to be compared '
        "with published ones"
    )


def _span(values: Iterable[int | None] | Sequence[int] | pd.Series) -> str:
    known = pd.Series(values).dropna()
    if known.empty:
        return "?"
    low, high = int(known.min()), int(known.max())
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"

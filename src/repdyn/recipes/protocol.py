"""How rows were sampled, and where that differs from what a recipe asks for."""

from __future__ import annotations

from functools import cache

import pandas as pd

from repdyn.probe import Probe
from repdyn.probe.design import Design, resolve_design
from repdyn.recipes.recipe import Cloud
from repdyn.store import Store
from repdyn.tables.designs import sampling
from repdyn.tables.frames import measurements
from repdyn.text.source import load_corpus


def probe_of(store: Store, rows: pd.DataFrame) -> Probe | None:
    """Return the probe of the rows of one probe; None if the store has no copy of it."""
    path = store.probe_path(str(rows["probe"].iloc[0]))
    return Probe.load(path) if path.is_file() else None


def deviations(cloud: Cloud, rows: pd.DataFrame, probe: Probe | None) -> tuple[str, ...]:
    """Return where the sampling of rows differs from a cloud: text, length of windows, vectors.

    What neither the rows nor the probe tell, such as the text of a probe that is not in the store, is no deviation.

    Args:
        cloud: what a recipe asks for.
        rows: of one run on one probe.
        probe: that probe, if the store has it.

    Returns:
        Phrases such as "windows of 32 tokens, not 80".
    """
    found = []
    if probe is not None and not _is_text(probe.name, cloud.text):
        found.append(f"text {probe.name}, not {cloud.text}")
    of_layers = rows.loc[rows["layer"].notna() & rows["window_tokens"].notna()]
    if of_layers.empty:
        return tuple(found)
    design = resolve_design(cloud.design)
    length, asked = _largest(of_layers, "window_tokens"), cloud.sequence_length or design.window_tokens
    if asked is not None and length != asked:
        found.append(f"windows of {length:,} tokens, not {asked:,}")
    # metrics of whole windows have batches of their own
    sampled = of_layers.loc[
        of_layers["subset"].isin(["all", "no_sink"]) & (of_layers["vectors_per_window"] < of_layers["window_tokens"])
    ]
    if design.n_windows is None:
        found += _of_vectors(cloud, design, sampled, probe)
    elif (n_windows := _largest(of_layers, "n_windows")) < design.n_windows:
        found.append(f"{n_windows:,} windows, not {design.n_windows:,}")
    return tuple(found)


def _of_vectors(cloud: Cloud, design: Design, sampled: pd.DataFrame, probe: Probe | None) -> list[str]:
    """Return where the batches of a probe, or of the rows if it is unknown, differ from a cloud."""
    found = []
    measured = None if probe is None else (probe.n_batches, probe.batch_vectors)
    if measured is None and len(sampled):
        measured = _largest(sampled, "n_batches"), _largest(sampled, "n_vectors")
    plan = design.batch_plan(cloud.n_vectors, None, 0)
    asked = plan["n_batches"], plan["batch_vectors"]
    if measured is not None and measured != asked:
        batches = f"{measured[0]:,} {'batch' if measured[0] == 1 else 'batches'}"
        found.append(f"{batches} of {measured[1]:,} vectors, not {asked[0]:,} of {asked[1]:,}")
    most = _largest(sampled, "vectors_per_window") if len(sampled) else 0
    if design.vectors_per_window is not None and most > design.vectors_per_window:
        found.append(f"up to {most:,} vectors of a window, not {design.vectors_per_window:,}")
    return found


def _largest(rows: pd.DataFrame, column: str) -> int:
    return max(map(int, rows[column].dropna().tolist()))


def describe_sampling(rows: pd.DataFrame, probe: Probe | None) -> str:
    """Describe how rows were sampled, by the rows themselves: design, batches, windows and text."""
    text = "text not recorded, since the store has no copy of the probe" if probe is None else f"text {probe.name}"
    return f"{sampling(measurements(rows))}; {text}"


def _is_text(name: str, source: str) -> bool:
    """Return whether the text of a probe, by the name that it records, is the one of a source."""
    if source == "enwik8":  # without loading it, since it is large
        return name.partition(",")[0] == "enwik8"
    return name == _name_of_text(source)


@cache
def _name_of_text(source: str) -> str:
    """Return the name that probes record of a text; of a file that is missing by now, one that no probe records."""
    try:
        return load_corpus(source).name
    except FileNotFoundError:
        return source

"""Complete the options of a sweep, and refuse those that contradict each other.

What was not given is taken from the live run whose checkpoints are measured, or else from the
defaults.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

from repdyn.checkpoints.options import CompleteOptions, SweepOptions
from repdyn.metrics import DEFAULT_METRICS, METRICS, as_tuple, resolve
from repdyn.metrics.names import base_name
from repdyn.probe.design import SUBSETS, class_names
from repdyn.store import Store, find_store, store_at
from repdyn.utils.choices import Dtype

log = logging.getLogger(__name__)

_FOLDERS_OF_RUNS = {"hf_checkpoints", "checkpoints"}
"""Names of folders in a run's folder that hold its checkpoints."""


def check_contradictions(options: SweepOptions) -> None:
    """Raise ValueError for options, as they were given, that exclude each other."""
    if bool(options.source) == bool(options.suite):
        got = "both" if options.source else "neither"
        raise ValueError(
            f"expected a folder or a hub repository, or suite=NAME, got {got}; repdyn sweep "
            "--list-suites lists them"
        )
    if options.pattern and options.suite:
        raise ValueError(
            "expected pattern= with a folder or a hub repository, since a suite defines its own; "
            "omit it"
        )
    if options.load:
        _check_load(options)
    _check_text(options)


def _check_load(options: SweepOptions) -> None:
    is_path = isinstance(options.source, str | Path)
    if not (is_path and options.is_local):
        raise ValueError(
            f"expected load= with a local folder or file, got {options.source or 'a suite'}; "
            "leave it out"
        )
    if options.engine == "ray":
        raise ValueError(
            'expected engine="serial" with load=, got ray, whose workers may lack the module; '
            "leave out the engine"
        )


def _check_text(options: SweepOptions) -> None:
    is_file = options.text is not None and Path(options.text).expanduser().is_file()
    if options.encoding and not is_file:
        raise ValueError(
            f"expected encoding= with text=FILE, got {options.text or 'no file'}; leave it out"
        )
    if options.probe and options.has_probe_text:
        raise ValueError(
            "expected either probe= or the options for making a probe (text=, encoding=, "
            "tokenizer=, sequence_length=, max_vectors=, design=, classes=), got both; omit one"
        )


def completed(options: SweepOptions) -> CompleteOptions:
    """Return options with what the rows of a live run, or else a default, say about what was not
    given.

    The live run is the named one, or the one whose checkpoints these are.
    """
    # before the defaults: checkpoints of a live run get its very numbers, see docs/sweeps.md
    live = live_run(options)
    if live is not None:
        options = _like(options, live)
    metrics = as_tuple(options.metrics or DEFAULT_METRICS)
    # the probe of a run or file may have other classes
    has_own_probe = options.probe is not None or options.is_local
    resolve(metrics, subsets=None if has_own_probe else (*SUBSETS, *class_names(options.classes)))
    # One rule for a folder and the hub, so that a checkpoint has the same values from both. Weights
    # are often stored in half precision to reduce their size; rounding the states as well would
    # affect the estimated dimension. A model that a function returns is measured as it is.
    is_path = options.source is None or isinstance(options.source, str | Path)
    default = "float32" if is_path and options.load is None else "auto"
    # not by asdict(), which would turn a probe into a dictionary too
    values = {field.name: getattr(options, field.name) for field in fields(SweepOptions)}
    return CompleteOptions(**values | {"metrics": metrics, "dtype": options.dtype or default})


def live_run(options: SweepOptions) -> Store | None:
    """Return the store of the live run whose measurement is repeated, None where there is none."""
    if options.like is not None:
        return find_store(options.like)
    if not isinstance(options.source, str | Path):
        return None
    source = Path(options.source).absolute()
    folder = (source.parent if source.name in _FOLDERS_OF_RUNS else source) / "repdyn"
    return store_at(folder) if folder.is_dir() else None


def _like(options: SweepOptions, store: Store) -> SweepOptions:
    """Return options with the attention, precision, metrics and probe of a live run where none was
    given.
    """
    rows = [
        row
        for run in store.runs()
        for row in store.distinct(run, ("attention", "dtype", "metric", "subset"))
    ]

    def common(column: str) -> str | None:
        values = {row[column] for row in rows}
        return values.pop() if len(values) == 1 else None

    dtype = options.dtype or common("dtype")
    probe = options.probe
    if probe is None and not options.has_probe_text:
        probe = _stored_probe(store)
    return replace(
        options,
        attention=options.attention or common("attention"),
        # where the live run had several, or one that is no option, its checkpoints have their own
        dtype=dtype if dtype in get_args(Dtype) else "auto",
        probe=probe,
        metrics=options.metrics or _measured_metrics(rows),
    )


def _measured_metrics(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the metrics of rows that are registered here, each with its subset; warn of others."""
    names: dict[str, None] = {}
    unregistered: set[str] = set()
    for row in rows:
        base = base_name(row["metric"])
        if base in METRICS:
            names[f"{row['metric']}@{row['subset']}"] = None
        else:
            unregistered.add(base)
    if unregistered:
        log.warning(
            "not measured, as nothing registers them here: %s; see repdyn.register_metric",
            ", ".join(sorted(unregistered)),
        )
    return tuple(names)


def _stored_probe(store: Store) -> Path | None:
    """Return the file of a store's probe; None where it has none."""
    files = sorted((store.path / "probes").glob("*.safetensors"))
    if len(files) > 1:
        raise ValueError(
            f"expected one probe in {files[0].parent}, got {len(files)}; select one with probe=FILE"
        )
    return files[0] if files else None

"""A row of a store with every column filled, for tests that need some rows and do not care
which.
"""

from __future__ import annotations

from repdyn.store import MeasurementKey
from repdyn.store.schema import Row, provenance

KEY = MeasurementKey(run="run", step=8, probe="probehash", metrics="metrics")


def row(**changes) -> Row:
    values = {
        "run": "run",
        "model": "GPT",
        "causal": True,
        "step": 8,
        "tokens_seen": 4096,
        "stage": None,
        "revision": None,
        "checkpoint": None,
        "parameters": 12345,
        "weights": None,
        "layer": 1,
        "depth": 0.5,
        "module": "blocks.0",
        "layers": "",
        "stack": None,
        "head": None,
        "metric": "two_nn",
        "subset": "all",
        "settings": '{"discard": 0.1}',
        "compared_to": None,
        "value": 7.25,
        "std": 0.125,
        "n_batches": 4,
        "n_vectors": 4096,
        "n_unique": 4000,
        "on_distinct": True,
        "reason": None,
        "dim": 64,
        "dtype": "float32",
        "device": "cpu",
        "attention": None,
        "probe": "probehash",
        "seconds": 0.5,
    }
    return Row.of(**{**values, **provenance(), **changes})

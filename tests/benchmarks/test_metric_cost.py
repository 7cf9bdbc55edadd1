"""The benchmark of the cost of each metric has a model and a probe on which each is defined."""

import importlib
from pathlib import Path

import pytest

from repdyn import measure
from repdyn.metrics import METRICS
from repdyn.store.schema import Checkpoint
from repdyn.store.state_cache import StateCache

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.extended
@pytest.mark.slow
def test_every_metric_is_defined_on_its_model(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    benchmark = importlib.import_module("metric_cost")
    model, probe = benchmark.model_and_probe(64, 500, 800)
    cache = StateCache(tmp_path, run="r", probe=probe.hash)
    measure(model, probe, ["cka_previous"], state_cache=cache)
    rows = measure(model, probe, "all", checkpoint=Checkpoint(step=1), state_cache=cache).to_pandas()
    assert set(rows.loc[rows["value"].notna(), "metric"]) == set(METRICS)

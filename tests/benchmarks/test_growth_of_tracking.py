"""What each of several measurements costs, at sizes that take a moment. What it says of speed is not looked at."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("everything", [False, True])
def test_each_measurement_is_timed(everything, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("REPDYN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    growth = importlib.import_module("growth_of_tracking")
    seconds, own = growth.measure(2, ["anisotropy"], n_layers=2, n_stored=2, everything=everything)
    assert len(seconds) == len(own) == 2
    assert all(0 < share < whole for share, whole in zip(own, seconds, strict=True))
    # the views of a remote store are written into the current folder, a temporary one meanwhile
    assert {path.name for path in tmp_path.iterdir()} <= {"cache"}

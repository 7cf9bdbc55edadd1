"""The benchmark of the plan's hours: a hub that is as slow as it was told to be, and a sweep that is compared with its plan."""

from __future__ import annotations

import importlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("plan_accuracy")


def test_a_slow_hub(benchmark, tmp_path, monkeypatch):
    """Two files of 100 kB at 500 kB/s take 0.4 s together, however many connections fetch them."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(bytes(100_000))
    with benchmark.SlowHub(latency=0.2, bandwidth=500_000) as hub, ThreadPoolExecutor() as pool:
        commit = hub.publish("lab/model", "main", tmp_path)
        start = time.perf_counter()
        addresses = [f"{hub.url}/lab/model/resolve/{commit}/{name}" for name in ("one", "two")]
        received = pool.map(lambda address: len(urlopen(address).read()), addresses)
        assert list(received) == [100_000, 100_000]
        assert time.perf_counter() - start >= 0.2 + 0.4
        assert hub.first_weights is None


def test_what_is_compared(benchmark):
    def model(run: str, hours: float) -> dict:
        stages = {f"{stage}_hours": 1 / 3600 for stage in benchmark.STAGES}
        return {"model": run, "hours": hours, "measurement_hours": 3 / 3600, "fixed_hours": hours - 4 / 3600} | stages

    start, views = benchmark.START_SECONDS, benchmark.VIEWS_SECONDS
    plan = [model("one", (start + views + 8) / 3600), model("two", (views + 8) / 3600)]
    moment = benchmark.Moment
    sweep = benchmark.Sweep(moment(10, 4), {"one": moment(26, 9), "two": moment(30, 12)}, moment(41, 20))
    stored = {run: dict.fromkeys(benchmark.STAGES, 2.0) for run in ("one", "two")}
    found = {each.what: each for each in benchmark.compare(plan, sweep, stored)}
    assert found["one, load"][1:3] == pytest.approx((1, 2))
    # without start and views, which have lines of their own
    assert found["one, elapsed"][1:3] == pytest.approx((8, 16))
    assert found["two, elapsed"][1:] == pytest.approx((8, 4, 7, 3))
    assert found["start"][1:3] == (start, 10)
    assert found["views"][1:3] == (2 * views, 11)
    assert found["all, kernels"][1:3] == pytest.approx((2, 4))
    assert found["all, elapsed"][1:3] == pytest.approx((start + 2 * views + 16, 41))
    assert str(found["one, load"]).split() == ["one,", "load", "1.0", "2.0", "2.00"]


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.process
def test_a_sweep_and_its_plan(benchmark, monkeypatch, capsys):
    monkeypatch.setitem(benchmark.MODELS, "tiny", benchmark.Shape(300, 16, 2, 2, torch.float32))
    given = ["--models", "tiny", "--revisions", "2", "--max-vectors", "512", "--latency", "0.01", "--bandwidth", "50k"]
    monkeypatch.setattr(sys, "argv", ["plan_accuracy.py", *given])
    benchmark.main()
    lines = capsys.readouterr().out.splitlines()
    rows = {line[:24].strip(): [float(text) for text in line[24:].split()] for line in lines[1:12]}
    assert list(rows) == [
        *(f"lab/tiny, {stage}" for stage in (*benchmark.STAGES, "elapsed")),
        *("start", "views"),
        *(f"all, {stage}" for stage in benchmark.STAGES),
    ]
    planned, clock, ratio = rows["lab/tiny, download"]
    # some 67 kB of weights and configuration of each checkpoint
    assert 2 < planned < 4
    assert ratio == pytest.approx(clock / planned, abs=0.1)
    assert clock > 0.7 * planned
    assert all(len(row) == 6 for what, row in rows.items() if what.endswith("elapsed") or what in {"start", "views"})

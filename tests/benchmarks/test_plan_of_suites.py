"""The simulated hub of the plan has what the suites describe, and the command plans exactly what it would send."""

from __future__ import annotations

import doctest
import importlib
import sys
from pathlib import Path

import pytest

from repdyn.checkpoints.revisions import parse_revision
from repdyn.checkpoints.suites import shipped_suites

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("plan_of_suites")


def test_examples_in_docstrings(benchmark):
    assert doctest.testmod(benchmark).failed == 0


def test_every_step_of_every_suite_has_a_name(benchmark):
    patterns = {
        (model.revisions or model.subfolders or model.commits or "", model.expected)
        for suite in shipped_suites().values()
        for model in suite.models
        if model.repository
    }
    for pattern, steps in patterns:
        for step in steps[:: max(1, len(steps) // 8)]:
            parsed = parse_revision(benchmark.name_of(pattern, step), pattern)
            assert parsed is not None, (pattern, step)
            assert parsed.step == step


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.process
def test_the_plan_is_what_the_hub_would_send(benchmark, monkeypatch, capsys, tmp_path):
    plan = tmp_path / "plan.csv"
    given = ["--suites", "pythia-70m", "smollm2", "--latency", "0.01", "--csv", str(plan)]
    monkeypatch.setattr(sys, "argv", ["plan_of_suites.py", *given])
    benchmark.main()
    lines = capsys.readouterr().out.splitlines()
    assert (
        "0 checkpoints taken for copies of others; 0 of 4 models planned with other bytes or checkpoints than published"
        in lines
    )
    header, *models = plan.read_text().splitlines()
    assert header == "model,checkpoints,download_bytes,hours,dollars"
    assert models[0].startswith("EleutherAI/pythia-70m,20,")
    assert len(models) == 4


def test_a_plan_that_leaves_checkpoints_out_is_counted_as_wrong(benchmark):
    model = next(model for model in shipped_suites()["pythia"].models if model.run == "EleutherAI/pythia-70m")
    one = {"model": model.run, "checkpoints": ["step0"], "waiting": ["step0"], "same_as": {}, "assumptions": []}
    plan = [one | {"download_bytes": 2 * 70_000_000 + 700, "hours": 0.0, "dollars": 0.0}]
    for every_checkpoint, wrong in ((False, 0), (True, 1)):
        lines = benchmark.report(plan, {model.run: model}, {model.run: 154}, every_checkpoint=every_checkpoint)
        assert f"{wrong} of 1 models planned with other bytes or checkpoints than published" in lines[-1]

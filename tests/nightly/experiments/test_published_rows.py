"""The rows of the experiment that are in the repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.analyze import main as analyze
from experiments.collect import RECORD
from experiments.plan import Plan
from repdyn import open_store

ROOT = Path(__file__).parents[3]


ROWS = ROOT / "docs" / "experiment" / "rows"


RESULTS = ROWS.parent / "results.md"


PLAN = Plan.read(ROOT / "experiments" / "plans" / "matched_pair.yaml")


def test_every_run_is_whole_and_of_the_plan():
    record = json.loads((ROWS / RECORD).read_text())
    assert record["plan_digest"] == PLAN.digest
    assert record["text"]["sha256"] == PLAN.text["sha256"]
    rows = open_store(ROWS).to_pandas()
    assert set(rows["run"].astype(str)) == set(record["runs"])
    probes = {f"{run.name}.{probe}": probe for run in PLAN.runs for probe in PLAN.probes}
    assert set(record["runs"]) <= set(probes)
    steps = {step for step in range(PLAN.training["max_steps"] + 1) if step in PLAN.schedule}
    layers = range(PLAN.model["n_layers"] + 1)
    metrics = [("anisotropy", "all"), ("anisotropy", "no_sink"), ("two_nn", "all")]
    for name, of_run in rows.groupby("run", observed=True):
        assert set(of_run["probe"]) == {record["probes"][probes[str(name)]]["hash"]}
        measured = of_run[of_run["layer"].notna()]
        keys = list(measured[["step", "layer", "metric", "subset"]].itertuples(index=False, name=None))
        assert sorted(keys) == sorted(
            (step, layer, *metric) for step in steps for layer in layers for metric in metrics
        )
        undefined = measured[measured["value"].isna()]
        assert set(undefined["metric"]) <= {"two_nn"}
        assert undefined["reason"].notna().all()
        assert set(of_run.query("metric == 'probe/loss'")["step"]) == steps


@pytest.mark.skipif(not RESULTS.exists(), reason="the experiment is not finished")
def test_the_published_results_are_remade_from_the_rows(tmp_path):
    analyze([str(ROWS), "--output", str(tmp_path)])
    for name in ("results.md", "effects.csv", "statistics.csv", "blocks.csv"):
        assert (tmp_path / name).read_text() == (RESULTS.parent / name).read_text()
    made = {path.name for path in (tmp_path / "figures").glob("*.png")}
    assert made
    assert made <= {path.name for path in (RESULTS.parent / "figures").iterdir()}

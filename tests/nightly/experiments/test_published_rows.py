"""The rows of the experiment that are in the repository."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from experiments.analyze import main as analyze
from experiments.clouds import main as compare_clouds
from experiments.collect import RECORD
from experiments.compare import main as compare
from experiments.plan import Plan
from repdyn import open_store

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "experiment"


@pytest.mark.parametrize(
    ("store", "name", "clouds"),
    [
        ("rows", "matched_pair", ["all"]),
        ("small", "small", ["all"]),
        ("small_no_bos", "small_no_bos", ["all"]),
        ("small_clouds", "small_clouds", ["all", "distinct_inputs", "types"]),
    ],
)
def test_every_run_is_whole_and_of_the_plan(store, name, clouds):
    stored = FOLDER / store
    plan = Plan.read(ROOT / "experiments" / "plans" / f"{name}.yaml")
    record = json.loads((stored / RECORD).read_text())
    assert record["plan_digest"] == plan.digest
    assert record["text"]["sha256"] == plan.text["sha256"]
    rows = open_store(stored).to_pandas()
    assert set(rows["run"].astype(str)) == set(record["runs"])
    probes = {f"{run.name}.{probe}": probe for run in plan.runs for probe in plan.probes}
    assert set(record["runs"]) <= set(probes)
    last = plan.training["max_steps"]
    steps = {step for step in range(last) if step in plan.schedule} | {last}
    layers = range(plan.model["n_layers"] + 1)
    metrics = [("anisotropy", "all"), ("anisotropy", "no_sink")]
    metrics += [("two_nn", cloud) for cloud in clouds]
    for run, of_run in rows.groupby("run", observed=True):
        assert set(of_run["probe"]) == {record["probes"][probes[str(run)]]["hash"]}
        measured = of_run[of_run["layer"].notna()]
        keys = list(
            measured[["step", "layer", "metric", "subset"]].itertuples(index=False, name=None)
        )
        cells = product(steps, layers, metrics)
        assert sorted(keys) == sorted((step, layer, *metric) for step, layer, metric in cells)
        undefined = measured[measured["value"].isna()]
        assert set(undefined["metric"]) <= {"two_nn"}
        assert undefined["reason"].notna().all()
        assert set(of_run.query("metric == 'probe/loss'")["step"]) == steps


def test_the_published_results_are_remade_from_the_rows(tmp_path):
    analyze([str(FOLDER / "rows"), "--output", str(tmp_path)])
    figures = {path.name for path in (tmp_path / "figures").glob("*.png")}
    compare([str(FOLDER / "small"), str(FOLDER / "small_no_bos"), "--output", str(tmp_path)])
    compare_clouds([str(FOLDER / "small_clouds"), "--output", str(tmp_path / "clouds.csv")])
    tables = ("effects.csv", "statistics.csv", "blocks.csv", "comparison.csv", "clouds.csv")
    for name in ("results.md", *tables):
        assert (tmp_path / name).read_text() == (FOLDER / name).read_text()
    assert figures
    assert figures <= {path.name for path in (FOLDER / "figures").iterdir()}

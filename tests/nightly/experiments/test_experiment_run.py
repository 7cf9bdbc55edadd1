"""The runner end to end: interrupted and resumed, collected, analysed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from experiment_plans import PLAN_OF_EXPERIMENT_RUN as PLAN
from experiment_plans import materials as materials
from experiment_plans import plan_file as plan_file
from experiment_plans import write

from experiments import analyze, run
from experiments.collect import collect
from experiments.figures import FIGURES
from experiments.materials import Materials
from experiments.plan import Plan
from experiments.train import PROGRESS, newest_checkpoint, train
from repdyn import open_store

ROOT = Path(__file__).parents[3]


def test_both_objectives_see_the_same_windows_in_the_same_order(materials):
    causal, masked = (materials.data(run) for run in materials.plan.runs)
    batches = [next(iter(data.train_dataloader())) for data in (causal, masked)]
    labels = batches[1]["labels"]
    seen = torch.where(labels == -100, batches[1]["input_ids"], labels)
    assert torch.equal(batches[0]["input_ids"], seen)
    bos = materials.tokenizer().bos_token_id
    assert (seen[:, 0] == bos).all()
    assert (seen[:, 1:] != bos).all()
    assert (labels[:, 0] == -100).all()
    for probe in materials.probes().values():
        assert (probe.tokens[probe.lengths.cumsum(0) - probe.lengths] == bos).all()


@pytest.mark.once
@pytest.mark.process
def test_an_interrupted_experiment_goes_on_as_if_nothing_had_happened(
    plan_file, materials, tmp_path, capsys
):
    for planned in materials.plan.runs:
        train(materials, planned)

    disturbed = Materials(materials.plan, "builtin", tmp_path / "disturbed")
    options = [
        str(plan_file),
        "--text",
        "builtin",
        "--output",
        str(disturbed.folder),
        "--workers",
        "2",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.run", *options], cwd=ROOT, start_new_session=True
    )
    causal = disturbed.run_folder(disturbed.plan.runs[0])
    deadline = time.monotonic() + 200
    while (
        not (causal / PROGRESS).exists() and time.monotonic() < deadline and process.poll() is None
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(200) == 130
    assert newest_checkpoint(causal) is not None
    assert not disturbed.is_finished(disturbed.plan.runs[0])
    run.main([*options, "--list"])
    assert "stopped" in capsys.readouterr().out
    for planned in disturbed.plan.runs:
        if not disturbed.is_finished(planned):
            train(disturbed, planned)

    for experiment in (materials.folder, disturbed.folder):
        added = collect(experiment, experiment / "rows")
        assert added == [f"seed1/{arm}.{probe}" for arm in ("causal", "masked") for probe in "ab"]
        assert collect(experiment, experiment / "rows") == []
    same = [
        *("run", "step", "layer", "metric", "subset"),
        *("value", "low", "high", "probe", "tokens_seen"),
    ]
    frames = [
        open_store(folder / "rows").to_pandas(columns=same)
        for folder in (materials.folder, disturbed.folder)
    ]
    assert len(frames[0]) > 500
    pd.testing.assert_frame_equal(*frames, check_exact=True)
    record = json.loads((disturbed.folder / "rows" / "experiment.json").read_text())
    assert set(record["runs"]) == set(frames[0]["run"])
    assert record["versions"]["torch"] == torch.__version__

    analyze.main([str(disturbed.folder / "rows"), "--output", str(tmp_path / "out")])
    assert "| H1 |" in (tmp_path / "out" / "results.md").read_text()
    assert {path.stem for path in (tmp_path / "out" / "figures").glob("*.png")} == set(FIGURES)


@pytest.mark.process
def test_a_plan_runs_on_a_cluster(plan_file, tmp_path, monkeypatch, capfd):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    plan = write(tmp_path / "plan.yaml", training={**PLAN["training"], "max_steps": 2})
    command = [
        sys.executable,
        "-m",
        "experiments.run",
        str(plan),
        "--text",
        "builtin",
        "--output",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(
        [*command, "--ray", "--workers", "1", "--only", "*/causal"],
        cwd=ROOT,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, capfd.readouterr()
    materials = Materials(Plan.read(plan), "builtin", tmp_path / "out")
    assert [materials.is_finished(planned) for planned in materials.plan.runs] == [True, False]
    log = (materials.run_folder(materials.plan.runs[0]) / "log.txt").read_text()
    assert "seed1/causal.a" in log

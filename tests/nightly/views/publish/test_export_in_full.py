"""Exports of a store: each is a complete run of its logger."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import wandb
from exported import store as store
from logged_runs import axes_of, history_of, of_kind

from repdyn.views.figures.run import all_figures
from repdyn.views.publish.export import export_store
from repdyn.views.publish.loggers import named_config
from repdyn.views.publish.results import provenance

NAN = math.nan


@pytest.fixture
def two_figures(monkeypatch) -> None:
    """Two of the figures, since drawing all takes most of the time."""

    def some(*given, **settings):
        figures = all_figures(*given, **settings)
        return {name: figures[name] for name in ("mean_over_layers", "profile_two_nn")}

    monkeypatch.setattr("repdyn.views.publish.export.all_figures", some)


def records(run: Path) -> list[dict]:
    """What W&B's own reader prints of an offline run."""
    (log,) = run.glob("*.wandb")
    # W&B leaves the address of this process's own service in the environment, and a child would ask
    # there.
    env = {
        name: value for name, value in os.environ.items() if not name.startswith("WANDB_SERVICE")
    }
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=env)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.process
# a comprehension for each claim on the run
def test_wandb_holds_a_complete_run_each_time(store, tmp_path, two_figures):
    lines = [
        line
        for _ in range(2)
        for line in export_store(store, folder=tmp_path / "logs", project="mine")
    ]
    runs = [Path(str(line.place)) for line in lines]
    assert len(set(runs)) == 2
    assert wandb.run is None
    for path in runs:
        assert path.parent == tmp_path / "logs" / "wandb"
        written = records(path)
        (run,) = of_kind(written, "run")
        assert run["display_name"] == "lab/model-70m"
        assert run["run_group"] == "lab"
        assert run["project"] == "mine"
        updates = [config["update"] for config in of_kind(written, "config")]
        config = {name: value for update in updates for name, value in update.items()}
        config = {name: config[name] for name in config if not name.startswith("_wandb")}
        assert config == named_config(provenance(store, store.to_pandas()))
        history = history_of(written)
        steps = [item for item in history if "two_nn/mean" in item]
        assert [item["repdyn/step"] for item in steps] == [0, 1, 8]
        assert [item["repdyn/tokens"] for item in steps] == [0, 1000, 8000]
        assert [item["two_nn/mean"] for item in steps] == [10.75, 11.75, 18.75]
        assert [item["seconds/kernels"] for item in steps] == [1.4] * 3
        assert [
            item["repdyn/step"] for item in history if "figures/profile_two_nn.path" in item
        ] == [8]
        axes = axes_of(written)
        assert {name for name, axis in axes if axis != "repdyn/step"} == {"repdyn/step"}

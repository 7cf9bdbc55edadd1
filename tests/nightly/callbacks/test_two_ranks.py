"""Lightning's strategies of two processes: the training is what it was, the numbers are those of
one process.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import lightning_cases as cases
import numpy as np
import pytest
import torch
from jobs import Job
from launched import TORCHRUN, launched

from repdyn import measure, open_store

pytestmark = [pytest.mark.process]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What two processes under torchrun have left."""
    folder = tmp_path_factory.mktemp("lightning")
    launched(*TORCHRUN, "2", cases.__file__, str(folder))
    return folder


def outcome(folder: Path, case: str) -> Any:
    told = json.loads((folder / f"{case}.json").read_text())
    assert not (isinstance(told, dict) and "failed" in told), told["failed"]
    return told


@pytest.mark.once
@pytest.mark.parametrize("strategy", cases.STRATEGIES)
def test_training_is_bit_identical(folder, strategy):
    ranks = outcome(folder, strategy)
    for plain, tracked in ranks:
        assert tracked == plain
    assert ranks[0][0][0] != ranks[1][0][0]  # each rank has data of its own
    store = open_store(folder / "store")
    assert store.steps(strategy) == [0, 2, 4]
    frame = store.to_pandas(strategy)
    assert set(frame.loc[frame["layer"].notna(), "module"]) == {
        f"network.blocks.{i}" for i in range(3)
    }


@pytest.mark.once
@pytest.mark.parametrize("step", [2, 4])
def test_two_ranks_give_the_numbers_of_one_process(folder, step):
    outcome(folder, "saved")
    job = Job()
    job.load_state_dict(
        torch.load(folder / "saved" / f"step={step}.ckpt", weights_only=True)["state_dict"]
    )
    expected = (
        measure(job, cases.PROBE, tokens_per_forward=60)
        .to_pandas()
        .sort_values(["metric", "subset", "layer"])
    )
    frame = open_store(folder / "store").to_pandas("saved")
    at_step = frame[(frame["step"] == step) & frame["layer"].notna()]
    np.testing.assert_array_equal(at_step["value"], expected["value"])
    np.testing.assert_array_equal(at_step["std"], expected["std"])


@pytest.mark.once
def test_a_run_that_goes_on_repeats_nothing(folder):
    outcome(folder, "resumed")
    store = open_store(folder / "store")
    assert store.steps("saved") == [0, 2, 4, 6]
    by_run = store.to_pandas("saved").astype({"run_id": str}).groupby("run_id")["step"]
    assert sorted(sorted(steps.unique()) for _, steps in by_run) == [
        [0, 2, 4],
        [6],
    ]  # who measured which


def test_early_stopping_measures_the_end(folder):
    outcome(folder, "stopped early")
    assert open_store(folder / "store").steps("stopped") == [0, 12]


def test_a_rank_that_cannot_measure_stops_nobody(folder):
    assert len(outcome(folder, "broken on one rank")) == cases.STEPS
    frame = open_store(folder / "store").to_pandas("broken")
    assert frame["reason"].dropna().empty  # the first rank measures alone


# Lightning starts the second process itself, here by multiprocessing's spawn; the example of
# docs/distributed.md has it run the script again.
LAUNCHED_BY_LIGHTNING = """
    from jobs import Job, batches, tracker, trainer
    from lightning_cases import PROBE
    from repdyn.views.publish import results

    results.show_run = lambda *_, **__: None  # figures take longer than all else

    if __name__ == "__main__":
        two = {{"strategy": "ddp_spawn", "devices": 2}}
        trainer({root!r}, tracker(PROBE, 2), max_steps=4, **two).fit(Job(), batches())
"""


def test_processes_that_lightning_starts(tmp_path):
    root = tmp_path / "run"
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(LAUNCHED_BY_LIGHTNING.format(root=str(root))))
    launched(str(script))
    store = open_store(root / "job" / "0" / "repdyn")
    assert store.steps("job/0") == [0, 2, 4]
    assert store.to_pandas().groupby("step")["tokens_seen"].first().to_dict() == {
        0: 0,
        2: 2 * 96,
        4: 4 * 96,
    }

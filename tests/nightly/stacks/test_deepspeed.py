"""DeepSpeed's stages 1 and 2 on CPUs, in a loop of one's own and in the Trainer. Skipped where
DeepSpeed is not installed.
"""

from __future__ import annotations

import math
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import deepspeed_job
import pytest
import torch
from launched import TORCHRUN, launched

from repdyn import open_store

pytestmark = [
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
    pytest.mark.process,
    pytest.mark.timeout(1200),  # its first start in an environment compiles for minutes
]


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two processes"])
def folder(request, tmp_path_factory) -> tuple[Path, int]:
    """Where the processes under torchrun have left what came out of each case, and how many there
    were.
    """
    folder = tmp_path_factory.mktemp("deepspeed")
    with_ninja = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    launched(
        *(*TORCHRUN, str(request.param), deepspeed_job.__file__, str(folder)),
        seconds=1100,
        DS_ACCELERATOR="cpu",
        PATH=with_ninja,
    )
    return folder, request.param


def assert_same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.once
@pytest.mark.parametrize("case", [*deepspeed_job.CASES, deepspeed_job.TRAINER])
def test_the_engine_is_measured_as_its_module_and_trains_as_before(folder, case) -> None:
    path, n_ranks = folder
    for rank in range(n_ranks):
        plain, tracked = torch.load(path / f"{case}, rank {rank}.pt", weights_only=False)
        assert len(set(plain["losses"])) == 8
        for part in ("losses", "weights", "random"):
            assert_same(tracked[part], plain[part])
    frame = open_store(path / "store").to_pandas(case)
    frame = frame[frame["layer"].notna()]
    assert set(frame["model"]) == {"LlamaForCausalLM" if "llama" in case else "HandWritten"}
    last = frame.query("step == step.max()")
    stored = {
        (row.layer, row.module, row.metric, row.subset): row.value for row in last.itertuples()
    }
    offline = tracked["values"]
    assert stored.keys() == offline.keys()
    for place, value in offline.items():
        assert stored[place] == value or (math.isnan(stored[place]) and math.isnan(value)), place
    assert not last.loc[last["layer"] > 0, "value"].isna().any()

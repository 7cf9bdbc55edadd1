"""A measurement of a model on a device other than the CPU: the same rows, and the host rarely
waits.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from pretend_cuda import PretendCuda
from small import random_tokens
from torch import nn
from transformers import AutoModel, BertConfig, GPTNeoXConfig, T5Config

from repdyn import Probe, measure
from repdyn.metrics import METRICS
from repdyn.store.schema import Checkpoint
from repdyn.store.state_cache import StateCache

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
MODELS = {
    "gpt_neox": GPTNeoXConfig(**SMALL),
    "bert": BertConfig(**SMALL),
    "t5": T5Config(vocab_size=50, d_model=32, d_ff=64, num_layers=2, num_heads=2, d_kv=16),
}
TIMES = {"seconds", "measured_at"}
VALUES = ["value", "std", "std_error", "low", "high", "same_window_share", "near_duplicate_share"]
# waits of the host for the device in a measurement of the default metrics: three layers, 48 vectors
SYNCS = 258


def small_model(family: str = "gpt_neox", dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return AutoModel.from_config(MODELS[family]).to(dtype).eval()


@pytest.fixture(scope="module")
def probe() -> Probe:
    tokens = random_tokens(8, 12)
    marked = Probe.from_tokens(tokens, max_vectors=48, batch_vectors=48).with_topics(
        tokens.flatten() % 4
    )
    return marked.with_classes({"even": tokens.flatten() % 2 == 0})


def measured(model: nn.Module, probe: Probe, folder: Path, **options: int) -> pd.DataFrame:
    """Return the rows of all metrics at the second of two checkpoints."""
    cache = StateCache(folder, run="r", probe=probe.hash)
    measure(model, probe, ["cka_previous"], state_cache=cache)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    profile = measure(
        model, probe, "all", state_cache=cache, checkpoint=Checkpoint(step=5), **options
    )
    return profile.to_pandas().drop(columns=TIMES)


@pytest.mark.parametrize(
    ("family", "dtype", "device"),
    [
        *((family, torch.float32, "cuda") for family in MODELS),
        *(("gpt_neox", dtype, "cuda") for dtype in (torch.bfloat16, torch.float16)),
        *((family, torch.float32, "mps") for family in MODELS),
    ],
    ids=str,
)
def test_all_metrics_are_those_of_the_cpu(family, dtype, device, probe, tmp_path):
    expected = measured(small_model(family, dtype), probe, tmp_path / "cpu")
    with PretendCuda(device):
        on_device = measured(small_model(family, dtype).to(device), probe, tmp_path / device)
    assert set(on_device["metric"]) == {
        name for name, metric in METRICS.items() if not metric.is_of_weights
    }
    assert set(on_device.pop("device")) == {"pretended" if device == "cuda" else "mps"}
    assert set(expected.pop("device")) == {"cpu"}
    pd.testing.assert_frame_equal(on_device.drop(columns=VALUES), expected.drop(columns=VALUES))
    for column in VALUES:
        # square roots of the smallest eigenvalues, in an effective rank, have fewer digits
        assert on_device[column].tolist() == pytest.approx(
            expected[column].tolist(), rel=1e-8, abs=1e-12, nan_ok=True
        )
    assert on_device["value"].notna().mean() > 0.8


def test_states_in_files_are_measured_on_the_device(probe):
    metrics = ["anisotropy", "anisotropy@no_massive", "linearity", "token_cosine", "alignment"]
    expected = measure(small_model(), probe, metrics).to_pandas()
    with PretendCuda():
        found = measure(small_model().to("cuda"), probe, metrics, states_bytes=0).to_pandas()
    assert found["value"].tolist() == pytest.approx(
        expected["value"].tolist(), rel=1e-9, nan_ok=True
    )


def test_the_host_waits_no_more_often_than_recorded(probe):
    with PretendCuda() as cuda:
        measure(small_model().to("cuda"), probe)
    assert cuda.syncs.total() <= SYNCS, cuda.syncs

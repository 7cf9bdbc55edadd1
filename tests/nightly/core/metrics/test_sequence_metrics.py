"""Metrics of whole sequences through measure: against the states of each window run alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from small import random_tokens
from torch import Tensor
from transformers import AutoModel, BertConfig, GPT2Config, PreTrainedModel

from repdyn import Probe, measure

NAMES = [
    "sequence_entropy",
    "sequence_entropy[normalised=false]",
    "sequence_cosine",
    "largest_activation",
]
SMALL = {
    "vocab_size": 50,
    "max_position_embeddings": 320,
    "hidden_size": 16,
    "num_attention_heads": 2,
}
CONFIGS = {
    "gpt2": lambda: GPT2Config(**SMALL, num_hidden_layers=2),
    "bert": lambda: BertConfig(**SMALL, num_hidden_layers=2, intermediate_size=32),
}
LENGTHS = torch.tensor([300, 1, 40, 2, 1, 257, 256, 1, 9, 31])


def model_of(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModel.from_config(CONFIGS[family]()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


def ragged(left: bool = False) -> Probe:
    mask = torch.arange(300) < LENGTHS[:, None]
    ids = random_tokens(len(LENGTHS), 300) * mask
    if left:
        ids, mask = (
            torch.stack([row.roll(300 - int(n)) for row, n in zip(given, LENGTHS, strict=True)])
            for given in (ids, mask)
        )
    return Probe.from_tokens(ids, mask, max_vectors=384, batch_vectors=192)


def even() -> Probe:
    return Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)


def naive(states: np.ndarray) -> list[float]:
    """The four values of one sequence, (length, dim)."""
    shares = np.linalg.svd(states, compute_uv=False) ** 2
    shares /= shares.sum()
    above_zero = shares[shares.nonzero()]
    entropy = -(above_zero * np.log(above_zero)).sum()
    units = states / np.linalg.norm(states, axis=1, keepdims=True)
    pairs = ~np.eye(len(states), dtype=bool)
    return [
        entropy / np.log(min(states.shape)),
        entropy,
        (units @ units.T)[pairs].mean(),
        np.abs(states).max(),
    ]


@pytest.mark.parametrize("make", [even, ragged], ids=["equal lengths", "unequal lengths"])
@pytest.mark.parametrize("family", CONFIGS)
def test_the_values_are_those_of_the_windows_run_alone(family: str, make: Callable[[], Probe]):
    model = model_of(family)
    probe = make()
    frame = measure(model, probe, NAMES).to_pandas()
    by_batch = []
    for windows in probe.whole_windows:
        of_windows = []
        for tokens in windows:
            window = probe.window_of_token[tokens[0]]
            # an encoder's states depend on the tokens after the cut as well
            whole = probe.tokens[torch.from_numpy(probe.window_of_token == window)]
            states = blocks_of(model, whole[None])
            of_windows.append(
                [naive(of_layer[0, : len(tokens)].double().numpy()) for of_layer in states]
            )
        by_batch.append(np.mean(of_windows, axis=0))
    for number, name in enumerate(NAMES):
        is_of_metric = frame["metric"] == name
        rows = frame[is_of_metric]
        expected = np.array(by_batch)[:, :, number]
        assert rows["value"].to_numpy() == pytest.approx(expected.mean(0), rel=1e-5)
        assert rows["std_error"].to_numpy() == pytest.approx(
            expected.std(0, ddof=1) / np.sqrt(2), rel=1e-3, abs=1e-8
        )


def blocks_of(model: PreTrainedModel, ids: Tensor) -> list[Tensor]:
    """The input of the first block and the output of each."""
    blocks = model.h if hasattr(model, "h") else model.encoder.layer
    states: list[Tensor] = []

    def keep_input(_module, args):
        states.append(args[0])

    def keep_output(_module, _args, output):
        states.append(output if isinstance(output, Tensor) else output[0])

    hooks = [blocks[0].register_forward_pre_hook(keep_input)]
    hooks += [block.register_forward_hook(keep_output) for block in blocks]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    return states


@pytest.mark.parametrize("family", CONFIGS)
def test_padding_may_be_on_either_side(family):
    left, right = (
        measure(model_of(family), ragged(left=side), NAMES).to_pandas() for side in (True, False)
    )
    assert left["value"].tolist() == right["value"].tolist()


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("make", [even, ragged], ids=["equal lengths", "unequal lengths"])
def test_other_metrics_do_not_notice(make, family):
    others = ["anisotropy", "two_nn", "mean_cosine", "alignment", "cka_next"]
    alone, beside = (
        measure(model_of(family), make(), names).to_pandas()
        for names in (others, [*NAMES, *others])
    )
    beside = beside[beside["metric"].isin(alone["metric"])].reset_index(drop=True)
    timed = ["seconds", "measured_at"]
    # a window that is read to its end may be padded in another batch
    pd.testing.assert_frame_equal(alone.drop(columns=timed), beside.drop(columns=timed), rtol=1e-6)

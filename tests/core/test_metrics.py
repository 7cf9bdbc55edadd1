"""Every metric of the table through measure: what it is given is what its definition says."""

from __future__ import annotations

import math
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import rankdata
from small import random_tokens
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    GPTNeoXConfig,
    PreTrainedModel,
    T5Config,
)

from repdyn import Probe, measure
from repdyn.capture.capture import capture
from repdyn.capture.trial import prepare
from repdyn.metrics import METRICS, resolve
from repdyn.store.schema import Checkpoint
from repdyn.store.state_cache import StateCache

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
}
CONFIGS = {
    "gpt_neox": lambda: GPTNeoXConfig(**SMALL),
    "bert": lambda: BertConfig(**SMALL),
    "t5": lambda: T5Config(vocab_size=50, d_model=32, d_ff=64, num_layers=2, num_heads=2, d_kv=16),
}


HEADS = {"gpt_neox": AutoModelForCausalLM, "bert": AutoModelForMaskedLM}


def model_of(family: str, auto_class: Any = AutoModel) -> PreTrainedModel:
    torch.manual_seed(0)
    return auto_class.from_config(CONFIGS[family]()).eval()


@pytest.fixture(scope="module")
def probe() -> Probe:
    tokens = random_tokens(20, 16)
    marked = Probe.from_tokens(tokens, max_vectors=192, batch_vectors=96).with_topics(
        tokens.flatten() % 4
    )
    return marked.with_classes({"even": tokens.flatten() % 2 == 0})


@pytest.fixture(scope="module")
def frames(probe) -> dict[str, pd.DataFrame]:
    """All metrics of each family, at the second of two checkpoints."""
    by_family = {}
    for family in CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            state_cache = StateCache(Path(folder), run="r", probe=probe.hash)
            model = model_of(family, HEADS.get(family, AutoModel))
            measure(model, probe, "all", state_cache=state_cache)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(
                        1
                        + 0.1
                        * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
                    )
            by_family[family] = measure(
                model, probe, "all", state_cache=state_cache, checkpoint=Checkpoint(step=5)
            ).to_pandas()
    return by_family


HAS_WEIGHTS = hasattr(PreTrainedModel, "set_attn_implementation")
"""Whether the installed transformers can be asked for attention weights; else these metrics are NaN
with the reason.
"""
needs_weights = pytest.mark.skipif(not HAS_WEIGHTS, reason="an earlier version of transformers")


@pytest.mark.parametrize(
    "name", [name for name, metric in METRICS.items() if not metric.is_of_weights]
)
@pytest.mark.parametrize("family", CONFIGS)
def test_the_table_keeps_its_promises(name, family, frames, probe):
    metric = METRICS[name]
    if "attention_weights" in metric.captures and not HAS_WEIGHTS:
        pytest.skip("an earlier version of transformers")
    is_of_metric = frames[family]["metric"] == name
    rows = frames[family][is_of_metric]
    of_layers = rows[rows["head"].isna()]
    n_layers = {None: 4} if family != "t5" else {"encoder": 3, "decoder": 3}
    for stack, count in n_layers.items():
        of_stack = of_layers[
            of_layers["stack"].isna() if stack is None else of_layers["stack"] == stack
        ]
        expected = [
            layer
            for layer in range(count)
            if metric.is_defined_at(layer, is_last=layer == count - 1)
        ]
        for request in resolve([name], probe):
            measured = of_stack.loc[of_stack["subset"] == request.subset, "layer"]
            assert measured.tolist() == expected
    undefined = of_layers["value"].isna()
    # the embedding output of models without learned positions has one vector for each of 50 tokens
    too_few = (
        of_layers["reason"]
        .fillna("")
        .str.contains("^fewer than half|distinct of 96 points, at least 6[45] needed$")
    )
    few = of_layers["on_distinct"] & (of_layers["layer"] == 0) & too_few
    # a width of 32 leaves too few eigenvalues for a power law from rank 11 to 100 in no case here
    headless = "output_head" in metric.captures and family not in HEADS
    assert (undefined == (few | headless)).all(), of_layers.loc[undefined, ["layer", "reason"]]
    assert not few.any() or family != "bert"
    low, high = metric.range
    assert of_layers.loc[~undefined, "value"].between(low, high).all()
    assert bool((rows["head"].notna().sum() > 0) == metric.per_head)
    assert metric.meaning
    assert metric.source


@needs_weights
def test_the_attention_of_a_layer_is_the_mean_of_its_heads(frames):
    rows = frames["gpt_neox"].query("metric == 'attention_topic_gap'")
    for _, of_layer in rows.groupby("layer"):
        heads = of_layer[of_layer["head"].notna()]
        assert heads["head"].tolist() == [0, 1]
        assert heads["value"].mean() == pytest.approx(
            of_layer.loc[of_layer["head"].isna(), "value"].item(), rel=1e-12
        )


def test_layers_are_matched_with_the_next_and_the_last(probe):
    model = model_of("bert")
    names = ["alignment", "alignment@even", "alignment_gradient", "step_length", "step_cosine"]
    frame = (
        measure(model, probe, names).to_pandas().set_index(["metric", "subset", "layer"])["value"]
    )
    states = capture(prepare(model, probe), probe, ["all", "even"])
    for subset in ("all", "even"):
        sampled = probe.sample(subset)
        layers = [
            of.states[states.rows_of(sampled.ravel())].double().numpy() for of in states.layers
        ]
        layers = [of.reshape(*sampled.shape, -1) for of in layers]
        aligned = [_cosines(of, layers[-1]).mean() for of in layers]
        assert frame["alignment", subset].to_numpy() == pytest.approx(aligned, rel=1e-6)
        if subset == "all":
            steps = [np.linalg.norm(b - a, axis=-1).mean() for a, b in pairwise(layers)]
            assert frame["alignment_gradient", "all"].to_numpy() == pytest.approx(
                np.diff(aligned), abs=1e-6
            )
            assert frame["step_length", "all"].to_numpy() == pytest.approx(steps, rel=1e-6)
            cosines = [_cosines(a, b).mean() for a, b in pairwise(layers)]
            assert frame["step_cosine", "all"].to_numpy() == pytest.approx(cosines, rel=1e-6)


def test_tokens_are_held_against_their_own_rows(probe):
    model = model_of("gpt_neox")
    frame = measure(
        model, probe, ["token_cosine", "token_rank", "token_top1_match", "token_rank@even"]
    ).to_pandas()
    table = model.get_input_embeddings().weight.detach().double().numpy()
    states = capture(prepare(model, probe), probe, ["all", "even"])
    for row in frame.itertuples():
        values = []
        for tokens in probe.sample(row.subset):
            points = states.layers[row.layer].states[states.rows_of(tokens)].double().numpy()
            cosines = _cosines(points[:, None], table[None])
            ids = probe.tokens[tokens].numpy()
            ranks = np.array(
                [
                    rankdata(-line, method="min")[token] - 1
                    for line, token in zip(cosines, ids, strict=True)
                ]
            )
            token = cosines[np.arange(len(ids)), ids]
            values.append(
                {
                    "token_cosine": token.mean(),
                    "token_rank": np.median(ranks),
                    "token_top1_match": (ranks == 0).mean(),
                }
            )
        assert row.value == pytest.approx(
            np.mean([batch[row.metric] for batch in values]), rel=1e-6
        )


@needs_weights
def test_attention_is_that_of_the_eager_model(probe):
    model = model_of("bert")
    names = [
        "attention_topic_gap",
        "attention_topic_same",
        "attention_topic_different",
        "attention_evenness",
    ]
    frame = measure(model, probe, names).to_pandas()
    heads = frame[frame["head"].notna()].set_index(["metric", "layer", "head"])["value"]
    model.set_attn_implementation("eager")
    ids = probe.tokens.view(20, 16)
    with torch.no_grad():
        weights = model(ids, output_attentions=True).attentions
    topics = probe.topics.view(20, 16)
    different = ids[:, :, None] != ids[:, None]
    same = (topics[:, :, None] == topics[:, None]) & different
    for layer, of_layer in enumerate(weights, start=1):
        for head in range(2):
            of_head = of_layer[:, head].double()
            means = torch.tensor(
                [[of_head[i][k[i]].mean() for k in (same, different & ~same)] for i in range(20)]
            )
            evenness = -(of_head * of_head.log()).sum(-1).mean() / math.log(16)
            expected = [(means[:, 0] - means[:, 1]).mean(), *means.mean(0), evenness]
            assert [heads[name, layer, head] for name in names] == pytest.approx(
                list(map(float, expected)), abs=1e-7
            )


def test_a_checkpoint_is_compared_with_the_one_before(tmp_path, probe):
    state_cache = StateCache(tmp_path, run="r", probe=probe.hash)
    model = model_of("bert")
    first = measure(model, probe, ["cka_previous"], state_cache=state_cache).to_pandas()
    assert first["value"].isna().all()
    assert first["compared_to"].isna().all()
    again = measure(
        model, probe, ["cka_previous"], state_cache=state_cache, checkpoint=Checkpoint(step=3)
    ).to_pandas()
    assert again["value"].to_numpy() == pytest.approx(1, abs=1e-9)
    assert (again["compared_to"] == 0).all()
    assert (again["n_batches"] == 1).all()


def test_without_earlier_checkpoints_there_is_nothing_to_compare_with(probe):
    frame = measure(model_of("bert"), probe, ["cka_previous"]).to_pandas()
    assert set(frame["reason"]) == {"batch 0: no earlier checkpoint of this run is at hand"}


def test_all_are_those_that_the_probe_has_what_it_takes_for(probe):
    every = {metric.name for metric in METRICS.values() if not metric.is_of_weights}
    assert {request.name for request in resolve("all", probe)} == every
    plain = Probe(probe.tokens, probe.lengths, batch_vectors=96, n_batches=2)
    without = {request.name for request in resolve("all", plain)}
    assert every - without == {
        metric.name for metric in METRICS.values() if metric.probe_requires == "topics"
    }
    with pytest.raises(
        ValueError,
        match=r"expected a probe whose tokens have topics for topic_gap, got one without; make",
    ):
        resolve(["topic_gap"], plain)


class Widening(nn.Module):
    """Blocks of which one puts out wider vectors than it takes in."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(nn.Linear(*widths) for widths in [(16, 16), (16, 24), (24, 24)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x)
        return x


def test_layers_of_other_widths_cost_their_own_rows(probe):
    torch.manual_seed(0)
    frame = measure(
        Widening(), probe, ["alignment", "step_length", "cka_next"], "blocks.*"
    ).to_pandas()
    reasons = frame.set_index(["metric", "layer"])["reason"].fillna("")
    told = "batch 0: the layers have vectors of 16 and 24 coordinates"
    assert reasons["alignment"].tolist() == [told, told, "", ""]
    assert reasons["step_length"].tolist() == ["", told, ""]
    assert frame.loc[frame["metric"] == "cka_next", "value"].notna().all()


def test_two_tables_of_two_stacks_are_not_mixed_up(probe):
    torch.manual_seed(0)
    config = EncoderDecoderConfig.from_encoder_decoder_configs(
        BertConfig(**SMALL), BertConfig(**SMALL)
    )
    frame = measure(EncoderDecoderModel(config).eval(), probe, ["token_cosine"]).to_pandas()
    told = "batch 0: the stacks have input embeddings of their own, and which is whose is not known"
    assert set(frame["reason"]) == {told}


@needs_weights
def test_attention_heeds_the_subset_and_leaves_out_what_has_no_pairs(probe):
    model = model_of("bert")
    names = ["attention_topic_gap", "attention_topic_gap@even"]
    frame = measure(model, probe, names).to_pandas()
    of_layers = frame[frame["head"].isna()].set_index(["subset", "layer"])
    assert (of_layers.loc["all", "value"] != of_layers.loc["even", "value"]).all()
    assert set(of_layers.loc["all", "n_batches"]) == {20}
    assert set(of_layers["n_vectors"]) == set(of_layers["n_unique"]) == {16}
    topics = probe.topics.clone()
    topics[16:32] = -1
    without = measure(model, probe.with_topics(topics), names[:1]).to_pandas()
    assert set(without["n_batches"]) == {19}
    assert without["value"].notna().all()


@needs_weights
def test_no_sequence_is_cut_for_want_of_room():
    tokens = random_tokens(14, 200)
    long = Probe.from_tokens(tokens, max_vectors=192, batch_vectors=96).with_topics(
        tokens.flatten() % 4
    )
    frame = measure(model_of("bert"), long, ["attention_topic_gap"]).to_pandas()
    assert set(frame["n_batches"]) == {10}
    assert set(frame["n_vectors"]) == {200}


def _cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x * y).sum(-1) / (np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1))


def test_classes_are_smaller_samples_that_say_so(probe):
    frame = measure(model_of("bert"), probe, ["alignment@even", "norm"]).to_pandas()
    n_even = int(probe.classes["even"].sum())
    assert set(frame.loc[frame["subset"] == "even", "n_vectors"]) == {min(96, n_even // 2)}
    assert not math.isnan(frame["value"].sum())

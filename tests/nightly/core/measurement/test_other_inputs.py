"""Models of images, waveforms and pairs, measured on probes of inputs: the states that they report,
live and offline.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from other_inputs import (
    FAMILIES,
    N_INPUTS,
    OF_EACH,
    Family,
    batches_of,
    model_of,
    probe_of,
    random,
    step,
    values,
    vit,
    wav2vec2,
)
from torch import Tensor, nn
from transformers import (
    AutoModel,
    PreTrainedModel,
)

from repdyn import Probe, Tracker, kernels, measure, open_store
from repdyn.views.tables.texts import sampling


@pytest.fixture(params=FAMILIES)
def family(request) -> Family:
    return FAMILIES[request.param]


def naive_vectors(family: Family, states: Tensor, stack: str | None, probe: Probe) -> list[Tensor]:
    """Return the vectors of each metric batch from whole states, one by one."""
    first, counts = family.counting[stack](family.inputs(), states.shape[1])
    draws = np.random.RandomState(probe.seed).random_sample((N_INPUTS, OF_EACH))
    vectors = []
    for sequence, (count, drawn) in enumerate(zip(counts.tolist(), draws.tolist(), strict=True)):
        edges = [math.floor(part * count / OF_EACH) for part in range(OF_EACH + 1)]
        chosen = [
            start + int(u * (end - start))
            for start, end, u in zip(edges, edges[1:], drawn, strict=False)
        ]
        vectors += [states[sequence, first + position] for position in chosen]
    return [torch.stack([vectors[index] for index in batch]) for batch in probe.sample("all")]


@pytest.mark.parametrize(
    ("name", "what"),
    [("ViT", "image"), ("CLIP", "input"), ("Whisper", "recording"), ("wav2vec2", "recording")],
)
def test_inputs_are_called_by_their_names(name: str, what: str) -> None:
    """Images had as many positions as were sampled of them."""
    family = FAMILIES[name]
    frame = measure(
        model_of(family), probe_of(family), ("anisotropy",), layers=family.layers
    ).to_pandas()
    assert sampling(frame).endswith(f"{OF_EACH} of each of {N_INPUTS // 2} {what}s")


@torch.no_grad()
def test_values_are_those_of_the_states_that_the_model_reports(family: Family) -> None:
    model = model_of(family)
    probe = probe_of(family)
    profile = measure(model, probe, ("anisotropy",), layers=family.layers)
    outputs = [model(**batch, output_hidden_states=True) for batch in batches_of(family)]
    rows = {(row.stack, row.layer): row for row in profile.rows}
    assert len(rows) == sum(n + 1 for n in family.n_blocks.values())
    for stack, n_blocks in family.n_blocks.items():
        reported = [family.reported[stack](output) for output in outputs]
        for layer in range(n_blocks):  # the last reported one may be behind a final norm
            states = torch.cat([of_batch[layer] for of_batch in reported])
            expected = [
                float(kernels.anisotropy(x.double()))
                for x in naive_vectors(family, states, stack, probe)
            ]
            assert rows[stack, layer].value == pytest.approx(np.mean(expected), rel=1e-5)


def train(family: Family, folder, probe: Probe | None, steps: int = 2) -> PreTrainedModel:
    model = model_of(family).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tracker = None
    if probe is not None:
        tracker = Tracker(
            model, probe, schedule=1, layers=family.layers, store=folder, report=False
        ).start()
    for number in range(steps):
        loss = step(model, batches_of(family)[number], optimizer)
        if tracker is not None:
            tracker.step(loss=loss)
    if tracker is not None:
        tracker.finish()
    return model


def test_live_equals_offline_and_leaves_the_training_as_it_is(
    family: Family, tmp_path, without_figures
) -> None:
    tracked = train(family, tmp_path / "store", probe_of(family))
    alone = train(family, tmp_path, None)
    for (name, weight), other in zip(
        tracked.state_dict().items(), alone.state_dict().values(), strict=True
    ):
        assert torch.equal(weight, other), name
    tracked.save_pretrained(tmp_path / "step2")
    store = open_store(tmp_path / "store")
    probe = Probe.load(next((tmp_path / "store" / "probes").glob("*.safetensors")))
    # the class that a sweep loads, without the head
    loaded = AutoModel.from_pretrained(tmp_path / "step2")
    offline = measure(loaded, probe, layers=family.layers).to_pandas()
    live = store.to_pandas()
    live = live.query("step == 2")
    pd.testing.assert_frame_equal(
        values(live).drop(columns="step"),
        values(offline.assign(step=2)).drop(columns="step"),
        check_exact=True,
    )


# what cannot be measured, and what others write


class PositionsFirst(nn.Module):
    """Blocks of (n_positions, n_inputs, dim), as in open_clip and fairseq; as many positions as a
    batch has inputs.
    """

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first = first
        self.embed = nn.Linear(4, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=not first)
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x.transpose(0, 1) if self.first else x
        for layer in self.layers:
            x = layer(x)
        return x


def test_states_with_the_positions_first_are_told_from_others() -> None:
    """(facebookresearch/detr, models/transformer.py)"""
    torch.manual_seed(0)
    positions_first = PositionsFirst(False)
    other = PositionsFirst(True)
    other.load_state_dict(positions_first.state_dict())
    probe = Probe.from_inputs(random(48, 16, 4).split(16), max_vectors=384, batch_vectors=192)
    values = [
        [row.value for row in measure(model, probe).rows] for model in (positions_first, other)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-5)


class Maps(nn.Module):
    """States (n, height, width, dim), as timm's Swin has them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Sequential(nn.Linear(8, 8)))
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_maps_of_patches_are_read_row_by_row() -> None:
    torch.manual_seed(0)
    model = Maps()
    maps = random(48, 3, 5, 8)
    probe = Probe.from_inputs(maps.split(16), max_vectors=384, batch_vectors=192)
    flat = Probe.from_inputs(maps.flatten(1, 2).split(16), max_vectors=384, batch_vectors=192)
    on_maps, on_rows = (measure(model, each, layers="layers.*") for each in (probe, flat))
    assert [row.value for row in on_maps.rows] == pytest.approx(
        [row.value for row in on_rows.rows], rel=1e-6
    )


def patches(states: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    return torch.arange(states.shape[1]).expand(states.shape[:2]) > 0


def test_a_function_chooses_positions_as_a_slice_does() -> None:
    family = FAMILIES["ViT"]
    model = model_of(family)
    by_function = Probe.from_inputs(
        batches_of(family), positions=patches, max_vectors=384, batch_vectors=192
    )
    values = [
        [row.value for row in measure(model, probe).rows]
        for probe in (by_function, probe_of(family))
    ]
    assert values[0] == values[1]


def wrong(states: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    return torch.ones(states.shape[1])


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"positions": "mask"}, "mask"),
        ({"positions": wrong}, "torch.float32"),
        ({"positions": slice(10, None)}, "vectors_per_input=7"),
    ],
    ids=["no mask", "no boolean", "few positions"],
)
def test_positions_that_cannot_be_are_refused_before_a_training(
    settings: dict, word: str, tmp_path
) -> None:
    family = FAMILIES["ViT"]
    probe = Probe.from_inputs(batches_of(family), max_vectors=384, batch_vectors=192, **settings)
    with pytest.raises((ValueError, RuntimeError), match=word):
        Tracker(model_of(family), probe, store=tmp_path).start()


def test_inputs_that_the_forward_does_not_take_are_refused_before_a_training(tmp_path) -> None:
    probe = Probe.from_inputs(
        [{"images": random(48, 3, 32, 32)}], max_vectors=384, batch_vectors=192
    )
    with pytest.raises(ValueError, match="name the inputs as the forward does"):
        Tracker(vit(), probe, store=tmp_path).start()


def test_all_metrics_are_those_without_tokens() -> None:
    family = FAMILIES["ViT"]
    frame = measure(model_of(family), probe_of(family), "all").to_pandas()
    without_value = set(frame[frame["value"].isna()]["metric"])
    # of 16 coordinates, and of the first checkpoint
    assert without_value == {
        "alpha_req",
        "cka_previous",
        "mutual_knn_previous",
        "procrustes_previous",
        "imbalance_previous",
    }
    assert {"anisotropy", "two_nn", "cka_following", "linearity"} & set(frame["metric"])
    assert not {"sink_rate", "lens_kl", "sequence_entropy", "next_token_variance"} & set(
        frame["metric"]
    )


def test_inputs_are_given_in_the_precision_of_the_weights() -> None:
    model = wav2vec2().to(torch.bfloat16)
    frame = measure(model, probe_of(FAMILIES["wav2vec2"]), ("anisotropy",)).to_pandas()
    assert set(frame["dtype"]) == {"bfloat16"}
    assert bool(frame["value"].notna().all())

"""Probes of inputs of any kind: batches, sampling plan, hash and files."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from repdyn import Probe
from repdyn.probe.inputs import as_batch


def images(n_batches: int = 4, size: int = 8, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {"pixel_values": torch.randn(size, 3, 4, 4, generator=generator)} for _ in range(n_batches)
    ]


def probe_of(batches, **settings) -> Probe:
    return Probe.from_inputs(batches, **{"max_vectors": 64, "batch_vectors": 32, **settings})


def test_few_inputs_give_fewer_vectors_and_batches_share_no_input() -> None:
    with pytest.warns(UserWarning, match="2 x 16 are measured"):
        probe = probe_of(images(1, 4), batch_vectors=16)
    assert probe.lengths.tolist() == [8] * 4  # a layer may have no more positions
    probe = probe_of(images())
    assert probe.lengths.tolist() == [8] * 32
    assert probe.has_disjoint_batches()
    of_batches = [set(probe.window_of(batch)) for batch in probe.sample("all")]
    assert of_batches[0].isdisjoint(of_batches[1])
    assert probe.subsets == ("all",)
    with pytest.warns(UserWarning, match="1 x 32") as caught:
        probe = probe_of(images(), vectors_per_input=1)
    assert probe.batch_vectors == 32
    assert probe.n_batches == 1
    assert caught[0].filename.endswith("probe_fixtures.py") or caught[0].filename == __file__


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param({"x": torch.ones(2, 3), "flag": True}, id="dictionary"),
        pytest.param((torch.ones(2, 3), torch.ones(2)), id="tuple"),
        pytest.param(torch.ones(2, 3), id="tensor"),
        pytest.param(np.ones((2, 3)), id="array"),
    ],
)
def test_batches_are_taken_as_a_forward_takes_them(batch) -> None:
    taken = as_batch(batch)
    first = taken["x"] if isinstance(taken, dict) else taken[0]
    assert first.shape == (2, 3)


def test_later_changes_of_the_inputs_do_not_reach_the_probe() -> None:
    batches = images()
    probe = probe_of(batches)
    before = probe.hash
    batches[0]["pixel_values"].zero_()
    assert probe_of(probe.inputs.batches).hash == before != probe_of(batches).hash


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(
            {"positions": {"encoder": None, "decoder": slice(1, None)}}, id="positions of stacks"
        ),
        pytest.param({"seed": 1}, id="seed"),
        pytest.param({"vectors_per_input": 9}, id="vectors per input"),
        pytest.param({"max_vectors": 32}, id="number of vectors"),
    ],
)
def test_the_hash_depends_on_all_that_values_depend_on(other: dict) -> None:
    assert probe_of(images()).hash == probe_of(images()).hash
    assert probe_of(images(), **other).hash != probe_of(images()).hash


@pytest.mark.parametrize(
    "positions", [None, slice(1, -1), "mask", {"a": slice(2, None), "b": "mask"}]
)
@pytest.mark.parametrize("named", [True, False])
def test_a_saved_probe_is_read_as_it_was(tmp_path, positions, named: bool) -> None:
    batches = [
        {**batch, "mask": torch.ones(8, 4, dtype=torch.bool), "flag": True} for batch in images()
    ]
    batches = batches if named else [tuple(batch.values()) for batch in batches]
    causal = {"a": True, "b": None}
    probe = probe_of(batches, positions=positions, causal=causal, name="images")
    probe.save(tmp_path / "probe.safetensors")
    loaded = Probe.load(tmp_path / "probe.safetensors")
    assert loaded.hash == probe.hash
    assert loaded.name == "images"
    assert loaded.design.name == ("images" if named else "inputs")
    assert loaded.inputs is not None
    assert loaded.inputs.positions == positions
    assert loaded.inputs.causal == causal
    assert type(loaded.inputs.batches[0]) is type(probe.inputs.batches[0])


def frames(states, inputs):
    return torch.ones(states.shape[:2], dtype=torch.bool)


def test_a_function_is_hashed_by_its_name_and_not_written(tmp_path) -> None:
    probe = probe_of(images(), positions=frames)
    assert probe.hash != probe_of(images()).hash
    with pytest.raises(
        ValueError, match="got the function frames; make the probe with Probe.from_inputs"
    ):
        probe.save(tmp_path / "probe.safetensors")


@pytest.mark.parametrize(
    ("batches", "settings", "word"),
    [
        (torch.ones(2, 3), {}, "Tensor"),
        ([{"a": torch.ones(2, 3), "b": torch.ones(3)}], {}, "first dimension"),
        ([{"a": object()}], {}, "object"),
        ([], {}, "0 inputs"),
        (images(), {"positions": lambda states, inputs: states}, "a function defined with def"),
    ],
    ids=["one tensor", "sizes", "no tensors", "nothing", "lambda"],
)
def test_what_cannot_be_a_probe_is_refused(batches, settings: dict, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        probe_of(batches, **settings)

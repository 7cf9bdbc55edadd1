"""The state cache: states are restored exactly, at the right step, layer and run."""

import os

import pytest
import torch
from saved_states import IDENTITY, CompletedCache, saved_files, states, undefined_reason

from repdyn import Profile, measure
from repdyn.metrics import Metric
from repdyn.store.schema import Checkpoint
from repdyn.store.state_cache import StateCache


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_states_are_restored_bit_by_bit(state_cache, dtype):
    saved = states(dtype=dtype)
    saved[0, 0] = torch.nan
    state_cache.save(8, None, 1, saved)
    step, loaded = state_cache.load_previous(16, None, 1, saved.float())
    assert step == 8
    assert loaded.dtype == dtype
    assert loaded.shape == saved.shape
    assert torch.equal(loaded.view(torch.uint8), saved.view(torch.uint8))


@pytest.mark.gpu
@pytest.mark.skipif("not torch.cuda.is_available()")
def test_states_of_a_gpu_are_loaded_onto_it(state_cache):
    state_cache.save(8, None, 1, states().cuda())
    loaded = state_cache.load_previous(16, None, 1, states().cuda())[1]
    assert loaded.is_cuda
    assert torch.equal(loaded.cpu(), states())


def test_the_newest_earlier_step_is_loaded(state_cache):
    for step in (0, 2, 4, 1000):
        state_cache.save(step, None, 1, states(step))
    for step, expected in {1: 0, 3: 2, 4: 2, 5: 4, 1000: 4, 10**10: 1000}.items():
        previous, loaded = state_cache.load_previous(step, None, 1, states())
        assert previous == expected
        assert torch.equal(loaded, states(expected))


def test_no_earlier_step(state_cache):
    assert undefined_reason(state_cache, step=8) == "no states of a step before 8 are stored"
    state_cache.save(8, None, 1, states())
    assert undefined_reason(state_cache, step=8) == "no states of a step before 8 are stored"
    assert undefined_reason(state_cache, step=4) == "no states of a step before 4 are stored"


def test_layers_and_stacks_stay_apart(state_cache, tmp_path):
    places = [(None, 0), (None, 1), ("encoder", 1), ("decoder", 1), ("../up/é", 1), (".hidden", 1)]
    for number, (stack, layer) in enumerate(places):
        state_cache.save(8, stack, layer, states(number))
    for number, (stack, layer) in enumerate(places):
        assert torch.equal(state_cache.load_previous(16, stack, layer, states())[1], states(number))
    assert (
        undefined_reason(state_cache, layer=2)
        == "the states of step 8 are stored without this layer"
    )
    assert (
        undefined_reason(state_cache, stack="third")
        == "the states of step 8 are stored without this layer"
    )
    assert all(path.split(os.sep)[0] == "earlier" for path in saved_files(tmp_path))
    assert len(saved_files(tmp_path)) == len(places)


@pytest.mark.parametrize(
    "other", [{"run": "another"}, {"probe": "f" * 16}, {"layers": '["blocks.*"]'}], ids=str
)
def test_runs_probes_and_layer_selections_share_a_folder(tmp_path, other):
    first = CompletedCache(tmp_path, **IDENTITY)
    another = CompletedCache(tmp_path, **{**IDENTITY, **other})
    first.save(8, None, 1, states())
    assert undefined_reason(another) == "no states of a step before 16 are stored"
    another.save(8, None, 1, states(1))
    another.delete_before(100)
    assert torch.equal(first.load_previous(16, None, 1, states())[1], states())


def test_delete_before(state_cache, tmp_path):
    for step in (2, 4, 8, 16):
        for layer in (0, 1):
            state_cache.save(step, "encoder", layer, states(step))
    state_cache.delete_before(8)
    assert {path.split(os.sep)[2] for path in saved_files(tmp_path)} == {
        "step000000008",
        "step000000016",
    }


def test_a_step_measured_again_loads_the_same_states(state_cache):
    """As after a process was killed between saving and storing, or between storing and deleting."""
    state_cache.save(4, None, 1, states(4))
    first = state_cache.load_previous(8, None, 1, states())
    state_cache.save(8, None, 1, states(8))
    again = state_cache.load_previous(8, None, 1, states())
    assert first[0] == again[0] == 4
    assert torch.equal(first[1], again[1])
    # its rows are stored, and the process is killed before it deletes older states
    assert state_cache.load_previous(16, None, 1, states())[0] == 8


def test_ranks_share_a_folder(tmp_path):
    """Each rank saves every second layer; one deletes older states before the other."""
    ranks = [CompletedCache(tmp_path, **IDENTITY) for _ in range(2)]
    for step in (4, 8):
        for layer in range(5):
            ranks[layer % 2].save(step, None, layer, states(10 * step + layer))
    for layer in range(5):
        step, loaded = ranks[layer % 2].load_previous(16, None, layer, states())
        assert step == 8
        assert torch.equal(loaded, states(80 + layer))
    ranks[0].delete_before(8)
    ranks[1].delete_before(8)
    assert ranks[1].load_previous(16, None, 1, states())[0] == 8


def test_no_comparison_with_an_incomplete_step(tmp_path):
    state_cache = StateCache(tmp_path, **IDENTITY)
    for step in (4, 8):
        state_cache.save(step, None, 0, states(step))
        state_cache.complete(4)
    assert state_cache.load_previous(16, None, 0, states())[0] == 4
    state_cache.complete(8)
    assert state_cache.load_previous(16, None, 0, states())[0] == 8


def test_no_comparison_with_a_step_while_it_is_measured_again(tmp_path):
    """After a rollback its folder holds layers of former and current weights."""
    state_cache = StateCache(tmp_path, **IDENTITY)
    for step in (4, 8):
        for layer in (0, 1):
            state_cache.save(step, None, layer, states(step))
        state_cache.complete(step)
    state_cache.begin(8)
    state_cache.save(8, None, 0, states(1008))
    assert [state_cache.load_previous(16, None, layer, states())[0] for layer in (0, 1)] == [4, 4]
    state_cache.save(8, None, 1, states(1008))
    state_cache.complete(8)
    assert all(
        torch.equal(state_cache.load_previous(16, None, layer, states())[1], states(1008))
        for layer in (0, 1)
    )


def test_a_failed_measurement_makes_the_step_incomplete(hand_written, small_probe, tmp_path):
    state_cache = StateCache(tmp_path, **IDENTITY)

    def measure_with(*metrics: Metric) -> Profile:
        checkpoint = Checkpoint(step=8)
        return measure(
            hand_written,
            small_probe,
            ["cka_previous", *metrics],
            checkpoint=checkpoint,
            state_cache=state_cache,
        )

    def fail(cloud):
        raise RuntimeError("out of memory")

    like = states(shape=(96, 16))
    measure_with()
    assert state_cache.load_previous(16, None, 0, like)[0] == 8
    with pytest.raises(RuntimeError, match="out of memory"):
        measure_with(
            Metric(
                name="broken", kernel=fail, meaning="always fails", range=(0, 1), source="nobody"
            )
        )
    assert (
        undefined_reason(state_cache, layer=0, like=like)
        == "no states of a step before 16 are stored"
    )

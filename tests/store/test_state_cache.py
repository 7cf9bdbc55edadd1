"""Kept states: right, or a reason; whatever is killed, damaged, full, moved or gone back to."""

import errno
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from repdyn import Profile, measure
from repdyn.kernels import Undefined
from repdyn.metrics import Metric
from repdyn.store.schema import Checkpoint
from repdyn.store.state_cache import StateCache


class Sealed(StateCache):
    """Every step is whole with the one layer that is kept of it."""

    def keep(self, step, *given):
        super().keep(step, *given)
        self.seal(step)


HERE = {"run": "run", "probe": "0123456789abcdef", "layers": ""}


def states(seed: int = 0, shape: tuple[int, int] = (12, 5), dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture
def state_cache(tmp_path) -> StateCache:
    return Sealed(tmp_path / "earlier", **HERE)


def files(folder):
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != "whole"
    )


def the_file(folder):
    (path,) = (path for path in folder.rglob("*") if path.is_file() and path.name != "whole")
    return path


def reason(state_cache: StateCache, step: int = 16, stack: str | None = None, layer: int = 1, like=None) -> str:
    with pytest.raises(Undefined) as caught:
        state_cache.before(step, stack, layer, states() if like is None else like)
    return caught.value.reason


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_states_come_back_bit_by_bit(state_cache, dtype):
    kept = states(dtype=dtype)
    kept[0, 0] = torch.nan
    state_cache.keep(8, None, 1, kept)
    step, found = state_cache.before(16, None, 1, kept.float())
    assert step == 8
    assert (found.dtype, found.shape) == (dtype, kept.shape)
    assert torch.equal(found.view(torch.uint8), kept.view(torch.uint8))


@pytest.mark.gpu
@pytest.mark.skipif("not torch.cuda.is_available()")
def test_states_of_a_gpu_come_back_to_it(state_cache):
    state_cache.keep(8, None, 1, states().cuda())
    found = state_cache.before(16, None, 1, states().cuda())[1]
    assert found.is_cuda
    assert torch.equal(found.cpu(), states())


def test_what_is_kept_is_a_copy_of_a_view(state_cache, tmp_path):
    """The rows of one batch among those of all, of a tensor that asks for gradients."""
    whole = states(shape=(100, 10)).requires_grad_()
    state_cache.keep(8, None, 1, whole[20:32, ::2])
    assert torch.equal(state_cache.before(16, None, 1, states())[1], whole[20:32, ::2])
    assert the_file(tmp_path).stat().st_size < 12 * 5 * 4 + 1000


def test_the_newest_step_before_is_taken(state_cache):
    for step in (0, 2, 4, 1000):
        state_cache.keep(step, None, 1, states(step))
    for asked, newest in {1: 0, 3: 2, 4: 2, 5: 4, 1000: 4, 10**10: 1000}.items():
        step, found = state_cache.before(asked, None, 1, states())
        assert step == newest
        assert torch.equal(found, states(newest))


def test_none_before(state_cache):
    assert reason(state_cache, step=8) == "no states of a step before 8 are kept"
    state_cache.keep(8, None, 1, states())
    assert reason(state_cache, step=8) == "no states of a step before 8 are kept"
    assert reason(state_cache, step=4) == "no states of a step before 4 are kept, only of step 8"


def test_layers_and_stacks_stay_apart(state_cache, tmp_path):
    places = [(None, 0), (None, 1), ("encoder", 1), ("decoder", 1), ("../up/é", 1), (".hidden", 1)]
    for number, (stack, layer) in enumerate(places):
        state_cache.keep(8, stack, layer, states(number))
    for number, (stack, layer) in enumerate(places):
        assert torch.equal(state_cache.before(16, stack, layer, states())[1], states(number))
    assert reason(state_cache, layer=2) == "the states of step 8 are kept without this layer"
    assert reason(state_cache, stack="third") == "the states of step 8 are kept without this layer"
    assert all(path.split(os.sep)[0] == "earlier" for path in files(tmp_path))
    assert len(files(tmp_path)) == len(places)


@pytest.mark.parametrize("other", [{"run": "another"}, {"probe": "f" * 16}, {"layers": '["blocks.*"]'}], ids=str)
def test_runs_probes_and_choices_share_a_folder(tmp_path, other):
    one, another = Sealed(tmp_path, **HERE), Sealed(tmp_path, **{**HERE, **other})
    one.keep(8, None, 1, states())
    assert reason(another) == "no states of a step before 16 are kept"
    another.keep(8, None, 1, states(1))
    another.forget_before(100)
    assert torch.equal(one.before(16, None, 1, states())[1], states())


def test_a_file_tells_what_it_is(state_cache, tmp_path):
    state_cache.keep(8, "encoder", 3, states(dtype=torch.bfloat16))
    path = the_file(tmp_path)
    assert path.name == "layer003.safetensors"
    assert path.parent.name == "encoder"
    assert path.parent.parent.name == "step000000008"
    with safe_open(path, framework="pt") as file:
        told = file.metadata()
        assert file.get_slice("states").get_dtype() == "BF16"
    assert len(told.pop("content")) == 64
    assert told == {**HERE, "step": "8", "stack": "encoder", "layer": "3"}


def rewritten(path, **changes):
    with safe_open(path, framework="pt") as file:
        told = file.metadata()
    save_file(load_file(path), path, metadata={**told, **changes})


@pytest.mark.parametrize(
    ("name", "other", "wanted"),
    [
        ("run", "another", "run"),
        ("probe", "f" * 16, "0123456789abcdef"),
        ("layers", "[]", ""),
        ("step", "4", "8"),
        ("stack", "encoder", ""),
        ("layer", "2", "1"),
    ],
)
def test_files_in_the_wrong_place(state_cache, tmp_path, name, other, wanted):
    """As when somebody moves or copies them."""
    state_cache.keep(8, None, 1, states())
    rewritten(the_file(tmp_path), **{name: other})
    assert reason(state_cache) == f"the states of step 8 are those of {name} {other!r}, not {wanted!r}"


def test_other_shapes_do_not_fit(state_cache):
    state_cache.keep(8, None, 1, states())
    wide = states(shape=(12, 6))
    assert reason(state_cache, like=wide) == "the states of step 8 are of shape (12, 5), those of step 16 of (12, 6)"
    assert reason(state_cache, like=wide[:11, :5]).endswith("of shape (12, 5), those of step 16 of (11, 5)")


def _truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


DAMAGED = {
    "half_written": (_truncated, "the states of step 8 do not read: "),
    "empty": (lambda content: b"", "the states of step 8 do not read: "),
    "other_file": (lambda content: b"PK\x03\x04" + 200 * b"x", "the states of step 8 do not read: "),
    "pickle": (lambda content: b"\x80\x04cos\nsystem\n(S'true'\ntR.", "the states of step 8 do not read: "),
    "flipped_bit": (
        lambda content: content[:-7] + bytes([content[-7] ^ 1]) + content[-6:],
        "the states of step 8 are damaged: they are not what was written",
    ),
    "no_such_tensor": (lambda content: content.replace(b'"states"', b'"others"'), "the states of step 8 do not read: "),
    "other_type": (
        lambda content: content.replace(b'"F32"', b'"I32"'),
        "the states of step 8 are damaged: they are not what was written",
    ),
}


@pytest.mark.parametrize(("damage", "expected"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_files(state_cache, tmp_path, damage, expected):
    state_cache.keep(4, None, 1, states())
    path = the_file(tmp_path)
    state_cache.forget_before(8)
    state_cache.keep(8, None, 1, states())
    path = the_file(tmp_path)
    before = path.read_bytes()
    path.write_bytes(damage(before))
    assert path.read_bytes() != before
    assert reason(state_cache).startswith(expected)
    # the next attempt mends it
    state_cache.keep(8, None, 1, states())
    assert state_cache.before(16, None, 1, states())[0] == 8


def test_damage_is_not_hidden_behind_an_older_step(state_cache, tmp_path):
    """All layers of a step are compared with one and the same earlier step."""
    for step in (4, 8):
        for layer in (0, 1):
            state_cache.keep(step, None, layer, states(step))
    (path,) = tmp_path.rglob("step000000008/layer001.safetensors")
    path.unlink()
    assert state_cache.before(16, None, 0, states())[0] == 8
    assert reason(state_cache) == "the states of step 8 are kept without this layer"


def test_a_folder_in_the_place_of_a_file(state_cache, tmp_path, caplog):
    state_cache.keep(8, None, 1, states())
    path = the_file(tmp_path)
    path.unlink()
    path.mkdir()
    assert reason(state_cache).startswith("the states of step 8 do not read: ")
    state_cache.keep(8, None, 1, states())
    assert "The states of layer 1 at step 8 were not kept for the next step: " in caplog.text


def test_what_else_lies_in_the_folder_is_left_alone(state_cache, tmp_path):
    state_cache.keep(8, None, 1, states())
    folder = the_file(tmp_path).parents[1]
    for name in ("notes", "step8", "step-00000001", "step000000004.bak"):
        (folder / name).mkdir()
    assert state_cache.before(16, None, 1, states())[0] == 8
    state_cache.forget_before(100)
    assert sorted(path.name for path in folder.iterdir()) == ["notes", "step-00000001", "step000000004.bak", "step8"]


@pytest.fixture
def full_disk():
    """No file may grow beyond a hundred bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def fill(full: bool) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100 if full else soft, hard))

    yield fill
    fill(False)
    signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_costs_a_comparison_alone(state_cache, tmp_path, full_disk, caplog):
    state_cache.keep(4, None, 1, states(4))
    with caplog.at_level(logging.WARNING):
        full_disk(True)
        state_cache.keep(8, None, 1, states(8))
        full_disk(False)
    (record,) = caplog.records
    assert record.getMessage().startswith("The states of layer 1 at step 8 were not kept for the next step: ")
    assert "File too large" in record.getMessage()
    # step 8 itself still finds its own
    assert state_cache.before(8, None, 1, states())[0] == 4
    state_cache.forget_before(8)
    assert files(tmp_path) == []
    said = reason(state_cache)
    assert said.startswith("the states of step 8 were not kept: ")
    assert "File too large" in said
    # with room again the run goes on
    state_cache.keep(16, None, 1, states(16))
    state_cache.forget_before(16)
    assert state_cache.before(32, None, 1, states())[0] == 16
    assert "were not kept" not in reason(state_cache, step=16)


def test_another_process_knows_at_least_that_something_is_missing(state_cache, tmp_path, full_disk):
    full_disk(True)
    state_cache.keep(8, None, 1, states(8))
    full_disk(False)
    assert reason(Sealed(tmp_path / "earlier", **HERE)) == "the states of step 8 are kept without this layer"


def test_states_that_cannot_be_kept_do_not_leave_older_ones_of_the_step(state_cache, tmp_path, full_disk):
    """A step measured again, after a rollback, has other weights."""
    state_cache.keep(8, None, 1, states(1))
    full_disk(True)
    state_cache.keep(8, None, 1, states(2))
    full_disk(False)
    assert files(tmp_path) == []
    state_cache.keep(8, None, 1, states(2))
    assert torch.equal(state_cache.before(16, None, 1, states())[1], states(2))


def test_a_disk_that_does_not_answer(state_cache, monkeypatch):
    state_cache.keep(8, None, 1, states())

    def fail(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "iterdir", fail)
    assert reason(state_cache) == "the states of earlier steps do not read: [Errno 5] Input/output error"
    state_cache.forget_before(16)
    state_cache.forget_after(4)
    monkeypatch.undo()
    assert state_cache.before(16, None, 1, states())[0] == 8


def test_a_file_in_the_place_of_the_folder(tmp_path, caplog):
    (tmp_path / "earlier").write_text("")
    state_cache = Sealed(tmp_path / "earlier", **HERE)
    state_cache.keep(8, None, 1, states())
    assert "were not kept for the next step" in caplog.text
    assert reason(state_cache).startswith("the states of step 8 were not kept: ")
    state_cache.forget_before(16)
    assert reason(state_cache) == "no states of a step before 16 are kept"


def test_forgetting(state_cache, tmp_path):
    for step in (2, 4, 8, 16):
        for layer in (0, 1):
            state_cache.keep(step, "encoder", layer, states(step))
    state_cache.forget_before(8)
    assert {path.split(os.sep)[2] for path in files(tmp_path)} == {"step000000008", "step000000016"}
    state_cache.forget_after(8)
    assert {path.split(os.sep)[2] for path in files(tmp_path)} == {"step000000008"}
    state_cache.forget_before(8)
    state_cache.forget_after(8)
    assert state_cache.before(16, "encoder", 1, states())[0] == 8


def test_forgetting_takes_along_what_a_killed_process_left(state_cache, tmp_path):
    state_cache.keep(8, None, 1, states())
    (the_file(tmp_path).parent / ".0123.safetensors").write_bytes(b"half")
    assert state_cache.before(16, None, 1, states())[0] == 8
    state_cache.forget_before(16)
    assert files(tmp_path) == []


def test_a_rollback_does_not_compare_with_the_branch_it_left(state_cache):
    for step in (8, 16, 32):
        state_cache.keep(step, None, 1, states(step))
        state_cache.forget_before(step)
    # the training goes back to step 8, measures step 16 with other weights
    assert reason(state_cache, step=16) == "no states of a step before 16 are kept, only of step 32"
    state_cache.keep(16, None, 1, states(1016))
    state_cache.forget_before(16)
    state_cache.forget_after(16)
    step, found = state_cache.before(40, None, 1, states())
    assert step == 16
    assert torch.equal(found, states(1016))


def test_a_step_measured_again_finds_what_it_found(state_cache):
    """Killed between keeping and storing, or between storing and forgetting."""
    state_cache.keep(4, None, 1, states(4))
    first = state_cache.before(8, None, 1, states())
    state_cache.keep(8, None, 1, states(8))
    again = state_cache.before(8, None, 1, states())
    assert first[0] == again[0] == 4
    assert torch.equal(first[1], again[1])
    # its rows are stored, and the process dies before it forgets
    assert state_cache.before(16, None, 1, states())[0] == 8


def test_ranks_share_a_folder(tmp_path):
    """Each keeps every second layer; the one that is ahead forgets."""
    ranks = [Sealed(tmp_path, **HERE) for _ in range(2)]
    for step in (4, 8):
        for layer in range(5):
            ranks[layer % 2].keep(step, None, layer, states(10 * step + layer))
    for layer in range(5):
        step, found = ranks[layer % 2].before(16, None, layer, states())
        assert step == 8
        assert torch.equal(found, states(80 + layer))
    ranks[0].forget_before(8)
    ranks[1].forget_before(8)
    assert ranks[1].before(16, None, 1, states())[0] == 8


KEEPING = """
import sys, torch
from pathlib import Path
from repdyn.store.state_cache import StateCache
state_cache = StateCache(Path(sys.argv[1]), run="run", probe="0123456789abcdef", layers="")
print("ready", flush=True)
for number in range(10**6):
    state_cache.keep(8, None, 1, torch.full((400, 300), float(number)))
"""


def test_a_process_killed_at_any_moment_leaves_whole_states(tmp_path):
    state_cache = Sealed(tmp_path, **HERE)
    for after in (0.0, 0.02):
        process = subprocess.Popen([sys.executable, "-c", KEEPING, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        while not list(tmp_path.rglob("layer001.safetensors")):
            time.sleep(0.001)
        time.sleep(after)
        process.kill()
        process.wait()
        state_cache.seal(8)
        found = state_cache.before(16, None, 1, torch.zeros(400, 300))[1]
        assert (found == found[0, 0]).all()


def test_a_measurement_that_failed_half_way_is_not_compared_with(tmp_path):
    state_cache = StateCache(tmp_path, **HERE)
    for step in (4, 8):
        state_cache.keep(step, None, 0, states(step))
        state_cache.seal(4)
    assert state_cache.before(16, None, 0, states())[0] == 4
    state_cache.seal(8)
    assert state_cache.before(16, None, 0, states())[0] == 8


def test_a_step_measured_anew_is_not_compared_with_until_it_is_whole_again(tmp_path):
    """After a rollback: layers of other weights lie beside those that were reached."""
    state_cache = StateCache(tmp_path, **HERE)
    for step in (4, 8):
        for layer in (0, 1):
            state_cache.keep(step, None, layer, states(step))
        state_cache.seal(step)
    state_cache.begin(8)
    state_cache.keep(8, None, 0, states(1008))
    assert [state_cache.before(16, None, layer, states())[0] for layer in (0, 1)] == [4, 4]
    state_cache.keep(8, None, 1, states(1008))
    state_cache.seal(8)
    assert all(torch.equal(state_cache.before(16, None, layer, states())[1], states(1008)) for layer in (0, 1))


def test_what_could_not_be_kept_is_forgotten_when_the_step_is_measured_anew(tmp_path, full_disk):
    state_cache = StateCache(tmp_path, **HERE)
    full_disk(True)
    state_cache.keep(8, None, 1, states())
    full_disk(False)
    state_cache.begin(8)
    assert reason(state_cache) == "no states of a step before 16 are kept"


def test_a_measurement_that_fails_takes_the_seal_of_the_one_before_along(hand_written, small_probe, tmp_path):
    state_cache = StateCache(tmp_path, **HERE)

    def measured(*metrics: Metric) -> Profile:
        checkpoint = Checkpoint(step=8)
        return measure(
            hand_written, small_probe, ["cka_previous", *metrics], checkpoint=checkpoint, state_cache=state_cache
        )

    def fail(cloud):
        raise RuntimeError("out of memory")

    like = states(shape=(96, 16))
    measured()
    assert state_cache.before(16, None, 0, like)[0] == 8
    with pytest.raises(RuntimeError, match="out of memory"):
        measured(Metric("broken", fail, "always fails", (0, 1), "nobody"))
    assert reason(state_cache, layer=0, like=like) == "no states of a step before 16 are kept"

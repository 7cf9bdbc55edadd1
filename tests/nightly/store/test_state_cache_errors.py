"""The state cache with damaged files, full or failing disks and killed processes."""

import logging
import subprocess
import sys
import time

import pytest
import torch
from saved_states import IDENTITY, CompletedCache, only_file, saved_files, states, undefined_reason

DAMAGED = {
    "half_written": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "pickle": lambda content: b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "no_such_tensor": lambda content: content.replace(b'"states"', b'"others"'),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_damaged_files(state_cache, tmp_path, damage):
    state_cache.save(4, None, 1, states())
    path = only_file(tmp_path)
    state_cache.delete_before(8)
    state_cache.save(8, None, 1, states())
    path = only_file(tmp_path)
    before = path.read_bytes()
    path.write_bytes(damage(before))
    assert path.read_bytes() != before
    assert undefined_reason(state_cache).startswith("the states of step 8 cannot be read")
    # saving again replaces the damaged file
    state_cache.save(8, None, 1, states())
    assert state_cache.load_previous(16, None, 1, states())[0] == 8


def test_damage_is_not_hidden_behind_an_older_step(state_cache, tmp_path):
    """All layers of a step are compared with the same earlier step."""
    for step in (4, 8):
        for layer in (0, 1):
            state_cache.save(step, None, layer, states(step))
    (path,) = tmp_path.rglob("step000000008/layer001.safetensors")
    path.unlink()
    assert state_cache.load_previous(16, None, 0, states())[0] == 8
    assert undefined_reason(state_cache) == "the states of step 8 are stored without this layer"


def test_a_full_disk_prevents_only_the_comparison(state_cache, tmp_path, full_disk, caplog):
    state_cache.save(4, None, 1, states(4))
    with caplog.at_level(logging.WARNING):
        full_disk(True)
        state_cache.save(8, None, 1, states(8))
        full_disk(False)
    (record,) = caplog.records
    assert record.getMessage().startswith("The states of layer 1 at step 8 could not be saved: ")
    assert "File too large" in record.getMessage()
    # step 8 itself can still be compared
    assert state_cache.load_previous(8, None, 1, states())[0] == 4
    state_cache.delete_before(8)
    assert saved_files(tmp_path) == []
    assert undefined_reason(state_cache) == "the states of step 8 are stored without this layer"
    # later steps are saved again once there is space
    state_cache.save(16, None, 1, states(16))
    state_cache.delete_before(16)
    assert state_cache.load_previous(32, None, 1, states())[0] == 16


def test_a_failed_save_deletes_former_states_of_the_step(state_cache, tmp_path, full_disk):
    """A step that is measured again after a rollback has other weights."""
    state_cache.save(8, None, 1, states(1))
    full_disk(True)
    state_cache.save(8, None, 1, states(2))
    full_disk(False)
    assert saved_files(tmp_path) == []
    state_cache.save(8, None, 1, states(2))
    assert torch.equal(state_cache.load_previous(16, None, 1, states())[1], states(2))


def test_partial_files_of_a_killed_process_are_deleted(state_cache, tmp_path):
    state_cache.save(8, None, 1, states())
    (only_file(tmp_path).parent / ".0123.safetensors").write_bytes(b"half")
    assert state_cache.load_previous(16, None, 1, states())[0] == 8
    state_cache.delete_before(16)
    assert saved_files(tmp_path) == []


SAVE_FOREVER = """
import sys, torch
from pathlib import Path
from repdyn.store.state_cache import StateCache
state_cache = StateCache(Path(sys.argv[1]), run="run", probe="0123456789abcdef", layers="")
print("ready", flush=True)
for number in range(10**6):
    state_cache.save(8, None, 1, torch.full((400, 300), float(number)))
"""


@pytest.mark.once
@pytest.mark.process
def test_killed_while_saving(tmp_path):
    state_cache = CompletedCache(tmp_path, **IDENTITY)
    process = subprocess.Popen([sys.executable, "-c", SAVE_FOREVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    while not list(tmp_path.rglob("layer001.safetensors")):
        time.sleep(0.001)
    time.sleep(0.02)
    process.kill()
    process.wait()
    state_cache.complete(8)
    found = state_cache.load_previous(16, None, 1, torch.zeros(400, 300))[1]
    assert (found == found[0, 0]).all()

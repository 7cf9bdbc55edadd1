"""Ctrl-C and SIGTERM act at once, whatever a sweep waits for at the hub."""

from __future__ import annotations

import os
import signal
import time

import pytest
from hub_server import HubServer

from repdyn import open_store

pytestmark = pytest.mark.process

STAGES = {
    "refs": ("/refs", signal.SIGINT),
    "tree": ("/tree/", signal.SIGTERM),
    "config": (r"^GET .*config\.json", signal.SIGINT),
    "tokenizer": (r"^GET .*tokenizer\.json", signal.SIGTERM),
    "weights": (r"^GET .*safetensors", signal.SIGINT),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_signal_while_the_hub_drips(hub: HubServer, commits, start, stage):
    pattern, number = STAGES[stage]
    hub.fault(pattern, "slow", bytes_per_second=5)
    process = start("lab/model")
    while not any(hub.faults[0].meets(*request) for request in hub.requests):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    time.sleep(0.5)
    began = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    seconds = time.monotonic() - began
    assert process.returncode == 130, errors
    assert "the same command continues the sweep" in errors
    assert "Traceback" not in errors
    assert seconds < 2.5, (
        f"ended after {seconds:.1f} s"
    )  # 2 s, and the exit of the interpreter on a busy machine


@pytest.mark.process
def test_ctrl_c_and_sigkill_lose_nothing_that_is_measured(hub, commits, start, tmp_path, capfd):
    """The same command goes on, and repeats nothing."""
    hub.fault(f"{commits[16]}/model.safetensors", "slow", bytes_per_second=2000)
    stored = tmp_path / "sweeps"
    for number, signum in enumerate((signal.SIGTERM, signal.SIGKILL)):
        process = start("lab/model", "--metrics", "anisotropy", "--no-loss")
        end = time.monotonic() + 100
        while (
            len(list(stored.glob("*/step*.parquet"))) < 2
            and process.poll() is None
            and time.monotonic() < end
        ):
            time.sleep(0.05)
        if number:
            time.sleep(1)
        os.kill(process.pid, signum)
        process.communicate(timeout=30)
        assert process.returncode == {signal.SIGTERM: 130, signal.SIGKILL: -9}[signum]
    before = {path: path.stat().st_mtime_ns for path in stored.glob("*/step*.parquet")}
    assert len(before) == 2
    hub.faults.clear()
    process = start("lab/model", "--metrics", "anisotropy", "--no-loss")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert open_store(stored).steps("lab/model") == [0, 8, 16]
    assert not list((tmp_path / "c").rglob("*.safetensors"))

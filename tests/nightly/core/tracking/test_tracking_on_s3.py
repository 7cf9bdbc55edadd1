"""Trainings whose rows go to S3: the network fails in their midst, their process is killed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from jobs import Loop, run
from s3_server import S3Server

from repdyn import Probe, Tracker, open_store

FAULTS = [
    ("status", {"status": 400, "code": "ExpiredToken"}),
    ("refused", {}),
    ("slow", {"seconds": 0.5}),
    ("status", {"status": 503}),
    ("cut", {}),
]
NOT_COMPARED = ["run_id", "seconds", "measured_at"]


def values(store):
    frame = store.to_pandas()
    return (
        frame[~frame["metric"].str.startswith("seconds/")]
        .drop(columns=NOT_COMPARED)
        .reset_index(drop=True)
    )


def test_a_network_that_fails_in_its_midst(
    bucket,
    s3_server: S3Server,
    small_probe,
    without_figures,
    elsewhere,
    monkeypatch,
    tmp_path,
    caplog,
):
    expected = Loop()
    run(
        expected,
        Tracker(expected.model, small_probe, schedule=1, store=tmp_path / "mine", on_error="raise"),
        12,
    )
    loop = Loop()
    with (
        caplog.at_level(logging.WARNING),
        Tracker(
            loop.model, small_probe, schedule=1, store=f"{bucket}/mine", on_error="raise"
        ) as tracker,
    ):
        for number in range(12):
            s3_server.faults.clear()
            started = time.monotonic()
            if number % 2:
                kind, options = FAULTS[number // 2 % len(FAULTS)]
                s3_server.fault("", kind, **options)
            tracker.step(loss=loop.step(), tokens=48)
            if number == 1:  # an attempt is made, and is in nobody's way
                while not caplog.records and time.monotonic() < started + 20:
                    time.sleep(0.01)
        s3_server.faults.clear()
    assert "renew" in caplog.text
    assert loop.losses == expected.losses
    assert values(elsewhere(f"{bucket}/mine")).equals(values(open_store(tmp_path / "mine")))


def test_a_run_goes_on_from_another_machine(
    bucket, small_probe, without_figures, monkeypatch, tmp_path
):
    loop = Loop()
    run(
        loop,
        Tracker(loop.model, small_probe, schedule=2, store=f"{bucket}/mine", on_error="raise"),
        4,
    )
    monkeypatch.setenv("REPDYN_CACHE", str(tmp_path / "elsewhere"))
    options = {"schedule": 2, "store": f"{bucket}/mine", "on_error": "raise", "start": 4}
    with Tracker(loop.model, small_probe, **options) as tracker:
        for _ in range(2):
            tracker.step(loss=loop.step(), tokens=48)
    store = open_store(f"{bucket}/mine")
    assert max((path.steps() for path in store.paths()), key=len) == [0, 2, 4, 6]


TRAINING = """
import sys
from pathlib import Path
import torch
from repdyn import Probe, Tracker
import repdyn.views.report
from repdyn.views.publish import results
from jobs import Loop

repdyn.views.report.write_report = results.show_run = lambda *_, **__: None
saved, url, probe = Path(sys.argv[1]), sys.argv[2], Probe.load(sys.argv[3])
loop, start = Loop(), 0
if saved.exists():
    state = torch.load(saved)
    start = state["step"]
    loop.model.load_state_dict(state["model"])
    loop.optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
settings = {"schedule": 1, "store": url, "on_error": "raise"}
with Tracker(loop.model, probe, start=start, tokens_seen=48 * start, **settings) as tracker:
    for step in range(start + 1, 9):
        loss = loop.step()
        weights = {"model": loop.model.state_dict(), "optimizer": loop.optimizer.state_dict()}
        state = {"step": step, "random": torch.get_rng_state(), **weights}
        torch.save(state, saved.with_suffix(".new"))
        saved.with_suffix(".new").replace(saved)
        print(step, flush=True)
        tracker.step(loss=loss, tokens=48)
print("done", tracker.store.drain(60))
"""


@pytest.mark.once
@pytest.mark.process
@pytest.mark.timeout(600)
def test_killed_at_any_moment_it_ends_as_an_undisturbed_one(
    bucket,
    s3_environment,
    small_probe: Probe,
    without_figures,
    elsewhere,
    tmp_path: Path,
    monkeypatch,
):
    monkeypatch.setattr("repdyn.tracking.run.UPLOAD_SECONDS", 20.0)
    loop = Loop()
    run(
        loop,
        Tracker(loop.model, small_probe, schedule=1, store=tmp_path / "mine", on_error="raise"),
        8,
    )
    small_probe.save(tmp_path / "probe.safetensors")
    (tmp_path / "training.py").write_text(TRAINING)
    environment = {**os.environ, **s3_environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "training.py", "saved.pt", f"{bucket}/mine", "probe.safetensors"]
    for steps, milliseconds in ((2, 0), (3, 20)):
        with subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            for _ in range(steps):
                process.stdout.readline()
            time.sleep(milliseconds / 1000)
            process.kill()
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done None"
    ended = values(elsewhere(f"{bucket}/mine"))
    expected = values(open_store(tmp_path / "mine"))
    # the loss of a step that was saved but not measured before the process died is not known to the
    # next one
    same = ["step", "layer", "metric", "subset", "value", "weights"]
    measured = [
        frame.loc[frame["layer"].notna(), same].reset_index(drop=True)
        for frame in (ended, expected)
    ]
    pd.testing.assert_frame_equal(*measured, check_exact=True)
    assert sorted(ended["step"].unique()) == list(range(9))

"""``repdyn audit``: its table, its JSON and its exit status, against a hub on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from repdyn.cli.main import main

REPORT = "https://example.org/reports/1"
SUITE = f"""title: mine
card: here
models:
  - {{name: mine, repository: lab/model, revisions: 'step(?P<step>[0-9]+)'}}
known_faults:
  - {{models: [mine], steps: [0, 8], what: the same weights, report: '{REPORT}'}}
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def publish(hub, tmp_path):
    """Return a function that publishes a text as the weights of a branch."""

    def publish(revision: str, weights: str) -> None:
        folder = tmp_path / "published" / revision
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_text(weights)
        hub.publish("lab/model", revision, folder)

    return publish


@pytest.fixture
def run(tmp_path, monkeypatch, capsys) -> Run:
    """Return a function that runs the command and returns its exit status, output and errors."""
    monkeypatch.setenv("REPDYN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> tuple[int, str, str]:
        status = 0
        try:
            main(["audit", *arguments])
        except SystemExit as stop:
            status = int(str(stop.code))
        return status, *capsys.readouterr()

    return run


def test_a_faulty_history(hub, publish, run, tmp_path):
    for revision, weights in {
        "step0": "end",
        "step8": "end",
        "step16": "own",
        "step32": "end",
    }.items():
        publish(revision, weights)
    suite = tmp_path / "mine.yaml"
    suite.write_text(SUITE)
    status, out, err = run(str(suite))
    assert status == 1
    assert err == ""
    assert max(map(len, out.splitlines())) <= 80
    assert " ".join(out.split()) == (
        "lab/model: 4 checkpoints, 2 with the weights of another, 1 fault "
        "fault the final weights, those of step32, under 2 other names: step0, step8 "
        f"remark users reported the same weights ({REPORT}): step0, step8"
    )
    status, out, _ = run(str(suite), "--json", "--revisions", "0,16")
    assert status == 1
    (report,) = json.loads(out)
    finding = report.pop("findings")[0]
    assert report == {
        "run": "lab/model",
        "checkpoints": ["step0", "step16"],
        "copies": {"step0": "step32"},
        "faults": 1,
        "remarks": 1,
    }
    assert finding == {
        "severity": "fault",
        "kind": "final weights",
        "sentence": "the final weights, those of step32, under 1 other name: step0",
        "revisions": ["step0"],
        "steps": [0],
        "same_as": "step32",
        "files": [],
    }

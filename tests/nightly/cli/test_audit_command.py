"""``repdyn audit``: its table, its JSON and its exit status, against a hub on this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
import torch
from safetensors.torch import save_file

from repdyn.cli.main import main

REPORT = "https://example.org/reports/1"
SUITE = f"""title: mine
card: here
models:
  - {{name: mine, repository: lab/model, revisions: 'step(?P<step>[0-9]+)'}}
known_faults:
  - {{models: [mine], steps: [0, 8], kind: copies, what: the same weights, report: '{REPORT}'}}
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
    for revision, weights in {"step0": "end", "step8": "end", "step16": "own", "step32": "end"}.items():
        publish(revision, weights)
    suite = tmp_path / "mine.yaml"
    suite.write_text(SUITE)
    status, out, err = run(str(suite))
    assert (status, err) == (1, "")
    assert max(map(len, out.splitlines())) <= 80
    assert " ".join(out.split()) == (
        "lab/model: 4 checkpoints, 2 with the weights of another, 1 fault "
        f"fault The final weights, those of step32, under 2 other names: step0, step8 reported: {REPORT}"
    )
    n_lists = sum("/tree/" in path for _, path in hub.requests)
    assert n_lists == 4
    status, out, _ = run(str(suite), "--json", "--revisions", "0,16")
    assert status == 1
    assert sum("/tree/" in path for _, path in hub.requests) == n_lists  # what was listed before is not asked for
    (found,) = json.loads(out)
    finding = found.pop("findings")[0]
    assert found == {
        "run": "lab/model",
        "checkpoints": ["step0", "step16"],
        "copies": {"step0": "step32"},
        "faults": 1,
        "remarks": 0,
        "embeddings": [],
    }
    assert finding == {
        "severity": "fault",
        "kind": "final weights",
        "sentence": "the final weights, those of step32, under 1 other name: step0",
        "revisions": ["step0"],
        "steps": [0],
        "same_as": "step32",
        "files": [],
        "reports": [REPORT],
    }


@pytest.mark.parametrize("form", ["safetensors", "pytorch_model.bin"])
def test_the_embeddings_of_each_step(hub, run, tmp_path, form):
    """Step 32 has the weights of step 3, saved again, step 256 those of a later step, and step 64 no embeddings."""
    generator = torch.Generator().manual_seed(0)
    start, change = (torch.randn(3000, 8, generator=generator) for _ in range(2))
    steps = [0, 1, 2, 3, 5, 9, 16, 32, 64, 128, 200, 256, 400, 512, 700, 1000]
    for step in steps:
        of_step = {32: 3, 256: 5000}.get(step, step)
        weights = {"gpt_neox.embed_in.weight": start + 0.01 * of_step**0.8 * change, "a": torch.full((3,), step)}
        folder = tmp_path / f"step{step}"
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        weights = {"a": weights["a"]} if step == 64 else weights
        save_file(weights, folder / "model.safetensors") if form == "safetensors" else torch.save(
            weights, folder / form
        )
        hub.publish("lab/model", f"step{step}", folder)
    status, out, err = run("lab/model", "--embeddings")
    assert (status, err) == (1, "")
    text = " ".join(out.split())
    assert "the same input embeddings in different files, saved again or mixed: step3, step32" in text.lower()
    assert re.search(
        r"embeddings of step256 are out of line: cosine to those of step0 -?0\.\d+, 0\.\d+ at step 200", text
    )
    assert "mbeddings not read: step64: none of its files has input embeddings of a known name" in text
    assert text.count("out of line") == 1
    (found,) = json.loads(run("lab/model", "--embeddings", "--json")[1])
    statistics = {each["step"]: each for each in found["embeddings"]}
    assert set(statistics) == {*steps} - {64}
    middle = slice(1372, 1628)
    later = (start + 0.01 * 512**0.8 * change)[middle]
    assert statistics[512]["median_norm"] == pytest.approx(later.norm(dim=1).median().item(), rel=1e-5)
    cosine = torch.cosine_similarity(later, start[middle], dim=1).median().item()
    assert statistics[512]["cosine_to_first"] == pytest.approx(cosine, rel=1e-5)
    assert run("lab/model")[0] == 0  # the files alone show nothing


def test_embeddings_that_cannot_be_fetched(hub, run, tmp_path):
    for step in (0, 1):
        folder = tmp_path / f"step{step}"
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        save_file({"wte.weight": torch.full((300, 8), float(step + 1))}, folder / "model.safetensors")
        hub.publish("lab/model", f"step{step}", folder)
    hub.fault("safetensors", "status", code=404, headers={"X-Error-Code": "EntryNotFound"}, times=1)
    _, out, _ = run("lab/model", "--embeddings")
    assert "mbeddings not read: step" in out
    assert "(404)" in out

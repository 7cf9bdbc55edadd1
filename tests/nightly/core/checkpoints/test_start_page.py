"""Every example of docs/start/sweep.md runs as it is printed, in its order, against a hub on this
machine.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from small import random_tokens
from sweeping import QUICK

import repdyn
from repdyn import Probe, open_store
from repdyn.activations.models import checkpoints_of_run
from repdyn.cli.main import main
from repdyn.probe.corpus import builtin_corpus

PAGE = (Path(__file__).parents[4] / "docs" / "start" / "sweep.md").read_text()
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", PAGE, re.DOTALL)
HERE = {"runs/quickstart/TIME": "run", "FOLDER": "family", "ORGANISATION/REPOSITORY": "lab/model"}
PROBE = Probe.from_tokens(random_tokens(24, 12), max_vectors=192)
WITH_A_FAULT = "audit"  # the hub of the test has three steps of 154


@pytest.fixture
def workspace(hub, family, tmp_path, monkeypatch):
    """An empty folder with a run, a folder of checkpoints, and a hub with the models of the
    page.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("webbrowser.open", lambda _: True)
    monkeypatch.setattr("repdyn.checkpoints.hub.has_abandoned_threads", lambda: False)
    monkeypatch.setattr("repdyn.probe.corpus.builtin_corpus", lambda: builtin_corpus().head(50_000))
    for repository in ("EleutherAI/pythia-70m", "EleutherAI/pythia-160m", "lab/model"):
        for step, folder in family.items():
            hub.publish(repository, f"step{step}", folder)
    hub.publish("gpt2", "main", family[16])
    shutil.copytree(tmp_path / "family", tmp_path / "run" / "hf_checkpoints")
    open_store(tmp_path / "run" / "repdyn").save_probe(PROBE)
    return tmp_path


def here(text: str) -> str:
    for printed, there in HERE.items():
        text = text.replace(printed, there)
    return text


def test_every_example_runs(workspace, family, capfd):
    """A page whose first command fails is the last page that somebody reads."""
    for language, code in BLOCKS:
        if language == "python":
            models = {
                f"step{step}.pt": repdyn.load_model(str(family[step])).model for step in (8, 16)
            }
            given = {"probe": PROBE, "model": models["step8.pt"], "load_mine": models.__getitem__}
            exec(here(code).replace("(100, 200)", "(8, 16)"), given)
            continue
        for line in (line for line in code.splitlines() if ".gguf" not in line):
            words = shlex.split(here(line), comments=True)[1:]
            quick = QUICK if words[0] == "sweep" and "--list-suites" not in words else ()
            try:
                main([*words, *quick])
                status = 0
            except SystemExit as stop:
                status = stop.code
            assert status == (1 if words[0] == WITH_A_FAULT else 0), (line, capfd.readouterr())
    swept = open_store(workspace / "sweeps")
    assert {"EleutherAI/pythia-70m", "EleutherAI/pythia-160m", "lab/model", "gpt2", "mine"} <= set(
        swept.runs()
    )
    assert swept.steps("EleutherAI/pythia-70m") == [0, 8, 16]
    assert open_store(workspace / "run" / "sweep").steps("run/hf_checkpoints") == [0, 8, 16]
    assert len(checkpoints_of_run(workspace / "run")) == 3

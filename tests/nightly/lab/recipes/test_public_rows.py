"""What is missing of the models of the papers, measured by one script on stand-ins of a hub."""

from __future__ import annotations

import json
import shutil
from itertools import islice

import pytest
from handed_in import faults, faults_of_studies
from models_of_the_paper import published  # noqa: F401
from published_recipes import publish

from experiments import public_rows
from repdyn.lab.recipes.recipe import shipped_recipes
from repdyn.lab.studies.panels import planes
from repdyn.probe.corpus import builtin_corpus

PARTS = ["pythia-70m", "gpt2", "token-journeys", "gpt-j-6b"]


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("repdyn.checkpoints.hub.has_abandoned_threads", lambda: False)
    monkeypatch.setattr(
        "repdyn.lab.studies.panels.planes", lambda *given: islice(planes(*given), 1)
    )
    text = tmp_path / "text.txt"
    text.write_bytes(builtin_corpus().data[:100_000])
    sampling = ["--text", str(text), "--sequence-length", "16", "--max-vectors", "256"]
    return [*sampling, "--device", "cpu", "--downloads", str(tmp_path / "downloads")]


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("published")
def test_what_is_missing_is_measured_once_and_written_into_the_repository(
    hub, options, tmp_path, capsys
):
    recipe = shipped_recipes()["token-journeys"]
    publish(hub, recipe, tmp_path)
    public_rows.main(["--list", "--only", *PARTS, *options])
    listed = capsys.readouterr().out.splitlines()
    assert listed[0].startswith("pythia-70m:   4 checkpoints")
    assert listed[-1].startswith("together 0.")
    for n_measured in (len(PARTS), 0):  # the second time there is nothing to do
        hub.requests.clear()
        with pytest.raises(SystemExit) as stop:
            public_rows.main(["--only", *PARTS, *options])
        out = capsys.readouterr().out
        assert stop.value.code == 0, out
        assert out.count(" checkpoints, ") == n_measured
    assert faults(tmp_path / public_rows.ROWS) == []
    assert faults_of_studies(tmp_path / public_rows.STUDIES, as_in_recipe=False) == []
    folder = (
        tmp_path / public_rows.STUDIES / "token-journeys" / "tokens" / "FacebookAI_roberta-base"
    )
    names = {path.name for path in folder.iterdir()}
    assert names == {"changes.csv", "attention.csv", "positions.csv", "options.json", "source.json"}
    source = json.loads((folder / "source.json").read_text())
    assert source["checkpoint"].startswith("FacebookAI/roberta-base@")


@pytest.mark.usefixtures("published")
def test_what_does_not_fit_is_named_and_left_out(options, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        public_rows.main(["--only", "pythia-70m", "--gigabytes", "1e-9", *options])
    assert stop.value.code == 1
    assert "left out: pythia-70m: 0.0 GB, where 0.0 are left" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        public_rows.main(["--only", "pythia-70m", "--hours", "0", *options])
    assert "left out: pythia-70m: the time is over" in capsys.readouterr().out
    assert not (tmp_path / public_rows.ROWS).exists()
    shutil.rmtree(tmp_path / "downloads", ignore_errors=True)

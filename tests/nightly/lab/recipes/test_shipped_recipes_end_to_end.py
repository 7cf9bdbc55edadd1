"""Every shipped recipe, whole, against a hub on this machine that has small untrained models under
the real names.
"""

from __future__ import annotations

import json
from itertools import islice

import pytest
from published_recipes import publish

from repdyn.cli.main import main
from repdyn.lab.recipes.recipe import shipped_recipes
from repdyn.lab.studies.panels import planes
from repdyn.probe.corpus import builtin_corpus

LACKING = ("accuracy in word_probe.csv", "period in position_layouts.csv")
"""Criteria on what a vocabulary of bytes, without words, and untrained positions do not have."""


# topics are of words, which a tokenizer of bytes does not have
@pytest.mark.parametrize("name", [name for name in shipped_recipes() if name != "topic-structure"])
def test_a_shipped_recipe(name, hub, tmp_path, monkeypatch, capsys):
    recipe = shipped_recipes()[name]
    publish(hub, recipe, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("repdyn.checkpoints.hub.has_abandoned_threads", lambda: False)
    monkeypatch.setattr(
        "repdyn.lab.studies.panels.planes", lambda *given: islice(planes(*given), 1)
    )  # others are slow
    text = tmp_path / "text.txt"
    text.write_bytes(builtin_corpus().data[:100_000])
    sampling = ("--text", str(text), "--sequence-length", "16", "--max-vectors", "512")
    with pytest.raises(SystemExit) as stop:
        main(
            [
                "reproduce",
                name,
                *sampling,
                "--device",
                "cpu",
                "--downloads",
                str(tmp_path / "downloads"),
                "--json",
            ]
        )
    out, err = capsys.readouterr()
    assert stop.value.code == 1, "the text is another one"
    assert "not measured" not in err
    outcomes = json.loads(out)
    judged = [outcome for outcome in outcomes if outcome["criterion"] is not None]
    assert {outcome["claim"] for outcome in outcomes} == {
        published.claim for published in recipe.published
    }
    for outcome in judged:
        if outcome["criterion"].startswith(LACKING):
            continue
        assert outcome["verdict"] != "not run", outcome
        if outcome["metric"] is None:  # in a table of a study
            continue
        assert any(
            phrase.startswith("text text.txt (sha256 ") for phrase in outcome["deviations"]
        ), outcome
        assert any(
            phrase.startswith("windows of 16 tokens, not ") for phrase in outcome["deviations"]
        ) or (recipe.cloud.design == "paper")
    folder = tmp_path / "reproductions" / name
    assert {path.name for path in folder.glob(f"{name}.*")} == {
        f"{name}.{kind}" for kind in ("html", "png", "svg")
    }
    page = (folder / f"{name}.html").read_text()
    assert not recipe.metrics or "; text text.txt (sha256 " in page

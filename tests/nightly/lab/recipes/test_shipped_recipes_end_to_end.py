"""Every shipped recipe, whole, against a hub on this machine that has small untrained models under
the real names.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from hub_server import HubServer

from repdyn.checkpoints.suites import PublishedModel
from repdyn.cli.main import main
from repdyn.data.tokens import byte_tokenizer
from repdyn.lab.recipes.recipe import Recipe, find_models_of, shipped_recipes
from repdyn.lab.studies.panels import planes
from repdyn.models import build_model
from repdyn.probe.corpus import builtin_corpus

STEPS = (0, 1, 64, 8000, 143000)
ENCODERS = ("bert", "roberta", "albert", "distilbert")
NAMES = {
    r"step(?P<step>\d+)": "step{}",
    r"step_(?P<step>\d+)": "step_{}",
    r"global_step(?P<step>\d+)": "global_step{}",
    r"(?P<stage>stage1)-step(?P<step>\d+)-tokens\d+B": "stage1-step{}-tokens9B",
}
"""Names of revisions, by the patterns of the suites."""


def revisions(model: PublishedModel, steps: Iterable[int]) -> Iterator[tuple[str, str, int]]:
    """Yield repository, revision and step of the checkpoints to publish of a model."""
    for checkpoint in model.checkpoints:
        yield checkpoint.repository, checkpoint.revision, checkpoint.step
    if model.revisions is not None:
        assert model.repository is not None
        for step in steps:
            yield model.repository, NAMES[model.revisions].format(step), step


def save(path: Path, model: PublishedModel, width: int, step: int) -> Path:
    """Save an untrained stand-in with five blocks and a byte tokenizer, other weights for each
    step.
    """
    is_encoder = model.name.startswith(ENCODERS)
    with torch.random.fork_rng():
        torch.manual_seed(step + width)
        sizes = {
            "vocab_size": 260,
            "hidden_size": width,
            "n_layers": 12 if model.name == "roberta-base" else 5,
            "n_heads": 2,
            "context_length": 64,
        }
        build_model("bert" if is_encoder else "gpt_neox", **sizes).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


def publish(hub: HubServer, recipe: Recipe, folder: Path) -> None:
    for number, model in enumerate(find_models_of(recipe.models)):
        steps = sorted({*STEPS, *map(int, re.findall(r"\d{3,}", recipe.revisions))})
        for repository, revision, step in revisions(model, steps):
            path = save(folder / "saved", model, 32 + 8 * (number % 12), step)
            hub.publish(repository, revision, path)
            shutil.rmtree(path)
        known = hub.repositories.get(model.tokenizer or "")
        if model.tokenizer and (known is None or "main" not in known.branches):
            byte_tokenizer().save_pretrained(folder / "tokenizer")
            hub.publish(model.tokenizer, "main", folder / "tokenizer")


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

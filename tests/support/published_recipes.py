"""Stand-ins of the models of recipes, published on a hub of this machine."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from hub_server import HubServer

from repdyn.checkpoints.suites import PublishedModel
from repdyn.data.tokens import byte_tokenizer
from repdyn.lab.recipes.recipe import Recipe, find_models_of
from repdyn.models import build_model

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

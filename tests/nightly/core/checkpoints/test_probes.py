"""The probe of a published or local model: whose tokenizer, how long its sequences, of which
text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import batches, tiny_language_model, trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import AutoConfig, PreTrainedTokenizerBase

from repdyn import Probe
from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.local import find_checkpoints
from repdyn.checkpoints.options import SweepOptions
from repdyn.checkpoints.probes import hub_probe, local_probe, text_probe
from repdyn.checkpoints.published import select_targets
from repdyn.checkpoints.suites import PublishedModel
from repdyn.checkpoints.targets import Selection
from repdyn.data.tokens import byte_tokenizer
from repdyn.models import build_model

CONTEXT = 12
SIZES = {"vocab_size": 260, "hidden_size": 16, "n_layers": 1, "n_heads": 2}


def tokenizer(context: int | None = None) -> PreTrainedTokenizerBase:
    of_bytes = byte_tokenizer()
    if context:
        of_bytes.model_max_length = context
    return of_bytes


@pytest.fixture
def text(tmp_path) -> SweepOptions:
    path = tmp_path / "text.txt"
    path.write_text("The geometry of representations changes while a model trains. " * 40)
    return SweepOptions(text=str(path), max_vectors=256)


@pytest.fixture
def save(tmp_path) -> Callable[..., Path]:
    """Saves a model and a tokenizer, or one of them, in a folder."""

    def save(
        name: str,
        *,
        tokens: PreTrainedTokenizerBase | None = None,
        context: int | None = CONTEXT,
        family="gpt_neox",
    ) -> Path:
        folder = tmp_path / "saved" / name
        folder.mkdir(parents=True)
        if context:
            torch.manual_seed(0)
            build_model(family, context_length=context, **SIZES).save_pretrained(folder)
        if tokens:
            tokens.save_pretrained(folder)
        return folder

    return save


def chosen(model: PublishedModel) -> Selection:
    return select_targets(model, Hub())


def model(**fields) -> PublishedModel:
    described: dict[str, Any] = {
        "name": "model",
        "suite": "",
        "run": "lab/model",
        "repository": "lab/model",
    }
    described["revisions"] = r"step(?P<step>\d+)"
    return PublishedModel(**described | fields)


def lengths(probe: Probe) -> set[int]:
    return set(probe.lengths.tolist()[:-1])


# on the hub: whose tokenizer


def test_the_tokenizer_of_the_main_branch(hub, save, text):
    hub.publish("lab/model", "step1", save("step1"))
    hub.publish("lab/model", "main", save("main", tokens=tokenizer()))
    probe = hub_probe(chosen(model()), text, Hub())
    assert lengths(probe) == {CONTEXT}
    assert probe.name.startswith("text.txt (sha256 ")
    again = hub_probe(chosen(model()), text, Hub())
    assert again.hash == probe.hash
    weights = [path for _, path in hub.requests if path.endswith((".safetensors", ".bin"))]
    assert weights == []


@pytest.mark.parametrize("main", ["none", "bare"])
def test_the_tokenizer_of_a_checkpoint_if_the_main_branch_has_none(hub, save, text, tmp_path, main):
    hub.publish("lab/model", "step1", save("step1"))
    hub.publish("lab/model", "step2", save("step2", tokens=tokenizer()))
    if main == "bare":
        (tmp_path / "bare").mkdir()
        (tmp_path / "bare" / "README.md").write_text("see the branches")
        hub.publish("lab/model", "main", tmp_path / "bare")
    assert lengths(hub_probe(chosen(model()), text, Hub())) == {CONTEXT}


def test_the_tokenizer_of_another_repository_named_by_the_suite(hub, save, text):
    """As BLOOM's intermediate checkpoints have it; the context is still that of the checkpoints."""
    hub.publish("lab/bloom-intermediate", "global_step1000", save("early"))
    hub.publish("lab/bloom", "main", save("final", tokens=tokenizer(), context=99))
    described = model(
        repository="lab/bloom-intermediate",
        revisions=r"global_step(?P<step>\d+)",
        tokenizer="lab/bloom",
    )
    assert lengths(hub_probe(chosen(described), text, Hub())) == {CONTEXT}


def other_tokenizer(save, name: str) -> Path:
    """A model with a tokenizer of the same size that gives each letter another id."""
    folder = save(name, tokens=tokenizer())
    path = folder / "tokenizer.json"
    saved = json.loads(path.read_text())
    vocabulary = saved["model"]["vocab"]
    saved["model"]["vocab"] = {letter: (number + 1) % 256 for letter, number in vocabulary.items()}
    path.write_text(json.dumps(saved))
    return folder


def test_tokenizers_that_differ_across_revisions_are_refused(hub, save, text):
    """That of the main branch made the probe for all, 64 % off where the model has another."""
    hub.publish("lab/model", "step1", other_tokenizer(save, "step1"))
    for step in ("step2", "step3"):
        hub.publish("lab/model", step, save(step, tokens=tokenizer()))
    hub.publish("lab/model", "main", save("main", tokens=tokenizer()))
    with pytest.raises(CheckpointError, match=r"one tokenizer .* step3, step2 and that of step1;"):
        hub_probe(chosen(model()), text, Hub())
    named = chosen(model(tokenizer="lab/model"))
    probe = hub_probe(named, text, Hub())
    apart = [replace(named, model=model(), targets=(target,)) for target in named.targets]
    tokens = [hub_probe(selection, text, Hub()).tokens for selection in apart]
    assert [torch.equal(own, probe.tokens) for own in tokens] == [False, True, True]


def test_tokenizers_whose_files_differ_and_read_alike_are_one(hub, save, text):
    """As where a chat template or a limit was added later."""
    for step, context in (("step1", None), ("step2", 11)):
        hub.publish("lab/model", step, save(step, tokens=tokenizer(context)))
    with_chat = tokenizer()
    with_chat.add_special_tokens({"additional_special_tokens": ["<|assistant|>"]})
    with_chat.chat_template = "{{ messages }}"
    hub.publish("lab/model", "main", save("main", tokens=with_chat))
    probe = hub_probe(chosen(model()), text, Hub())
    assert lengths(probe) == {CONTEXT}


def test_no_tokenizer_anywhere(hub, save, text):
    folder = save("step")
    for step in range(40):
        hub.publish("lab/model", f"step{step}", folder)
    described = chosen(model())
    n_requests = len(hub.requests)
    with pytest.raises(
        CheckpointError,
        match=(
            r"expected a tokenizer for model, found none: .* lab/model@main: the hub answered "
            r"404.*; lab/model@\w{40} has none; .*; name the repository that has it with "
            r"tokenizer=, or in its suite under tokenizer"
        ),
    ):
        hub_probe(described, text, Hub())
    assert len(hub.requests) - n_requests < 20, (
        "it does not look through all of hundreds of checkpoints"
    )


# how long its sequences


def test_the_context_is_that_of_the_newest_checkpoint_with_a_configuration_that_loads(
    hub, save, text
):
    for step, context in ((1, 10), (2, 9), (3, 8)):
        folder = save(f"step{step}", tokens=tokenizer(), context=context)
        if step == 3:
            (folder / "config.json").unlink()
        if step == 2:
            (folder / "config.json").write_text("{}")
        hub.publish("lab/model", f"step{step}", folder)
    assert lengths(hub_probe(chosen(model()), text, Hub())) == {10}
    hub.repositories["lab/model"].branches.pop("step1")
    with pytest.raises(
        CheckpointError,
        match=".*; lab/model@\\w{40}: its configuration does not load",
    ):
        hub_probe(chosen(model()), text, Hub())


@pytest.mark.parametrize(
    ("context", "of_tokenizer", "requested", "expected"),
    [
        (12, None, None, 12),
        (12, 9, None, 9),
        (300, None, None, 80),
        (300, None, 300, 300),
        (12, None, 5, 5),
    ],
)
def test_sequences_are_no_longer_than_the_context(
    save, text, tmp_path, context, of_tokenizer, requested, expected
):
    folder = save("model", tokens=tokenizer(of_tokenizer), context=context)
    text = replace(text, sequence_length=requested)
    assert lengths(text_probe("model", folder, AutoConfig.from_pretrained(folder), text)) == {
        expected
    }


# in a local folder


def local(folder: Path, text: SweepOptions, **named) -> Probe:
    return local_probe(folder, find_checkpoints(folder).targets, replace(text, **named), Hub())


def test_tokenizer_of_local_checkpoints(save, text):
    save("step1", tokens=tokenizer())
    folder = save("step2", context=11).parent
    (folder / "step3").mkdir()  # not saved to its end, it stopped the sweep of all others
    assert lengths(local(folder, text)) == {11}


def test_tokenizers_that_differ_across_folders_are_refused(save, text):
    folder = other_tokenizer(save, "step1").parent
    save("step2", tokens=tokenizer())
    save("step3")
    with pytest.raises(CheckpointError, match=r"one tokenizer .* step2 and that of step1;"):
        local(folder, text)
    assert local(folder, text, tokenizer=str(folder / "step1"))


def test_another_tokenizer_for_local_checkpoints(hub, save, text, tmp_path):
    folder = save("step1", context=11).parent
    tokenizer().save_pretrained(tmp_path / "mine")
    hub.publish("lab/tokenizer", "main", tmp_path / "mine")
    there = local(folder, text, tokenizer="lab/tokenizer")
    here = local(folder, text, tokenizer=str(tmp_path / "mine"))
    assert there.hash == here.hash
    assert lengths(here) == {11}
    with pytest.raises(
        CheckpointError,
        match="expected a tokenizer for .*, found none: .* the hub knows no .*lab/none",
    ):
        local(folder, text, tokenizer="lab/none")


def test_context_of_lightning_checkpoints(text, tmp_path):
    keep = ModelCheckpoint(tmp_path / "checkpoints", every_n_train_steps=1)
    trainer(tmp_path, keep, max_steps=1).fit(tiny_language_model(), batches())
    tokenizer().save_pretrained(tmp_path / "mine")
    folder = tmp_path / "checkpoints"
    assert lengths(local(folder, text, tokenizer=str(tmp_path / "mine"))) == {CONTEXT}


# code that a repository brings along

"""The probe of a published or local model: whose tokenizer, how long its sequences, of which text."""

from __future__ import annotations

import json
import shutil
import string
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
from repdyn.checkpoints.errors import CheckpointError, SweepStoppedError
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.local import find_checkpoints
from repdyn.checkpoints.probes import ProbeText, hub_probe, local_probe
from repdyn.checkpoints.suites import PublishedCheckpoint, PublishedModel
from repdyn.checkpoints.targets import Selection, select_targets
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.models import build_model
from repdyn.probe.class_names import CLASSES
from repdyn.probe.design import INDEPENDENT

CONTEXT = 12
SIZES = {"vocab_size": 260, "hidden_size": 16, "n_layers": 1, "n_heads": 2}


def tokenizer(context: int | None = None) -> PreTrainedTokenizerBase:
    made = byte_tokenizer()
    if context:
        made.model_max_length = context
    return made


@pytest.fixture
def text(tmp_path) -> ProbeText:
    path = tmp_path / "text.txt"
    path.write_text("The geometry of representations changes while a model trains. " * 40)
    return ProbeText(str(path), max_vectors=256)


@pytest.fixture
def save(tmp_path) -> Callable[..., Path]:
    """Saves a model and a tokenizer, or one of them, in a folder."""

    def save(
        name: str, *, tokens: PreTrainedTokenizerBase | None = None, context: int | None = CONTEXT, family="gpt_neox"
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


def chosen(model: PublishedModel) -> tuple[PublishedModel, Selection]:
    return model, select_targets(model, Hub())


def model(**fields) -> PublishedModel:
    described: dict[str, Any] = {"name": "model", "suite": "", "run": "lab/model", "repository": "lab/model"}
    described["revisions"] = r"step(?P<step>\d+)"
    return PublishedModel(**described | fields)


def lengths(probe: Probe) -> set[int]:
    return set(probe.lengths.tolist()[:-1])


# on the hub: whose tokenizer


def test_the_tokenizer_of_the_main_branch(hub, save, text):
    hub.publish("lab/model", "step1", save("step1"))
    hub.publish("lab/model", "main", save("main", tokens=tokenizer()))
    probe = hub_probe(*chosen(model()), text, Hub())
    assert lengths(probe) == {CONTEXT}
    assert probe.name.startswith("text.txt (sha256 ")
    again = hub_probe(*chosen(model()), text, Hub())
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
    assert lengths(hub_probe(*chosen(model()), text, Hub())) == {CONTEXT}


def test_the_tokenizer_of_another_repository_named_by_the_suite(hub, save, text):
    """As BLOOM's intermediate checkpoints have it; the context is still that of the checkpoints."""
    hub.publish("lab/bloom-intermediate", "global_step1000", save("early"))
    hub.publish("lab/bloom", "main", save("final", tokens=tokenizer(), context=99))
    described = model(repository="lab/bloom-intermediate", revisions=r"global_step(?P<step>\d+)", tokenizer="lab/bloom")
    assert lengths(hub_probe(*chosen(described), text, Hub())) == {CONTEXT}


def test_a_named_tokenizer_is_not_replaced_by_another_one(hub, save, text):
    hub.publish("lab/model", "step1", save("step1", tokens=tokenizer()))
    for named, reason in (
        ("lab/mistyped", "the hub knows no repository lab/mistyped"),
        ("lab/bare", "lab/bare@main has none"),
    ):
        if named == "lab/bare":
            hub.publish("lab/bare", "main", save("bare"))
        with pytest.raises(CheckpointError, match=f"expected a tokenizer for model, found none: {reason}"):
            hub_probe(*chosen(model(tokenizer=named)), text, Hub())


def test_one_repository_for_each_checkpoint_the_last_of_them_missing(hub, save, text):
    hub.publish("lab/seed-0k", "main", save("early", tokens=tokenizer()))
    places = [PublishedCheckpoint(f"lab/seed-{step}k", "main", "", step, None, None) for step in (0, 20)]
    described = model(repository=None, revisions=None, checkpoints=tuple(places))
    assert lengths(hub_probe(*chosen(described), text, Hub())) == {CONTEXT}
    del hub.repositories["lab/seed-0k"]
    with pytest.raises(
        CheckpointError, match="none of its checkpoints exists: the hub knows no repository lab/seed-0k@main"
    ):
        hub_probe(*chosen(described), text, Hub())


@pytest.mark.slow
@pytest.mark.parametrize("beside", [True, False], ids=["beside the weights", "at the top"])
def test_checkpoints_in_folders(hub, save, text, beside):
    folder = save("uploaded", context=None)
    for step in (5, 20):
        shutil.copytree(save(f"step{step}", tokens=tokenizer() if beside else None), folder / f"checkpoint-{step}")
    if not beside:
        tokenizer().save_pretrained(folder)
    hub.publish("lab/model", "main", folder)
    described = model(revisions=None, subfolders=r"checkpoint-(?P<step>\d+)")
    assert lengths(hub_probe(*chosen(described), text, Hub())) == {CONTEXT}


def test_no_tokenizer_anywhere(hub, save, text):
    folder = save("step")
    for step in range(40):
        hub.publish("lab/model", f"step{step}", folder)
    described = chosen(model())
    n_requests = len(hub.requests)
    with pytest.raises(
        CheckpointError,
        match=r"expected a tokenizer for model, found none: the hub has no such revision of lab/model@main \(404\); lab/model@\w{12} has none; .*; name the repository that has it with --tokenizer, or in its suite under tokenizer",
    ):
        hub_probe(*described, text, Hub())
    assert len(hub.requests) - n_requests < 20, "it does not look through all of hundreds of checkpoints"


def test_a_tokenizer_that_is_damaged(hub, save, text):
    folder = save("step1", tokens=tokenizer())
    (folder / "tokenizer.json").write_text("{")
    hub.publish("lab/model", "step1", folder)
    with pytest.raises(CheckpointError, match="the tokenizer of model does not load: "):
        hub_probe(*chosen(model()), text, Hub())


def test_an_old_repository_with_only_a_vocabulary(hub, save, text):
    folder = save("step1", family="bert")
    letters = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase]
    (folder / "vocab.txt").write_text("\n".join([*letters, *(f"##{letter}" for letter in string.ascii_lowercase)]))
    hub.publish("lab/model", "step1", folder)
    probe = hub_probe(*chosen(model()), text, Hub())
    assert probe.tokens[:2].tolist() == [2, letters.index("t")]
    assert probe.special_ids == (0, 1, 2, 3, 4)


def test_a_tokenizer_in_a_local_folder(hub, save, text):
    hub.publish("lab/model", "step1", save("step1"))
    folder = save("mine", tokens=tokenizer(), context=None)
    assert lengths(hub_probe(*chosen(model()), text, Hub(), tokenizer=folder)) == {CONTEXT}


# how long its sequences


def test_the_context_is_that_of_the_newest_checkpoint_with_a_configuration_that_loads(hub, save, text):
    for step, context in ((1, 10), (2, 9), (3, 8)):
        folder = save(f"step{step}", tokens=tokenizer(), context=context)
        if step == 3:
            (folder / "config.json").unlink()
        if step == 2:
            (folder / "config.json").write_text("{}")
        hub.publish("lab/model", f"step{step}", folder)
    assert lengths(hub_probe(*chosen(model()), text, Hub())) == {10}
    hub.repositories["lab/model"].branches.pop("step1")
    with pytest.raises(
        CheckpointError,
        match="expected a checkpoint with a loadable configuration, got none: step3: .*; step2: its configuration does not load",
    ):
        hub_probe(*chosen(model()), text, Hub())


def test_one_configuration_or_tokenizer_at_a_time_is_on_the_disk(hub, save, text, monkeypatch):
    """The disk budget applies to each, so that what was tried in vain must be gone."""
    for step in (1, 2, 3):
        folder = save(f"step{step}", tokens=tokenizer())
        if step > 1:
            (folder / "config.json").write_text("{}")
        hub.publish("lab/model", f"step{step}", folder)
    hub.publish("lab/model", "main", save("main", tokens=tokenizer(), context=None))
    hub.fault("main/tokenizer_config.json", "status", code=404)
    fetched, download = [], Hub.download

    def watched(self, repository, commit, files, folder, monitor):
        root = next(parent for parent in folder.parents if parent.name.startswith("repdyn-probe-"))
        fetched.append((sorted(files), [path.name for path in root.rglob("*") if path.is_file()]))
        download(self, repository, commit, files, folder, monitor)

    monkeypatch.setattr(Hub, "download", watched)
    hub_probe(*chosen(model()), text, Hub())
    assert [names for names, _ in fetched[:3]] == [["config.json"]] * 3
    assert len(fetched) >= 4
    assert [there for _, there in fetched] == [[]] * len(fetched)


@pytest.mark.parametrize(
    ("context", "of_tokenizer", "asked", "expected"),
    [
        (12, None, None, 12),
        (12, 9, None, 9),
        (300, None, None, 80),
        (300, None, 300, 300),
        (12, None, 5, 5),
    ],
)
def test_sequences_are_no_longer_than_the_context(save, text, tmp_path, context, of_tokenizer, asked, expected):
    folder = save("model", tokens=tokenizer(of_tokenizer), context=context)
    text = ProbeText(text.source, asked, 256)
    assert lengths(text.probe("model", folder, AutoConfig.from_pretrained(folder))) == {expected}


def test_a_model_without_a_limit(save, text):
    folder = save("model", tokens=tokenizer(), family="bloom")
    config = AutoConfig.from_pretrained(folder)
    assert lengths(text.probe("model", folder, config)) == {INDEPENDENT.window_tokens}


def test_sequences_longer_than_the_context_are_an_error(hub, save, text):
    hub.publish("lab/model", "step1", save("step1", tokens=tokenizer()))
    with pytest.raises(
        ValueError,
        match="expected sequences no longer than the context of model, 12 tokens, got 13; lower --sequence-length",
    ):
        hub_probe(*chosen(model()), ProbeText(text.source, 13, 256), Hub())


# of which text


def test_a_text_that_is_too_short(hub, save, tmp_path):
    hub.publish("lab/model", "step1", save("step1", tokens=tokenizer()))
    (tmp_path / "short.txt").write_text("too short")
    with pytest.warns(UserWarning, match="the probe has 8 vectors for the 256"):
        hub_probe(*chosen(model()), ProbeText(str(tmp_path / "short.txt"), max_vectors=256), Hub())


def test_a_text_that_cannot_be_downloaded_ends_the_sweep(hub, save, monkeypatch):
    def unreachable(*arguments, **named):
        raise ConnectionError("enwik8 cannot be fetched from its address")

    monkeypatch.setattr("repdyn.text.source.enwik8_corpus", unreachable)
    hub.publish("lab/model", "step1", save("step1", tokens=tokenizer()))
    with pytest.raises(SweepStoppedError, match="enwik8 cannot be fetched"):
        hub_probe(*chosen(model()), ProbeText(), Hub())


@pytest.mark.slow
def test_builtin_text(save):
    folder = save("model", tokens=tokenizer())
    probe = ProbeText("builtin", max_vectors=256).probe("model", folder, AutoConfig.from_pretrained(folder))
    assert probe.name.startswith("language reference of Python")


def test_classes_of_words(save, tmp_path):
    text = "The dog of the king sees the birds, and the king of the birds sees the cat. " * 40
    (tmp_path / "prose.txt").write_text(text)
    folder = save("model", tokens=tokenizer())
    config = AutoConfig.from_pretrained(folder)
    plain = ProbeText(str(tmp_path / "prose.txt"), max_vectors=256)
    probe = replace(plain, classes=CLASSES).probe("m", folder, config)
    assert probe.subsets == ("all", "no_sink", *sorted(CLASSES))
    assert torch.equal(probe.tokens, plain.probe("m", folder, config).tokens)
    assert plain.probe("m", folder, config).subsets == ("all", "no_sink")


# in a local folder


def local(folder: Path, text: ProbeText, **named) -> Probe:
    return local_probe(folder, find_checkpoints(folder, "run"), text, Hub(), **named)


def test_tokenizer_of_local_checkpoints(save, text):
    save("step1", tokens=tokenizer())
    folder = save("step2", context=11).parent
    assert lengths(local(folder, text)) == {11}


def test_another_tokenizer_for_local_checkpoints(hub, save, text, tmp_path):
    folder = save("step1", context=11).parent
    tokenizer().save_pretrained(tmp_path / "mine")
    hub.publish("lab/tokenizer", "main", tmp_path / "mine")
    there = local(folder, text, tokenizer="lab/tokenizer")
    here = local(folder, text, tokenizer=str(tmp_path / "mine"))
    assert there.hash == here.hash
    assert lengths(here) == {11}
    with pytest.raises(CheckpointError, match="expected a tokenizer for .*, found none: the hub knows no .*lab/none"):
        local(folder, text, tokenizer="lab/none")


def test_local_checkpoints_without_a_tokenizer(save, text):
    with pytest.raises(
        ValueError,
        match="expected a probe or a tokenizer to make one, got neither with the checkpoints in .*; give a probe with --probe FILE, or a folder or hub repository with --tokenizer",
    ):
        local(save("step1").parent, text)


def test_context_of_lightning_checkpoints(text, tmp_path):
    keep = ModelCheckpoint(tmp_path / "checkpoints", every_n_train_steps=1)
    trainer(tmp_path, keep, max_steps=1).fit(tiny_language_model(), batches())
    tokenizer().save_pretrained(tmp_path / "mine")
    folder = tmp_path / "checkpoints"
    assert lengths(local(folder, text, tokenizer=str(tmp_path / "mine"))) == {CONTEXT}


# code that a repository brings along


def test_code_of_a_repository_runs_only_if_allowed(hub, save, text, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = save("step1", tokens=tokenizer())
    config = json.loads((folder / "config.json").read_text())
    own = {"model_type": "ours", "auto_map": {"AutoConfig": "ours.OurConfig"}}
    (folder / "config.json").write_text(json.dumps(config | own))
    (folder / "ours.py").write_text(
        "from pathlib import Path\nfrom transformers import PreTrainedConfig\n\n"
        f"Path({str(tmp_path / 'ran')!r}).touch()\n\n\nclass OurConfig(PreTrainedConfig):\n    model_type = 'ours'\n"
    )
    hub.publish("lab/model", "step1", folder)
    with pytest.raises(
        CheckpointError, match="got none: step1: it needs Python code of its own repository; read that, then allow it"
    ):
        hub_probe(*chosen(model()), text, Hub())
    assert not (tmp_path / "ran").exists()
    assert lengths(hub_probe(*chosen(model()), text, Hub(), trust_remote_code=True)) == {CONTEXT}
    assert (tmp_path / "ran").exists()

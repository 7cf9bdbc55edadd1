"""From what is named on the command line to checkpoints and their probes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from small import random_tokens
from sweeping import options_of

from repdyn import Probe, open_store
from repdyn.checkpoints.completion import completed
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.sources import find_selections
from repdyn.checkpoints.sweep import make_probe
from repdyn.checkpoints.targets import Selection
from repdyn.data.tokens import byte_tokenizer


def selected(*arguments: object) -> tuple[list[Selection], list[str]]:
    return find_selections(completed(options_of(*arguments)), Hub())


def selection_of(*arguments: object) -> Selection:
    (source,), problems = selected(*arguments)
    assert problems == []
    return source


def probe_of(*arguments: object) -> Probe:
    return make_probe(completed(options_of(*arguments)), Hub(), selection_of(*arguments))


def names(source: Selection) -> list[str]:
    return [target.revision for target in source.targets]


@pytest.fixture
def published(hub, family):
    """Publishes the family under a name, with the newest at main too."""

    def published(repository: str) -> None:
        for step, folder in family.items():
            hub.publish(repository, f"step{step}", folder)
        hub.publish(repository, "main", family[16])

    return published


@pytest.fixture
def suite(tmp_path) -> Callable[..., Path]:
    """Writes a suite of models that have their steps in their branches, and gives its path."""

    def write(*repositories: str, file: str = "mine.yaml", extra: str = "") -> Path:
        models = "".join(
            (
                f"  - {{name: {name.partition('/')[2]}, repository: {name}, revisions: "
                f"'step(?P<step>\\d+)'{extra}}}\n"
            )
            for name in repositories
        )
        (tmp_path / file).write_text(f"title: ours\ncard: here\nmodels:\n{models}")
        return tmp_path / file

    return write


# suites


@pytest.mark.parametrize("named", ["pythia-14m", "pythia-14[m]", "pythia-14m pythia-14m"])
def test_a_model_of_a_shipped_suite(published, named):
    published("EleutherAI/pythia-14m")
    source = selection_of("--suite", *named.split(), "--revisions", "log")
    assert source.run == "EleutherAI/pythia-14m"
    assert names(source) == ["step0", "step8", "step16"]
    assert [target.tokens_seen for target in source.targets] == [0, 8 * 2097152, 16 * 2097152]
    assert len(source.missing_steps) == 154 - 3


def test_a_suite_with_one_model_on_the_hub(published):
    published("EleutherAI/pythia-70m")
    (source,), problems = selected("--suite", "pythia")
    assert source.run == "EleutherAI/pythia-70m"
    assert len(problems) == 17
    assert problems[0].startswith(
        "pythia-14m: the hub knows no repository EleutherAI/pythia-14m (404)"
    )


def test_a_step_missing_from_one_model_does_not_stop_the_others(published, hub, suite):
    published("lab/one")
    published("lab/two")
    del hub.repositories["lab/two"].branches["step8"]
    file = suite("lab/one", "lab/two")
    (source,), problems = selected("--suite", file, "--revisions", "step8")
    assert source.run == "lab/one"
    assert names(source) == ["step8"]
    assert len(problems) == 1
    assert problems[0].startswith("two: expected")
    assert "got names or steps that do not exist: 'step8' (closest: 'step" in problems[0]
    with pytest.raises(ValueError, match="names or steps that do not exist: 'step9'"):
        selected("--suite", file, "--revisions", "step9")


# one repository


@pytest.mark.parametrize("name", ["lab/model", "gpt2"])
@pytest.mark.parametrize("revisions", ["all", "log", "main", "0"])
def test_a_finished_model(hub, family, name, revisions):
    commit = hub.publish(name, "main", family[16])
    hub.publish(name, "v1.0", family[16], tag=True)
    (target,) = selection_of(name, "--revisions", revisions).targets
    assert target.step == 0
    assert target.stage == "finished"
    assert target.revision == "main"
    assert target.commit == commit
    assert target.run == name


def test_a_failed_listing_is_an_error(published, hub):
    """Otherwise a training run would be measured as a finished model."""
    published("lab/model")
    hub.fault("/refs", "status", code=500)
    listed, (problem,) = selected("lab/model")
    assert listed == []
    assert "the hub answered 500" in problem


# local folders


def test_a_folder_of_checkpoints(family, monkeypatch):
    folder = family[0].parent
    source = selection_of(folder, "--revisions", "step0,16")
    assert source.run == f"{folder.parent.name}/family"
    assert names(source) == ["step0", "step16"]
    monkeypatch.chdir(folder)
    assert selection_of(".").run == f"{folder.parent.name}/family"
    assert selection_of(folder / "step8").run == "family/step8"
    assert selection_of(folder, "--name", "mine").run == "mine"


def test_a_folder_comes_before_a_repository_of_that_name(hub, family, monkeypatch):
    hub.publish("family", "main", family[0])
    monkeypatch.chdir(family[0].parent.parent)
    assert len(names(selection_of("family"))) == 3
    assert hub.requests == []


def test_the_probe_of_a_run_and_options_that_replace_it(family, tmp_path):
    (tmp_path / "run").mkdir()
    family[0].parent.rename(tmp_path / "run" / "hf_checkpoints")
    of_run = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
    open_store(tmp_path / "run" / "repdyn").save_probe(of_run)
    assert probe_of(tmp_path / "run").hash == of_run.hash
    other = Probe.from_tokens(random_tokens(24, 12, seed=1), max_vectors=192, batch_vectors=96)
    other.save(tmp_path / "other.safetensors")
    assert probe_of(tmp_path / "run", "--probe", tmp_path / "other.safetensors").hash == other.hash
    # what is asked for is not left aside for what is there
    of_text = probe_of(tmp_path / "run", "--text", "builtin", "--max-vectors", 512)
    assert of_text.name.startswith("language reference")
    assert (
        probe_of(
            tmp_path / "run" / "hf_checkpoints", "--text", "builtin", "--max-vectors", 512
        ).hash
        == of_text.hash
    )


# probes that are named


@pytest.mark.parametrize("kind", ["folder", "repository"])
def test_a_given_tokenizer(hub, family, tmp_path, kind):
    for folder in family.values():
        (folder / "tokenizer.json").unlink()
    hub.publish("lab/model", "step8", family[8])
    tokenizer = tmp_path / "tokenizer"
    byte_tokenizer().save_pretrained(tokenizer)
    hub.publish("lab/tokenizer", "main", tokenizer)
    named = tokenizer if kind == "folder" else "lab/tokenizer"
    text = ("--tokenizer", named, "--text", "builtin", "--max-vectors", 512)
    published = probe_of("lab/model", *text)
    local = probe_of(family[0].parent, *text)
    assert published.hash == local.hash
    assert set(published.lengths.tolist()[:-1]) == {12}

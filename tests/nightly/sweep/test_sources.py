"""From what is named on the command line to checkpoints and their probes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
import torch
from small import random_tokens

from repdyn import Probe, open_store
from repdyn.checkpoints.errors import CheckpointError, SweepStoppedError
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.options import SweepOptions
from repdyn.checkpoints.plan import Source, find_sources
from repdyn.cli.sweep import build_parser
from repdyn.data.byte_tokenizer import byte_tokenizer


def found(*arguments: object) -> tuple[list[Source], list[str]]:
    given = build_parser("analyze_checkpoints.py").parse_args([str(argument) for argument in arguments])
    return find_sources(SweepOptions.of(vars(given)).resolved(), Hub())


def one(*arguments: object) -> Source:
    (source,), problems = found(*arguments)
    assert problems == []
    return source


def names(source: Source) -> list[str]:
    return [target.revision for target in source.selection.targets]


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
            f"  - {{name: {name.partition('/')[2]}, repository: {name}, revisions: 'step(?P<step>\\d+)'{extra}}}\n"
            for name in repositories
        )
        (tmp_path / file).write_text(f"title: ours\ncard: here\nmodels:\n{models}")
        return tmp_path / file

    return write


# suites


@pytest.mark.slow
@pytest.mark.parametrize("named", ["pythia-14m", "pythia-14[m]", "pythia-14m pythia-14m"])
def test_a_model_of_a_shipped_suite(published, named):
    published("EleutherAI/pythia-14m")
    source = one("--suite", *named.split(), "--revisions", "log")
    assert source.selection.run == "EleutherAI/pythia-14m"
    assert names(source) == ["step0", "step8", "step16"]
    assert [target.tokens_seen for target in source.selection.targets] == [0, 8 * 2097152, 16 * 2097152]
    assert len(source.selection.missing_steps) == 154 - 3


@pytest.mark.slow
def test_a_suite_with_one_model_on_the_hub(published):
    published("EleutherAI/pythia-70m")
    (source,), problems = found("--suite", "pythia")
    assert source.selection.run == "EleutherAI/pythia-70m"
    assert len(problems) == 17
    assert problems[0].startswith("pythia-14m: the hub knows no repository EleutherAI/pythia-14m (404)")


@pytest.mark.slow
def test_a_suite_file_and_another_run_name(published, suite):
    published("lab/model")
    assert one("--suite", suite("lab/model"), "--name", "../../mine").selection.run == "../../mine"


@pytest.mark.slow
def test_a_step_missing_from_one_model_does_not_stop_the_others(published, hub, suite):
    published("lab/one")
    published("lab/two")
    del hub.repositories["lab/two"].branches["step8"]
    file = suite("lab/one", "lab/two")
    (source,), problems = found("--suite", file, "--revisions", "step8")
    assert (source.selection.run, names(source)) == ("lab/one", ["step8"])
    assert len(problems) == 1
    assert problems[0].startswith("two: expected")
    assert "got names or steps that do not exist: 'step8' (closest: 'step" in problems[0]
    with pytest.raises(ValueError, match="names or steps that do not exist: 'step9'"):
        found("--suite", file, "--revisions", "step9")


@pytest.mark.slow
def test_two_models_of_the_same_run_are_an_error(published, suite):
    published("lab/model")
    with pytest.raises(
        ValueError,
        match="expected a different run for each model, got 'lab/model' for model of mine and for model of other; sweep them separately into two stores",
    ):
        found("--suite", suite("lab/model"), suite("lab/model", file="other.yaml", extra=", tokens_per_step: 2"))
    with pytest.raises(ValueError, match="expected one model with --name, got 2; omit --name"):
        found("--suite", suite("lab/model", "lab/two"), "--name", "x")


@pytest.mark.slow
def test_a_mistyped_suite(hub):
    with pytest.raises(ValueError, match="expected a suite .*, got 'pythia-70'; did you mean pythia-70m"):
        found("--suite", "pythia-70")
    with pytest.raises(FileNotFoundError, match="nowhere.yaml"):
        found("--suite", "nowhere.yaml")
    assert hub.requests == []


# one repository


@pytest.mark.slow
def test_a_repository_with_steps_in_its_revisions(published):
    published("lab/model")
    source = one("lab/model")
    assert (source.selection.run, names(source)) == ("lab/model", ["step0", "step8", "step16"])
    assert source.selection.unmatched == ("main",)
    assert {target.stage for target in source.selection.targets} == {None}
    assert names(one("lab/model", "--revisions", "8")) == ["step8"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lab/model", "gpt2"])
@pytest.mark.parametrize("revisions", ["all", "log", "main", "0"])
def test_a_finished_model(hub, family, name, revisions):
    commit = hub.publish(name, "main", family[16])
    hub.publish(name, "v1.0", family[16], tag=True)
    (target,) = one(name, "--revisions", revisions).selection.targets
    assert (target.step, target.stage, target.revision, target.commit) == (0, "finished", "main", commit)
    assert target.run == name


@pytest.mark.slow
def test_a_finished_model_has_no_steps(hub, family):
    hub.publish("lab/model", "main", family[16])
    with pytest.raises(ValueError, match="names or steps that do not exist: 'step16'"):
        found("lab/model", "--revisions", "step16")


@pytest.mark.slow
def test_a_pattern(hub, family):
    for step, folder in family.items():
        hub.publish("lab/model", f"it-{step}-of-16", folder)
    assert names(one("lab/model", "--pattern", r"it-(?P<step>\d+)-of-16")) == [
        "it-0-of-16",
        "it-8-of-16",
        "it-16-of-16",
    ]
    with pytest.raises(ValueError, match="expected revisions of lab/model that match 'x.*', got it-0-of"):
        found("lab/model", "--pattern", r"x(?P<step>\d+)")
    with pytest.raises(ValueError, match="expected the named group step"):
        found("lab/model", "--pattern", r"it-(\d+)")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lab/nowhere", "nowhere", "runs"])
def test_a_missing_repository_is_an_error(hub, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where there is no folder of that name
    with pytest.raises(
        ValueError,
        match=rf"expected an existing folder or a hub repository, got '{name}': the hub knows no repository {name} \(404\); if it is private, log in",
    ):
        found(name)


@pytest.mark.slow
def test_a_failed_listing_is_an_error(published, hub):
    """Otherwise a training run would be measured as a finished model."""
    published("lab/model")
    hub.fault("/refs", "status", code=500)
    listed, (problem,) = found("lab/model")
    assert listed == []
    assert "the hub answered 500" in problem


@pytest.mark.slow
def test_a_repository_without_a_main_branch_and_without_steps(hub, family):
    hub.publish("lab/model", "v1.0", family[16], tag=True)
    source = one("lab/model")
    assert source.selection.targets[0].missing_reason == "the hub has no such revision of lab/model@main (404)"
    with pytest.raises(CheckpointError, match="none of its checkpoints exists: the hub has no such revision"):
        _ = source.probe


@pytest.mark.slow
def test_without_a_connection(hub):
    hub.__exit__()
    huggingface_hub.close_session()
    for named in (["lab/model"], ["--suite", "pythia-14m"]):
        with pytest.raises(SweepStoppedError, match="no connection to"):
            found(*named)


# local folders


def test_a_folder_of_checkpoints(family, monkeypatch):
    folder = family[0].parent
    source = one(folder, "--revisions", "step0,16")
    assert (source.selection.run, names(source)) == (f"{folder.parent.name}/family", ["step0", "step16"])
    monkeypatch.chdir(folder)
    assert one(".").selection.run == f"{folder.parent.name}/family"
    assert one(folder / "step8").selection.run == "family/step8"
    assert one(folder, "--name", "mine").selection.run == "mine"


def test_a_folder_comes_before_a_repository_of_that_name(hub, family, monkeypatch):
    hub.publish("family", "main", family[0])
    monkeypatch.chdir(family[0].parent.parent)
    assert len(names(one("family"))) == 3
    assert hub.requests == []


@pytest.mark.slow
def test_the_probe_of_a_run_and_options_that_replace_it(family, tmp_path):
    (tmp_path / "run").mkdir()
    family[0].parent.rename(tmp_path / "run" / "hf_checkpoints")
    own = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
    open_store(tmp_path / "run" / "repdyn").save_probe(own)
    assert one(tmp_path / "run").probe.hash == own.hash
    other = Probe.from_tokens(random_tokens(24, 12, seed=1), max_vectors=192, batch_vectors=96)
    other.save(tmp_path / "other.safetensors")
    assert one(tmp_path / "run", "--probe", tmp_path / "other.safetensors").probe.hash == other.hash
    # what is asked for is not left aside for what is there
    made = one(tmp_path / "run", "--text", "builtin", "--max-vectors", 512).probe
    assert made.name.startswith("language reference")
    assert one(tmp_path / "run" / "hf_checkpoints", "--text", "builtin", "--max-vectors", 512).probe.hash == made.hash


# probes that are named


@pytest.mark.slow
def test_a_probe_from_a_file(published, tmp_path):
    published("lab/model")
    tokens = torch.randint(3, 250, (24, 12), generator=torch.Generator().manual_seed(0))
    probe = Probe.from_tokens(tokens, max_vectors=192, batch_vectors=96)
    probe.save(tmp_path / "probe.safetensors")
    assert one("lab/model", "--probe", tmp_path / "probe.safetensors").probe.hash == probe.hash


def test_invalid_probes(family, tmp_path):
    folder = family[0].parent
    with pytest.raises(FileNotFoundError, match="none.safetensors"):
        _ = one(folder, "--probe", tmp_path / "none.safetensors").probe
    (tmp_path / "text").write_text("no probe")
    for file in (tmp_path / "text", family[0] / "model.safetensors"):
        with pytest.raises(ValueError, match="expected a probe written by Probe.save, got"):
            _ = one(folder, "--probe", file).probe


@pytest.mark.slow
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
    published, local = one("lab/model", *text).probe, one(family[0].parent, *text).probe
    assert published.hash == local.hash
    assert set(published.lengths.tolist()[:-1]) == {12}


# contradictions


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected a folder, a hub repository or --suite NAME, got neither; see --help, or --list-suites"),
        ([""], "got neither"),
        (["lab/model", "--suite", "pythia"], "got both a source and a suite"),
        (["./x"], "expected an existing folder or a hub repository, got './x'"),
        (["/none/at/all"], "expected an existing folder or a hub repository, got '/none/at/all'"),
        (["~/runs"], "expected an existing folder or a hub repository, got '~/runs'"),
        (["a/b/c"], "expected an existing folder or a hub repository, got 'a/b/c'"),
        (["../../x"], "expected an existing folder or a hub repository, got '../../x'"),
        (["https://huggingface.co/gpt2"], "expected an existing folder or a hub repository, got 'https"),
        (
            ["--suite", "pythia", "--pattern", "x"],
            "expected --pattern with a hub repository only",
        ),
        ([".", "--pattern", "x"], "expected --pattern with a hub repository only"),
        (["lab/model", "--tokenizer", "./none"], "expected an existing folder or a hub repository, got './none'"),
        (["x", "--probe", "f", "--text", "builtin"], "expected either --probe or the options for making a probe"),
        (["x", "--probe", "f", "--max-vectors", "9"], "expected either --probe or the options for making a probe"),
        (["x", "--probe", "f", "--tokenizer", "t"], "expected either --probe or the options for making a probe"),
        (["x", "--probe", "f", "--sequence-length", "9"], "expected either --probe or the options for making a probe"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_contradictory_options(hub, arguments, message):
    with pytest.raises(ValueError, match="expected") as refusal:
        found(*arguments)
    assert message in str(refusal.value)
    assert hub.requests == []


def test_a_folder_without_checkpoints(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", Path("/")):
        with pytest.raises(ValueError, match="expected checkpoints .* got none"):
            found(folder)

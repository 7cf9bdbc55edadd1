"""From what the command line names to loaded models: folders, repositories, revisions, and what goes wrong."""

from __future__ import annotations

import argparse
import json
import re
import time

import pytest
import torch
from huggingface_hub import constants

from repdyn.checkpoints.errors import CheckpointError
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.studies.models import LoadedModel, add_model_options, file_name, load_models


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPDYN_CACHE", str(tmp_path / "cache"))


def options(*given, fewest=1) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_model_options(parser, fewest=fewest)
    return parser.parse_args([*map(str, given), "-o", "out"])


def names(*given) -> list[str]:
    return [subject.name for subject in load_models(options(*given))]


# local folders


def test_a_folder(save_model):
    [subject] = _loaded(save_model("small", "bert"))
    assert subject.name == "small"
    assert type(subject.model).__name__ == "BertModel"
    assert not subject.model.training
    assert subject.tokenizer("A").input_ids == [65]
    assert subject.context == 64


def _loaded(*given):
    """The subjects as they are while it is their turn."""
    found = []
    for subject in load_models(options(*given)):
        found.append(LoadedModel(subject.name, subject.model, subject.tokenizer))
        yield found[-1]


def test_one_model_at_a_time(save_model):
    folders = save_model("a", seed=0), save_model("b", seed=1)
    earlier = []
    for subject in load_models(options(*folders)):
        assert all(parameter.device.type == "cpu" for parameter in subject.model.parameters())
        assert all(parameter.device.type == "meta" for model in earlier for parameter in model.parameters())
        earlier.append(subject.model)
    assert all(parameter.device.type == "meta" for parameter in earlier[-1].parameters())


def test_the_tokenizers_limit_counts_too(save_model):
    folder = save_model("small", tokenizer=False)
    tokenizer = byte_tokenizer()
    tokenizer.model_max_length = 32
    tokenizer.save_pretrained(folder)
    [subject] = _loaded(folder)
    assert subject.context == 32


def test_a_model_without_a_limit(save_model):
    [subject] = _loaded(save_model("small", "bloom"))
    assert subject.context == 1 << 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folders", "shown"),
    [
        (["x/step8"], ["step8"]),
        (["x/step8", "x/step9"], ["step8", "step9"]),
        (["x/step8", "y/step8"], ["x/step8", "y/step8"]),
        (["x/run/step8", "y/run/step8"], ["x/run/step8", "y/run/step8"]),
    ],
    ids=["one", "two", "same last part", "same last two"],
)
def test_folders_are_told_apart_by_as_few_parts_as_may_be(folders, shown, save_model, tmp_path):
    assert names(*(save_model(folder) for folder in folders)) == shown


def test_a_folder_that_is_named_from_inside(save_model, monkeypatch):
    monkeypatch.chdir(save_model("small"))
    assert names(".") == ["small"]
    monkeypatch.chdir(save_model("small/inner"))
    assert names("..") == ["small"]


def test_precision(save_model):
    folder = save_model("small")
    assert next(load_models(options(folder))).model.dtype == torch.float32
    assert next(load_models(options(folder, "--dtype", "bfloat16"))).model.dtype == torch.bfloat16


def test_a_tokenizer_from_elsewhere(save_model, tmp_path):
    byte_tokenizer().save_pretrained(tmp_path / "words")
    folder = save_model("small", tokenizer=False)
    [subject] = _loaded(folder, "--tokenizer", tmp_path / "words")
    assert subject.tokenizer("A").input_ids == [65]


# the hub


@pytest.mark.slow
def test_a_repository_at_revisions(save_model, hub):
    for step in (1, 2):
        hub.publish("lab/small", f"step{step}", save_model(f"s{step}", seed=step))
    hub.publish("lab/small", "main", save_model("end", seed=3))
    seen = {
        subject.name: next(subject.model.parameters()).sum().item()
        for subject in load_models(options("lab/small@step1", "lab/small", "--revisions", "step2"))
    }
    assert list(seen) == ["lab/small@step1", "lab/small@step2"]
    assert len(set(seen.values())) == 2
    assert names("lab/small") == ["lab/small"]


def test_what_is_fetched_stays(save_model, hub):
    hub.publish("lab/small", "main", save_model())
    assert names("lab/small") == ["lab/small"]
    sent = hub.bytes_sent
    assert names("lab/small") == ["lab/small"]
    assert hub.bytes_sent - sent < 20_000  # listings alone


@pytest.mark.parametrize("what", ["/api/", "safetensors"])
def test_a_hub_that_drips_ends_with_the_timeout(save_model, hub, what):
    hub.publish("lab/small", "main", save_model())
    hub.fault(what, "slow", bytes_per_second=20)
    started = time.monotonic()
    with pytest.raises(CheckpointError, match="--timeout 1 seconds"):
        names("lab/small", "--timeout", "1")
    assert time.monotonic() - started < 10


def test_a_tokenizer_of_another_repository(save_model, hub):
    hub.publish("lab/small", "main", save_model(tokenizer=False))
    hub.publish("lab/words", "main", save_model("words"))
    assert names("lab/small", "--tokenizer", "lab/words") == ["lab/small"]
    assert not any("lab/words" in path and "safetensors" in path for _, path in hub.requests)


def test_code_is_neither_fetched_nor_run(save_model, hub, tmp_path):
    folder = save_model()
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoModel": "own.Own", "AutoConfig": "own.OwnConfig"}, "model_type": "own"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    hub.publish("lab/own", "main", folder)
    with pytest.raises(CheckpointError, match="allow it with --trust-remote-code"):
        names("lab/own")
    assert not any(path.endswith("own.py") for _, path in hub.requests)
    assert not (tmp_path / "ran").exists()


# what goes wrong


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a/b/c"], "expected a folder that exists, or a hub repository, got 'a/b/c'"),
        (["./nowhere"], "expected a folder that exists, or a hub repository, got './nowhere'"),
        (["@step8"], "expected a folder that exists, or a hub repository, got '@step8'"),
        (["lab/a", "lab/a"], "expected each model once, got 'lab/a' 2 times"),
        (["lab/a@step8", "lab/a", "--revisions", "step8"], "expected each model once, got 'lab/a@step8' 2 times"),
    ],
    ids=["three parts", "a path", "no name", "twice", "the same revision"],
)
def test_names_that_lead_nowhere(given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        names(*given)


@pytest.fixture
def run_folder(save_model, tmp_path):
    """The folder of a run with three checkpoints."""
    for number, step in enumerate((0, 8, 16)):
        save_model(f"run/hf_checkpoints/step{step}", seed=number)
    return tmp_path / "run"


def test_checkpoints_of_a_run(run_folder):
    assert names(run_folder, "--revisions", "step0,step16") == ["run@step0", "run@step16"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("models", "revisions", "message"),
    [
        (["{run}"], [], "expected one checkpoint of {run}, got the folder; choose with --revisions: step0, step8, step16"),
        (["{run}"], ["step1"], "expected a checkpoint of {run} as --revisions, got 'step1'; there are step0, step8, step16"),
        (["{run}/hf_checkpoints/step0"], ["step8"], "expected --revisions with a hub repository or the folder of a run, got single checkpoints alone; leave it out"),
        (["{run}/.."], ["../step0"], "expected a folder of save_pretrained, or one that holds some, got {run}/.."),
        (["{run}"], ["step0", "step0"], "expected each model once, got 'run@step0' 2 times"),
    ],
    ids=["no revision", "another revision", "revision of one", "no checkpoints", "twice"],
)  # fmt: skip
def test_a_checkpoint_that_does_not_exist(run_folder, models, revisions, message):
    given = [model.format(run=run_folder) for model in models]
    with pytest.raises(ValueError, match=f"^{re.escape(message.format(run=run_folder))}$"):
        names(*given, *(["--revisions", ",".join(revisions)] if revisions else []))


def test_the_same_folder_twice(save_model):
    folder = save_model("small")
    with pytest.raises(ValueError, match="expected each model once, got 'small' 2 times"):
        names(folder, folder)


def test_every_name_is_looked_at_before_a_model_is_loaded(save_model, monkeypatch):
    monkeypatch.setattr("repdyn.studies.models.load_model", lambda *_: pytest.fail("loaded"))
    with pytest.raises(ValueError, match="got 'a/b/c'"):
        names(save_model(), "a/b/c")


def test_no_tokenizer(save_model):
    message = (
        "expected a tokenizer next to the weights of small, found none; name a folder or hub repository that has it with "
        "--tokenizer"
    )
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        names(save_model("small", tokenizer=False))


def test_damaged_weights(save_model):
    folder = save_model("small")
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match="^expected a model that loads, got small: .*does not load"):
        names(folder)


def test_a_repository_that_is_not_there(hub):
    message = "expected a model at lab/nothing, got none: the hub knows no repository lab/nothing"
    with pytest.raises(CheckpointError, match=message):
        names("lab/nothing")


def test_a_revision_that_is_not_there(save_model, hub):
    hub.publish("lab/small", "main", save_model())
    with pytest.raises(CheckpointError, match="expected a model at lab/small@step9, got none: the hub has no such"):
        names("lab/small@step9")


def test_no_connection(monkeypatch, hub):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="expected a model at lab/small, got none: .*HF_HUB_OFFLINE is set"):
        names("lab/small")


def test_a_name_that_no_repository_can_have():
    with pytest.raises(ValueError, match="expected a folder that exists, or a hub repository: "):
        names("so--called")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--device", "warp"], "expected a device such as cpu, cuda or cuda:1, got 'warp'"),
        (["--dtype", "int8"], "invalid choice: 'int8'"),
    ],
)
def test_refused_options(given, message, capsys):
    with pytest.raises(SystemExit):
        options("model", *given)
    assert message in capsys.readouterr().err


def test_the_output_is_no_file(tmp_path, capsys):
    (tmp_path / "file").touch()
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["model", "-o", str(tmp_path / "file")])
    assert (
        f"expected a folder, or a path where one can be made, got the file {tmp_path}/file" in capsys.readouterr().err
    )


def test_how_many_models(capsys):
    assert options(fewest=0).models == []
    with pytest.raises(SystemExit):
        options()
    assert "the following arguments are required: MODEL" in capsys.readouterr().err


def test_names_as_files():
    assert file_name("lab/model@step8 (encoder)") == "lab%2Fmodel@step8 (encoder)"

"""From what the command line names to loaded models: folders, repositories, revisions, and what goes wrong."""

from __future__ import annotations

import argparse
import json
import re
import time

import pytest

from repdyn.checkpoints.errors import CheckpointError
from repdyn.studies.models import add_model_options, load_models


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPDYN_CACHE", str(tmp_path / "cache"))


def options(*given, fewest=1) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_model_options(parser, fewest=fewest)
    return parser.parse_args([*map(str, given), "-o", "out"])


def names(*given) -> list[str]:
    return [subject.name for subject in load_models(options(*given))]


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


@pytest.mark.parametrize("what", ["/api/", "safetensors"])
def test_a_hub_that_drips_ends_with_the_timeout(save_model, hub, what):
    hub.publish("lab/small", "main", save_model())
    hub.fault(what, "slow", bytes_per_second=20)
    started = time.monotonic()
    with pytest.raises(CheckpointError, match="--timeout 1 seconds"):
        names("lab/small", "--timeout", "1")
    assert time.monotonic() - started < 10


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


def test_damaged_weights(save_model):
    folder = save_model("small")
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match="^expected a model that loads, got small: .*does not load"):
        names(folder)

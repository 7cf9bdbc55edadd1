"""Names that others chose never become paths outside of the store or the folder for downloads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import HubServer
from stored_rows import row
from sweeping import downloads_in

from repdyn import open_store
from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.options import Loading
from repdyn.checkpoints.weights import load_model
from repdyn.data.train import Run
from repdyn.store import MeasurementKey

NAMES = ["../../x", "..", "/etc/x", "a\\b", "nul\0", "new\nline", "é" * 200]
NAME_IDS = [f"{name[:12]!r}" for name in NAMES]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder to work in; what lies around it stays as it is."""
    inside = tmp_path / "a" / "b" / "c"
    inside.mkdir(parents=True)
    (tmp_path / "a" / "victim.safetensors").write_text("untouched")
    yield inside
    assert {path.name for path in tmp_path.iterdir()} <= {"a", "family", "hub_cache"}
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"b", "victim.safetensors"}
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["c"]
    assert (tmp_path / "a" / "victim.safetensors").read_text() == "untouched"


@pytest.mark.parametrize("part", ["run", "probe", "metrics", "checkpoint"])
@pytest.mark.parametrize("name", NAMES, ids=NAME_IDS)
def test_every_part_of_a_key_stays_in_the_store(outside, name, part):
    store = open_store(outside / "store")
    name = name if part == "run" else name[:20]  # the others are digests
    key = MeasurementKey(**({"run": "run", "step": 8, "probe": "p", "metrics": "m", "checkpoint": "c"} | {part: name}))
    written = store.write(key, [row(run=key.run)])
    assert written.resolve().parent.parent == (outside / "store").resolve()
    assert store.read(key) == [row(run=key.run, measured_at=store.read(key)[0].measured_at)]
    assert store.runs() == [key.run]
    assert store.to_pandas(key.run)["run"].tolist() == [key.run]
    assert key.failed not in store


@pytest.mark.parametrize("name", ["", "..", "a/../b", "/etc/x", "nul\0", "line\n"])
def test_a_run_of_train_py_stays_in_its_folder(name):
    with pytest.raises(ValueError, match="^expected --run.name "):
        Run(name=name)


@pytest.mark.parametrize("commit", ["../../../x", "0123", COMMIT + "/..", None], ids=repr)
def test_a_commit_is_forty_digits(hub: HubServer, family, monkeypatch, commit):
    hub.publish("lab/model", "step8", family[8])
    hub.repositories["lab/model"].branches["step8"] = commit
    with pytest.raises(CheckpointError, match="expected a commit of 40 hexadecimal digits from the hub, got "):
        Hub().refs("lab/model")
    known = {"id": "lab/model", "sha": commit, "siblings": [], "tags": [], "private": False, "disabled": False}
    body = json.dumps(known).encode()
    monkeypatch.setattr(
        hub.repositories["lab/model"], "info", lambda *_: (200, body, {"Content-Type": "application/json"})
    )
    hub.repositories["lab/model"].branches["main"] = next(iter(hub.repositories["lab/model"].commits))
    with pytest.raises(CheckpointError, match="expected a commit of 40 hexadecimal digits from the hub, got "):
        Hub().commit("lab/model", "main")


@pytest.mark.parametrize("name", ["step8\x1b[2J", "step\n8", "\ud800step8"], ids=repr)
def test_a_branch_cannot_steer_the_terminal(hub: HubServer, family, name):
    hub.publish("lab/model", "step8", family[8])
    hub.repositories["lab/model"].branches[name] = COMMIT
    with pytest.raises(CheckpointError, match="name of a branch or tag"):
        Hub().refs("lab/model")


SHARD = "model-00001-of-00001.safetensors"


@pytest.mark.parametrize(
    "index",
    [
        {"weight_map": {"a": "../step0/model.safetensors"}},
        {"weight_map": {"a": SHARD, "b": "/etc/x"}},
        {"weight_map": {"a": 5}},
        {"weight_map": [SHARD]},
        [],
    ],
    ids=["beside", "absolute", "number", "list", "no mapping"],
)
def test_an_index_names_shards_beside_it(family, index):
    (family[8] / "model.safetensors").rename(family[8] / SHARD)
    (family[8] / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="model.safetensors.index.json names|does not load"):
        load_model(family[8], Loading())


def test_links_in_the_folder_for_downloads_are_not_followed(outside):
    victim = outside / "victim"
    victim.mkdir()
    (victim / "file").touch()
    root = outside / "downloads" / "repdyn-downloads"
    root.mkdir(parents=True)
    (root / "0123456789ab").symlink_to(victim)
    with downloads_in(outside / "downloads").opened():
        pass
    assert (victim / "file").exists()

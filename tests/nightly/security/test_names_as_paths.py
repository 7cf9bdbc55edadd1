"""Names that others chose never become paths outside of the store or the folder for downloads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_server import HubServer
from small import random_tokens
from stored_rows import row
from sweeping import downloads_in, settings

from repdyn import Probe, open_store
from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.loading import Loading
from repdyn.checkpoints.local import find_checkpoints
from repdyn.checkpoints.plan import Task
from repdyn.checkpoints.run import measure_tasks, store_failure
from repdyn.checkpoints.suites import PublishedCheckpoint, PublishedModel
from repdyn.checkpoints.targets import Target, select_targets
from repdyn.checkpoints.weights import load_model
from repdyn.cli.train import Run
from repdyn.store import MeasurementKey

NAMES = ["../../x", "..", ".", "/etc/x", "a/../../b", "a/b", "a\\b", "nul\0", "new\nline", "~", "x" * 400, "é" * 200]
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


@pytest.mark.slow
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


def test_long_names_that_begin_alike_have_folders_of_their_own():
    store = open_store("store")
    names = ["x" * 300, "x" * 301, "x" * 300 + "y", "x" * 255, "x" * 254, "é" * 100]
    folders = [store.folder_of(name).name for name in names]
    assert len(set(folders)) == len(names)
    assert all(len(folder.encode()) <= 255 for folder in folders)
    assert folders[3:5] == names[3:5]  # as before
    shortened = next(folder for folder in folders if "+" in folder)
    assert store.folder_of(shortened).name != shortened


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES, ids=NAME_IDS)
def test_a_probes_hash_stays_in_the_store(name):
    store = open_store("/store")
    assert store.probe_path(name).parent == Path("/store/probes")
    assert store.probe_path(name).name.endswith(".safetensors")


@pytest.mark.parametrize("act", [lambda store, name: store.folder_of(name), lambda store, name: store.probe_path(name)])
def test_a_name_that_no_file_can_have(act):
    with pytest.raises(
        ValueError, match=r"expected a name that UTF-8 can encode, got 'run\\udcff'; choose another one"
    ):
        act(open_store("store"), "run\udcff")


def test_a_step_below_zero_is_no_name():
    with pytest.raises(ValueError, match="expected a step >= 0, got -8"):
        _ = MeasurementKey("run", -8, "p", "m").filename


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/../b", "/etc/x", "a//b", ".", "nul\0", "line\n", "x" * 300, "é" * 200]
)
def test_a_run_of_train_py_stays_in_its_folder(name):
    with pytest.raises(ValueError, match="^expected --run.name "):
        Run(name=name)


def test_a_run_of_several_parts_has_all_its_files_in_one_folder(tmp_path):
    run = Run(name="lab/model", folder=str(tmp_path), loggers=["tensorboard"])
    folder = run.new_folder()
    assert folder.parent == tmp_path / "lab" / "model"
    csv, tensorboard = run.build_loggers(folder)
    assert Path(str(csv.log_dir)) == folder  # pyright: ignore[reportAttributeAccessIssue]
    assert Path(str(tensorboard.log_dir)) == folder / "tensorboard"  # pyright: ignore[reportAttributeAccessIssue]


PATHS = ["../../victim.safetensors", "/etc/x", "a/../../b", "..", "a//b", "./config.json", "nul\0", "a\nb", "a/", ""]


@pytest.fixture
def listing(hub: HubServer, family, monkeypatch) -> Callable[..., str]:
    """Publishes a checkpoint whose listing names one more file."""

    def publish(path: str, revision: str = "step8") -> str:
        commit = hub.publish("lab/model", revision, family[8])
        files = hub.repositories["lab/model"].commits[commit]
        described = dict(files)
        tree = hub.repositories["lab/model"].tree
        more = {"type": "file", "path": path, "size": 5, "oid": COMMIT}

        def lying(*arguments):
            code, body, headers = tree(*arguments)
            return code, json.dumps([*json.loads(body), more]).encode(), headers

        monkeypatch.setattr(hub.repositories["lab/model"], "tree", lying)
        assert set(described) == set(files)
        return commit

    return publish


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=repr)
def test_a_file_outside_of_its_repository_is_not_fetched(listing, outside, path):
    commit = listing(path)
    target = Target("lab/model", 8, "step8", repository="lab/model", commit=commit)
    with (
        downloads_in(outside / "downloads", with_code=True).opened() as downloads,
        pytest.raises(
            CheckpointError, match="expected a path inside the repository from the hub, got .*; nothing is downloaded"
        ),
    ):
        downloads.fetch(target, lambda n, of: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[1]", "the answer made no sense while lab/model@"),
        (b'[{"type": "file"}]', "the answer made no sense while lab/model@"),
        (b"<html>", "the answer made no sense while lab/model@"),
        (b"\xff", "the answer made no sense while lab/model@"),
        (
            b'[{"type": "file", "path": "a", "oid": "b", "size": "9"}]',
            "expected the size of a file from the hub, got '9'",
        ),
        (
            b'[{"type": "file", "path": "a", "oid": "b", "size": -9}]',
            "expected the size of a file from the hub, got -9",
        ),
    ],
    ids=["numbers", "no path", "a page", "bytes", "a text as size", "a negative size"],
)
def test_a_listing_of_other_things_than_files(hub: HubServer, family, monkeypatch, body, message):
    commit = hub.publish("lab/model", "step8", family[8])
    answer = (200, body, {"Content-Type": "application/json"})
    monkeypatch.setattr(hub.repositories["lab/model"], "tree", lambda *_: answer)
    with pytest.raises(CheckpointError, match=message):
        Hub().files("lab/model", commit)


@pytest.mark.slow
@pytest.mark.parametrize("commit", ["../../../x", "", "0123", COMMIT.upper(), COMMIT + "/..", None, 5], ids=repr)
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["step8\x1b[2J", "step\n8", "\ud800step8"], ids=repr)
def test_a_branch_cannot_steer_the_terminal(hub: HubServer, family, name):
    hub.publish("lab/model", "step8", family[8])
    hub.repositories["lab/model"].branches[name] = COMMIT
    with pytest.raises(CheckpointError, match="expected the name of a branch or tag from the hub, got "):
        Hub().refs("lab/model")


@pytest.mark.slow
@pytest.mark.parametrize("revision", ["../../step8", "/step8", "a/../../../step8"])
def test_a_revision_with_separators_is_measured_inside(hub: HubServer, family, outside, revision):
    hub.publish("lab/model", revision, family[8])
    model = PublishedModel("m", "", "lab/model", "lab/model", r".*step(?P<step>\d+)")
    (target,) = select_targets(model, Hub()).targets
    assert target.revision == revision
    probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
    task, store = Task(target, probe), open_store(outside / "store")
    store_failure(task, store, settings(), "no")
    report = measure_tasks([task], store, settings(), downloads_in(outside / "downloads"))
    assert report.measured == [task]
    assert set(store.to_pandas()["revision"]) == {revision}


@pytest.mark.slow
@pytest.mark.parametrize("repository", ["../x", "..", "a/../b", "/etc/x", "a/b/c", "", "nul\0", "x" * 400])
def test_a_repository_is_a_name(hub: HubServer, repository):
    for ask in (Hub().refs, lambda name: Hub().files(name, COMMIT)):
        with pytest.raises((ValueError, CheckpointError)):
            ask(repository)
    assert not any(".." in path for _, path in hub.requests)


def test_a_listed_checkpoint_in_a_subfolder_outside(hub: HubServer, family, outside):
    hub.publish("lab/model", "main", family[8])
    at = PublishedCheckpoint("lab/model", "main", "../../family/step8", 8, None, None)
    model = PublishedModel("m", "", "lab/model", checkpoints=(at,))
    (target,) = select_targets(model, Hub()).targets
    with (
        downloads_in(outside / "downloads").opened() as downloads,
        pytest.raises(CheckpointError, match=r"it has no ../../family/step8/config.json"),
    ):
        downloads.fetch(target, lambda n, of: None)


SHARD = "model-00001-of-00001.safetensors"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("index", "message"),
    [
        (
            {"weight_map": {"a": "../step0/model.safetensors"}},
            "names '../step0/model.safetensors', which is no weight",
        ),
        ({"weight_map": {"a": SHARD, "b": "/etc/x"}}, "names '/etc/x', which is no weight file of this folder"),
        ({"weight_map": {"a": "config.json"}}, "names 'config.json', which is no weight file"),
        ({"weight_map": {"a": 5}}, "names '5', which is no weight file"),
        ({"weight_map": [SHARD]}, "is no index of weights: it has no weight_map"),
        ([], "is no index of weights: it has no weight_map"),
    ],
    ids=["beside", "absolute", "another file", "number", "list", "no mapping"],
)
def test_an_index_names_shards_beside_it(family, index, message):
    (family[8] / "model.safetensors").rename(family[8] / SHARD)
    (family[8] / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=f"model.safetensors.index.json {message}"):
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


def test_a_local_folder_with_a_link_to_nowhere(family, tmp_path):
    (family[8] / "more.safetensors").symlink_to(tmp_path / "nowhere")
    assert [target.step for target in find_checkpoints(tmp_path / "family", "run")] == [0, 8, 16]
    with pytest.raises(CheckpointError, match="the checkpoint does not load: FileNotFoundError"):
        load_model(family[8], Loading())


def test_a_local_folder_whose_name_is_not_in_utf_8(family, tmp_path):
    shutil.move(family[8], os.fsencode(tmp_path / "family") + b"/\xff-step8")
    with pytest.raises(ValueError, match=r"expected names of folders in UTF-8, got .*\\udcff-step8'; rename it"):
        find_checkpoints(tmp_path / "family", "run")

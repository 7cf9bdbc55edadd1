"""Stores pushed and pulled: complete, without secrets and local paths, and resumed where they stopped."""

from __future__ import annotations

import dataclasses
import json

import pandas as pd
import pytest
import torch
import yaml
from stored_rows import KEY, row

from repdyn import Probe, open_store
from repdyn.cli.main import main
from repdyn.publish.card import write_card
from repdyn.publish.sharing import pull, push
from repdyn.store.published import without_paths
from repdyn.store.remote_errors import RemoteError
from repdyn.store.schema import FINISHED

URL = "faulty://host/published"
SECRET = "hf_" + "a" * 30


@pytest.fixture
def store(tmp_path):
    """A store with everything that must not be published."""
    store = open_store(tmp_path / "home" / "me" / "sweep")
    for step in (0, 8, 16):
        key = dataclasses.replace(KEY, step=step, probe="p")
        path = f"/home/me/runs/step{step}"
        rows = [
            row(step=step, layer=layer, value=1.0 + layer + step, checkpoint=path, probe="p") for layer in (0, 1, 2)
        ]
        reason = f"cannot read /home/me/runs/step{step}/model.safetensors with token={SECRET}"
        store.write(
            key, [*rows, row(step=step, layer=3, value=float("nan"), reason=reason, checkpoint=path, probe="p")]
        )
    probe = Probe.from_tokens(
        torch.arange(64).reshape(4, 16), max_vectors=16, batch_vectors=16, name="/home/me/texts/mine.txt"
    )
    store.save_probe(probe)
    for name in (
        "run/alerts.yaml",
        "run/kept_states/a/layer.safetensors",
        "report.html",
        "training.log",
        ".claims/a.lock",
    ):
        (store.path / name).parent.mkdir(parents=True, exist_ok=True)
        (store.path / name).write_text("/home/me")
    return store


def test_what_is_published(faulty, store):
    pushed = push(store, URL, author="A. Name")
    names = {path.removeprefix("/host/published/") for path in faulty.store}
    (certificate,) = (name for name in names if name.startswith("certificates/"))
    (probe,) = (name for name in names if name.startswith("probes/"))
    assert len([name for name in names if name.startswith("run/step")]) == 3
    assert len(names) == 5 == len(pushed.files)
    for content in faulty.store.values():
        assert b"/home/me" not in content.getvalue()
        assert SECRET.encode() not in content.getvalue()
    frame = open_store(URL).to_pandas()
    assert sorted(frame["checkpoint"].unique()) == ["step0", "step16", "step8"]
    before = store.to_pandas()
    unchanged = [name for name in frame.columns if name not in {"checkpoint", "reason"}]
    assert frame[unchanged].equals(before[unchanged])
    assert "model.safetensors" in frame["reason"].dropna().iloc[0]
    assert pushed.paths == ["/home/me/runs/step0", "/home/me/runs/step16", "/home/me/runs/step8"]
    stated = json.loads(faulty.store[f"/host/published/{certificate}"].getvalue())
    assert stated["author"] == "A. Name"
    assert stated["n_rows"] == len(frame)
    assert stated["versions"] == [
        {name: before[name].iloc[0] for name in ("repdyn_version", "torch_version", "transformers_version")}
    ]
    assert set(stated["sha256"]) == {name for name in names if name.startswith("run/")}
    assert Probe.load(open_store(URL).path / probe).name == "mine.txt"


def test_a_second_push_sends_nothing(faulty, store):
    push(store, URL)
    again = push(store, URL)
    assert (again.files, again.n_current) == ([], 5)
    store.write(dataclasses.replace(KEY, step=24, probe="p"), [row(step=24, probe="p")])
    assert len(push(store, URL).files) == 2  # the rows and a certificate for them


def test_a_dry_run_sends_nothing(faulty, store):
    assert len(push(store, URL, dry_run=True).files) == 5
    assert faulty.store == {}
    assert len(push(store, URL).files) == 5


def test_a_push_that_fails_goes_on_where_it_was(faulty, store):
    faulty.faults["put_file"] = ConnectionResetError("cut")
    with pytest.raises(RemoteError, match="cut"):
        push(store, URL)
    faulty.faults.clear()
    push(store, URL)
    assert len(faulty.store) == 5


def test_the_copy_of_a_store_is_pushed_to_it(faulty):
    remote = open_store(URL)
    faulty.faults["put_file"] = ConnectionResetError("cut")
    remote.write(KEY, [row()])
    assert remote.drain(0.2) is not None
    faulty.faults.clear()
    push(open_store(remote.path), URL)
    assert [path for path in faulty.store] == [f"/host/published/{KEY.filename}"]
    assert remote.drain(5) is None


def test_compact_files_are_published_as_such(faulty, store):
    store.compact("run")
    push(store, URL)
    assert len([path for path in faulty.store if "/run/" in path]) == 1
    for content in faulty.store.values():
        assert b"/home/me" not in content.getvalue()
    published = open_store(URL)
    assert published.steps("run") == [0, 8, 16]
    assert published.to_pandas()["value"].equals(store.to_pandas()["value"])


def raw_values(folder):
    """Return the values as a program reads them that takes every file of a run."""
    frame = pd.concat([pd.read_parquet(path) for path in sorted(folder.glob("*/step*.parquet"))])
    return frame.loc[frame["layer"] == 0].sort_values("step")["value"].tolist()


@pytest.mark.parametrize("is_remote", [False, True])
def test_joined_files_replace_those_that_were_sent_singly(faulty, store, tmp_path, elsewhere, is_remote):
    """A single file counts before its part in a compact one, so that an old one would bring old values back."""
    if is_remote:
        push(store, "faulty://host/source")
        store = open_store("faulty://host/source")
    push(store, URL)
    copy = tmp_path / "copy"
    pull(URL, copy)
    store.write(dataclasses.replace(KEY, probe="p"), [row(probe="p", layer=0, value=50.0)])
    store.compact("run")
    store.drain(20)
    planned = push(store, URL, dry_run=True)
    pushed = push(store, URL)
    assert planned.deleted == pushed.deleted == [f"run/step{step:09d}-p-metrics.parquet" for step in (0, 8, 16)]
    published = elsewhere(URL)
    assert published.to_pandas()["value"].dropna().tolist() == store.to_pandas()["value"].dropna().tolist()
    assert raw_values(published.path) == [1.0, 50.0, 17.0]
    assert pull(URL, copy).deleted == pushed.deleted
    assert raw_values(copy) == [1.0, 50.0, 17.0]
    assert push(store, URL).deleted == pull(URL, copy).deleted == []


def test_files_that_are_joined_again_or_divided_replace_the_former_ones(faulty, store, tmp_path):
    copy = tmp_path / "copy"
    for change in (
        lambda: store.compact("run"),
        lambda: store.write(dataclasses.replace(KEY, step=24, probe="p"), [row(step=24, probe="p", layer=0)]),
        lambda: store.compact("run"),
        lambda: store.split("run"),
    ):
        change()
        push(store, URL)
        pull(URL, copy)
        assert raw_values(open_store(URL).path) == raw_values(copy) == raw_values(store.path)
    assert len(list(copy.glob("run/*.parquet"))) == 4


def test_what_only_the_copy_has_is_kept(faulty, store, tmp_path):
    """Also where it lies in a file with older values of what the source has."""
    push(store, URL)
    copy = tmp_path / "copy"
    pull(URL, copy)
    own = dataclasses.replace(KEY, step=32, probe="p")
    open_store(copy).write(own, [row(step=32, probe="p", layer=0, value=33.0)])
    for _ in range(2):  # the later generation would count
        open_store(copy).compact("run")
        open_store(copy).write(own, [row(step=32, probe="p", layer=0, value=33.0)])
    open_store(copy).compact("run")
    store.write(dataclasses.replace(KEY, probe="p"), [row(probe="p", layer=0, value=50.0)])
    store.compact("run")
    push(store, URL)
    assert len(pull(URL, copy).deleted) == 1
    assert raw_values(copy) == [1.0, 50.0, 17.0, 33.0]
    assert pull(URL, copy).deleted == []


def test_a_push_that_is_killed_before_it_deletes_is_completed_by_the_next(faulty, store, monkeypatch, elsewhere):
    push(store, URL)
    store.compact("run")
    with monkeypatch.context() as patch:
        patch.setattr("repdyn.publish.sharing._superseded", lambda copy, source: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            push(store, URL)
    push(store, URL)
    assert len([path for path in faulty.store if "/run/" in path]) == 1
    assert elsewhere(URL).steps("run") == [0, 8, 16]


def named(store, run, step=8):
    key = dataclasses.replace(KEY, run=run, step=step)
    store.write(key, [row(run=run, step=step, checkpoint=f"EleutherAI/pythia-70m@{'0' * 40}")])


@pytest.mark.parametrize("is_compact", [False, True])
def test_a_run_that_is_named_by_a_path(faulty, tmp_path, is_compact):
    store = open_store(tmp_path / "store")
    named(store, "/home/me/secret/mine")
    named(store, "/home/me/secret/mine", 16)
    if is_compact:
        store.compact("/home/me/secret/mine")
    push(store, URL)
    assert {path.split("/")[3] for path in faulty.store} == {"certificates", "mine"}
    assert open_store(URL).steps("mine") == [8, 16]
    for path, content in faulty.store.items():
        assert "secret" not in path
        assert b"secret" not in content.getvalue()


@pytest.mark.parametrize("steps", [(8, 8), (8, 16)])
@pytest.mark.parametrize("is_compact", [False, True])
def test_two_runs_that_would_be_one(faulty, tmp_path, steps, is_compact):
    """Also where their files have different names, so that they would be merged."""
    store = open_store(tmp_path / "store")
    for run, step in zip(("/home/me/mine", "/home/you/mine"), steps, strict=True):
        named(store, run, step)
        named(store, run, 100)
        if is_compact:
            store.compact(run)
    message = "expected runs that differ in more than their folders, got two called mine: /home/me/mine and /home/you"
    with pytest.raises(ValueError, match=message):
        push(store, URL)
    assert faulty.store == {}


PATHS = {
    r"C:\Users\me\run\step0": "step0",
    r"D:\\my disk\\run": "run",  # as a message quotes it
    "/secret.txt": "secret.txt",
    "/a b/c d/e": "e",
    "../../home/me/y": "y",
    "~/x": "x",
    "~me/x": "x",
    "//server/me/x": "x",
    r"\\server\me\x": "x",
    "file:///home/me/x": "x",
    "/home/o'me/(old) x/y": "y",
    "./home/me/x/": "x",
}


@pytest.mark.parametrize("path", PATHS)
def test_no_path_of_this_machine_is_sent(faulty, tmp_path, path):
    """Neither as a checkpoint nor in a message, a setting or the name of a run."""
    store = open_store(tmp_path / "store")
    key = dataclasses.replace(KEY, run=path)
    reason = f"cannot read {path}: tried {path}, '{path}'"
    settings = json.dumps({"file": path})
    rows = [row(run=path, checkpoint=path, reason=reason, value=float("nan"), settings=settings, same_as=path)]
    store.write(key, rows)
    pushed = push(store, URL)
    (published,) = open_store(URL).read(dataclasses.replace(key, run=PATHS[path]))
    assert (published.checkpoint, published.same_as) == (PATHS[path], PATHS[path])
    assert published.reason == f"cannot read {PATHS[path]}: tried {PATHS[path]}, '{PATHS[path]}'"
    assert json.loads(published.settings) == {"file": PATHS[path]}
    assert pushed.paths == [path]


@pytest.mark.parametrize(
    "text",
    [
        "https://hub.example/a(b)/c/d and tokens/s, 1/2, a / b, and/or, EleutherAI/pythia-70m",
        "lab/m@0123456/sub/folder",
        "h[0]/mlp and blocks(1)/x",
        r"^model\.layers\.\d+$",
        "a...b, ..., /",
    ],
)
def test_what_is_no_path_stays(text):
    assert without_paths(text) == text


def test_steps_that_were_set_aside_stay_here(faulty, store):
    aside = store.folder_of("run") / "abandoned" / "001" / "step000000024-p-metrics.parquet"
    aside.parent.mkdir(parents=True)
    aside.write_bytes((store.path / dataclasses.replace(KEY, probe="p").filename).read_bytes())
    assert not [name for name in push(store, URL).files if "abandoned" in name]


def test_where_weights_are_is_linked(tmp_path):
    store = open_store(tmp_path / "store")
    named(store, "pythia")
    store.write(dataclasses.replace(KEY, run="mine"), [row(run="mine")])
    text = write_card(store, tmp_path / "card", URL)[0].read_text()
    assert "[EleutherAI/pythia-70m](https://huggingface.co/EleutherAI/pythia-70m)" in text
    assert "| mine | GPT | live | 1 | 8 | 2 |" in text


def test_the_card_of_finished_models(tmp_path):
    store = open_store(tmp_path / "store")
    rows = [row(step=0, layer=layer, depth=layer / 2, stage=FINISHED, value=1.0 + layer) for layer in range(3)]
    store.write(dataclasses.replace(KEY, step=0), rows)
    assert [path.name for path in write_card(store, tmp_path / "card", URL)] == ["README.md", "preview.png"]
    assert (tmp_path / "card" / "preview.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_is_a_link_is_not_pulled_into(faulty, store, tmp_path):
    push(store, URL)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="expected a folder for the run 'run' in .*, got a symbolic link"):
        pull(URL, tmp_path / "copy")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_in_place_of_the_folder(faulty, store, tmp_path):
    push(store, URL)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"expected a folder for the copy, got the file .*/file; name another one"):
        pull(URL, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_pull(faulty, store, tmp_path):
    push(store, URL)
    pulled = pull(URL, tmp_path / "copy")
    assert (len(pulled.files), pulled.deleted) == (5, [])
    assert open_store(tmp_path / "copy").to_pandas().equals(open_store(URL).to_pandas())
    assert pull(URL, tmp_path / "copy").files == []
    with pytest.raises(ValueError, match="found none at faulty://host/nothing"):
        pull("faulty://host/nothing", tmp_path / "other")


def test_commands(faulty, store, tmp_path, capsys):
    main(["push", str(store.path), URL, "--dry-run"])
    out = capsys.readouterr().out
    assert "  run/step000000000-p-metrics.parquet\n" in out
    assert "shortened: /home/me/runs/step0\n" in out
    assert f"{URL}: would send 5 files" in out
    main(["push", str(store.path), URL])
    assert f"{URL}: sent 5 files" in capsys.readouterr().out
    main(["pull", URL, str(tmp_path / "copy")])
    assert capsys.readouterr().out == f"{tmp_path / 'copy'}: 5 new or changed files\n"
    main(["push", str(store.path), URL, "--json"])
    (pushed,) = json.loads(capsys.readouterr().out)
    assert (pushed["url"], pushed["sent"], pushed["files"], pushed["current"]) == (URL, True, [], 5)
    assert "/home/me/runs/step0" in pushed["shortened"]
    main(["pull", URL, str(tmp_path / "second"), "--csv"])
    assert capsys.readouterr().out.startswith("folder,files,deleted\n")
    with pytest.raises(SystemExit) as stop:
        main(["push", str(store.path), "folder"])
    assert stop.value.code == 2
    assert "expected a URL such as hf://datasets/ORG/NAME" in capsys.readouterr().err


def test_a_dataset_with_its_card(datasets, store, tmp_path, monkeypatch):
    datasets.create("me/sweep")
    push(store, "hf://datasets/me/sweep", licence="cc-by-4.0", author="A. {Name}")
    files = datasets.files("me/sweep")
    assert {name.rpartition("/")[0] for name in files} == {"", "certificates", "probes", "run"}
    assert len(datasets.commits) == 2  # the rows in one, the card in another
    _, fields, text = files["README.md"].decode().split("---\n", 2)
    stated = yaml.safe_load(fields)
    assert stated["license"] == "cc-by-4.0"
    assert stated["configs"] == [{"config_name": "all", "data_files": "*/*.parquet", "default": True}]
    assert "| run | GPT | step0, step16 and 1 more | 3 | 0 to 16 | 3 |" in text
    assert "  author = {A. Name}," in text
    assert "  url = {https://huggingface.co/datasets/me/sweep}," in text
    assert "Licence of the measurements: cc-by-4.0." in text
    assert "`two_nn` (all)" in text
    assert 'repdyn.open_store("hf://datasets/me/sweep")' in text
    assert "/home/me" not in text
    assert files["preview.png"].startswith(b"\x89PNG")
    assert "![Geometry of the layers of one run](preview.png)" in text
    monkeypatch.setenv("REPDYN_CACHE", str(tmp_path / "elsewhere"))
    frame = open_store("hf://datasets/me/sweep").to_pandas()
    assert frame["value"].dropna().tolist() == store.to_pandas()["value"].dropna().tolist()


def test_a_missing_dataset_is_an_error(datasets, store):
    with pytest.raises(RemoteError, match=r"expected an existing bucket or repository at hf://datasets/me/none"):
        push(store, "hf://datasets/me/none")


def test_refused_by_the_hub(datasets, store):
    datasets.create("me/sweep")
    datasets.fault("/commit/", "status", code=403)
    with pytest.raises(RemoteError, match=r"was refused: .*403.*"):
        push(store, "hf://datasets/me/sweep")

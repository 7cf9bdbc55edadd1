"""A sweep from its options to its rows: local folders, a hub on this machine, functions; resumed,
failing, killed.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import gguf
import huggingface_hub
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from gguf_files import write_gguf
from hub_fixtures import SIZES, save_again, save_family
from jobs import batches, tiny_language_model, tracker, trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import load_file, save_file
from small import random_tokens
from stored_rows import row
from sweeping import downloads_in, lines, measure_tasks, reasons, settings, weights_fetched
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

import repdyn
from repdyn import Probe, open_store
from repdyn.callbacks import SavePretrainedCheckpoint
from repdyn.checkpoints.downloads import Downloads
from repdyn.checkpoints.errors import CheckpointError, NoConnectionError, SweepStoppedError
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.local import find_checkpoints
from repdyn.checkpoints.measuring import check_comparable
from repdyn.checkpoints.options import Loading, SweepOptions
from repdyn.checkpoints.published import select_targets
from repdyn.checkpoints.suites import PublishedModel
from repdyn.checkpoints.sweep import prepare
from repdyn.checkpoints.targets import Target
from repdyn.checkpoints.tasks import Task, partition_tasks
from repdyn.checkpoints.weights import load_lightning, load_model
from repdyn.metrics import resolve
from repdyn.models import build_model
from repdyn.store import MeasurementKey, Store
from repdyn.store.schema import Checkpoint
from repdyn.views.judging.stores import described_runs

SETTINGS = settings(["anisotropy"])
QUIET = {"quiet": True, "loss": False, "device": "cpu", "metrics": ["anisotropy"]}


@pytest.fixture
def probe() -> Probe:
    return Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)


@pytest.fixture
def tasks(hub, commits, probe) -> list[Task]:
    """Three checkpoints of one repository."""
    model = PublishedModel(
        name="model",
        suite="",
        run="lab/model",
        repository="lab/model",
        revisions=r"step(?P<step>\d+)",
        tokens_per_step=10,
    )
    return [Task(target, probe) for target in select_targets(model, Hub()).targets]


def values(frame: pd.DataFrame) -> pd.DataFrame:
    columns = ["step", "layer", "metric", "subset", "value"]
    return (
        frame.loc[frame["layer"].notna(), columns].sort_values(columns[:-1]).reset_index(drop=True)
    )


def test_published_checkpoints_have_the_values_of_the_same_local_files_and_are_not_repeated(
    hub, family, tasks, probe, tmp_path
):
    store = open_store(tmp_path / "store")
    result = measure_tasks(tasks[:2], store, SETTINGS, downloads_in(tmp_path / "d"))
    assert [task.target.step for task in result.measured] == [0, 8]
    stamps = {path: path.stat().st_mtime_ns for path in store.path.rglob("*.parquet")}
    listed = partition_tasks(tasks, store, SETTINGS)
    assert listed.done == tasks[:2]
    assert listed.waiting == tasks[2:]
    measure_tasks(listed.waiting, store, SETTINGS, downloads_in(tmp_path / "d"))
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert set(weights_fetched(hub).values()) == {1}
    assert [path.name for path in (tmp_path / "d").rglob("*")] == ["repdyn-downloads"], (
        "weights stay on the disk"
    )
    frame = store.to_pandas("lab/model")
    assert set(frame["checkpoint"].dropna()) == {
        f"lab/model@{task.target.commit}" for task in tasks
    }
    swept = repdyn.sweep(
        family[0].parent, probe=probe, store=tmp_path / "at_hand", dtype="auto", **QUIET
    )
    assert len(swept.measured) == 3
    pd.testing.assert_frame_equal(values(swept.to_pandas()), values(frame), check_exact=True)
    # another precision, or other metrics, are another question
    assert partition_tasks(tasks, store, settings(["two_nn"])).waiting == tasks
    assert partition_tasks(tasks, store, settings(["anisotropy"], dtype="float32")).waiting == tasks


def test_checkpoints_of_a_run_have_its_live_values(tmp_path, probe, without_figures):
    live = tracker(probe, 4)
    saved = SavePretrainedCheckpoint(4, tmp_path / "run" / "hf_checkpoints")
    trainer(tmp_path, live, saved).fit(tiny_language_model(), batches())
    assert live.store is not None
    shutil.copytree(live.store.path, tmp_path / "run" / "repdyn")
    swept = repdyn.sweep(tmp_path / "run", **QUIET | {"metrics": ["anisotropy", "two_nn"]})
    assert swept.failures == ()
    assert swept.store.path == tmp_path / "run" / "sweep"
    pd.testing.assert_frame_equal(
        values(swept.to_pandas()), values(live.store.to_pandas()), check_exact=True
    )


def test_models_that_functions_load_are_measured(tmp_path, probe):
    """One's own class, which no configuration describes."""
    models = {step: build_model("gpt_neox", **SIZES) for step in (10, 20)}
    loads = [(step, lambda model=model: model) for step, model in models.items()]
    swept = repdyn.sweep(loads, name="mine", probe=probe, store=tmp_path, **QUIET)
    assert swept.measured == ("mine step10", "mine step20")
    direct = repdyn.measure(
        models[20], probe, ["anisotropy"], checkpoint=Checkpoint(step=20)
    ).to_pandas()
    frame = swept.to_pandas()
    pd.testing.assert_frame_equal(
        values(frame.query("step == 20")), values(direct), check_exact=True
    )
    assert repdyn.sweep(loads, name="mine", probe=probe, store=tmp_path, **QUIET).measured == ()
    with pytest.raises(ValueError, match="probe="):
        repdyn.sweep(loads, store=tmp_path, **QUIET)
    for wrong in (dict(loads), [(10, models[10])], [loads[0], loads[0]]):
        with pytest.raises(
            ValueError, match="pairs of a step and a function|one checkpoint for each step"
        ):
            repdyn.sweep(wrong, probe=probe, store=tmp_path, **QUIET)


@pytest.fixture
def lightning(tmp_path):
    """A folder with Lightning's checkpoints of the steps 2 and 4; the latter holds averaged weights
    too.
    """
    keep = ModelCheckpoint(
        tmp_path / "checkpoints", save_top_k=-1, every_n_train_steps=2, save_last=True
    )
    trainer(tmp_path, keep, max_steps=4).fit(tiny_language_model(), batches())
    path = tmp_path / "checkpoints" / "epoch=0-step=4.ckpt"
    content = torch.load(path, weights_only=True)
    content["current_model_state"] = content["state_dict"]
    content["state_dict"] = {name: 0.5 * value for name, value in content["state_dict"].items()}
    torch.save(content, path)
    return path.parent


def test_a_lightning_file_with_raw_and_averaged_weights_is_measured_twice(
    lightning, tmp_path, probe
):
    """As WeightAveraging saves it: the averaged weights under ``state_dict``, the raw ones beside
    them.
    """
    targets = find_checkpoints(lightning, "run").targets
    assert [(target.revision, target.step, target.weights_kind) for target in targets] == [
        ("epoch=0-step=2.ckpt", 2, None),
        ("epoch=0-step=4.ckpt", 4, "raw"),
    ]
    both = [load_lightning(targets[1].path, raw=is_raw).state_dict() for is_raw in (True, False)]
    assert all(bool((both[1][name] == 0.5 * value).all()) for name, value in both[0].items())
    swept = repdyn.sweep(lightning, name="run", probe=probe, store=tmp_path / "store", **QUIET)
    assert swept.measured == (
        "run epoch=0-step=2.ckpt",
        "run epoch=0-step=4.ckpt",
        "run (averaged) epoch=0-step=4.ckpt",
    )
    assert set(swept.to_pandas().query("step == 4 and layer.notna()")["weights_kind"]) == {
        "raw",
        "averaged",
    }


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"_orig_mod.{name}",
        lambda name: f"module.{name}",
        lambda name: f"module._orig_mod.{name}",
        lambda name: f"_orig_mod.module.network.{name}",
        lambda name: name.replace("model.", "model._orig_mod.", 1),
        lambda name: name.replace("model.", "model.module.", 1),
        lambda name: name.replace(".layers.0.", ".layers.0._orig_mod."),
    ],
)
def test_a_lightning_file_of_a_wrapped_module_is_that_of_the_module(lightning, rename):
    """Prefixes were left out for folders alone, so that a compiled module could not be swept."""
    path = lightning / "epoch=0-step=2.ckpt"
    plain = load_lightning(path).state_dict()
    content = torch.load(path, weights_only=True)
    content["state_dict"] = {rename(name): value for name, value in content["state_dict"].items()}
    torch.save(content, path)
    assert_close(dict(load_lightning(path).state_dict()), dict(plain), rtol=0, atol=0)


def test_a_lightning_file_is_measured_with_the_attention_of_the_live_run(
    lightning, tmp_path, probe
):
    live = tiny_language_model()
    live.model.set_attn_implementation("eager")
    profile = repdyn.measure(live, probe, ["anisotropy"], checkpoint=Checkpoint(run="live"))
    open_store(tmp_path / "live").write(
        MeasurementKey(run="live", step=0, probe=probe.hash, metrics="metrics"), profile.rows
    )
    swept = repdyn.sweep(
        lightning, like=tmp_path / "live", probe=probe, store=tmp_path / "store", **QUIET
    )
    frame = swept.to_pandas()
    assert set(frame.loc[frame["layer"].notna(), "attention"]) == {"eager"}


def test_the_reason_names_the_prefixes_of_a_lightning_file_that_does_not_load(
    lightning, tmp_path, probe
):
    """The stored reason was cut off before it named one."""
    for path in lightning.glob("epoch*.ckpt"):
        content = torch.load(path, weights_only=True)
        content["state_dict"] = {
            f"_orig_mod.net.{name}" if ".layers.0." in name else f"other.{name}": value
            for name, value in content["state_dict"].items()
        }
        content.pop("current_model_state", None)
        torch.save(content, path)
    swept = repdyn.sweep(lightning, name="run", probe=probe, store=tmp_path / "store", **QUIET)
    assert len(swept.failures) == 2
    for reason in swept.to_pandas()["reason"]:
        assert "_orig_mod.net.model.*" in reason
        assert "other.model.*" in reason


@pytest.fixture
def own_files(lightning, tmp_path):
    """Lightning files of a class of one's own, and the module mine whose function loads them."""
    for path in lightning.glob("*.ckpt"):
        content = torch.load(path, weights_only=True)
        weights = content.get("current_model_state", content["state_dict"])
        own = {name.replace("model.", "net."): value for name, value in weights.items()}
        saved = {"state_dict": own | {"extra": torch.zeros(2)}, "hyper_parameters": {}}
        torch.save({"global_step": content["global_step"], **saved}, path)
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom jobs import tiny_language_model\n\n\ndef load(path):\n"
        "    stored = torch.load(path, weights_only=True)['state_dict']\n"
        "    stored.pop('extra')\n"
        "    model = tiny_language_model().model\n"
        "    model.load_state_dict({key[4:]: value for key, value in stored.items()})\n"
        "    return model\n"
    )
    return lightning


def test_a_class_of_ones_own_is_swept_from_the_command_line(
    own_files, probe, command, shown, monkeypatch
):
    """The error named a way in Python alone, printed once for each checkpoint and again at the
    end, and insights said that there is nothing.
    """
    monkeypatch.setattr("sweeping.QUICK", ())  # it makes another probe
    probe.save("probe.safetensors")
    arguments = (own_files, "--probe", "probe.safetensors", "--metrics", "anisotropy", "--no-loss")
    status, out, err = command(*arguments, "--store", "store")
    assert status == 1
    assert (out + err).count("--load module:function") == 1
    with pytest.raises(ValueError, match='step 2, 4: .*load="module:function"'):
        described_runs("store")
    status, _, err = command(*arguments, "--store", "own", "--load", "mine:load")
    assert status == 0
    assert err.count("not measured") == 0
    frame = open_store("own").to_pandas()
    assert sorted(set(frame.loc[frame["layer"].notna(), "step"])) == [2, 4]
    assert set(frame["checkpoint"]) == {str(path) for path in own_files.glob("epoch*.ckpt")}
    for wrong, word in (("mine", "module:function"), ("mine:lod", "lod"), ("yours:load", "yours")):
        status, _, err = command(*arguments, "--store", "own", "--load", wrong)
        assert status == 2
        assert word in err


def test_files_of_weights_are_loaded_by_a_function_of_ones_own(tmp_path, probe, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("saved").mkdir()
    models = {step: build_model("gpt_neox", **SIZES) for step in (10, 20)}
    for step, model in models.items():
        torch.save(model.state_dict(), f"saved/step{step}.pt")
    Path("loads_weights.py").write_text(
        "import torch\nfrom hub_fixtures import SIZES\n"
        "from repdyn.models import build_model\n\n\ndef load(path):\n"
        "    model = build_model('gpt_neox', **SIZES)\n"
        "    model.load_state_dict(torch.load(path, weights_only=True))\n"
        "    return model\n"
    )
    swept = repdyn.sweep("saved", load="loads_weights:load", name="own", probe=probe, **QUIET)
    assert swept.measured == ("own step10.pt", "own step20.pt")
    direct = repdyn.measure(models[20], probe, ["anisotropy"], checkpoint=Checkpoint(step=20))
    frame = swept.to_pandas()
    pd.testing.assert_frame_equal(
        values(frame.query("step == 20")), values(direct.to_pandas()), check_exact=True
    )


@pytest.mark.parametrize(
    ("returned", "what"),
    [(None, "got NoneType; return the model"), ({"weight": 1}, "load them into a model")],
)
def test_a_function_that_returns_no_model_is_told_so(tmp_path, probe, returned, what):
    """It was "'NoneType' object has no attribute 'to'"."""
    swept = repdyn.sweep([(1, lambda: returned)], probe=probe, store=tmp_path, **QUIET)
    assert what in swept.failures[0]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        (b"", "it is empty; save, copy or download it again"),
        (None, "save, copy or download it again"),
    ],
)
def test_files_of_weights_that_are_not_whole_are_called_so(family, tmp_path, probe, content, what):
    """ "header too large" says neither what is there nor what to do."""
    path = family[8] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    swept = repdyn.sweep(family[8].parent, probe=probe, store=tmp_path / "store", **QUIET)
    assert len(swept.measured) == 2
    (failure,) = swept.failures
    assert what in failure


def test_a_folder_without_checkpoints_says_what_is_there(tmp_path, family, probe):
    """It "got none", where there were files of weights, or the checkpoints of two trainings."""
    trainings = tmp_path / "trainings"
    shutil.copytree(family[0].parent, trainings / "seed1")
    with pytest.raises(ValueError, match=r"got folders of them: seed1; sweep one, such as .*seed1"):
        repdyn.sweep(trainings, probe=probe, **QUIET)
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "step1.pt").touch()
    with pytest.raises(ValueError, match=r"without a configuration: step1\.pt; .*load="):
        repdyn.sweep(weights, probe=probe, **QUIET)


def test_a_damaged_lightning_file_is_recorded_and_runs_no_code(lightning, tmp_path, probe):
    class Runs:
        def __reduce__(self):
            return type(tmp_path).touch, (tmp_path / "a-pickle-ran",)

    content = torch.load(lightning / "last.ckpt", weights_only=True)
    torch.save(content | {"extra": Runs()}, lightning / "epoch=0-step=2.ckpt")
    swept = repdyn.sweep(lightning, name="run", probe=probe, store=tmp_path / "store", **QUIET)
    assert "epoch=0-step=2.ckpt" in swept.failures[0]
    assert not (tmp_path / "a-pickle-ran").exists()


def test_the_attention_of_the_live_run_is_used(family, tmp_path, probe):
    """With another implementation the last digits would differ, without a word."""
    folder = family[0].parent
    eager = build_model("gpt_neox", **SIZES)
    eager.set_attn_implementation("eager")
    live = repdyn.measure(eager, probe, ["anisotropy"], checkpoint=Checkpoint(run="live"))
    open_store(folder / "repdyn").write(
        MeasurementKey(run="live", step=0, probe=probe.hash, metrics="metrics"), live.rows
    )
    swept = repdyn.sweep(folder, probe=probe, store=tmp_path / "store", **QUIET)
    frame = swept.to_pandas()
    assert set(frame.loc[frame["layer"].notna(), "attention"]) == {"eager"}


def test_checkpoints_are_measured_like_a_live_run(family, tmp_path, probe):
    """With other settings or another text the curve beside the live one would be a different curve,
    without a word.
    """
    eager = build_model("gpt_neox", **SIZES)
    eager.set_attn_implementation("eager")
    metrics = ["two_nn[discard=0.2]@no_sink", "anisotropy"]
    profile = repdyn.measure(eager, probe, metrics, checkpoint=Checkpoint(run="live", step=8))
    store = open_store(tmp_path / "live")
    run = store.begin_run("live")  # whose folder has another name
    store.write(
        MeasurementKey(run=run.id, step=8, probe=probe.hash, metrics="metrics"), profile.rows, probe
    )
    options = {name: value for name, value in QUIET.items() if name != "metrics"}
    swept = repdyn.sweep(
        family[0].parent, like=tmp_path / "live", store=tmp_path / "store", **options
    )
    columns = ["attention", "dtype", "probe", "metric", "settings", "subset"]
    live, of_sweep = (
        frame.loc[frame["layer"].notna(), columns]
        .drop_duplicates()
        .sort_values(columns)
        .reset_index(drop=True)
        for frame in (store.to_pandas(), swept.to_pandas())
    )
    pd.testing.assert_frame_equal(of_sweep, live)
    assert set(of_sweep["attention"]) == {"eager"}
    with pytest.raises(ValueError, match="nowhere"):
        repdyn.sweep(family[0].parent, like=tmp_path / "nowhere", **options)


def test_the_probe_of_the_run_is_offered_where_a_text_needs_a_tokenizer(
    save_model, tmp_path, probe
):
    """The run held a probe beside its checkpoints, and the error asked for one."""
    save_model("run/checkpoint-1", "gpt_neox", tokenizer=False, **SIZES)
    options = {"text": "builtin", "store": tmp_path / "store", **QUIET}
    with pytest.raises(ValueError, match="expected a probe or a tokenizer") as without:
        repdyn.sweep(tmp_path / "run", **options)
    probes = tmp_path / "run" / "repdyn" / "probes"
    probes.mkdir(parents=True)
    probe.save(probes / "one.safetensors")
    with pytest.raises(ValueError, match="omit text= and the like") as beside:
        repdyn.sweep(tmp_path / "run", **options)
    assert "omit" not in str(without.value)
    assert str(beside.value).startswith(str(without.value))


def test_an_adapter_is_measured_merged_onto_its_base(
    hub, family, tmp_path, probe, monkeypatch, caplog
):
    """An adapter that is left out, or whose names do not fit, would be measured as its base under
    another name.
    """
    peft = pytest.importorskip("peft")
    monkeypatch.setenv("REPDYN_CACHE", str(tmp_path / "cache"))
    low_rank = peft.LoraConfig(r=2, target_modules=["query_key_value"], init_lora_weights=False)
    base = AutoModelForCausalLM.from_pretrained(family[8])
    adapted = peft.get_peft_model(base, low_rank)
    folder = tmp_path / "run" / "checkpoint-5"
    adapted.save_pretrained(folder)
    swept = repdyn.sweep(tmp_path / "run", probe=probe, **QUIET)
    config = json.loads((folder / "adapter_config.json").read_text())
    hub.publish("lab/base", "main", family[8])
    (folder / "adapter_config.json").write_text(
        json.dumps(config | {"base_model_name_or_path": "lab/base"})
    )
    hub.publish("lab/adapter", "checkpoint-5", folder)
    published = repdyn.sweep("lab/adapter", probe=probe, store=tmp_path / "store", **QUIET)
    merged = adapted.merge_and_unload()
    direct = repdyn.measure(
        merged, probe, ["anisotropy"], checkpoint=Checkpoint(step=5)
    ).to_pandas()
    for result in (swept, published):
        assert result.failures == ()
        pd.testing.assert_frame_equal(values(result.to_pandas()), values(direct), check_exact=True)
    # names of the adapter's weights that the base has not, and a base that is nowhere
    weights = load_file(folder / "adapter_model.safetensors")
    renamed = {name.replace("query_key_value", "qkv"): value for name, value in weights.items()}
    save_file(renamed, folder / "adapter_model.safetensors")
    # that of an adapter for generation takes no model without a head, which was the reason given
    for task in (None, "CAUSAL_LM"):
        (folder / "adapter_config.json").write_text(json.dumps(config | {"task_type": task}))
        with pytest.raises(CheckpointError, match="do not fit its base"):
            load_model(folder, Loading())
    # what transformers reads is said where the merged model lies beside its adapter
    base.save_pretrained(tmp_path / "merged")
    (tmp_path / "merged" / "model.safetensors").rename(folder / "model.safetensors")
    caplog.clear()
    with pytest.raises(CheckpointError, match="do not fit its base"):
        load_model(folder, Loading())
    assert "model.safetensors beside it has other weights" in caplog.text
    (folder / "adapter_config.json").write_text(
        json.dumps(config | {"base_model_name_or_path": "lab/none"})
    )
    with pytest.raises(CheckpointError, match="adapter of 'lab/none'"):
        load_model(folder, Loading())
    monkeypatch.setitem(sys.modules, "peft", None)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="pip install peft"):
        load_model(folder, Loading())


def test_offline_what_is_in_the_cache_is_measured_by_the_same_call(
    hub, commits, probe, command, tmp_path, monkeypatch
):
    """Refused although every file is there, or another revision measured in its place."""
    for step in (0, 8):
        huggingface_hub.snapshot_download("lab/model", revision=f"step{step}", endpoint=hub.url)
    hub.__exit__()
    huggingface_hub.close_session()
    status, out, err = command(
        "lab/model", "--metrics", "anisotropy", "--dry-run"
    )  # a plan needs no network
    assert status == 0
    assert "lab/model" in out
    assert "no connection" in err
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    swept = repdyn.sweep("lab/model", probe=probe, store=tmp_path / "store", **QUIET)
    assert swept.measured == ("lab/model step0", "lab/model step8")
    assert swept.failures == ()
    assert set(swept.to_pandas()["checkpoint"].dropna()) == {
        f"lab/model@{commits[step]}" for step in (0, 8)
    }
    with pytest.raises(SweepStoppedError, match="HF_HUB_OFFLINE"):
        repdyn.sweep("lab/other", probe=probe, store=tmp_path / "store", **QUIET)


def test_a_mistyped_folder_is_called_one_and_no_network_says_what_goes_without(
    hub, probe, tmp_path, monkeypatch
):
    """A folder that is not there became an error of the connection, after a minute."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for wrong in ("runs/mine", "./mine", "my run", tmp_path / "mine"):
        with pytest.raises(ValueError, match="no such folder"):
            repdyn.sweep(wrong, probe=probe, **QUIET)
    hub.__exit__()
    huggingface_hub.close_session()
    with pytest.raises(NoConnectionError, match="no local folder 'mine'.*HF_HUB_OFFLINE=1"):
        repdyn.sweep("mine", probe=probe, **QUIET)


def test_a_failure_is_stored_with_its_reason_and_retried_on_request(
    hub, commits, command, shown, tmp_path
):
    hub.fault(f"{commits[8]}/model", "status", code=404, headers={"X-Error-Code": "EntryNotFound"})
    arguments = ("lab/model", "--metrics", "anisotropy", "--no-loss")
    status, _, err = command(*arguments)
    store = open_store(tmp_path / "sweeps")
    assert status == 1
    assert lines(err)[-1].startswith("not measured: lab/model step8: ")
    assert list(reasons(store)) == [8]
    assert store.steps("lab/model") == [0, 16]
    assert shown == [["lab/model"]]
    hub.faults.clear()
    status, _, err = command(*arguments)
    assert status == 1
    assert set(weights_fetched(hub).values()) == {1}
    assert "--retry-failed" in err
    assert command(*arguments, "--retry-failed")[0] == 0
    assert reasons(store) == {}
    assert store.steps("lab/model") == [0, 8, 16]


def test_the_main_branch_is_measured_beside_branches_with_steps(hub, family, probe, tmp_path):
    """It "does not exist", although the hub shows it first."""
    for name, step in {"main": 16, "step0": 0, "step8": 8}.items():
        hub.publish("lab/steps", name, family[step])
    settings_of_all = {"probe": probe, "store": tmp_path / "store", **QUIET}
    assert repdyn.sweep("lab/steps", revisions="main", **settings_of_all).measured == (
        "lab/steps (main) main",
    )
    both = repdyn.sweep("lab/steps", revisions="step8, main", **settings_of_all)
    assert both.measured == ("lab/steps step8",)
    assert both.failures == ()
    assert both.runs == ("lab/steps", "lab/steps (main)")
    with pytest.raises(ValueError, match="'maine'"):
        repdyn.sweep("lab/steps", revisions="maine", **settings_of_all)


def test_a_repository_is_named_by_its_address_or_with_a_revision(hub, family, probe, tmp_path):
    """As a browser shows it, and as load_model takes it; a path with an @ was said not to exist."""
    hub.publish("lab/steps", "step8", family[8])
    hub.publish("lab/steps", "step16", family[16])
    for source, revision in {
        "lab/steps@step8": "step8",
        f"{hub.url}/lab/steps/tree/step16": "step16",
    }.items():
        swept = repdyn.sweep(source, probe=probe, store=tmp_path / "store", **QUIET)
        assert swept.measured == (f"lab/steps {revision}",)
    with pytest.raises(ValueError, match="leave one out"):
        repdyn.sweep("lab/steps@step8", revisions="log", probe=probe, **QUIET)


def test_branches_without_a_step_are_named_where_only_the_main_one_is_measured(
    hub, family, probe, tmp_path
):
    """Versions and epochs were left out without a word, and could not be asked for."""
    for name, step in {"main": 16, "v1.0": 0, "epoch-1": 8}.items():
        hub.publish("lab/versions", name, family[step])
    options = SweepOptions(source="lab/versions", probe=probe, store=tmp_path / "store")
    (note,) = prepare(options).notes
    assert {"epoch-1", "v1.0"} <= set(note.replace(",", "").split())
    swept = repdyn.sweep(
        "lab/versions", revisions="v1.0", probe=probe, store=tmp_path / "store", **QUIET
    )
    assert swept.measured == ("lab/versions (v1.0) v1.0",)


def test_the_same_failure_of_all_ends_a_sweep(hub, family, probe, tmp_path):
    for step in range(7):
        hub.publish("lab/many", f"step{step}", family[8])
    model = PublishedModel(
        name="many", suite="", run="lab/many", repository="lab/many", revisions=r"step(?P<step>\d+)"
    )
    many = [Task(target, probe) for target in select_targets(model, Hub()).targets]
    wrong = settings(["anisotropy"], layers="blocks.*")
    store = open_store(tmp_path / "store")
    with pytest.raises(SweepStoppedError, match="first 5"):
        measure_tasks(many, store, wrong, downloads_in(tmp_path / "d"))
    assert len(partition_tasks(many, store, wrong).failed_before) == 5


def test_copies_of_another_step_are_not_measured(hub, family, tmp_path, command, shown):
    """A curve over steps that all have the final weights looks smooth and means nothing."""
    for name, step in {"step0": 0, "step1": 16, "step8": 8, "step16": 16}.items():
        hub.publish("lab/copies", name, family[step])
    hub.publish("lab/copies", "step4", save_again(family[0], tmp_path / "again"))
    arguments = ("lab/copies", "--metrics", "anisotropy", "--no-loss")
    status, out, err = command(*arguments, "--dry-run", "--json")
    assert status == 0
    assert '"same_as": {\n      "step1": "step16"\n    }' in out
    assert "step1" in err
    assert command(*arguments)[0] == 0
    store = open_store(tmp_path / "sweeps")
    assert store.steps("lab/copies") == [0, 4, 8, 16]
    frame = store.to_pandas()
    assert set(frame.loc[frame["same_as"].notna(), "step"]) == {1}


def test_the_disk_budget_holds_and_the_next_download_overlaps(tasks, tmp_path, monkeypatch):
    size, peaks = 0, []
    reserve = Downloads._reserve

    def watched(self, n_bytes):
        nonlocal size
        size, folder = n_bytes, reserve(self, n_bytes)
        peaks.append(sum(self._reserved.values()))
        return folder

    monkeypatch.setattr(Downloads, "_reserve", watched)
    measure_tasks(tasks, open_store(tmp_path / "wide"), SETTINGS, downloads_in(tmp_path / "d"))
    assert max(peaks) == 2 * size, (
        "the next one is fetched while one is measured, and never more than that"
    )
    peaks.clear()
    narrow = downloads_in(tmp_path / "d", budget_bytes=int(1.5 * size))
    assert (
        len(measure_tasks(tasks, open_store(tmp_path / "narrow"), SETTINGS, narrow).measured) == 3
    )
    assert max(peaks) == size
    tiny = measure_tasks(
        tasks[:1], store := open_store(tmp_path / "t"), SETTINGS, downloads_in(tmp_path / "d", 1000)
    )
    assert "max_disk=" in tiny.failed[0][1]
    assert partition_tasks(tasks, store, SETTINGS).waiting == tasks, (
        "another budget may have room for it"
    )


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"dtype": "bfloat16"}, "dtype"),
        ({"layers": ["layers.*"]}, "choice of layers"),
        ({}, "location"),
    ],
)
def test_values_of_another_precision_layers_or_place_are_not_added_to_a_run(
    family, tmp_path, probe, changes, what
):
    """The curve would change where the precision did, without a word."""
    options = QUIET | {"name": "mine", "probe": probe, "store": tmp_path / "store"}
    options["dtype"] = "float32"
    repdyn.sweep(family[0], **options)
    other = family[8] if changes else shutil.copytree(family[8], tmp_path / "other" / "step8")
    with pytest.raises(ValueError, match=f"expected one {what} for the run 'mine'"):
        repdyn.sweep(other, **options | changes)
    assert open_store(tmp_path / "store").steps("mine") == [0]


def test_a_folder_that_was_moved_goes_on_with_its_run(tmp_path, probe):
    """With its store inside, it was refused as another training."""
    checkpoints = tmp_path / "scratch" / "mine" / "checkpoints"
    save_family(checkpoints, (0,))
    options = QUIET | {"probe": probe}
    first = repdyn.sweep(checkpoints, **options)
    assert first.runs == ("mine/checkpoints",)
    archive = tmp_path / "archive"
    shutil.move(tmp_path / "scratch", archive)
    save_family(archive / "mine" / "checkpoints", (8,))
    swept = repdyn.sweep(archive / "mine" / "checkpoints", **options)
    assert swept.runs == first.runs
    assert swept.measured == ("mine/checkpoints step8",)
    assert swept.store.steps("mine/checkpoints") == [0, 8]


def test_a_resumed_sweep_looks_a_key_up_once_and_asks_once_what_metrics_are_meant(
    tmp_path, probe, monkeypatch
):
    """Both were done two to four times for each checkpoint, and every time its rows were read."""
    store = open_store(tmp_path)
    everything = settings("all", loss=None)
    tasks = [Task(Target("mine", step, f"step{step}", path=tmp_path), probe) for step in range(6)]
    for task in tasks[:3]:
        store.write(task.key(everything), [row()])
    store.write(tasks[3].key(replace(everything, loss=False)), [row()])
    store.write(tasks[4].key(everything).failed, [row(reason="no such file")])
    looked_up = Mock(wraps=Store.__contains__)
    resolved = Mock(wraps=resolve)
    monkeypatch.setattr(Store, "__contains__", lambda self, key: looked_up(self, key))
    monkeypatch.setattr("repdyn.measurement.options.resolve", resolved)
    listed = partition_tasks(tasks, store, replace(everything))
    assert listed.done == tasks[:4]
    assert listed.failed_before == tasks[4:5]
    assert listed.waiting == tasks[5:]
    # of the last three, the measurement without the loss is looked for too
    keys = [call.args[1] for call in looked_up.call_args_list]
    assert len(keys) == len(set(keys)) == 6 + 3
    assert sum(len(call.args) == 2 for call in resolved.call_args_list) == 2


def test_a_sweep_of_measured_checkpoints_begins_with_two_readings_of_each_file(
    tmp_path, probe, monkeypatch
):
    """Its rows were read two to four times; now its bytes once, and three columns of it."""
    store = open_store(tmp_path)
    everything = settings("all", loss=None)
    tasks = [Task(Target("mine", step, f"step{step}", path=tmp_path), probe) for step in range(154)]
    paths = [store.write(task.key(everything), [row()]) for task in tasks]
    opened = Counter()
    whole = Counter()
    columns = set()
    read_bytes = Path.read_bytes
    parquet_file = pq.ParquetFile
    read = parquet_file.read

    def as_bytes(path):
        whole[path] += 1
        return read_bytes(path)

    def as_parquet(source, **how):
        opened[source] += isinstance(source, Path)
        return parquet_file(source, **how)

    def of_columns(file, chosen=None, **how):
        columns.add(tuple(chosen or ["all"]))
        return read(file, chosen, **how)

    monkeypatch.setattr(Path, "read_bytes", as_bytes)
    monkeypatch.setattr("repdyn.store.files.pq.ParquetFile", as_parquet)
    monkeypatch.setattr(parquet_file, "read", of_columns)
    check_comparable(tasks, store, everything)
    assert partition_tasks(tasks, store, everything).done == tasks
    assert {path: whole[path] for path in paths} == dict.fromkeys(paths, 1)
    assert +opened == dict.fromkeys(paths, 1)
    assert columns == {("layer", "layers", "dtype", "checkpoint")}


def test_a_dry_run_downloads_nothing_and_names_the_pace_of_what_is_measured(
    hub, commits, command, shown, monkeypatch
):
    arguments = ("lab/model", "--metrics", "anisotropy", "--no-loss", "--dry-run")
    status, out, err = command(*arguments)
    assert status == 0
    assert err == ""
    assert dict(weights_fetched(hub)) == {}
    assert re_row(out) == ["lab/model", "0", "0", "3"]
    assert command(*arguments[:-1], "--revisions", "step0")[0] == 0
    status, out, _ = command(*arguments)
    assert re_row(out) == ["lab/model", "1", "0", "2"]
    assert " min\n" in out
    monkeypatch.setattr(
        "repdyn.checkpoints.probes.load_corpus", Mock(side_effect=ConnectionError("no text"))
    )
    assert "lab/model: no text; it is not planned" in command(*arguments)[2]


def re_row(out: str) -> list[str]:
    (row,) = [line for line in out.splitlines() if line.startswith("lab/model")]
    return [row.split()[0], *[part for part in row.split() if part.isdecimal()][:3]]


def test_a_gguf_file_has_the_values_of_its_dequantised_weights(probe, tmp_path):
    sizes = {"vocab_size": 64, "hidden_size": 64, "n_layers": 3, "n_heads": 2, "context_length": 64}
    model = build_model("llama", **sizes)
    (tmp_path / "files").mkdir()
    for step in (0, 5):
        write_gguf(
            model, tmp_path / "files" / f"tiny-step{step}.gguf", gguf.GGMLQuantizationType.Q8_0
        )
        model.save_pretrained(tmp_path / "dense" / f"step{step}")
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.3)
    loss = {**QUIET, "loss": None}
    read = repdyn.sweep(tmp_path / "files", probe=probe, store=tmp_path / "quantised", **loss)
    assert not read.failures
    dense = repdyn.sweep(tmp_path / "dense", probe=probe, store=tmp_path / "store", **loss)
    pd.testing.assert_frame_equal(values(read.to_pandas()), values(dense.to_pandas()), rtol=1e-6)
    assert set(read.to_pandas()["weights_kind"]) == {"Q8_0"}
    scalars = read.to_pandas().query("metric == 'probe/loss'")["value"]
    assert len(scalars) == 2, "a file without a head"
    (tmp_path / "cut.gguf").write_bytes(
        (tmp_path / "files" / "tiny-step0.gguf").read_bytes()[:5000]
    )
    assert (
        "does not load"
        in repdyn.sweep(tmp_path / "cut.gguf", probe=probe, store=tmp_path / "c", **loss).failures[
            0
        ]
    )


def test_folders_whose_tokenizers_differ_are_not_measured_on_one_probe(save_model, tmp_path):
    """The newest one's made the probe for all: other words at the step with another."""
    for step in (1, 2):
        save_model(f"checkpoints/step{step}", "llama")
    path = tmp_path / "checkpoints" / "step1" / "tokenizer.json"
    saved = json.loads(path.read_text())
    vocabulary = saved["model"]["vocab"].items()
    saved["model"]["vocab"] = {letter: (number + 1) % 256 for letter, number in vocabulary}
    path.write_text(json.dumps(saved))
    settings = {"text": "builtin", "max_vectors": 256, "metrics": ["anisotropy"], "quiet": True}
    swept = repdyn.sweep(tmp_path / "checkpoints", store=tmp_path / "store", **settings)
    assert not swept.measured
    assert "tokenizer" in swept.failures[0]
    apart = repdyn.sweep(
        tmp_path / "checkpoints", revisions="step1", store=tmp_path / "apart", **settings
    )
    assert len(apart.measured) == 1


def test_of_a_finished_model_massive_norms_are_left_out_too(save_model, tmp_path):
    """The anisotropy of all vectors alone hid that a few of them made it."""
    settings = {"text": "builtin", "max_vectors": 256, "quiet": True, "loss": False}

    def subsets(folder, **changes):
        place = tmp_path / f"store-{folder.name}-{len(changes)}"
        frame = repdyn.sweep(folder, store=place, **settings | changes).to_pandas()
        return set(frame.query("metric == 'anisotropy' and layer.notna()")["subset"])

    finished = save_model("mine", "llama")
    of_training = subsets(save_model("step8", "llama"))
    assert subsets(finished) - of_training == {"no_massive"}
    assert "no_massive" not in of_training
    assert "no_massive" not in subsets(finished, metrics=["anisotropy"])


def test_the_folder_of_a_store_does_not_hide_the_repository(
    hub, family, probe, tmp_path, monkeypatch
):
    """The same command failed the second time: the store has a folder of the repository's name."""
    for step, folder in family.items():
        hub.publish("small", f"step{step}", folder)
    monkeypatch.chdir(tmp_path)
    first, second = (repdyn.sweep("small", store=".", probe=probe, **QUIET) for _ in range(2))
    assert (tmp_path / "small").is_dir()
    assert len(first.measured) == len(family)
    assert second.measured == ()
    assert second.failures == ()


def test_a_folder_with_the_name_of_a_published_model_is_said_to_be_measured(
    save_model, tmp_path, monkeypatch
):
    save_model("EleutherAI/pythia-70m", "gpt_neox")
    monkeypatch.chdir(tmp_path)
    notes = prepare(replace(SETTINGS, source="EleutherAI/pythia-70m", device="cpu")).notes
    assert any("not the hub repository" in note for note in notes)
    notes = prepare(replace(SETTINGS, source=tmp_path / "EleutherAI/pythia-70m")).notes
    assert not any("not the hub repository" in note for note in notes)


def test_a_folder_and_the_hub_are_measured_in_the_same_precision(
    hub, save_model, probe, tmp_path, capsys
):
    """Weights in bfloat16 kept it in a folder, and were converted where they came from the hub."""
    folder = save_model("step8", "llama")
    AutoModelForCausalLM.from_pretrained(folder).bfloat16().save_pretrained(folder)
    hub.publish("lab/half", "step8", folder)
    settings = {"probe": probe, "loss": False, "device": "cpu", "metrics": ["two_nn"]}
    swept = {
        source: repdyn.sweep(source, name=name, store=tmp_path / name, **settings)
        for source, name in ((folder, "local"), ("lab/half", "published"))
    }
    rows = [each.to_pandas().query("layer.notna()") for each in swept.values()]
    assert [set(table.dtype) for table in rows] == [{"float32"}, {"float32"}]
    np.testing.assert_array_equal(rows[0].value, rows[1].value)
    assert capsys.readouterr().err.count("in float32") == 2
    stored = repdyn.sweep(folder, dtype="auto", store=tmp_path / "stored", **settings)
    assert set(stored.to_pandas().query("layer.notna()").dtype) == {"bfloat16"}

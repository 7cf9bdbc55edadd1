"""The hub's client, and models loaded from what it fetched: nothing damaged, foreign or incomplete
is measured.
"""

from __future__ import annotations

import json
import re
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import huggingface_hub
import pytest
import torch
from hub_server import HubServer
from safetensors.torch import load_file, save_file
from sweeping import attempt

from repdyn.checkpoints.errors import CheckpointError, NoConnectionError
from repdyn.checkpoints.hub import Hub, map_concurrently
from repdyn.checkpoints.options import Loading, SweepOptions
from repdyn.checkpoints.revisions import match_revisions, parse_revision, select_revisions
from repdyn.checkpoints.sweep import prepare
from repdyn.checkpoints.weight_files import ListedFile, choose_files, total_bytes
from repdyn.checkpoints.weights import load_model
from repdyn.utils.steps import whole_number

NOT_FOUND = {"code": 404, "headers": {"X-Error-Code": "EntryNotFound"}}


@pytest.fixture
def commit(hub: HubServer, family: dict[int, Path], monkeypatch) -> str:
    """A commit of lab/model."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.5)
    return hub.publish("lab/model", "main", family[8])


def fetch(commit: str, folder: Path, **settings) -> Path:
    client = Hub(**settings)
    client.download("lab/model", commit, choose_files(client.files("lab/model", commit)), folder)
    return folder


# names of checkpoints


@pytest.mark.parametrize(
    ("name", "step", "tokens", "stage"),
    [
        ("step512", 512, None, None),
        ("checkpoint-000512", 512, None, None),
        ("stage1-step1000-tokens5B", 1000, 5 * 10**9, "stage1"),
        ("seed3-step240k", 240_000, None, None),
        ("Step_9000", 9000, None, None),
        ("143000", 143_000, None, None),
        ("v1.0", None, None, None),
        ("main", None, None, None),
        ("x" * 10_000, None, None, None),
    ],
)
def test_the_step_in_the_name_of_a_revision(name, step, tokens, stage):
    found = parse_revision(name)
    assert (found and (found.step, found.tokens_seen, found.stage)) == (
        step and (step, tokens, stage)
    )


def test_numbers_with_units_are_exact():
    """1.1 * 10 ** 6 in floating point is 1100000.0000000002."""
    assert [whole_number(text, "step") for text in ("1.1M", "240k", "1.5T", "007")] == [
        1_100_000,
        240_000,
        1_500_000_000_000,
        7,
    ]
    for text in ("0.5", "-3", "1e3", "1_000", "٣", ""):
        with pytest.raises(ValueError, match="step"):
            whole_number(text, "step")


@pytest.mark.parametrize(
    ("spec", "steps"),
    [
        ("all", [0, 1, 2, 4, 8, 512, 1000, 2000, 3000]),
        ("log", [0, 1, 2, 4, 8, 512, 1000, 2000, 3000]),
        ("every:4", [0, 8, 3000]),
        ("step8,3000", [8, 3000]),
        ("every:0", None),
        ("step9", None),
        ("", None),
    ],
)
def test_chosen_revisions(spec, steps):
    names = ["main", *(f"step{step}" for step in (0, 1, 2, 4, 8, 512, 1000, 2000, 3000))]
    matches, others = match_revisions(names)
    assert others == ["main"]
    if steps is None:
        with pytest.raises(ValueError, match="expected"):
            select_revisions(matches, spec)
    else:
        assert [revision.step for revision in select_revisions(matches, spec)] == steps


def test_two_names_of_one_step_are_refused():
    with pytest.raises(ValueError, match="for 8"):
        match_revisions(["step8", "checkpoint-8"])


# listings


def test_a_listing_is_asked_for_again_while_the_hub_is_busy_and_kept(hub, commit):
    hub.fault("/api/models/lab/model/refs", "status", times=2, code=503)
    assert Hub().refs("lab/model") == {"main": commit}
    client = Hub()
    first = client.files("lab/model", commit)
    n_requests = len(hub.requests)
    assert client.files("lab/model", commit) == first
    assert len(hub.requests) == n_requests


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (("status", {"code": 404, "headers": {"X-Error-Code": "RepoNotFound"}}), "404"),
        (("status", {"code": 503, "headers": {"Retry-After": "86400"}}), "limit of time"),
        (("slow", {"bytes_per_second": 1}), "limit of time"),
    ],
)
def test_a_listing_that_fails(hub, commit, fault, reason):
    hub.fault("/api/models/lab/model/refs", fault[0], **fault[1])
    start = time.monotonic()
    prepared, problem = attempt(
        lambda: prepare(SweepOptions(source="lab/model", timeout=2), to_plan=True)
    )
    assert reason in (problem or prepared.problems[0])
    assert time.monotonic() - start < 10


def test_no_connection_is_no_failure_of_a_checkpoint(hub, commit):
    hub.__exit__()
    with pytest.raises(NoConnectionError):
        Hub().refs("lab/model")


@pytest.mark.parametrize("folder", ["../..", "/etc", "a"])
def test_files_of_other_folders_are_no_checkpoint(hub, commit, monkeypatch, folder):
    names = [f"{folder}/{name}" for name in ("config.json", "model.safetensors")]
    listing = json.dumps(
        [{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in names]
    ).encode()
    answer = (200, listing, {"Content-Type": "application/json"})
    monkeypatch.setattr("hub_server.Repository.tree", lambda *_: answer)
    with pytest.raises(CheckpointError, match="it has no config.json"):
        choose_files(Hub().files("lab/model", commit))


# downloads


FAULTS = {
    "not there": ("status", NOT_FOUND, "404"),
    "busy": ("status", {"code": 500}, "500"),
    "cut": ("cut", {}, "broke off"),
    "short": ("wrong_size", {}, "damaged"),
    "silent": ("stall", {}, "broke off"),
    "damaged": ("corrupt", {}, "damaged"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_download_that_fails_once_succeeds_and_one_that_always_fails_says_why(
    hub, commit, tmp_path, what
):
    kind, options, reason = FAULTS[what]
    hub.fault("^GET .*model.safetensors", kind, **options)
    with pytest.raises(CheckpointError, match=reason):
        fetch(commit, tmp_path / "always")
    hub.faults.clear()
    if what != "not there":
        hub.fault("^GET .*model.safetensors", kind, times=1, **options)
        folder = fetch(commit, tmp_path / "once")
        assert {path.name for path in folder.glob("[!.]*")} >= {"config.json", "model.safetensors"}
        assert "tokenizer.json" not in {path.name for path in folder.iterdir()}


def test_a_small_file_that_is_altered_at_equal_size_is_noticed(hub, commit, tmp_path):
    hub.fault("^GET .*resolve.*config.json", "corrupt")
    with pytest.raises(CheckpointError, match="damaged"):
        fetch(commit, tmp_path)


def test_time_size_and_cancelling_bound_a_download(hub, commit, tmp_path, monkeypatch):
    """By what arrives, whatever the hub announces."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 20)
    hub.fault("^GET .*model.safetensors", "slow", bytes_per_second=2000)
    with pytest.raises(CheckpointError, match="limit of time"):
        fetch(commit, tmp_path / "slow", timeout_seconds=1)
    cancelled = threading.Event()
    threading.Timer(0.5, cancelled.set).start()
    files = Hub().files("lab/model", commit)
    with pytest.raises(CancelledError):
        Hub().download("lab/model", commit, files, tmp_path / "cancelled", cancelled)
    hub.faults.clear()
    hub.fault("^GET .*tokenizer_config.json", "gzip", after=30_000_000)
    small = {"tokenizer_config.json": files["tokenizer_config.json"]}
    with pytest.raises(CheckpointError, match=r"larger than the hub lists|damaged"):
        Hub().download("lab/model", commit, small, tmp_path / "large")
    hub.faults.clear()
    hub.fault("^GET .*model.safetensors", "slow", bytes_per_second=20_000)
    monkeypatch.setattr("repdyn.checkpoints.hub._MARGIN_BYTES", 1000)
    listed = {"model.safetensors": ListedFile(10)}
    with pytest.raises(CheckpointError, match="larger than the hub lists"):
        Hub().download("lab/model", commit, listed, tmp_path / "larger")


def test_progress_is_that_of_the_disk(hub, commit, tmp_path):
    hub.fault("^GET .*model.safetensors", "slow", bytes_per_second=60_000)
    seen = []
    files = choose_files(Hub().files("lab/model", commit))
    Hub().download("lab/model", commit, files, tmp_path, arrived=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == total_bytes(files)
    assert 0 < seen[len(seen) // 2] < seen[-1]


def test_results_of_threads_are_in_order_and_the_first_error_ends_them():
    assert map_concurrently(lambda number: number**2, range(50)) == [
        number**2 for number in range(50)
    ]
    with pytest.raises(ZeroDivisionError):
        map_concurrently(lambda number: 1 / (number - 3), range(1000))


def test_one_format_of_weights_is_chosen():
    def chosen(*names: str) -> list[str]:
        return list(choose_files({name: ListedFile(1) for name in names}))

    assert chosen("config.json", "pytorch_model.bin", "model.safetensors", "model.py") == [
        "model.safetensors",
        "config.json",
    ]
    assert "model.safetensors" not in chosen(
        "config.json", "x/model.safetensors", "pytorch_model.bin"
    )
    shards = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    assert chosen("config.json", *shards) == [*shards, "config.json"]
    for names in (["model.safetensors"], ["config.json", "model.onnx"]):
        with pytest.raises(CheckpointError):
            chosen(*names)


class Touch:
    """A pickle that would run code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


# models


def configured(folder: Path, **changes) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def rewritten(folder: Path, name: str, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors = {key: change(value) if key == name else value for key, value in tensors.items()}
    tensors = {key: value for key, value in tensors.items() if value is not None}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


WEIGHT = "gpt_neox.layers.1.mlp.dense_h_to_4h.weight"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: rewritten(folder, WEIGHT, lambda _: None), "would be random"),
        (
            lambda folder: rewritten(folder, WEIGHT, lambda value: value * float("nan")),
            "not finite",
        ),
        (lambda folder: configured(folder, intermediate_size=24), "does not load|shape"),
        (lambda folder: configured(folder, num_hidden_layers=1), "cut off"),
        (lambda folder: configured(folder, model_type="perceptron9000"), "does not load"),
        (
            lambda folder: configured(
                folder, model_type="mine", auto_map={"AutoConfig": "a.C", "AutoModel": "a.M"}
            ),
            "trust_remote_code=True",
        ),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "adapter"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"short"), "download it again"),
    ],
    ids=["missing", "nan", "shape", "fewer layers", "unknown", "own code", "adapter", "cut"],
)
def test_a_model_is_whole_or_refused(family, spoil, reason):
    spoil(family[8])
    with pytest.raises(CheckpointError, match=reason):
        load_model(family[8], Loading())


def test_pickled_weights_give_the_same_model_and_run_no_code(family, tmp_path):
    expected = load_model(family[8], Loading(dtype="bfloat16")).state_dict()
    tensors = load_file(family[8] / "model.safetensors")
    (family[8] / "model.safetensors").unlink()
    torch.save(tensors, family[8] / "pytorch_model.bin")
    weights = load_model(family[8], Loading(dtype="bfloat16")).state_dict()
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    assert {value.dtype for value in weights.values() if value.is_floating_point()} == {
        torch.bfloat16
    }
    torch.save({**tensors, "more": Touch(tmp_path / "ran")}, family[8] / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="does not load"):
        load_model(family[8], Loading())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("prefix", "of_blocks"),
    [
        ("_orig_mod.", ""),
        ("module.", ""),
        ("_orig_mod.module.", ""),
        ("network.", ""),
        ("", "_orig_mod."),
        ("network._orig_mod.", "_checkpoint_wrapped_module._orig_mod."),
    ],
)
def test_names_of_a_compiled_or_wrapped_model_are_those_of_the_model(family, prefix, of_blocks):
    """Otherwise every weight counts as absent, and a saved training cannot be measured."""
    expected = load_model(family[8], Loading()).state_dict()
    tensors = load_file(family[8] / "model.safetensors")
    (family[8] / "model.safetensors").unlink()
    wrapped = {
        prefix + re.sub(r"(layers\.\d+\.)", rf"\1{of_blocks}", name): weight
        for name, weight in tensors.items()
    }
    torch.save(wrapped, family[8] / "pytorch_model.bin")
    weights = load_model(family[8], Loading()).state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)

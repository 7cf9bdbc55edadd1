"""The fault matrix: whatever goes wrong with one checkpoint is recorded with its reason, and the
others are measured.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from hub_server import HubServer
from sweeping import Report, downloads_in, measure_tasks, settings

from repdyn import Probe, open_store
from repdyn.checkpoints.downloads import Downloads
from repdyn.checkpoints.errors import SweepStoppedError
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.published import select_targets
from repdyn.checkpoints.suites import PublishedModel
from repdyn.checkpoints.tasks import Task, partition_tasks
from repdyn.store import Store

SETTINGS = settings()
FILE = "resolve/{commit}/model.safetensors"


@pytest.fixture
def probe() -> Probe:
    tokens = torch.randint(3, 250, (24, 12), generator=torch.Generator().manual_seed(0))
    return Probe.from_tokens(tokens, max_vectors=192, batch_vectors=96)


@pytest.fixture
def published(hub: HubServer, family: dict[int, Path], probe: Probe) -> Callable[[], list[Task]]:
    """Return a function that publishes the family as it is on disk."""

    def publish() -> list[Task]:
        for step, folder in family.items():
            hub.publish("lab/model", f"step{step}", folder)
        model = PublishedModel(
            name="model",
            suite="",
            run="lab/model",
            repository="lab/model",
            revisions=r"step(?P<step>\d+)",
        )
        return [Task(target, probe) for target in select_targets(model, Hub()).targets]

    return publish


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


@pytest.fixture
def downloads(tmp_path: Path) -> Downloads:
    return downloads_in(tmp_path / "downloads", timeout_seconds=30)


def assert_only_the_middle_one_failed(
    report: Report, tasks: list[Task], store: Store, reason: str
) -> None:
    assert report.measured == [tasks[0], tasks[2]]
    assert [task for task, _ in report.failed] == [tasks[1]]
    assert reason in report.failed[0][1]
    stored = store.to_pandas()
    failed = stored[stored["reason"].notna()]
    assert set(failed["step"]) == {8}
    assert set(failed["metric"]) == {"anisotropy", "two_nn"}
    assert all(reason in text for text in failed["reason"])
    assert partition_tasks(tasks, store, SETTINGS).failed_before == [tasks[1]]


# what is done to a file on its way, and the reason that is stored if it is done every time
ON_THE_WAY = {
    "404 file": (
        "status",
        {"code": 404, "headers": {"X-Error-Code": "EntryNotFound"}},
        "the hub answered 404",
    ),
    "500": ("status", {"code": 500}, "the hub answered 500"),
    "429": ("status", {"code": 429, "headers": {"Retry-After": "7"}}, "the hub answered 429"),
    "truncated": ("truncated", {}, "the connection broke off"),
    "wrong size": ("wrong_size", {}, "Consistency check failed"),
    "cut": ("cut", {}, "the connection broke off"),
    "stall": ("stall", {}, "the connection broke off"),
    "corrupt": ("corrupt", {}, "arrived damaged, twice"),
}


@pytest.mark.parametrize("what", ON_THE_WAY)
def test_a_download_that_always_fails(hub, published, store, downloads, what):
    kind, options, reason = ON_THE_WAY[what]
    tasks = published()
    hub.fault(FILE.format(commit=tasks[1].target.commit), kind, **options)
    assert_only_the_middle_one_failed(
        measure_tasks(tasks, store, SETTINGS, downloads), tasks, store, reason
    )
    hub.faults.clear()
    again = partition_tasks(tasks, store, replace(SETTINGS, retry_failed=True)).waiting
    assert again == [tasks[1]]
    assert measure_tasks(again, store, SETTINGS, downloads).measured == again
    assert not store.to_pandas()["reason"].notna().any()


@pytest.fixture(autouse=True)
def _a_silent_hub_is_given_up_on_soon(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no room"),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("can't allocate memory"),
    ],
)
def test_out_of_memory(published, store, downloads, monkeypatch, error):
    from repdyn.checkpoints import measuring

    tasks = published()
    measure = measuring.measure_with

    def starved(model, probe, *arguments, **named):
        if named["checkpoint"].step == 8:
            raise error
        return measure(model, probe, *arguments, **named)

    monkeypatch.setattr(measuring, "measure_with", starved)
    reason = "out of memory"
    assert_only_the_middle_one_failed(
        measure_tasks(tasks, store, SETTINGS, downloads), tasks, store, reason
    )


def test_a_deleted_or_gated_repository(hub, published, store, downloads):
    tasks = published()
    hub.gate("lab/model")
    assert all(
        "access to lab/model@" in reason
        for _, reason in measure_tasks(tasks, store, SETTINGS, downloads).failed
    )
    shutil.rmtree(store.path)
    del hub.repositories["lab/model"]
    report = measure_tasks(tasks, store, SETTINGS, downloads)
    assert len(report.failed) == 3
    assert "the hub knows no repository lab/model" in report.failed[0][1]


def test_a_full_disk_ends_the_sweep_and_records_no_failure(
    published, store, downloads, monkeypatch
):
    tasks = published()
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=10_000))
    with pytest.raises(SweepStoppedError, match="is full: the next checkpoint takes .* downloads="):
        measure_tasks(tasks, store, SETTINGS, downloads)
    assert partition_tasks(tasks, store, SETTINGS).waiting == tasks


def test_a_disk_that_fills_up_ends_the_sweep(published, store, downloads, monkeypatch):
    def full(*arguments, **settings):
        raise OSError(errno.ENOSPC, "No space left on device", "model.safetensors")

    tasks = published()
    monkeypatch.setattr("huggingface_hub.HfApi.snapshot_download", full)
    with pytest.raises(
        SweepStoppedError, match=r"the disk is full \(model.safetensors\); free some space"
    ):
        measure_tasks(tasks, store, SETTINGS, downloads)


def test_a_repaired_checkpoint_leaves_no_failure_behind(hub, family, published, store, downloads):
    good = (family[8] / "model.safetensors").read_bytes()
    (family[8] / "model.safetensors").write_bytes(good[:1000])
    tasks = published()
    measure_tasks(tasks, store, SETTINGS, downloads)
    (family[8] / "model.safetensors").write_bytes(good)
    repaired = published()
    assert repaired[1].target.commit != tasks[1].target.commit
    assert measure_tasks(
        partition_tasks(repaired, store, SETTINGS).waiting, store, SETTINGS, downloads
    ).measured == [repaired[1]]
    assert not store.to_pandas()["reason"].notna().any()

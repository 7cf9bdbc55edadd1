"""The sweep itself: fetched, measured, deleted, resumed; inside its budget; live and offline alike."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from sweeping import downloads_in, settings

from repdyn import Probe, open_store
from repdyn.checkpoints import run as loop
from repdyn.checkpoints.downloads import Downloads
from repdyn.checkpoints.errors import SweepStoppedError
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.loading import Loading
from repdyn.checkpoints.local import find_checkpoints
from repdyn.checkpoints.plan import Task, partition_tasks
from repdyn.checkpoints.run import check_comparable, measure_tasks
from repdyn.checkpoints.suites import PublishedModel
from repdyn.checkpoints.targets import select_targets
from repdyn.store.scalars import EMBEDDING_COSINE, EMBEDDING_NORM

pytestmark = pytest.mark.slow

SETTINGS = settings()
NOT_COMPARED = ["seconds", "measured_at"]


@pytest.fixture
def probe() -> Probe:
    tokens = torch.randint(3, 250, (24, 12), generator=torch.Generator().manual_seed(0))
    return Probe.from_tokens(tokens, max_vectors=192, batch_vectors=96)


@pytest.fixture
def tasks(hub, family, probe) -> list[Task]:
    """Three checkpoints of one repository, as tasks."""
    for step, folder in family.items():
        hub.publish("lab/model", f"step{step}", folder)
    model = PublishedModel("model", "", "lab/model", "lab/model", r"step(?P<step>\d+)", tokens_per_step=10)
    return [Task(target, probe) for target in select_targets(model, Hub()).targets]


def geometry(store, run="lab/model"):
    frame = store.to_pandas(run)
    return frame[frame["layer"].notna()].drop(columns=NOT_COMPARED).reset_index(drop=True)


@pytest.mark.once
def test_published_checkpoints_have_the_values_of_the_same_local_files(hub, family, tasks, probe, tmp_path):
    store = open_store(tmp_path / "store")
    report = measure_tasks(tasks, store, SETTINGS, downloads_in(tmp_path / "downloads"))
    assert [task.target.step for task in report.measured] == [0, 8, 16]
    frame = geometry(store)
    assert frame["tokens_seen"].unique().tolist() == [0, 80, 160]
    assert frame["revision"].unique().tolist() == ["step0", "step8", "step16"]
    assert set(frame["checkpoint"]) == {f"lab/model@{task.target.commit}" for task in tasks}
    local = [Task(target, probe) for target in find_checkpoints(next(iter(family.values())).parent, "lab/model")]
    at_hand = open_store(tmp_path / "at_hand")
    measure_tasks(local, at_hand, SETTINGS, downloads_in(tmp_path / "downloads"))
    np.testing.assert_array_equal(geometry(at_hand)["value"], frame["value"])


def test_costs_are_stored_with_each_checkpoint(tasks, tmp_path):
    store = open_store(tmp_path / "store")
    measure_tasks(tasks, store, SETTINGS, downloads_in(tmp_path / "downloads"))
    frame = store.to_pandas()
    costs = frame[frame["layer"].isna()].pivot(index="step", columns="metric", values="value")
    norms = costs.pop(EMBEDDING_NORM)
    assert norms.nunique() == len(norms) == 3  # each checkpoint has embeddings of its own
    cosines = costs.pop(EMBEDDING_COSINE)
    assert cosines[0] == pytest.approx(1)
    assert cosines.is_monotonic_decreasing
    assert cosines.nunique() == 3
    assert list(costs) == ["bytes/download", "seconds/download", "seconds/forward", "seconds/kernels", "seconds/load"]
    assert (costs > 0).all(axis=None)


def test_measured_checkpoints_are_not_repeated(hub, tasks, tmp_path):
    store = open_store(tmp_path / "store")
    measure_tasks(tasks[:2], store, SETTINGS, downloads_in(tmp_path / "downloads"))
    before = {path: path.stat().st_mtime_ns for path in store.path.rglob("*.parquet")}
    n_requests = len(hub.requests)
    agenda = partition_tasks(tasks, store, SETTINGS)
    assert (len(agenda.done), agenda.waiting) == (2, tasks[2:])
    measure_tasks(agenda.waiting, store, SETTINGS, downloads_in(tmp_path / "downloads"))
    fetched = [path for method, path in hub.requests[n_requests:] if method == "GET" and "/resolve/" in path]
    assert all(tasks[2].target.commit in path for path in fetched)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    # other metrics, or another precision, are another question
    assert partition_tasks(tasks, store, settings(metrics=["two_nn@no_sink"])).waiting == tasks
    assert partition_tasks(tasks, store, settings(loading=Loading(dtype="float32"))).waiting == tasks


def test_one_weight_format_is_fetched_and_deleted_afterwards(hub, tasks, tmp_path):
    downloads = tmp_path / "downloads"
    measure_tasks(tasks, open_store(tmp_path / "store"), SETTINGS, downloads_in(downloads))
    fetched = {Path(path).name for method, path in hub.requests if method == "GET" and "/resolve/" in path}
    assert fetched == {"config.json", "generation_config.json", "model.safetensors"} or fetched == {
        "config.json",
        "model.safetensors",
    }
    assert [path.name for path in downloads.rglob("*")] == ["repdyn-downloads"]


def test_the_disk_budget_is_never_exceeded(tasks, tmp_path, monkeypatch):
    """With a budget for one checkpoint, the next one is downloaded after the previous one is deleted."""
    size = 0
    peaks = []
    original = Downloads._reserve

    def watched(self, n_bytes):
        nonlocal size
        size = n_bytes
        folder = original(self, n_bytes)
        peaks.append(sum(self._held.values()))
        return folder

    monkeypatch.setattr(Downloads, "_reserve", watched)
    report = measure_tasks(tasks, open_store(tmp_path / "wide"), SETTINGS, downloads_in(tmp_path / "d"))
    assert max(peaks) == 2 * size  # prefetching, but never more than one ahead
    peaks.clear()
    narrow = downloads_in(tmp_path / "d", budget_bytes=int(1.5 * size))
    report = measure_tasks(tasks, open_store(tmp_path / "narrow"), SETTINGS, narrow)
    assert (len(report.measured), max(peaks)) == (3, size)


def test_a_checkpoint_larger_than_the_budget_fails_for_this_budget(tasks, tmp_path):
    store = open_store(tmp_path / "store")
    report = measure_tasks(tasks[:1], store, SETTINGS, downloads_in(tmp_path / "d", budget_bytes=1000))
    assert "GB, more than the 1e-06 GB of --max-disk" in report.failed[0][1]
    # another budget may have room for it, so nothing stands in its way
    assert partition_tasks(tasks, store, SETTINGS).waiting == tasks
    measure_tasks(tasks, store, SETTINGS, downloads_in(tmp_path / "d"))
    assert len(partition_tasks(tasks, store, SETTINGS).done) == 3
    assert not list(store.path.rglob("*failed*"))


def test_the_next_checkpoint_is_fetched_while_one_is_measured(tasks, tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr(loop, "measure_checkpoint", _slow(loop.measure_checkpoint, events))
    fetch = Downloads.fetch

    def noted(self, target, on_bytes):
        fetched = fetch(self, target, on_bytes)
        events.append(f"fetched {target.step}")
        return fetched

    monkeypatch.setattr(Downloads, "fetch", noted)
    measure_tasks(tasks, open_store(tmp_path / "store"), SETTINGS, downloads_in(tmp_path / "d"))
    assert events.index("fetched 8") < events.index("measured 0")
    assert events.index("fetched 16") > events.index("measured 0")


def _slow(measure, events):
    def measured(task, *arguments):
        timing = measure(task, *arguments)
        time.sleep(0.5)
        events.append(f"measured {task.target.step}")
        return timing

    return measured


def test_files_in_the_cache_of_the_hub_are_used_and_not_deleted(hub, tasks, tmp_path):
    import huggingface_hub

    target = tasks[0].target
    huggingface_hub.snapshot_download(target.repository, revision=target.commit)
    n_requests = len(hub.requests)
    store = open_store(tmp_path / "store")
    measure_tasks(tasks[:1], store, SETTINGS, downloads_in(tmp_path / "d", budget_bytes=1))
    assert not [path for _, path in hub.requests[n_requests:] if "/resolve/" in path]
    assert list((tmp_path / "hub_cache").rglob("model.safetensors"))


def test_values_that_are_not_comparable_are_not_added_to_a_run(tasks, family, tmp_path):
    store = open_store(tmp_path / "store")
    measure_tasks(tasks[:1], store, SETTINGS, downloads_in(tmp_path / "d"))
    check_comparable(tasks, store, SETTINGS)
    with pytest.raises(ValueError, match="expected one layers for the run 'lab/model', got .* has it with ''"):
        check_comparable(tasks, store, settings(layers="layers.*"))
    positions = settings(token_positions=slice(2, None))
    with pytest.raises(
        ValueError, match="expected one layers for the run .*, got .*token_positions.*2:.*, but .* has it with"
    ):
        check_comparable(tasks, store, positions)
    assert partition_tasks(tasks, store, positions).waiting == tasks
    report = measure_tasks(tasks[:1], open_store(tmp_path / "other"), positions, downloads_in(tmp_path / "d"))
    assert "leave token_positions= out" in report.failed[0][1]
    with pytest.raises(ValueError, match="one dtype .*, got 'bfloat16', but .* has it with 'float32'; give another"):
        check_comparable(tasks, store, settings(loading=Loading(dtype="bfloat16")))
    local = [Task(target, tasks[0].probe) for target in find_checkpoints(family[0].parent, "lab/model")]
    with pytest.raises(
        ValueError,
        match="one location for the run 'lab/model', got '/.*family', but .* has it with 'lab'",
    ):
        check_comparable(local, store, SETTINGS)


def test_a_run_whose_folder_is_a_link_is_not_written_through(tasks, tmp_path):
    store = open_store(tmp_path / "store")
    (tmp_path / "elsewhere").mkdir()
    store.path.mkdir()
    store.folder_of("lab/model").symlink_to(tmp_path / "elsewhere")
    message = "expected a folder for the run 'lab/model' in .*, got a symbolic link, .* another --store"
    with pytest.raises(ValueError, match=message):
        check_comparable(tasks, store, SETTINGS)
    with pytest.raises(ValueError, match=message):
        measure_tasks(tasks, store, SETTINGS, downloads_in(tmp_path / "d"))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def _with_other_byte(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.extended
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-30],
        lambda content: _with_other_byte(content, len(content) // 5),
        lambda content: _with_other_byte(content, content.rindex(b"parquet-cpp")),  # decoding does not notice this one
    ],
    ids=["cut", "data", "footer"],
)
def test_a_damaged_file_is_measured_again(tasks, tmp_path, damage):
    store = open_store(tmp_path / "store")
    measure_tasks(tasks[:1], store, SETTINGS, downloads_in(tmp_path / "d"))
    (path,) = store.path.glob("*/step*.parquet")
    path.write_bytes(damage(path.read_bytes()))
    assert partition_tasks(tasks, store, SETTINGS).waiting == tasks
    check_comparable(tasks, store, SETTINGS)
    measure_tasks(tasks, store, SETTINGS, downloads_in(tmp_path / "d"))
    assert store.steps("lab/model") == [0, 8, 16]
    assert geometry(store)["step"].nunique() == 3


def test_identical_failures_end_a_sweep(hub, family, probe, tmp_path):
    for step in range(7):
        hub.publish("lab/many", f"step{step}", family[8])
    model = PublishedModel("many", "", "lab/many", "lab/many", r"step(?P<step>\d+)")
    tasks = [Task(target, probe) for target in select_targets(model, Hub()).targets]
    store = open_store(tmp_path / "store")
    with pytest.raises(
        SweepStoppedError, match="the first 5 checkpoints failed for the same reason: .*'blocks.*' matches none"
    ):
        measure_tasks(tasks, store, settings(layers="blocks.*"), downloads_in(tmp_path / "d"))
    assert len(partition_tasks(tasks, store, settings(layers="blocks.*")).failed_before) == 5


def test_cancelling_does_not_wait_for_an_unresponsive_hub(hub, tasks, tmp_path, monkeypatch):
    hub.fault(tasks[1].target.commit, "stall", seconds=20)
    monkeypatch.setattr(loop, "measure_checkpoint", interrupted)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        measure_tasks(tasks, open_store(tmp_path / "store"), SETTINGS, downloads_in(tmp_path / "d"))
    assert time.monotonic() - start < 5
    assert not list((tmp_path / "d").rglob("*.safetensors"))


def interrupted(*arguments):
    time.sleep(0.5)  # the next one is on its way
    raise KeyboardInterrupt

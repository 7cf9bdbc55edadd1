"""Sweeps on Ray workers: the results of one process, lost workers and interruptions."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import psutil
import pytest
from ray_helpers import (
    ANALYZE,
    SETTINGS,
    STEPS,
    analyze,
    assert_equal,
    downloads_by_step,
    find_tasks,
    n_stored,
    remaining_files,
    repeatedly,
    slow,
    sweep_in_one_process,
    wait_until,
    workers_by_step,
)
from sweeping import main, report_of

from repdyn import Probe, open_store
from repdyn.checkpoints import ray_engine
from repdyn.checkpoints.errors import SweepStoppedError
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.measuring import store_failure
from repdyn.checkpoints.ray_engine import sweep_with_ray
from repdyn.checkpoints.tasks import partition_tasks
from repdyn.cli import main as cli
from repdyn.cli.flags import in_flags
from repdyn.store import Store

pytestmark = pytest.mark.process

pytest.importorskip("ray")


@pytest.mark.once
def test_two_workers_store_the_same_rows_and_failures_as_one_process(
    cluster, hub, tasks, store, options, tmp_path
):
    hub.fault(
        f"{tasks[3].target.commit}/model",
        "status",
        code=404,
        headers={"X-Error-Code": "EntryNotFound"},
    )
    observed: list[dict[int, int]] = []
    for task in tasks:
        slow(hub, task, bytes_per_second=70_000)

    def observe() -> None:
        observed.append(workers_by_step(tmp_path / "downloads", tasks))

    with repeatedly(observe):
        report = report_of(sweep_with_ray(tasks, store, options(), Hub()))
    workers = {pid for moment in observed for pid in moment.values()}
    assert len(workers) == 2
    assert os.getpid() not in workers
    assert any(set(moment.values()) == workers for moment in observed), (
        "the workers never ran at the same time"
    )

    expected, alone = sweep_in_one_process(tasks, tmp_path)
    assert len(report.measured) == 5
    assert {task.target.step for task in report.measured} == set(STEPS) - {24}
    assert report.failed == expected.failed
    assert "the hub answered 404" in report.failed[0][1]
    assert_equal(store, alone)
    assert remaining_files(tmp_path / "downloads") == []


@pytest.mark.once
def test_the_checkpoint_of_a_lost_worker_is_retried_or_recorded_as_failed(
    cluster, hub, published, store, probe, tmp_path, monkeypatch, capsys
):
    """The worker of one checkpoint is killed once during its download, that of another every
    time.
    """
    monkeypatch.setattr(ray_engine, "MAX_RETRIES", 1)
    probe.save(tmp_path / "probe.safetensors")
    tasks = find_tasks(probe)
    slow(hub, tasks[0], bytes_per_second=1000, times=1)  # for more than a minute, the first time
    slow(hub, tasks[1], bytes_per_second=1000)
    killed: list[tuple[int, int]] = []

    def kill() -> None:
        fetched = downloads_by_step(hub, tasks)
        for step, pid in workers_by_step(tmp_path / "downloads", tasks).items():
            times = len([before for before, _ in killed if before == step])
            if step in {0, 8} and times < min(fetched[step], {0: 1, 8: 2}[step]):
                assert list((tmp_path / "downloads").rglob("*.incomplete"))
                os.kill(pid, signal.SIGKILL)
                killed.append((step, pid))

    arguments = {
        "--probe": tmp_path / "probe.safetensors",
        "--store": store.path,
        "--engine": "ray",
        "--workers": 2,
    }
    arguments |= {"--downloads": tmp_path / "downloads", "--device": "cpu"}
    with repeatedly(kill), pytest.raises(SystemExit) as ended:
        main(
            ["lab/model", "--no-loss", *(str(part) for pair in arguments.items() for part in pair)]
        )
    assert sorted(step for step, _ in killed) == [0, 8, 8]
    assert len({pid for _, pid in killed}) == 3
    assert ended.value.code == cli.FAILED
    reason = (
        "its worker was lost 2 times, most likely out of memory (WorkerCrashedError); try fewer "
        "workers="
    )
    assert f"not measured: lab/model step8: {in_flags(reason)}" in capsys.readouterr().err
    assert partition_tasks(tasks, store, SETTINGS).failed_before == [tasks[1]]
    assert downloads_by_step(hub, tasks) == dict.fromkeys(STEPS, 1) | {0: 2, 8: 2}, (
        "a checkpoint was measured twice"
    )
    assert remaining_files(tmp_path / "downloads") == []

    alone = sweep_in_one_process(tasks[:1] + tasks[2:], tmp_path)[1]
    store_failure(tasks[1], alone, SETTINGS, reason)
    assert_equal(store, alone)


def test_identical_failures_end_the_sweep(cluster, hub, tasks, store, options, tmp_path):
    slow(hub, tasks[-1], bytes_per_second=1000)
    with pytest.raises(
        SweepStoppedError,
        match="^the first 5 checkpoints failed for the same reason: .*nowhere.*retry_failed=True",
    ):
        report_of(sweep_with_ray(tasks, store, replace(options(), layers="nowhere.*"), Hub()))
    assert (
        partition_tasks(tasks, store, replace(options(), layers="nowhere.*")).waiting == tasks[-1:]
    )
    assert remaining_files(tmp_path / "downloads") == []


def test_no_network_in_a_worker_ends_the_sweep(tasks, store, options, monkeypatch, capfd):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # only workers read it now
    with pytest.raises(SweepStoppedError, match="HF_HUB_OFFLINE") as raised:
        report_of(sweep_with_ray(tasks, store, replace(options(), workers=1), Hub()))
    assert type(raised.value) is SweepStoppedError
    assert "Traceback" not in "".join(capfd.readouterr())
    assert partition_tasks(tasks, store, SETTINGS).waiting == tasks


@pytest.mark.once
@pytest.mark.process
def test_interrupted_and_completed_by_the_same_command(
    cluster, environment, hub, published, tmp_path, monkeypatch, capsys
):
    at = {step: hub.repositories["lab/model"].branches[f"step{step}"] for step in STEPS}
    for step in (16, 24):
        hub.fault(f"{at[step]}/model.safetensors", "slow", bytes_per_second=1000)
    store = open_store(tmp_path / "store")
    downloads = tmp_path / "cache" / "downloads"
    process = analyze(environment, hub, tmp_path, tmp_path / "store")

    def are_two_downloads_under_way() -> bool:
        if not store.path.exists() or n_stored(store) != 2:
            return False
        return len(list(downloads.rglob("*.incomplete"))) == 2

    wait_until(are_two_downloads_under_way)
    others = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    printed = process.communicate()[0]
    assert process.returncode == cli.INTERRUPTED, printed
    assert "stopped; completed measurements are stored" in printed
    assert "Traceback" not in printed
    wait_until(lambda: not [other for other in others if other.is_running()], seconds=5)
    assert remaining_files(downloads) == []
    assert store.steps("lab/model") == [0, 8]
    stamps = {path: path.stat().st_mtime_ns for path in store.path.rglob("step*.parquet")}

    hub.faults.clear()
    monkeypatch.setattr("repdyn.views.publish.results.show_store", lambda *_: None)
    monkeypatch.setattr("repdyn.views.report.write_report", lambda _, path: path)
    with pytest.raises(SystemExit, match="^0$"):
        main([*ANALYZE, "--downloads", str(downloads), "--store", str(store.path)])
    printed = capsys.readouterr().err
    assert f"2 of 6 checkpoints are in {store.path} already" in printed
    assert "[4/4] lab/model step" in printed
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps, (
        "a checkpoint was measured again"
    )
    assert remaining_files(downloads) == []
    (probe,) = (Probe.load(path) for path in store.path.glob("probes/*"))
    assert_equal_values(store, sweep_in_one_process(find_tasks(probe), tmp_path)[1])


def assert_equal_values(swept: Store, other: Store) -> None:
    columns = ["step", "layer", "metric", "subset", "value", "checkpoint"]
    first, second = (store.to_pandas().query("layer.notna()")[columns] for store in (swept, other))
    # checkpoints, layers, and both metrics on two subsets each
    assert len(first) == 6 * 3 * 4
    assert first.reset_index(drop=True).equals(second.reset_index(drop=True))

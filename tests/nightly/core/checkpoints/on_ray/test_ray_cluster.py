"""A Ray cluster of some machines and a store on S3: a machine is lost, or the whole cluster."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from ray_helpers import (
    SETTINGS,
    STEPS,
    downloads_by_step,
    find_tasks,
    ray,
    slow,
    sweep_in_one_process,
    wait_until,
)
from sweeping import report_of

from repdyn import open_store
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.ray_engine import sweep_with_ray
from repdyn.checkpoints.tasks import Task, partition_tasks
from repdyn.store import Store

pytestmark = pytest.mark.process

pytest.importorskip("ray")

START = [Path(sys.executable).parent / "ray", "start", "--block", "--dashboard-agent-listen-port=0"]
START += ["--min-worker-port=0", "--max-worker-port=0", "--object-store-memory=100000000"]


class Cluster:
    """The processes of a cluster on this machine, each of which stands for a machine."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.machines: list[subprocess.Popen] = []
        self.address = ""
        self._n_cpus = 1

    def start(self, n_machines: int, n_cpus: int = 1) -> None:
        self._n_cpus = n_cpus
        address_file = Path(self.environment["RAY_TMPDIR"]) / "ray" / "ray_current_cluster"
        address_file.unlink(missing_ok=True)
        self._start("--head", "--port=0", "--include-dashboard=false")

        def has_address() -> bool:
            return address_file.exists() and bool(address_file.read_text())

        wait_until(has_address)
        self.address = address_file.read_text().strip()
        for _ in range(n_machines - 1):
            self._start(f"--address={self.address}")

    def _start(self, *options: str) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.machines.append(
            subprocess.Popen(
                [*START, f"--num-cpus={self._n_cpus}", *options], env=self.environment, **quiet
            )
        )

    def restart_ended(self) -> None:
        """Start machines again that did not find the head in time, as on a busy computer."""
        for machine in [machine for machine in self.machines[1:] if machine.poll() is not None]:
            self.machines.remove(machine)
            self._start(f"--address={self.address}")

    def lose(self, machine: subprocess.Popen) -> None:
        """Kill a machine's processes at once."""
        self.machines.remove(machine)
        with suppress(psutil.NoSuchProcess):
            processes = [
                *psutil.Process(machine.pid).children(recursive=True),
                psutil.Process(machine.pid),
            ]
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        machine.wait()

    def stop(self) -> None:
        for machine in list(self.machines):
            self.lose(machine)


@pytest.fixture
def machines(
    environment: dict[str, str], s3_environment: dict[str, str], monkeypatch
) -> Iterator[Cluster]:
    cluster = Cluster(environment | s3_environment)
    yield cluster
    ray.shutdown()
    cluster.stop()


def test_a_store_on_s3_survives_the_loss_of_a_machine_and_of_the_cluster(
    machines, hub, tasks, bucket, options: Callable, monkeypatch, tmp_path
):
    machines.start(3)
    monkeypatch.setenv("RAY_ADDRESS", machines.address)
    ray.init(machines.address, log_to_driver=False, logging_level="error")

    def has_three_machines() -> bool:
        machines.restart_ended()
        return sum(node["Alive"] for node in ray.nodes()) == 3

    wait_until(has_three_machines)
    ray.shutdown()
    for task in tasks:
        slow(hub, task, bytes_per_second=150_000)
    store = open_store(f"{bucket}/sweep")
    lost = []

    def lose_one() -> None:
        wait_until(lambda: sum(downloads_by_step(hub, tasks).values()) >= 2)
        machines.lose(machines.machines[-1])
        lost.append(time.monotonic())

    thread = threading.Thread(target=lose_one)
    thread.start()
    first = tasks[:4]
    report = report_of(sweep_with_ray(first, store, options(), Hub()))
    thread.join()
    assert lost
    assert report.failed == []
    assert {task.target.step for task in report.measured} <= {
        0,
        8,
        16,
        24,
    }  # the rest before their worker was lost
    assert open_store(store.location).steps("lab/model") == [0, 8, 16, 24]

    # the head and everything else are gone; another cluster measures what is left
    machines.stop()
    machines.start(2)
    monkeypatch.setenv("RAY_ADDRESS", machines.address)
    before = downloads_by_step(hub, tasks)
    left = partition_tasks(tasks, open_store(store.location), SETTINGS).waiting
    assert [task.target.step for task in left] == [32, 40]
    report = report_of(sweep_with_ray(left, store, options(), Hub()))
    assert sorted(task.target.step for task in report.measured) == [32, 40]
    assert {step for step, times in (downloads_by_step(hub, tasks) - before).items() if times} == {
        32,
        40,
    }

    check_equal_to_one_process(store, tasks, tmp_path)


def check_equal_to_one_process(store: Store, tasks: list[Task], folder: Path) -> None:
    alone = sweep_in_one_process(tasks, folder)[1].to_pandas()
    on_cluster = open_store(store.location).to_pandas()
    same = ["run", "step", "layer", "metric", "subset", "value", "low", "high"]
    values = [
        frame.loc[frame["layer"].notna(), same].astype(object).reset_index(drop=True)
        for frame in (on_cluster, alone)
    ]
    assert len(values[0]) > 0
    assert values[0].equals(values[1])
    assert tuple(sorted(on_cluster["step"].unique())) == STEPS
    assert find_tasks(tasks[0].probe) == tasks

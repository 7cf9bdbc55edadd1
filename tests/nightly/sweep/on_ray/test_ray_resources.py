"""The resources that Ray tasks request, and the errors of options and clusters."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from ray_helpers import ray

from repdyn.checkpoints import ray_engine
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.ray_engine import sweep_with_ray
from repdyn.checkpoints.run import SweepResult

pytest.importorskip("ray")


def test_no_tasks_start_no_cluster_and_usage_statistics_are_off(options, store, monkeypatch):
    monkeypatch.setattr(ray, "init", None)
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")
    assert sweep_with_ray([], store, options(), Hub()) == SweepResult()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["RAY_task_oom_retries"] == "3"  # noqa: SIM112


def cluster_of(*machines: dict[str, float]) -> SimpleNamespace:
    nodes = [{"Alive": True, "Resources": {"node:10.0.0.1": 1.0, **machine}} for machine in machines]
    return SimpleNamespace(nodes=lambda: [*nodes, {"Alive": False, "Resources": {"CPU": 1, "GPU": 8, "disk_gb": 9}}])


def test_a_task_that_fits_no_machine_is_an_error(options):
    with pytest.raises(
        ValueError,
        match="^expected a Ray cluster with a machine that has GPU, CPU, got CPU; CPU, memory; add one, or choose --device cpu$",
    ):
        ray_engine._machines(cluster_of({"CPU": 4}, {"CPU": 4, "memory": 3}), options("--device", "cuda"))
    separate = cluster_of({"CPU": 4, "GPU": 1}, {"CPU": 4, "disk_gb": 100})
    with pytest.raises(ValueError, match="that has disk_gb, GPU, CPU, got CPU, GPU; CPU, disk_gb; start each with"):
        ray_engine._machines(separate, options("--device", "cuda", "--max-disk", "1GB"))
    head = {"memory": 9.0}
    assert len(ray_engine._machines(cluster_of(head, {"CPU": 4}), options())) == 1


@pytest.mark.parametrize(
    ("machines", "max_disk", "budget", "gigabytes", "requested"),
    [
        ([{"CPU": 8, "disk_gb": 100}], "100GB", 100, 25, 25),
        ([{"CPU": 8, "disk_gb": 100}], "200GB", 100, 25, 25),
        ([{"CPU": 8, "disk_gb": 100}], "50GB", 50, 25, 50),
        ([{"CPU": 8, "disk_gb": 1}], "500MB", 0.5, 0.26, 0.52),
        ([{"CPU": 8, "disk_gb": 3}], "2.5GB", 2.5, 2.5, 3),
        ([{"CPU": 8, "disk_gb": 100}], "100GB", 100, 120, 100),
        ([{"CPU": 8, "disk_gb": 100}], "100GB", 100, 1e-9, 0.01),
        ([{"CPU": 8, "disk_gb": 40}, {"CPU": 8, "disk_gb": 100}], "100GB", 100, 60, 60),
    ],
    ids=[
        "its gigabytes",
        "the machine's limit",
        "a lower limit",
        "part of one",
        "all of it",
        "too large",
        "rounded up",
        "unequal",
    ],
)
def test_a_task_requests_its_share_of_the_disk_budget(options, machines, max_disk, budget, gigabytes, requested):
    parsed = options("--max-disk", max_disk)
    budget_bytes = ray_engine._budget(machines, parsed)
    assert budget_bytes == budget * 1e9
    resources = ray_engine._resources(int(gigabytes * 1e9), machines, budget_bytes, parsed)
    assert resources == {"num_cpus": 4, "num_gpus": 0, "resources": {"disk_gb": pytest.approx(requested, abs=1e-9)}}


def test_a_task_requests_a_share_of_the_smallest_machine_and_a_gpu(options):
    parsed = options("--device", "cuda", "--workers", "3")
    machines = [{"CPU": 64, "GPU": 8}, {"CPU": 16, "GPU": 1}]
    budget_bytes = ray_engine._budget(machines, parsed)
    assert ray_engine._resources(10, machines, budget_bytes, parsed) == {"num_cpus": 5, "num_gpus": 1, "resources": {}}

"""The resources that Ray tasks request, and the errors of options and clusters."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from ray_helpers import ray

from repdyn.checkpoints import ray_engine
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.ray_engine import sweep_with_ray

pytest.importorskip("ray")


def test_no_tasks_start_no_cluster_and_usage_statistics_are_off(options, store, monkeypatch):
    monkeypatch.setattr(ray, "init", None)
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")
    assert list(sweep_with_ray([], store, options(), Hub())) == []
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["RAY_task_oom_retries"] == "3"  # noqa: SIM112


def cluster_of(*machines: dict[str, float]) -> SimpleNamespace:
    nodes = [
        {"Alive": True, "Resources": {"node:10.0.0.1": 1.0, **machine}} for machine in machines
    ]
    return SimpleNamespace(
        nodes=lambda: [*nodes, {"Alive": False, "Resources": {"CPU": 1, "GPU": 8}}]
    )


def test_a_task_that_fits_no_machine_is_an_error(options):
    with pytest.raises(ValueError, match="GPU"):
        ray_engine._resources(
            cluster_of({"CPU": 4}, {"CPU": 4, "memory": 3}), replace(options(), device="cuda")
        )
    assert (
        ray_engine._resources(cluster_of({"memory": 9.0}, {"CPU": 4}), options())["num_cpus"] == 2
    )


def test_a_task_requests_a_share_of_the_smallest_machine_and_a_gpu(options):
    cluster = cluster_of({"CPU": 64, "GPU": 8}, {"CPU": 16, "GPU": 1})
    assert ray_engine._resources(cluster, replace(options(), device="cuda", workers=3)) == {
        "num_cpus": 5,
        "num_gpus": 1,
    }

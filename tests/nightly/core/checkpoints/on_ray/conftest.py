"""A Ray cluster, and checkpoints to measure on it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from hub_server import HubServer
from ray_helpers import NOWHERE, STEPS, find_tasks, ray, wait_until
from sweeping import options_of

from repdyn import Probe, open_store
from repdyn.checkpoints.completion import completed
from repdyn.checkpoints.options import CompleteOptions
from repdyn.checkpoints.tasks import Task
from repdyn.metrics import DEFAULT_METRICS
from repdyn.store import Store


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of workers: without offline mode and tokens, and with a short path for Ray's
    sockets.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "WANDB_", "RAY_"))
    }
    sockets = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    yield inherited | {
        "HF_HOME": str(tmp_path_factory.mktemp("home")),
        "HF_ENDPOINT": NOWHERE,  # workers get the endpoint as an argument
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": os.environ["RAY_AUTH_MODE"],
        "RAY_AUTH_TOKEN": os.environ["RAY_AUTH_TOKEN"],
        "RAY_TMPDIR": sockets,
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    shutil.rmtree(sockets, ignore_errors=True)


@pytest.fixture(autouse=True)
def _ray_environment(
    request: pytest.FixtureRequest, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "cluster" not in request.fixturenames:
        ray.shutdown()
    for name in ("HF_HUB_OFFLINE", "RAY_ADDRESS", "RAY_task_oom_retries"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def cluster_address(environment: dict[str, str]) -> Iterator[str]:
    """The address of an external Ray cluster with two CPUs and without ``disk_gb``."""
    command = [
        Path(sys.executable).parent / "ray",
        "start",
        "--head",
        "--block",
        "--port=0",
        "--num-cpus=2",
    ]
    command += ["--include-dashboard=false", "--dashboard-agent-listen-port=0"]
    command += [
        "--min-worker-port=0",
        "--max-worker-port=0",
    ]  # any ports, since other clusters may be running
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        address_file = Path(environment["RAY_TMPDIR"]) / "ray" / "ray_current_cluster"

        def has_address() -> bool:
            return address_file.exists() and bool(address_file.read_text())

        wait_until(has_address)
        yield address_file.read_text().strip()
        ray.shutdown()
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()


@pytest.fixture
def cluster(cluster_address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The cluster, with one connection for consecutive tests, since starting workers is slow."""
    if not ray.is_initialized():
        before = signal.getsignal(signal.SIGTERM)
        ray.init(cluster_address, log_to_driver=False, logging_level="error")
        signal.signal(signal.SIGTERM, before)
    monkeypatch.setattr(ray, "init", lambda *_, **__: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setenv("RAY_ADDRESS", cluster_address)
    return cluster_address


@pytest.fixture
def probe() -> Probe:
    tokens = torch.randint(3, 250, (24, 12), generator=torch.Generator().manual_seed(0))
    return Probe.from_tokens(tokens, max_vectors=192, batch_vectors=96)


@pytest.fixture
def published(hub: HubServer, save_family: Callable, tmp_path: Path) -> dict[int, Path]:
    """The local folders of six checkpoints of lab/model on the hub."""
    family = save_family(tmp_path / "family", STEPS)
    for step, folder in family.items():
        hub.publish("lab/model", f"step{step}", folder)
    return family


@pytest.fixture
def tasks(published: dict[int, Path], probe: Probe) -> list[Task]:
    return find_tasks(probe)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


@pytest.fixture
def options(tmp_path: Path) -> Callable[..., CompleteOptions]:
    def make() -> CompleteOptions:
        command = ["lab/model", "--engine", "ray", "--workers", "2", "--device", "cpu"]
        given = options_of(*command, "--downloads", tmp_path / "downloads")
        return completed(replace(given, loss=False, metrics=DEFAULT_METRICS, dtype="float32"))

    return make

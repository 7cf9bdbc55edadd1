"""Tasks, stores and workers of the tests of sweeps on Ray."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hub_server import HubServer
from sweeping import Report, downloads_in, measure_tasks, settings

from repdyn import Probe, open_store
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.options import CompleteOptions, Loading
from repdyn.checkpoints.published import select_targets
from repdyn.checkpoints.suites import PublishedModel
from repdyn.checkpoints.tasks import Task
from repdyn.store import Store

# read when Ray is imported; without them it writes a token to the user's home
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
try:
    import ray
except ImportError:  # the test modules are skipped
    ray = None

SETTINGS = settings(loading=Loading(dtype="float32"))
STEPS = tuple(range(0, 48, 8))
SCRIPT = Path(__file__).parents[5] / "analyze_checkpoints.py"
NOWHERE = "http://127.0.0.1:9"
ANALYZE = ("lab/model", "--engine", "ray", "--workers", "2", "--device", "cpu", "--text", "builtin")
ANALYZE += ("--max-vectors", "512")
NOT_COMPARED = ["seconds", "measured_at", "library_versions"]


def analyze(
    environment: dict[str, str], hub: HubServer, folder: Path, store: Path | str
) -> subprocess.Popen[str]:
    """Start a sweep of the published checkpoints as a user does, in a folder with a cache of its
    own.
    """
    variables = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder / "home"),
        "REPDYN_CACHE": str(folder / "cache"),
    }
    return subprocess.Popen(
        [sys.executable, SCRIPT, *ANALYZE, "--store", store],
        env=environment | variables,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def find_tasks(probe: Probe) -> list[Task]:
    model = PublishedModel(
        name="model",
        suite="",
        run="lab/model",
        repository="lab/model",
        revisions=r"step(?P<step>\d+)",
    )
    return [Task(target, probe) for target in select_targets(model, Hub()).targets]


def sweep_in_one_process(
    tasks: list[Task], folder: Path, settings: CompleteOptions = SETTINGS
) -> tuple[Report, Store]:
    """Return the result and the store of a sweep without Ray."""
    store = open_store(folder / "one_process")
    return measure_tasks(
        tasks, store, settings, downloads_in(folder / "one_process_downloads")
    ), store


def assert_equal(expected: Store, other: Store) -> None:
    first, second = (
        store.to_pandas()
        .query("layer.notna() or reason.notna()")
        .drop(columns=NOT_COMPARED, errors="ignore")
        for store in (expected, other)
    )
    assert len(first) > 0
    assert first.reset_index(drop=True).equals(second.reset_index(drop=True))
    files = (
        {path.name for path in store.path.glob("*/step*.parquet")} for store in (expected, other)
    )
    assert next(files) == next(files)


def slow(hub: HubServer, task: Task, *, bytes_per_second: int, times: int | None = None) -> None:
    hub.fault(
        f"{task.target.commit}/model.safetensors",
        "slow",
        bytes_per_second=bytes_per_second,
        times=times,
    )


def n_stored(store: Store) -> int:
    return len(list(store.path.rglob("step*.parquet")))


def remaining_files(downloads: Path) -> list[Path]:
    """Return the files and folders of a folder for downloads, without its lock."""
    return [path for path in downloads.glob("*/*") if path.name != ".purge"]


def downloads_by_step(hub: HubServer, tasks: list[Task]) -> Counter[int]:
    steps = {task.target.commit: task.target.step for task in tasks}
    fetched = [
        path
        for method, path in list(hub.requests)
        if method == "GET" and path.endswith("model.safetensors")
    ]
    return Counter(steps[path.split("/")[4]] for path in fetched)


def workers_by_step(downloads: Path, tasks: list[Task]) -> dict[int, int]:
    """Return the id of the worker process that downloads each step, which the name of its folder
    has.
    """
    steps = {task.target.commit: task.target.step for task in tasks}
    trees = downloads.glob("repdyn-downloads/*/*/.cache/huggingface/trees/*.json")
    return {
        steps[tree.stem]: int(tree.parents[4].name.split("+")[1])
        for tree in trees
        if tree.stem in steps
    }


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the condition did not become true")
        time.sleep(0.05)


@contextmanager
def repeatedly(function: Callable[[], None]) -> Iterator[None]:
    """Call a function repeatedly in another thread, since Ray requires the main one."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(0.2):  # looking for workers among all processes takes a while itself
            function()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

"""A run's own 25 checkpoints, swept inside a disk budget that fits two, killed twice at random
moments, and finished.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hub_server import HubServer
from jobs import batches, tiny_language_model, tracker, trainer
from small import random_tokens
from sweeping import main

from repdyn import Probe, open_store
from repdyn.callbacks import SavePretrainedCheckpoint
from repdyn.store import Store

N_CHECKPOINTS = 25
GEOMETRY = [
    "run",
    "step",
    "layer",
    "metric",
    "subset",
    "value",
    "std",
    "n_unique",
    "checkpoint",
    "dtype",
    "probe",
]
SCRIPT = Path(__file__).parents[4] / "analyze_checkpoints.py"


class PublishedCheckpoint:
    """A trained run on a hub, and the command that sweeps it."""

    def __init__(self, hub: HubServer, folder: Path) -> None:
        self.hub = hub
        self.folder = folder
        self.probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
        self.probe.save(folder / "probe.safetensors")
        self.tracker = tracker(self.probe, schedule=1)
        save = SavePretrainedCheckpoint(schedule=1, dirpath=folder / "saved")
        job = tiny_language_model(hidden_size=64, dropout=0.0)
        trainer(folder, self.tracker, save, max_steps=N_CHECKPOINTS - 1).fit(job, batches(n=96))
        for path in (folder / "saved").glob("step*"):
            hub.publish("lab/own", path.name, path)
        self.size = sum(path.stat().st_size for path in (folder / "saved" / "step0").iterdir())

    @property
    def budget(self) -> int:
        return int(2.5 * self.size)

    @property
    def downloads(self) -> Path:
        return self.folder / "downloads"

    def command(self, store: Path) -> list[str]:
        options = {
            "--probe": self.folder / "probe.safetensors",
            "--store": store,
            "--downloads": self.downloads,
            "--max-disk": f"{self.budget}",
            "--device": "cpu",
        }
        return ["lab/own", *(str(part) for pair in options.items() for part in pair)]

    def start(self, store: Path) -> subprocess.Popen:
        command = [sys.executable, SCRIPT, *self.command(store)]
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HF_", "WANDB_"))
        }
        environment |= {
            "HF_ENDPOINT": self.hub.url,
            "HF_HOME": str(self.folder / "home"),
            "NO_PROXY": "127.0.0.1",
        }
        return subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )

    def sweep(self, store: Path) -> None:
        """The same in this process, undisturbed and without figures."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("signal.signal", lambda *_: None)
            patched.setattr("repdyn.checkpoints.hub.has_abandoned_threads", lambda: False)
            patched.setattr("repdyn.views.publish.results.show_store", lambda *_: None)
            patched.setattr("repdyn.views.report.write_report", lambda _, path: path)
            with pytest.raises(SystemExit, match="^0$"):
                main(self.command(store))

    def on_disk(self) -> int:
        """Bytes in the downloads' folder now; what is removed while it is looked at does not
        count.
        """
        total = 0
        for folder, _, names in os.walk(self.downloads):
            for name in names:
                with suppress(FileNotFoundError):
                    total += os.path.getsize(os.path.join(folder, name))
        return total


@pytest.fixture
def published(hub: HubServer, tmp_path: Path, without_figures: None) -> PublishedCheckpoint:
    return PublishedCheckpoint(hub, tmp_path)


def finished(store: Path) -> int:
    return len(list(store.glob("*/step*.parquet")))


def watch(
    process: subprocess.Popen, published: PublishedCheckpoint, until: Callable[[], bool]
) -> int:
    """Wait, and return the most that lay on disk meanwhile, in bytes."""
    peak = 0
    while process.poll() is None and not until():
        peak = max(peak, published.on_disk())
        time.sleep(0.01)
    return peak


@pytest.mark.once
@pytest.mark.process
def test_killed_twice_at_random_and_finished(published, tmp_path):
    moments = random.Random()  # not seeded: every run of the suite tries other moments
    published.hub.fault("safetensors", "slow", bytes_per_second=4 * published.size)
    broken = tmp_path / "broken"
    whole = tmp_path / "whole"
    peaks = []
    for attempt in (1, 2):
        process = published.start(broken)
        so_many = finished(broken) + moments.randint(attempt, 8)
        peaks.append(watch(process, published, lambda so_many=so_many: finished(broken) >= so_many))
        time.sleep(moments.uniform(0, 0.4))
        assert process.poll() is None, process.communicate()[0]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    at_the_second_kill = finished(broken)
    stamps = {path: path.stat().st_mtime_ns for path in broken.rglob("step*.parquet")}
    assert 0 < at_the_second_kill < N_CHECKPOINTS
    process = published.start(broken)
    peaks.append(watch(process, published, lambda: False))
    printed = process.communicate()[0]
    assert process.returncode == 0, printed
    assert f"{at_the_second_kill} of {N_CHECKPOINTS} checkpoints are in {broken} already" in printed

    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps, (
        "something measured was measured again"
    )
    fetched = Counter(
        path.split("/")[4] for method, path in published.hub.requests if _is_weights(method, path)
    )
    # the one in hand and the one being fetched may be fetched again after each kill
    assert sum(fetched.values()) <= N_CHECKPOINTS + 2 * 2, fetched
    assert max(peaks) <= published.budget
    assert [path.name for path in published.downloads.rglob("*")] == ["repdyn-downloads"]

    published.hub.faults.clear()
    published.sweep(whole)
    assert_equal(open_store(broken), open_store(whole))
    live = open_store(published.tracker.store.path).to_pandas()
    swept = open_store(broken).to_pandas()
    values = ["step", "layer", "metric", "subset", "value"]
    assert geometry(swept)[values].equals(geometry(live)[values])


def _is_weights(method: str, path: str) -> bool:
    return method == "GET" and path.endswith("model.safetensors")


def geometry(frame):
    frame = frame[frame["layer"].notna()]
    return frame.sort_values(["step", "layer", "metric", "subset"]).reset_index(drop=True)


def assert_equal(expected: Store, other: Store) -> None:
    files = (
        sorted(path.name for path in store.path.glob("*/*") if path.parent.name != "figures")
        for store in (expected, other)
    )
    assert next(files) == next(files)
    first, second = (geometry(store.to_pandas())[GEOMETRY] for store in (expected, other))
    # layers 0 to 2; anisotropy on two subsets, the dimension of all and without repeats
    assert len(first) == N_CHECKPOINTS * 3 * 4
    assert first.equals(second)

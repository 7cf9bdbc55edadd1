"""A sweep over Ray's workers: the numbers of one process, whatever becomes of a worker, and nothing left behind."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from hub_server import HubServer

from repdyn import Probe, open_store
from repdyn.cli import sweep as cli
from repdyn.hub.client import Hub
from repdyn.hub.errors import SweepStoppedError
from repdyn.hub.weights import Loading
from repdyn.models import build_model
from repdyn.store import Store
from repdyn.sweep import ray_engine
from repdyn.sweep.checkpoint import Settings, Task, store_failure
from repdyn.sweep.downloads import DownloadLimits, Downloads
from repdyn.sweep.loop import SweepResult, partition_tasks, sweep
from repdyn.sweep.options import parser
from repdyn.sweep.ray_engine import sweep_with_ray
from repdyn.sweep.suites import PublishedModel
from repdyn.sweep.targets import select_targets

# read when Ray is imported; without them it would keep a token in the user's home
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
ray = pytest.importorskip("ray")

SETTINGS = Settings(loading=Loading(dtype="float32"))
STEPS = tuple(range(0, 48, 8))
SCRIPT = Path(__file__).parents[2] / "analyze_checkpoints.py"
NOWHERE = "http://127.0.0.1:9"
NOT_COMPARED = ["seconds", "measured_at", "library_versions"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What workers find: nothing of this process's offline hub, no token, and a short path for Ray's sockets."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "WANDB_", "RAY_"))}
    sockets = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    yield kept | {
        "HF_HOME": str(tmp_path_factory.mktemp("home")),
        "HF_ENDPOINT": NOWHERE,  # a worker is told where the hub is
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
def _in_this_environment(
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
    """A Ray of two CPUs that somebody else has started, without ``disk_gb``."""
    command = [Path(sys.executable).parent / "ray", "start", "--head", "--block", "--port=0", "--num-cpus=2"]
    command += ["--include-dashboard=false", "--dashboard-agent-listen-port=0"]
    command += ["--min-worker-port=0", "--max-worker-port=0"]  # any, as other Rays may run here
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        told = Path(environment["RAY_TMPDIR"]) / "ray" / "ray_current_cluster"
        wait_until(lambda: told.exists() and told.read_text())
        yield told.read_text().strip()
        ray.shutdown()
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()


@pytest.fixture
def cluster(cluster_address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Tests that follow each other share a connection: each has workers of its own, which are slow to start."""
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
    """Six checkpoints of lab/model on the hub; their folders here."""
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
def options(tmp_path: Path) -> Callable[..., Namespace]:
    def make(*more: str) -> Namespace:
        command = ["lab/model", "--engine", "ray", "--workers", "2", "--device", "cpu"]
        return parser("sweep").parse_args([*command, "--downloads", str(tmp_path / "downloads"), *more])

    return make


def find_tasks(probe: Probe) -> list[Task]:
    model = PublishedModel("model", "", "lab/model", "lab/model", r"step(?P<step>\d+)")
    return [Task(target, probe) for target in select_targets(model, Hub()).targets]


def undisturbed(tasks: list[Task], folder: Path, settings: Settings = SETTINGS) -> tuple[SweepResult, Store]:
    """What one process finds, without Ray."""
    store = open_store(folder / "undisturbed")
    return sweep(tasks, store, settings, Downloads(Hub(), DownloadLimits(folder / "undisturbed_downloads"))), store


def assert_equal(one: Store, other: Store) -> None:
    first, second = (
        store.to_pandas().query("layer.notna() or reason.notna()").drop(columns=NOT_COMPARED, errors="ignore")
        for store in (one, other)
    )
    assert len(first) > 0
    assert first.reset_index(drop=True).equals(second.reset_index(drop=True))
    files = ({path.name for path in store.path.glob("*/step*.parquet")} for store in (one, other))
    assert next(files) == next(files)


def slow(hub: HubServer, task: Task, *, bytes_per_second: int, times: int | None = None) -> None:
    hub.fault(f"{task.target.commit}/model.safetensors", "slow", bytes_per_second=bytes_per_second, times=times)


def finished(store: Store) -> int:
    return len(list(store.path.rglob("step*.parquet")))


def left_in(downloads: Path) -> list[Path]:
    """Files and folders there, but for the lock that stays."""
    return [path for path in downloads.glob("*/*") if path.name != ".purge"]


def downloads_by_step(hub: HubServer, tasks: list[Task]) -> Counter[int]:
    steps = {task.target.commit: task.target.step for task in tasks}
    fetched = [path for method, path in list(hub.requests) if method == "GET" and path.endswith("model.safetensors")]
    return Counter(steps[path.split("/")[4]] for path in fetched)


def holders(store: Store, tasks: list[Task]) -> dict[int, int]:
    """The worker that has a checkpoint in hand, by step: it holds the claim's file open."""
    steps = {claim_file(store, task): task.target.step for task in tasks}
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            for file in process.open_files() if process.name().startswith("ray::") else ():
                if file.path in steps:
                    found[steps[file.path]] = process.pid
    return found


def claim_file(store: Store, task: Task) -> str:
    """Found out from a store beside it, as asking for the claim itself would be in the worker's way."""
    beside = open_store(store.path.with_name("beside"))
    claim = beside.claim(SETTINGS.key(task))
    assert claim is not None
    claim.release()
    return claim.lock_file.replace(str(beside.path), str(store.path))


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("it did not happen")
        time.sleep(0.05)


@contextmanager
def meanwhile(look: Callable[[], None]) -> Iterator[None]:
    """Look again and again from another thread, as Ray wants the first one."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(0.05):
            look()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_two_workers_give_what_one_process_gives_failures_included(cluster, hub, tasks, store, options, tmp_path):
    hub.fault(f"{tasks[3].target.commit}/model", "status", code=404, headers={"X-Error-Code": "EntryNotFound"})
    in_hand: list[dict[int, int]] = []
    for task in tasks:
        slow(hub, task, bytes_per_second=70_000)
    with meanwhile(lambda: in_hand.append(holders(store, tasks))):
        report = sweep_with_ray(tasks, store, SETTINGS, Hub(), options())
    workers = {pid for moment in in_hand for pid in moment.values()}
    assert len(workers) == 2
    assert os.getpid() not in workers
    assert any(set(moment.values()) == workers for moment in in_hand), "never two at the same time"

    expected, alone = undisturbed(tasks, tmp_path)
    assert len(report.measured) == 5
    assert {task.target.step for task in report.measured} == set(STEPS) - {24}
    assert report.failed == expected.failed
    assert "is not on the hub (404)" in report.failed[0][1]
    assert_equal(store, alone)
    assert left_in(tmp_path / "downloads") == []


def test_a_lost_worker_s_checkpoint_is_measured_by_another_or_else_recorded(
    cluster, hub, published, store, probe, tmp_path, monkeypatch, capsys
):
    """The worker of one checkpoint is killed once, in the middle of its download; that of another each time."""
    monkeypatch.setattr(ray_engine, "TRIES_AFTER_A_LOST_WORKER", 1)
    probe.save(tmp_path / "probe.safetensors")
    tasks = find_tasks(probe)
    slow(hub, tasks[0], bytes_per_second=1000, times=1)  # for more than a minute, the first time
    slow(hub, tasks[1], bytes_per_second=1000)
    killed: list[tuple[int, int]] = []

    def kill() -> None:
        fetched = downloads_by_step(hub, tasks)
        for step, pid in holders(store, tasks).items():
            times = len([before for before, _ in killed if before == step])
            if step in {0, 8} and times < min(fetched[step], {0: 1, 8: 2}[step]):
                assert list((tmp_path / "downloads").rglob("*.incomplete"))
                os.kill(pid, signal.SIGKILL)
                killed.append((step, pid))

    arguments = {"--probe": tmp_path / "probe.safetensors", "--store": store.path, "--engine": "ray", "--workers": 2}
    arguments |= {"--downloads": tmp_path / "downloads", "--device": "cpu"}
    with meanwhile(kill), pytest.raises(SystemExit) as ended:
        cli.main(["lab/model", *(str(part) for pair in arguments.items() for part in pair)])
    assert sorted(step for step, _ in killed) == [0, 8, 8]
    assert len({pid for _, pid in killed}) == 3
    assert ended.value.code == cli.FAILED
    reason = "its worker was lost 2 times, most likely out of memory (WorkerCrashedError); try fewer --workers"
    assert f"not measured: lab/model step8: {reason}" in capsys.readouterr().err
    assert partition_tasks(tasks, store, SETTINGS).failed_before == [tasks[1]]
    assert downloads_by_step(hub, tasks) == dict.fromkeys(STEPS, 1) | {0: 2, 8: 2}, "something was measured twice"
    assert left_in(tmp_path / "downloads") == []

    alone = undisturbed(tasks[:1] + tasks[2:], tmp_path)[1]
    store_failure(tasks[1], alone, SETTINGS, reason)
    assert_equal(store, alone)


def test_a_mistake_that_fails_all_alike_ends_the_sweep(cluster, hub, tasks, store, options, tmp_path):
    slow(hub, tasks[-1], bytes_per_second=1000)
    mistaken = Settings(loading=SETTINGS.loading, layers="nowhere.*")
    with pytest.raises(SweepStoppedError, match="^the first 5 checkpoints all failed alike: .*nowhere.*--retry-failed"):
        sweep_with_ray(tasks, store, mistaken, Hub(), options())
    assert partition_tasks(tasks, store, mistaken).waiting == tasks[-1:]
    assert left_in(tmp_path / "downloads") == []


def test_no_network_in_a_worker_ends_the_sweep_with_a_plain_message(tasks, store, options, monkeypatch, capfd):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # in the workers; here it was read long ago
    with pytest.raises(
        SweepStoppedError, match="^the hub cannot be used, because HF_HUB_OFFLINE is set; unset it$"
    ) as raised:
        sweep_with_ray(tasks, store, SETTINGS, Hub(), options("--workers", "1"))
    assert type(raised.value) is SweepStoppedError
    assert "Traceback" not in "".join(capfd.readouterr())
    assert partition_tasks(tasks, store, SETTINGS).waiting == tasks


def test_a_cluster_without_the_disk_s_resource_is_told_how_to_get_it(cluster, tasks, store, options):
    message = (
        r"^expected a Ray cluster with a machine that has disk_gb, CPU, got CPU, memory, object_store_memory; "
        r"start each with ray start --resources='\{\"disk_gb\": 200\}', or leave --max-disk out$"
    )
    with pytest.raises(ValueError, match=message):
        sweep_with_ray(tasks, store, SETTINGS, Hub(), options("--max-disk", "1GB"))


def test_the_disk_s_budget_holds_for_all_workers_together(hub, published, probe, store, options, tmp_path):
    """On a Ray started here, with a budget that fits one checkpoint, and one checkpoint that does not fit into it."""
    size = sum(path.stat().st_size for path in published[0].glob("[cgm]*"))  # configurations and model
    sizes = {"vocab_size": 260, "hidden_size": 64, "n_layers": 2, "n_heads": 2, "context_length": 12}
    build_model("gpt_neox", **sizes).save_pretrained(tmp_path / "large")
    hub.publish("lab/model", "step48", tmp_path / "large")
    tasks = [task for task in find_tasks(probe) if task.target.step in {0, 8, 16, 48}]
    for task in tasks[:-1]:
        slow(hub, task, bytes_per_second=140_000)
    n_folders: list[int] = []

    def look() -> None:
        n_folders.append(len(list((tmp_path / "downloads").glob("*/*/*"))))

    def on_sigterm(*_: object) -> None:
        """A handler of this program's own."""

    before = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        with meanwhile(look):
            report = sweep_with_ray(tasks, store, SETTINGS, Hub(), options("--max-disk", str(int(1.5 * size))))
            assert signal.getsignal(signal.SIGTERM) is on_sigterm
    finally:
        signal.signal(signal.SIGTERM, before)
    assert max(n_folders) == 1
    assert {task.target.step for task in report.measured} == {0, 8, 16}
    assert [task for task, _ in report.failed] == tasks[-1:]
    budget = f"{1.5 * size / 1e9:.3g}"
    assert f"GB, more than the {budget} GB of --max-disk" in report.failed[0][1]


ANALYZE = ("lab/model", "--engine", "ray", "--workers", "2", "--device", "cpu", "--text", "builtin")
ANALYZE += ("--max-vectors", "512")


def analyze(environment: dict[str, str], hub: HubServer, folder: Path) -> subprocess.Popen[str]:
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "home"), "REPDYN_CACHE": str(folder / "cache")}
    return subprocess.Popen(
        [sys.executable, SCRIPT, *ANALYZE, "--store", folder / "store"],
        env=environment | own,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_stopped_with_ctrl_c_and_finished_by_the_same_command_on_a_cluster(
    cluster, environment, hub, published, tmp_path, monkeypatch, capsys
):
    at = {step: hub.repositories["lab/model"].branches[f"step{step}"] for step in STEPS}
    for step in (16, 24):
        hub.fault(f"{at[step]}/model.safetensors", "slow", bytes_per_second=1000)
    store, downloads = open_store(tmp_path / "store"), tmp_path / "cache" / "downloads"
    process = analyze(environment, hub, tmp_path)
    wait_until(lambda: store.path.exists() and finished(store) == 2 and len(list(downloads.rglob("*.incomplete"))) == 2)
    others = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    printed = process.communicate()[0]
    assert process.returncode == cli.INTERRUPTED, printed
    assert "stopped; what is measured is stored" in printed
    assert "Traceback" not in printed
    wait_until(lambda: not [other for other in others if other.is_running()], seconds=5)
    assert left_in(downloads) == []
    assert store.steps("lab/model") == [0, 8]
    stamps = {path: path.stat().st_mtime_ns for path in store.path.rglob("step*.parquet")}

    hub.faults.clear()
    monkeypatch.setattr(cli, "show_store", lambda *_: None)
    monkeypatch.setattr(cli, "write_report", lambda _, path: path)
    with pytest.raises(SystemExit, match="^0$"):
        cli.main([*ANALYZE, "--downloads", str(downloads), "--store", str(store.path)])
    printed = capsys.readouterr().err
    assert f"2 of 6 checkpoints are in {store.path} already" in printed
    assert "[4/4] lab/model step" in printed
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps, "something measured was measured again"
    assert left_in(downloads) == []
    (probe,) = (Probe.load(path) for path in store.path.glob("probes/*"))
    assert_equal_values(store, undisturbed(find_tasks(probe), tmp_path)[1])


def assert_equal_values(one: Store, other: Store) -> None:
    columns = ["step", "layer", "metric", "subset", "value", "checkpoint"]
    first, second = (store.to_pandas().query("layer.notna()")[columns] for store in (one, other))
    assert len(first) == 6 * 3 * 3
    assert first.reset_index(drop=True).equals(second.reset_index(drop=True))


def test_a_cluster_that_is_not_there(tasks, store, options, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    message = (
        r"^expected a Ray cluster at RAY_ADDRESS, '127.0.0.1:9', got no connection \(.*refused\); start it with ray start "
        "--head, set RAY_AUTH_MODE=token if it requires Ray's token, or unset RAY_ADDRESS$"
    )
    with pytest.raises(ValueError, match=message):
        sweep_with_ray(tasks, store, SETTINGS, Hub(), options())


def test_without_ray_the_command_says_what_to_install(options, store, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    message = r"^expected Ray for --engine ray, which is not installed; pip install 'repdyn\[ray\]'$"
    with pytest.raises(ValueError, match=message):
        sweep_with_ray([], store, SETTINGS, Hub(), options())


def test_nothing_to_do_starts_no_cluster_and_ray_tells_nobody(options, store, monkeypatch):
    monkeypatch.setattr(ray, "init", None)
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")
    assert sweep_with_ray([], store, SETTINGS, Hub(), options()) == SweepResult()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["RAY_task_oom_retries"] == "3"  # noqa: SIM112


def test_ray_hands_out_the_gpus_itself(options, store):
    message = "^expected --device cuda or cpu with --engine ray, which hands out the GPUs itself, got 'cuda:1'; choose among them with CUDA_VISIBLE_DEVICES$"
    with pytest.raises(ValueError, match=message):
        sweep_with_ray([], store, SETTINGS, Hub(), options("--device", "cuda:1"))


def cluster_of(*machines: dict[str, float]) -> SimpleNamespace:
    nodes = [{"Alive": True, "Resources": {"node:10.0.0.1": 1.0, **machine}} for machine in machines]
    return SimpleNamespace(nodes=lambda: [*nodes, {"Alive": False, "Resources": {"CPU": 1, "GPU": 8, "disk_gb": 9}}])


def test_a_task_that_fits_no_machine_is_refused_rather_than_waited_for(options):
    with pytest.raises(
        ValueError,
        match="^expected a Ray cluster with a machine that has GPU, CPU, got CPU; CPU, memory; add one that has, or choose --device cpu$",
    ):
        ray_engine._machines(cluster_of({"CPU": 4}, {"CPU": 4, "memory": 3}), options("--device", "cuda"))
    apart = cluster_of({"CPU": 4, "GPU": 1}, {"CPU": 4, "disk_gb": 100})
    with pytest.raises(ValueError, match="that has disk_gb, GPU, CPU, got CPU, GPU; CPU, disk_gb; start each with"):
        ray_engine._machines(apart, options("--device", "cuda", "--max-disk", "1GB"))
    head = {"memory": 9.0}
    assert len(ray_engine._machines(cluster_of(head, {"CPU": 4}), options())) == 1


@pytest.mark.parametrize(
    ("machines", "max_disk", "budget", "gigabytes", "taken"),
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
def test_a_task_takes_its_part_of_the_disk_s_budget(options, machines, max_disk, budget, gigabytes, taken):
    chosen = options("--max-disk", max_disk)
    bounds = ray_engine._download_limits(machines, chosen)
    assert bounds.budget_bytes == budget * 1e9
    resources = ray_engine._resources(int(gigabytes * 1e9), machines, bounds, chosen)
    assert resources == {"num_cpus": 4, "num_gpus": 0, "resources": {"disk_gb": pytest.approx(taken, abs=1e-9)}}


def test_a_task_takes_a_share_of_the_smallest_machine_and_a_gpu(options):
    chosen = options("--device", "cuda", "--workers", "3")
    machines = [{"CPU": 64, "GPU": 8}, {"CPU": 16, "GPU": 1}]
    bounds = ray_engine._download_limits(machines, chosen)
    assert ray_engine._resources(10, machines, bounds, chosen) == {"num_cpus": 5, "num_gpus": 1, "resources": {}}

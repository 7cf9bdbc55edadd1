"""Fixtures of sweeps against a hub on this machine: the whole command, its options, and what is
seen of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hub_server import HubServer
from tqdm import tqdm

from repdyn.checkpoints import measuring
from repdyn.checkpoints.downloads import Downloads
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.measuring import Outcome
from repdyn.checkpoints.options import CompleteOptions, Loading, SweepOptions
from repdyn.checkpoints.tasks import Task
from repdyn.cli.main import command_line
from repdyn.cli.main import main as repdyn_main
from repdyn.metrics import DEFAULT_METRICS, as_tuple
from repdyn.probe.corpus import builtin_corpus
from repdyn.store import Store

SCRIPT = Path(__file__).parents[2] / "analyze_checkpoints.py"
QUICK = ("--text", "builtin", "--max-vectors", "512", "--device", "cpu")
MEASURED = "download _, load _, forward _, kernels _ (_ of it in the kernels), in float32"
"""A checkpoint's line, as :func:`lines` returns it."""
Command = Callable[..., tuple[int, str, str]]


def main(arguments: Sequence[str]) -> None:
    """Run ``repdyn sweep``; it ends with SystemExit and its status, 0 too."""
    repdyn_main(["sweep", *arguments])
    raise SystemExit(0)


def options_of(*arguments: object) -> SweepOptions:
    """Return the options that a command line stands for, which is not run."""
    app = command_line()
    command, bound, _ = app.parse_args(
        ["sweep", *map(str, arguments)], exit_on_error=False, print_error=False
    )

    def prepare(options: SweepOptions, **_: Any) -> None:
        raise LookupError(options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("repdyn.checkpoints.sweep.prepare", prepare)
        with pytest.raises(LookupError) as stopped:
            command(*bound.args, **bound.kwargs)
    return stopped.value.args[0]


@pytest.fixture
def commits(hub, family) -> dict[int, str]:
    """Publish the family as lab/model and return the commit of each step."""
    return {
        step: hub.publish("lab/model", f"step{step}", folder) for step, folder in family.items()
    }


@pytest.fixture
def command(tmp_path, monkeypatch, capsys, shown) -> Command:
    """Return a function that runs the command in an empty folder and returns its exit status,
    output and errors.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    # or it would end this process rather than wait for a download that it has given up
    monkeypatch.setattr("repdyn.checkpoints.hub.has_abandoned_threads", lambda: False)
    # a tenth of the text is more than enough, and tokenized in a tenth of the time
    monkeypatch.setattr("repdyn.probe.corpus.builtin_corpus", lambda: builtin_corpus().head(50_000))

    def command(*arguments: object) -> tuple[int, str, str]:
        arguments_of_command = [
            "--downloads",
            str(tmp_path / "downloads"),
            *QUICK,
            *map(str, arguments),
        ]
        status: object = 0
        try:
            main(arguments_of_command)
        except SystemExit as stop:
            status = stop.code
        assert isinstance(status, int)
        return status, *capsys.readouterr()

    return command


@pytest.fixture
def shown(monkeypatch) -> list[list[str]]:
    """The runs of each requested summary, which is not drawn."""
    runs: list[list[str]] = []

    def note(store, names) -> None:
        runs.append(names)

    monkeypatch.setattr("repdyn.views.publish.results.show_store", note)
    monkeypatch.setattr("repdyn.views.report.write_report", lambda _, path: path)
    return runs


@pytest.fixture
def start(hub, tmp_path):
    """Return a function that starts the command in a process, in an empty folder without a
    terminal.

    Variables of the environment may be given by name.
    """

    def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HF_", "WANDB_"))
        }
        environment |= {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "home"),
            "REPDYN_CACHE": str(tmp_path / "c"),
        }
        return subprocess.Popen(
            [sys.executable, SCRIPT, *QUICK, *arguments],
            env=environment | variables,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def settings(
    metrics: Sequence[str] = DEFAULT_METRICS,
    layers: Any = None,
    loading: Loading | None = None,
    **more: Any,
) -> CompleteOptions:
    """Return complete options of a sweep on the processor, in the precision of the weights and
    without the loss.
    """
    loading = loading or Loading()
    options = {
        "loss": more.pop("probe_loss", False),
        "device": loading.device,
        "dtype": loading.dtype,
        **more,
    }
    return CompleteOptions(metrics=as_tuple(metrics), layers=layers, **options)


def downloads_in(
    folder: Path, budget_bytes: int | None = None, timeout_seconds: float = 3600
) -> Downloads:
    """Return downloads from the hub into a folder."""
    return Downloads(
        Hub(timeout_seconds=timeout_seconds), SweepOptions(downloads=folder, max_disk=budget_bytes)
    )


class Report(NamedTuple):
    measured: list[Task]
    failed: list[tuple[Task, str]]


def report_of(outcomes: Generator[Outcome]) -> Report:
    """Return which checkpoints were measured, and why others failed."""
    collected = measuring.collect(outcomes, tqdm(disable=True), lambda line: None)
    failed = [(each.task, each.text) for each in collected if each.state == "failed"]
    return Report([each.task for each in collected if each.state == "measured"], failed)


def measure_tasks(*arguments: Any) -> Report:
    return report_of(measuring.measure_tasks(*arguments))


def attempt(
    act: Callable[[], Any], refusals: type[Exception] | tuple[type[Exception], ...] = ValueError
) -> tuple[Any, str | None]:
    """Return the result and None, or None and the message of a refusal; any other error goes
    through.
    """
    try:
        return act(), None
    except refusals as error:
        return None, str(error)


def weights_fetched(hub: HubServer) -> Mapping[str, int]:
    """Return how often the weights of each commit were downloaded."""
    paths = [
        path
        for method, path in hub.requests
        if method == "GET" and path.endswith("/model.safetensors")
    ]
    return Counter(path.split("/")[4] for path in paths)


def lines(text: str) -> list[str]:
    """Return the rows without columns that differ between runs."""
    return [re.sub(r"\d+\.\d s|\d+%", "_", line) for line in text.splitlines()]


def reasons(store: Store) -> dict[int, str]:
    frame = store.to_pandas()
    failed = frame[frame["reason"].notna() & frame["layer"].isna()]
    return dict(zip(failed["step"], failed["reason"], strict=True))

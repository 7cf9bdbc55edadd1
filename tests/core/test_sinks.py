"""Sinks hear of rows once they are stored, and can harm neither a training nor each other; what a
tracked training loads.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from jobs import Loop
from torch.optim.swa_utils import AveragedModel

from repdyn import Tracker, open_store
from repdyn.tracking.sinks import Guarded, GuardedSink, StopRequest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("without_figures")


class Listening:
    """A sink that notes what it hears, and whether the store has it by then."""

    seconds = 20.0

    def __init__(self) -> None:
        self.heard: list[tuple[str, object]] = []
        self.stored: list[bool] = []
        self.rows_of: dict[tuple[str, int], list] = {}

    def begin(self, run) -> None:
        self.heard.append(("begin", run.name))
        self.run = run

    def rows(self, step, rows):
        self.heard.append(("rows", step))
        self.stored.append(step in open_store(self.run.store.path).steps(self.run.id))
        self.rows_of.setdefault((rows[0].run, step), []).extend(rows)

    def end(self, spent, *, interrupted) -> None:
        self.heard.append(("end", interrupted))
        assert spent.total_seconds >= spent.tracking_seconds > 0


@pytest.fixture
def track(tmp_path, small_probe):
    """Return the tracker of a loop that has taken some steps."""

    def run(*sinks, n_steps: int = 4, **options) -> Tracker:
        loop = Loop()
        settings = {"schedule": 2, "store": tmp_path / "mine", "on_error": "raise", "report": False}
        if options.pop("averaged", False):
            settings["averaged"] = AveragedModel(loop.model)
        with Tracker(loop.model, small_probe, sinks=sinks, **settings | options) as tracker:
            for step in range(1, n_steps + 1):
                tracker.step(loss=loop.step(), validation_loss=3.0 if step == 3 else None)
        return tracker

    return run


def test_a_sink_hears_of_every_row_once_and_after_it_is_stored(track):
    sink = Listening()
    tracker = track(sink)
    assert sink.heard == [
        ("begin", "mine"),
        *(("rows", step) for step in (0, 2, 4)),
        ("end", False),
    ]
    assert sink.stored == [True, True, True]
    rows = [row for rows in sink.rows_of.values() for row in rows]
    stored = tracker.store.to_pandas()
    assert len(rows) == len(stored)
    assert sorted((row.step, row.metric) for row in rows) == sorted(
        stored[["step", "metric"]].itertuples(index=False, name=None)
    )


def test_a_run_of_averaged_weights_is_told_apart_by_its_rows(track):
    sink = Listening()
    track(sink, averaged=True)
    assert set(sink.rows_of) == {
        (run, step) for run in ("mine", "mine (averaged)") for step in (0, 2, 4)
    }
    assert [word for word, _ in sink.heard].count("end") == 2


def test_a_training_that_breaks_off_tells_its_sinks(track, small_probe, tmp_path):
    sink = Listening()
    loop = Loop()

    def train() -> None:
        with Tracker(loop.model, small_probe, 1, store=tmp_path / "mine", sinks=[sink]):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert sink.heard[-1] == ("end", True)


@pytest.mark.parametrize("draws", [True, False])
def test_ctrl_c_while_figures_are_drawn_says_how_to_draw_them(monkeypatch, draws):
    """The process ended without a word, figures or a way to them."""

    def break_off(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Guarded, "call", break_off)
    sink = Listening()
    sink.is_replaceable = draws
    guarded = GuardedSink(sink, SimpleNamespace(error=print))
    with pytest.raises(KeyboardInterrupt):
        guarded.end(SimpleNamespace(total_seconds=2.0, tracking_seconds=1.0), interrupted=False)
    assert sink.heard == ([("end", True)] if draws else [])


def test_a_sink_that_raises_ends_no_training_and_is_told_of_once(track, caplog):
    class Failing(Listening):
        def rows(self, step, rows):
            raise ConnectionError("no route to the database")

    healthy = Listening()
    tracker = track(Failing(), healthy)
    assert tracker.store.steps("mine") == [0, 2, 4]
    assert caplog.text.count("Failing at step 0 failed, training goes on: ConnectionError") == 1
    assert "at step 2 failed" not in caplog.text
    assert [step for word, step in healthy.heard if word == "rows"] == [0, 2, 4]


def test_a_sink_that_cannot_begin_hears_nothing_more(track, caplog):
    class Refused(Listening):
        def begin(self, run) -> None:
            raise PermissionError("no access")

    sink = Refused()
    track(sink, on_error="warn")
    assert sink.heard == []
    assert caplog.text.count("Refused at step 0 failed, training goes on: PermissionError") == 1
    with pytest.raises(PermissionError):
        track(Refused())


def test_a_sink_that_hangs_delays_nothing_and_gets_the_rest_in_order(track):
    """It hangs until another sink has the last rows, which never came if the training waited."""

    class Slow(Listening):
        seconds = 0.1
        answer = threading.Event()

        def rows(self, step, rows):
            self.answer.wait(60)
            super().rows(step, rows)

    class Healthy(Listening):
        def rows(self, step, rows):
            super().rows(step, rows)
            if step == 4:
                slow.answer.set()

    slow = Slow()
    healthy = Healthy()
    start = time.monotonic()
    track(slow, healthy)
    assert time.monotonic() - start < 50
    assert [step for word, step in slow.heard if word == "rows"] == [0, 2, 4]
    assert slow.heard[-1] == ("end", False)


def test_a_sink_may_stop_the_training(track, caplog):
    class Stopping(Listening):
        def rows(self, step, rows):
            return StopRequest(step, "enough") if step == 2 else None

    assert track(Stopping()).should_stop
    assert caplog.text.count("the training is to stop at step 2, as requested by: enough") == 1


@pytest.mark.parametrize("sink", [Listening, "wandb", object()], ids=["class", "text", "object"])
def test_what_is_no_sink_is_refused(track, sink):
    with pytest.raises(TypeError, match="begin, rows and end"):
        track(sink)


def test_the_page_shows_a_sink_that_works(tmp_path, monkeypatch, small_probe):
    """With ten lines, rows are in a SQLite file."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "sinks.md").read_text()
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1].replace(
        "schedule=100", "schedule=2"
    )
    loop = Loop()
    names = {"model": loop.model, "probe": small_probe, "batches": range(4)}
    exec(program, names | {"train": lambda _: loop.step()})  # the program of the page
    stored = open_store("runs/mine").to_pandas()
    with sqlite3.connect("rows.db") as file:
        copied = file.execute("SELECT step, metric, value FROM rows ORDER BY rowid").fetchall()
    expected = stored[["step", "metric"]].sort_values(["step", "metric"]).values.tolist()
    assert sorted([step, metric] for step, metric, _ in copied) == expected


WITHOUT_VIEWS = """
import sys

import torch._dynamo  # which asks for pandas in a way that a finder cannot answer

BLOCKED = {"pandas", "rich", "cyclopts", "matplotlib", "plotly", "starlette"}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())

import torch
from small import HandWritten, random_tokens
from repdyn import Probe, Tracker
from repdyn.store import open_store

class Logger:
    steps = []

    def log_metrics(self, values, step):
        self.steps.append((step, "anisotropy/mean" in values))

model = HandWritten()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
rule = {"name": "spread", "when": "above", "bound": -1.0, "metrics": ["anisotropy"]}
given = {"store": "store", "loggers": [Logger()], "alerts": [rule]}
with Tracker(model, probe, 1, **given) as tracker:
    for _ in range(3):
        loss = model(random_tokens(4, 12)).square().mean()
        loss.backward()
        optimizer.step()
        tracker.step(loss=loss)
print(open_store("store").steps("store"), Logger.steps, BLOCKED & set(sys.modules))
"""


@pytest.mark.process
def test_without_the_packages_of_views_a_training_stores_logs_and_alerts(tmp_path):
    """An alert that needs pandas would be missing from every job with the base install; what cannot
    be drawn is said in a line.
    """
    paths = [str(ROOT / folder) for folder in ("src", "tests", "tests/support")]
    program = f"import sys; sys.path[:0] = {paths!r}\n{WITHOUT_VIEWS}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    steps = [0, 1, 2, 3]
    assert done.stdout.splitlines() == [f"{steps} {[(step, True) for step in steps]} set()"]
    said = done.stderr.splitlines()
    left_out = [line for line in said if "is left out" in line]
    assert [line.partition(" at step 0 is left out")[0] for line in left_out] == ["repdyn: drawing"]
    assert any(line.startswith("repdyn: alert at step 0, spread: anisotropy") for line in said)
    assert "failed" not in done.stderr


CORE = {"capture", "kernels", "measurement", "metrics", "probe", "store", "tracking", "utils"}
Call = tuple[str, str, bool]
"""The file of a call, its function, and whether the training's own thread made it."""


class Silent:
    """A logger that keeps nothing."""

    def log_metrics(self, values, step) -> None:
        """Take values."""


@pytest.fixture
def calls_of_a_step(small_probe, tmp_path) -> list[Call]:
    """What is called in a scheduled step with a logger and alerts, each function once."""
    calls: dict[Call, None] = {}
    trains = threading.current_thread()

    def note(frame, event, argument) -> None:
        path = frame.f_code.co_filename
        _, package, name = path.partition("/repdyn/")
        if event == "call" and package and not Path(path).is_relative_to(ROOT / "tests"):
            is_own = threading.current_thread() is trains
            calls[name, frame.f_code.co_qualname, is_own] = None

    loop = Loop()
    given = {"store": tmp_path / "mine", "loggers": [Silent()], "report": False}
    with Tracker(loop.model, small_probe, 1, **given) as tracker:
        tracker.step(loss=loop.step())
        loss = loop.step()
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            tracker.step(loss=loss)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return list(calls)


def test_a_scheduled_step_touches_core_and_sinks_alone(calls_of_a_step):
    """The training's own thread makes calls of core; those of views are made behind a guard."""
    touched = {path.partition("/")[0] for path, _, is_own in calls_of_a_step if is_own}
    assert touched <= CORE
    assert {"tracking", "measurement", "capture", "kernels", "store"} <= touched
    views = [path for path, _, _ in calls_of_a_step if path.startswith("views/")]
    assert views[0].startswith("views/sinks/")


def test_the_tour_names_the_calls_of_a_step_in_their_order(calls_of_a_step):
    page = (ROOT / "docs" / "tour.md").read_text()
    named = [
        tuple(call.split(":")) for call in re.findall(r"^\| \d+ \| `(.+?)`", page, re.MULTILINE)
    ]
    assert 10 <= len(named) <= 14
    recorded = [(path, name) for path, name, _ in calls_of_a_step]
    missing = [call for call in named if call not in recorded]
    assert not missing
    assert [call for call in recorded if call in named] == named

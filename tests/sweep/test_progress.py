"""What a sweep shows: bars in a terminal, one plain line for each checkpoint everywhere else."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from repdyn.checkpoints.progress import ProgressDisplay
from repdyn.checkpoints.targets import Target
from repdyn.checkpoints.plan import Task


@pytest.fixture
def tasks(small_probe) -> list[Task]:
    published = Target("lab/model", 8, "step8", repository="lab/model", commit="a" * 40)
    return [Task(published, small_probe), Task(Target("[bold]", 16, "[red]step16"), small_probe)]


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, force_terminal=terminal, width=100), written


def run(display: ProgressDisplay, tasks: list[Task]) -> None:
    with display:
        display.fetching(tasks[0])
        display.fetched(0, 4_000_000)
        display.fetched(3_000_000, 4_000_000)
        display.measuring(tasks[0])
        display.progress("kernels", 0.5)
        display.finished(tasks[0], "download 1.0 s")
        display.finished(tasks[1], f"failed: {'because ' * 40}[/]", failed=True)


def test_without_a_terminal_there_is_one_line_for_each_checkpoint(tasks):
    there, written = console(terminal=False)
    run(ProgressDisplay(2, there), tasks)
    first, second = written.getvalue().splitlines()
    assert first == "[1/2] lab/model step8: download 1.0 s"
    assert second == f"[2/2] [bold] [red]step16: failed: {'because ' * 40}[/]"


def test_in_a_terminal_there_are_bars_too(tasks):
    there, written = console(terminal=True)
    run(ProgressDisplay(2, there), tasks)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.getvalue())
    assert "[1/2] lab/model step8: download 1.0 s" in shown
    assert "[2/2] [bold] [red]step16: failed" in shown
    assert "2 of 2" in shown


def test_each_download_starts_at_zero_bytes(tasks):
    there, _ = console(terminal=True)
    display = ProgressDisplay(2, there)
    for _ in range(2):
        display.fetching(tasks[0])
        display.fetched(0, 2_000_000_000)
        display.fetched(500_000_000, 2_000_000_000)
        assert display._bars.tasks[display._download].fields["text"] == "lab/model step8: 0.50 of 2.00 GB"


def test_quiet(tasks, capsys):
    run(ProgressDisplay(2, shown=False), tasks)
    assert capsys.readouterr() == ("", "")

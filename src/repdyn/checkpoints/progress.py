"""Show the progress of a sweep in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from repdyn.checkpoints.plan import Task
from repdyn.store.schema import Row
from repdyn.tables.designs import own_window_warning
from repdyn.utils.console import PrintableConsole
from repdyn.utils.redaction import redacted


class ProgressDisplay:
    """Progress bars for all checkpoints, the download and the current checkpoint; in a log file, one line per
    checkpoint.

    Args:
        n_checkpoints: number of checkpoints to measure.
        console: output; standard error by default.
        shown: False prints nothing.
    """

    def __init__(self, n_checkpoints: int, console: Console | None = None, *, shown: bool = True) -> None:
        self._console = console or PrintableConsole(stderr=True, quiet=not shown)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
        )
        self._bars = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._n = n_checkpoints
        self._finished = 0
        self._warned_runs: set[str] = set()
        self._all = self._bars.add_task("checkpoints", total=n_checkpoints, text=f"0 of {n_checkpoints}")
        self._download = self._bars.add_task("download", total=None, text="", visible=False)
        self._checkpoint = self._bars.add_task("measuring", total=1.0, text="", visible=False)

    def __enter__(self) -> ProgressDisplay:
        self._bars.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._bars.stop()

    def fetching(self, task: Task) -> None:
        """Show that a checkpoint is being downloaded."""
        self._bars.reset(self._download, total=None, text=str(task.target), visible=task.target.path is None)

    def fetched(self, n_bytes: int, of_bytes: int) -> None:
        """Show that ``n_bytes`` of ``of_bytes`` are downloaded."""
        self._bars.update(self._download, completed=n_bytes, total=of_bytes)
        bar = self._bars.tasks[self._download]
        name = bar.fields["text"].partition(": ")[0]
        self._bars.update(self._download, text=f"{name}: {bar.completed / 1e9:.2f} of {of_bytes / 1e9:.2f} GB")

    def measuring(self, task: Task) -> None:
        """Show that a checkpoint is being loaded and measured."""
        self._bars.reset(self._checkpoint, total=1.0, text=str(task.target), visible=True)

    def progress(self, what: str, share: float) -> None:
        """Show progress as reported by :func:`repdyn.measure`."""
        self._bars.update(self._checkpoint, description=what, completed=share)

    def finished(self, task: Task, text: str, *, failed: bool = False) -> None:
        """Print the outcome of a checkpoint."""
        self._finished += 1
        self._bars.update(self._all, completed=self._finished, text=f"{self._finished} of {self._n}")
        line = escape(f"[{self._finished}/{self._n}] {task.target}: {redacted(text)}")
        self._console.print(f"[yellow]{line}[/yellow]" if failed else line, highlight=False, soft_wrap=True)

    def warn_of_own_windows(self, task: Task, rows: Sequence[Row]) -> None:
        """Print the warning of :func:`repdyn.tables.designs.own_window_warning`, once per run."""
        run = task.target.run
        if run not in self._warned_runs and (warning := own_window_warning(rows)):
            self._warned_runs.add(run)
            line = escape(redacted(f"{task.target}: {warning}"))
            self._console.print(f"[yellow]{line}[/yellow]", highlight=False, soft_wrap=True)

"""What a run or a sweep ends with: figures in the store and in the loggers, and a summary in the terminal.

repdyn figures runs/quickstart/TIME/repdyn          the same again, from the store
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from lightning.pytorch.loggers import Logger
from rich.console import Console

from repdyn.alerts import alerts_of, stored_rules
from repdyn.figures.comparison import comparison_figures
from repdyn.figures.files import save
from repdyn.figures.run import all_figures
from repdyn.publish.loggers import log_figures
from repdyn.store import Store
from repdyn.tables.costs import failure_line
from repdyn.tables.designs import sampling
from repdyn.tables.frames import by_stack, measurements
from repdyn.tables.runs import differences, measured_runs
from repdyn.tables.selection import is_measured, select
from repdyn.tables.style import of_stack, plain
from repdyn.terminal.comparison import print_comparison
from repdyn.terminal.summary import print_summary
from repdyn.utils.attempts import Attempt, attempts

MAX_SCREENS = 3
"""Runs up to which each gets a summary of its own."""


def show_run(
    store: Store,
    run: str,
    *,
    probe: str | None = None,
    loggers: Iterable[Logger] = (),
    prefix: str = "",
    report: Path | None = None,
    tracking_seconds: float | None = None,
    kernel_seconds: float | None = None,
    total_seconds: float | None = None,
) -> list[Path]:
    """Draw, log and summarise what the store holds of a run; each stack for itself if its model has several.

    An error in one figure or logger does not affect the others, nor the summary.

    Args:
        store: with at least one measured checkpoint of the run.
        run: its name.
        probe: hash of the probe to show, needed if the run was measured on several.
        loggers: usually ``trainer.loggers``; those that take images get the figures.
        prefix: put before the figures' names in the loggers.
        report: a page about the run, to be named below the summary.
        tracking_seconds: wall-clock seconds spent measuring.
        kernel_seconds: how many of them went into the metrics themselves.
        total_seconds: wall-clock seconds of the training, measuring included.

    Returns:
        The figures' files, in ``figures`` inside the store; in a folder of the run if there are several runs, of the
        probe if the run was measured on several, and of the stack if the model has several. Those that compare the
        stacks are in ``comparison`` next to theirs.

    Raises:
        ValueError: nothing is stored of the run, or it was measured on several probes and none is named.
        Exception: the error of the first figure or logger that failed, once everything else is done.
    """
    frame = store.to_pandas(run)
    if probe is not None:
        frame = frame.loc[frame["probe"] == probe]
    folder, stacks = _folder(store, run, frame, store.path / "figures"), by_stack(frame)
    console, used_loggers, written = Console(), list(loggers), []
    seconds = {"tracking_seconds": tracking_seconds, "kernel_seconds": kernel_seconds, "total_seconds": total_seconds}
    with attempts() as attempt:
        rules = stored_rules(store.alerts_path(run))
        for stack, rows in stacks.items():
            with attempt():
                alerts = alerts_of(rows, rules)
                figures = all_figures(rows, attempt, alerts)
                files = save(figures, _stack_folder(folder, store, stack), attempt)
                written += files
                if used_loggers:
                    last = int(measurements(rows)["step"].iloc[-1])
                    log_figures(figures, used_loggers, last, stack, attempt, prefix)
                print_summary(rows, figures=files, console=console, alerts=alerts, **seconds)
                seconds = {}  # printed once
                if len(stacks) > 1:
                    _print(console, "")
        if report is not None and report.exists():
            _print(console, f"report: {report}")
        with attempt():
            written += _compare({(run, probe or ""): frame}, folder / "comparison", console, attempt)
    return written


def show_store(
    store: Store,
    runs: Sequence[str] | None = None,
    *,
    probe: str | None = None,
    folder: Path | None = None,
    console: Console | None = None,
) -> list[Path]:
    """Draw and summarise every run of a store, and compare them if there are several.

    Up to three runs have a summary each, more have a line each; the stacks of a model that has several count like runs.
    An error in one figure does not affect anything else.

    Args:
        store: with at least one measured checkpoint.
        runs: names; all runs of the store unless given.
        probe: hash, or the beginning of one, of the only probe to show; every probe unless given.
        folder: for the figures; ``figures`` inside the store unless given.
        console: where to; standard output unless given.

    Returns:
        The figures' files: each run's in the folders of :func:`show_run`, and those of the comparison in
        ``comparison``.

    Raises:
        ValueError: nothing is stored; no such run or probe.
        Exception: the error of the first figure that failed, once everything else is shown.
    """
    console, base = console or Console(), folder or store.path / "figures"
    frames = select(store, runs, probe)
    n_screens = sum(len(by_stack(frame)) for frame in frames.values() if is_measured(frame))
    written = []
    with attempts() as attempt:
        for (run, _), frame in frames.items():
            if not is_measured(frame):
                _print(console, f"{run}: nothing measured, {failure_line(frame)}")
                continue
            run_folder, rules = _folder(store, run, frame, base), stored_rules(store.alerts_path(run))
            for stack, rows in by_stack(frame).items():
                with attempt():
                    alerts, stack_folder = alerts_of(rows, rules), _stack_folder(run_folder, store, stack)
                    files = save(all_figures(rows, attempt, alerts), stack_folder, attempt)
                    written += files
                    if n_screens <= MAX_SCREENS:
                        print_summary(rows, figures=files, console=console, alerts=alerts)
                        _print(console, "")
                    else:
                        _print(console, f"{of_stack(run, stack)}: {len(files)} files in {stack_folder}")
        with attempt():
            written += _compare(frames, base / "comparison", console, attempt)
    return written


def _compare(
    frames: Mapping[tuple[str, str], pd.DataFrame], folder: Path, console: Console, attempt: Attempt
) -> list[Path]:
    """Compare what was measured, each stack of a model for itself, if there is more than one."""
    measured = {key: rows for key, rows in frames.items() if is_measured(rows)}
    if len({(run, stack) for (run, _), rows in measured.items() for stack in by_stack(rows)}) < 2:
        return []
    probes = Counter(run for run, _ in measured)
    if several := [run for run, number in probes.items() if number > 1]:
        _print(console, f"not compared: several probes of {', '.join(several)}; choose one with --probe HASH:")
        for (run, probe), rows in measured.items():
            if run in several:
                _print(console, f"  {run}, probe {probe}: {sampling(rows.loc[rows['layer'].notna()])}")
        return []
    frame = pd.concat(frames.values(), ignore_index=True)
    _print(console, "")
    print_comparison(frame, console=console)
    if differences(measured_runs(frame)):  # the table names them
        return []
    files = save(comparison_figures(frame, attempt), folder, attempt)
    _print(console, f"comparison: {len(files)} files in {folder}")
    return files


def _folder(store: Store, run: str, frame: pd.DataFrame, base: Path) -> Path:
    """Return the folder for the figures of a run, apart from other runs of the store and from its own other probes.

    A swept run has a folder of its own even if it is the only one: more models are likely to follow into its store.
    """
    rows = store.to_pandas(run)
    alone = store.runs() == [run] and bool(rows["checkpoint"].isna().all())
    folder = base if alone else base / store.folder_of(run).name
    probes = rows.loc[rows["layer"].notna(), "probe"].unique()
    return folder if len(probes) < 2 else folder / str(frame["probe"].iloc[0])


def _stack_folder(folder: Path, store: Store, stack: str | None) -> Path:
    """Return the folder for the figures of a stack: that of the run if the blocks have no such name."""
    return folder if stack is None else folder / store.folder_of(stack).name


def _print(console: Console, line: str) -> None:
    console.print(plain(line, console), highlight=False, markup=False, soft_wrap=True)

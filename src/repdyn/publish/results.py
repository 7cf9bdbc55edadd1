"""What a run or a sweep ends with: figures beside the store, in the loggers, and a summary in the terminal.

repdyn figures runs/quickstart/TIME/repdyn          the same again, from the store
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from lightning.pytorch.loggers import Logger
from rich.console import Console

from repdyn.alerts import alerts_of, kept_rules
from repdyn.figures.comparison import write_comparison
from repdyn.figures.drawing import save
from repdyn.figures.run import all_figures, write_figures
from repdyn.publish.loggers import log_figures
from repdyn.store import Store
from repdyn.tables.costs import failed
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
    """Draw, log and summarise what the store holds of a run; each stack for itself where its model has several.

    A figure or a logger that fails keeps none of the others from being served, nor the summary from being printed.

    Args:
        store: with at least one measured checkpoint of the run.
        run: its name.
        probe: hash of the probe to show, needed where the run was measured on several.
        loggers: usually ``trainer.loggers``; those that take pictures get the figures.
        prefix: leads the figures' names in the loggers.
        report: a page about the run, to be named below the summary.
        tracking_seconds: wall-clock seconds spent measuring.
        kernel_seconds: how many of them went into the metrics themselves.
        total_seconds: wall-clock seconds of the training, measuring included.

    Returns:
        The figures' files, in ``figures`` inside the store; in a folder of the run's own where there are several runs,
        of the probe's own where the run was measured on several, and of the stack's own where the model has several.
        Those that compare the stacks are in ``comparison`` beside theirs.

    Raises:
        ValueError: nothing is stored of the run, or it was measured on several probes and none is named.
        Exception: what the first failing figure or logger raised, once all that can be done is done.
    """
    frame = store.to_pandas(run)
    if probe is not None:
        frame = frame.loc[frame["probe"] == probe]
    folder, stacks = _folder(store, run, frame, store.path / "figures"), by_stack(frame)
    takers, console, written = list(loggers), Console(), []
    whole = {"tracking_seconds": tracking_seconds, "kernel_seconds": kernel_seconds, "total_seconds": total_seconds}
    with attempts() as attempt:
        rules = kept_rules(store.alerts_path(run))
        for stack, rows in stacks.items():
            with attempt():
                alerts = alerts_of(rows, rules)
                figures = all_figures(rows, attempt, alerts)
                files = save(figures, _inside(folder, store, stack), attempt)
                written += files
                if takers:
                    log_figures(figures, takers, int(measurements(rows)["step"].iloc[-1]), stack, attempt, prefix)
                print_summary(rows, figures=files, console=console, alerts=alerts, **whole)
                whole = {}  # said once
                if len(stacks) > 1:
                    _say(console, "")
        if report is not None and report.exists():
            _say(console, f"report: {report}")
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
    """Draw and summarise every run of a store, and compare them where there are several.

    Up to three runs have a summary each, more have a line each; the stacks of a model that has several count like runs.
    A figure that fails keeps nothing else from being shown.

    Args:
        store: with at least one measured checkpoint.
        runs: names; all runs of the store unless given.
        probe: hash, or the beginning of one, of the probe to keep to. Without it a run that was measured on several
            is shown on each.
        folder: for the figures; ``figures`` inside the store unless given.
        console: where to; standard output unless given.

    Returns:
        The figures' files: each run's as :func:`show_run` places them, and those of the comparison in ``comparison``.

    Raises:
        ValueError: nothing is stored; no such run or probe.
        Exception: what the first failing figure raised, once all that can be shown is shown.
    """
    console, base = console or Console(), folder or store.path / "figures"
    frames = select(store, runs, probe)
    n_screens = sum(len(by_stack(frame)) for frame in frames.values() if is_measured(frame))
    written = []
    with attempts() as attempt:
        for (run, _), frame in frames.items():
            if not is_measured(frame):
                _say(console, f"{run}: nothing measured, {failed(frame)}")
                continue
            of_run, rules = _folder(store, run, frame, base), kept_rules(store.alerts_path(run))
            for stack, rows in by_stack(frame).items():
                with attempt():
                    alerts = alerts_of(rows, rules)
                    files = write_figures(rows, _inside(of_run, store, stack), attempt, alerts)
                    written += files
                    if n_screens <= MAX_SCREENS:
                        print_summary(rows, figures=files, console=console, alerts=alerts)
                        _say(console, "")
                    else:
                        place = _inside(of_run, store, stack)
                        _say(console, f"{of_stack(run, stack)}: {len(files)} files in {place}")
        with attempt():
            written += _compare(frames, base / "comparison", console, attempt)
    return written


def _compare(
    frames: Mapping[tuple[str, str], pd.DataFrame], folder: Path, console: Console, attempt: Attempt
) -> list[Path]:
    """Compare what was measured, each stack of a model for itself, where it is more than one."""
    measured = {key: rows for key, rows in frames.items() if is_measured(rows)}
    if len({(run, stack) for (run, _), rows in measured.items() for stack in by_stack(rows)}) < 2:
        return []
    probes = Counter(run for run, _ in measured)
    if several := [run for run, number in probes.items() if number > 1]:
        _say(console, f"not compared: several probes of {', '.join(several)}; choose one with --probe HASH:")
        for (run, probe), rows in measured.items():
            if run in several:
                _say(console, f"  {run}, probe {probe}: {sampling(rows.loc[rows['layer'].notna()])}")
        return []
    frame = pd.concat(frames.values(), ignore_index=True)
    _say(console, "")
    print_comparison(frame, console=console)
    if differences(measured_runs(frame)):  # the table has said which
        return []
    files = write_comparison(frame, folder, attempt)
    _say(console, f"comparison: {len(files)} files in {folder}")
    return files


def _folder(store: Store, run: str, frame: pd.DataFrame, base: Path) -> Path:
    """Where the figures of a run go, apart from those of other runs of the store and of its own other probes.

    A swept run has a folder of its own even while it is alone: more models are likely to follow into its store.
    """
    everything = store.to_pandas(run)
    alone = store.runs() == [run] and bool(everything["checkpoint"].isna().all())
    folder = base if alone else base / store.folder_of(run).name
    probes = everything.loc[everything["layer"].notna(), "probe"].unique()
    return folder if len(probes) < 2 else folder / str(frame["probe"].iloc[0])


def _inside(folder: Path, store: Store, stack: str | None) -> Path:
    """Where the figures of a stack go; blocks that have no such name go where those of the run go."""
    return folder if stack is None else folder / store.folder_of(stack).name


def _say(console: Console, line: str) -> None:
    console.print(plain(line, console), highlight=False, markup=False, soft_wrap=True)

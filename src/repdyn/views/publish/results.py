"""Results of a run or a sweep: figures in the store and the loggers, a summary in the terminal, and
their origin.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.console import Console

from repdyn.metrics.logged import LogLayers
from repdyn.metrics.names import file_stem
from repdyn.store import Store
from repdyn.utils.attempts import Attempt, attempts
from repdyn.utils.console import PrintableConsole, print_frame
from repdyn.utils.files import escaped, safe_file_name, write_atomically
from repdyn.utils.printing import Lossy, shorten_list
from repdyn.views.alerts import stored_rules
from repdyn.views.console.runs import print_closing, print_comparison, print_line, print_summary
from repdyn.views.judging import (
    DescribedRun,
    DescribedRuns,
    Yardstick,
    described_rows,
    described_runs,
    insights,
    stacks_of_run,
)
from repdyn.views.judging.scores import FEWEST, in_words, read_scores, score_correlations, scores_of
from repdyn.views.judging.stores import SHOWN_COLUMNS, selected_rows, with_baselines
from repdyn.views.publish.line_charts import log_charts
from repdyn.views.publish.loggers import Target, each_target, log_status, named_figures
from repdyn.views.report import write_report
from repdyn.views.tables.frames import concatenated
from repdyn.views.tables.runs import MeasuredRun, differences, is_measured
from repdyn.views.tables.seeds import with_seeds
from repdyn.views.tables.style import KINDS, has_own_figures
from repdyn.views.tables.texts import copies_line, failure_line, sampling

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger
    from matplotlib.figure import Figure

MAX_SUMMARIES = 3  # largest number of runs that get a summary each
# largest number of steps in a chart that a training logs at each measurement, in a file of its own
MOST_LIVE_STEPS = 64
_MOST_SCORES = 10  # largest number of correlations of a run that are printed


def rows_and_stacks(
    store: Store, run: str, probe: str | None
) -> tuple[pd.DataFrame, list[DescribedRun]]:
    """Return the rows of a run on a probe, which may be the only one, and each stack of
    its model.
    """
    frame = store.to_pandas(run, columns=SHOWN_COLUMNS, categorical=True)
    if probe is not None:
        is_of_probe = frame["probe"] == probe
        frame = frame.loc[is_of_probe]
    path = store.path_of(run)
    stacks = stacks_of_run(frame, stored_rules(store.alerts_path(path or run)))
    return frame, with_baselines(stacks, store, run, path)


def _as_in_report(
    stacks: Sequence[DescribedRun], in_report: Iterable[DescribedRun], run: str
) -> list[DescribedRun]:
    """Return the stacks of a run as a report describes them, where it has them."""
    by_stack = {described.stack: described for described in in_report if described.name == run}
    return [by_stack.get(described.stack, described) for described in stacks]


def show_run(
    store: Store,
    run: str,
    *,
    probe: str | None = None,
    loggers: Iterable[Logger] = (),
    prefix: str = "",
    report: Path | None = None,
    spent: Callable[[], dict[str, float]] = dict,
    log_layers: LogLayers = "default",
) -> list[Path]:
    """Draw (as PNG), log and summarise a stored run, stack by stack if its model has several; write
    its report.

    An error in one figure or logger does not affect the others, nor the summary: the first is
    raised once everything else is done. Loggers that take images get the figures, under a prefix,
    those that take pages the report, on all runs of the store, and all that have a summary the
    status of the run. ``spent`` returns the seconds that
    :func:`repdyn.views.console.runs.print_summary` takes. A run measured on several probes needs
    the hash of one.

    Returns:
        The figures' files, in ``figures`` inside the store; in a folder of the run if there are
        several runs, of the probe if the run was measured on several, and of the stack if the model
        has several. Those that compare the stacks are in ``comparison`` next to theirs.
    """
    frame, of_run = rows_and_stacks(store, run, probe)
    # a process without a console has no standard output
    out: Any = Lossy(sys.stdout) if sys.stdout else None
    console = PrintableConsole(file=out)
    folder = _folder(store, run, frame, store.output / "figures")
    used_loggers = list(loggers)
    written = []
    # what is said of the run is found once, for the report too, unless it has another name for each
    # probe there
    data = described_runs(store) if report else None
    stacks = of_run if data is None else _as_in_report(of_run, data.runs, run)
    last = max(stack.steps[-1] for stack in stacks)
    with attempts() as attempt:
        if report is not None:
            with attempt():
                write_report(store, report, data=data)
                each_target(used_loggers, methodcaller("log_page", report, f"{prefix}report", last))
        for number, stack in enumerate(stacks):
            files = []
            with attempt():
                figures, files = _draw(stack, _of_stack(folder, stack.stack), attempt, (".png",))
                written += files
                log = partial(log_pictures, stack, figures, prefix=prefix, log_layers=log_layers)
                each_target(used_loggers, log)
            with attempt():
                # those of the whole run, beside its first stack
                seconds = spent() if number == 0 else {}
                print_summary(stack, figures=files, console=console, **seconds)
                if len(stacks) > 1:
                    print_line(console, "")
        if len(stacks) > 1:
            with attempt():
                print_line(console, "")
                own_rows = described_rows({(store, run, probe or ""): frame})
                written += _draw_comparison(own_rows, folder / "comparison", console, attempt)
        with attempt():
            _print_averaged(store, run, probe, console)
            page = report if report and report.exists() else None
            print_closing(stacks, store=store.location, report=page, console=console)
            log_status([stack.insights for stack in stacks], used_loggers, prefix)
    return written


def _print_averaged(store: Store, run: str, probe: str | None, console: Console) -> None:
    """Print the headline on the averaged weights of a run, if they were measured."""
    name = f"{run} (averaged)"
    if name in store.runs():
        for averaged in insights(store, [name], probe):
            print_line(console, f"{averaged.run}, {averaged.headline}")


def show_store(
    stores: Store | Sequence[Store],
    runs: Sequence[str] | None = None,
    *,
    probe: str | None = None,
    folder: Path | None = None,
    seeds: Sequence[str] | None = None,
    against: Yardstick | None = None,
    console: Console | None = None,
) -> list[Path]:
    """Draw and summarise every run of a store, or some on one probe, and compare them if there are
    several; the runs of several stores are compared only.

    Up to three runs get a summary each, more get a line each; stacks of a model and probes of a run
    count as runs. An error in one figure does not affect anything else: the first is raised once
    everything else is shown. Patterns of ``seeds`` are those of
    :func:`repdyn.views.tables.seeds.seed_groups`.

    Returns:
        The figures' files, in the folders of :func:`show_run` or in those of ``folder``, and of the
        comparison in ``comparison``; of several stores among the figures of the first.
    """
    store, *others = [stores] if isinstance(stores, Store) else stores
    console = console or PrintableConsole()
    base = folder or store.output / "figures"
    selected = selected_rows([store, *others], runs, probe)
    written = list[Path]()
    with attempts() as attempt:
        if others:
            return _draw_comparison(
                described_rows(selected, seeds), base / "comparison", console, attempt
            )
        for (_, run, _), frame in selected.items():
            if not is_measured(frame):
                print_line(
                    console, f"{run}: nothing measured, {failure_line(frame) or copies_line(frame)}"
                )
        measured = {key: frame for key, frame in selected.items() if is_measured(frame)}
        shown = [
            (stack, _of_stack(_folder(store, run, frame, base), stack.stack))
            for (_, run, _), frame in measured.items()
            for stack in with_baselines(
                stacks_of_run(frame, stored_rules(store.alerts_path(run))),
                store,
                run,
                store.path_of(run),
                against,
            )
        ]
        are_few = len(shown) <= MAX_SUMMARIES
        for stack, into in shown:
            with attempt():
                _, files = _draw(stack, into, attempt)
                written += files
                if are_few:
                    print_summary(stack, figures=files, console=console)
                print_line(
                    console, "" if are_few else f"{stack.label}: {len(files)} files in {into}"
                )
        if len(shown) > 1:
            with attempt():
                print_line(console, "")
                data = described_rows(measured, seeds)
                written += _draw_comparison(data, base / "comparison", console, attempt)
    return written


def _draw(
    run: DescribedRun, folder: Path, attempt: Attempt, formats: Sequence[str] = (".png", ".svg")
) -> tuple[Mapping[str, Figure], list[Path]]:
    """Draw and save the figures of a run; return them, and their files."""
    # with Matplotlib, which a run without views does without
    from repdyn.views.figures.run import (
        all_figures,
    )

    figures = all_figures(run, attempt)
    return figures, _save(figures, folder, attempt, formats)


def _draw_comparison(
    data: DescribedRuns, folder: Path, console: Console, attempt: Attempt
) -> list[Path]:
    """Print the table of a comparison and draw its figures."""
    print_comparison(data.runs, data.seeds, console=console)
    if missing := sorted(set(data.frames) - {run.name for run in data.runs}):
        print_line(console, f"warning: nothing measured of {', '.join(missing)}")
    if data.not_seeds:
        print_line(console, f"warning: not shown as seeds of one model: {data.not_seeds}")
    if differences(data.runs):  # the table names them
        return []
    from repdyn.views.figures.comparison import comparison_figures

    files = _save(comparison_figures(with_seeds(data.runs, data.seeds), attempt), folder, attempt)
    print_line(console, f"comparison: {len(files)} files in {folder}")
    return files


def _folder(store: Store, run: str, frame: pd.DataFrame, base: Path) -> Path:
    """Return the folder for the figures of a run, apart from other runs of the store and from its
    own other probes.

    A swept run has a folder of its own even if it is the only one: more models are likely to follow
    into its store.
    """
    rows = store.distinct(run, ["checkpoint", "probe"])
    runs = store.runs()
    alone = runs == [run] and not any(row["checkpoint"] for row in rows)
    folder = base if alone else base / _own_name(run, runs)
    is_one = len({row["probe"] for row in rows}) < 2
    return folder if is_one else folder / safe_file_name(str(frame["probe"].iloc[0]))


def _own_name(run: str, runs: Sequence[str]) -> str:
    """Return a readable name for the folder of a run, or one that none of the others gets, also
    with another case.
    """
    alike = [other for other in runs if _readable(other).casefold() == _readable(run).casefold()]
    return _readable(run) if len(alike) == 1 else safe_file_name(escaped(run, "(?-i:[A-Z])"))


def _of_stack(folder: Path, stack: str | None) -> Path:
    return folder if stack is None else folder / _readable(stack)


def _readable(name: str) -> str:
    """Return a name as that of a folder, a_b for a/b."""
    return safe_file_name(name.replace("/", "_"))


def _save(
    figures: Mapping[str, Figure],
    folder: Path,
    attempt: Attempt,
    formats: Sequence[str] = (".png", ".svg"),
) -> list[Path]:
    """Save figures whose names contain those of metrics and subsets, which others may have
    chosen.
    """
    from repdyn.views.charts.on_matplotlib import save

    return save(
        {safe_file_name(name): figure for name, figure in figures.items()}, folder, attempt, formats
    )


def log_heatmaps(
    store: Store, run: str, target: Target, *, probe: str | None = None, prefix: str = ""
) -> None:
    """Log a heatmap of layer and step of each metric of geometry and of the user's own, up to the
    last stored step, and of a run with baselines the means over layers with their band.

    The names are those of the final figures, ``figures/heatmap_two_nn_all``, so that loggers show
    them as one series. Nothing is drawn for a target that takes no images. An error in one figure
    does not affect the others.
    """
    if type(target) is Target:  # which takes values alone
        return
    # with Matplotlib, which a run without views does without
    from repdyn.views.figures.panes import in_panel_order
    from repdyn.views.figures.run import heatmap, mean_over_layers

    with attempts() as attempt:
        for stack in rows_and_stacks(store, run, probe)[1]:
            figures = {}
            for metric, subset in (key for key in stack.series if has_own_figures(key[0])):
                with attempt():
                    figures[f"heatmap_{file_stem(metric)}_{subset}"] = heatmap(
                        stack, metric, subset
                    )
            if stack.bands:
                with attempt():
                    own = [metric for metric in stack.metrics() if has_own_figures(metric)]
                    figures["mean_over_layers"] = mean_over_layers(stack, in_panel_order(own))
            with attempt():
                target.log_images(named_figures(figures, stack.stack, prefix), stack.steps[-1])


def log_live_charts(
    store: Store,
    run: str,
    target: Target,
    *,
    probe: str | None = None,
    prefix: str = "",
    log_layers: LogLayers = "default",
) -> None:
    """Log the charts of :func:`~repdyn.views.publish.line_charts.log_charts` up to the last stored
    step, with at most :data:`MOST_LIVE_STEPS` steps; nothing of a run with a single step."""
    if not target.takes_charts:
        return
    with attempts() as attempt:
        for stack in rows_and_stacks(store, run, probe)[1]:
            if len(stack.steps) > 1:
                with attempt():
                    log_charts(stack, target, prefix, log_layers, most_steps=MOST_LIVE_STEPS)


def log_pictures(
    run: DescribedRun,
    figures: Mapping[str, Figure],
    target: Target,
    prefix: str = "",
    log_layers: LogLayers = "default",
) -> None:
    """Log figures of a run, and its charts of lines where they are shown."""
    with attempts() as attempt:
        with attempt():
            target.log_images(named_figures(figures, run.stack, prefix), run.steps[-1])
        with attempt():
            log_charts(run, target, prefix, log_layers)


def provenance(store: Store, frame: pd.DataFrame) -> dict[str, Any]:
    """Return the origin of a run's rows and what was measured, as far as it is known, for a
    logger's hyperparameters.

    In a model with several stacks ``kind`` and ``n_layers`` end in the name of the stack:
    ``kind_decoder``.
    """
    stacks = stacks_of_run(frame)
    rows = concatenated([stack.rows for stack in stacks])
    tokens = rows["tokens_seen"].to_numpy(float)
    facts: dict[str, Any] = {
        "store": str(store.path.resolve()) if store.output == store.path else store.location,
        "tokens_seen": None if np.isnan(tokens).any() else int(tokens.max()),
    }
    for stack in stacks:
        ending = f"_{stack.stack}" if stack.stack else ""
        facts[f"kind{ending}"] = None if stack.causal is None else KINDS[stack.causal]
        facts[f"n_layers{ending}"] = stack.rows["layer"].nunique()
    facts["sampling"] = sampling(rows)
    columns = (
        "run",
        "model",
        "parameters",
        "stage",
        "probe",
        "design",
        "n_vectors",
        "n_batches",
        "dim",
        "dtype",
    )
    for column in (*columns, "device", "attention", "repdyn_version"):
        values = rows[column].dropna().unique().tolist()
        facts[column] = values[0] if len(values) == 1 else ", ".join(map(str, values)) or None
    return {name: value for name, value in facts.items() if value is not None}


def show_scores(runs: Sequence[MeasuredRun], scores: Path, lags: int, folder: Path) -> str:
    """Print the largest correlations of each run's metrics with scores, and write all of them;
    return why there are none, or ""."""
    scored = read_scores(scores)
    is_only = len({run.name for run in runs}) == 1
    of_runs = [scores_of(run, scored, is_only=is_only) for run in runs]
    if not sum(map(len, of_runs)):
        return (
            f"the scores in {scores} are of {shorten_list(sorted({*scored['model']}))}, and no run "
            f"is: {shorten_list([run.label for run in runs])}; name the run in their column model"
        )
    tables = [
        score_correlations(run, of_run, lags) for run, of_run in zip(runs, of_runs, strict=True)
    ]
    if not sum(map(len, tables)):
        return f"no run has a metric at {FEWEST} steps of the scores in {scores}"
    for table in tables:
        print_frame(table.head(_MOST_SCORES))
    print(in_words(tables))
    for name, frame in (("scores", scored), ("correlations", pd.concat(tables, ignore_index=True))):
        path = folder / f"{name}.csv"
        write_atomically(path, lambda temporary, frame=frame: frame.to_csv(temporary, index=False))
        print(path)
    return ""

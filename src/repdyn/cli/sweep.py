"""``repdyn sweep`` and analyze_checkpoints.py: their options, and what they print around a sweep."""

# Imports only what is quick to import: --help must not wait for models.
from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from errno import EDQUOT, ENOSPC
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from repdyn.checkpoints.loading import add_loading_options, add_timeout_option
from repdyn.checkpoints.options import Shard, SweepOptions
from repdyn.metrics import DEFAULT_METRICS, METRICS
from repdyn.probe.design import CLASS_OPTIONS, CLASSES, DESIGNS, INDEPENDENT, MAX_VECTORS
from repdyn.tables.numbers import gigabytes
from repdyn.text.source import DEFAULT_TEXT
from repdyn.utils.addresses import path_or_url
from repdyn.utils.arguments import SuggestingParser, at_least
from repdyn.utils.console import PrintableConsole
from repdyn.utils.names import printable, shorten_list
from repdyn.utils.records import add_record_options, print_records, wants_records
from repdyn.utils.redaction import redacted

if TYPE_CHECKING:
    from repdyn.checkpoints.plan import ModelPlan
    from repdyn.checkpoints.suites import PublishedModel, Suite
    from repdyn.checkpoints.sweep import Prepared, Sweep
    from repdyn.store import Store

FAILED, USAGE_ERROR, STOPPED, INTERRUPTED = 1, 2, 3, 130
UPLOAD_SECONDS, INTERRUPTED_UPLOAD_SECONDS = 120.0, 10.0
"""How long the end of a sweep waits for the uploads to a remote store."""
_FILE_WIDTH = 200
_EXAMPLES = """examples:
  %(prog)s --list-suites
  %(prog)s --suite pythia-70m --dry-run    what would be downloaded
  %(prog)s --suite pythia-70m --revisions log --max-disk 2GB
  %(prog)s --suite 'pythia-*-deduped' finished my_suite.yaml --store sweeps
  %(prog)s EleutherAI/pythia-70m --revisions step0,step512,step143000
  %(prog)s gpt2                          one finished model
  %(prog)s gpt2 --design paper           as in the published protocol
  %(prog)s runs/quickstart/TIME          a run's own checkpoints
  %(prog)s runs/quickstart/TIME/checkpoints --probe runs/quickstart/TIME/repdyn/probes/HASH.safetensors
  %(prog)s --suite pythia-70m --engine ray --workers 4
  %(prog)s --suite pythia-70m --store s3://bucket/sweeps    several machines may run this
  %(prog)s --suite pythia --shard "$((SLURM_ARRAY_TASK_ID + 1))/$SLURM_ARRAY_TASK_COUNT"

A sweep can be stopped at any time; the same command continues it. Exit status: 0 everything is measured; 1 some
checkpoints failed, for reasons that are stored (--retry-failed retries them); 2 invalid arguments; 3 no network, no
space on the disk, or rows that wait for upload; 130 interrupted.
"""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}

Announce = Callable[[Mapping[str, int]], Iterable[str]]
"""Returns what to print before anything is downloaded, given the number of distinct checkpoints by run."""


def main(arguments: Sequence[str] | None = None, prog: str = "analyze_checkpoints.py") -> None:
    """Measure checkpoints, then write figures and a report; a repeated call measures the remaining checkpoints.

    The exit status is explained in --help.
    """
    options = build_parser(prog).parse_args(arguments)
    if options.list_suites:
        _list_suites(options)
        return
    if wants_records(options) and not options.dry_run:
        given = "--json" if options.json else "--csv"
        print_line(
            _console(), f"error: expected {given} with --dry-run or --list-suites, got it alone; add one of them"
        )
        raise SystemExit(USAGE_ERROR)
    plans: list[ModelPlan] | None = [] if options.dry_run else None
    status = run(SweepOptions.of(vars(options)), plans=plans)
    if plans:
        show_plans(plans, options)
    leave(status)


def run(
    options: SweepOptions,
    models: Sequence[PublishedModel] | None = None,
    *,
    views: bool = True,
    plans: list[ModelPlan] | None = None,
    announce: Announce | None = None,
) -> int:
    """Sweep, and return the exit status; errors are printed.

    Args:
        options: of the sweep.
        models: what to measure in place of the source or suites that the options name.
        views: write figures, summary and report at the end.
        plans: where to append what would be done for each model, and measure nothing.
        announce: says more before anything is downloaded.
    """
    from repdyn.checkpoints.errors import NoConnectionError, SweepStoppedError
    from repdyn.store.remote import RemoteError

    console = _console()
    try:
        # clusters announce preemption by SIGTERM, which is handled like Ctrl-C
        signal.signal(signal.SIGTERM, _interrupt)
        return _run(options, models, console, views, plans, announce)
    except OSError as error:
        if error.errno not in {ENOSPC, EDQUOT}:
            print_line(console, f"error: {error}")
            return STOPPED if isinstance(error, RemoteError) else USAGE_ERROR
        print_line(console, f"stopped: the disk is full ({error}); free some space, then repeat the command")
        return STOPPED
    except ValueError as error:
        print_line(console, f"error: {error}")
        return USAGE_ERROR
    except SweepStoppedError as error:
        goes_on = isinstance(error, NoConnectionError) and plans is None
        how = "; what is measured is stored, and the same command goes on from there" if goes_on else ""
        print_line(console, f"stopped: {error}{how}")
        return STOPPED
    except KeyboardInterrupt:
        print_line(console, "stopped; completed measurements are stored, and the same command continues the sweep")
        return INTERRUPTED


def _run(
    options: SweepOptions,
    models: Sequence[PublishedModel] | None,
    console: Console,
    views: bool,
    plans: list[ModelPlan] | None,
    announce: Announce | None,
) -> int:
    from repdyn.checkpoints.plan import make_plans
    from repdyn.checkpoints.sweep import measure_prepared, prepare
    from repdyn.store import open_store

    say = partial(print_line, console)
    warn = partial(print_line, console, style="yellow")
    prepared = prepare(options if plans is not None else options.on_device(), models, say=warn)
    for note in announce(prepared.n_distinct()) if announce is not None else ():
        warn(note)
    store = open_store(options.place())
    if plans is not None:
        found, without_probe = make_plans(prepared.sources, prepared.foreign, store, prepared.options, prepared.hub)
        plans += found
        return _status([*prepared.problems, *without_probe], console)
    status = None
    try:
        swept = measure_prepared(prepared, store, say=say)
        shown = _show(swept, prepared, console) if views else True
        status = _status(swept.failures, console)
        status = status if shown else FAILED
    finally:
        problem = store.drain(UPLOAD_SECONDS if status is not None else INTERRUPTED_UPLOAD_SECONDS)
        if problem is not None:
            warn(problem)
    return status or (STOPPED if problem is not None else 0)


def _show(swept: Sweep, prepared: Prepared, console: Console) -> bool:
    """Write figures, summary and report; print a failure and return False, since the measurements are stored."""
    from repdyn.diagnosis import continuity_statements
    from repdyn.publish.results import show_store
    from repdyn.report import PAGE, write_report

    store: Store = swept.store
    if prepared.options.shard:
        at = store.location
        print_line(console, f"when all shards are done: repdyn figures {at}, repdyn report {at}")
        return True
    try:
        if runs := sorted(set(swept.runs) & set(store.runs())):
            show_store(store, runs)
            print(printable(f"report: {write_report(store, store.output / PAGE)}"))
            for name, statement in continuity_statements(store, runs):
                print_line(console, f"{name}: {statement.sentence}", style="yellow")
    except Exception as error:  # a failing view must not hide the outcome of the measurements
        print_line(console, f"the measurements are stored, but cannot be shown: {redacted(str(error))}")
        return False
    return True


def leave(status: int) -> NoReturn:
    """Exit with a status, without waiting for a download that was given up."""
    from repdyn.checkpoints.downloads import has_abandoned_threads

    if has_abandoned_threads():
        # an unresponsive hub would delay the exit by a minute; files of downloads are deleted already
        sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


def print_line(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is, without markup, colours of numbers or secrets."""
    console.print(redacted(text), style=style, markup=False, highlight=False, soft_wrap=True)


def show_plans(plans: Sequence[ModelPlan], options: argparse.Namespace) -> None:
    """Print what --dry-run shows: a table, or records."""
    if wants_records(options):
        print_records([plan.as_dict() for plan in plans], options)
        return
    console = PrintableConsole(width=None if sys.stdout.isatty() else _FILE_WIDTH)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("model", "checkpoints"):
        table.add_column(column)
    for column in ("done", "failed before", "to do", "download", "largest", "time"):
        table.add_column(column, justify="right")
    by_design = len({plan.design for plan in plans}) > 1
    for plan in plans:
        run_name = plan.selection.run
        table.add_row(
            escape(f"{run_name}, {plan.design}" if by_design else run_name),
            escape(shorten_list([target.revision for target in plan.selection.targets])),
            *map(str, (plan.n_done, plan.n_failed_before, len(plan.waiting))),
            gigabytes(sum(plan.downloads)),
            gigabytes(max(plan.downloads, default=0)),
            "" if plan.minutes is None or not plan.waiting else f"{plan.minutes:.2g} min",
        )
    console.print(table)
    total = gigabytes(sum(sum(plan.downloads) for plan in plans))
    console.print(
        f"{total} to download in total; at most the two largest on disk at a time, or as --max-disk allows",
        soft_wrap=True,
    )
    if any(plan.minutes is not None and plan.waiting for plan in plans):
        console.print("time: beside the download, at the pace of the checkpoint measured last", soft_wrap=True)
    for what, in_part in (("copies of another checkpoint", False), ("mixtures of two checkpoints", True)):
        if n := sum(len(plan.owners(in_part=in_part)) for plan in plans):
            console.print(f"{what}, which are not downloaded: {n}", soft_wrap=True)
    for problem in (problem for plan in plans for problem in plan.problems):
        console.print(f"would fail: {redacted(problem)}", style="yellow", markup=False, soft_wrap=True)


def _list_suites(options: argparse.Namespace) -> None:
    """Print the suites that come with the package, and their models."""
    from repdyn.checkpoints.suites import shipped_suites

    suites = shipped_suites().values()
    if wants_records(options):
        print_records([_suite_fields(suite) for suite in suites], options)
        return
    console = PrintableConsole()
    for suite in suites:
        console.print(f"[bold]{suite.name}[/bold]  {suite.title}", highlight=False, soft_wrap=True)
        console.print(Padding(", ".join(model.name for model in suite.models), (0, 0, 0, 4)), highlight=False)
        unverified: dict[str, list[str]] = {}
        for model in suite.models:
            if model.unverified:
                unverified.setdefault(model.unverified, []).append(model.name)
        for what, names in unverified.items():
            which = "all" if len(names) == len(suite.models) else shorten_list(names)
            line = escape(f"not verified, {what}: {which}")
            console.print(Padding(line, (0, 0, 0, 4)), style="yellow", highlight=False)


def _suite_fields(suite: Suite) -> dict[str, Any]:
    return {
        "name": suite.name,
        "title": suite.title,
        "models": [model.name for model in suite.models],
        "checked_against": {model.name: model.checked_against or suite.card for model in suite.models},
        "unverified": {model.name: model.unverified for model in suite.models if model.unverified},
    }


def _status(problems: Sequence[str], console: Console) -> int:
    """Print why checkpoints were not measured, and return the exit status."""
    for problem in problems:
        print_line(console, f"not measured: {problem}", style="yellow")
    return FAILED if problems else 0


def _console() -> Console:
    return PrintableConsole(stderr=True)


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Return a parser with every option of a sweep."""
    top = SuggestingParser(
        prog=prog,
        usage="%(prog)s [SOURCE | --suite NAME ...] [options]",
        description="Measure published or local checkpoints on a fixed probe, through the same code as a live run.",
        epilog=_EXAMPLES,
        allow_abbrev=False,
    )
    _add_sources(top.add_argument_group("what to measure"))
    _add_probe(top.add_argument_group("the probe"))
    _add_measuring(top.add_argument_group("measurement"))
    execution = top.add_argument_group("execution")
    execution.add_argument(
        "--store", type=path_or_url, help="results: folder or URL (default: FOLDER/sweep, or sweeps)"
    )
    execution.add_argument(
        "--dry-run",
        action="store_true",
        help="show what remains and what would be downloaded, and exit",
    )
    add_record_options(execution, when=", with --dry-run or --list-suites")
    add_running(execution)
    return top


def _add_sources(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "source",
        nargs="?",
        help="a run's folder, a folder of save_pretrained or .ckpt checkpoints, or a hub repository",
    )
    group.add_argument("--suite", nargs="+", metavar="NAME", help="suites, their models, patterns, or YAML files")
    group.add_argument("--list-suites", action="store_true", help="list the suites and their models, and exit")
    group.add_argument(
        "--revisions",
        default="all",
        help="all, log (closest to powers of two), every:10, or names or steps separated by commas (default: all)",
    )
    group.add_argument("--pattern", help="regular expression for revision names with a group 'step' (hub repository)")
    group.add_argument("--name", help="name of the run (default: the repository, or the last two parts of the path)")


def _add_probe(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--probe", type=Path, help="probe file (default: the run's own, or one made of --text)")
    add_text(group)
    group.add_argument(
        "--design",
        choices=list(DESIGNS),
        help="sampling design: independent (few vectors of each of many windows), dense, paper (the published "
        "protocol), or shuffled (as independent, the tokens of each window in random order); see docs/sampling.md "
        f"(default: {INDEPENDENT.name})",
    )
    group.add_argument(
        "--classes",
        nargs="+",
        choices=CLASS_OPTIONS,
        metavar="CLASS",
        default=["none"],
        help=f"word classes to measure as subsets, as in token_rank@rare: {', '.join(CLASSES)}; words for all of them "
        "(default: none)",
    )


def add_text(group: argparse._ArgumentGroup, default: str | None = None) -> None:
    """Add the options of the text and of the number of vectors.

    Args:
        group: where to add them.
        default: what to call their defaults, if they are not those of a sweep.
    """
    group.add_argument("--text", help=f"enwik8, builtin, or a path (default: {default or DEFAULT_TEXT})")
    of_design = "that of the design, or the model's context if shorter"
    group.add_argument(
        "--sequence-length", type=at_least(2), help=f"tokens in a window (default: {default or of_design})"
    )
    group.add_argument(
        "--max-vectors",
        type=at_least(3),
        help=f"vectors measured per layer, in batches of 4096 (default: {default or MAX_VECTORS})",
    )


def _add_measuring(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--metrics",
        nargs="+",
        default=list(DEFAULT_METRICS),
        help=f"{', '.join(METRICS)}, or all; with settings and on a subset, quoted for the shell: "
        "'two_nn[discard=0.8]', anisotropy@no_massive, 'two_nn[discard=0.8,duplicates=count]@no_sink', or on a view: "
        "two_nn@last_token, two_nn@window_mean, two_nn@differences, rank_me@last_token.normed "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--loss",
        action=argparse.BooleanOptionalAction,
        help="measure the loss, accuracy and calibration on the probe too, where a model has its output head (default: "
        "yes, except at checkpoints that were measured without it)",
    )
    group.add_argument(
        "--layers",
        type=_layers,
        help='name pattern of the blocks, such as "layers.*", or one for each of several stacks, '
        '"text=text_model.encoder.layers.*,vision=vision_model.encoder.layers.*" (default: detected)',
    )
    group.add_argument(
        "--token-positions",
        type=_positions,
        metavar="SLICE",
        help='positions of the tokens, such as "2:" after two learned vectors (default: all)',
    )
    add_forward_options(group)


def add_forward_options(group: argparse._ArgumentGroup) -> None:
    """Add the options of how a model is loaded and run."""
    add_loading_options(group, dtype=None)
    group.add_argument(
        "--device-map",
        choices=["auto", "balanced", "sequential"],
        help="distribute a large model over devices and disk",
    )
    group.add_argument("--tokens-per-forward", type=at_least(1), default=8192, help="(default: %(default)s)")


def add_running(group: argparse._ArgumentGroup) -> None:
    """Add the options of how checkpoints are downloaded and measured, which no value depends on."""
    group.add_argument("--retry-failed", action="store_true", help="retry checkpoints that failed before")
    group.add_argument("--max-disk", type=n_bytes, metavar="SIZE", help="disk space for weights, such as 20GB")
    group.add_argument(
        "--downloads",
        type=Path,
        help="folder of the weights until they are measured (default: ~/.cache/repdyn/downloads)",
    )
    add_timeout_option(group)
    group.add_argument("--engine", choices=["serial", "ray"], default="serial", help="(default: %(default)s)")
    group.add_argument(
        "--workers",
        type=at_least(1),
        default=2,
        help="concurrent checkpoints on each machine, with Ray (default: %(default)s)",
    )
    group.add_argument("--shard", type=_shard, metavar="I/N", help="measure the I-th of N equal parts, I from 1")


def n_bytes(text: str) -> int:
    """Parse a size in bytes.

    >>> n_bytes("20GB"), n_bytes("1.5 TB"), n_bytes("300m"), n_bytes("1024")
    (20000000000, 1500000000000, 300000000, 1024)
    """
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]?)b?\s*", text.lower())
    size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if size == 0:
        raise argparse.ArgumentTypeError(f"expected a size such as 20GB or 500MB, got {text!r}")
    return size


def _layers(text: str) -> str | dict[str, str]:
    """Parse one pattern, or one for each stack as ``stack=pattern``, separated by commas."""
    if "=" not in text:
        return text
    parts = [part.partition("=") for part in text.split(",")]
    if not all(stack and pattern for stack, _, pattern in parts):
        raise argparse.ArgumentTypeError(f'expected "stack=pattern,stack=pattern", got {text!r}')
    return {stack.strip(): pattern.strip() for stack, _, pattern in parts}


def _positions(text: str) -> slice:
    from repdyn.capture.token_states import positions_from  # with torch, which other options do without

    try:
        return positions_from(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _shard(text: str) -> Shard:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"expected I/N with 1 <= I <= N, such as 1/8, got {text!r}")
    return Shard(int(match[1]), int(match[2]))

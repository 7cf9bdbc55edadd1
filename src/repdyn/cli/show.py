"""The commands that show or hand on what stores contain, and the demo."""

# Imports only what is quick to import: --help must not wait for torch.
import math
import re
import tempfile
import time
import webbrowser
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from repdyn.cli.options import (
    Baselines,
    ComparedRows,
    Folders,
    Json,
    Port,
    Rows,
    Run,
    Runs,
    print_json,
)
from repdyn.cli.tables import print_csv, print_runs, say, warn_of_others
from repdyn.utils.arguments import Output
from repdyn.utils.choices import Destination
from repdyn.utils.console import plain_records, print_frame

if TYPE_CHECKING:
    from repdyn.views.judging import DescribedRun

FAILED = 1


def _nothing(why: str) -> int:
    """Print why a command wrote nothing, and return its status."""
    say(f"error: {why}")
    return FAILED


def report(
    stores: Runs,
    /,
    *,
    rows: ComparedRows = ComparedRows(),
    baselines: Baselines = Baselines(),
    output: Output = None,
    title: str | None = None,
    open: bool = False,
) -> None:
    """Write a self-contained web page that shows what stores contain; it needs no network.

    Args:
        output: File to write (default: report.html in the store).
        title: Heading of the page (default: the names of the runs).
        open: Open the page in a browser.

    Examples:
      repdyn report runs/quickstart/TIME
      repdyn report RUN OTHER -o report.html --title "Two seeds"
      repdyn report sweeps --run EleutherAI/pythia-70m --open
      repdyn report runs/a-seed1 runs/a-seed2 runs/b    a as a band, b as a line
      repdyn report runs/mine --against runs/good       earlier runs as a band behind it
    """
    from repdyn.store import find_store
    from repdyn.views.judging import described_runs
    from repdyn.views.report import PAGE, write_report

    started = time.perf_counter()
    opened = [find_store(store) for store in stores]
    path = output or opened[0].output / PAGE
    data = described_runs(
        opened, rows.run, rows.probe, rows.seeds, against=baselines.yardstick(stores)
    )
    path = write_report(opened, path, title=title, data=data)
    seconds = time.perf_counter() - started
    megabytes = path.stat().st_size / 1e6
    print(f"{path}: {megabytes:.1f} MB in {seconds:.1f} s")
    if open:
        webbrowser.open(path.resolve().as_uri())


def figures(
    stores: Runs,
    /,
    *,
    rows: ComparedRows = ComparedRows(),
    baselines: Baselines = Baselines(),
    output: Output = None,
) -> int:
    """Draw the figures of a store and print a summary; compare the runs of several stores.

    Args:
        output: Folder for the figures (default: figures in the store).

    Examples:
      repdyn figures runs/quickstart/TIME
      repdyn figures sweeps --run EleutherAI/pythia-70m EleutherAI/pythia-160m
      repdyn figures RUN --probe 3f2ab1c0 -o figures
      repdyn figures runs/a-seed1 runs/a-seed2 runs/b    a as a band, b as a line
    """
    from repdyn.store import find_store
    from repdyn.views.publish.results import show_store

    opened = [find_store(store) for store in stores]
    files = show_store(
        opened,
        rows.run,
        probe=rows.probe,
        folder=output,
        seeds=rows.seeds,
        against=baselines.yardstick(stores),
    )
    return 0 if files else _nothing("no figure was drawn, for the reason above")


def compare(
    stores: Runs,
    /,
    *,
    other: Annotated[str, Parameter(name="--with")] = "published",
    rows: Rows = Rows(),
    lags: Annotated[int, Parameter(validator=Number(gte=0))] = 3,
    output: Output = None,
) -> int:
    """Compare runs with values of others: published values per layer, or scores of tasks over
    training.

    Published values are drawn beside a run's own where model, quantity, tokens, number of vectors
    and layers agree; of the rest it says why not, and how to measure what is published. Scores are
    correlated with each metric.

    Args:
        other: "published", or scores: a CSV file with the columns step, task, metric and value, or
            a JSON file of lm-evaluation-harness, or a folder of them.
        lags: Largest number of checkpoints by which a metric may precede a score.
        output: Folder of figures and tables (default: figures/published or figures/scores in the
            store).

    Examples:
      repdyn compare sweeps --run EleutherAI/pythia-6.9b
      repdyn compare runs/mine --with scores.csv
      repdyn compare sweeps --with results --lags 0
    """
    from repdyn.lab.recipes.published import how_to_measure, show_published
    from repdyn.store import find_store
    from repdyn.views.judging import described_runs

    opened = [find_store(store) for store in stores]
    runs = described_runs(opened, rows.run, rows.probe).runs
    is_published = other == "published"
    folder = output or opened[0].output / "figures" / ("published" if is_published else "scores")
    if not is_published:
        from repdyn.views.publish.results import show_scores

        why = show_scores(runs, Path(other), lags, folder)
        return _nothing(why) if why else 0
    if show_published(runs, folder):
        return 0
    for line in how_to_measure(runs):
        print(line)
    hint = "; repdyn report compares runs with each other" if len(runs) > 1 else ""
    return _nothing(f"no published value was measured in the same way{hint}")


def watch(
    runs: Folders,
    /,
    *,
    once: bool = False,
    interval: Annotated[float, Parameter(validator=Number(gte=0.1, lte=86400))] = 2.0,
    host: str = "127.0.0.1",
    port: Port = 8765,
    token: str | None = None,
    no_token: bool = False,
    root_path: str = "",
    open: bool = False,
) -> int:
    """Watch runs in a browser, live: all of them in a table, and the report of each.

    The pages are served to this computer only, unless --host is given, and to those who have the
    token of the address. On another machine: run it there, forward its port with "ssh -L
    8765:localhost:8765 MACHINE", and open the printed address here.

    Args:
        runs: Store, folder of a run, or folder above any number of them; it may appear later.
        once: Print the table as it is now, and serve nothing.
        interval: Seconds between two looks for new measurements.
        host: Address it is served at.
        port: Port, or another one where it is taken; 0 for any.
        token: Text that requests need, of at least 8 letters, digits, - or _ (default: a new random
            one).
        no_token: Answer all requests of this computer.
        root_path: Path below which a proxy serves the pages, as /user/me/proxy/8765 on a
            JupyterHub; needed if the proxy keeps it in what it passes on. With --host 0.0.0.0,
            since a proxy asks for its own name.
        open: Open a browser.

    Examples:
      repdyn watch runs                            every run below a folder
      repdyn watch runs --once                     a table here, now
      repdyn watch runs/mine other/store --open    in a browser
      repdyn watch runs --interval 30              look every half minute
    """
    if once:
        from repdyn.views.watch.index import Index

        index = Index(runs)
        index.poll(math.inf)  # describes all of them
        print_runs(list(index.summaries.values()))
        return (
            0 if index.summaries else _nothing(f"no measurement in {', '.join(map(str, runs))} yet")
        )
    if token is not None and (no_token or not re.fullmatch(r"[\w-]{8,}", token, re.ASCII)):
        raise ValueError(
            "expected --token with at least 8 letters, digits, - or _, and without --no-token"
        )
    from repdyn.utils.addresses import require_root_path
    from repdyn.views.watch.app import serve

    warn_of_others(
        host, "see the runs" if no_token else "see the runs if they can read the traffic"
    )
    serve(
        runs,
        host=host,
        port=port,
        interval=interval,
        token=token,
        needs_token=not no_token,
        open_browser=open,
        root_path=require_root_path(root_path),
    )
    return 0


def insights(
    stores: Runs = (),
    /,
    *,
    rows: Rows = Rows(),
    baselines: Baselines = Baselines(),
    findings: bool = False,
    alerts: bool = False,
    rules: Path | None = None,
    fail: bool = False,
    print_rules: bool = False,
    json: Json = False,
) -> int:
    """Say what happened in the runs of stores and in what they differ, or list their alerts.

    Args:
        findings: Explain the verdicts on published findings instead.
        alerts: List the alerts instead: collapsed layers, halved dimensions, jumping profiles.
        rules: YAML file of rules for the alerts (default: those of each run).
        fail: List the alerts, and exit with status 1 if there is one.
        print_rules: Print the default rules, as such a file.

    Examples:
      repdyn insights runs/quickstart/TIME
      repdyn insights runs/a runs/b
      repdyn insights sweeps --run EleutherAI/pythia-70m
      repdyn insights RUN --against runs/good
      repdyn insights RUN --json | jq '.[].status'
      repdyn insights RUN --findings
      repdyn insights RUN --alerts
      repdyn insights --print-rules > alerts.yaml    the default rules, to be edited
      repdyn insights RUN --alerts --rules alerts.yaml
      repdyn insights RUN --fail && echo healthy
    """
    from repdyn.views.alerts import RULES, as_yaml
    from repdyn.views.console.runs import print_insights
    from repdyn.views.judging import comparison_statements, described_runs

    lists_alerts = alerts or fail or rules is not None
    if print_rules:
        print(as_yaml(RULES), end="")
        return 0
    if not stores:
        raise ValueError(
            "expected the folder of a run or a store, got none; or --print-rules for the default "
            "rules"
        )
    yardstick = baselines.yardstick(stores)
    if yardstick is not None and (lists_alerts or findings):
        raise ValueError(
            "expected --against alone, got --alerts, --fail, --rules or --findings with it; "
            "they say nothing of baselines"
        )
    data = described_runs(stores, rows.run, rows.probe, against=yardstick)
    if lists_alerts:
        return _list_alerts(data.runs, rules, fail=fail, json=json)
    if findings:
        _list_findings(data.runs, json=json)
    elif json:
        print_json([run.insights.as_dict() for run in data.runs])
    else:
        compared = [] if yardstick else comparison_statements(data.runs, data.seeds)
        print_insights([run.insights for run in data.runs], compared)
    return 0


def _list_alerts(
    runs: "Sequence[DescribedRun]", rules: Path | None, *, fail: bool, json: bool
) -> int:
    """List the alerts of runs, by their own rules or by those of a file; return the status."""
    from repdyn.views.alerts import read_rules
    from repdyn.views.console.runs import alerts_of, print_alerts

    if rules is not None:
        read = read_rules(rules)
        runs = [replace(run, rules=read) for run in runs]
    if json:
        print_json([alerts_of(run) for run in runs])
    else:
        print_alerts(runs)
    return FAILED if fail and any(run.alerts for run in runs) else 0


def _list_findings(runs: "Sequence[DescribedRun]", *, json: bool) -> None:
    """Explain the verdicts on published findings."""
    from repdyn.views.console.runs import print_findings

    if not json:
        print_findings(runs)
        return
    verdicts = []
    for run in runs:
        findings = [asdict(finding) for finding in run.findings]
        verdicts.append({"run": run.name, "stack": run.stack, "findings": findings})
    print_json(verdicts)


def export(
    store: Run,
    /,
    *,
    rows: Rows = Rows(),
    to: Sequence[Destination] = ("wandb",),
    log_layers: Sequence[str] = ("default",),
    output: Output = None,
    wandb_online: bool = False,
    wandb_project: str = "repdyn",
) -> int:
    """Write the values of a store to experiment loggers.

    Each call creates new, complete runs and leaves those of earlier calls alone. Seeds of one
    model are one more run, with the mean over seeds and the ends of its 95% interval.

    Args:
        to: Loggers.
        log_layers: Metrics of which every layer is written, with * for any characters, or one of
            the words default (anisotropy and two_nn), all, none.
        output: Folder of the loggers' files (default: exports in the store).
        wandb_online: Upload to W&B instead of writing files for a later wandb sync.
        wandb_project: W&B project.

    Examples:
      repdyn export runs/quickstart/TIME
      repdyn export sweeps --run EleutherAI/pythia-70m --to wandb csv -o logs
      repdyn export RUN --wandb-online --wandb-project my-project
    """
    if wandb_online and "wandb" not in to:
        raise ValueError(
            f"expected --wandb-online with --to wandb, got --to {' '.join(to)}; leave out "
            "--wandb-online"
        )
    from repdyn.store import find_store
    from repdyn.views.publish.export import export_store

    # these words are no patterns
    chosen: Any = log_layers[0] if log_layers[0] in {"default", "all", "none"} else list(log_layers)
    how: dict[str, Any] = {
        "to": to,
        "folder": output,
        "project": wandb_project,
        "online": wandb_online,
    }
    is_empty = True
    for exported in export_store(
        find_store(store), rows.run, probe=rows.probe, log_layers=chosen, **how
    ):
        print(exported)
        is_empty &= exported.place is None
    return _nothing("nothing was exported, since nothing is measured") if is_empty else 0


def query(
    sql: Annotated[str, Parameter(name="SQL")],
    stores: Folders = (Path(),),
    /,
    *,
    json: Json = False,
    csv: bool = False,
) -> None:
    """Query the measurements of stores in SQL, as DuckDB understands it.

    The views are rows (a row for each value, with everything stored about it), runs (a row for each
    run and probe) and profiles (a row for each layer and subset of a checkpoint, with a column for
    each metric). Each has the column store. An undefined value is NULL.

    Args:
        sql: One statement over the views.
        stores: Folders of runs, stores, or folders above them.
        csv: Print CSV, with the fields of JSON as columns.

    Examples:
      repdyn query "select run, model, last_step from runs" sweeps
      repdyn query "select layer, two_nn from profiles where step = 1000" RUN
      repdyn query "select * from profiles order by step, layer" RUN --csv
      repdyn query "select run, step, reason from rows where value is null" RUN
      repdyn query "describe rows" RUN    the columns of a view
    """
    from repdyn.store import find_stores
    from repdyn.views.tables.sql import query as rows_of

    # by its path: a store may lie below two of the folders
    by_path = {store.path.resolve(): store for path in stores for store in find_stores(path)}
    if not by_path:
        where = ", ".join(map(str, stores))
        raise ValueError(
            f"expected stores with measurements after the query, found none in {where}"
        )
    frame = rows_of(list(by_path.values()), sql)
    if json:
        print_json(plain_records(frame))
    elif csv:
        print_csv(frame)
    else:
        print_frame(frame)


def metrics(*, json: Json = False) -> None:
    """List every metric.

    Examples:
      repdyn metrics
      repdyn metrics --json | jq -r '.[].name'
    """
    from repdyn.views.console import metric_list

    print_json(metric_list.records()) if json else metric_list.print_metrics()


def demo(*, output: Output = None, no_browser: bool = False) -> None:
    """Open the report of a finished run whose measurements come with repdyn; nothing is trained or
    downloaded.

    Args:
        output: Folder for the page (default: a temporary one).
        no_browser: Do not open it.

    Examples:
      repdyn demo                           open the page in a browser
      repdyn demo --no-browser -o FOLDER    write it there
    """
    from repdyn.store import open_store
    from repdyn.views.report import write_report

    folder = output or Path(tempfile.mkdtemp(prefix="repdyn_demo_"))
    store = open_store(str(files("repdyn.cli") / "demo"))
    path = write_report(
        store, folder / "repdyn_demo.html", title="A small decoder on Wikipedia text"
    )
    print("a decoder of 6 layers, measured 51 times in 4,000 steps of training on Wikipedia text")
    print(f"report: {path}")
    print("next: attach it to a training of your own, whose validation data are measured:")
    print("  Lightning:     Trainer(callbacks=[repdyn.callbacks.RepresentationDynamics()])")
    print("  transformers:  Trainer(..., callbacks=[repdyn.callbacks.HuggingFaceTracker()])")
    print(
        "  your own loop: with repdyn.Tracker(model, repdyn.Probe.from_dataset(data)) as tracker:"
    )
    if not no_browser:
        webbrowser.open(path.resolve().as_uri())

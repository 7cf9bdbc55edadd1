"""The commands that measure: ``repdyn sweep`` (analyze_checkpoints.py), ``audit`` and ``reproduce``."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from cyclopts import Parameter

from repdyn.checkpoints.options import SharedOptions, SweepOptions
from repdyn.cli.options import Records
from repdyn.utils.arguments import Count, Output, Place
from repdyn.utils.console import PrintableConsole
from repdyn.utils.printing import printable, shorten_list
from repdyn.utils.redaction import redacted

if TYPE_CHECKING:
    from repdyn.checkpoints.audit import History
    from repdyn.checkpoints.suites import PublishedModel
    from repdyn.checkpoints.sweep import Prepared, Sweep
    from repdyn.recipes import Cloud, Outcome, Recipe
    from repdyn.store import Store

FAILED = 1
_COLOURS = {"reproduced": "green", "not reproduced": "red", "cannot be judged": "yellow", "not run": "bright_black"}
UPLOAD_SECONDS, INTERRUPTED_UPLOAD_SECONDS = 120.0, 10.0
"""How long the end of a sweep waits for the uploads to a remote store."""

Announce = Callable[[Mapping[str, int]], Iterable[str]]
"""Returns what to print before anything is downloaded, given the number of distinct checkpoints by run."""


def sweep(
    source: str | None = None,
    /,
    *,
    list_suites: bool = False,
    dry_run: bool = False,
    options: Annotated[SweepOptions, Parameter(name="*")] = SweepOptions(),
    records: Records = Records(),
) -> int:
    """Measure published or local checkpoints on a fixed probe, through the same code as a live run.

    A sweep can be stopped at any time; the same command continues it. What cannot be measured is stored with the
    reason, and the exit status is 1.

    Args:
        source: A run's folder, a folder of save_pretrained or .ckpt checkpoints, a .gguf file, or a hub repository.
        list_suites: List the suites and their models.
        dry_run: Show what remains and what would be downloaded.

    Examples:
      repdyn sweep --list-suites
      repdyn sweep gpt2                          one finished model
      repdyn sweep EleutherAI/pythia-70m --revisions step0,step512,step143000
      repdyn sweep --suite pythia-70m --dry-run  what would be downloaded
      repdyn sweep --suite pythia-70m --revisions log --max-disk 2GB
      repdyn sweep runs/quickstart/TIME          a run's own checkpoints
      repdyn sweep FOLDER --like RUN             measured as another run was live
      repdyn sweep --suite pythia-70m --engine ray --workers 4
      repdyn sweep --suite pythia-70m --store s3://bucket/sweeps
    """
    if list_suites:
        _list_suites(records)
        return 0
    if records and not dry_run:
        raise ValueError("expected --json or --csv with --dry-run or --list-suites, got it alone; add one of them")
    options = replace(options, source=source)
    if not dry_run:
        return run_sweep(options)
    plans, status = plan_sweep(options)
    if plans:
        show_plans(plans, records)
    return status


def run_sweep(
    options: SweepOptions,
    models: Sequence[PublishedModel] | None = None,
    *,
    views: bool = True,
    announce: Announce | None = None,
) -> int:
    """Measure what a store lacks of what options select, or of other models, and return the exit status.

    ``announce`` says more before anything is downloaded; with ``views``, figures, summary and report are written.
    """
    from repdyn.checkpoints.sweep import measure_prepared
    from repdyn.store import open_store

    signal.signal(signal.SIGTERM, _interrupt)
    status = problem = None
    try:
        prepared = _prepared(options.on_device(), models, announce)
        store = open_store(prepared.options.place())
        try:
            swept = measure_prepared(prepared, store, say=_say)
            shown = not views or _show(swept, prepared)
            status = _status(swept.failures) if shown else FAILED
        finally:
            problem = store.drain(UPLOAD_SECONDS if status is not None else INTERRUPTED_UPLOAD_SECONDS)
            if problem is not None:
                _say(problem, style="yellow")
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            "completed measurements are stored, and the same command continues the sweep"
        ) from error
    return status or (FAILED if problem is not None else 0)


def plan_sweep(
    options: SweepOptions, models: Sequence[PublishedModel] | None = None, *, announce: Announce | None = None
) -> tuple[list[dict[str, Any]], int]:
    """Return what would be done for each model, and the exit status; arguments as for :func:`run_sweep`."""
    from repdyn.checkpoints.errors import NoConnectionError, SweepStoppedError
    from repdyn.checkpoints.plan import make_plans
    from repdyn.store import open_store

    try:
        prepared = _prepared(options, models, announce)
    except NoConnectionError as error:
        try:
            prepared = _prepared(options, models, announce, offline=True)
        except SweepStoppedError:  # the cache has nothing of it
            raise error from None
        _say(f"{error}; this plan is of what the hub's cache has", style="yellow")
    store = open_store(prepared.options.place())
    plans, without_probe = make_plans(prepared.sources, prepared.foreign, store, prepared.options, prepared.hub)
    return plans, _status([*prepared.problems, *without_probe])


def _prepared(
    options: SweepOptions,
    models: Sequence[PublishedModel] | None,
    announce: Announce | None,
    offline: bool | None = None,
) -> Prepared:
    from repdyn.checkpoints.sweep import prepare

    warn = partial(_say, style="yellow")
    prepared = prepare(options, models, say=warn, offline=offline)
    for note in announce(prepared.n_distinct()) if announce is not None else ():
        warn(note)
    return prepared


def _show(swept: Sweep, prepared: Prepared) -> bool:
    """Write figures, summary and report; print a failure and return False, since the measurements are stored."""
    from repdyn.diagnosis import continuity_statements
    from repdyn.publish.results import show_store
    from repdyn.report import PAGE, write_report

    store: Store = swept.store
    if prepared.options.shard:
        _say(f"when all shards are done: repdyn figures {store.location}, repdyn report {store.location}")
        return True
    try:
        if runs := sorted(set(swept.runs) & set(store.runs())):
            show_store(store, runs)
            print(printable(f"report: {write_report(store, store.output / PAGE)}"))
            for name, statement in continuity_statements(store, runs):
                _say(f"{name}: {statement.sentence}", style="yellow")
    except Exception as error:  # a failing view must not hide the outcome of the measurements
        _say(f"the measurements are stored, but cannot be shown: {error}")
        return False
    return True


def _status(problems: Sequence[str]) -> int:
    """Print why checkpoints were not measured, and return the exit status."""
    for problem in problems:
        _say(f"not measured: {problem}", style="yellow")
    return FAILED if problems else 0


def _say(text: str, style: str | None = None) -> None:
    """Print a line to standard error as it is, without markup, colours of numbers or secrets."""
    PrintableConsole(stderr=True).print(redacted(text), style=style, markup=False, highlight=False, soft_wrap=True)


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def show_plans(plans: Sequence[dict[str, Any]], records: Records) -> None:
    """Print what --dry-run shows: a table, or records."""
    if records:
        records.print(plans)
    else:
        from repdyn.cli.tables import print_plans

        print_plans(plans)


def _list_suites(records: Records) -> None:
    from repdyn.checkpoints.suites import shipped_suites

    suites = [
        {
            "name": suite.name,
            "title": suite.title,
            "models": [model.name for model in suite.models],
            "checked_against": {model.name: model.checked_against or suite.card for model in suite.models},
            "unverified": {model.name: model.unverified for model in suite.models if model.unverified},
        }
        for suite in shipped_suites().values()
    ]
    if records:
        records.print(suites)
        return
    from rich.padding import Padding
    from rich.text import Text

    out = PrintableConsole()
    for suite in suites:
        out.print(Text.assemble((suite["name"], "bold"), f"  {suite['title']}"), soft_wrap=True)
        out.print(Padding(Text(", ".join(suite["models"])), (0, 0, 0, 4)))
        for what in dict.fromkeys(suite["unverified"].values()):
            names = [name for name, each in suite["unverified"].items() if each == what]
            which = "all" if names == suite["models"] else shorten_list(names)
            out.print(Padding(Text(f"not verified, {what}: {which}", "yellow"), (0, 0, 0, 4)))


def audit(
    names: Annotated[list[str], Parameter(name="NAME")],
    /,
    *,
    revisions: str = "all",
    timeout: Count = 600,
    records: Records = Records(),
) -> int:
    """Find copies, mixed files and missing weights among published checkpoints, without downloading them.

    It reads names, checksums, sizes and dates, in one request for each checkpoint. The exit status is 1 if there is a
    fault, or a repository cannot be listed.

    Args:
        names: Suite, model of one, pattern, YAML file, hub repository, or its address.
        revisions: Use all, log (closest to powers of two), every:10, or names or steps separated by commas.
        timeout: Seconds for one request.

    Examples:
      repdyn audit pythia-2.8b                       a model of a suite
      repdyn audit pythia bloom my_suite.yaml        all models of suites
      repdyn audit EleutherAI/pythia-12b             a repository, or its address
      repdyn audit olmo2-7b --revisions log          some of its checkpoints
      repdyn audit pythia-70m --json | jq '.[].findings[].sentence'
    """
    from repdyn.checkpoints.audit import list_histories, models_to_audit
    from repdyn.checkpoints.hub import Hub
    from repdyn.checkpoints.targets import select_models
    from repdyn.cli.tables import print_audit

    hub = Hub(timeout_seconds=timeout)
    models = dict.fromkeys(model for name in names for model in models_to_audit(name, hub.endpoint))
    found_models, problems = select_models(models, hub, revisions)
    selections = [selection for _, selection in found_models]
    with PrintableConsole(stderr=True).status("listing files"):
        histories = list_histories(selections, hub, with_dates=True)
    found = [_audited(history) for history in histories]
    if records:
        records.print(found, each="findings")
    else:
        for each in found:
            print_audit(each)
    for problem in problems:
        _say(f"not audited: {problem}")
    return FAILED if problems or any(each["faults"] for each in found) else 0


def _audited(history: History) -> dict[str, Any]:
    from repdyn.checkpoints.audit import audit, find_copies

    findings = audit(history)
    severities = [finding.severity for finding in findings]
    return {
        "run": history.run,
        "checkpoints": [checkpoint.revision for checkpoint in history.checkpoints],
        "copies": {copy.revision: group.same_as for group in find_copies(history) for copy in group.copies},
        "faults": severities.count("fault"),
        "remarks": severities.count("remark"),
        "findings": [asdict(finding) for finding in findings],
    }


def reproduce(
    name: Annotated[str | None, Parameter(name="NAME")] = None,
    /,
    *,
    list_recipes: Annotated[bool, Parameter(name="--list")] = False,
    dry_run: bool = False,
    evaluate_only: bool = False,
    models: list[str] | None = None,
    runs: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    revisions: str | None = None,
    store: Place | None = None,
    output: Output = None,
    probe: str | None = None,
    shared: Annotated[SharedOptions, Parameter(name="*")] = SharedOptions(),
    records: Records = Records(),
) -> int:
    """Measure what a paper measured, and compare with what it published.

    It can be stopped at any time; the same command continues it. The exit status is 0 if every published value that
    the recipe measures is reproduced. Models or sampling other than the recipe's are stated as deviations.

    Args:
        name: Recipe, or YAML file of one.
        list_recipes: List the recipes.
        dry_run: Show what remains and what would be downloaded.
        evaluate_only: Judge what is in the store, without measuring anything.
        models: Other models: of suites, patterns, YAML files or hub repositories.
        runs: With --evaluate-only, judge each published value on these runs of --store, or on all of them, whatever
            models it is about.
        revisions: Other revisions, as for repdyn sweep (default: those of the recipe).
        store: Folder or URL of the measurements (default: reproductions/NAME).
        output: Folder of page and figure (default: the store).
        probe: Hash of the probe to judge, if the store has several of the design.

    Examples:
      repdyn reproduce --list
      repdyn reproduce three-phases --dry-run        what would be downloaded
      repdyn reproduce three-phases --max-disk 20GB
      repdyn reproduce three-phases --models pythia-160m --revisions log
      repdyn reproduce my_recipe.yaml --store sweeps
      repdyn reproduce three-phases --evaluate-only --json
      repdyn reproduce three-phases --evaluate-only --store RUN --runs
    """
    from repdyn.recipes import find_recipe, shipped_recipes
    from repdyn.store import find_store, open_store

    if list_recipes:
        _list_recipes(list(shipped_recipes().values()), records)
        return 0
    if name is None:
        raise ValueError("expected the name of a recipe, or --list, got neither; see --help")
    if runs is not None and not evaluate_only:
        raise ValueError("expected --runs with --evaluate-only, got it alone; measured runs are judged, none is swept")
    recipe = find_recipe(name)
    given = {name: getattr(shared, name) for name in ("text", "sequence_length", "max_vectors")}
    cloud = replace(recipe.cloud, **{name: value for name, value in given.items() if value is not None})
    place = store or Path("reproductions") / recipe.name
    status = 0
    if not evaluate_only:
        of_cloud = {name: getattr(cloud, name) for name in given}
        options = SweepOptions(
            metrics=recipe.metrics,
            revisions=revisions or recipe.revisions,
            store=place,
            **{**vars(shared), **of_cloud},
        )
        status = _measure_recipe(recipe, cloud, options, models, records if dry_run else None)
        if dry_run:
            return status
        if shared.shard:
            _say(f"when all shards are done: repdyn reproduce {name} --store {place} --evaluate-only")
            return status
    measured = find_store(place) if evaluate_only else open_store(place)
    judged = measured.runs() if runs == [] else runs
    return _judge(recipe, cloud, measured, models, probe, judged, output, records) or status


def _measure_recipe(
    recipe: Recipe, cloud: Cloud, options: SweepOptions, models: Sequence[str] | None, planned: Records | None
) -> int:
    """Measure the checkpoints of a recipe by each of its designs, or print the plan; return the exit status."""
    from repdyn.recipes import find_models_of, shortfalls

    found = find_models_of(models or recipe.models)
    announce: Announce | None = partial(shortfalls, recipe, found)
    status, plans = 0, []
    for design in cloud.designs:
        of_design = replace(options, design=design)
        if planned is None:
            failed = run_sweep(of_design, found, views=False, announce=announce)
        else:
            more, failed = plan_sweep(of_design, found, announce=announce)
            plans += more
        status, announce = max(status, failed), None  # announced once
    if planned is not None:
        show_plans(plans, planned)
    return status


def _judge(
    recipe: Recipe,
    cloud: Cloud,
    store: Store,
    models: Sequence[str] | None,
    probe: str | None,
    runs: Sequence[str] | None,
    output: Path | None,
    records: Records,
) -> int:
    """Judge a recipe, write figure and page, print the outcomes, and return the exit status."""
    from repdyn.diagnosis import continuity_statements
    from repdyn.figures.drawing import save
    from repdyn.recipes import evaluate, missing_metrics
    from repdyn.recipes.page import draw_recipe, write_page

    outcomes, measured = evaluate(recipe, store, models, probe, runs, cloud)
    probes = sorted({(each.name, each.rows["probe"].iloc[0]) for each in measured})
    stated = [pair for name, probe in probes for pair in continuity_statements(store, [name], probe)]
    doubts = list(dict.fromkeys(f"{run}: {statement.sentence}" for run, statement in stated))
    for sentence in (*missing_metrics(recipe, measured), *doubts):
        _say(sentence)
    folder = output or store.output
    folder.mkdir(parents=True, exist_ok=True)
    figure = draw_recipe(recipe, outcomes, measured)
    files = save({recipe.name: figure}, folder) if figure is not None else [None]
    page = write_page(recipe, outcomes, measured, folder / f"{recipe.name}.html", files[0], doubts)
    if records:
        records.print([_outcome_fields(recipe, outcome) for outcome in outcomes])
    else:
        _print_outcomes(recipe, outcomes)
        print(printable(f"page: {page}"))
    judged = [outcome for outcome in outcomes if outcome.published.criterion is not None]
    # values on other text or models say something, but not that the paper is reproduced
    reproduced = all(outcome.verdict == "reproduced" and not outcome.deviations for outcome in judged)
    return 0 if judged and reproduced else FAILED


def _print_outcomes(recipe: Recipe, outcomes: Sequence[Outcome]) -> None:
    from rich.table import Table
    from rich.text import Text

    from repdyn.cli.tables import console
    from repdyn.recipes.evaluation import count_verdicts

    out = console()
    out.print(Text(f"{recipe.title} (arXiv {recipe.paper})", style="bold"), soft_wrap=True)
    if recipe.by_values:
        out.print("values judged as exact, since the design has no intervals", highlight=False)
    for number, published in enumerate(recipe.published, start=1):
        out.print(Text(f"{number}. {published.claim} ({published.source})"), soft_wrap=True)
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for outcome in (outcome for outcome in outcomes if outcome.published is published):
            verdict = Text(outcome.verdict, style=_COLOURS[outcome.verdict])
            table.add_row(*([Text(outcome.run)] if outcome.run else []), verdict, Text(outcome.text))
        out.print(table)
    out.print(count_verdicts(outcomes), highlight=False)


def _outcome_fields(recipe: Recipe, outcome: Outcome) -> dict[str, Any]:
    published = outcome.published
    return {
        "recipe": recipe.name,
        "claim": published.claim,
        "source": published.source,
        "metric": published.metric or None,
        "criterion": published.criterion.text if published.criterion else None,
        "run": outcome.run or None,
        "verdict": outcome.verdict,
        "ours": outcome.ours,
        "deviations": list(outcome.deviations),
    }


def _list_recipes(recipes: Sequence[Recipe], records: Records) -> None:
    if records:
        names = ("name", "title", "paper", "address", "models", "metrics")
        fields = [{name: getattr(recipe, name) for name in names} for recipe in recipes]
        for each, recipe in zip(fields, recipes, strict=True):
            each["claims"] = [published.claim for published in recipe.published]
        records.print(fields)
        return
    for recipe in recipes:
        n_run = sum(published.criterion is not None for published in recipe.published)
        print(printable(f"{recipe.name}: {recipe.title} (arXiv {recipe.paper})"))
        print(printable(f"    {n_run} of {len(recipe.published)} published values, on {', '.join(recipe.models)}"))

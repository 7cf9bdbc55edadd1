"""Judge the published values of a paper by the measurements in a store, and by the tables of
studies, which it runs.
"""

import inspect
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

import pandas as pd
from rich.table import Table
from rich.text import Text

from repdyn import lab
from repdyn.activations import file_name
from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.suites import PublishedModel
from repdyn.lab.recipes.cells import Cell
from repdyn.lab.recipes.criteria import Criterion, Measured, NotMeasuredError
from repdyn.lab.recipes.recipe import BY_WHAT, Cloud, Published, Recipe, find_models_of
from repdyn.probe import Design, Probe
from repdyn.probe.corpus import load_corpus
from repdyn.probe.design import MAX_VECTORS, resolve_design
from repdyn.store import Store
from repdyn.utils.arguments import ModelOptions
from repdyn.utils.console import wide_console
from repdyn.utils.files import write_atomically
from repdyn.utils.printing import plural
from repdyn.views.judging.effects import CannotBeJudgedError
from repdyn.views.tables.frames import by_stack, design_names
from repdyn.views.tables.runs import is_measured, known_runs, select

Reproduced: TypeAlias = Literal["reproduced", "not reproduced", "cannot be judged", "not run"]
OPTIONS = "options.json"
_VERDICTS = {
    "reproduced": "green",
    "not reproduced": "red",
    "cannot be judged": "yellow",
    "not run": "bright_black",
}


def deviations(cloud: Cloud, rows: pd.DataFrame, probe: Probe | None) -> tuple[str, ...]:
    """Return where the sampling of rows is known to differ from a cloud: "windows of 32 tokens, not
    80".
    """
    differences = []
    if probe is not None and not _is_text(probe.name, cloud.text):
        differences.append(f"text {probe.name}, not {cloud.text}")
    of_layers = rows.loc[rows["layer"].notna() & rows["window_tokens"].notna()]
    if of_layers.empty:
        return tuple(differences)
    design = resolve_design(cloud.design)
    differences += _other_windows(cloud, design, of_layers)
    # a design of whole windows fixes their number, and with it the vectors
    if design.n_windows is None:
        differences += _other_vectors(cloud, design, of_layers, probe)
    return tuple(differences)


def _other_windows(cloud: Cloud, design: Design, of_layers: pd.DataFrame) -> Iterator[str]:
    """Yield where the windows of rows differ from those of a cloud, in length or number."""
    largest = of_layers[["window_tokens", "n_windows"]].max().astype(int)
    longest, most = largest.tolist()
    n_tokens = cloud.sequence_length or design.window_tokens
    if n_tokens is not None and longest != n_tokens:
        yield f"windows of {longest:,} tokens, not {n_tokens:,}"
    if design.n_windows is not None and most < design.n_windows:
        yield f"{most:,} windows, not {design.n_windows:,}"


def _other_vectors(
    cloud: Cloud, design: Design, of_layers: pd.DataFrame, probe: Probe | None
) -> Iterator[str]:
    """Yield where the vectors of rows differ from those of a cloud: in number, in their batches, or
    in how many a window has given.
    """
    is_too_small = of_layers["n_vectors"] < cloud.vectors_per_dimension * of_layers["dim"]
    too_small = of_layers.loc[is_too_small]
    if len(too_small):
        n, dim = too_small[["n_vectors", "dim"]].astype(int).iloc[0].tolist()
        yield f"{n:,} vectors of {dim:,} dimensions, not {cloud.vectors_per_dimension * dim:,}"
    plan = design.batch_plan(cloud.max_vectors or MAX_VECTORS, cloud.batch_vectors, 0)
    n_batches = plan["n_batches"]
    size = plan["batch_vectors"]
    if probe is not None and (probe.n_batches, probe.batch_vectors) != (n_batches, size):
        batches = f"{probe.n_batches:,} {plural(probe.n_batches, 'batch', 'batches')}"
        yield f"{batches} of {probe.batch_vectors:,} vectors, not {n_batches:,} of {size:,}"
    # metrics of whole windows have batches of their own, which the design says nothing of
    is_sampled = of_layers["vectors_per_window"] < of_layers["window_tokens"]
    sampled = of_layers.loc[is_sampled & of_layers["subset"].isin(["all", "no_sink"])]
    most = int(sampled["vectors_per_window"].max()) if len(sampled) else 0
    if design.vectors_per_window is not None and most > design.vectors_per_window:
        yield f"up to {most:,} vectors of a window, not {design.vectors_per_window:,}"


@cache
def _is_text(name: str, source: str) -> bool:
    """Return whether the text of a probe, by the name that it records, is the one of a source."""
    if source == "enwik8":  # told without loading it, since it is large
        return name.partition(",")[0] == "enwik8"
    try:
        return name == load_corpus(source).name
    except FileNotFoundError:  # a probe of a file that is missing by now is of another text
        return False


@dataclass(frozen=True)
class Outcome:
    """The result of comparing a published value with the measurements of one model."""

    published: Published
    run: str
    """Name of the run; "" for none."""
    verdict: Reproduced
    ours: str
    """The measured numbers; or why it was not run, or cannot be judged."""
    deviations: tuple[str, ...] = ()
    """How the models and the sampling differ from those of the recipe."""
    cell: tuple[float, float, float] | None = None
    """The value in a study's table, and its interval; None for a value of metrics."""

    @property
    def text(self) -> str:
        """Return the measured numbers, and what they were measured on if that differs from the
        recipe.
        """
        return (
            f"{self.ours}; measured otherwise: {'; '.join(self.deviations)}"
            if self.deviations
            else self.ours
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that ``repdyn reproduce --json`` prints; docs/cli.md describes them."""
        published = self.published
        return {
            "claim": published.claim,
            "source": published.source,
            "metric": published.metric or None,
            "criterion": published.criterion.text if published.criterion else None,
            "run": self.run or None,
            "verdict": self.verdict,
            "ours": self.ours,
            "deviations": list(self.deviations),
        }


def evaluate(
    recipe: Recipe,
    store: Store,
    models: Sequence[str] | None = None,
    probe: str | None = None,
    runs: Sequence[str] | None = None,
    cloud: Cloud | None = None,
    tables: Path | None = None,
) -> tuple[list[Outcome], list[Measured]]:
    """Judge each published value of a recipe on each of the models that it is about.

    Args:
        store: a sweep's results, of which the values by the recipe's sampling design count.
        models: names to use in place of the recipe's. If no published value is about any of them,
            all are judged.
        probe: hash, or the beginning of one, of the only probe to use.
        runs: names of runs in the store, on each of which every published value is judged; None for
            the models.
        cloud: what was measured in place of the recipe's cloud, to find the probe among several.
        tables: folder of the recipe's studies; None if it has none.

    Outcomes are in the order of the recipe; with them comes what was measured of its models.
    """
    about = find_models_of(models or recipe.models) if runs is None else []
    if runs:
        known_runs(store, runs)
    cloud_asked_for = cloud or recipe.cloud
    names = [model.run for model in about] if runs is None else runs
    by_name = {name: _measured(recipe, store, name, cloud_asked_for, probe) for name in names}
    measured = [of_run for of_run in by_name.values() if isinstance(of_run, Measured)]
    if probe is not None and not measured:
        raise ValueError(
            f"expected the beginning of the hash of a probe of {recipe.cloud.design} design, got "
            f"{probe!r}"
        )
    outcomes: list[Outcome] = []
    for published in recipe.published:
        stand_ins = dict.fromkeys(runs or (), "") | judged_on(recipe, published, about)
        outcomes += _outcomes_of(recipe, published, stand_ins, tables, by_name)
    return outcomes, measured


def _outcomes_of(
    recipe: Recipe,
    published: Published,
    stand_ins: Mapping[str, str],
    tables: Path | None,
    by_name: Mapping[str, Measured | str],
) -> list[Outcome]:
    """Judge one published value on each run, of which ``stand_ins`` says in place of what model it
    is judged, if so.
    """
    if published.criterion is None:
        return [_not_run(published, published.not_run)]
    if not stand_ins:
        return [_not_run(published, f"no model among {', '.join(published.models)}")]
    outcomes = []
    for run, stand_in in stand_ins.items():
        content, differing = _judged_by(recipe, published.criterion, tables, by_name, run)
        notes = tuple(note for note in (stand_in, *differing) if note)
        outcomes.append(_judged(published, run, content, notes))
    return outcomes


def _judged_by(
    recipe: Recipe,
    criterion: Criterion | Cell,
    tables: Path | None,
    by_name: Mapping[str, Measured | str],
    run: str,
) -> tuple[Any, Iterable[str]]:
    """Return what a value is judged by, and how that differs from the recipe: the table of a study,
    or the measurements of a run; a text where there are none.
    """
    if isinstance(criterion, Cell):
        return table_of(recipe, criterion, tables, run)
    return by_name[run], getattr(by_name[run], "deviations", ())


def _not_run(published: Published, why: str) -> Outcome:
    """Return the outcome of a value that no run was judged on."""
    return Outcome(published=published, run="", verdict="not run", ours=why)


def _judged(published: Published, run: str, measured: Any, deviations: tuple[str, ...]) -> Outcome:
    """Judge a published value by the measurements of a run, or the table of a study; a text says
    why there are none.
    """
    criterion, cell = published.criterion, None
    if isinstance(measured, str) or criterion is None:
        return Outcome(published=published, run=run, verdict="not run", ours=str(measured))
    try:
        if isinstance(criterion, Cell):
            cell = criterion.measured(measured)
        verdict, ours = criterion.judge(measured, published.metric)
    except NotMeasuredError as reason:
        return Outcome(published=published, run=run, verdict="not run", ours=str(reason))
    except CannotBeJudgedError as reason:
        verdict, ours = "cannot be judged", str(reason)
    # "not shown" becomes "not reproduced"
    reproduced = cast(Reproduced, verdict.replace("shown", "reproduced"))
    return Outcome(
        published=published,
        run=run,
        verdict=reproduced,
        ours=ours,
        deviations=deviations,
        cell=cell,
    )


def judged_on(
    recipe: Recipe, published: Published, models: Sequence[PublishedModel]
) -> dict[str, str]:
    """Return the runs on which a published value is judged, each with the models that it stands in
    for, or "".

    These are the models that it is about, or all of the recipe's; others stand in for them if no
    value of the recipe is about any of the given models.
    """
    named = [each for each in recipe.published if each.models and each.criterion is not None]
    all_stand_in = named and not any(each.is_about(model) for each in named for model in models)
    by_model = find_models_of(recipe.models)
    runs = {}
    for model in models:
        is_meant = published.is_about(model) if published.models else model in by_model
        if published.is_about(model) or all_stand_in:
            stands_in = f"{model.name} stands in for {', '.join(published.models or recipe.models)}"
            runs[model.run] = "" if is_meant else stands_in
    return runs


def count_verdicts(outcomes: Sequence[Outcome]) -> str:
    """Return the numbers of the verdicts in words, such as "2 reproduced, 1 not run"."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    return ", ".join(
        f"{counts[verdict]} {verdict}" for verdict in get_args(Reproduced) if counts[verdict]
    )


def is_reproduced(outcomes: Sequence[Outcome]) -> bool:
    """Return whether every published value that is measured is reproduced, on the models and the
    text of the recipe.
    """
    judged = [outcome for outcome in outcomes if outcome.published.criterion is not None]
    # a value that fits on another text or model is not the published one
    return bool(judged) and all(
        each.verdict == "reproduced" and not each.deviations for each in judged
    )


def _measured(
    recipe: Recipe, store: Store, run: str, cloud: Cloud, hash_start: str | None
) -> Measured | str:
    """Return the measurements of a run on the one probe of a cloud's design, of several the one
    that was sampled as the cloud asks for; or the reason why there are none."""
    if run not in store.runs():
        return "not in the store"
    candidates = [
        (rows, Probe.load(path) if (path := store.probe_path(name)).is_file() else None)
        for (_, name), rows in select(store, [run]).items()
        if is_measured(rows)
        and cloud.design in design_names(rows)
        and name.startswith(hash_start or "")
    ]
    if len(candidates) > 1:
        # of several the one that was sampled as asked; if none was, all stay, and the error names
        # them
        candidates = [
            (rows, probe) for rows, probe in candidates if not deviations(cloud, rows, probe)
        ] or candidates
    if len(candidates) > 1:
        hashes = ", ".join(str(rows["probe"].iloc[0]) for rows, _ in candidates)
        raise ValueError(f"expected {run} on one probe, got {hashes}; choose one with probe=")
    if not candidates:
        return f"no checkpoint measured by the {cloud.design} design"
    ((rows, probe),) = candidates
    # a paper on an encoder-decoder would have to say which of both a value is of
    if len(stacks := by_stack(rows)) > 1:
        return f"has {len(stacks)} stacks of blocks, and a recipe is about one"
    differing = deviations(recipe.cloud, rows, probe)
    return Measured(
        name=run,
        frame=rows.assign(std_error=0.0) if recipe.judged_by == "values" else rows,
        probe=probe,
        deviations=differing,
    )


def run_studies(
    recipe: Recipe,
    models: Sequence[PublishedModel],
    folder: Path,
    loading: ModelOptions,
    shared: Mapping[str, Any],
) -> list[str]:
    """Run each study of a recipe on each model, with its options and those ``shared`` that it has,
    unless its tables are in its folder; return why some were not studied."""
    problems = []
    for (kind, settings), model in product(recipe.studies.items(), models):
        study = getattr(lab, kind)
        # not each study has a text or a seed
        takes = inspect.signature(study).parameters
        options = settings | {name: value for name, value in shared.items() if name in takes}
        output = folder / kind / file_name(model.run)
        # with other options, or broken off, it is run again
        if _options(output) == options:
            continue
        try:
            result = study(model.repository or model.run, loading=loading, **options)
        except (CheckpointError, ValueError, OSError) as error:
            problems.append(f"{kind} of {model.run}: {error}")
            continue
        print(result.summary)
        result.save(output)
        # written last: without it the study is run again
        done = json.dumps(options).encode()
        write_atomically(output / OPTIONS, lambda path, content=done: path.write_bytes(content))
    return problems


def table_of(
    recipe: Recipe, cell: Cell, folder: Path | None, run: str
) -> tuple[pd.DataFrame | str, tuple[str, ...]]:
    """Return the table of a published value as measured on a model, or why there is none, and in
    what options the study deviates from the recipe."""
    if folder is None:
        return "the studies were not run", ()
    output = folder / cell.study / file_name(run)
    settings = recipe.studies[cell.study]
    if (done := _options(output)) is None:
        return f"not studied: repdyn study {cell.study}", ()
    files = sorted(output.rglob(f"{cell.table}.csv"))
    if len(files) != 1:
        return (
            f"the study has no table {cell.table}.csv"
            if not files
            else "has several stacks of blocks",
            (),
        )
    names = [name for name in settings | done if done.get(name) != settings.get(name)]
    differing = (
        f"{name} {done.get(name, 'default')}, not {settings.get(name, 'the default')}"
        for name in names
    )
    # a word of a table may be "null" or "NA", which pandas would take for a missing value
    return pd.read_csv(files[0], keep_default_na=False, na_values=[""]), tuple(differing)


def _options(output: Path) -> dict[str, Any] | None:
    """Return the options of a finished study; None where none is finished."""
    path = output / OPTIONS
    return json.loads(path.read_bytes()) if path.is_file() else None


def print_recipes(recipes: Iterable[Recipe]) -> None:
    """Print a line for each recipe, and what it measures."""
    for recipe in recipes:
        n_run = sum(published.criterion is not None for published in recipe.published)
        print(f"{recipe.name}: {recipe.reference}")
        print(
            f"    {n_run} of {len(recipe.published)} published values, on "
            f"{', '.join(recipe.models)}"
        )


def print_outcomes(recipe: Recipe, outcomes: Sequence[Outcome], page: Path) -> None:
    """Print the published values of a recipe, each with what was measured of each model, and the
    page that has them.
    """
    out = wide_console()
    out.print(Text(recipe.reference, style="bold"), soft_wrap=True)
    if recipe.judged_by != "intervals":
        out.print(BY_WHAT[recipe.judged_by], highlight=False)
    for number, published in enumerate(recipe.published, start=1):
        out.print(Text(f"{number}. {published.claim} ({published.source})"), soft_wrap=True)
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for outcome in (outcome for outcome in outcomes if outcome.published is published):
            verdict = Text(outcome.verdict, style=_VERDICTS[outcome.verdict])
            table.add_row(
                *([Text(outcome.run)] if outcome.run else []), verdict, Text(outcome.text)
            )
        out.print(table)
    out.print(count_verdicts(outcomes), highlight=False)
    print(f"page: {page}")

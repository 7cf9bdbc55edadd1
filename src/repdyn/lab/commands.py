"""The commands of the lab: ``repdyn study``, ``repdyn explore`` and ``repdyn reproduce``.

They come to the command line by the entry points of the group ``repdyn.commands``, as those of any
other package would.
"""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast, get_type_hints

from cyclopts import App, Parameter
from cyclopts.validators import Path as PathValidator

from repdyn.checkpoints.options import SweepOptions
from repdyn.cli.apps import app_of, command_of
from repdyn.cli.measure import FAILED, print_plan, resumable, show_line, status_of
from repdyn.cli.options import Json, Port, print_json
from repdyn.cli.sweep_options import SharedFlags
from repdyn.cli.tables import say, warn, warn_of_others
from repdyn.utils.arguments import (
    SENTENCES,
    Count,
    ModelOptions,
    Models,
    Output,
    Place,
    at_least,
)
from repdyn.utils.console import PrintableConsole

if TYPE_CHECKING:
    from rich.text import Text

    from repdyn.checkpoints.suites import PublishedModel
    from repdyn.lab.recipes.recipe import Cloud, Recipe
    from repdyn.lab.studies.result import StudyResult

STUDIES = {
    "convergence": "how tokens approach their last layer, and at what rate",
    "tokens": "the tokens of a sentence against the vocabulary, layer by layer",
    "topics": "topics in embeddings and attention",
    "anatomy": "embedding tables, and paths of tokens through the layers",
    "sentences": "sentence vectors at every layer",
}
"""Each is the function of its name in ``repdyn.lab``, which is imported when it is needed."""
_STUDY_EXAMPLES = """Examples:
  repdyn study convergence bert-base-uncased --text builtin -o FOLDER
  repdyn study tokens roberta-base -o FOLDER
  repdyn study topics --help                      every option of a study
"""
_CLOUD = ("text", "sequence_length", "max_vectors", "batch_vectors")
Folder: TypeAlias = Annotated[
    Path,
    Parameter(
        alias="-o", validator=PathValidator(file_okay=False), help="Folder for tables and figures."
    ),
]


@dataclass(frozen=True)
class Written:
    """Prints what a study finds, and writes each part of its results when it is complete."""

    output: Path

    def line(self, line: Text) -> None:
        PrintableConsole().print(line, markup=False, highlight=False, soft_wrap=True)

    def result(self, subfolder: str, result: StudyResult) -> None:
        folder = self.output / subfolder
        files = result.save(folder)
        print(f"tables and figures: {folder} ({len(files)} files)")


def study_command(name: str) -> App:
    """Return the command of a study: the function of ``repdyn.lab`` with the same arguments, and a
    folder that its results are written to.
    """
    from repdyn.lab.studies.study import followed_by

    function = getattr(import_module("repdyn.lab"), name)

    def command(*models: Any, output: Path, **options: Any) -> None:
        with followed_by(Written(output)):
            function(*models, **options)

    hints = get_type_hints(function, include_extras=True)
    first, *others = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in inspect.signature(function).parameters.values()
    ]
    folder = inspect.Parameter("output", inspect.Parameter.KEYWORD_ONLY, annotation=Folder)
    parameters = [first.replace(annotation=Models), folder, *others]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {it.name: it.annotation for it in parameters}
    command.__doc__ = function.__doc__
    return command_of(command, name)


def _explore(
    models: Models,
    /,
    *,
    loading: ModelOptions = ModelOptions(),
    sentence: str = SENTENCES[0],
    second: str = SENTENCES[1],
    nearest: Count = 10,
    max_tokens: Annotated[int, at_least(2)] = 128,
    host: str = "127.0.0.1",
    port: Port = 7860,
    root_path: str = "",
    open: bool = False,
) -> None:
    """Explore the tokens of a sentence in a browser.

    The page shows what each layer predicts at a token (the logit lens), and where it takes it in
    the vocabulary. It is served to this computer only, unless --host is given: it has no password.

    Args:
        sentence: First sentence.
        second: Second sentence of the paths.
        nearest: Number of nearest tokens.
        max_tokens: Tokens of a sentence.
        host: Address it is served at.
        port: Port, or another one where it is taken; 0 for any.
        root_path: Path below which a proxy serves the page, as /user/me/proxy/7860 on a JupyterHub;
            with --host 0.0.0.0.
        open: Open a browser.

    Examples:
      repdyn explore roberta-base
      repdyn explore EleutherAI/pythia-70m --revisions step512,step143000
      repdyn explore runs/quickstart/TIME                  three checkpoints
      repdyn explore bert-base-cased distilbert-base-cased --sentence "Hello."
      repdyn explore my-model --port 0 --open              any free port
    """
    from repdyn.lab.explorer.app import build, load_checkpoints, serve
    from repdyn.lab.explorer.session import Session

    warn_of_others(host, "use the explorer without a password")
    session = Session(load_checkpoints(models, loading), nearest=nearest, max_tokens=max_tokens)
    blocks = build(session, sentence, second)
    serve(blocks, host=host, port=port, root_path=root_path, open_browser=open)


def _reproduce(
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
    shared: Annotated[SharedFlags, Parameter(name="*")] = SharedFlags(),
    json: Json = False,
) -> int:
    """Measure what a paper measured, and compare with what it published.

    It can be stopped at any time; the same command continues it. The exit status is 0 if every
    published value that the recipe measures is reproduced. Models or sampling other than the
    recipe's are stated as deviations.

    Args:
        name: Recipe, or YAML file of one.
        list_recipes: List the recipes.
        dry_run: Show what remains and what would be downloaded.
        evaluate_only: Judge what is in the store, without measuring anything.
        models: Other models: of suites, patterns, YAML files, hub repositories; folders for recipes
            of studies.
        runs: With --evaluate-only, judge each published value on these runs of --store, or on all
            of them, whatever models it is about.
        revisions: Other revisions, as for repdyn sweep (default: those of the recipe).
        store: Folder or URL of the measurements (default: reproductions/NAME).
        output: Folder of page and figure (default: the store).
        probe: Hash of the probe to judge, if the store has several of the design.

    Examples:
      repdyn reproduce --list
      repdyn reproduce shape-of-learning --dry-run        what would be downloaded
      repdyn reproduce shape-of-learning --max-disk 20GB
      repdyn reproduce shape-of-learning --models pythia-160m --revisions log
      repdyn reproduce embedding-spaces --models FOLDER    studies of a local model
      repdyn reproduce my_recipe.yaml --store sweeps
      repdyn reproduce shape-of-learning --evaluate-only --json
      repdyn reproduce shape-of-learning --evaluate-only --store RUN --runs
    """
    from repdyn.lab.recipes.recipe import find_models_of, find_recipe, shipped_recipes

    if list_recipes:
        return _list_recipes(list(shipped_recipes().values()), json)
    if name is None:
        raise ValueError("expected the name of a recipe, or --list, got neither; see --help")
    if runs is not None and not evaluate_only:
        raise ValueError(
            "expected --runs with --evaluate-only, got it alone; measured runs are judged, none is "
            "swept"
        )
    recipe = find_recipe(name)
    judged = _Judged(
        recipe=recipe,
        models=find_models_of(models or recipe.models),
        named=models,
        shared=shared,
        store=store or Path("reproductions") / recipe.name,
        output=output,
    )
    status = 0
    if not evaluate_only:
        if recipe.studies:
            status = judged.study(dry_run=dry_run)
        if recipe.metrics:
            swept = judged.sweep(revisions, dry_run=dry_run, json=json)
            if dry_run:
                return swept
            status = max(status, swept)
            if shared.shard:
                say(
                    f"when all shards are done: repdyn reproduce {name} --store {judged.store} "
                    "--evaluate-only"
                )
                return status
        elif dry_run:
            return status
    is_reproduced = judged.judge(probe, runs, evaluate_only=evaluate_only, json=json)
    return status if is_reproduced else FAILED


@dataclass(frozen=True)
class _Judged:
    """A recipe, and what it is judged on."""

    recipe: Recipe
    models: list[PublishedModel]
    named: list[str] | None
    """The models as they were named; None for those of the recipe."""
    shared: SharedFlags
    store: Place
    output: Path | None

    @property
    def sampling(self) -> dict[str, Any]:
        """Return the options of the sampling that are set."""
        values = {name: getattr(self.shared, name) for name in _CLOUD}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def cloud(self) -> Cloud:
        """Return the cloud of the recipe, with the options that are set."""
        of_recipe = self.recipe.cloud
        if "max_vectors" in self.sampling:
            of_recipe = replace(of_recipe, batch_vectors=None)
        return replace(of_recipe, **self.sampling)

    @property
    def tables(self) -> Path | None:
        """Return the folder of the studies' tables; None for a recipe without studies."""
        return (self.output or Path(self.store)) if self.recipe.studies else None

    def study(self, *, dry_run: bool) -> int:
        """Run the recipe's studies, or say which ones, and return the exit status."""
        from repdyn.lab.recipes.evaluation import run_studies

        if dry_run:
            names = ", ".join(model.run for model in self.models)
            say(f"studies {', '.join(self.recipe.studies)} of {names}")
            return 0
        shared = self.shared
        loading = ModelOptions(device=shared.device, trust_remote_code=shared.trust_remote_code)
        folder = cast(Path, self.tables)
        # what studies print is no part of the outcomes
        with resumable(), redirect_stdout(sys.stderr):
            problems = run_studies(self.recipe, self.models, folder, loading, self.sampling)
            return status_of(problems)

    def sweep(self, revisions: str | None, *, dry_run: bool, json: bool) -> int:
        """Measure what the recipe measures, or print the plan, and return the exit status."""
        from repdyn.checkpoints.sweep import measure_prepared, prepare
        from repdyn.lab.recipes.recipe import is_local

        recipe = self.recipe
        cloud = self.cloud
        local = next((model.run for model in self.models if is_local(model.run)), None)
        if local:
            raise ValueError(
                f"expected published models for a recipe of metrics, got the local {local}; sweep "
                f"it with repdyn sweep {local} --design {cloud.design} --store {self.store}, and "
                f"judge with --evaluate-only --store {self.store} --runs"
            )
        settings = vars(self.shared) | {name: getattr(cloud, name) for name in _CLOUD}
        settings |= {"suite": self.models, "metrics": recipe.metrics, "design": cloud.design}
        options = SweepOptions(
            revisions=revisions or recipe.revisions, store=self.store, **settings
        )
        with resumable():
            prepared = prepare(options, to_plan=dry_run)
            for note in prepared.notes:
                warn(note)
            if dry_run:
                return print_plan(prepared, json)
            swept = measure_prepared(prepared, show=show_line)
        status = status_of(swept.failures)
        return status if swept.not_uploaded is None else FAILED

    def judge(
        self, probe: str | None, runs: list[str] | None, *, evaluate_only: bool, json: bool
    ) -> bool:
        """Print and write the outcomes; return whether every published value is reproduced."""
        from repdyn.lab.recipes.evaluation import evaluate, is_reproduced, print_outcomes
        from repdyn.lab.recipes.page import write_results
        from repdyn.store import find_store, store_at
        from repdyn.views.judging import doubts

        recipe = self.recipe
        store = find_store(self.store) if evaluate_only and recipe.metrics else store_at(self.store)
        if runs == []:
            runs = store.runs()
        outcomes, measured = evaluate(
            recipe, store, self.named, probe, runs, self.cloud, self.tables
        )
        clouds = {(of_run.name, str(of_run.rows["probe"].iloc[0])) for of_run in measured}
        in_doubt = doubts(store, sorted(clouds))
        for sentence in in_doubt:
            say(sentence)
        page = write_results(recipe, outcomes, measured, self.output or store.output, in_doubt)
        if json:
            print_json([{"recipe": recipe.name, **outcome.as_dict()} for outcome in outcomes])
        else:
            print_outcomes(recipe, outcomes, page)
        return is_reproduced(outcomes)


def _list_recipes(recipes: Sequence[Recipe], json: bool) -> int:
    from repdyn.lab.recipes.evaluation import print_recipes

    names = ("name", "title", "paper", "address", "models", "metrics")
    records = [
        {name: getattr(recipe, name) for name in names}
        | {"claims": [published.claim for published in recipe.published]}
        for recipe in recipes
    ]
    print_json(records) if json else print_recipes(recipes)
    return 0


study = app_of("study", help_epilogue=_STUDY_EXAMPLES)
for _number, (_name, _help) in enumerate(STUDIES.items()):
    study.command(f"{__name__}:{_name}", name=_name, help=_help, sort_key=_number)
explore = command_of(_explore, "explore")
reproduce = command_of(_reproduce, "reproduce")


def __getattr__(name: str) -> App:
    """Make the command of a study when it is called: its options are those of a function that
    torch is imported for.
    """
    if name in STUDIES:
        return study_command(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

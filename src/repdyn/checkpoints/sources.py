"""The checkpoints that the source of a sweep stands for: a folder, a hub repository, models of
suites, or pairs of a step and a function that loads the model.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import count
from operator import index
from pathlib import Path
from typing import Any, cast

from huggingface_hub.errors import RepositoryNotFoundError

from repdyn.checkpoints.errors import CheckpointError, NoConnectionError
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.local import find_checkpoints, find_own_files
from repdyn.checkpoints.options import CompleteOptions, Loads, is_here
from repdyn.checkpoints.published import select_models
from repdyn.checkpoints.revisions import match_revisions, select_revisions
from repdyn.checkpoints.suites import (
    PublishedCheckpoint,
    PublishedModel,
    find_models,
    models_of,
    require_distinct_steps,
)
from repdyn.checkpoints.targets import Selection, Target
from repdyn.store.schema import FINISHED
from repdyn.utils.mistyped import did_you_mean
from repdyn.utils.steps import DEFAULT_PATTERN

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
"""What may be the name of a hub repository."""
_LOADS = (
    "a folder, a repository, or pairs of a step and a function that returns the model of that step"
)


def find_selections(options: CompleteOptions, hub: Hub) -> tuple[list[Selection], list[str]]:
    """Return what complete options select, and why the rest cannot be listed."""
    source = options.source
    if options.tokenizer:
        require_source(options.tokenizer)
    if options.suite:
        return _of_models(find_models(options.suite), options, hub)
    if not isinstance(source, str | Path):
        return [_of_loads(cast(Loads, source), options)], []
    require_source(source)
    if is_here(source):
        return [_of_folder(Path(source), options)], []
    try:
        model, unmatched = _model_of_repository(str(source), options, hub)
        selections, problems = _of_models([model], options, hub)
        noted = [
            replace(selection, unmatched=selection.unmatched or unmatched)
            for selection in selections
        ]
        return noted, problems
    except CheckpointError as error:
        return [], [f"{source}: {error}"]
    except NoConnectionError as error:
        hint = did_you_mean(str(source), [path.name for path in Path().glob("[!.]*/")])
        raise NoConnectionError(
            hub.endpoint, f"and there is no local folder {str(source)!r}{hint}"
        ) from error


def require_source(source: str | Path) -> None:
    """Raise ValueError unless a source is a local file or folder, or may be a hub repository."""
    if is_here(source):
        return
    owner, _, name = str(source).partition("/")
    # runs/mistyped is meant as a folder where there is a folder runs
    is_in_folder = bool(name) and Path(owner).is_dir() and not Path(source).is_dir()
    # an object of Path is never a repository
    if isinstance(source, Path) or not REPOSITORY.fullmatch(source) or is_in_folder:
        raise ValueError(
            f"expected an existing folder or a hub repository, got {str(source)!r}: there is no "
            "such folder"
        )


def _of_models(
    models: Sequence[PublishedModel], options: CompleteOptions, hub: Hub
) -> tuple[list[Selection], list[str]]:
    if options.name and len(models) > 1:
        raise ValueError(f"expected one model with name=, got {len(models)}; omit it")
    renamed = [
        replace(
            model, run=options.name or model.run, tokenizer=options.tokenizer or model.tokenizer
        )
        for model in models
    ]
    runs = [model.run for model in renamed]
    repeated = next((run for run in runs if runs.count(run) > 1), None)
    if repeated is not None:
        raise ValueError(
            f"expected a different run for each model, got {repeated!r} twice; sweep them into two "
            "stores"
        )
    return select_models(renamed, hub, options.revisions)


def _model_of_repository(
    name: str, options: CompleteOptions, hub: Hub
) -> tuple[PublishedModel, tuple[str, ...]]:
    """Return the model of a repository: from a suite, by the steps in its revisions, or as a
    finished model, and which branches and tags are then left out.
    """
    described = [] if options.pattern else models_of(name)
    if len(described) == 1:
        # as with --suite, so that a run is always read in the same way
        return described[0], ()
    if described:
        raise ValueError(
            f"expected one training run in {name}, got several; choose among them with suite=: "
            f"{', '.join(model.name for model in described)}; or select revisions with pattern="
        )
    pattern = options.pattern or DEFAULT_PATTERN
    try:
        with_steps, others = match_revisions(list(hub.refs(name)), pattern)
    except CheckpointError as error:
        if not isinstance(error.__cause__, RepositoryNotFoundError):
            raise
        # most likely a mistyped folder or repository
        raise ValueError(
            f"expected an existing folder or a hub repository, got {name!r}: {error}"
        ) from error
    model = PublishedModel(name=name, suite="", run=name, repository=name, revisions=pattern)
    # branches and tags without a step are measured where they are named
    named = {revision.strip() for revision in options.revisions.split(",")}
    names_others = not named.isdisjoint(set(others) - {"main"})
    if with_steps or options.pattern or names_others:
        return model, ()
    # without a step in any name, the main branch is all that there is
    finished = PublishedCheckpoint(name, 0, stage=FINISHED)
    unmatched = tuple(other for other in others if other != "main")
    return replace(model, revisions=None, checkpoints=(finished,)), unmatched


def _of_folder(folder: Path, options: CompleteOptions) -> Selection:
    """Return the checkpoints of a folder.

    The averaged weights that a file holds beside the raw ones are a run of their own.
    """
    if options.load is not None:
        load = function_of(options.load)
        selection = find_own_files(folder, options.name, options.pattern)
        chosen = select_revisions(selection.targets, options.revisions)
        loaded = (replace(target, load=partial(load, target.path)) for target in chosen)
        return replace(selection, targets=tuple(loaded))
    selection = find_checkpoints(folder, options.name, options.pattern)
    chosen = select_revisions(selection.targets, options.revisions)
    averaged = [
        replace(target, run=f"{selection.run} (averaged)", weights_kind="averaged")
        for target in chosen
        if target.weights_kind == "raw"
    ]
    return replace(selection, targets=(*chosen, *averaged))


def function_of(name: str) -> Callable[..., Any]:
    """Return the function that "module:function" names, of a module here or installed."""
    module, _, function = name.partition(":")
    if not (module and function):
        raise ValueError(
            f'expected load="module:function", got {name!r}; of mine.py, load="mine:load"'
        )
    # of a command, the path begins with the folder of its script and not with the working folder
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        loaded = getattr(import_module(module), function)
    except Exception as error:  # whatever the user's module raises
        raise ValueError(
            f"expected a function for load={name}, got {type(error).__name__}: {error}; the "
            "module must be in this folder or installed"
        ) from error
    if not callable(loaded):
        raise ValueError(
            f"expected a function for load={name}, got {type(loaded).__name__}; name one that "
            "returns the model of a path"
        )
    return loaded


def _of_loads(source: Loads, options: CompleteOptions) -> Selection:
    """Return the checkpoints of pairs of a step and a function that loads the model."""
    if options.probe is None:
        raise ValueError(
            "expected a probe for models that are loaded by a function, got none; give probe="
        )
    if options.engine == "ray":
        raise ValueError(
            'expected folders or repositories with engine="ray", got functions; leave it out'
        )
    run = options.name or "model"
    try:
        # integers of any library, and no 1.5
        loads = [(index(step), load) for step, load in source]
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected {_LOADS}, got {source!r:.200}: {error}") from error
    # a model is callable too
    wrong = [load for _, load in loads if not callable(load) or hasattr(load, "parameters")]
    if wrong:
        raise ValueError(
            f"expected {_LOADS}, got {type(wrong[0]).__name__} in place of a function; pass "
            "lambda: model"
        )
    require_distinct_steps([(step, f"step{step}") for step, _ in loads], "leave one out")
    # a path makes a target local: nothing of it is looked up on the hub
    targets = [Target(run, step, f"step{step}", path=Path.cwd(), load=load) for step, load in loads]
    return Selection(run, tuple(select_revisions(targets, options.revisions)))


def select_shard(selections: Sequence[Selection], number: int, n_shards: int) -> list[Selection]:
    """Return the checkpoints of a shard, counted from 1, which does not depend on those already
    measured.
    """
    # dealt in turn over all models, so that shards of many small models are equal too
    position = count()
    shard = []
    for selection in selections:
        targets = tuple(
            target for target in selection.targets if next(position) % n_shards == number - 1
        )
        if targets:
            shard.append(replace(selection, targets=targets))
    return shard

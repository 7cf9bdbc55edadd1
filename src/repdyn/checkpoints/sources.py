"""The checkpoints that a sweep's source or suites stand for: of a folder, a repository, published
models, or functions that load them.
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
from repdyn.checkpoints.suites import (
    PublishedCheckpoint,
    PublishedModel,
    find_models,
    models_of,
    require_distinct_steps,
)
from repdyn.checkpoints.targets import (
    Selection,
    Target,
    match_revisions,
    select_models,
    select_revisions,
)
from repdyn.store.schema import FINISHED
from repdyn.utils.mistyped import did_you_mean
from repdyn.utils.steps import DEFAULT_PATTERN

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
"""What may be the name of a hub repository."""
_LOADS = (
    "a folder, a repository, or pairs of a step and a function that returns the model of that step"
)


def find_selections(options: CompleteOptions, hub: Hub) -> tuple[list[Selection], list[str]]:
    """Return what complete options select, and why the rest cannot be listed."""
    source = options.source
    if options.tokenizer:
        is_local_source(options.tokenizer)  # refuses what is neither
    if options.suite:
        return _of_models(find_models(options.suite), options, hub)
    if not isinstance(source, str | Path):
        return [_of_loads(cast(Loads, source), options)], []
    if is_local_source(source):
        return [_of_folder(Path(source), options)], []
    try:
        return _of_models([_model_of_repository(str(source), options, hub)], options, hub)
    except CheckpointError as error:
        return [], [f"{source}: {error}"]
    except NoConnectionError as error:
        hint = did_you_mean(str(source), [path.name for path in Path().glob("[!.]*/")])
        raise NoConnectionError(
            hub.endpoint, f"and there is no local folder {str(source)!r}{hint}"
        ) from error


def is_local_source(source: object) -> bool:
    """Return whether a source is here rather than on the hub; raise ValueError if it can be
    neither.
    """
    if not isinstance(source, str | Path) or is_here(source):
        return True
    first, _, rest = str(source).partition("/")
    if (
        isinstance(source, Path)
        or not _REPOSITORY.fullmatch(source)
        or (rest and Path(first).is_dir() and not Path(source).is_dir())
    ):
        raise ValueError(
            f"expected an existing folder or a hub repository, got {str(source)!r}: there is no "
            "such folder"
        )
    return False


def _of_models(
    models: Sequence[PublishedModel], options: CompleteOptions, hub: Hub
) -> tuple[list[Selection], list[str]]:
    if options.name and len(models) > 1:
        raise ValueError(f"expected one model with name=, got {len(models)}; omit it")
    named = [
        replace(
            model, run=options.name or model.run, tokenizer=options.tokenizer or model.tokenizer
        )
        for model in models
    ]
    runs = [model.run for model in named]
    if twice := next((run for run in runs if runs.count(run) > 1), None):
        raise ValueError(
            f"expected a different run for each model, got {twice!r} twice; sweep them into two "
            "stores"
        )
    return select_models(named, hub, options.revisions)


def _model_of_repository(name: str, options: CompleteOptions, hub: Hub) -> PublishedModel:
    """Return the model of a repository: from a suite, by the steps in its revisions, or as a
    finished model.
    """
    known = models_of(name)
    if len(known) == 1 and not options.pattern:
        # as with --suite, so that a run is always read in the same way
        return known[0]
    if known and not options.pattern:
        raise ValueError(
            f"expected one training run in {name}, got several; choose among them with "
            f"suite=: {', '.join(model.name for model in known)}; or select revisions with pattern="
        )
    pattern = options.pattern or DEFAULT_PATTERN
    try:
        found, _ = match_revisions(list(hub.refs(name)), pattern)
    except CheckpointError as error:
        if not isinstance(error.__cause__, RepositoryNotFoundError):
            raise
        # most likely a mistyped folder or repository
        raise ValueError(
            f"expected an existing folder or a hub repository, got {name!r}: {error}"
        ) from error
    model = PublishedModel(name=name, suite="", run=name, repository=name, revisions=pattern)
    if found or options.pattern:
        return model
    return replace(
        model, revisions=None, checkpoints=(PublishedCheckpoint(name, 0, stage=FINISHED),)
    )


def _of_folder(folder: Path, options: CompleteOptions) -> Selection:
    """Return the checkpoints of a folder, and those of averaged weights, beside the raw ones in a
    file, as a run.
    """
    if options.load is not None:
        load = function_of(options.load)
        selection = find_own_files(folder, options.name, options.pattern)
        chosen = select_revisions(selection.targets, options.revisions)
        loaded = (replace(target, load=partial(load, target.path)) for target in chosen)
        return replace(selection, targets=tuple(loaded))
    found = find_checkpoints(folder, options.name, options.pattern)
    chosen, run = select_revisions(found.targets, options.revisions), f"{found.run} (averaged)"
    averaged = [
        replace(each, run=run, weights_kind="averaged")
        for each in chosen
        if each.weights_kind == "raw"
    ]
    return replace(found, targets=(*chosen, *averaged))


def function_of(name: str) -> Callable[..., Any]:
    """Return the function that "module:function" names, of a module here or installed."""
    module, _, function = name.partition(":")
    if not (module and function):
        raise ValueError(
            f'expected load="module:function", got {name!r}; of mine.py, load="mine:load"'
        )
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
        loads = [(index(step), load) for step, load in source]
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected {_LOADS}, got {source!r:.200}: {error}") from error
    if wrong := next(
        (load for _, load in loads if not callable(load) or hasattr(load, "parameters")), None
    ):
        raise ValueError(
            f"expected {_LOADS}, got {type(wrong).__name__} in place of a function; pass lambda: "
            "model"
        )
    require_distinct_steps([(step, f"step{step}") for step, _ in loads], "leave one out")
    targets = [Target(run, step, f"step{step}", path=Path.cwd(), load=load) for step, load in loads]
    return Selection(run, tuple(select_revisions(targets, options.revisions)))


def select_shard(selections: Sequence[Selection], part: int, n_parts: int) -> list[Selection]:
    """Return the checkpoints of a shard, which does not depend on those already measured."""
    numbers = count()
    of_shard = [
        replace(
            selection,
            targets=tuple(
                each for each in selection.targets if next(numbers) % n_parts == part - 1
            ),
        )
        for selection in selections
    ]
    return [selection for selection in of_shard if selection.targets]

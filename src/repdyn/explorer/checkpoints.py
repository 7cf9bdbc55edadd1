"""From what the command line names to loaded checkpoints, all of them in memory."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from repdyn.hub.local import checkpoints_folder
from repdyn.hub.options import check_device
from repdyn.studies.models import LoadedModel, load_models

_MAX_LISTED = 12


class Named(NamedTuple):
    """One checkpoint, before it is loaded."""

    model: str
    """A folder of save_pretrained, or a hub repository with its revision."""
    name: str
    """As it is shown."""


def load_checkpoints(options: argparse.Namespace) -> list[LoadedModel]:
    """The checkpoints that the options name, loaded.

    Args:
        options: models, revisions, tokenizer, device, dtype, trust_remote_code; as on the command line.

    Raises:
        ValueError: a name that leads nowhere, the same checkpoint twice, or a mistaken option.
        CheckpointError: a model or tokenizer cannot be fetched or does not load.
    """
    check_device(options.device)
    loaded = []
    for one in named_checkpoints(options.models, options.revisions):
        alone = argparse.Namespace(**{**vars(options), "models": [one.model], "revisions": ()})
        # another one would take this one's weights away
        loaded.append(replace(next(load_models(alone)), name=one.name))
    return loaded


def named_checkpoints(models: Sequence[str], revisions: Sequence[str]) -> list[Named]:
    """Each model, or each of its revisions, in order.

    >>> [one.name for one in named_checkpoints(["lab/model", "lab/other@main"], ["step0", "step8"])]
    ['lab/model@step0', 'lab/model@step8', 'lab/other']

    Args:
        models: hub repositories, with or without a revision of their own; folders of save_pretrained; folders of runs.
        revisions: of repositories without one of their own, and of folders that hold several checkpoints.

    Raises:
        ValueError: a folder without the checkpoint, revisions where nothing has any, or the same checkpoint twice.
    """
    found = [one for model in models for one in _checkpoints(model, revisions)]
    if revisions and all((Path(model) / "config.json").is_file() or "@" in model for model in models):
        raise ValueError(
            "expected --revisions with a hub repository or the folder of a run, got single checkpoints alone; leave it "
            "out"
        )
    names = [one.name for one in found]
    shown = [Named(one.model, one.model) if names.count(one.name) > 1 else one for one in found]
    if twice := next((one.name for one in shown if shown.count(one) > 1), None):
        raise ValueError(f"expected each checkpoint once, got {twice!r} twice")
    return shown


def _checkpoints(model: str, revisions: Sequence[str]) -> list[Named]:
    folder = Path(model)
    if not folder.exists():
        repository, _, own = model.partition("@")
        wanted = [own] if own else revisions or ["main"]
        return [Named(name, name) for name in (repository if at == "main" else f"{repository}@{at}" for at in wanted)]
    if (folder / "config.json").is_file():
        return [Named(model, _shown(folder))]
    inside = checkpoints_folder(folder)
    there = [path.parent for path in inside.glob("[!.]*/config.json")]
    there.sort(key=lambda path: (len(path.name), path.name))
    listed = ", ".join(path.name for path in there[:_MAX_LISTED]) + (", ..." if len(there) > _MAX_LISTED else "")
    if not there:
        raise ValueError(f"expected a folder of save_pretrained, or one that holds some, got {model}")
    if not revisions:
        raise ValueError(f"expected one checkpoint of {model}, got the folder; choose with --revisions: {listed}")
    if missing := next((at for at in revisions if inside / at not in there), None):
        raise ValueError(f"expected a checkpoint of {model} as --revisions, got {missing!r}; there are {listed}")
    return [Named(str(inside / at), f"{_shown(folder)}@{at}") for at in revisions]


def _shown(folder: Path) -> str:
    return Path(os.path.abspath(folder)).name

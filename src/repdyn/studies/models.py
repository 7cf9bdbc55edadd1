"""The models of a study: from what the command line names to one loaded model and its tokenizer after another.

Nothing that is fetched is trusted: weights are read without running pickles, and code of a repository runs only under
``--trust-remote-code``. What is fetched from the hub stays in the cache folder, so that a second study has it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast
from urllib.parse import quote

import torch
from huggingface_hub.errors import HFValidationError
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from repdyn.text.corpus import cache_directory
from repdyn.hub.client import Hub, no_progress
from repdyn.hub.errors import CheckpointError, SweepStoppedError
from repdyn.hub.options import check_device
from repdyn.hub.tokenizers import context_length, has_tokenizer, load_tokenizer, tokenizer_files
from repdyn.hub.weights import DTYPES, Loading, choose_files, load_model


@dataclass(eq=False)
class LoadedModel:
    """One model of a study."""

    name: str
    """As it is shown; no two models of a command have the same."""
    model: PreTrainedModel
    """Bare (no head), in evaluation mode."""
    tokenizer: PreTrainedTokenizerBase

    @property
    def folder_name(self) -> str:
        """Its name as that of a folder or the beginning of a file's."""
        return file_name(self.name)

    @property
    def context(self) -> int:
        """Tokens that fit into the model; 2**30 where neither configuration nor tokenizer sets a limit."""
        return context_length(self.model.config, self.tokenizer)


@dataclass(frozen=True)
class _Named:
    """What MODEL names: a local folder, or a revision of a repository."""

    name: str
    folder: Path | None = None
    repository: str = ""
    revision: str = "main"


def file_name(name: str) -> str:
    """A name as part of a path.

    >>> file_name("lab/model@step8")
    'lab%2Fmodel@step8'
    """
    return quote(name, safe=" @()")


def add_options(parser: argparse.ArgumentParser, *, fewest: Literal[0, 1] = 1) -> None:
    """MODEL..., and how and where models are loaded; ``-o`` for what is written.

    Args:
        parser: of the study.
        fewest: models that must be named.
    """
    parser.add_argument(
        "models",
        nargs="+" if fewest else "*",
        metavar="MODEL",
        help="hub repository, also as REPOSITORY@REVISION, or folder of save_pretrained",
    )
    parser.add_argument("-o", "--output", type=_folder, required=True, metavar="FOLDER", help="for tables and figures")
    group = parser.add_argument_group("how models are loaded")
    group.add_argument("--revision", help="branch, tag or commit of repositories without one of their own")
    group.add_argument("--tokenizer", help="folder or hub repository of the tokenizer (default: each model's own)")
    group.add_argument(
        "--device",
        type=_device,
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="where the models run (default: %(default)s)",
    )
    group.add_argument(
        "--dtype",
        choices=["auto", *DTYPES],
        default="float32",
        help="precision of the weights, auto for the saved one (default: %(default)s)",
    )
    group.add_argument("--trust-remote-code", action="store_true", help="run Python code that a model brings along")


def subjects(options: argparse.Namespace) -> Iterator[LoadedModel]:
    """The models that the options name, one loaded at a time, in their order.

    A model's weights are gone, whoever still refers to it, as soon as the next one is asked for: a study keeps
    what it worked out, never the model.

    Raises:
        ValueError: a name that leads nowhere, the same model twice, or a mistaken option. All names are looked at
            before the first model is loaded.
        CheckpointError: a model or tokenizer cannot be fetched or does not load.
    """
    named = _named(options.models, options.revision)
    loading = Loading(options.device, options.dtype, None, options.trust_remote_code)
    for one in named:
        model_folder, tokenizer_folder = _folders(one, options.tokenizer, with_code=loading.trust_remote_code)
        try:
            model = cast(PreTrainedModel, load_model(model_folder, loading))
        except CheckpointError as error:
            raise CheckpointError(f"expected a model that loads, got {one.name}: {error}") from error
        yield LoadedModel(one.name, model, _tokenizer(one.name, tokenizer_folder, loading.trust_remote_code))
        cast(nn.Module, model).to(torch.device("meta"))


def _named(models: Sequence[str], revision: str | None) -> list[_Named]:
    found = [_one_named(model, revision) for model in models]
    if revision and all(one.folder for one in found):
        raise ValueError("expected --revision with a hub repository, got it with local folders alone; leave it out")
    tails = _tails([one.folder for one in found if one.folder])
    shown = [_Named(tails[one.folder], one.folder) if one.folder else one for one in found]
    names = [one.name for one in shown]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"expected each model once, got {twice!r} {names.count(twice)} times")
    return shown


def _one_named(model: str, revision: str | None) -> _Named:
    if Path(model).exists():
        folder = Path(os.path.abspath(model))
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"expected a folder of save_pretrained with a config.json, got {model}; name one checkpoint, such as "
                "RUN/hf_checkpoints/step500"
            )
        return _Named(str(folder), folder)
    repository, _, own = model.partition("@")
    if repository.count("/") > 1 or not repository or model.startswith((".", "/", "~")):
        raise ValueError(f"expected a folder that exists, or a hub repository, got {model!r}")
    at = own or revision or "main"
    return _Named(repository if at == "main" else f"{repository}@{at}", None, repository, at)


def _tails(folders: Sequence[Path]) -> dict[Path, str]:
    """The last parts of each path, as few as tell all of them apart."""
    longest = max((len(folder.parts) for folder in folders), default=1)
    tails: dict[Path, str] = {}
    for n_parts in range(1, longest + 1):
        tails = {folder: "/".join(folder.parts[1:][-n_parts:]) for folder in folders}
        if len(set(tails.values())) == len(set(folders)):
            break
    return tails


def _folders(one: _Named, tokenizer: str | None, *, with_code: bool) -> tuple[Path, Path]:
    """Where the model and its tokenizer lie, fetched where that is needed."""
    hub = Hub()
    try:
        model = one.folder or _fetch(hub, one.repository, one.revision, weights=True, with_code=with_code)
        if tokenizer is None:
            return model, model
        if Path(tokenizer).is_dir():
            return model, Path(tokenizer)
        repository, _, revision = tokenizer.partition("@")
        return model, _fetch(hub, repository, revision or "main", weights=False, with_code=with_code)
    except HFValidationError as error:
        raise ValueError(f"expected a folder that exists, or a hub repository: {error}") from error
    except (CheckpointError, SweepStoppedError) as error:
        # what a sweep would say of its store does not concern a study
        reason = str(error).replace("; what is measured is stored, and the same command goes on from there", "")
        raise CheckpointError(f"expected a model at {one.name}, got none: {reason}") from error


def _fetch(hub: Hub, repository: str, revision: str, *, weights: bool, with_code: bool) -> Path:
    """Fetch what a model or its tokenizer needs of a repository; returns where it lies."""
    commit = hub.commit(repository, revision)
    there = hub.files(repository, commit)
    chosen = tokenizer_files(there, with_code=with_code)
    if weights:
        chosen = {**chosen, **choose_files(there, with_code=with_code)}
    if cached := hub.cached(repository, commit, chosen):
        return cached
    folder = cache_directory() / "models" / quote(repository, safe="") / commit
    hub.download(repository, commit, chosen, folder, no_progress())
    return folder


def _tokenizer(name: str, folder: Path, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    if not has_tokenizer(path.name for path in folder.iterdir()):
        raise CheckpointError(
            f"expected a tokenizer beside the weights of {name}, found none; name a folder or hub repository that has "
            "it with --tokenizer"
        )
    return load_tokenizer(folder, name, trust_remote_code=trust_remote_code)


def _device(text: str) -> str:
    try:
        check_device(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _folder(text: str) -> Path:
    if Path(text).exists() and not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"expected a folder, or a path where one can be made, got the file {text}")
    return Path(text)

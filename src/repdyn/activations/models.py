"""Load models and their tokenizers: one, or those that a command line names, one after another.

Downloads are not trusted: weights are read without running pickles, and code of a repository runs
only with ``trust_remote_code``. Downloads stay in the cache folder, so that a second study finds
them there.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from huggingface_hub.errors import HFValidationError
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from repdyn.capture.blocks import LayerPatterns
from repdyn.checkpoints import weights
from repdyn.checkpoints.errors import CheckpointError, SweepStoppedError
from repdyn.checkpoints.hub import Hub, repository_and_revision
from repdyn.checkpoints.local import checkpoints_folder, is_model
from repdyn.checkpoints.options import Loading, available_device
from repdyn.checkpoints.probes import (
    context_length,
    holds_tokenizer,
    load_tokenizer,
    tokenizer_files,
)
from repdyn.checkpoints.weight_files import GGUF, Files, choose_files
from repdyn.utils.choices import Dtype

_MAX_LISTED = 12


@dataclass(eq=False)
class LoadedModel:
    """A model and its tokenizer."""

    name: str
    """Display name, unique within a command."""
    model: PreTrainedModel
    """Without a head, in evaluation mode."""
    tokenizer: PreTrainedTokenizerBase
    with_head: PreTrainedModel | None = None
    """The model with its language-modelling head, of which ``model`` is a part; None where it was
    loaded without.
    """
    layers: LayerPatterns = None
    """Name patterns of the blocks where a function is given none, as for
    :func:`repdyn.layer_states`.
    """
    stack: str | None = None
    """The only stack of blocks whose layers are read; None for all of them."""

    @property
    def folder_name(self) -> str:
        """Return the name as that of a folder or the beginning of a file's."""
        return file_name(self.name)

    @property
    def context(self) -> int:
        """Return the context length in tokens; 2**30 where neither configuration nor tokenizer sets
        a limit.
        """
        return context_length(self.model.config, self.tokenizer)


@dataclass(frozen=True)
class _Source:
    """Location and revision of a model."""

    place: Path | str
    """Folder of save_pretrained, folder of a run, or hub repository."""
    revision: str = "main"
    """The revision of the repository, or the name of a run's checkpoint; "main" for a folder of
    save_pretrained.
    """
    folder: Path | None = None
    """The local folder of the model."""


def file_name(name: str) -> str:
    """Return a name as part of a path.

    >>> file_name("lab/model@step8 (decoder)")
    'lab_model@step8_(decoder)'
    """
    return re.sub(r"[^\w.,=@+()-]+", "_", name)


def load_model(
    source: str,
    revision: str | None = None,
    *,
    tokenizer: str | None = None,
    device: str = "auto",
    dtype: Dtype = "float32",
    trust_remote_code: bool = False,
    with_head: bool = False,
    timeout: float = 3600,
) -> LoadedModel:
    """Load a model and its tokenizer, from a folder or the hub.

    Weights are read without running pickles. Downloads stay in the cache folder.

    Args:
        source: folder of ``save_pretrained``, GGUF file, folder of a run, or hub repository, also
            as "REPOSITORY@REVISION" or its address.
        revision: branch, tag or commit of the repository (default: main); name of the run's
            checkpoint.
        tokenizer: folder or repository of the tokenizer; None for the model's own.
        device: such as "cpu" or "cuda:1"; "auto" is the GPU if there is one.
        dtype: of the weights; "auto" keeps the one in which they were saved.
        trust_remote_code: run Python code that comes with the model.
        with_head: load the language-modelling head too, if there is one.
        timeout: limit of one download or listing, in seconds.

    Raises:
        ValueError: no such folder, repository or device.
        CheckpointError: the model or tokenizer cannot be downloaded or does not load.

    Example:
        >>> loaded = repdyn.load_model("EleutherAI/pythia-70m", "step1000")  # doctest: +SKIP
        >>> ids = loaded.tokenizer("Time flies.")["input_ids"]  # doctest: +SKIP
        >>> layers = repdyn.layer_states(loaded, [ids])  # doctest: +SKIP
        >>> [layer.states.norm(dim=1) for layer in layers]  # doctest: +SKIP
    """
    models = load_models(
        [source],
        revisions=() if revision is None else (revision,),
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        timeout=timeout,
        release=False,
        with_heads=with_head,
    )
    return next(models)


def load_models(
    names: Sequence[str],
    *,
    revisions: Sequence[str] = (),
    tokenizer: str | None = None,
    device: str = "auto",
    dtype: Dtype = "float32",
    trust_remote_code: bool = False,
    layers: LayerPatterns = None,
    timeout: float = 3600,
    release: bool = True,
    with_heads: bool = False,
) -> Iterator[LoadedModel]:
    """Load models, one at a time, in their order.

    Args:
        names: of the models, as for :func:`load_model`.
        revisions: branches, tags or commits of each repository that is named without one, or
            names of a run's checkpoints.
        tokenizer, device, dtype, trust_remote_code, timeout: as for :func:`load_model`.
        layers: pattern of the blocks' names; None to detect them.
        release: remove a model's weights from memory as soon as the next one is requested, even if
            something still refers to it: a study keeps its results, never the model.
        with_heads: load the language-modelling head of each model that has one.

    Raises:
        ValueError, CheckpointError: as :func:`load_model`, or the same model twice. All names are
        checked before the
            first model is loaded.
    """
    sources = _sources(names, revisions)
    loading = Loading(
        device=available_device(device),
        dtype=dtype,
        device_map=None,
        trust_remote_code=trust_remote_code,
    )
    hub = Hub(timeout_seconds=timeout)
    # all names are checked by now (not whether the hub has them), before anything is downloaded
    for name, source in sources.items():
        source, of_tokenizer = _folders(name, source, tokenizer, hub, with_code=trust_remote_code)
        try:
            whole = cast(PreTrainedModel, weights.load_model(source, loading, with_head=with_heads))
        except CheckpointError as error:
            raise CheckpointError(f"expected a model that loads, got {name}: {error}") from error
        if not holds_tokenizer(of_tokenizer):
            raise CheckpointError(
                f"expected a tokenizer next to the weights of {name}, found none; name a folder or "
                "hub repository that has it with tokenizer="
            )
        loaded_tokenizer = load_tokenizer(of_tokenizer, name, trust_remote_code=trust_remote_code)
        model = cast(PreTrainedModel, whole.base_model)
        yield LoadedModel(
            name=name,
            model=model,
            tokenizer=loaded_tokenizer,
            with_head=whole if whole is not model else None,
            layers=layers,
        )
        if release:
            # without numbers, also where the caller still refers to the model: two at once may not
            # fit
            cast(nn.Module, whole).to(torch.device("meta"))


def _sources(models: Sequence[str], revisions: Sequence[str]) -> dict[str, _Source]:
    """Return the models that names on the command line stand for, by display name."""
    sources = [source for model in models for source in _sources_of(model, revisions)]
    if revisions and all(is_model(Path(model)) or "@" in model for model in models):
        raise ValueError(
            "expected revisions= with a hub repository or the folder of a run, got single "
            "checkpoints alone; leave it out"
        )
    folders = [source.place for source in sources if isinstance(source.place, Path)]
    short_names = _short_names(folders)
    names = []
    for source in sources:
        place = source.place
        name = short_names[place] if isinstance(place, Path) else place
        names.append(name if source.revision == "main" else f"{name}@{source.revision}")
    for name, number in Counter(names).items():
        if number > 1:
            raise ValueError(f"expected each model once, got {name!r} {number} times")
    return dict(zip(names, sources, strict=True))


def _short_names(folders: Sequence[Path]) -> dict[Path, str]:
    """Return the last segments of each path, the fewest that tell all of the paths apart."""
    names: dict[Path, str] = {}
    longest = max((len(folder.parts) for folder in folders), default=0)
    for n_segments in range(1, longest + 1):
        names = {folder: "/".join(folder.parts[1:][-n_segments:]) for folder in folders}
        if len(set(names.values())) == len(names):
            break
    return names


def _sources_of(model: str, revisions: Sequence[str]) -> list[_Source]:
    """Return the models of one name: a folder's, a run's, or a repository's at each revision."""
    # Python has no shell around it that expands the home directory
    path = Path(model).expanduser()
    if not path.exists():
        return _hub_sources(os.fspath(path), revisions)
    # a display name is cut from the path, so "." needs one; a link keeps its own name
    folder = Path(os.path.abspath(path))
    if is_model(folder) or folder.suffix == GGUF:
        return [_Source(folder, folder=folder)]
    checkpoints = checkpoints_of_run(path)
    listed = ", ".join([*checkpoints][:_MAX_LISTED])
    if len(checkpoints) > _MAX_LISTED:
        listed += ", ..."
    if not checkpoints:
        raise ValueError(
            f"expected a folder of save_pretrained, or one that holds some, got {model}"
        )
    if not revisions:
        raise ValueError(
            f"expected one checkpoint of {model}, got the folder; choose with revisions=: {listed}"
        )
    for name in revisions:
        if name not in checkpoints:
            raise ValueError(
                f"expected a checkpoint of {model} as revisions=, got {name!r}; there are {listed}"
            )
    return [_Source(folder, name, checkpoints[name]) for name in revisions]


def _hub_sources(model: str, revisions: Sequence[str]) -> list[_Source]:
    """Return the models of a repository: at the revision in its name, or else at each given one."""
    # what looks like a path is a misspelt folder: it is not asked for at the hub
    repository, revision_in_name = repository_and_revision(model)
    if repository.count("/") > 1 or not repository or model.startswith((".", "/")):
        raise ValueError(f"expected a folder that exists, or a hub repository, got {model!r}")
    if revision_in_name:
        return [_Source(repository, revision_in_name)]
    return [_Source(repository, revision) for revision in revisions or ["main"]]


def checkpoints_of_run(run: Path) -> dict[str, Path]:
    """Return the folders of a run's checkpoints by name, in the order of their steps."""
    folders = [path for path in checkpoints_folder(run).glob("[!.]*") if is_model(path)]
    # step2 before step10: shorter names first
    folders.sort(key=lambda path: (len(path.name), path.name))
    return {path.name: path for path in folders}


def _folders(
    name: str, source: _Source, tokenizer: str | None, hub: Hub, *, with_code: bool
) -> tuple[Path, Path]:
    """Return the folders of the model and its tokenizer, downloaded if necessary."""

    def of_tokenizer(files: Files) -> Files:
        return tokenizer_files(files, with_code=with_code)

    def whole(files: Files) -> Files:
        return {**of_tokenizer(files), **choose_files(files, with_code=with_code)}

    try:
        model = source.folder or hub.keep(str(source.place), source.revision, whole)
        if tokenizer is None:
            # a repository's tokenizer comes along with its weights
            return model, model
        if Path(tokenizer).is_dir():
            return model, Path(tokenizer)
        repository, _, revision = tokenizer.partition("@")
        return model, hub.keep(repository, revision or "main", of_tokenizer)
    except HFValidationError as error:
        raise ValueError(f"expected a folder that exists, or a hub repository: {error}") from error
    except (CheckpointError, SweepStoppedError) as error:
        raise CheckpointError(f"expected a model at {name}, got none: {error}") from error

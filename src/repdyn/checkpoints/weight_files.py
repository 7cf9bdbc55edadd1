"""Which files of a checkpoint are its weights, by their names and sizes alone: on the hub, in the
client's cache or in a local folder.

- :func:`choose_files`: the weights in one format, and what belongs to them.
- :func:`sets_of_weights`: all formats in which a folder has them.
- :func:`files_in`: what a local folder has, as a listing of the hub names it.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from repdyn.checkpoints.errors import CheckpointError

ADAPTER = "adapter_config.json"
"""The file by which a folder is an adapter, such as LoRA's, of another model."""
GGUF = ".gguf"
"""Suffix of the files of llama.cpp, each with quantised weights, configuration and tokenizer."""
# The first format that a commit has is used. Pickles are only read with weights_only=True.
_FORMATS_OF_ADAPTERS = (
    re.compile(r"adapter_model\.safetensors"),
    re.compile(r"adapter_model\.bin"),
)
_FORMATS_OF_MODELS = (
    re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?"),
    re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?"),
)
_CONFIG_FILES = ("config.json", "generation_config.json", ADAPTER)


@dataclass(frozen=True)
class ListedFile:
    """A file of a checkpoint, as the hub or a folder lists it."""

    n_bytes: int
    digest: str = ""
    """sha256 of the content, or the git blob of a small file: equal for equal content."""


Files: TypeAlias = Mapping[str, ListedFile]
"""The files of a commit or a folder, by path."""


def files_in(folder: Path) -> Files:
    """Return the files of a local folder by name, without their digests."""
    return {path.name: ListedFile(path.stat().st_size) for path in folder.iterdir()}


def total_bytes(files: Files) -> int:
    """Return the size of files on disk."""
    return sum(file.n_bytes for file in files.values())


_BY_CODE = "what code of yours can load is measured by repdyn.sweep([(step, load), ...], probe=...)"


def choose_files(files: Files, *, with_code: bool = False) -> Files:
    """Select the files of a checkpoint's folder to download: the weights in one format, and the
    configuration.
    """
    if not {"config.json", ADAPTER} & set(files):
        raise CheckpointError(_why_no_architecture(files))
    for form in _formats(files):
        of_form = [name for name in files if form.fullmatch(name)]
        weights = [name for name in of_form if not name.endswith(".json")]
        # the next format, also where an index is there without its shards
        if not weights:
            continue
        # a single file rather than shards with the same weights
        whole = [name for name in weights if not _is_shard(name)]
        config = [name for name in _CONFIG_FILES if name in files]
        code = [name for name in files if with_code and name.endswith(".py")]
        return {name: files[name] for name in [*(whole or of_form), *config, *code]}
    listed = ", ".join(sorted(name for name in files if "/" not in name))
    raise CheckpointError(
        "it has no weights that can be read, model.safetensors, pytorch_model.bin, shards of these "
        f"or adapter_model.*; its files are {listed}; {_BY_CODE}"
    )


def _why_no_architecture(files: Files) -> str:
    """Return why the model is not known of a folder without a configuration, and what to do."""
    quantised = sorted(name for name in files if name.endswith(GGUF))
    if quantised:
        return (
            f"it has GGUF files; download one, hf download REPOSITORY {quantised[0]} --local-dir "
            "FOLDER, and sweep that file"
        )
    return f"it has no config.json, so the model's architecture is not known; {_BY_CODE}"


def _is_shard(name: str) -> bool:
    return "-of-" in name


def sets_of_weights(names: Iterable[str]) -> list[list[str]]:
    """Return the sets of files that each hold a model's weights, in the order in which transformers
    prefers them: an adapter's first, a single file before shards, safetensors before PyTorch's own.
    """
    names = sorted(names)
    sets: list[list[str]] = []
    for form in _formats(names):
        of_form = [name for name in names if form.fullmatch(name) and not name.endswith(".json")]
        sets.append([name for name in of_form if not _is_shard(name)])
        sets.append([name for name in of_form if _is_shard(name)])
    return [files for files in sets if files]


def is_weight_file(name: str) -> bool:
    """Return whether a file holds weights, or their index, in a format that can be read."""
    return any(form.fullmatch(name) for form in (*_FORMATS_OF_ADAPTERS, *_FORMATS_OF_MODELS))


def _formats(names: Collection[str]) -> Sequence[re.Pattern[str]]:
    """Return the formats in which weights are read, the preferred first: those of an adapter only
    where its configuration is.
    """
    return (*_FORMATS_OF_ADAPTERS, *_FORMATS_OF_MODELS) if ADAPTER in names else _FORMATS_OF_MODELS

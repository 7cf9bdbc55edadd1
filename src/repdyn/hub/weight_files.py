"""Select the files of a checkpoint: the weights in one format, and the configuration."""

from __future__ import annotations

import re

from repdyn.hub.client import Files
from repdyn.hub.errors import CheckpointError

# The first format that a commit has is used. Pickles are only read with weights_only=True.
_FORMATS = (
    re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?"),
    re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?"),
)
_CONFIG_FILES = ("config.json", "generation_config.json")


def is_weight_file(name: str) -> bool:
    """Return whether a file holds weights, or their index, in a format that can be read."""
    return any(form.fullmatch(name) for form in _FORMATS)


def choose_files(files: Files, subfolder: str = "", *, with_code: bool = False) -> Files:
    """Select the files to download: the weights in one format, and the configuration.

    Args:
        files: all files of the commit.
        subfolder: the checkpoint's folder in the repository.
        with_code: include Python files.

    Raises:
        CheckpointError: no configuration, or no weights in a supported format.
    """
    prefix = f"{subfolder}/" if subfolder else ""
    here = {name.removeprefix(prefix): name for name in files if name.startswith(prefix)}
    if "config.json" not in here:
        raise CheckpointError(f"it has no {prefix}config.json, so the model's architecture is not known")
    for form in _FORMATS:
        weights = [name for name in here if form.fullmatch(name)]
        if any(not name.endswith(".json") for name in weights):
            code = [name for name in here if with_code and name.endswith(".py")]
            chosen = _preferred_weights(weights) + [name for name in _CONFIG_FILES if name in here] + code
            return {here[name]: files[here[name]] for name in chosen}
    others = sorted(name for name in here if "/" not in name)
    raise CheckpointError(
        "it has no weights that can be read, model*.safetensors or pytorch_model*.bin; its files are "
        f"{', '.join(others)}"
    )


def weight_files(files: Files, subfolder: str = "") -> Files:
    """Return all weights of a checkpoint, in each supported format, by their names within its folder.

    >>> files = {"a/model.safetensors": RemoteFile(8, None), "a/config.json": RemoteFile(2, None)}
    >>> list(weight_files(files, "a"))
    ['model.safetensors']
    """
    prefix = f"{subfolder}/" if subfolder else ""
    here = {name.removeprefix(prefix): file for name, file in files.items() if name.startswith(prefix)}
    return {name: file for name, file in here.items() if not name.endswith(".json") and is_weight_file(name)}


def _preferred_weights(names: list[str]) -> list[str]:
    """Prefer a single file to shards with the same weights."""
    whole = [name for name in names if "-of-" not in name and not name.endswith(".json")]
    return whole or names

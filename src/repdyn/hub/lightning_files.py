"""Checkpoints of Lightning, read without running pickles."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import nn

from repdyn.hub.errors import CheckpointError, model_errors
from repdyn.hub.memory import memory_of, require_free_memory
from repdyn.hub.weights import MAX_LAYERS
from repdyn.models import LanguageModel

_ARGUMENTS = tuple(inspect.signature(LanguageModel).parameters)


def load_lightning(path: Path) -> nn.Module:
    """Load the model from a Lightning checkpoint of :class:`repdyn.models.LanguageModel`, without running pickles.

    Raises:
        CheckpointError: the file is damaged, or holds another module.
    """
    with model_errors(f"{path} does not load as a checkpoint of repdyn.models.LanguageModel"):
        content = lightning_content(path)
        needed = memory_of(content["state_dict"].values(), path)
        require_free_memory(needed, "their own precision", "free some, or measure on a machine with more")
        # not load_from_checkpoint, with which the file chooses what is called with its hyperparameters
        given = {name: content["hyper_parameters"][name] for name in _ARGUMENTS if name in content["hyper_parameters"]}
        if (n_layers := given.get("n_layers", 0)) > MAX_LAYERS:
            raise CheckpointError(f"it has {n_layers} layers, more than the {MAX_LAYERS} that are supported")
        with torch.device("meta"):  # sizes that do not match the weights could fill the memory
            sizes = {name: tensor.shape for name, tensor in LanguageModel(**given).state_dict().items()}
        if sizes != {name: tensor.shape for name, tensor in content["state_dict"].items()}:
            raise CheckpointError("its weights are not those of the model that its hyperparameters describe")
        module = LanguageModel(**given)
        module.load_state_dict(content["state_dict"])
        return module.model


def lightning_content(path: Path) -> dict[str, Any]:
    """Read a Lightning checkpoint: tensors and plain values, no pickled code."""
    if not path.is_file():
        raise CheckpointError("expected a regular file, got a folder, a named pipe or a device")
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if not isinstance(content, dict):
        raise CheckpointError(f"expected a Lightning checkpoint, got {type(content).__name__}")
    return content

"""Read and write probe files: safetensors with the sampling plan in the header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from repdyn.probe.design import design_from_rule
from repdyn.probe.inputs import inputs_from_tensors, inputs_to_tensors
from repdyn.utils.files import write_atomically

if TYPE_CHECKING:
    from repdyn.probe import Probe

_SETTINGS = ("special_ids", "batch_vectors", "n_batches", "seed", "pad_id", "name", "mask_id", "bytes_per_token")
_PLAN = "repdyn_probe"
_CLASS = "class."
_TOPICS = "topics"
_INPUTS = "repdyn_inputs"
_NARROW = (torch.int16, torch.int32)


def write_probe(path: str | Path, probe: Probe) -> None:
    """Write a probe file; classes and topics only if there are any."""
    tensors = {"tokens": _narrowed(probe.tokens), "lengths": _narrowed(probe.lengths)}
    # uint8, because a bool read from a damaged file may be neither true nor false
    tensors |= {f"{_CLASS}{name}": members.to(torch.uint8) for name, members in probe.classes.items()}
    if probe.topics is not None:
        tensors[_TOPICS] = probe.topics
    settings = {name: getattr(probe, name) for name in _SETTINGS} | {"design": probe.design.rule}
    metadata = {_PLAN: json.dumps(settings), "hash": probe.hash}
    if probe.inputs is not None:
        of_inputs, metadata[_INPUTS] = inputs_to_tensors(probe.inputs)
        tensors |= of_inputs
    data = to_safetensors(tensors, metadata=metadata)
    # not save_file, whose errors of a full disk are no OSError, and whose files only their owner can read; a new file,
    # since the tensors of a probe that was loaded from this one are still mapped from it
    write_atomically(Path(path), lambda new: new.write_bytes(data))


def read_probe(path: str | Path) -> tuple[dict[str, Any], str]:
    """Return the fields of the probe in a file that :func:`write_probe` wrote, not validated, and the hash it claims.

    Raises:
        ValueError and others: the file is none.
    """
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if _PLAN not in metadata or "hash" not in metadata:
            raise ValueError("it is without the header of one")
        names = file.keys()
        settings = json.loads(metadata[_PLAN])
        if set(settings) != {*_SETTINGS, "design"}:
            raise ValueError(f"expected a plan of {', '.join(_SETTINGS)} and design, got {', '.join(settings)}")
        classes = {name.removeprefix(_CLASS): file.get_tensor(name) for name in names if name.startswith(_CLASS)}
        for name, members in classes.items():
            if members.dtype != torch.uint8 or bool((members > 1).any()):
                raise ValueError(f"expected zeros and ones of torch.uint8 as class {name!r}, got other {members.dtype}")
        fields = {
            **settings,
            "special_ids": tuple(settings["special_ids"]),
            "design": design_from_rule(settings["design"]),
            "tokens": _widened(file.get_tensor("tokens")),
            "lengths": _widened(file.get_tensor("lengths")),
            "classes": {name: members.bool() for name, members in classes.items()},
            "topics": file.get_tensor(_TOPICS) if _TOPICS in names else None,
            "inputs": inputs_from_tensors(file.get_tensor, metadata[_INPUTS]) if _INPUTS in metadata else None,
        }
        return fields, metadata["hash"]


def _narrowed(ids: Tensor) -> Tensor:
    """Return integers in the narrowest type that holds them."""
    low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, 0)
    fitting = (dtype for dtype in _NARROW if torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max)
    return ids.to(next(fitting, ids.dtype))


def _widened(ids: Tensor) -> Tensor:
    return ids.long() if ids.dtype in _NARROW else ids

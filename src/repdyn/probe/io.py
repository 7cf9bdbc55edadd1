"""Read and write probe files: safetensors with the sampling plan in the header."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as briefly
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from repdyn.probe.design import DENSE, Design, design_from_rule
from repdyn.probe.inputs import Inputs, InvalidInputsError, inputs_from_tensors, inputs_to_tensors
from repdyn.utils.files import write_atomically

_PLAN = "repdyn_probe"
_CLASS = "class."
_TOPICS = "topics"
_INPUTS = "repdyn_inputs"
_COUNTS = ("batch_vectors", "n_batches", "seed")
_MAX_COUNT = (1 << 32) - 1
_MAX_ID = (1 << 63) - 1
_NARROW = (torch.int16, torch.int32)


@dataclass(frozen=True)
class ProbeContent:
    """The content of a probe file; the tensors are not validated yet, everything else has the right type."""

    tokens: Tensor
    lengths: Tensor
    settings: Mapping[str, Any]
    """special_ids, batch_vectors, n_batches, seed, pad_id, name, mask_id, bytes_per_token and design."""
    hash: str
    """The hash that the file claims."""
    classes: Mapping[str, Tensor]
    """By name; empty if there are none."""
    topics: Tensor | None
    inputs: Inputs | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """Everything but the hash, by the field names of :class:`repdyn.Probe`."""
        tensors = {"tokens": self.tokens, "lengths": self.lengths, "classes": self.classes, "topics": self.topics}
        tensors |= {"inputs": self.inputs}
        return {**tensors, **self.settings}


def write_probe(path: str | Path, content: ProbeContent) -> None:
    """Write a probe file; classes and topics only if there are any."""
    tensors = {"tokens": _narrowed(content.tokens), "lengths": _narrowed(content.lengths)}
    # uint8, because a bool read from a damaged file may be neither true nor false
    tensors |= {f"{_CLASS}{name}": members.to(torch.uint8) for name, members in content.classes.items()}
    tensors |= {} if content.topics is None else {_TOPICS: content.topics}
    metadata = {_PLAN: json.dumps(content.settings), "hash": content.hash}
    if content.inputs is not None:
        of_inputs, metadata[_INPUTS] = inputs_to_tensors(content.inputs)
        tensors |= of_inputs
    data = to_safetensors(tensors, metadata=metadata)
    # not save_file, whose errors of a full disk are no OSError, and whose files only their owner can read; a new file,
    # since the tensors of a probe that was loaded from this one are still mapped from it
    write_atomically(Path(path), lambda new: new.write_bytes(data))


def read_probe(path: str | Path) -> ProbeContent:
    """Read a file that :func:`write_probe` wrote."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"expected a probe written by Probe.save, got no file at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if _PLAN not in metadata or "hash" not in metadata:
                raise ValueError(f"expected a probe written by Probe.save, got {path} without its header")
            names = file.keys()
            return ProbeContent(
                tokens=_widened(file.get_tensor("tokens")),
                lengths=_widened(file.get_tensor("lengths")),
                settings=_parse_settings(metadata[_PLAN]),
                hash=metadata["hash"],
                classes={
                    name.removeprefix(_CLASS): _read_members(name, file.get_tensor(name))
                    for name in names
                    if name.startswith(_CLASS)
                },
                topics=file.get_tensor(_TOPICS) if _TOPICS in names else None,
                inputs=inputs_from_tensors(file.get_tensor, metadata[_INPUTS]) if _INPUTS in metadata else None,
            )
    except (SafetensorError, _InvalidProbeError, InvalidInputsError) as error:
        raise ValueError(f"expected a probe written by Probe.save, got {path}: {error}") from error


def _narrowed(ids: Tensor) -> Tensor:
    """Return integers in the narrowest type that holds them."""
    low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, 0)
    fitting = (dtype for dtype in _NARROW if torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max)
    return ids.to(next(fitting, ids.dtype))


def _widened(ids: Tensor) -> Tensor:
    return ids.long() if ids.dtype in _NARROW else ids


class _InvalidProbeError(Exception):
    """The file has invalid content."""


def _read_members(name: str, stored: Tensor) -> Tensor:
    if stored.dtype != torch.uint8 or bool((stored > 1).any()):
        raise _InvalidProbeError(f"expected zeros and ones of torch.uint8 in {briefly(name)}, got other {stored.dtype}")
    return stored.bool()


def _parse_settings(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _InvalidProbeError(f"its plan is not valid JSON: {error}") from error
    expected = {"special_ids", *_COUNTS, "pad_id", "name", "mask_id", "bytes_per_token", "design"}
    if isinstance(found, dict):  # files of early versions name no design, and neither mask nor bytes
        found = {"design": DENSE.rule, "mask_id": None, "bytes_per_token": None, **found}
    if not isinstance(found, dict) or set(found) != expected:
        got = briefly(sorted(found) if isinstance(found, dict) else found)
        raise _InvalidProbeError(f"expected a plan of {', '.join(sorted(expected))}, got {got}")
    for name in _COUNTS:
        if not _is_integer(found[name], 0, _MAX_COUNT):
            raise _InvalidProbeError(
                f"expected a whole number from 0 to {_MAX_COUNT} as {name}, got {briefly(found[name])}"
            )
    special_ids = found["special_ids"]
    ids = [found["pad_id"], *special_ids] if isinstance(special_ids, list) else [None]
    if not all(_is_integer(token, -_MAX_ID, _MAX_ID) for token in ids):
        raise _InvalidProbeError(
            f"expected token ids as pad_id and in special_ids, got {briefly(found['pad_id'])} and "
            f"{briefly(special_ids)}"
        )
    if found["mask_id"] is not None and not _is_integer(found["mask_id"], 0, _MAX_ID):
        raise _InvalidProbeError(f"expected a token id or null as mask_id, got {briefly(found['mask_id'])}")
    bytes_per_token = found["bytes_per_token"]
    if bytes_per_token is not None and not (isinstance(bytes_per_token, float) and 0 < bytes_per_token < math.inf):
        raise _InvalidProbeError(
            f"expected a positive number or null as bytes_per_token, got {briefly(bytes_per_token)}"
        )
    if not isinstance(found["name"], str):
        raise _InvalidProbeError(f"expected a string as name, got {briefly(found['name'])}")
    return {**found, "special_ids": tuple(special_ids), "design": _parse_design(found["design"])}


def _parse_design(rule: object) -> Design:
    if not isinstance(rule, dict):
        raise _InvalidProbeError(f"expected a sampling design, got {briefly(rule)}")
    try:
        return design_from_rule(rule)
    except ValueError as error:
        raise _InvalidProbeError(str(error)) from error


def _is_integer(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

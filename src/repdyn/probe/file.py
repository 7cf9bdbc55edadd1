"""A probe as a safetensors file, and the hash of its content, by which rows and files name it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import save as to_safetensors

from repdyn.probe.design import DENSE, design_from_rule
from repdyn.probe.inputs import inputs_from_tensors, inputs_to_tensors
from repdyn.utils.files import write_atomically

if TYPE_CHECKING:
    from repdyn.probe.sampled_tokens import SampledTokens

_SETTINGS = (
    "special_ids",
    "batch_vectors",
    "n_batches",
    "seed",
    "pad_id",
    "name",
    "mask_id",
    "bytes_per_token",
)
_PLAN = "repdyn_probe"
_CLASS = "class."
_TOPICS = "topics"
_INPUTS = "repdyn_inputs"


def content_hash(probe: SampledTokens) -> str:
    """Return the hash of a probe; see :attr:`repdyn.Probe.hash`."""
    plan: list[Any] = [list(probe.special_ids), probe.batch_vectors, probe.n_batches, probe.seed]
    # the oldest hashes, which remain valid
    if probe.inputs is not None or probe.design.rule != DENSE.rule:
        plan.append(probe.design.rule)
    digest = hashlib.sha256(json.dumps(plan).encode())
    if probe.inputs is not None:
        probe.inputs.update_hash(digest)
        return digest.hexdigest()[:16]
    for tensor in (probe.lengths, probe.tokens):
        digest.update(tensor.numpy().astype("<i8").tobytes())
    for name, members in probe.classes.items():
        digest.update(json.dumps({"class": name}).encode())
        digest.update(members.numpy().astype("u1").tobytes())
    if probe.topics is not None:
        digest.update(json.dumps("topics").encode())
        digest.update(probe.topics.numpy().astype("<i8").tobytes())
    return digest.hexdigest()[:16]


def save_probe(probe: SampledTokens, path: Path) -> None:
    """Write a probe to a file, atomically."""
    tensors = {"tokens": probe.tokens, "lengths": probe.lengths}
    # uint8, because a bool read from a damaged file may be neither true nor false
    tensors |= {
        f"{_CLASS}{name}": members.to(torch.uint8) for name, members in probe.classes.items()
    }
    if probe.topics is not None:
        tensors[_TOPICS] = probe.topics
    settings = {name: getattr(probe, name) for name in _SETTINGS} | {"design": probe.design.rule}
    metadata = {_PLAN: json.dumps(settings), "hash": content_hash(probe)}
    if probe.inputs is not None:
        of_inputs, metadata[_INPUTS] = inputs_to_tensors(probe.inputs)
        tensors |= of_inputs
    data = to_safetensors(tensors, metadata=metadata)
    # not save_file, whose errors of a full disk are no OSError, and whose files only their
    # owner can read; a new file, since the tensors of a probe that was loaded from this one are
    # still mapped from it
    write_atomically(path, lambda new: new.write_bytes(data))


def read_fields(path: Path) -> tuple[dict[str, Any], str]:
    """Return the fields of the probe in a file written by :meth:`Probe.save`, and the hash that
    they had.
    """
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if _PLAN not in metadata or "hash" not in metadata:
            raise ValueError("it is without the header of one")
        names = file.keys()
        settings = json.loads(metadata[_PLAN])
        classes = (name for name in names if name.startswith(_CLASS))
        fields = {
            **settings,
            "special_ids": tuple(settings["special_ids"]),
            "design": design_from_rule(settings["design"]),
            "tokens": file.get_tensor("tokens").long(),
            "lengths": file.get_tensor("lengths").long(),
            "classes": {
                name.removeprefix(_CLASS): file.get_tensor(name).bool() for name in classes
            },
            "topics": file.get_tensor(_TOPICS) if _TOPICS in names else None,
            "inputs": None,
        }
        if _INPUTS in metadata:
            fields["inputs"] = inputs_from_tensors(file.get_tensor, metadata[_INPUTS])
        return fields, metadata["hash"]

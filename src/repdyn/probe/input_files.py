"""Inputs of a probe as tensors and text of a safetensors file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from repdyn.probe.inputs import Inputs, as_batch, rules_as_json, rules_from_json


class InvalidInputsError(Exception):
    """The inputs in a file are invalid."""


def inputs_to_tensors(inputs: Inputs) -> tuple[dict[str, Tensor], str]:
    """Return the tensors of inputs by their names in the file, and the rest as JSON.

    Raises:
        ValueError: the positions are a function.
    """
    tensors, batches = {}, []
    for number, batch in enumerate(inputs.batches):
        is_named = isinstance(batch, Mapping)
        items = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
        described = []
        for name, value in items:
            if isinstance(value, Tensor):
                tensors[f"input.{number}.{name}"] = value.contiguous()
            described.append([str(name), None if isinstance(value, Tensor) else {"value": value}])
        batches.append({"named": is_named, "values": described})
    causal = dict(inputs.causal) if isinstance(inputs.causal, Mapping) else inputs.causal
    text = {
        "positions": rules_as_json(inputs.positions),
        "causal": causal,
        "vectors_per_input": inputs.vectors_per_input,
        "batches": batches,
    }
    return tensors, json.dumps(text)


def inputs_from_tensors(tensor: Callable[[str], Tensor], text: str) -> Inputs:
    """Return the inputs that :func:`inputs_to_tensors` described.

    Args:
        tensor: returns a tensor of the file by its name.
        text: the JSON.

    Raises:
        InvalidInputsError: the text is not valid.
    """
    try:
        found: Any = json.loads(text)
        batches = []
        for number, batch in enumerate(found["batches"]):
            values = {
                name: tensor(f"input.{number}.{name}") if stored is None else stored["value"]
                for name, stored in batch["values"]
            }
            batches.append(as_batch(values if batch["named"] else tuple(values.values())))
        positions, causal = rules_from_json(found["positions"]), found["causal"]
        return Inputs(tuple(batches), positions, causal, int(found["vectors_per_input"]))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidInputsError(f"its inputs are not valid: {error}") from error

"""Read the shape of a model from its configuration, without torch and transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ONLY_WITH_HF_OLMO = (
    "the checkpoint loads only with hf_olmo, a module of the package ai2-olmo, and not with transformers; its files "
    "can be audited, with repdyn audit, but not measured"
)
_WIDTH = ("hidden_size", "n_embd", "d_model")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_LONGEST = 10_000_000
"""Larger than any width, number of layers or vocabulary."""


@dataclass(frozen=True)
class ModelShape:
    """The numbers that the cost of a model depends on."""

    n_layers: int
    width: int
    vocabulary: int
    weight_bytes: int
    """Of each weight in the files."""


def parse_config(content: bytes) -> Mapping[str, Any]:
    """Return the content of a ``config.json``; empty if it is no mapping of JSON."""
    try:
        config = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def reason_not_loadable(config: Mapping[str, Any]) -> str | None:
    """Return why no model of a configuration can be loaded; None if nothing is known against it."""
    return ONLY_WITH_HF_OLMO if config.get("model_type") == "hf_olmo" else None


def shape_of(config: Mapping[str, Any]) -> ModelShape | None:
    """Return the shape of the model, or of its part for text; None if the configuration does not name all of it."""
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else config
    width, n_layers, vocabulary = (_number(inner, names) for names in (_WIDTH, _LAYERS, ("vocab_size",)))
    if width is None or n_layers is None or vocabulary is None:
        return None
    # configurations older than the key are of weights in float32, the default of torch
    named = next((each[key] for each in (inner, config) for key in ("dtype", "torch_dtype") if key in each), "float32")
    return ModelShape(n_layers, width, vocabulary, 2 if named in ("float16", "bfloat16") else 4)


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    found = (config.get(name) for name in names)
    return next((value for value in found if type(value) is int and 0 < value < _LONGEST), None)

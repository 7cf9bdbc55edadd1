"""Every architecture of transformers: as many tokens as its context says go through, and its
positions are told apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from shrunk import NotBuiltError, build
from torch import nn
from transformers.models.auto import modeling_auto

from repdyn.checkpoints.probes import NUMBERED_AFTER_PADDING, context_length

ENCODERS = sorted(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.items())
DECODERS = sorted(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items())
NO_LIMIT: Any = SimpleNamespace(model_max_length=10**30)


@pytest.mark.parametrize("architecture", sorted({*ENCODERS, *DECODERS}), ids="-".join)
def test_positions_behind_the_padding_are_known(architecture):
    """A model that gives them padding's row or none has a shorter context than its table."""
    try:
        model = build(*architecture)
    except NotBuiltError as reason:
        pytest.skip(str(reason))
    size = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    tables = [
        module
        for name, module in model.named_modules()
        if name.endswith("position_embeddings")
        and isinstance(module, nn.Embedding)
        and module.num_embeddings == size
        and module.padding_idx is not None
    ]
    if not tables:
        pytest.skip("its positions are no table with a row for the padding")
    assert model.config.model_type in NUMBERED_AFTER_PADDING
    length = context_length(model.config, NO_LIMIT)
    assert length == size - 1 - tables[0].padding_idx


@pytest.mark.parametrize(
    "architecture",
    [pair for pair in ENCODERS if pair[0] in NUMBERED_AFTER_PADDING],
    ids="-".join,
)
def test_a_sequence_as_long_as_the_context_goes_through(architecture):
    try:
        model = build(*architecture)
    except NotBuiltError as reason:
        pytest.skip(str(reason))
    length = context_length(model.config, NO_LIMIT)
    ids = torch.full((1, length), 5)
    with torch.no_grad():
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids))
    assert output[0].shape[:2] == (1, length)

"""Batches of a probe of inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from repdyn.probe.content import ProbeBatch
from repdyn.probe.inputs import Inputs, draws_of, first_of


def input_batches(inputs: Inputs, seed: int) -> Iterator[ProbeBatch]:
    """Yield the batches of a probe of inputs as they were given."""
    n_vectors, first = inputs.vectors_per_input, 0
    draws = draws_of(sum(inputs.sizes), n_vectors, seed)
    for batch, size in zip(inputs.batches, inputs.sizes, strict=True):
        ids, numbers = torch.zeros(size, n_vectors, dtype=torch.long), np.arange(size * n_vectors)
        yield ProbeBatch(
            ids,
            torch.ones_like(ids),
            numbers,
            first * n_vectors + numbers,
            inputs=batch,
            draws=draws[first : first + size],
            rule_of=inputs.rule,
        )
        first += size


def first_input(batch: ProbeBatch) -> ProbeBatch:
    """Return the first input of a batch of inputs as a batch of its own."""
    n = batch.input_ids.shape[1]
    return replace(
        batch,
        input_ids=batch.input_ids[:1],
        attention_mask=batch.attention_mask[:1],
        positions=batch.positions[:n],
        tokens=batch.tokens[:n],
        inputs=first_of(batch.inputs),
        draws=batch.required_draws[:1],
    )

"""Measure what a model loses without each of its blocks: the alignment of its final states, and its loss."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pandas as pd
from torch import Tensor, nn

from repdyn import layer_states, measure
from repdyn.kernels import alignment
from repdyn.probe import Probe
from repdyn.reading import LayerStates, LoadedModel
from repdyn.store.schema import PROBE_LOSS
from repdyn.studies.study import progress_bar, text_probe

MAX_VECTORS = 4096
"""Largest number of tokens, on which the model runs once for each block."""


def skip_blocks(loaded: LoadedModel, options: Any) -> dict[str | None, pd.DataFrame]:
    """Measure a model without each of its blocks, one at a time, on a part of the text.

    Returns:
        By stack a row for each block, and a first one for the whole model: layer (the block's input, so that it is the
        layer of the gradient that the block adds; -1 for the whole model), final_alignment (mean cosine of each token's
        last state to its own in the whole model), loss (on the tokens of the text) and the reason if it is NaN.
    """
    few = SimpleNamespace(**{**vars(options), "max_vectors": min(options.max_vectors, MAX_VECTORS)})
    probe = text_probe(loaded, few, ())
    blocks = [layer for layer in layer_states(loaded, probe, options.layers) if layer.index]
    whole = {layer.stack: layer for layer in _last_layers(loaded, probe, options.layers)}
    loss = _loss(loaded, probe, options.layers)
    rows: dict[str | None, list[tuple[int, float, float, str]]] = {stack: [(-1, 1.0, *loss)] for stack in whole}
    with progress_bar(f"{loaded.name}: without each block") as progress:
        for number, block in enumerate(blocks, 1):
            with _without(loaded.model.get_submodule(block.module)):
                [last] = [one for one in _last_layers(loaded, probe, options.layers) if one.stack == block.stack]
                found = float(alignment(last.states, whole[block.stack].states))
                rows[block.stack].append((block.index - 1, found, *_loss(loaded, probe, options.layers)))
            progress(number / len(blocks))
    columns = ["layer", "final_alignment", "loss", "reason"]
    return {stack: pd.DataFrame(of_stack, columns=columns) for stack, of_stack in rows.items()}


def _last_layers(loaded: LoadedModel, probe: Probe, layers: str | None) -> list[LayerStates]:
    return [layer for layer in layer_states(loaded, probe, layers) if layer.is_last]


def _loss(loaded: LoadedModel, probe: Probe, layers: str | None) -> tuple[float, str]:
    if loaded.with_head is None:
        return math.nan, "the model has no language-modelling head"
    pattern = None if layers is None else f"{loaded.with_head.base_model_prefix}.{layers}"
    scalars = measure(loaded.with_head, probe, ["norm"], pattern, probe_loss=True).scalars
    [row] = [row for row in scalars if row.metric == PROBE_LOSS]
    return row.value, row.reason or ""


@contextmanager
def _without(block: nn.Module) -> Iterator[None]:
    """Make a block return the states that it gets, as if it were left out."""

    def skip(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        states = args[0] if args else kwargs["hidden_states"]
        return states if isinstance(output, Tensor) else (states, *output[1:])

    hook = block.register_forward_hook(skip, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()

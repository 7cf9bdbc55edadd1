"""What the kernel of a metric takes of a layer, batch by batch.

Each function has the form ``select(layer, subset) -> [inputs of a kernel, ...]``, one tuple for
each batch; the definition of a metric names its own as ``select_inputs``. Where there is nothing to
select they raise UndefinedError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from repdyn.kernels import (
    Cloud,
    Sequences,
    UndefinedError,
    Vocabulary,
)
from repdyn.metrics.layer_view import NO_TOPICS, BlockWeights, LayerView, of_same_dim

# vectors of each batch that are compared with the vocabulary, which costs their number times its
# size
_VOCABULARY_VECTORS = 1024


def clouds(layer: LayerView, subset: str) -> list[tuple[Cloud]]:
    """Return the layer's cloud, batch by batch."""
    return [(cloud,) for cloud in layer.clouds(subset)]


def _selected(*names: str, one_space: bool = False) -> Callable[[LayerView, str], list[tuple]]:
    """Return a function that selects inputs by the names of a view's methods, batch by batch;
    clouds of one dimension if of ``one_space``."""

    def select(layer: LayerView, subset: str) -> list[tuple]:
        found = [getattr(layer, name)(subset) for name in names]
        return of_same_dim(*found) if one_space else list(zip(*found, strict=True))

    return select


with_last = _selected("clouds", "last", one_space=True)
with_following = _selected("clouds", "following")
with_following_of_same_dim = _selected("clouds", "following", one_space=True)
with_following_and_last = _selected("clouds", "following", "last", one_space=True)
with_tokens = _selected("clouds", "tokens")
with_next_tokens = _selected("clouds", "next_tokens")
with_topics = _selected("clouds", "tokens", "topics")
with_windows = _selected("clouds", "windows")
through_output_head = _selected("lens")


def with_previous_checkpoint(layer: LayerView, subset: str) -> list[tuple[Cloud, Cloud]]:
    """Return the layer's first cloud, and that of the same tokens at the previously measured
    checkpoint.
    """
    cache, step = layer.context.state_cache, layer.context.step
    if cache is None:
        raise UndefinedError("no earlier checkpoint of this run is at hand")
    cloud = layer.clouds(subset)[0]
    layer.compared_to, states = cache.load_previous(
        step, layer.layer.stack, layer.layer.index, like=cloud.x
    )
    return [(cloud, Cloud(states, groups=cloud.groups))]


def weights_of_block(layer: LayerView, subset: str) -> list[tuple[Tensor]]:
    """Return all weights of the block in one vector."""
    return [(_joined(_of_block(layer, "now")),)]


def matrices_of_block(layer: LayerView, subset: str) -> list[tuple[Tensor, ...]]:
    """Return the weight matrices of the block; of experts that are stacked in one weight, that of
    each.
    """
    weights = [weight for weight in _of_block(layer, "now").values() if weight.ndim > 1]
    return [
        tuple(each for weight in weights for each in (weight if weight.ndim == 3 else (weight,)))
    ]


def gradients_of_block(layer: LayerView, subset: str) -> list[tuple[Tensor]]:
    """Return the gradients of the block's weights in one vector."""
    gradients = _joined(_of_block(layer, "gradients"))
    if not bool(gradients.any()):
        raise UndefinedError(_MISSING["gradients"])
    return [(gradients,)]


def with_weights_before(layer: LayerView, subset: str) -> list[tuple[Tensor, Tensor]]:
    """Return the block's weights, and what they were before the step."""
    before = _of_block(layer, "before")
    now = _of_block(layer, "now")
    return [(_joined({name: now[name] for name in before}), _joined(before))]


_MISSING = {
    "now": "the layer has no weights of its own that can be read",
    "gradients": (
        "no gradients: they exist at a step of a live training, until zero_grad() clears them; "
        "call tracker.step() between optimizer.step() and zero_grad()"
    ),
    "before": "the weights before the step are kept at scheduled steps of a live training alone",
}


def _of_block(layer: LayerView, kind: str) -> dict[str, Tensor]:
    weights = layer.context.weights
    if not isinstance(weights, BlockWeights):
        raise UndefinedError(weights or "the weights were not looked for")
    begin = f"{layer.layer.module}."
    weights_of_block = {
        name: weight.detach()
        for name, weight in getattr(weights, kind).items()
        if name.startswith(begin)
    }
    if not weights_of_block or not all(
        weight.is_floating_point() and weight.device.type != "meta"
        for weight in weights_of_block.values()
    ):
        raise UndefinedError(_MISSING[kind])
    return weights_of_block


def _joined(weights: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([weight.flatten() for weight in weights.values()])


def tokens_of_states(
    layer: LayerView, subset: str, *, after_attention: bool = False, by_distance: bool = False
) -> list[tuple[Tensor, Tensor, Vocabulary]]:
    """Return the layer's vectors, their token ids, and the input embeddings of all tokens."""
    clouds = layer.after_attention(subset) if after_attention else layer.clouds(subset)
    vocabulary = layer.vocabulary(by_distance=by_distance)
    pairs = zip(clouds, layer.tokens(subset), strict=True)
    return [
        (cloud.x[:_VOCABULARY_VECTORS], ids[:_VOCABULARY_VECTORS], vocabulary)
        for cloud, ids in pairs
    ]


tokens_by_distance = partial(tokens_of_states, by_distance=True)
tokens_after_attention = partial(tokens_of_states, after_attention=True)


def attention_with_topics(layer: LayerView, subset: str) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return attention weights (heads, n, n), token ids and topics (n,) of each sequence that has
    weights.
    """
    if layer.probe.topics is None:
        raise UndefinedError(NO_TOPICS)
    members = torch.zeros(len(layer.probe.tokens), dtype=torch.bool)
    members[torch.from_numpy(layer.probe.members(subset))] = True
    topics = layer.probe.topics.masked_fill(~members, -1)
    return [
        (weights, layer.probe.tokens[tokens], topics[tokens])
        for weights, tokens in _attention(layer)
    ]


def sequences_of_states(layer: LayerView, subset: str) -> list[tuple[Sequences]]:
    """Return the layer's vectors of all tokens of the probe's whole windows, batch by batch."""
    batches = layer.probe.whole_windows
    if not batches:
        raise UndefinedError("fewer windows of 2 tokens or more than batches")
    rows = [layer.states.rows_of(np.concatenate(windows)) for windows in batches]
    lengths = [tuple(map(len, windows)) for windows in batches]
    return [
        (Sequences(layer.layer.states[each], of_each),)
        for each, of_each in zip(rows, lengths, strict=True)
    ]


def queries_of_heads(layer: LayerView, subset: str) -> list[tuple[Tensor]]:
    """Return the queries of the block's attention heads, batch by batch."""
    return [(vectors,) for vectors in layer.of_heads("queries", subset)]


def keys_of_heads(layer: LayerView, subset: str) -> list[tuple[Tensor]]:
    """Return the keys of the block's attention heads, batch by batch."""
    return [(vectors,) for vectors in layer.of_heads("keys", subset)]


def attention_of_sequences(layer: LayerView, subset: str) -> list[tuple[Tensor]]:
    """Return the attention weights (heads, n, n) of each sequence that has some."""
    return [(weights,) for weights, _ in _attention(layer)]


def _attention(layer: LayerView) -> list[tuple[Tensor, np.ndarray]]:
    if layer.context.attention is None:
        raise UndefinedError("the attention weights were not captured")
    return layer.context.attention.of(layer.layer.stack, layer.layer.index)

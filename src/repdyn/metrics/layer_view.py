"""What a metric can reach from one layer, and the functions that pick a kernel's inputs out of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from repdyn.earlier import Earlier
from repdyn.kernels import Cloud, Undefined, Vocabulary
from repdyn.layers.attention import AttentionWeights
from repdyn.layers.states import LayerStates, States
from repdyn.probe import Probe

NO_TOPICS = "the tokens of the probe have no topics"
RANKED = 1024
"""So many vectors of each batch are held against the vocabulary, which costs their number times its size."""


@dataclass
class Companions:
    """What the layers of one checkpoint share, as far as a metric asks for it."""

    attention: AttentionWeights | None = None
    earlier: Earlier | None = None
    step: int = 0
    """Of the checkpoint."""
    vocabulary: Vocabulary | None = None
    last: dict[tuple[str | None, str], list[Cloud]] = field(default_factory=dict)
    """The clouds of each stack's last layer, by stack and subset."""


@dataclass
class LayerView:
    """What a metric can reach from one layer. Clouds are made once and shared by all metrics of the layer.

    ``states`` holds the layers still to come: those before it are measured and gone.
    """

    layer: LayerStates
    states: States
    probe: Probe
    model: nn.Module
    n_neighbours: int = 2
    """The most nearest neighbours that a metric of the layer asks for; they are searched once."""
    whole_spectrum: bool = False
    """Whether a metric of the layer asks for more of the spectrum than its largest value."""
    companions: Companions = field(default_factory=Companions)
    compared_to: int | None = None
    """Step of the earlier checkpoint that a metric compares the layer with, once one has asked for it."""
    _clouds: dict[tuple[str, str], list[Cloud]] = field(default_factory=dict)

    def clouds(self, subset: str) -> list[Cloud]:
        """The layer's point cloud in each batch of a subset."""
        return self._cut("own", self.layer.states, subset)

    def following(self, subset: str) -> list[Cloud]:
        """The next layer's point clouds, row for row the same tokens."""
        return self._cut("following", self.states.following(self.layer), subset)

    def last(self, subset: str) -> list[Cloud]:
        """The point clouds of the last layer of this layer's stack, made once for all layers."""
        kept = self.companions.last
        if (self.layer.stack, subset) not in kept:
            kept[self.layer.stack, subset] = (
                self.clouds(subset) if self.layer.is_last else self._cut("last", self.states.last(self.layer), subset)
            )
        return kept[self.layer.stack, subset]

    def tokens(self, subset: str) -> list[Tensor]:
        """The token ids behind the rows of each cloud."""
        return self._behind(self.probe.tokens, subset)

    def topics(self, subset: str) -> list[Tensor]:
        """The topics of the tokens behind the rows of each cloud, -1 for none."""
        if self.probe.topics is None:
            raise Undefined(NO_TOPICS)
        return self._behind(self.probe.topics, subset)

    def after_attention(self, subset: str) -> list[Cloud]:
        """The point clouds of the states between the block's attention and its feed-forward part."""
        states = self.layer.after_attention
        if not isinstance(states, Tensor):
            raise Undefined(states or "the states after attention were not asked for")
        return self._cut("after attention", states, subset)

    def vocabulary(self) -> Vocabulary:
        """The input embeddings of all tokens, those that fit the layer's vectors."""
        table = self.states.embeddings
        if isinstance(table, str):
            raise Undefined(table)
        if table.shape[1] != self.layer.states.shape[1]:
            dims = f"{table.shape[1]} coordinates, the layer's vectors {self.layer.states.shape[1]}"
            raise Undefined(f"the input embeddings have {dims}")
        if self.companions.vocabulary is None:
            self.companions.vocabulary = Vocabulary(table)
        return self.companions.vocabulary

    def keep_for_later(self) -> None:
        """Keep the layer's first batch for the checkpoint that comes next, where one will be compared with it."""
        if self.companions.earlier is not None:
            first = self.states.rows_of(self.probe.sample("all")[0])
            of_layer = self.companions.step, self.layer.stack, self.layer.index
            self.companions.earlier.keep(*of_layer, self.layer.states[first])

    def _behind(self, of_tokens: Tensor, subset: str) -> list[Tensor]:
        device = self.layer.states.device
        return [of_tokens[torch.from_numpy(tokens)].to(device) for tokens in self.probe.sample(subset)]

    def _cut(self, name: str, states: Tensor, subset: str) -> list[Cloud]:
        if (name, subset) not in self._clouds:
            device = self.layer.states.device
            self._clouds[name, subset] = [
                Cloud(
                    states[self.states.rows_of(tokens)].to(device),
                    n_neighbours=self.n_neighbours,
                    whole_spectrum=self.whole_spectrum,
                )
                for tokens in self.probe.sample(subset)
            ]
        return self._clouds[name, subset]


def clouds(layer: LayerView, subset: str) -> list[tuple[Cloud]]:
    """The kernel's input is one layer's point cloud, batch by batch."""
    return [(cloud,) for cloud in layer.clouds(subset)]


def with_last(layer: LayerView, subset: str) -> list[tuple[Cloud, Cloud]]:
    """The layer's point cloud and its stack's last one."""
    return _in_one_space(layer.clouds(subset), layer.last(subset))


def with_following(layer: LayerView, subset: str) -> list[tuple[Cloud, Cloud]]:
    """The layer's point cloud and the next layer's."""
    return list(zip(layer.clouds(subset), layer.following(subset), strict=True))


def with_following_in_one_space(layer: LayerView, subset: str) -> list[tuple[Cloud, Cloud]]:
    """The same, of layers that have the same coordinates."""
    return _in_one_space(layer.clouds(subset), layer.following(subset))


def with_following_and_last(layer: LayerView, subset: str) -> list[tuple[Cloud, Cloud, Cloud]]:
    """The layer's point cloud, the next layer's and the last one's."""
    return _in_one_space(layer.clouds(subset), layer.following(subset), layer.last(subset))


def with_earlier(layer: LayerView, subset: str) -> list[tuple[Cloud, Cloud]]:
    """The layer's first point cloud, and the same tokens' at the checkpoint measured before."""
    kept = layer.companions
    if kept.earlier is None:
        raise Undefined("no earlier checkpoint of this run is at hand")
    cloud = layer.clouds(subset)[0]
    layer.compared_to, states = kept.earlier.before(kept.step, layer.layer.stack, layer.layer.index, like=cloud.x)
    return [(cloud, Cloud(states))]


def tokens_of_states(layer: LayerView, subset: str) -> list[tuple[Tensor, Tensor, Vocabulary]]:
    """The layer's vectors, their tokens' ids, and the input embeddings of all tokens."""
    return _against_vocabulary(layer, layer.clouds(subset), subset)


def tokens_after_attention(layer: LayerView, subset: str) -> list[tuple[Tensor, Tensor, Vocabulary]]:
    """The same of the states between attention and feed-forward."""
    return _against_vocabulary(layer, layer.after_attention(subset), subset)


def with_topics(layer: LayerView, subset: str) -> list[tuple[Cloud, Tensor, Tensor]]:
    """The layer's point cloud, its tokens' ids and their topics."""
    return list(zip(layer.clouds(subset), layer.tokens(subset), layer.topics(subset), strict=True))


def attention_with_topics(layer: LayerView, subset: str) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Attention weights (heads, n, n), ids and topics (n,) of each sequence that the weights are taken on."""
    attention = layer.companions.attention
    if layer.probe.topics is None or attention is None:
        raise Undefined(NO_TOPICS)
    members = torch.zeros(len(layer.probe.tokens), dtype=torch.bool)
    members[torch.from_numpy(layer.probe.members(subset))] = True
    topics = layer.probe.topics.masked_fill(~members, -1)
    of_sequences = attention.of(layer.layer.stack, layer.layer.index)
    return [(weights, layer.probe.tokens[tokens], topics[tokens]) for weights, tokens in of_sequences]


def _in_one_space(*clouds: list[Cloud]) -> list[tuple]:
    widths = [of_layer[0].x.shape[1] for of_layer in clouds]
    if len(set(widths)) > 1:
        raise Undefined(f"the layers have vectors of {' and '.join(map(str, sorted(set(widths))))} coordinates")
    return list(zip(*clouds, strict=True))


def _against_vocabulary(layer: LayerView, clouds: list[Cloud], subset: str) -> list[tuple[Tensor, Tensor, Vocabulary]]:
    vocabulary = layer.vocabulary()
    pairs = zip(clouds, layer.tokens(subset), strict=True)
    return [(cloud.x[:RANKED], ids[:RANKED], vocabulary) for cloud, ids in pairs]

"""What a metric can access at one layer.

- :class:`CheckpointContext`: what all layers of a checkpoint share, such as the output head.
- :class:`LayerView`: one layer: its clouds on each subset, those of the next and of the last layer,
  tokens, the vocabulary, predictions. Each is made when a metric first asks for it, and kept for
  the others.

What a kernel takes of it is selected in :mod:`repdyn.metrics.inputs`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from repdyn.kernels import (
    Cloud,
    UndefinedError,
    Vocabulary,
    gaussian_like,
    same_label_fraction,
)
from repdyn.kernels.lens import LensReading, read_predictions
from repdyn.probe import Probe
from repdyn.probe.design import DIFFERENCES, DISTINCT, GAUSSIAN, NO_MASSIVE, View, view_of
from repdyn.probe.distinct import too_few
from repdyn.store.state_cache import StateCache

if TYPE_CHECKING:
    from repdyn.capture.attention import AttentionWeights
    from repdyn.capture.output_head import OutputHead
    from repdyn.capture.states import LayerStates, States

Which: TypeAlias = Literal[
    "own", "own by window", "following", "last", "after attention", "queries", "keys"
]
"""The states of which a layer's view has clouds."""
MASSIVE_NORM = 10.0
"""Times the median norm of a layer's vectors, above which a norm is massive. Sun et al. 2024
(Massive Activations in Large Language Models, COLM) find a few activations orders of magnitude
above the median, on delimiters as well as on first tokens, and hardly any in between; norms of
other vectors stay within a small multiple of their median."""
NO_TOPICS = "the tokens of the probe have no topics"
# vectors of each batch that are read through the output head twice, for the layer and for the end
_LENS_VECTORS = 256


def are_massive(batches: Sequence[Tensor]) -> list[Tensor]:
    """Return for each batch of a layer which vectors have a norm above :data:`MASSIVE_NORM` times
    the median of all.

    Vectors with NaN or inf are not massive: they are not to be hidden.
    """
    norms = [torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64) for vectors in batches]
    # one bound for all batches of the layer
    every = torch.cat(norms)
    bound = (
        MASSIVE_NORM * every[every.isfinite()].quantile(0.5)
        if every.isfinite().any()
        else torch.inf
    )
    return [(of_batch > bound) & of_batch.isfinite() for of_batch in norms]


@dataclass(frozen=True)
class BlockWeights:
    """The weights of a model by name, and what is known of the training step that led to them."""

    now: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    """As the optimizer took them: accumulated, unscaled, clipped."""
    before: Mapping[str, Tensor] = field(default_factory=dict)
    """The weights before the step."""


@dataclass
class CheckpointContext:
    """Data shared by the metrics of all layers of one checkpoint."""

    attention: AttentionWeights | None = None
    state_cache: StateCache | None = None
    step: int = 0
    vocabularies: dict[bool, Vocabulary] = field(default_factory=dict)
    """The input embeddings, by whether they are compared by distance."""
    last: dict[tuple[str | None, str], list[Cloud]] = field(default_factory=dict)
    """The clouds of each stack's last layer, by stack and subset."""
    output_head: OutputHead | str | None = None
    """From states to logits, or the reason why there is none; None if no metric needs it."""
    final_norm: OutputHead | str | None = None
    """Function that applies the final norm to states, or the reason why there is none; None if no
    view needs it.
    """
    weights: BlockWeights | str | None = None
    """The weights of the blocks, or why they are not known; None if no metric needs them."""
    n_neighbours: int = 2
    """The largest number of nearest neighbours that a metric uses; they are searched once."""


@dataclass
class LayerView:
    """Inputs available to a metric at one layer. Clouds are made once and shared by all metrics of
    the layer.

    ``states`` holds the following layers only: the preceding ones are measured and released.
    """

    layer: LayerStates
    states: States
    probe: Probe
    context: CheckpointContext = field(default_factory=CheckpointContext)
    compared_to: int | None = None
    """Step of the earlier checkpoint that a metric has compared the layer with."""
    _clouds: dict[tuple[Which, str], list[Cloud]] = field(default_factory=dict)
    _windows: dict[str, list[Tensor]] = field(default_factory=dict)
    _readings: dict[str, list[LensReading]] = field(default_factory=dict)
    _neighbour_fractions: dict[str, dict[str, float | None]] = field(default_factory=dict)

    def sample(self, subset: str) -> list[np.ndarray]:
        """Return the indices of the tokens in each batch of a subset, at this layer."""
        view = view_of(subset)
        return (
            self._not_massive
            if view.vectors == NO_MASSIVE
            else list(self.probe.sample(view.sampled))
        )

    def clouds(self, subset: str) -> list[Cloud]:
        """Return the layer's cloud in each batch of a subset."""
        return self._clouds_of("own", self.layer.states, subset)

    def _clouds_of(self, which: Which, states: Tensor, subset: str) -> list[Cloud]:
        """Return the clouds of states of the layer's tokens, its own or others, by batch of a
        subset; made once for each of ``which`` and each subset.
        """
        key = (which, subset)
        if key not in self._clouds:
            view = view_of(subset)
            if view.vectors == GAUSSIAN:
                real = self._clouds_of(which, states, subset.replace(GAUSSIAN, "all"))
                self._clouds[key] = [*map(gaussian_like, real)]
            else:
                self._clouds[key] = self._new_clouds(view, states, subset)
        return self._clouds[key]

    def _new_clouds(self, view: View, states: Tensor, subset: str) -> list[Cloud]:
        """Return the clouds of the vectors that a view takes of states."""
        if view.vectors in DISTINCT:
            self._require_enough(view.vectors)
        batches = self.sample(subset)
        groups: Sequence[Tensor | None] = [None for _ in batches]
        if self.probe.design.exclude_own_window:
            groups = self.windows(subset)
        return [
            Cloud(
                self._vectors(view, tokens, states).to(self.layer.states.device),
                groups=of_batch,
                n_neighbours=self.context.n_neighbours,
            )
            for tokens, of_batch in zip(batches, groups, strict=True)
        ]

    def _vectors(self, view: View, tokens: np.ndarray, states: Tensor) -> Tensor:
        """Return the vectors of a batch of tokens as a view has them: after the final norm, or the
        difference from each token to the next."""
        norm = self.context.final_norm
        # the difference is taken after the norm, which is not linear
        at = (tokens + 1, tokens) if view.vectors == DIFFERENCES else (tokens,)
        vectors = [states[self.states.rows_of(rows)] if len(rows) else states[:0] for rows in at]
        if view.normed:
            if not callable(norm):
                raise UndefinedError(norm or "the final norm was not looked for")
            vectors = [norm(rows) for rows in vectors]
        return vectors[0] - vectors[1] if len(vectors) > 1 else vectors[0]

    def neighbour_fractions(self, subset: str) -> dict[str, float | None]:
        """Return the fractions of vectors whose nearest neighbour outside of their own window is
        the same token, and the same token at the same position, by column of a row.

        Means over the batches; empty where the vectors are not those of single tokens, or a vector
        has no neighbour.
        """
        if self.probe.inputs is not None or not view_of(subset).of_single_tokens:
            return {}
        if subset not in self._neighbour_fractions:
            labels = {
                "same_token_fraction": self.probe.tokens,
                "same_input_fraction": torch.from_numpy(self.probe.inputs_of_tokens),
            }
            self._neighbour_fractions[subset] = {
                column: self._same_label_fraction(subset, of_tokens)
                for column, of_tokens in labels.items()
            }
        return self._neighbour_fractions[subset]

    def _same_label_fraction(self, subset: str, of_tokens: Tensor) -> float | None:
        clouds = self.clouds_outside_windows(subset)
        labels = self._of_rows(of_tokens, subset)
        fractions = [
            float(same_label_fraction(cloud, of_rows))
            for cloud, of_rows in zip(clouds, labels, strict=True)
        ]
        mean = sum(fractions) / len(fractions)
        return None if math.isnan(mean) else mean

    def clouds_outside_windows(self, subset: str) -> list[Cloud]:
        """Return the clouds whose neighbours are outside of a vector's own window, whatever the
        design.
        """
        if self.probe.design.exclude_own_window:
            return self.clouds(subset)
        return self.clouds_by_window(subset)

    def clouds_by_window(self, subset: str) -> list[Cloud]:
        """Return the same clouds with the window of each vector as its group, where the design does
        not exclude it.
        """
        key: tuple[Which, str] = ("own by window", subset)
        if key not in self._clouds:
            batches = zip(self.clouds(subset), self.windows(subset), strict=True)
            self._clouds[key] = [Cloud(cloud.x, groups=groups) for cloud, groups in batches]
        return self._clouds[key]

    def following(self, subset: str) -> list[Cloud]:
        """Return the next layer's clouds, row by row of the same tokens."""
        return self._clouds_of("following", self.states.following(self.layer), subset)

    def last(self, subset: str) -> list[Cloud]:
        """Return the clouds of the stack's last layer, made once for all layers with the same
        tokens.
        """
        if self.layer.is_last:
            return self.clouds(subset)
        if view_of(subset).vectors == NO_MASSIVE:  # each layer leaves out other tokens
            return self._clouds_of("last", self.states.last(self.layer), subset)
        key = self.layer.stack, subset
        if key not in self.context.last:
            states = self.states.last(self.layer)
            self.context.last[key] = self._clouds_of("last", states, subset)
        return self.context.last[key]

    def tokens(self, subset: str) -> list[Tensor]:
        """Return the token ids of the rows of each cloud."""
        return self._of_rows(self.probe.tokens, subset)

    def next_tokens(self, subset: str) -> list[Tensor]:
        """Return the token ids that follow those of the rows of each cloud in their windows, -1
        after the last.
        """
        following = self.probe.tokens.roll(-1)
        # the next window's first token follows nothing
        following[self.probe.lengths.cumsum(0) - 1] = -1
        return self._of_rows(following, subset)

    def topics(self, subset: str) -> list[Tensor]:
        """Return the topics of the rows of each cloud, -1 for none."""
        if self.probe.topics is None:
            raise UndefinedError(NO_TOPICS)
        return self._of_rows(self.probe.topics, subset)

    def after_attention(self, subset: str) -> list[Cloud]:
        """Return the clouds of the states between the block's attention and its
        feed-forward part.
        """
        states = self.layer.after_attention
        if not isinstance(states, Tensor):
            raise UndefinedError(states or "the states after attention were not captured")
        return self._clouds_of("after attention", states, subset)

    def of_heads(self, which: Literal["queries", "keys"], subset: str) -> list[Tensor]:
        """Return the queries or the keys of each batch, (n_heads, n_vectors, dim), as the block's
        attention compares them.
        """
        attention = self.layer.queries_and_keys
        if attention is None or isinstance(attention, str):
            raise UndefinedError(attention or "the queries and keys were not captured")
        batches = self._clouds_of(which, getattr(attention, which), subset)
        return [attention.by_head(cloud.x) for cloud in batches]

    def vocabulary(self, *, by_distance: bool = False) -> Vocabulary:
        """Return the input embeddings of all tokens.

        Raises:
            UndefinedError: the model has none, or of another dimension than the layer's vectors.
        """
        table = self.states.embeddings
        if isinstance(table, str):
            raise UndefinedError(table)
        if table.shape[1] != self.layer.states.shape[1]:
            dims = f"{table.shape[1]} coordinates, the layer's vectors {self.layer.states.shape[1]}"
            raise UndefinedError(f"the input embeddings have {dims}")
        if by_distance not in self.context.vocabularies:
            self.context.vocabularies[by_distance] = Vocabulary(table, by_distance=by_distance)
        return self.context.vocabularies[by_distance]

    def lens(self, subset: str) -> list[LensReading]:
        """Return what the model would predict from vectors of the layer, evenly taken from each
        batch, by batch.

        Raises:
            UndefinedError: the model has no output head, the layer's vectors have another dimension
                than the last layer's, or a logit is not finite.
        """
        if subset not in self._readings:
            head = self.context.output_head
            self._require_single_tokens(subset)
            if not callable(head):
                raise UndefinedError(head or "the output head was not looked for")
            pairs = of_same_dim(self.clouds(subset), self.last(subset))
            self._readings[subset] = [read_lens(here.x, last.x, head) for here, last in pairs]
        return self._readings[subset]

    def keep_for_later(self) -> None:
        """Keep the layer's first batch in the state cache, if there is one, for the next
        checkpoint.
        """
        if (cache := self.context.state_cache) is not None:
            first = self.states.rows_of(self.probe.sample("all")[0])
            cache.save(
                self.context.step, self.layer.stack, self.layer.index, self.layer.states[first]
            )

    def windows(self, subset: str) -> list[Tensor]:
        """Return the window that each row of each cloud comes from."""
        if subset not in self._windows:
            windows = (
                torch.from_numpy(self.probe.window_of(tokens)) for tokens in self.sample(subset)
            )
            self._windows[subset] = [of_rows.to(self.layer.states.device) for of_rows in windows]
        return self._windows[subset]

    def _of_rows(self, of_tokens: Tensor, subset: str) -> list[Tensor]:
        self._require_single_tokens(subset)
        device = self.layer.states.device
        return [of_tokens[torch.from_numpy(tokens)].to(device) for tokens in self.sample(subset)]

    @cached_property
    def _not_massive(self) -> list[np.ndarray]:
        batches = self.sample("all")
        massive = are_massive(
            [self.layer.states[self.states.rows_of(tokens)] for tokens in batches]
        )
        return [
            tokens[~left_out.cpu().numpy()]
            for tokens, left_out in zip(batches, massive, strict=True)
        ]

    def _require_enough(self, subset: str) -> None:
        """Raise UndefinedError where a text has too few distinct inputs or types for a cloud."""
        n_vectors = min(map(len, self.sample(subset)))
        reason = too_few(subset, n_vectors, self.probe.batch_vectors)
        if reason is not None:
            raise UndefinedError(reason, "few_distinct")

    def _require_single_tokens(self, subset: str) -> None:
        if not view_of(subset).of_single_tokens:
            raise UndefinedError(f"the vectors of {subset} are not those of single tokens")


def of_same_dim(*clouds: list[Cloud]) -> list[tuple]:
    """Return clouds batch by batch; raise UndefinedError where those of several layers have other
    dimensions.
    """
    widths = sorted({batches[0].x.shape[1] for batches in clouds})
    if len(widths) > 1:
        raise UndefinedError(
            f"the layers have vectors of {' and '.join(map(str, widths))} coordinates"
        )
    return list(zip(*clouds, strict=True))


def read_lens(x: Tensor, last: Tensor, head: OutputHead) -> LensReading:
    if not len(x):
        raise UndefinedError("there are no vectors")
    taken = slice(None, None, math.ceil(len(x) / _LENS_VECTORS))
    reading = read_predictions(x[taken], last[taken], head)
    if not bool(reading.kl.isfinite().all()):
        raise UndefinedError("a logit of the layer or of the last one is not finite", "not_finite")
    return reading

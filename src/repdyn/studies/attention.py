"""The attention weights of a sentence: how much each of its tokens attends to each other one, in every head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from repdyn.capture.attention import LENGTH, AttentionWeights, attention_weights
from repdyn.capture.blocks import LayerPatterns
from repdyn.capture.prepared_model import prepare
from repdyn.checkpoints.errors import model_errors
from repdyn.kernels import Undefined
from repdyn.studies.models import LoadedModel
from repdyn.studies.tokens.sentences import sentence_probe


class SentenceAttention(NamedTuple):
    """The attention weights of a sentence in every layer."""

    ids: tuple[int, ...]
    """Token ids from the first one on, at most :data:`repdyn.capture.attention.LENGTH`."""
    stacks: tuple[str | None, ...]
    """Names of the model's stacks of blocks; None alone in a model that has one."""
    weights: AttentionWeights

    def layer(self, index: int) -> Iterator[tuple[str | None, Tensor | str]]:
        """Yield each stack with its weights (heads, n, n), from each token to each, or the reason why it has none.

        Args:
            index: of the layer; layer l is the l-th block that runs.
        """
        for stack in self.stacks:
            try:
                [(weights, _)] = self.weights.of(stack, index)
                yield stack, weights
            except Undefined as undefined:
                yield stack, undefined.reason


def sentence_attention(loaded: LoadedModel, ids: Sequence[int], layers: LayerPatterns = None) -> SentenceAttention:
    """Run the model on a sentence and keep the attention weights of every layer and head.

    Args:
        loaded: the model.
        ids: of the sentence; the model reads the first :data:`repdyn.capture.attention.LENGTH` of them.
        layers: as for :func:`repdyn.capture.prepared_model.prepare`.

    Raises:
        CheckpointError: the model cannot be run.
    """
    read = tuple(ids[:LENGTH])
    with model_errors(f"{loaded.name} cannot be measured"):
        model = prepare(loaded.model, layers)
        weights = attention_weights(model, sentence_probe(read), n_tokens=len(read))
    return SentenceAttention(read, tuple(dict.fromkeys(block.stack for block in model.blocks)), weights)

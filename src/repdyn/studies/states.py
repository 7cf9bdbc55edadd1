"""The states of every token of a few sentences, at every layer, and what the logit lens reads in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from repdyn.capture.blocks import LayerPatterns
from repdyn.capture.capture import capture
from repdyn.capture.output_head import find_output_head
from repdyn.capture.prepared_model import prepare
from repdyn.checkpoints.errors import model_errors
from repdyn.kernels.lens import LensReading, read_predictions
from repdyn.probe import Probe
from repdyn.studies.models import LoadedModel

_FIRST_POSITIONS = "first_positions"
_MIN_PADDING = 4


@dataclass(frozen=True)
class LayerKey:
    """A layer, counted as in :mod:`repdyn.capture.capture`: 0 is what enters the first block."""

    index: int
    stack: str | None
    """Name of its stack of blocks, in a model that has several."""


def sentences_probe(sequences: Sequence[Sequence[int]]) -> Probe:
    """Return a probe of whole sequences that samples every token, by "no_sink" or by the class of first positions.

    Copies of the longest sequence, of four tokens at least, are appended if these are too few or too short for a probe.

    Raises:
        ValueError: no sequence, or an empty one.
    """
    lengths = [len(sequence) for sequence in sequences]
    if not lengths or min(lengths) < 1:
        raise ValueError(f"expected sentences of at least one token, got lengths {lengths[:5]}; leave empty texts out")
    longest = list(max(sequences, key=len))
    padding = longest * (-(-_MIN_PADDING // len(longest)))
    whole = [list(sequence) for sequence in sequences]
    while len(whole) < 3 or sum(map(len, whole)) < 2 * len(whole):
        whole.append(padding)
    ids = torch.zeros(len(whole), max(map(len, whole)), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(whole):
        ids[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence)] = 1
    n_tokens = int(mask.sum())
    is_first = torch.zeros(n_tokens, dtype=torch.bool)
    is_first[mask.sum(1).cumsum(0) - mask.sum(1)] = True
    n_others = n_tokens - len(whole)
    probe = Probe.from_tokens(ids, mask, max_vectors=n_others, batch_vectors=n_others)
    return probe.with_classes({_FIRST_POSITIONS: is_first})


def token_states(
    model: nn.Module, sequences: Sequence[Sequence[int]], layers: LayerPatterns = None
) -> Iterator[tuple[LayerKey, Tensor]]:
    """Yield the states of all tokens layer by layer, (n_tokens, dim) in the model's dtype, sequence after sequence.

    Args:
        model: any model that :func:`repdyn.capture.capture.capture` takes; left as it was found.
        sequences: token ids as the model takes them, special tokens included.
        layers: as for :func:`repdyn.capture.prepared_model.prepare`.

    Raises:
        ValueError: as :func:`sentences_probe`, or a model that cannot be captured.
    """
    states = capture(prepare(model, layers), sentences_probe(sequences), ("no_sink", _FIRST_POSITIONS))
    rows = states.rows_of(np.arange(sum(map(len, sequences))))
    while states.layers:
        layer = states.take()
        yield LayerKey(layer.index, layer.stack), layer.states[rows]


# copies of a sentence, each with another token masked, whose states are in memory at once
_MASKED_AT_ONCE = 16


class SentenceLens(NamedTuple):
    """The predictions of each layer at each token of a sentence."""

    ids: tuple[int, ...]
    masked: tuple[int, ...]
    """Places of the tokens that were hidden from the model when it predicted them, one at a time; none in a decoder."""
    layers: tuple[LensReading, ...]
    """From layer 0, what enters the first block, to the last; a row for each token."""

    @property
    def is_masked(self) -> bool:
        """True if a token itself is predicted, as in an encoder, rather than the next one."""
        return bool(self.masked)

    @property
    def settled(self) -> list[int]:
        """For each token the first layer from which on the most probable token is the final one."""
        agrees = torch.stack([layer.final_rank == 0 for layer in self.layers])
        return (len(self.layers) - agrees.flip(0).long().cumprod(0).sum(0)).tolist()


def sentence_lens(loaded: LoadedModel, ids: Sequence[int], k: int, layers: LayerPatterns = None) -> SentenceLens:
    """Read the predictions of all layers at all tokens of a sentence.

    A decoder reads the sentence once, and predicts the next token at each. An encoder reads it once for each ordinary
    token, which is then replaced by the mask token, and predicts what was there; special tokens are never masked.

    Args:
        loaded: the model, loaded with its head.
        ids: of the sentence.
        k: how many tokens each prediction lists.
        layers: as for :func:`repdyn.capture.prepared_model.prepare`.

    Raises:
        ValueError: the model has no output head that reproduces its own predictions, or no mask token.
        CheckpointError: the model cannot be run.
    """
    if (whole := loaded.with_head) is None:
        raise ValueError(
            f"expected a model with a language-modelling head for the logit lens, got {loaded.name}: its configuration "
            "names none, or the checkpoint lacks its weights"
        )
    masked = _masked_places(loaded, whole, ids)
    with model_errors(f"{loaded.name} cannot be measured"):
        head = find_output_head(prepare(whole, layers), torch.tensor([list(ids)]))
    if isinstance(head, str):
        raise ValueError(f"expected an output head for the logit lens, got none in {loaded.name}: {head}")
    with model_errors(f"{loaded.name} cannot be measured"):
        # a single token stands for the mask, which the annotations of transformers do not say
        states = _states(whole, ids, masked, cast(int, loaded.tokenizer.mask_token_id), layers)
        readings = [read_predictions(layer, states[-1], head, k) for layer in states]
    return SentenceLens(tuple(ids), masked, tuple(LensReading(*(p.cpu() for p in each)) for each in readings))


def _masked_places(loaded: LoadedModel, whole: PreTrainedModel, ids: Sequence[int]) -> tuple[int, ...]:
    if not type(whole).__name__.endswith("ForMaskedLM"):
        return ()
    if loaded.tokenizer.mask_token_id is None:
        raise ValueError(f"expected a tokenizer with a mask token for the logit lens of {loaded.name}, got one without")
    special = set(loaded.tokenizer.all_special_ids)
    return tuple(place for place, token in enumerate(ids) if token not in special)


def _states(
    model: PreTrainedModel, ids: Sequence[int], masked: Sequence[int], mask: int, layers: LayerPatterns
) -> list[Tensor]:
    """Return the states of all tokens at each layer, (n_tokens, dim); of a masked one from where it is masked."""
    plain = [found for _, found in token_states(model, [ids], layers)]
    for start in range(0, len(masked), _MASKED_AT_ONCE):
        places = masked[start : start + _MASKED_AT_ONCE]
        copies = [[mask if at == place else token for at, token in enumerate(ids)] for place in places]
        rows = torch.tensor([number * len(ids) + place for number, place in enumerate(places)])
        for whole, (_, found) in zip(plain, token_states(model, copies, layers), strict=True):
            whole[list(places)] = found[rows]
    return plain

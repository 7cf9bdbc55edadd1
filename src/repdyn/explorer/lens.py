"""What each layer of a model predicts at each token of a sentence: the logit lens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from repdyn.kernels.lens import LensReading, read_predictions
from repdyn.reading import LayerPatterns, LoadedModel, layer_states, output_head

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
    """
    head, masked = output_head(loaded, ids, layers), _masked_places(loaded, ids)
    # a single token stands for the mask, which the annotations of transformers do not say
    states = _states(loaded, ids, masked, cast(int, loaded.tokenizer.mask_token_id), layers)
    readings = [read_predictions(layer, states[-1], head, k) for layer in states]
    return SentenceLens(tuple(ids), masked, tuple(LensReading(*(p.cpu() for p in each)) for each in readings))


def _masked_places(loaded: LoadedModel, ids: Sequence[int]) -> tuple[int, ...]:
    if not type(loaded.with_head).__name__.endswith("ForMaskedLM"):
        return ()
    if loaded.tokenizer.mask_token_id is None:
        raise ValueError(f"expected a tokenizer with a mask token for the logit lens of {loaded.name}, got one without")
    special = set(loaded.tokenizer.all_special_ids)
    return tuple(place for place, token in enumerate(ids) if token not in special)


def _states(
    loaded: LoadedModel, ids: Sequence[int], masked: Sequence[int], mask: int, layers: LayerPatterns
) -> list[Tensor]:
    """Return the states of all tokens at each layer, (n_tokens, dim); of a masked one from where it is masked."""
    whole = replace(loaded, model=cast(PreTrainedModel, loaded.with_head))  # that patterns of layers name
    plain = [layer.states for layer in layer_states(whole, [ids], layers)]
    for start in range(0, len(masked), _MASKED_AT_ONCE):
        places = masked[start : start + _MASKED_AT_ONCE]
        copies = [[mask if at == place else token for at, token in enumerate(ids)] for place in places]
        rows = torch.tensor([number * len(ids) + place for number, place in enumerate(places)])
        for states, layer in zip(plain, layer_states(whole, copies, layers), strict=True):
            states[list(places)] = layer.states[rows]
    return plain

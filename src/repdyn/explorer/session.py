"""Sentences in one or several checkpoints: what the explorer shows, without its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from threading import RLock
from typing import NamedTuple, TypeVar, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

from repdyn.kernels import Undefined
from repdyn.kernels.lens import LensReading, read_predictions
from repdyn.reading import (
    LENGTH,
    AttentionWeights,
    CheckpointError,
    LayerPatterns,
    LoadedModel,
    attention_weights,
    count_blocks,
    layer_states,
    output_head,
)
from repdyn.studies.paths import TokenTrajectory, TrajectoryPlane, fit_plane, match_tokens
from repdyn.studies.study import select
from repdyn.studies.token_measurements import (
    LayerVectors,
    SentenceStates,
    VocabularyComparison,
    capture_sentence,
    compare_sentence,
    encode_sentence,
    token_names,
)
from repdyn.tables.style import of_stack


class TokenStates(NamedTuple):
    """One token in one checkpoint, in one of its stacks."""

    name: str
    """Display name of the checkpoint, and of the stack if it has several."""
    token: str
    token_id: int
    table: pd.DataFrame
    """A row for each state; nearest has one for each state and place. Columns as in
    :class:`repdyn.studies.token_measurements.VocabularyComparison`."""
    nearest: pd.DataFrame


class SentencePaths(NamedTuple):
    """The tokens of two sentences in one stack of a checkpoint, in a plane of their own."""

    name: str
    one: TokenTrajectory
    other: TokenTrajectory
    plane: TrajectoryPlane
    place: int | None
    """Position of the chosen token in the first sentence; None if this checkpoint has no such token."""

    @property
    def left_out(self) -> list[str]:
        """Tokens of either sentence that are left out of the plane for their norm."""
        both = zip((self.one, self.other), self.plane.left_out, strict=True)
        return sorted({trajectory.tokens[place] for trajectory, places in both for place in places})


class LayerHeads(NamedTuple):
    """The attention weights of one layer, in one stack of a checkpoint."""

    name: str
    """Display name of the checkpoint, and of the stack if it has several."""
    ids: tuple[int, ...]
    """Token ids of the sentence."""
    layer: int
    weights: Tensor
    """(heads, n_tokens, n_tokens), from each token to each; a row sums to 1, or to less with learned sinks."""


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


# a longer sentence is rejected before it is tokenized
_CHARACTERS_PER_TOKEN = 32
# copies of a sentence, each with another token masked, whose states are in memory at once
_MASKED_AT_ONCE = 16
# sizes of the caches, for each checkpoint
_SENTENCES, _TOKENS = 4, 128

LISTED = 10
"""Number of tokens that are listed for a prediction."""

T = TypeVar("T")


class Session:
    """Loaded checkpoints, with a cache of recent results.

    Calls may come from several threads; models run one at a time. A sentence that is blank or too long, and a place,
    layer or checkpoint that is not there, are a ValueError.

    Args:
        models: the checkpoints, in the order in which they are shown; a reader chooses among the first one's tokens.
        nearest: number of tokens of the vocabulary that are listed for each state.
        max_tokens: tokens of a sentence at most.
        layers: as for :func:`repdyn.layer_states`.

    Raises:
        ValueError: the blocks of a model are not found.
    """

    def __init__(
        self,
        models: Sequence[LoadedModel],
        *,
        nearest: int,
        max_tokens: int,
        layers: LayerPatterns = None,
    ) -> None:
        self.models = tuple(models)
        self.max_tokens = max_tokens
        self.nearest = nearest
        self._layers = layers
        self.n_layers = max(number for loaded in models for number in count_blocks(loaded, layers).values())
        """Number of blocks of the deepest stack."""
        # neither models nor tokenizers may be used by several threads at once
        self._lock = RLock()
        self._read = lru_cache(_SENTENCES * len(self.models))(self._capture)
        self._compare = lru_cache(_TOKENS * len(self.models))(self._compare_token)
        self._read_lens = lru_cache(_SENTENCES * len(self.models))(self._lens)
        # all layers and heads of a long sentence are large
        self._read_attention = lru_cache(len(self.models))(self._attention)
        self._planes = lru_cache(_SENTENCES * len(self.models))(self._fit_planes)

    def tokens(self, sentence: str) -> tuple[str, ...]:
        """Return the tokens of a sentence in the first checkpoint, special ones included."""
        first, *_ = [self._names(number, self.checked(sentence)) for number in range(len(self.models))]
        return first

    def checked(self, sentence: str) -> str:
        """Return a sentence with invalid characters replaced."""
        # half a surrogate pair is no character, and tokenizers fail on it
        sentence = sentence.encode(errors="replace").decode()
        most = _CHARACTERS_PER_TOKEN * self.max_tokens
        if not sentence.strip():
            raise ValueError("expected a sentence, got nothing; type one")
        if len(sentence) > most:
            raise ValueError(f"expected a sentence of at most {most:,} characters, got {len(sentence):,}; shorten it")
        return sentence

    def token(
        self, sentence: str, place: int, *, with_positions: bool = False, by_distance: bool = False
    ) -> tuple[list[TokenStates], list[str]]:
        """Compare one token of a sentence with the vocabulary, in each checkpoint that has it.

        Returns:
            Results in the order of the checkpoints, and remarks: why a checkpoint or a state is missing.
        """
        self._require_place(place, self.tokens(sentence))
        how = with_positions, by_distance
        return self._of_each(lambda number: self._token(number, self.checked(sentence), place, *how))

    def lens(self, sentence: str, number: int) -> SentenceLens:
        """Return what each layer of one checkpoint predicts at each token of a sentence."""
        self._require_checkpoint(number, sentence)
        return self._read_lens(number, self.checked(sentence))

    def attention(self, sentence: str, number: int, layer: int) -> tuple[list[LayerHeads], list[str]]:
        """Return the attention weights of a sentence in one layer of one checkpoint, for each stack of its blocks.

        Returns:
            The weights, and remarks: why a stack has none, and how many tokens were read if not all were.
        """
        n_tokens = len(self._require_checkpoint(number, sentence))
        name, (ids, read) = self.models[number].name, self._read_attention(number, self.checked(sentence))
        found, remarks = [], []
        for stack in count_blocks(self.models[number], self._layers):
            try:
                [(weights, _)] = read.of(stack, layer)
                found.append(LayerHeads(of_stack(name, stack), ids, layer, weights))
            except Undefined as undefined:
                remarks.append(f"{of_stack(name, stack)}: no attention weights in layer {layer}: {undefined.reason}")
        if len(ids) < n_tokens:
            remarks.append(f"{name}: the first {len(ids)} of {n_tokens} tokens, without those that follow")
        return found, remarks

    def paths(self, one: str, other: str, place: int) -> tuple[list[SentencePaths], list[str]]:
        """Project the tokens of two sentences on the plane of most variance of all their states, for each checkpoint.

        Returns and Raises: as :meth:`token`.
        """
        self._require_place(place, self.tokens(one))
        self.tokens(other)
        return self._of_each(lambda number: self._paths(number, self.checked(one), self.checked(other), place))

    def _require_checkpoint(self, number: int, sentence: str) -> tuple[str, ...]:
        """Return the sentence's tokens in a checkpoint."""
        if not 0 <= number < len(self.models):
            raise ValueError(f"expected a checkpoint from 0 to {len(self.models) - 1}, got {number}; choose one")
        return self._names(number, self.checked(sentence))

    def _require_place(self, place: int, names: Sequence[str]) -> None:
        if not 0 <= place < len(names):
            raise ValueError(f"expected a token from 0 to {len(names) - 1}, got {place}; choose one of the sentence")

    def _of_each(self, find: Callable[[int], Iterator[T | str]]) -> tuple[list[T], list[str]]:
        found: list[T] = []
        remarks: list[str] = []
        for number in range(len(self.models)):
            try:
                for one in find(number):
                    remarks.append(one) if isinstance(one, str) else found.append(one)
            except (ValueError, CheckpointError) as error:
                remarks.append(_rephrase(str(error)))
        return found, remarks

    def _token(self, number: int, sentence: str, place: int, *how: bool) -> Iterator[TokenStates | str]:
        loaded, first = self.models[number], self._names(0, sentence)
        own = _same_place(first, self._names(number, sentence), place)
        if own is None:
            yield f"{loaded.name} splits the sentence differently and has no token {first[place]!r} there"
            return
        reading, found = self._read(number, sentence), self._compare(number, sentence, own, *how)
        for stack in dict.fromkeys(layer.stack for layer in reading.vectors):
            table, nearest = (select(frame, stack=stack) for frame in (found.table, found.nearest))
            yield TokenStates(of_stack(loaded.name, stack), table["token"].iloc[0], reading.ids[own], table, nearest)
        if reading.reasons:
            first, *others = reading.reasons
            more = f" (and {len(others)} more)" if others else ""
            yield f"{loaded.name}: no state after attention at {first}{more}"

    def _paths(self, number: int, one: str, other: str, place: int) -> Iterator[SentencePaths | str]:
        loaded, own = self.models[number], _same_place(self._names(0, one), self._names(number, one), place)
        for stack, (trajectory, partner, found) in self._planes(number, one, other).items():
            yield SentencePaths(of_stack(loaded.name, stack), trajectory, partner, found, own)

    def _names(self, number: int, sentence: str) -> tuple[str, ...]:
        loaded = self.models[number]
        with self._lock:
            ids = encode_sentence(loaded, sentence)
        if len(ids) > self.max_tokens:
            raise ValueError(
                f"expected a sentence of at most {self.max_tokens} tokens for {loaded.name}, got {len(ids)}; shorten "
                "it, or start with a larger --max-tokens"
            )
        return tuple(token_names(loaded.tokenizer, ids))

    def _capture(self, number: int, sentence: str) -> SentenceStates:
        with self._lock:
            return capture_sentence(self.models[number], sentence, self._layers)

    def _lens(self, number: int, sentence: str) -> SentenceLens:
        with self._lock:
            ids = encode_sentence(self.models[number], sentence)
            return sentence_lens(self.models[number], ids, k=LISTED, layers=self._layers)

    def _attention(self, number: int, sentence: str) -> tuple[tuple[int, ...], AttentionWeights]:
        with self._lock:
            ids = encode_sentence(self.models[number], sentence)[:LENGTH]
            return tuple(ids), attention_weights(self.models[number], [ids], self._layers)

    def _compare_token(
        self, number: int, sentence: str, place: int, with_positions: bool, by_distance: bool
    ) -> VocabularyComparison:
        loaded, reading = self.models[number], self._read(number, sentence)
        how = {"with_positions": with_positions, "by_distance": by_distance}
        with self._lock:
            return compare_sentence(loaded, reading, k=self.nearest, place=place, **how)

    def _fit_planes(
        self, number: int, one: str, other: str
    ) -> dict[str | None, tuple[TokenTrajectory, TokenTrajectory, TrajectoryPlane]]:
        first, second = (_trajectories(self._read(number, text), self._names(number, text)) for text in (one, other))
        both = {stack: (trajectory, second[stack]) for stack, trajectory in first.items()}
        return {stack: (*pair, fit_plane(*(trajectory.states for trajectory in pair))) for stack, pair in both.items()}


def _same_place(first: Sequence[str], other: Sequence[str], place: int) -> int | None:
    """Return the position of one checkpoint's token among another's tokens; None if there is no such token."""
    if first == other:
        return place
    bare = [[name.strip("▁#").casefold() for name in names] for names in (first, other)]
    return next((b for a, b, equal in match_tokens(*bare) if equal and a == place), None)


def _trajectories(reading: SentenceStates, tokens: tuple[str, ...]) -> dict[str | None, TokenTrajectory]:
    """Return a sentence's trajectory through each stack of the model's layers."""
    of_stacks: dict[str | None, list[LayerVectors]] = {}
    for part in reading.vectors:
        if part.state == "block":
            of_stacks.setdefault(part.stack, []).append(part)
    return {
        stack: TokenTrajectory(
            tokens,
            np.stack([part.vectors.double().cpu().numpy() for part in parts]),
            tuple(part.layer for part in parts),
        )
        for stack, parts in of_stacks.items()
    }


def _rephrase(message: str) -> str:
    """Rephrase an error about the options of a study for the switches of the page."""
    return message.replace(" for --positions", "").replace("leave the option out", "take the position embeddings off")

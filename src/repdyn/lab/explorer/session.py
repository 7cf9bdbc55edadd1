"""Sentences in one or several checkpoints: what the explorer shows, without its page."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import lru_cache
from html import escape
from io import StringIO
from threading import RLock
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from repdyn import activations
from repdyn.activations import CheckpointError, LoadedModel
from repdyn.kernels import UndefinedError
from repdyn.kernels.lens import LensReading, read_predictions
from repdyn.lab.studies.anatomy_figures import paths_figure
from repdyn.lab.studies.paths import TokenTrajectory, match_tokens, sentence_trajectories
from repdyn.lab.studies.study import each_stack
from repdyn.lab.studies.token_measurements import (
    VocabularyComparison,
    capture_sentence,
    compare_sentence,
    encode_sentence,
    token_names,
)
from repdyn.views.tables.style import styled


class SentenceLens(NamedTuple):
    """The predictions of each layer at each token of a sentence."""

    ids: tuple[int, ...]
    masked: tuple[int, ...]
    """Places of the tokens that were hidden from the model when it predicted them, one at a time;
    none in a decoder, which predicts the next token rather than the token itself."""
    layers: tuple[LensReading, ...]
    """From layer 0, what enters the first block, to the last; a row for each token."""

    @property
    def settled(self) -> list[int]:
        """Return for each token the first layer from which on the most probable token is the final
        one.
        """
        agrees = torch.stack([layer.final_rank == 0 for layer in self.layers])
        # from the last layer back, 1 for each layer until the first one that disagrees
        return (len(self.layers) - agrees.flip(0).long().cumprod(0).sum(0)).tolist()


# copies of a sentence, each with another token masked, whose states are in memory at once
_MASKED_AT_ONCE = 16
# sizes of the caches, for each checkpoint
_SENTENCES, _TOKENS = 4, 128

LISTED = 10
"""Number of tokens that are listed for a prediction."""

T = TypeVar("T")
TokenStates: TypeAlias = tuple[str, VocabularyComparison]
"""One token in one checkpoint, whose name comes first, with that of the stack of blocks if it has
several.
"""


def sentence_lens(loaded: LoadedModel, ids: Sequence[int]) -> SentenceLens:
    """Read the predictions of all layers at all tokens of a sentence.

    A decoder reads the sentence once, and predicts the next token at each. An encoder reads it once
    for each ordinary token, which is then replaced by the mask token, and predicts what was there;
    special tokens are never masked.
    """
    head = activations.output_head(loaded, ids)
    masked = ()
    if type(loaded.with_head).__name__.endswith("ForMaskedLM"):
        special = set(loaded.tokenizer.all_special_ids)
        masked = tuple(place for place, token in enumerate(ids) if token not in special)
    states = [layer.states for layer in activations.layer_states(loaded, [ids])]
    for start in range(0, len(masked), _MASKED_AT_ONCE):
        places = list(masked[start : start + _MASKED_AT_ONCE])
        copies = torch.tensor([ids for _ in places])
        # a single token stands for the mask, which the annotations of transformers do not say
        copies[range(len(places)), places] = cast(int, loaded.tokenizer.mask_token_id)
        rows = torch.arange(len(places)) * len(ids) + torch.tensor(places)
        for plain, layer in zip(
            states, activations.layer_states(loaded, copies.tolist()), strict=True
        ):
            plain[places] = layer.states[rows]
    readings = [read_predictions(layer, states[-1], head, LISTED) for layer in states]
    return SentenceLens(
        tuple(ids), masked, tuple(LensReading(*(part.cpu() for part in each)) for each in readings)
    )


class Session:
    """Loaded checkpoints, with a cache of recent results, for calls from several threads; models
    run one at a time.

    A sentence that is blank or too long, and a token that is not there, are a ValueError.

    Args:
        models: the checkpoints, in the order in which they are shown, each stack of blocks by
            itself; a reader chooses among the first one's tokens.
        nearest: number of tokens of the vocabulary that are listed for each state.
        max_tokens: tokens of a sentence at most.
    """

    def __init__(self, models: Sequence[LoadedModel], *, nearest: int, max_tokens: int) -> None:
        self.models, self.max_tokens = (
            [one for loaded in models for one in each_stack(loaded)],
            max_tokens,
        )
        self.n_layers = max(
            number for loaded in models for number in activations.count_blocks(loaded).values()
        )
        """Number of blocks of the deepest stack."""
        # taken again by a cached function that calls another one
        self._lock = RLock()

        def compare(loaded: LoadedModel, text: str, **how: Any) -> VocabularyComparison:
            return compare_sentence(loaded, self._read(loaded, text), k=nearest, **how)

        def draw(loaded: LoadedModel, *pair: str) -> str:
            return _picture(loaded.name, *sentence_trajectories(loaded, pair))

        self._read = self._cached(_SENTENCES, capture_sentence)
        self._compare = self._cached(_TOKENS, compare)
        self._lens = self._cached(_SENTENCES, sentence_lens)
        # all layers and heads of a long sentence are large
        self._attention = self._cached(
            1, lambda loaded, ids: activations.attention_weights(loaded, [ids])
        )
        self._drawn = self._cached(_SENTENCES, draw)

    def tokens(self, sentence: str) -> list[str]:
        """Return the tokens of a sentence in the first checkpoint, special ones included."""
        first, *_ = [
            token_names(loaded.tokenizer, self._ids(loaded, sentence)) for loaded in self.models
        ]
        return first

    def token(
        self,
        sentence: str,
        position: int | None,
        *,
        with_positions: bool = False,
        by_distance: bool = False,
    ) -> tuple[list[TokenStates], list[str]]:
        """Compare one token of a sentence with the vocabulary, in each checkpoint that has it.

        Remarks, the second result, say why a checkpoint or a state is missing.
        """
        if position is None:
            raise ValueError("expected a token, got none; choose one")
        first = self.tokens(sentence)
        if not 0 <= position < len(first):
            raise ValueError(
                f"expected a token from 0 to {len(first) - 1}, got {position}; choose one of the "
                "sentence"
            )
        how = {"with_positions": with_positions, "by_distance": by_distance}

        def find(loaded: LoadedModel) -> tuple[TokenStates, list[str]]:
            reading = self._read(loaded, sentence)
            own_position = _same_place(first, token_names(loaded.tokenizer, reading.ids), position)
            if own_position is None:
                raise ValueError(
                    f"{loaded.name} splits the sentence differently and has no token "
                    f"{first[position]!r} there"
                )
            compared = self._compare(loaded, sentence, position=own_position, **how)
            more = f" (and {len(reading.reasons) - 1} more)" if len(reading.reasons) > 1 else ""
            remarks = [
                f"{loaded.name}: no state after attention at {why}{more}"
                for why in reading.reasons[:1]
            ]
            return (loaded.name, compared), remarks

        return self._of_each(find)

    def lens(self, sentence: str, number: int) -> SentenceLens:
        """Return what each layer of one checkpoint predicts at each token of a sentence."""
        return self._lens(self.models[number], self._ids(self.models[number], sentence))

    def attention(self, sentence: str, number: int, layer: int) -> tuple[list[str], Tensor]:
        """Return the tokens of a sentence in one checkpoint, and their attention weights in one
        layer: (heads, n, n), from each of the first n tokens to each; a row sums to 1, or to less
        with learned sinks. A ValueError if there are none.
        """
        loaded = self.models[number]
        ids = self._ids(loaded, sentence)
        try:
            [(weights, _)] = self._attention(loaded, ids).of(loaded.stack, layer)
        except UndefinedError as undefined:
            raise ValueError(
                f"{loaded.name}: no attention weights in layer {layer}: {undefined.reason}"
            ) from undefined
        return token_names(loaded.tokenizer, ids), weights

    def paths(self, first: str, other: str) -> tuple[list[str], list[str]]:
        """Draw the paths of two sentences' tokens as the study of anatomy does, for each
        checkpoint, as HTML.
        """
        for sentence in (first, other):
            self.tokens(sentence)
        return self._of_each(lambda loaded: (self._drawn(loaded, first, other), []))

    def _cached(self, per_model: int, compute: Callable[..., T]) -> Callable[..., T]:
        """Remember the last results of a function of a checkpoint; one thread at a time computes
        them.
        """

        def locked(*arguments: Any, **how: Any) -> T:
            # neither models nor tokenizers may be used by several threads at once
            with self._lock:
                return compute(*arguments, **how)

        return lru_cache(per_model * len(self.models))(locked)

    def _of_each(
        self, find: Callable[[LoadedModel], tuple[T, list[str]]]
    ) -> tuple[list[T], list[str]]:
        """Return what is found in each checkpoint, and all remarks; why nothing is found in one is
        a remark, too.
        """
        results: list[T] = []
        remarks: list[str] = []
        for loaded in self.models:
            try:
                of_model, more = find(loaded)
                results.append(of_model)
                remarks += more
            except (ValueError, CheckpointError) as error:
                remarks.append(str(error))
        return results, remarks

    def _ids(self, loaded: LoadedModel, sentence: str) -> tuple[int, ...]:
        """Return the tokens of a sentence in a checkpoint, if it has some and not too many."""
        if not sentence.strip():
            raise ValueError("expected a sentence, got nothing; type one")
        with self._lock:
            ids = encode_sentence(loaded, sentence)
        if len(ids) > self.max_tokens:
            raise ValueError(
                f"expected a sentence of at most {self.max_tokens} tokens for {loaded.name}, got "
                f"{len(ids)}; shorten it, or start with a larger --max-tokens"
            )
        return tuple(ids)


@styled
def _picture(name: str, first: TokenTrajectory, other: TokenTrajectory) -> str:
    """Return the study's figure of two sentences' paths as an element of HTML."""
    file = StringIO()
    paths_figure(name, first, other).savefig(file, format="svg")
    data = b64encode(file.getvalue().encode()).decode()
    return f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(name)}: paths of the tokens">'


def _same_place(first: Sequence[str], other: Sequence[str], position: int) -> int | None:
    """Return the position of one checkpoint's token among another's tokens; None if there is no
    such token.
    """
    if first == other:
        return position
    # each tokenizer marks beginnings or continuations of words in its own way
    bare = [[name.strip("▁#").casefold() for name in names] for names in (first, other)]
    return next((b for a, b, equal in match_tokens(*bare) if equal and a == position), None)

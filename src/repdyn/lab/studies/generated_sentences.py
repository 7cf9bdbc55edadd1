"""Made-up sentences that differ in the order of their words alone: simple and complex.

The study of semantic convergence (Lee 2024, Fractal and Fractional 8(10):552) sets *simple*
sentences, random sequences of words, against *complex* ones, which a grammar generates. Vocabulary
and grammar here are our own; with n for the number, singular or plural, that a noun phrase and its
verb share:

    S      -> NOM(n) REL(n) VP(n) | C SUBORDINATOR C | NP(n) CV(n) that C
    C      -> NP(n) VP(n)
    NP(n)  -> NOM(n) [REL(n) | PREPOSITION the PLACE]
    NOM(n) -> DETERMINER(n) [ADJECTIVE] NOUN(n)
    REL(n) -> who VP(n) | that VP(n) | that NOM(m) TV(m)
    VP(n)  -> IV(n) [ADVERB] | TV(n) NP(m) | CV(n) that C

The simple sentences of a seed are the very words of its complex ones, shuffled, and cut to the same
lengths. All is in lower case and without commas, so that a word looks the same wherever it stands.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from repdyn.probe import Probe
from repdyn.probe.design import BATCH_VECTORS, DENSE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CATEGORIES = json.loads(Path(__file__).with_name("vocabulary.json").read_text(encoding="utf-8"))
VOCABULARY: dict[str, tuple[str, ...]] = {
    name: tuple(words.split()) for name, words in _CATEGORIES.items()
}
"""The words of both kinds, by category; nouns and verbs in the same order in both numbers."""

KINDS = ("simple", "complex", "random")
_NUMBERS = ("singular", "plural")
_SHORTEST = 8
"""Words of the shortest of the long sentences."""
_FEWEST_WORDS = 100
_N_BATCHES = 4
_DEEPEST = 2
_ADJECTIVE = 0.3
_ADVERB = 0.4
_PLACE = 0.25
_RELATIVE = 0.25


def short_sentences(n: int, seed: int = 0) -> dict[str, list[str]]:
    """Generate grammatical sentences, each with a relative or subordinate clause inside another,
    and their words in random order, in as many sentences of the same lengths.

    >>> short_sentences(1)["complex"]
    ['these singers that many women admire think that every tall boy runs quietly.']
    >>> short_sentences(1)["simple"]
    ['runs singers that every that quietly think admire boy these many women tall.']
    """
    state = np.random.RandomState(seed)
    ordered = [_Grammar(state).sentence() for _ in range(n)]
    words = [word for sentence in ordered for word in sentence]
    shuffled = iter([words[place] for place in state.permutation(len(words))])
    simple = [[next(shuffled) for _ in sentence] for sentence in ordered]
    return {"simple": [*map(_as_text, simple)], "complex": [*map(_as_text, ordered)]}


def long_sentences(
    tokenizer: PreTrainedTokenizerBase, n: int, longest: int, seed: int = 0
) -> dict[str, list[str]]:
    """Generate ``n`` long sentences of each kind, of 8 words to as many as ``longest`` tokens hold,
    equally often.

    Complex ones are sentences of the grammar joined by "and". A third kind, "random", has words of
    the tokenizer's vocabulary in their place: the simple sentences of the source.
    """
    state = np.random.RandomState(seed)
    # the full stop is a token too
    n_tokens = longest - tokenizer.num_special_tokens_to_add() - 1
    room = int(n_tokens / _tokens_per_word(tokenizer))
    if room < _SHORTEST:
        raise ValueError(
            f"expected room for {_SHORTEST} words in {longest} tokens, got {room}; raise the length"
        )
    ordered = []
    for length in state.randint(_SHORTEST, room + 1, n):
        words = _Grammar(state).sentence()
        while len(words) < length:
            words += ["and", *_Grammar(state).sentence()]
        ordered.append(words[:length])
    kinds = {
        "simple": [[words[n] for n in state.permutation(len(words))] for words in ordered],
        "complex": ordered,
    }
    if own_words := _words_of_vocabulary(tokenizer):
        kinds["random"] = [
            [own_words[place] for place in state.randint(len(own_words), size=len(words))]
            for words in ordered
        ]
    return {kind: [_as_text(words) for words in sentences] for kind, sentences in kinds.items()}


def _tokens_per_word(tokenizer: PreTrainedTokenizerBase) -> float:
    """Return how many tokens a word of the grammar has on average."""
    every_word = sorted({word for words in VOCABULARY.values() for word in words})
    ids = tokenizer(" ".join(every_word), add_special_tokens=False)["input_ids"]
    return len(ids) / len(every_word)


def _words_of_vocabulary(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the words of at least 2 letters that are a single token; empty where they are fewer
    than 100.
    """
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    words = sorted(
        {text.strip() for text in texts if text.strip().isalpha() and len(text.strip()) > 1}
    )
    before, *ids = tokenizer(["the", *(f"the {word}" for word in words)], add_special_tokens=False)[
        "input_ids"
    ]
    single_tokens = [
        word for word, tokens in zip(words, ids, strict=True) if len(tokens) == len(before) + 1
    ]
    return single_tokens if len(single_tokens) >= _FEWEST_WORDS else []


def sentence_probe(
    tokenizer: PreTrainedTokenizerBase,
    n: int = 1000,
    *,
    sequence_length: int = 256,
    are_long: bool = False,
    seed: int = 0,
) -> Probe:
    """Build a probe of n made-up sentences of each kind, one per sequence, with a class for each
    kind.

    A batch has as many vectors of each class, at most 4096. First positions and special tokens are
    in no class. Every sentence must fit into the ``sequence_length``, unless they ``are_long``:
    :func:`long_sentences`, which are cut.
    """
    if are_long:
        kinds = long_sentences(tokenizer, n, sequence_length, seed)
        kinds = {
            kind: [_cut(tokenizer, one, sequence_length) for one in of_kind]
            for kind, of_kind in kinds.items()
        }
    else:
        kinds = short_sentences(n, seed)
    texts = [sentence for sentences in kinds.values() for sentence in sentences]
    sequences = [tokenizer(text, verbose=False)["input_ids"] for text in texts]
    if too_long := sum(len(sequence) > sequence_length for sequence in sequences):
        raise ValueError(
            f"expected sequences that hold a sentence each, got sequence_length={sequence_length}, "
            f"which cuts {too_long} of them; raise sequence_length"
        )
    whole = Probe.from_tokens(
        sequences,
        special_ids=tokenizer.all_special_ids,
        max_vectors=3,
        n_windows=len(sequences),
        seed=seed,
        pad_id=cast(int, tokenizer.pad_token_id or 0),
        name=" and ".join(f"{n} {kind}" for kind in kinds) + " sentences",
        # a sentence is so short that its tokens fill one batch only together with all others
        design=DENSE,
    )
    kind_of_token = torch.repeat_interleave(torch.arange(len(texts)) // n, whole.lengths)
    classes = {
        kind: (kind_of_token == number) & ~whole.is_sink for number, kind in enumerate(kinds)
    }
    fewest = min(int(members.sum()) for members in classes.values())
    return replace(
        whole,
        batch_vectors=min(BATCH_VECTORS, fewest // _N_BATCHES),
        n_batches=_N_BATCHES,
        classes=classes,
    )


def _cut(tokenizer: PreTrainedTokenizerBase, sentence: str, longest: int) -> str:
    """Return a sentence without its last words where it has too many tokens."""
    words = sentence.removesuffix(".").split()
    while len(tokenizer(_as_text(words))["input_ids"]) > longest:
        words.pop()
    return _as_text(words)


def _as_text(words: list[str]) -> str:
    return f"{' '.join(words)}."


@dataclass(frozen=True)
class _Grammar:
    """Writes sentences: a method for each symbol of the grammar above, ``depth`` counting the
    clauses it stands in.
    """

    state: np.random.RandomState

    def sentence(self) -> list[str]:
        if (kind := self.state.randint(3)) == 1:
            return [*self._clause(1), self._one("subordinator"), *self._clause(1)]
        number = self._number()
        if kind == 0:
            return [*self._noun(number), *self._relative(number, 1), *self._verb_phrase(number, 1)]
        subject = self._noun_phrase(number, 1)
        return [
            *subject,
            self._one("clausal verb", number),
            self._one("complementizer"),
            *self._clause(1),
        ]

    def _clause(self, depth: int) -> list[str]:
        number = self._number()
        return [*self._noun_phrase(number, depth), *self._verb_phrase(number, depth)]

    def _noun_phrase(self, number: str, depth: int) -> list[str]:
        noun = self._noun(number)
        if depth < _DEEPEST and self._happens(_RELATIVE):
            return [*noun, *self._relative(number, depth + 1)]
        if self._happens(_PLACE):
            return [*noun, self._one("preposition"), "the", self._one("place")]
        return noun

    def _noun(self, number: str) -> list[str]:
        adjective = [self._one("adjective")] if self._happens(_ADJECTIVE) else []
        return [self._one("determiner", number), *adjective, self._one("noun", number)]

    def _relative(self, number: str, depth: int) -> list[str]:
        if self._happens(0.5):
            return [self._one("relative pronoun"), *self._verb_phrase(number, depth)]
        of_subject = self._number()
        return ["that", *self._noun(of_subject), self._one("transitive verb", of_subject)]

    def _verb_phrase(self, number: str, depth: int) -> list[str]:
        kind = self.state.randint(3 if depth < _DEEPEST else 2)
        if kind == 0:
            adverb = [self._one("adverb")] if self._happens(_ADVERB) else []
            return [self._one("intransitive verb", number), *adverb]
        if kind == 1:
            return [self._one("transitive verb", number), *self._noun_phrase(self._number(), depth)]
        return [
            self._one("clausal verb", number),
            self._one("complementizer"),
            *self._clause(depth + 1),
        ]

    def _one(self, category: str, number: str = "") -> str:
        words = VOCABULARY[f"{category}, {number}" if number else category]
        return words[self.state.randint(len(words))]

    def _number(self) -> str:
        return _NUMBERS[self.state.randint(2)]

    def _happens(self, probability: float) -> bool:
        return self.state.random_sample() < probability

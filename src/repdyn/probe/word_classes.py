"""Map tokens to words, and words to classes: function and content, frequent and rare.

A word is a sequence of letters, possibly with apostrophes inside: "don't", "naïve". Letters next to
a digit or an underscore ("20th", "m²") form no word. Case is ignored. A token belongs to the first
word that it shares a character with; special tokens, punctuation and numbers belong to none. This
suits languages with spaces between words; function words are only known for English.

Word frequencies are counted in the texts of the probe itself. General frequency lists such as
wordfreq would add a large dependency, and would not cover other languages, code, or artificial
vocabularies.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The classes follow Quirk, Greenbaum, Leech, Svartvik 1985, A Comprehensive Grammar of the English
# Language, chapter 2 (determiners, pronouns, prepositions, conjunctions, auxiliaries), with the
# particles "not", "to" and "there" and the wh-adverbs added. A word of several classes is listed in
# its most frequent one; the noun "will" counts as one.
_CLASSES = {
    "articles": "a an the",
    "determiners": """
        all another any both each either enough every few fewer fewest half least less many more
        most much neither no other others several some such that these this those what whatever
        which whichever whose
    """,
    "pronouns": """
        i me my mine myself you your yours yourself yourselves he him his himself she her hers
        herself it its itself we us our ours ourselves they them their theirs themselves one oneself
        who whom whoever whomever none anybody anyone anything everybody everyone everything nobody
        nothing somebody someone something
    """,
    "prepositions": """
        about above across after against along alongside amid among amongst around as at before
        behind below beneath beside besides between beyond by despite down during except for from in
        inside into like near of off on onto out outside over per through throughout till toward
        towards under underneath until up upon via with within without
    """,
    "conjunctions": """
        although and because but if lest nor once or since so than though unless whereas whether
        while whilst yet
    """,
    "auxiliaries": """
        am are be been being is was were do does did doing done has had have having can cannot could
        may might must ought shall should will would ain't aren't can't couldn't didn't doesn't
        don't hadn't hasn't haven't isn't mightn't mustn't needn't oughtn't shan't shouldn't wasn't
        weren't won't wouldn't
    """,
    "particles": "not to there how when whenever where wherever why",
}
_CLITICS = frozenset({"s", "m", "re", "ve", "ll", "d"})

FUNCTION_WORDS = frozenset(word for words in _CLASSES.values() for word in words.split())
"""In lower case, with straight apostrophes."""
NO_WORD = -1
FREQUENT, RARE = 0.5, 0.9
_APOSTROPHE = "\N{RIGHT SINGLE QUOTATION MARK}"
_LETTER = r"[^\W\d_]"
# Possessive quantifiers, so that backtracking does not match the first letters of "abc1" as a word.
_WORD = re.compile(rf"(?<!\w){_LETTER}++(?:['{_APOSTROPHE}]{_LETTER}++)*+(?!\w)")
_INT64_MAX = np.iinfo(np.int64).max


def is_function_word(word: str) -> bool:
    """Return whether a word is a function word, alone or with a contracted verb attached.

    >>> [is_function_word(word) for word in ("the", "don't", "they're", "dog", "dog's")]
    [True, True, True, False, False]
    """
    stem, _, clitic = word.partition("'")
    return word in FUNCTION_WORDS or (stem in FUNCTION_WORDS and clitic in _CLITICS)


class Lexicon:
    """The words read so far, in order of first occurrence, with their counts."""

    def __init__(self) -> None:
        self.words: list[str] = []
        """In lower case, with straight apostrophes."""
        self._numbers: dict[str, int] = {}
        self._forms: dict[str, int] = {}
        self._counts: Counter[int] = Counter()

    @property
    def counts(self) -> np.ndarray:
        """Return (n_words,) int64: number of occurrences of each word."""
        return np.array([self._counts[number] for number in range(len(self.words))], dtype=np.int64)

    def read(self, text: str) -> np.ndarray:
        """Find and count the words of a text, and return the first character of each, the one after
        its last, and its index in the lexicon: (3, n_words) int64, in ascending order."""
        # an array, because a list of so many numbers would take ten times the memory of the text
        spans = array("q")
        for match in _WORD.finditer(text):
            form = match[0]
            if form not in self._forms:
                self._forms[form] = self._number(form)
            if self._forms[form] != NO_WORD:
                spans.extend((match.start(), match.end(), self._forms[form]))
        self._counts.update(spans[2::3])
        return np.array(spans, dtype=np.int64).reshape(-1, 3).T

    def numbers_of(self, phrase: str) -> list[int]:
        """Return the indices of the words of a phrase; empty if one of them was never read."""
        words = [match[0].replace(_APOSTROPHE, "'").lower() for match in _WORD.finditer(phrase)]
        if any(word not in self._numbers for word in words):
            return []
        return [self._numbers[word] for word in words]

    def classes(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return which words are in each class, (n_words,) bool."""
        by_name: dict[str, np.ndarray] = {}
        if not {"function", "content"}.isdisjoint(names):
            is_function = np.array([is_function_word(word) for word in self.words], dtype=bool)
            by_name |= {"function": is_function, "content": ~is_function}
        if not {"frequent", "rare"}.isdisjoint(names):
            counts = self.counts
            least_frequent, most_rare = frequency_cuts(counts)
            by_name |= {"frequent": counts >= least_frequent, "rare": counts <= most_rare}
        return {name: by_name[name] for name in names}

    def _number(self, form: str) -> int:
        plain = form.replace(_APOSTROPHE, "'")
        # superscripts, among others, are alphanumeric, but neither digits nor letters
        if not plain.replace("'", "").isalpha():
            return NO_WORD
        word = plain.lower()
        if word not in self._numbers:
            self._numbers[word] = len(self.words)
            self.words.append(word)
        return self._numbers[word]


@dataclass(frozen=True)
class TokenWords:
    """The words of a probe's tokens."""

    numbers: np.ndarray
    """(n_tokens,) int64: index in the lexicon of each token's word, -1 for none."""
    lexicon: Lexicon

    def classes(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Return which tokens belong to words of each class, (n_tokens,) bool."""
        if not bool((self.numbers != NO_WORD).any()):
            raise ValueError(
                f"expected tokens that belong to words, got {len(self.numbers)} that overlap none "
                f"of the {self.lexicon.counts.sum()} words of the texts; give prose, or update the "
                "package tokenizers, of which old versions give wrong character offsets for some "
                "models"
            )
        # index -1, no word, selects the False appended at the end
        words = {
            name: np.append(members, False) for name, members in self.lexicon.classes(names).items()
        }
        return {name: torch.from_numpy(members[self.numbers]) for name, members in words.items()}

    def in_phrases(
        self, phrases: Mapping[str, Sequence[str]], windows: np.ndarray
    ) -> dict[str, Tensor]:
        """Return which tokens belong to a phrase of each class, words with spaces between them:
        (n_tokens,) bool.

        The words of a phrase follow each other in one window, in any case; between them may be what
        is no word. The window of each token is in ``windows``, (n_tokens,).
        """
        # a word of several tokens counts once, where it begins
        is_word = self.numbers != NO_WORD
        begins = is_word & np.append(True, (np.diff(self.numbers) != 0) | (np.diff(windows) != 0))
        word_of_token = (np.cumsum(begins) - 1)[is_word]
        classes = {}
        for name, of_class in phrases.items():
            numbers = filter(None, map(self.lexicon.numbers_of, of_class))
            is_in_phrase = _in_any_phrase(self.numbers[begins], windows[begins], numbers)
            members = np.zeros(len(self.numbers), dtype=bool)
            members[is_word] = is_in_phrase[word_of_token]
            classes[name] = torch.from_numpy(members)
        return classes


def _in_any_phrase(
    words: np.ndarray, windows: np.ndarray, phrases: Iterable[Sequence[int]]
) -> np.ndarray:
    """Return which words of a text, (n_words,), belong to a phrase, whose words follow each other
    in one window.
    """
    is_in_phrase = np.zeros(len(words), dtype=bool)
    for phrase in phrases:
        n_starts = len(words) - len(phrase) + 1
        if n_starts < 1:
            continue
        # by word of the phrase, where it would stand for each start
        spans = [slice(offset, offset + n_starts) for offset in range(len(phrase))]
        matches = windows[spans[0]] == windows[spans[-1]]
        for span, number in zip(spans, phrase, strict=True):
            matches &= words[span] == number
        for span in spans:
            is_in_phrase[span] |= matches
    return is_in_phrase


def frequency_cuts(counts: Iterable[int]) -> tuple[int, int]:
    """Return the lowest count of a frequent word and the highest count of a rare one, which is
    lower.

    In descending order of frequency, the frequent words are those up to the one at which they make
    up half of all occurrences; the rare words are those from the one at which 90% are exceeded.
    Words that occur equally often are treated alike, so either class may slightly exceed its share.

    >>> frequency_cuts([50, 20, 10, 10, 5, 3, 1, 1])
    (50, 5)
    """
    ordered = np.sort(np.fromiter(counts, dtype=np.int64))[::-1]
    covered = np.cumsum(ordered)
    total = int(covered[-1]) if len(covered) else 0
    if total:
        least_frequent = int(ordered[np.searchsorted(covered, FREQUENT * total, side="left")])
        most_rare = int(ordered[np.searchsorted(covered, RARE * total, side="right")])
        if most_rare < least_frequent:
            return least_frequent, most_rare
    raise ValueError(
        f"expected texts in which some words are more frequent than others, got {total} "
        f"occurrences of {len(ordered)} words that cannot be divided into frequent and rare ones; "
        "give more text"
    )


def words_of_tokens(
    text: str, tokenizer: PreTrainedTokenizerBase, lexicon: Lexicon
) -> tuple[list[int], np.ndarray]:
    """Return a text's token ids, without special tokens, and the word of each, (n_tokens,) int64,
    -1 for none.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            "expected a fast tokenizer, which gives character offsets, got "
            f"{type(tokenizer).__name__}; load the model's tokenizer.json with AutoTokenizer, or "
            "omit the word classes and add others with Probe.with_classes"
        )
    encoded = tokenizer(text, add_special_tokens=False, verbose=False, return_offsets_mapping=True)
    ids = cast("list[int]", encoded["input_ids"])
    offsets = np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
    return ids, _first_words(lexicon.read(text), offsets[:, 0], offsets[:, 1])


def _first_words(words: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return which of the words that were read first overlaps each range of characters, -1 for
    none.
    """
    # a sentinel after the last word, which no range overlaps
    begins, stops, numbers = np.append(words, [[_INT64_MAX], [_INT64_MAX], [NO_WORD]], axis=1)
    first = np.searchsorted(stops, starts, side="right")
    return np.where(begins[first] < ends, numbers[first], NO_WORD)


def words_of_bytes(data: bytes, lexicon: Lexicon) -> np.ndarray:
    """Return the word of each byte of a UTF-8 text, (len(data),) int64, -1 for none.

    >>> words_of_bytes("Né à 9".encode(), Lexicon()).tolist()
    [0, 0, 0, -1, 1, 1, -1, -1]
    """
    # each byte that is not valid UTF-8 becomes one character, which is not a letter
    text = data.decode(errors="surrogateescape")
    positions = np.arange(len(text))
    words = _first_words(lexicon.read(text), positions, positions + 1)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    n_bytes = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
    n_bytes[(codes >= 0xDC80) & (codes <= 0xDCFF)] = 1
    return np.repeat(words, n_bytes)

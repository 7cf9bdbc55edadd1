"""Texts as windows of token ids, whatever the tokenizer puts around them; and the words their tokens belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from reprlib import repr as briefly
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from repdyn.words import NO_WORD, Lexicon, TokenWords, words_of_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def windows_of(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, sequence_length: int, needed: int
) -> list[list[int]]:
    """Windows of at most ``sequence_length`` ids, the tokenizer's own prefix and suffix included in each.

    Args:
        texts: any number of texts of any length; a window never spans two.
        tokenizer: any Hugging Face tokenizer.
        sequence_length: tokens in a window.
        needed: text tokens wanted; where there are more, windows spread evenly over all are kept.

    Raises:
        ValueError: a bare string, something that is no text or that UTF-8 cannot write, or a ``sequence_length`` that
            the special tokens fill already.
    """
    frame = _Frame.of(texts, tokenizer, sequence_length)
    windows: list[list[int]] = []
    for text in _writable(texts):
        ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        windows += [frame.around(ids[some]) for some in frame.parts(len(ids))]
    return [windows[i] for i in _spread(windows, frame.sinks, needed)]


def sequences_of_texts(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, sequence_length: int, needed: int, with_words: bool
) -> tuple[Tensor, Tensor, TokenWords | None]:
    """The windows of :func:`windows_of` one after the other, and the words their tokens belong to.

    Args:
        texts, tokenizer, sequence_length, needed: as for :func:`windows_of`; words are counted in all of the texts.
        with_words: whether the words are asked for.

    Returns:
        Tokens (n_tokens,) and lengths (n_sequences,), both int64; words, or None.

    Raises:
        ValueError: as :func:`windows_of`; or words of a tokenizer that does not tell where its tokens stand in a text.
    """
    if with_words:
        windows, words = _worded_windows(texts, tokenizer, sequence_length, needed)
    else:
        windows, words = windows_of(texts, tokenizer, sequence_length, needed), None
    tokens = torch.tensor([token for window in windows for token in window], dtype=torch.long)
    return tokens, torch.tensor([len(window) for window in windows], dtype=torch.long), words


def _worded_windows(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, sequence_length: int, needed: int
) -> tuple[list[list[int]], TokenWords]:
    frame = _Frame.of(texts, tokenizer, sequence_length)
    lexicon = Lexicon()
    windows: list[list[int]] = []
    words: list[np.ndarray] = []
    for text in _writable(texts):
        ids, numbers = words_of_tokens(text, tokenizer, lexicon)
        parts = frame.parts(len(ids))
        windows += [frame.around(ids[some]) for some in parts]
        words += [np.pad(numbers[some], frame.widths, constant_values=NO_WORD) for some in parts]
    kept = _spread(windows, frame.sinks, needed)
    of_kept = [np.empty(0, dtype=np.int64), *(words[i] for i in kept)]
    return [windows[i] for i in kept], TokenWords(np.concatenate(of_kept), lexicon)


@dataclass(frozen=True)
class _Frame:
    """What a tokenizer puts around each window, and the room that leaves."""

    prefix: list[int]
    suffix: list[int]
    body: int
    """Text tokens in a whole window."""

    @classmethod
    def of(cls, texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, sequence_length: int) -> _Frame:
        if isinstance(texts, str):
            raise ValueError("expected texts to be an iterable of strings, got a single string; pass [text]")
        prefix, suffix = _affixes(tokenizer)
        body = sequence_length - len(prefix) - len(suffix)
        if body < 1:
            raise ValueError(
                f"expected sequence_length > {len(prefix) + len(suffix)}, the special tokens this tokenizer adds, "
                f"got {sequence_length}"
            )
        return cls(prefix, suffix, body)

    @property
    def widths(self) -> tuple[int, int]:
        return len(self.prefix), len(self.suffix)

    @property
    def sinks(self) -> int:
        """Tokens of each window that are no text: as many as the special ones, and the first in any case."""
        return max(1, sum(self.widths))

    def parts(self, n_tokens: int) -> list[slice]:
        """Where the windows of a text of so many tokens lie in it."""
        return [slice(start, start + self.body) for start in range(0, n_tokens, self.body)]

    def around(self, ids: list[int]) -> list[int]:
        return self.prefix + ids + self.suffix


def _affixes(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The ids a tokenizer puts before and after a text, found by looking at what it does to one."""
    bare: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
    full: list[int] = tokenizer("a")["input_ids"]
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return full[:start], full[start + len(bare) :]
    raise ValueError(
        f"expected a tokenizer that adds special tokens around a text, got one that turns {bare} into {full}; "
        "tokenize yourself and pass the ids to Probe.from_tokens"
    )


def _spread(windows: Sequence[list[int]], sinks: int, needed: int) -> list[int]:
    """Numbers of evenly spaced windows with ``needed`` tokens, ``sinks`` of each not counted; of all if there are
    fewer."""
    total = sum(len(window) - sinks for window in windows)
    if total <= needed:
        return list(range(len(windows)))
    count = -(-len(windows) * needed // total)
    return np.unique(np.linspace(0, len(windows) - 1, count).round().astype(int)).tolist()


def _writable(texts: Iterable[str]) -> Iterator[str]:
    """The texts, each looked at before a tokenizer is: what is no text, or holds half of a surrogate pair, no
    tokenizer takes."""
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"expected texts, got {type(text).__name__} as number {number}; decode bytes first")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"expected texts that UTF-8 can write, got {briefly(error.object[error.start : error.end])} in number "
                f"{number}; decode files with errors='replace'"
            ) from error
        yield text

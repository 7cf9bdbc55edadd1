"""Texts as windows of token ids, whatever the tokenizer puts around them; and the words their tokens belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from reprlib import repr as briefly
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from repdyn.probe.design import TOKENS_PER_VECTOR, Design
from repdyn.probe.word_classes import NO_WORD, Lexicon, TokenWords, words_of_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class WindowPlan:
    """How texts are cut into windows, and how many of them are kept."""

    n_tokens: int
    """Text tokens wanted in all, at least."""
    n_windows: int = 0
    """Windows wanted, at least."""
    window_tokens: int | None = None
    """Tokens in a window, special ones included; longer pieces are cut up, or truncated where characters decide."""
    window_characters: int | None = None
    """Characters of text in a window; None where ``window_tokens`` alone decides."""

    @classmethod
    def by_design(
        cls, design: Design, max_vectors: int, batch_vectors: int | None, sequence_length: int | None
    ) -> WindowPlan:
        """Plan the windows that a design takes for so many vectors, of the given length rather than its own."""
        tokens = sequence_length or design.window_tokens
        sizes = design.batch_plan(max_vectors, batch_vectors, n_tokens=0)
        n_windows = design.windows_wanted(sizes["n_batches"], sizes["batch_vectors"], tokens or 1)
        n_tokens = 0 if design.n_windows else int(max_vectors * TOKENS_PER_VECTOR)
        return cls(n_tokens, n_windows, tokens, design.window_characters)


def windows_of(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, plan: WindowPlan) -> list[list[int]]:
    """Cut texts into windows of token ids, the tokenizer's own prefix and suffix included in each.

    Args:
        texts: any number of texts of any length; a window never spans two.
        tokenizer: any Hugging Face tokenizer.
        plan: size and number of windows; where there are more than wanted, those kept are spread evenly over all.

    Raises:
        ValueError: a bare string, something that is no text or that UTF-8 cannot write, or windows that the special
            tokens fill already.
    """
    frame = _Frame.of(texts, tokenizer, plan)
    windows: list[list[int]] = []
    whole: list[bool] = []
    for text in _pieces(texts, plan):
        ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        parts = frame.parts(len(ids))
        windows += [frame.around(ids[some]) for some in parts]
        whole += frame.are_whole(parts, len(text), len(ids))
    return [windows[i] for i in _spread(windows, whole, frame.sinks, plan)]


def sequences_of_texts(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, plan: WindowPlan, with_words: bool
) -> tuple[Tensor, Tensor, TokenWords | None]:
    """Join the windows of :func:`windows_of`, with the words that their tokens belong to.

    Args:
        texts, tokenizer, plan: as for :func:`windows_of`; words are counted in all of the texts.
        with_words: whether the words are asked for.

    Returns:
        Tokens (n_tokens,) and lengths (n_sequences,), both int64; words, or None.

    Raises:
        ValueError: as :func:`windows_of`; or words of a tokenizer that does not tell where its tokens stand in a text.
    """
    if with_words:
        windows, words = _worded_windows(texts, tokenizer, plan)
    else:
        windows, words = windows_of(texts, tokenizer, plan), None
    tokens = torch.tensor([token for window in windows for token in window], dtype=torch.long)
    return tokens, torch.tensor([len(window) for window in windows], dtype=torch.long), words


def _worded_windows(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, plan: WindowPlan
) -> tuple[list[list[int]], TokenWords]:
    frame = _Frame.of(texts, tokenizer, plan)
    lexicon = Lexicon()
    windows: list[list[int]] = []
    whole: list[bool] = []
    words: list[np.ndarray] = []
    for text in _pieces(texts, plan):
        ids, numbers = words_of_tokens(text, tokenizer, lexicon)
        parts = frame.parts(len(ids))
        windows += [frame.around(ids[some]) for some in parts]
        whole += frame.are_whole(parts, len(text), len(ids))
        words += [np.pad(numbers[some], frame.widths, constant_values=NO_WORD) for some in parts]
    kept = _spread(windows, whole, frame.sinks, plan)
    of_kept = [np.empty(0, dtype=np.int64), *(words[i] for i in kept)]
    return [windows[i] for i in kept], TokenWords(np.concatenate(of_kept), lexicon)


def _pieces(texts: Iterable[str], plan: WindowPlan) -> Iterator[str]:
    """The texts, cut into pieces of so many characters where those decide."""
    size = plan.window_characters
    for text in _writable(texts):
        if size is None:
            yield text
        else:
            yield from (text[start : start + size] for start in range(0, len(text), size))


@dataclass(frozen=True)
class _Frame:
    """The special tokens a tokenizer puts around each window, and the room that leaves."""

    prefix: list[int]
    suffix: list[int]
    body: int | None
    """Text tokens in a whole window; None for all of a piece."""
    characters: int | None
    """Characters in a piece of text that is one window, of which what exceeds ``body`` is dropped; None where a text
    makes many windows."""

    @classmethod
    def of(cls, texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, plan: WindowPlan) -> _Frame:
        if isinstance(texts, str):
            raise ValueError("expected texts to be an iterable of strings, got a single string; pass [text]")
        prefix, suffix = _affixes(tokenizer)
        body = None if plan.window_tokens is None else plan.window_tokens - len(prefix) - len(suffix)
        if body is not None and body < 1:
            raise ValueError(
                f"expected sequence_length > {len(prefix) + len(suffix)}, the special tokens this tokenizer adds, "
                f"got {plan.window_tokens}"
            )
        return cls(prefix, suffix, body, plan.window_characters)

    @property
    def widths(self) -> tuple[int, int]:
        return len(self.prefix), len(self.suffix)

    @property
    def sinks(self) -> int:
        """Tokens of each window that are no text: as many as the special ones, and the first in any case."""
        return max(1, sum(self.widths))

    def parts(self, n_tokens: int) -> list[slice]:
        """Return the slice of each window within a piece of ``n_tokens`` tokens."""
        if n_tokens == 0:
            return []
        if self.characters is not None or self.body is None:
            return [slice(0, self.body)]
        return [slice(start, start + self.body) for start in range(0, n_tokens, self.body)]

    def are_whole(self, parts: Sequence[slice], n_characters: int, n_tokens: int) -> list[bool]:
        """Whether each window is as long as windows can be; at the end of a text there may be a shorter one."""
        if self.characters is not None:
            return [n_characters == self.characters] * len(parts)
        return [part.stop is None or part.stop <= n_tokens for part in parts]

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


def _spread(windows: Sequence[list[int]], whole: Sequence[bool], sinks: int, plan: WindowPlan) -> list[int]:
    """Choose evenly spaced windows that make up the plan, whole ones where they suffice; all if there are too few.

    Args:
        windows: to choose from.
        whole: whether each is as long as windows can be.
        sinks: tokens of each that are no text.
        plan: how many windows and tokens are wanted.
    """
    total = sum(len(window) - sinks for window in windows)
    count = max(plan.n_windows, -(-len(windows) * plan.n_tokens // max(total, 1)))
    if total <= plan.n_tokens or count >= len(windows):
        return list(range(len(windows)))
    found = [number for number, is_whole in enumerate(whole) if is_whole]
    found = found if len(found) >= count else list(range(len(windows)))
    return [found[place] for place in np.unique(np.linspace(0, len(found) - 1, count).round().astype(int))]


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

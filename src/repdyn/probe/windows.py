"""Cut texts into windows of token ids, with the special tokens of any tokenizer, and map the tokens
to words.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from reprlib import repr as briefly
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from repdyn.probe.design import Design
from repdyn.probe.word_classes import NO_WORD, Lexicon, TokenWords, words_of_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TokenizedWindows(NamedTuple):
    """Windows of token ids, and what is known of their tokens."""

    tokens: Tensor
    """(n_tokens,) int64: the concatenated windows."""
    lengths: Tensor
    """(n_windows,) int64: number of tokens in each window."""
    words: TokenWords | None = None
    """Words of the tokens, if requested."""
    bytes_per_token: float | None = None
    """Mean number of UTF-8 bytes of a token of the texts, without special tokens; None without any
    token.
    """

    def in_order_of(
        self, design: Design, special_ids: Sequence[int], seed: int
    ) -> TokenizedWindows:
        """Return the windows with their text tokens in random order if the design is shuffled;
        special tokens stay where they are, and words stay with their tokens."""
        if not design.shuffled:
            return self
        window = np.repeat(np.arange(len(self.lengths)), self.lengths.numpy())
        places = np.flatnonzero(~np.isin(self.tokens.numpy(), special_ids))
        random = np.random.default_rng(seed).random(len(places))
        order = np.arange(len(window))
        # sorted by window, and within each by a random number
        order[places] = places[np.lexsort((random, window[places]))]
        words = (
            None
            if self.words is None
            else TokenWords(self.words.numbers[order], self.words.lexicon)
        )
        return self._replace(tokens=self.tokens[order], words=words)


def tokenize_windows(
    texts: Iterable[str],
    tokenizer: PreTrainedTokenizerBase,
    design: Design,
    with_words: bool,
    *,
    n_tokens: int,
    n_windows: int,
) -> TokenizedWindows:
    """Cut texts into windows of the design's length, each with the tokenizer's own prefix and
    suffix.

    Of more windows than are needed for ``n_tokens`` text tokens and ``n_windows`` windows, evenly
    spaced ones are taken. Where the design counts characters, its ``window_tokens`` is the length
    to which windows are cut.
    """
    _require_texts(texts, tokenizer)
    with one_thread_for_tokenizers():
        prefix, suffix = _affixes(tokenizer)
    n_affixes = len(prefix), len(suffix)
    size = _text_tokens(design, sum(n_affixes))
    lexicon = Lexicon() if with_words else None
    windows: list[list[int]] = []
    is_full: list[bool] = []
    words: list[np.ndarray] = []
    n_bytes = 0
    n_ids = 0
    for text in _pieces(texts, design.window_characters):
        with one_thread_for_tokenizers():
            ids, numbers = _encoded(text, tokenizer, lexicon)
        n_bytes += len(text.encode())
        n_ids += len(ids)
        for window in _cuts(len(ids), size, design):
            windows.append(prefix + ids[window] + suffix)
            if design.window_characters is None:
                is_full.append(window.stop is None or window.stop <= len(ids))
            else:
                is_full.append(len(text) == design.window_characters)
            if numbers is not None:
                words.append(np.pad(numbers[window], n_affixes, constant_values=NO_WORD))
    # tokens of a window in ``is_sink``: the special ones, or the first one if there are none
    selected = _select_evenly(windows, is_full, max(1, sum(n_affixes)), n_tokens, n_windows)
    tokens = torch.tensor([token for i in selected for token in windows[i]], dtype=torch.long)
    lengths = torch.tensor([len(windows[i]) for i in selected], dtype=torch.long)
    bytes_per_token = n_bytes / n_ids if n_ids else None
    token_words = None
    if lexicon is not None:
        none = np.empty(0, dtype=np.int64)  # np.concatenate needs at least one array
        numbers = np.concatenate([none, *(words[i] for i in selected)])
        token_words = TokenWords(numbers, lexicon)
    return TokenizedWindows(
        tokens=tokens, lengths=lengths, words=token_words, bytes_per_token=bytes_per_token
    )


def _text_tokens(design: Design, n_special: int) -> int | None:
    """Return the number of text tokens in a full window; None for all tokens of a piece of text."""
    if design.window_tokens is None:
        return None
    if design.window_tokens <= n_special:
        raise ValueError(
            f"expected sequence_length > {n_special}, the special tokens this tokenizer adds, got "
            f"{design.window_tokens}"
        )
    return design.window_tokens - n_special


def _cuts(n_ids: int, size: int | None, design: Design) -> Iterator[slice]:
    """Yield the windows of a piece of text: of so many tokens each, or one of all where ``size`` is
    None.
    """
    # a piece of so many characters is one window; a whole text is split into several
    step = max(1, n_ids) if size is None or design.window_characters is not None else size
    for start in range(0, n_ids, step):
        yield slice(start, None if size is None else start + size)


def _require_texts(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError for one text in place of several, or for a tokenizer of another library."""
    if isinstance(texts, str):
        raise ValueError(
            "expected texts to be an iterable of strings, got a single string; pass [text]"
        )
    if not callable(tokenizer):
        raise ValueError(
            f"expected a tokenizer of transformers, got {type(tokenizer).__name__}; of another "
            "library encode the texts first: Probe.from_tokens([tokenizer.encode(text) for text in "
            "texts])"
        )


def _encoded(
    text: str, tokenizer: PreTrainedTokenizerBase, lexicon: Lexicon | None
) -> tuple[list[int], np.ndarray | None]:
    """Return a text's token ids, and the word of each where a lexicon counts them."""
    if lexicon is not None:
        return words_of_tokens(text, tokenizer, lexicon)
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], None


@contextmanager
def one_thread_for_tokenizers() -> Iterator[None]:
    """Tokenize without the thread pool of the package tokenizers, on which a process that is forked
    later would wait forever; the user's setting of it is restored."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _pieces(texts: Iterable[str], n_characters: int | None) -> Iterator[str]:
    """Yield the texts, split into pieces of so many characters unless that is None."""
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(
                f"expected texts, got {type(text).__name__} at index {number}; decode bytes first"
            )
        try:
            text.encode()  # tokenizers reject unpaired surrogates with unclear messages
        except UnicodeEncodeError as error:
            raise ValueError(
                "expected texts that UTF-8 can encode, got "
                f"{briefly(error.object[error.start : error.end])} at index {number}; decode files "
                "with errors='replace'"
            ) from error
        size = n_characters or max(1, len(text))
        yield from (text[start : start + size] for start in range(0, max(1, len(text)), size))


def _affixes(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the ids that a tokenizer adds before and after a text, found by tokenizing one."""
    bare: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
    full: list[int] = tokenizer("a")["input_ids"]
    # no attribute of a tokenizer says what it adds: templates are of any kind
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return full[:start], full[start + len(bare) :]
    raise ValueError(
        f"expected a tokenizer that adds special tokens around a text, got one that turns {bare} "
        f"into {full}; tokenize the texts and pass the ids to Probe.from_tokens"
    )


def _select_evenly(
    windows: Sequence[list[int]],
    is_full: Sequence[bool],
    n_sinks: int,
    n_tokens: int,
    n_windows: int,
) -> list[int]:
    """Return the indices of evenly spaced windows, as many as needed, full ones if they suffice;
    all if too few.
    """
    total = sum(len(window) - n_sinks for window in windows)
    count = max(n_windows, -(-len(windows) * n_tokens // max(total, 1)))
    if total <= n_tokens or count >= len(windows):
        return list(range(len(windows)))
    # windows of one length need no padding
    candidates = [i for i, full in enumerate(is_full) if full]
    candidates = candidates if len(candidates) >= count else list(range(len(windows)))
    return [
        candidates[i]
        for i in np.unique(np.linspace(0, len(candidates) - 1, count).round().astype(int))
    ]

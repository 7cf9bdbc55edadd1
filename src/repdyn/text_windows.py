"""Texts as windows of token ids, whatever the tokenizer puts around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

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
        ValueError: a bare string, or a ``sequence_length`` that the special tokens fill already.
    """
    if isinstance(texts, str):
        raise ValueError("expected texts to be an iterable of strings, got a single string; pass [text]")
    prefix, suffix = _affixes(tokenizer)
    body = sequence_length - len(prefix) - len(suffix)
    if body < 1:
        raise ValueError(
            f"expected sequence_length > {len(prefix) + len(suffix)}, the special tokens this tokenizer adds, "
            f"got {sequence_length}"
        )
    windows: list[list[int]] = []
    for text in texts:
        ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        windows += [prefix + ids[start : start + body] + suffix for start in range(0, len(ids), body)]
    return _spread(windows, sinks=max(1, len(prefix) + len(suffix)), needed=needed)


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


def _spread(windows: Sequence[list[int]], sinks: int, needed: int) -> list[list[int]]:
    """Evenly spaced windows with ``needed`` tokens, ``sinks`` of each not counted; all of them if there are fewer."""
    total = sum(len(window) - sinks for window in windows)
    if total <= needed:
        return list(windows)
    count = -(-len(windows) * needed // total)
    kept = np.unique(np.linspace(0, len(windows) - 1, count).round().astype(int))
    return [windows[i] for i in kept]

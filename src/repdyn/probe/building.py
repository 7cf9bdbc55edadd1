"""What the constructors of a probe share: windows of rows within the bound, and the fields that
follow from windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from repdyn.probe.bounds import bounded_windows
from repdyn.probe.content import sink_mask
from repdyn.probe.design import INDEPENDENT, MIN_BATCH_VECTORS, Design, fitting
from repdyn.probe.windows import TokenizedWindows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def windows_of_rows(
    rows: Sequence[np.ndarray],
    max_vectors: int,
    n_windows: int | None,
    sequence_length: int | None,
    equal_lengths: bool,
) -> tuple[Tensor, list[int], int | None]:
    """Return the windows of the rows of a data set within the bound: tokens (n_tokens,), the length
    of each, and that to which rows were cut, if any was.
    """
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    if not len(lengths):
        raise ValueError(
            "expected rows with tokens, got empty ones; pass another column with column="
        )
    windows = bounded_windows(
        lengths,
        INDEPENDENT,
        max_vectors=max_vectors,
        n_windows=n_windows,
        window_tokens=sequence_length,
        fills=True,
        has_equal_lengths=equal_lengths,
    )
    tokens = torch.from_numpy(np.concatenate(rows)[windows.tokens])
    return tokens, windows.lengths.tolist(), windows.cut_to


def ids_of(tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
    """Return what a tokenizer says of token ids, as arguments of :meth:`Probe.from_tokens`."""
    if tokenizer is None:
        return {}
    return {
        "special_ids": tokenizer.all_special_ids,
        "pad_id": tokenizer.pad_token_id or 0,
        "mask_id": tokenizer.mask_token_id,
    }


def fields_of_windows(
    windows: TokenizedWindows,
    design: Design,
    special_ids: tuple[int, ...],
    max_vectors: int,
    batch_vectors: int | None,
    seed: int,
) -> dict[str, Any]:
    """Return the fields of a probe of windows, its batches being the design's, or as many as there
    are tokens for.
    """
    n_tokens = len(windows.tokens)
    n_texts = n_tokens - int(sink_mask(windows.tokens, windows.lengths, special_ids).sum())
    # both subsets have equally many vectors, unless every token is a first position or special
    takes_all = design.n_windows is not None or n_texts < MIN_BATCH_VECTORS
    available = n_tokens if takes_all else n_texts
    return {
        "tokens": windows.tokens,
        "lengths": windows.lengths,
        "special_ids": special_ids,
        "seed": seed,
        "design": design,
        "bytes_per_token": windows.bytes_per_token,
        **fitting(design.batch_plan(max_vectors, batch_vectors, n_tokens), available),
    }

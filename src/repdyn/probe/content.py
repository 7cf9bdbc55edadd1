"""Validation and batches of a probe's tokens, classes and topics."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from repdyn.probe.design import LAYER_SUBSETS, MIN_BATCH_VECTORS, SUBSETS, VIEWS
from repdyn.utils.printing import plural

_RESERVED = (*SUBSETS, *LAYER_SUBSETS, *VIEWS)
_CLASS_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class ProbeBatch:
    """A batch of the probe's sequences as model input: both tensors (n_sequences, length),
    right-padded.
    """

    input_ids: Tensor
    attention_mask: Tensor
    positions: np.ndarray
    """(n_valid,) index of each token in the flattened padded batch."""
    tokens: np.ndarray
    """(n_valid,) index of each of these tokens in the probe."""
    means: np.ndarray | None = None
    """(n_sequences,) index of the mean over each sequence, as ``Probe.index_of_mean``; None if it
    is not needed.
    """
    inputs: Any = None
    """The model's inputs as they were given, of a probe of inputs; ``input_ids`` is then as wide as
    vectors are taken of each input, and means nothing."""
    draws: Any = None
    """(n_sequences, length) tensor: which position of each part of an input is taken; None of
    tokens.
    """
    rule_of: Callable[[str | None], Any] = lambda stack: None
    """Returns which positions of a stack count."""


def padded_batches(
    tokens: Tensor, lengths: Tensor, pad_id: int, n_sequences: int, n_needed: Tensor | None = None
) -> Iterator[ProbeBatch]:
    """Yield batches of at most ``n_sequences`` sequences; see :meth:`repdyn.Probe.batches`."""
    starts = torch.cumsum(lengths, 0) - lengths
    remaining = torch.arange(len(lengths))
    if n_needed is not None:
        # batch sequences of similar length together, without those of which no token is needed
        remaining = torch.argsort(n_needed, stable=True)
        is_needed = n_needed[remaining] > 0
        remaining = remaining[is_needed]
    extent = lengths if n_needed is None else n_needed
    while len(remaining):
        count = min(n_sequences, len(remaining))
        # no batch is square, or (batch, length) could not be told from (length, batch)
        while count == int(extent[remaining[:count]].max()) > 1:
            count -= 1
        batch = remaining[:count]
        remaining = remaining[count:]
        # all sequences of a batch are truncated at the same position, which adds no padding
        columns = torch.arange(int(extent[batch].max()))
        mask = columns < lengths[batch, None]
        indices = (starts[batch, None] + columns)[mask]
        input_ids = torch.full(mask.shape, pad_id, dtype=torch.long)
        input_ids[mask] = tokens[indices]
        yield ProbeBatch(
            input_ids=input_ids,
            attention_mask=mask.long(),
            positions=np.flatnonzero(mask.numpy().ravel()),
            tokens=indices.numpy(),
        )


def sink_mask(tokens: Tensor, lengths: Tensor, special_ids: tuple[int, ...]) -> Tensor:
    """Return (n_tokens,) bool: the first position of every sequence, and all special tokens."""
    is_sink = torch.from_numpy(np.isin(tokens.numpy(), special_ids))
    is_sink[torch.cumsum(lengths, 0) - lengths] = True
    return is_sink


def unpad(input_ids: Any, attention_mask: Any = None) -> tuple[Tensor, Tensor]:
    """Return tokens (n_tokens,) and lengths (n_sequences,), both int64; see
    :meth:`repdyn.Probe.from_tokens`.
    """
    ids, mask_of_lists = _as_tensor(input_ids, "input_ids")
    attention_mask = mask_of_lists if attention_mask is None else attention_mask
    if ids.ndim != 2 or ids.is_floating_point() or ids.numel() == 0:
        cut = "cut a corpus into windows, input_ids[: len(input_ids) // 80 * 80].reshape(-1, 80); "
        raise ValueError(
            "expected input_ids of shape (n_sequences, length) and integer type, got "
            f"{tuple(ids.shape)} of {ids.dtype}; {cut if ids.ndim == 1 else ''}a single sequence "
            "needs a leading dimension of 1"
        )
    mask = (
        torch.ones_like(ids)
        if attention_mask is None
        else _as_tensor(attention_mask, "attention_mask")[0]
    )
    if mask.shape != ids.shape:
        raise ValueError(
            f"expected an attention_mask of the shape of input_ids, {tuple(ids.shape)}, got "
            f"{tuple(mask.shape)}"
        )
    is_token = mask == 1
    is_other = ~(is_token | (mask == 0))
    if bool(is_other.any()):
        raise ValueError(
            "expected an attention_mask of ones at tokens and zeros at padding, or of True and "
            f"False, got {mask[is_other][0].item()}; of an additive mask, 0 at tokens and a large "
            "negative number at padding, pass mask == 0"
        )
    # one run of tokens changes the mask at most twice, with padding added at both ends
    flips = torch.diff(torch.nn.functional.pad(is_token.int(), (1, 1)), dim=1).ne(0).sum(dim=1)
    if bool((flips > 2).any()):
        raise ValueError(
            "expected padding on the left or on the right of each sequence, got masked positions "
            f"between the tokens of sequence {int(flips.gt(2).nonzero()[0])}; drop them from "
            "input_ids"
        )
    lengths = is_token.sum(dim=1)
    is_empty = lengths == 0
    return ids.long()[is_token], lengths[~is_empty]


def _as_tensor(values: Any, name: str) -> tuple[Tensor, Tensor | None]:
    """Return ids or a mask as a tensor of their own, and the mask of the padding that rows of
    several lengths get.
    """
    if isinstance(values, np.ndarray):
        # unsigned types lack operations
        dtype = np.int64 if values.dtype.kind in "ui" else None
        # a copy, since a file that is mapped read-only cannot back a tensor
        return torch.from_numpy(np.array(values, dtype=dtype)), None
    try:
        rows = [torch.as_tensor(row) for row in values] if isinstance(values, Sequence) else []
        if not rows or any(row.ndim != 1 for row in rows):
            return torch.as_tensor(values).cpu(), None
        lengths = torch.tensor([len(row) for row in rows])
        is_token = torch.arange(int(lengths.max())) < lengths[:, None]
        return pad_sequence(rows, batch_first=True).cpu(), None if is_token.all() else is_token
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"expected {name} as a tensor, an array or lists of integers, got "
            f"{type(values).__name__} ({error}); pass ids alone, "
            'batch["input_ids"] or [row["input_ids"] for row in dataset], of rows the training '
            "does not see; iterating its DataLoader would draw from its random numbers"
        ) from error


def validate_content(
    tokens: Tensor, lengths: Tensor, classes: Mapping[str, Tensor], topics: Tensor | None = None
) -> None:
    """Raise ValueError unless lengths (n_sequences,), classes by valid names, (n_tokens,) bool, and
    topics, (n_tokens,) int64 with -1 for none, fit the tokens, int64 and not negative."""
    within = (lengths >= 1) & (lengths <= len(tokens))
    if not bool(within.all()) or int(lengths.sum()) != len(tokens):
        raise ValueError(
            f"expected lengths of at least 1 that add up to {len(tokens)} tokens, got "
            f"{len(lengths)} that add up to {int(lengths.sum())}"
        )
    if bool((tokens < 0).any()):
        raise ValueError(
            f"expected token ids >= 0, got {int(tokens.min())}; mask such positions with "
            "attention_mask, or drop them"
        )
    for name, members in classes.items():
        if not isinstance(name, str) or not _CLASS_NAME.fullmatch(name) or name in _RESERVED:
            raise ValueError(
                "expected a class named in lower case, such as 'rare' or 'verbs_2', and not "
                f"{', '.join(map(repr, _RESERVED))}, got {name!r}; rename it"
            )
        if members.dtype != torch.bool or members.shape != tokens.shape:
            raise ValueError(
                f"expected the class {name!r} as torch.bool of shape {tuple(tokens.shape)}, got "
                f"{tuple(members.shape)} of {members.dtype}; give True or False for each token, in "
                "the order of probe.tokens"
            )
    if topics is None:
        return
    if topics.dtype != torch.int64 or topics.shape != tokens.shape:
        raise ValueError(
            f"expected topics as torch.int64 of shape {tuple(tokens.shape)}, got "
            f"{tuple(topics.shape)} of {topics.dtype}; give the number of each token's topic, in "
            "the order of probe.tokens, -1 where it has none"
        )
    if bool((topics < -1).any()) or not bool((topics >= 0).any()):
        raise ValueError(
            f"expected topics numbered from 0, and -1 for none, got {int(topics.min())} to "
            f"{int(topics.max())}; leave topics out where no token has one"
        )


def validate_subset_sizes(
    available: Mapping[str, int],
    batch_vectors: int,
    n_batches: int,
    full: Collection[str] = SUBSETS,
) -> None:
    """Raise ValueError unless every subset has enough tokens for its batches."""
    if batch_vectors < MIN_BATCH_VECTORS or n_batches < 1:
        raise ValueError(
            f"expected batch_vectors >= {MIN_BATCH_VECTORS} and at least one batch, got "
            f"batch_vectors={batch_vectors} and {n_batches} batches; raise max_vectors or lower "
            "batch_vectors"
        )
    for subset, n_tokens in available.items():
        if subset == "no_sink" and n_tokens < MIN_BATCH_VECTORS:
            continue  # windows of one token have first positions alone: no value, with a reason
        is_class = subset not in full
        least = MIN_BATCH_VECTORS if is_class else batch_vectors
        n_needed = least * n_batches
        if n_tokens >= n_needed:
            continue
        if is_class and n_tokens == 0:
            raise ValueError(
                f"the class {subset!r} has none of the {available['all']:,} tokens of the text; "
                "give a text in which it occurs, or leave the class out"
            )
        if n_tokens >= least:
            fewer = f"max_vectors={n_tokens // least * batch_vectors}"
        else:
            smaller = max(MIN_BATCH_VECTORS, n_tokens // n_batches)
            fewer = f"max_vectors={n_tokens}, batch_vectors={smaller}"
        raise ValueError(
            f"the {'class' if is_class else 'probe'} is too small: {n_batches} "
            f"{plural(n_batches, 'batch', 'batches')} of {least} vectors or more need {n_needed} "
            f"tokens, but {subset!r} has {n_tokens} of {available['all']}; give "
            f"{n_needed - n_tokens} more tokens of {subset!r}, or request "
            f"fewer vectors with {fewer}{', or leave the class out' if is_class else ''}"
        )

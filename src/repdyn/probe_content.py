"""What a probe is made of: sequences of tokens, and the file it is kept in, safetensors with the plan in its header."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as briefly
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

_PLAN = "repdyn_probe"
_COUNTS = ("batch_vectors", "n_batches", "seed")
_LARGEST_COUNT = (1 << 32) - 1
_LARGEST_ID = (1 << 63) - 1


@dataclass(frozen=True)
class ProbeContent:
    """What the file of a probe says, each part of the type it must have."""

    tokens: Tensor
    lengths: Tensor
    settings: Mapping[str, Any]
    """special_ids, batch_vectors, n_batches, seed, pad_id and name."""
    hash: str
    """As the file claims it."""


def write_probe(path: str | Path, tokens: Tensor, lengths: Tensor, settings: Mapping[str, Any], hash: str) -> None:
    """Write the parts of a probe, settings as in :class:`ProbeContent`."""
    save_file({"tokens": tokens, "lengths": lengths}, path, metadata={_PLAN: json.dumps(settings), "hash": hash})


def read_probe(path: str | Path) -> ProbeContent:
    """Read what :func:`write_probe` wrote.

    Raises:
        ValueError: the file is no such file, or says something else.
        OSError: there is none, or it cannot be read.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"expected a probe written by Probe.save, found no file at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if _PLAN not in metadata or "hash" not in metadata:
                raise ValueError(f"expected a probe written by Probe.save, got {path} without its header")
            return ProbeContent(
                file.get_tensor("tokens"), file.get_tensor("lengths"), _settings(metadata[_PLAN]), metadata["hash"]
            )
    except (SafetensorError, _NoPlanError) as error:
        raise ValueError(f"expected a probe written by Probe.save, got {path}: {error}") from error


class _NoPlanError(Exception):
    """The header is not a probe's."""


def _settings(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _NoPlanError(f"its plan is no JSON: {error}") from error
    wanted = {"special_ids", *_COUNTS, "pad_id", "name"}
    if not isinstance(found, dict) or set(found) != wanted:
        got = briefly(sorted(found) if isinstance(found, dict) else found)
        raise _NoPlanError(f"expected a plan of {', '.join(sorted(wanted))}, got {got}")
    for name in _COUNTS:
        if not _is_whole(found[name], 0, _LARGEST_COUNT):
            raise _NoPlanError(
                f"expected a whole number from 0 to {_LARGEST_COUNT} as {name}, got {briefly(found[name])}"
            )
    special_ids = found["special_ids"]
    ids = [found["pad_id"], *special_ids] if isinstance(special_ids, list) else [None]
    if not all(_is_whole(token, -_LARGEST_ID, _LARGEST_ID) for token in ids):
        raise _NoPlanError(
            f"expected token ids as pad_id and in special_ids, got {briefly(found['pad_id'])} and "
            f"{briefly(special_ids)}"
        )
    if not isinstance(found["name"], str):
        raise _NoPlanError(f"expected a text as name, got {briefly(found['name'])}")
    return {**found, "special_ids": tuple(special_ids)}


def _is_whole(value: object, smallest: int, largest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and smallest <= value <= largest


def refuse_other_than_sequences(tokens: Tensor, lengths: Tensor) -> None:
    """Raise ValueError unless tokens (n_tokens,) and lengths (n_sequences,) are int64 and belong together."""
    for name, tensor in {"tokens": tokens, "lengths": lengths}.items():
        if tensor.ndim != 1 or tensor.dtype != torch.int64:
            raise ValueError(
                f"expected {name} of one dimension and of torch.int64, got {tuple(tensor.shape)} of {tensor.dtype}"
            )
    within = (lengths >= 1) & (lengths <= len(tokens))
    if not bool(within.all()) or int(lengths.sum()) != len(tokens):
        raise ValueError(
            f"expected lengths of at least 1 that add up to {len(tokens)} tokens, got {len(lengths)} that add up to "
            f"{int(lengths.sum())}"
        )
    if bool((tokens < 0).any()):
        raise ValueError(
            f"expected token ids >= 0, got {int(tokens.min())}; mask such positions with attention_mask, or drop them"
        )


def refuse_holes(mask: Tensor) -> None:
    """Raise ValueError where the true values of a row, (n_sequences, length), do not form one run."""
    # Real tokens that form one run flip the mask at most twice, the borders of the row counted as padding.
    flips = torch.diff(torch.nn.functional.pad(mask.int(), (1, 1)), dim=1).ne(0).sum(dim=1)
    if bool((flips > 2).any()):
        row = int(flips.gt(2).nonzero()[0])
        raise ValueError(
            f"expected padding on the left or on the right of each sequence, got masked positions between the tokens "
            f"of sequence {row}; drop them from input_ids"
        )


def writable(texts: Iterable[str]) -> Iterator[str]:
    """The texts, each looked at before a tokenizer is.

    Raises:
        ValueError: one is no text, or holds half of a surrogate pair, which no tokenizer takes.
    """
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

"""Tokenization of a whole corpus into one array of ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from rich import get_console
from rich.progress import track
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.utils.files import write_atomically
from repdyn.utils.redaction import redacted

BYTES = "bytes"
_CHUNK_CHARACTERS = 1 << 16
_CHUNKS_PER_CALL = 16


def load_tokenizer(name: str, for_encoder: bool) -> PreTrainedTokenizerBase:
    """Return the byte tokenizer for "bytes", otherwise what ``AutoTokenizer`` loads from the Hub or a folder.

    Raises:
        ValueError: there is no such tokenizer, it does not load, or needs Python code of its own.
    """
    if name == BYTES:
        return byte_tokenizer(for_encoder)
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # damaged files make it raise errors of any kind
        raise ValueError(
            f'expected "{BYTES}", or the folder or hub name of a tokenizer that runs no code of its own, got {name!r}, '
            f"which does not load: {type(error).__name__}: {redacted(str(error))}"
        ) from error


def special_tokens(
    tokenizer: PreTrainedTokenizerBase, name: str, objective: str, bos: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids put before and after the text of a window.

    These are [CLS] and [SEP] where masked tokens are predicted and none where the next one is; with ``bos`` the
    beginning-of-sequence token alone.

    Raises:
        ValueError: the tokenizer, called ``name`` in the message, lacks one of them, or the mask token.
    """
    around = ("bos_token",) if bos else ("cls_token", "sep_token") if objective == "masked" else ()
    needed = (("mask_token",) if objective == "masked" else ()) + around
    if missing := [token for token in needed if getattr(tokenizer, token) is None]:
        advice = (
            "take another tokenizer, or bos=False"
            if missing == ["bos_token"]
            else 'take an encoder\'s tokenizer, or objective "causal"'
        )
        raise ValueError(
            f'objective "{objective}"{" with bos" * bos} needs a tokenizer with {", ".join(needed)}; {name} lacks '
            f"{', '.join(missing)}: {advice}"
        )
    ids = [int(getattr(tokenizer, f"{token}_id")) for token in around]
    return tuple(ids[:1]), tuple(ids[1:])


def encode(data: bytes, tokenizer: PreTrainedTokenizerBase, cache: Path | None = None) -> np.ndarray:
    """Return the token ids of a text, without special tokens.

    A long text goes through the tokenizer in pieces of about 64,000 characters that end at line ends, so that memory
    stays bounded; a piece is tokenized as if a text began there.

    Args:
        data: UTF-8 text; bytes that are no UTF-8 become U+FFFD.
        tokenizer: any Hugging Face tokenizer.
        cache: folder to keep the ids in, under a name made of the hashes of text and tokenizer; None keeps nothing.

    Returns:
        (n_tokens,) uint16, or int32 when the vocabulary is larger than 65,536; read from disk as needed if cached.
    """
    if cache is None:
        return _encode(data, tokenizer)
    path = cache / f"{hashlib.sha256(data).hexdigest()[:32]}-{_fingerprint(tokenizer)[:32]}.npy"
    if not path.exists():
        write_atomically(path, lambda partial: np.save(partial, _encode(data, tokenizer)))
    try:
        ids = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, BadZipFile) as error:
        raise ValueError(f"expected token ids in {path}, which does not read: {error}; delete it") from error
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype != _dtype(tokenizer):
        raise ValueError(f"expected token ids of {_dtype(tokenizer)} in {path}, got something else; delete it")
    return ids


def _dtype(tokenizer: PreTrainedTokenizerBase) -> np.dtype:
    return np.dtype(np.uint16 if len(tokenizer) <= 1 << 16 else np.int32)


def _encode(data: bytes, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    dtype = _dtype(tokenizer)
    parts = list(chunks(data.decode(errors="replace")))
    encoded: list[np.ndarray] = []
    starts = range(0, len(parts), _CHUNKS_PER_CALL)
    for start in track(starts, "tokenizing", transient=True, disable=not get_console().is_terminal):
        batch = tokenizer(parts[start : start + _CHUNKS_PER_CALL], add_special_tokens=False, verbose=False)
        encoded += [np.asarray(ids, dtype=dtype) for ids in batch.input_ids]
    return np.concatenate(encoded) if encoded else np.empty(0, dtype)


def chunks(text: str) -> Iterator[str]:
    """Split a text into pieces, each up to the last line end within reach."""
    start = 0
    while start < len(text):
        end = start + _CHUNK_CHARACTERS
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or end
        yield text[start:end]
        start = end


def _fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    state = backend.to_str() if backend is not None else f"{type(tokenizer)} {sorted(tokenizer.get_vocab().items())}"
    return hashlib.sha256(state.encode()).hexdigest()

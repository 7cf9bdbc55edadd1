"""The byte vocabulary, and the tokenization of a whole corpus into one array of ids."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from rich import get_console
from rich.progress import track
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from repdyn.utils.files import write_atomically
from repdyn.utils.redaction import redacted

PAD = "[PAD]"
CLS = "[CLS]"
SEP = "[SEP]"
MASK = "[MASK]"
SPECIAL_TOKENS = (PAD, CLS, SEP, MASK)


def byte_tokenizer(for_encoder: bool = False) -> PreTrainedTokenizerFast:
    """Return a tokenizer in which the id of byte b is b; [PAD], [CLS], [SEP] and [MASK] follow as
    256 to 259.

    Any text that UTF-8 can write survives encoding and decoding unchanged, and nothing is ever
    unknown. The spelling of a special token inside a text is text: it becomes the bytes it is
    written with.

    For an encoder a sequence is put between [CLS] and [SEP] unless ``add_special_tokens=False``;
    else nothing is added. ``save_pretrained`` writes the tokenizer, and
    ``AutoTokenizer.from_pretrained`` reads it.

    >>> byte_tokenizer()("Aé").input_ids
    [65, 195, 169]
    >>> byte_tokenizer(for_encoder=True)("A").input_ids
    [257, 65, 258]
    """
    vocabulary = {symbol: byte for byte, symbol in sorted(bytes_to_unicode().items())}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    # normalized=False and special=True keep their ids out of the byte range; the ids follow in this
    # order
    backend.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS]
    )
    backend.encode_special_tokens = True
    return with_special_tokens(
        backend, for_encoder, split_special_tokens=True, clean_up_tokenization_spaces=False
    )


def with_special_tokens(
    backend: Tokenizer, for_encoder: bool, **settings: Any
) -> PreTrainedTokenizerFast:
    """Return a tokenizer that knows its special tokens, and puts [CLS] and [SEP] around a sequence
    for an encoder.
    """
    if for_encoder:
        ids = [(token, backend.token_to_id(token)) for token in (CLS, SEP)]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{CLS} $A {SEP}", pair=f"{CLS} $A {SEP} $B:1 {SEP}:1", special_tokens=ids
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        cls_token=CLS,
        sep_token=SEP,
        mask_token=MASK,
        model_input_names=["input_ids", "attention_mask"],
        **settings,
    )


BYTES = "bytes"
_CHUNK_CHARACTERS = 1 << 16
_CHUNKS_PER_CALL = 16


def load_tokenizer(name: str, for_encoder: bool) -> PreTrainedTokenizerBase:
    """Return the byte tokenizer for "bytes", otherwise what ``AutoTokenizer`` loads from the Hub or
    a folder.
    """
    if name == BYTES:
        return byte_tokenizer(for_encoder)
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # damaged files make it raise errors of any kind
        raise ValueError(
            f'expected "{BYTES}", or the folder or hub name of a tokenizer that runs no code of '
            f"its own, got {name!r}, "
            f"which does not load: {type(error).__name__}: {redacted(str(error))}"
        ) from error


def special_tokens(
    tokenizer: PreTrainedTokenizerBase, name: str, objective: str, bos: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids put before and after the text of a window.

    These are [CLS] and [SEP] where masked tokens are predicted and none where the next one is; with
    ``bos`` the beginning-of-sequence token alone.
    """
    around: tuple[str, ...] = ()
    if bos:
        around = ("bos_token",)
    elif objective == "masked":
        around = ("cls_token", "sep_token")
    needed = ("mask_token", *around) if objective == "masked" else around
    if missing := [token for token in needed if getattr(tokenizer, token) is None]:
        raise ValueError(
            f'objective "{objective}"{" with bos" if bos else ""} needs a tokenizer with '
            f"{', '.join(needed)}; {name} lacks "
            f'{", ".join(missing)}: take another one, objective "causal" or bos=False'
        )
    ids = [int(getattr(tokenizer, f"{token}_id")) for token in around]
    return tuple(ids[:1]), tuple(ids[1:])


def encode(data: bytes, tokenizer: PreTrainedTokenizerBase, cache: Path) -> np.ndarray:
    """Return the token ids of a text, without special tokens.

    A long text goes through the tokenizer in pieces of about 64,000 characters that end at line
    ends, so that memory stays bounded; a piece is tokenized as if a text began there. A character
    that the split of a text cut in two becomes U+FFFD.

    Returns:
        (n_tokens,) uint16, or int32 when the vocabulary is larger than 65,536; read as needed from
        a file in the folder ``cache`` whose name is made of the hashes of text and tokenizer.
    """
    path = cache / f"{hashlib.sha256(data).hexdigest()[:32]}-{_fingerprint(tokenizer)[:32]}.npy"
    try:
        return open_memmap(path, mode="r")
    except (OSError, ValueError):  # it is not there yet, or damaged
        write_atomically(path, lambda partial: np.save(partial, _encode(data, tokenizer)))
        return open_memmap(path, mode="r")


def _encode(data: bytes, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    dtype = np.dtype(np.uint16 if len(tokenizer) <= 1 << 16 else np.int32)
    parts = list(chunks(data.decode(errors="replace")))
    encoded: list[np.ndarray] = []
    starts = range(0, len(parts), _CHUNKS_PER_CALL)
    for start in track(starts, "tokenizing", transient=True, disable=not get_console().is_terminal):
        batch = tokenizer(
            parts[start : start + _CHUNKS_PER_CALL], add_special_tokens=False, verbose=False
        )
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
    state = (
        backend.to_str()
        if backend is not None
        else f"{type(tokenizer)} {sorted(tokenizer.get_vocab().items())}"
    )
    return hashlib.sha256(state.encode()).hexdigest()

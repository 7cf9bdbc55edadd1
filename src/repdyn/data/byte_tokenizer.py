"""The default vocabulary: one token per byte, as a Hugging Face tokenizer like any other."""

from __future__ import annotations

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

N_BYTES = 256
PAD, CLS, SEP, MASK = "[PAD]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, CLS, SEP, MASK)


def byte_tokenizer(for_encoder: bool = False) -> PreTrainedTokenizerFast:
    """Return a tokenizer in which the id of byte b is b; [PAD], [CLS], [SEP] and [MASK] follow as 256 to 259.

    Any text that UTF-8 can write survives encoding and decoding unchanged, and nothing is ever unknown. The spelling
    of a special token inside a text is text: it becomes the bytes it is written with.

    Args:
        for_encoder: whether a sequence is put between [CLS] and [SEP] unless ``add_special_tokens=False``;
            otherwise nothing is added.

    Returns:
        A tokenizer of 260 tokens that ``save_pretrained`` writes and ``AutoTokenizer.from_pretrained`` reads.

    >>> byte_tokenizer()("Aé").input_ids
    [65, 195, 169]
    >>> byte_tokenizer(for_encoder=True)("A").input_ids
    [257, 65, 258]
    """
    vocabulary = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    # normalized=False and special=True keep their ids out of the byte range; the ids follow in this order
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    backend.encode_special_tokens = True
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
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def bytes_to_ids(data: bytes) -> np.ndarray:
    """Return the token ids of a whole corpus at once, equal to the tokenizer's and without its cost.

    Args:
        data: any bytes, valid UTF-8 or not.

    Returns:
        (len(data),) uint8, values in [0, 255]: a read-only view of ``data``, no copy.

    >>> bytes_to_ids("Aé".encode()).tolist()
    [65, 195, 169]
    """
    return np.frombuffer(data, dtype=np.uint8)


def _byte_symbols() -> list[str]:
    """Return the printable character that stands for each byte in byte-level BPE (GPT-2's table), in byte order."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    stand_ins = iter(range(N_BYTES, 2 * N_BYTES))
    return [chr(byte if byte in printable else next(stand_ins)) for byte in range(N_BYTES)]

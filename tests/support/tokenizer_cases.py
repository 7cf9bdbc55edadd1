"""Small tokenizers of the common kinds, and a text for them."""

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from repdyn.data.tokens import byte_tokenizer

CURLY = "\N{RIGHT SINGLE QUOTATION MARK}"
SAMPLE = (
    f"Don't stop: naïve cafés sold 12 apples (the 20th time) to Zoë{CURLY}s dog; m² of x_y [SEP] "
    f"— don{CURLY}t.\n\t"
    "The end"
)
WORDS = [
    *(
        "don't",
        "stop",
        "naïve",
        "cafés",
        "sold",
        "apples",
        "the",
        "time",
        "to",
        "zoë's",
        "dog",
        "of",
        "sep",
        "don't",
    ),
    *("the", "end"),
]


def word_piece() -> PreTrainedTokenizerFast:
    """Return a tokenizer like that of uncased BERT."""
    whole = [
        "don",
        "t",
        "stop",
        "naive",
        "sold",
        "the",
        "time",
        "to",
        "dog",
        "of",
        "end",
        "apples",
        "zoe",
        "s",
        "caf",
    ]
    whole += ["king", "sees", "birds", "and", "dogs", "sparrows", "sing", ","]
    punctuation = [CURLY, *"':;()[]—._²", "##es", "##th", "20", "12", "m", "x", "y"]
    vocabulary = {
        token: i
        for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *whole, *punctuation])
    }
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.add_special_tokens(
        [AddedToken(token, special=True) for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )


def byte_level_bpe(
    ignore_merges: bool = False, trim_offsets: bool = False
) -> PreTrainedTokenizerFast:
    """Return a tokenizer like that of GPT-2, of Llama 3 (ignore_merges) or of RoBERTa
    (trim_offsets).
    """
    backend = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"]
    )
    backend.train_from_iterator([SAMPLE] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")


def sentence_piece() -> PreTrainedTokenizerFast:
    """Return a tokenizer like that of Llama: spaces belong to the next token, unknown characters
    become bytes.
    """
    specials = {"<unk>": 0, "<s>": 1, "</s>": 2}
    letters = [chr(code) for code in range(33, 127)] + ["▁", "▁the", "▁T", "▁s", "▁st", "op", "he"]
    vocabulary = {**specials, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    vocabulary |= {token: 259 + i for i, token in enumerate(letters)}
    merges = [("▁", "s"), ("▁s", "t"), ("o", "p"), ("h", "e"), ("▁", "T")]
    backend = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    backend.add_special_tokens([AddedToken(token, special=True) for token in specials])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


TOKENIZERS = {
    "bytes": byte_tokenizer,
    "bytes for an encoder": lambda: byte_tokenizer(for_encoder=True),
    "WordPiece": word_piece,
    "byte-level BPE": byte_level_bpe,
    "byte-level BPE, trimmed": lambda: byte_level_bpe(trim_offsets=True),
    "byte-level BPE, merges ignored": lambda: byte_level_bpe(ignore_merges=True),
    "SentencePiece": sentence_piece,
}


@pytest.fixture(name="tokenizer", params=TOKENIZERS.values(), ids=TOKENIZERS.keys())
def any_tokenizer(request) -> PreTrainedTokenizerBase:
    return request.param()

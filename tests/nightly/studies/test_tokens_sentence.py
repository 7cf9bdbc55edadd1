"""Tokens of a sentence against the vocabulary: functions against naive ones, and a causal mask taken off."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity
from transformers import (
    AutoModel,
    BertTokenizer,
    MambaConfig,
    MambaModel,
    PreTrainedTokenizerFast,
)

from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.studies.models import LoadedModel
from repdyn.studies.tokens.sentences import (
    capture_sentence,
    compare_sentence,
    embedding_scale,
    encode_sentence,
    without_causal_mask,
)
from repdyn.studies.tokens.vocabulary_comparison import token_names

SENTENCE = "The £1 coin"


@pytest.fixture
def subject(save_model):
    folder = save_model("bert")
    return LoadedModel("bert", AutoModel.from_pretrained(folder).eval(), byte_tokenizer())


def test_a_position_is_added_to_every_row(subject):
    found = compare_sentence(subject, capture_sentence(subject, SENTENCE), k=3, with_positions=True)
    embeddings, ids = subject.model.embeddings, encode_sentence(subject, SENTENCE)
    added = embeddings.position_embeddings.weight[: len(ids)]
    with torch.no_grad():
        entering = embeddings(torch.tensor([ids]))[0].double()
        rows = embeddings.word_embeddings.weight.double()[None] + added.double()[:, None]
    cosines = cosine_similarity(entering[:, None], rows, dim=2)
    own = cosines[torch.arange(len(ids)), ids]
    lines = found.table[found.table["layer"] == 0]
    assert lines["cosine"].tolist() == pytest.approx(own.tolist(), rel=1e-4)
    assert lines["rank"].tolist() == (cosines > own[:, None]).sum(1).tolist()


class Scaled(nn.Embedding):
    def forward(self, input):
        return super().forward(input) * 4.0


def test_an_embedding_that_is_scaled_is_scaled_before_positions_are_added(subject):
    table = subject.model.embeddings.word_embeddings.weight.detach()
    assert embedding_scale(subject.model, table, [1, 2, 3]) == 1.0
    scaled = Scaled(*table.shape)
    scaled.weight = nn.Parameter(table)
    subject.model.embeddings.word_embeddings = scaled
    assert embedding_scale(subject.model, table, [1, 2, 3]) == pytest.approx(4.0)


def test_tokens_are_named_as_they_are_read(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "coin", "##s", "£1"]))
    pieces = BertTokenizer(str(tmp_path / "vocab.txt"))
    assert token_names(pieces, [2, 4, 5, 6, 3, 99, 4]) == ["[CLS]", "coin", "##s", "£1", "[SEP]", "#99", "coin"]
    of_bytes = PreTrainedTokenizerFast(tokenizer_object=byte_level(["a", "Ġcoin", "Â£", "£", "Ġ", "Â"]))
    names = token_names(of_bytes, list(range(6)))
    assert names[:3] == ["a", "▁coin", "£"]
    # a space alone and half a character have no better name than the vocabulary's
    assert names[4:] == ["Ġ", "Â"]


def byte_level(tokens):
    from tokenizers import Tokenizer, decoders, models

    made = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    made.decoder = decoders.ByteLevel()
    return made


def test_an_encoder_has_no_mask_to_take_off(subject):
    with (
        pytest.raises(
            ValueError,
            match="expected a decoder with --no-causal-mask, got bert, whose positions see later ones already or cannot be tested; leave the option out",
        ),
        without_causal_mask(subject, SENTENCE),
    ):
        pass


def test_a_decoder_that_keeps_its_mask_is_refused():
    model = MambaModel(MambaConfig(hidden_size=16, num_hidden_layers=2, state_size=4, vocab_size=260)).eval()
    with (
        pytest.raises(
            ValueError,
            match="expected a decoder whose causal mask transformers can take off, but mamba keeps it; leave --no-causal-mask out",
        ),
        without_causal_mask(LoadedModel("mamba", model, byte_tokenizer()), SENTENCE),
    ):
        pass
    assert "is_causal" not in vars(model.config)

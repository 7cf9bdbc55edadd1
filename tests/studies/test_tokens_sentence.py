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

from repdyn.capture.capture import causality
from repdyn.capture.prepared_model import prepare
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.studies.models import LoadedModel
from repdyn.studies.tokens.sentences import (
    capture_sentence,
    compare_sentence,
    embedding_scale,
    encode_sentence,
    position_rows,
    sentence_probe,
    without_causal_mask,
)
from repdyn.studies.tokens.vocabulary_comparison import LayerVectors, compare_with_vocabulary, token_names

SENTENCE = "The £1 coin"


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def subject(save_model):
    folder = save_model("bert")
    return LoadedModel("bert", AutoModel.from_pretrained(folder).eval(), byte_tokenizer())


@pytest.fixture
def decoder(save_model):
    return LoadedModel("gpt", AutoModel.from_pretrained(save_model("gpt", "gpt2")).eval(), byte_tokenizer())


# a sentence


@pytest.mark.parametrize("positions", [False, True], ids=["", "positions"])
def test_trajectories_against_naive_ones(positions):
    table, ids = random(40, 8), [3, 7, 3, 39, 0]
    added = random(5, 8, seed=1) if positions else None
    layers = [
        LayerVectors(None, layer, state, random(5, 8, seed=10 * layer + number) + table[ids])
        for layer in range(3)
        for number, state in enumerate(("attention", "block"))
    ]
    found = compare_with_vocabulary(layers, ids, table, byte_tokenizer(), k=4, positions=added)
    lines, near = found.table.to_dict("records"), found.nearest.to_dict("records")
    assert len(lines) == 6 * 5
    assert len(near) == 6 * 5 * 4
    for number, line in enumerate(lines):
        layer, place = layers[number // 5], number % 5
        assert (line["layer"], line["state"], line["position"]) == (layer.layer, layer.state, place)
        assert (line["token_id"], line["token"]) == (ids[place], token_names(byte_tokenizer(), ids)[place])
        rows = table.double() + (added[place].double() if positions else 0)
        cosines = cosine_similarity(layer.vectors[place].double(), rows, dim=1)
        assert line["cosine"] == pytest.approx(cosines[ids[place]].item(), rel=1e-10)
        assert line["rank"] == (cosines > cosines[ids[place]] + 1e-12).sum()
        best = near[4 * number : 4 * number + 4]
        assert [one["nearest_id"] for one in best] == cosines.topk(4).indices.tolist()
        assert [one["place"] for one in best] == [1, 2, 3, 4]
        assert [one["cosine"] for one in best] == pytest.approx(cosines.topk(4).values.tolist(), rel=1e-10)


def test_the_states_are_those_of_a_plain_run(subject):
    captured = capture_sentence(subject, SENTENCE)
    found = compare_sentence(subject, captured, k=3)
    model, ids = subject.model, encode_sentence(subject, SENTENCE)
    sums = []
    for block in model.encoder.layer:
        norm = block.attention.output.LayerNorm
        norm.register_forward_pre_hook(lambda _module, given: sums.append(given[0][0]))
    with torch.no_grad():
        hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    expected = {("block", layer): states[0] for layer, states in enumerate(hidden)}
    expected |= {("attention", layer): states for layer, states in enumerate(sums, start=1)}
    own = model.embeddings.word_embeddings.weight[ids]
    assert captured.reasons == ()
    assert len(found.table) == len(ids) * len(expected)
    for (state, layer), lines in found.table.groupby(["state", "layer"]):
        cosines = cosine_similarity(expected[state, layer], own, dim=1).tolist()
        assert lines["cosine"].tolist() == pytest.approx(cosines, rel=1e-4)


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


def test_positions_of_a_family_that_begins_with_the_second_row(save_model):
    model = AutoModel.from_pretrained(save_model("roberta", "roberta", pad_token_id=1)).eval()
    subject = LoadedModel("roberta", model, byte_tokenizer())
    table = model.embeddings.word_embeddings.weight.detach()
    assert torch.equal(position_rows(subject, table, 5), model.embeddings.position_embeddings.weight[2:7])


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


@pytest.mark.parametrize("n_tokens", [2, 3, 9])
def test_all_tokens_of_a_sentence_are_sampled(n_tokens):
    probe = sentence_probe(list(range(5, 5 + n_tokens)))
    sampled = set(probe.sample("sentence").ravel().tolist())
    assert set(range(n_tokens)) <= sampled
    assert probe.tokens[:n_tokens].tolist() == list(range(5, 5 + n_tokens))


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


# a causal mask taken off


def test_the_causal_mask_is_taken_off_and_put_back(decoder):
    probe = sentence_probe(encode_sentence(decoder, SENTENCE))
    before = decoder.model.config.to_dict()
    with without_causal_mask(decoder, SENTENCE):
        assert causality(prepare(decoder.model), probe) == {None: False}
    assert causality(prepare(decoder.model), probe) == {None: True}
    assert decoder.model.config.to_dict() == before


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

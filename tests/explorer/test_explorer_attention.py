"""The attention weights of a sentence: against the models' own, and as they are shown."""

from __future__ import annotations

import pytest
import torch
from explorer.conftest import MARKUP
from transformers import MambaConfig, MambaModel, T5Config, T5Model

from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.explorer import figures
from repdyn.explorer import session as session_module
from repdyn.explorer.app import Page
from repdyn.explorer.session import Session
from repdyn.studies.models import LoadedModel
from repdyn.studies.tokens.sentences import encode_sentence

SENTENCE = f"The coin {MARKUP[0]}"
ENCODER, DECODER = 0, 1


def of_family(model, name="other", max_tokens=40):
    return Session([LoadedModel(name, model.eval(), byte_tokenizer())], nearest=3, max_tokens=max_tokens)


@pytest.mark.parametrize("number", [ENCODER, DECODER], ids=["encoder", "decoder"])
@pytest.mark.parametrize("layer", [1, 2])
def test_weights_are_those_that_the_model_returns(session, number, layer):
    loaded = session.models[number]
    ids = encode_sentence(loaded, SENTENCE)
    [found], remarks = session.attention(SENTENCE, number, layer)
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = loaded.model(torch.tensor([ids]), output_attentions=True).attentions[layer - 1][0]
    assert remarks == []
    assert (found.name, found.ids, found.layer) == (loaded.name, tuple(ids), layer)
    torch.testing.assert_close(found.weights, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(found.weights.shape[:2]))
    assert bool((found.weights.triu(1) > 0).any()) is (number == ENCODER)


def test_a_sentence_is_read_once_for_all_layers(session, monkeypatch):
    read, whole = [], session_module.sentence_attention
    monkeypatch.setattr(
        session_module, "sentence_attention", lambda *given: read.append(given[0].name) or whole(*given)
    )
    for layer in (1, 2, 1):
        session.attention(SENTENCE, DECODER, layer)
    assert read == ["a decoder"]


def test_a_model_without_weights_has_a_reason_and_no_map():
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=260, hidden_size=16, num_hidden_layers=2, state_size=4)
    page = Page(of_family(MambaModel(config), "mamba"))
    refused, _, shown = page.attention("The coin", 0, 1, 0)
    assert "mamba: no attention weights in layer 1: nothing in" in refused
    assert "puts out attention weights, from each token to each" in refused
    assert not shown.visible


def test_a_layer_beyond_the_model_has_a_reason(session):
    assert session.attention(SENTENCE, ENCODER, 3) == (
        [],
        ["an encoder: no attention weights in layer 3: no block ran as this layer"],
    )


def test_each_stack_has_a_map_of_its_own():
    torch.manual_seed(0)
    sizes = {"vocab_size": 260, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2}
    session = of_family(T5Model(T5Config(**sizes, num_layers=2, num_decoder_layers=1, decoder_start_token_id=0)), "t5")
    assert [one.name for one in session.attention("The coin", 0, 1)[0]] == ["t5 (encoder)", "t5 (decoder)"]
    found, remarks = session.attention("The coin", 0, 2)
    assert [one.name for one in found] == ["t5 (encoder)"]
    assert remarks == ["t5 (decoder): no attention weights in layer 2: no block ran as this layer"]


def test_a_long_sentence_is_cut_and_a_remark_says_so(monkeypatch, session):
    monkeypatch.setattr("repdyn.studies.tokens.sentences.LENGTH", 5)
    [found], remarks = session.attention(SENTENCE, DECODER, 1)
    assert found.weights.shape[1:] == (5, 5)
    assert remarks == ["a decoder: the first 5 of 10 tokens, without those that follow"]


@pytest.mark.parametrize("number", [-1, 2])
def test_a_checkpoint_that_is_not_there(session, number):
    with pytest.raises(ValueError, match=f"expected a checkpoint from 0 to 1, got {number}"):
        session.attention(SENTENCE, number, 1)


def test_the_map_has_a_title_the_tokens_and_a_colour_bar_from_0_to_1(session):
    found, _ = session.attention(SENTENCE, DECODER, 2)
    names = ["a", "a", *["b"] * (len(found[0].ids) - 2)]
    figure = figures.attention(found, names, 1)
    [shown] = figure.data
    assert figure.layout.annotations[0].text == "a decoder: attention of head 1 in layer 2"
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, 1)
    assert shown.z.tolist() == found[0].weights[1].tolist()
    # a token that occurs twice has two rows and two columns
    assert list(shown.x[:2]) == list(shown.y[:2]) == ["0 a", "1 a"]
    assert figure.layout.yaxis.autorange == "reversed"


def test_tokens_that_look_like_markup_stay_text(session):
    figure = Page(session).attention(SENTENCE, DECODER, 1, 0)[2].value["plot"]
    assert "<script" not in figure
    assert "&lt;script&gt;" in figure


def test_a_head_that_the_layer_lacks_becomes_the_first_one(session):
    page = Page(session)
    for asked, shown in ((1, 1), (7, 0), (None, 0)):
        _, heads, figure = page.attention(SENTENCE, DECODER, 1, asked)
        assert heads.constructor_args == {"choices": [0, 1], **({} if asked == shown else {"value": shown})}
        assert f"attention of head {shown} in" in figure.value["plot"]


def test_a_sentence_that_is_refused_has_no_map(session):
    refused, _, shown = Page(session).attention("a" * 41, DECODER, 1, 0)
    assert "expected a sentence of at most 40 tokens" in refused
    assert not shown.visible

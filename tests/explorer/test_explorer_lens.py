"""The logit lens on a sentence: against the models' own predictions, and as it is shown."""

from __future__ import annotations

import re

import pytest
import torch
from explorer.conftest import MARKUP, load_folders
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from repdyn.checkpoints.errors import CheckpointError
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.explorer import lens_tables
from repdyn.explorer.app import Page
from repdyn.explorer.session import LISTED, Session
from repdyn.studies.lens import sentence_lens
from repdyn.studies.models import LoadedModel

SENTENCE = f"The £ {MARKUP[0]}"
ENCODER, DECODER = 0, 1


def logits(loaded, ids):
    with torch.no_grad():
        return loaded.with_head(torch.tensor([ids])).logits[0].double()


def test_the_last_layer_of_a_decoder_is_its_own_prediction(session):
    loaded, found = session.models[DECODER], session.lens(SENTENCE, DECODER)
    expected = logits(loaded, list(found.ids)).softmax(1)
    last = found.layers[-1]
    assert not found.is_masked
    assert torch.equal(last.ids, expected.topk(LISTED).indices)
    assert torch.allclose(last.probabilities, expected.topk(LISTED).values, atol=1e-7)
    assert torch.allclose(last.entropy, -(expected * expected.log()).sum(1), atol=1e-6)
    assert last.kl.tolist() == [0.0] * len(found.ids)


def test_an_earlier_layer_is_read_through_the_decoder_s_norm_and_unembedding(session):
    loaded, found = session.models[DECODER], session.lens(SENTENCE, DECODER)
    model = loaded.with_head
    with torch.no_grad():
        states = model(torch.tensor([found.ids]), output_hidden_states=True).hidden_states[1][0]
        expected = model.get_output_embeddings()(model.base_model.final_layer_norm(states)).double().softmax(1)
    assert torch.allclose(found.layers[1].probabilities, expected.topk(LISTED).values, atol=1e-6)


def test_an_encoder_predicts_each_token_without_seeing_it(session):
    loaded, found = session.models[ENCODER], session.lens(SENTENCE, ENCODER)
    mask = loaded.tokenizer.mask_token_id
    ordinary = [place for place, token in enumerate(found.ids) if token not in loaded.tokenizer.all_special_ids]
    assert list(found.masked) == ordinary
    for place in range(len(found.ids)):
        read = [mask if at == place and at in ordinary else token for at, token in enumerate(found.ids)]
        expected = logits(loaded, read)[place].softmax(0).topk(LISTED)
        assert torch.allclose(found.layers[-1].probabilities[place], expected.values, atol=1e-6)


def test_settled_is_the_first_layer_from_which_on_the_prediction_stays(session):
    found = session.lens(SENTENCE, DECODER)
    for place, settled in enumerate(found.settled):
        agrees = [int(layer.final_rank[place]) == 0 for layer in found.layers]
        assert all(agrees[settled:])
        assert settled == 0 or not agrees[settled - 1]


def test_more_masked_tokens_than_fit_at_once(session, monkeypatch):
    loaded, whole = session.models[ENCODER], session.lens(SENTENCE, ENCODER)
    monkeypatch.setattr("repdyn.studies.lens._MASKED_AT_ONCE", 3)
    parts = sentence_lens(loaded, whole.ids, LISTED)
    for one, other in zip(parts.layers, whole.layers, strict=True):
        assert torch.allclose(one.probabilities, other.probabilities, atol=1e-6)


def test_a_model_without_a_head_has_a_reason(session):
    config = BertConfig(
        vocab_size=260, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    bare = Session([LoadedModel("bare", BertModel(config).eval(), byte_tokenizer())], nearest=3, max_tokens=40)
    with pytest.raises(ValueError, match="expected a model with a language-modelling head .* got bare"):
        bare.lens(SENTENCE, 0)
    refused, grid, top = Page(bare).lens(SENTENCE, 0, "kl", None)
    assert "language-modelling head" in refused
    assert (grid, top) == ("", "")
    # a head that is not reproduced is no lens either
    broken = session.models[DECODER]
    broken.with_head.base_model.final_layer_norm.register_forward_hook(lambda _m, _a, output: output.cumsum(1))
    with pytest.raises((ValueError, CheckpointError), match="do not reproduce the model's logits"):
        session.lens("another", DECODER)


@pytest.mark.parametrize("number", [-1, 2])
def test_a_checkpoint_that_is_not_there(session, number):
    with pytest.raises(ValueError, match=f"expected a checkpoint from 0 to 1, got {number}"):
        session.lens(SENTENCE, number)


@pytest.mark.parametrize("colour", lens_tables.COLOURS)
def test_the_grid_has_a_cell_for_each_layer_and_token_and_no_markup(session, colour):
    loaded, found = session.models[DECODER], session.lens(SENTENCE, DECODER)
    shown = lens_tables.grid(loaded, found, colour, lens_tables.last_cell(found))
    assert shown.count("<button") == len(found.layers) * len(found.ids)
    assert shown.count('aria-pressed="true"') == 1
    assert all(0 <= int(share) <= 100 for share in re.findall(r"--shade: (\d+)%", shown))
    assert MARKUP[0] not in shown
    assert "&lt;script&gt;" in shown


def test_a_cell_beyond_the_grid(session):
    found = session.lens(SENTENCE, DECODER)
    with pytest.raises(ValueError, match="expected a cell of the grid"):
        lens_tables.top(session.models[DECODER], found, lens_tables.Cell(0, len(found.ids)))


def test_bytes_are_shown_as_characters():
    tokenizer = byte_tokenizer()
    ids = tokenizer("a \n£").input_ids
    assert lens_tables.readable_tokens(tokenizer, ids) == ["a", "␣", "↵", "\\xc2", "\\xa3"]
    assert lens_tables.readable_tokens(tokenizer, [tokenizer.mask_token_id]) == ["[MASK]"]


def test_a_checkpoint_whose_head_is_missing_is_loaded_without_it(save_model):
    """Untied: the weights of the unembedding would be random."""
    folder = save_model("decoder", "gpt_neox")
    with_head = load_folders(folder)[0]
    assert with_head.with_head.base_model is with_head.model
    weights = load_file(folder / "model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if k != "embed_out.weight"}, folder / "model.safetensors", {"format": "pt"}
    )
    bare = load_folders(folder)[0]
    assert bare.with_head is None
    for name, value in with_head.model.state_dict().items():
        assert torch.equal(bare.model.state_dict()[name], value)

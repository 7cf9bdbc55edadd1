"""The logit lens on a sentence: against the models' own predictions, and as it is shown."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from saved_models import MARKUP, load_folders
from transformers import BertConfig, BertModel

from repdyn.checkpoints.errors import CheckpointError
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.explorer.app import Page
from repdyn.explorer.session import LISTED, Session
from repdyn.studies.models import LoadedModel

SENTENCE = f"The £ {MARKUP[0]}"


ENCODER, DECODER = 0, 1


def logits(loaded, ids):
    with torch.no_grad():
        return loaded.with_head(torch.tensor([ids])).logits[0].double()


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

"""The attention weights of a sentence: against the models' own, and as they are shown."""

from __future__ import annotations

import torch
from transformers import MambaConfig, MambaModel, T5Config, T5Model

from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.explorer.app import Page
from repdyn.explorer.session import Session
from repdyn.studies.models import LoadedModel


def of_family(model, name="other", max_tokens=40):
    return Session([LoadedModel(name, model.eval(), byte_tokenizer())], nearest=3, max_tokens=max_tokens)


def test_a_model_without_weights_has_a_reason_and_no_map():
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=260, hidden_size=16, num_hidden_layers=2, state_size=4)
    page = Page(of_family(MambaModel(config), "mamba"))
    refused, _, shown = page.attention("The coin", 0, 1, 0)
    assert "mamba: no attention weights in layer 1: nothing in" in refused
    assert "puts out attention weights, from each token to each" in refused
    assert not shown.visible


def test_each_stack_has_a_map_of_its_own():
    torch.manual_seed(0)
    sizes = {"vocab_size": 260, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2}
    session = of_family(T5Model(T5Config(**sizes, num_layers=2, num_decoder_layers=1, decoder_start_token_id=0)), "t5")
    assert [one.name for one in session.attention("The coin", 0, 1)[0]] == ["t5 (encoder)", "t5 (decoder)"]
    found, remarks = session.attention("The coin", 0, 2)
    assert [one.name for one in found] == ["t5 (encoder)"]
    assert remarks == ["t5 (decoder): no attention weights in layer 2: no block ran as this layer"]

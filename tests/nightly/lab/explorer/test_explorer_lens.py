"""The logit lens on a sentence: against the models' own predictions, and as it is shown."""

from __future__ import annotations

import torch
from saved_models import MARKUP
from test_explorer import logits

from repdyn.lab.explorer.session import LISTED

SENTENCE = f"The £ {MARKUP[0]}"


ENCODER, DECODER = 0, 1


def test_an_earlier_layer_is_read_through_the_decoder_s_norm_and_unembedding(session):
    loaded = session.models[DECODER]
    found = session.lens(SENTENCE, DECODER)
    model = loaded.with_head
    with torch.no_grad():
        states = model(torch.tensor([found.ids]), output_hidden_states=True).hidden_states[1][0]
        expected = (
            model.get_output_embeddings()(model.base_model.final_layer_norm(states))
            .double()
            .softmax(1)
        )
    assert torch.allclose(found.layers[1].probabilities, expected.topk(LISTED).values, atol=1e-6)


def test_an_encoder_predicts_each_token_without_seeing_it(session):
    loaded = session.models[ENCODER]
    found = session.lens(SENTENCE, ENCODER)
    mask = loaded.tokenizer.mask_token_id
    ordinary = [
        place
        for place, token in enumerate(found.ids)
        if token not in loaded.tokenizer.all_special_ids
    ]
    assert list(found.masked) == ordinary
    for place in range(len(found.ids)):
        read = [
            mask if at == place and at in ordinary else token for at, token in enumerate(found.ids)
        ]
        expected = logits(loaded, read)[place].softmax(0).topk(LISTED)
        assert torch.allclose(found.layers[-1].probabilities[place], expected.values, atol=1e-6)

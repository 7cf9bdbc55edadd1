"""The logit lens on a sentence: against the models' own predictions, and as it is shown."""

from __future__ import annotations

import torch
from explored import logits
from saved_models import MARKUP

from repdyn.lab.explorer.session import LISTED

SENTENCE = f"The £ {MARKUP[0]}"


ENCODER, DECODER = 0, 1


def test_an_earlier_layer_is_read_through_the_decoder_s_norm_and_unembedding(session):
    loaded = session.models[DECODER]
    lens = session.lens(SENTENCE, DECODER)
    model = loaded.with_head
    with torch.no_grad():
        states = model(torch.tensor([lens.ids]), output_hidden_states=True).hidden_states[1][0]
        expected = (
            model.get_output_embeddings()(model.base_model.final_layer_norm(states))
            .double()
            .softmax(1)
        )
    assert torch.allclose(lens.layers[1].probabilities, expected.topk(LISTED).values, atol=1e-6)


def test_an_encoder_predicts_each_token_without_seeing_it(session):
    loaded = session.models[ENCODER]
    lens = session.lens(SENTENCE, ENCODER)
    mask = loaded.tokenizer.mask_token_id
    ordinary = [
        position
        for position, token in enumerate(lens.ids)
        if token not in loaded.tokenizer.all_special_ids
    ]
    assert list(lens.masked) == ordinary
    for position in range(len(lens.ids)):
        read = [
            mask if at == position and at in ordinary else token
            for at, token in enumerate(lens.ids)
        ]
        expected = logits(loaded, read)[position].softmax(0).topk(LISTED)
        assert torch.allclose(lens.layers[-1].probabilities[position], expected.values, atol=1e-6)

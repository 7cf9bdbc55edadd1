"""The logit lens as metrics: against the model's own modules, at the ends, and where there is no output head."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from repdyn import Probe, measure
from repdyn.models import build_model

METRICS = ("lens_kl", "lens_agreement")
SIZES = {"vocab_size": 50, "hidden_size": 16, "n_layers": 3, "n_heads": 2, "context_length": 32, "pad_token_id": 0}


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    model = build_model("gpt2", **SIZES)
    # a random model predicts nearly the same everywhere
    for parameter in model.parameters():
        parameter.data.mul_(4.0)
    return model.double()


@pytest.fixture(scope="module")
def probe():
    ids = torch.randint(1, 50, (12, 20), generator=torch.Generator().manual_seed(1))
    return Probe.from_tokens(ids, design="dense", max_vectors=200, batch_vectors=100)


def values(profile, metric, subset="all"):
    rows = [row for row in profile.rows if (row.metric, row.subset) == (metric, subset)]
    return {row.layer: row.value for row in rows}


def test_against_the_model_s_own_norm_and_unembedding(model, probe):
    found = measure(model, probe, METRICS)
    with torch.no_grad():
        hidden = model(probe.tokens.reshape(-1, 20), output_hidden_states=True).hidden_states
        final = model.lm_head(hidden[-1]).flatten(0, 1).log_softmax(1)
        for layer in range(3):
            here = model.lm_head(model.transformer.ln_f(hidden[layer])).flatten(0, 1).log_softmax(1)
            kl = [(final[t].exp() * (final[t] - here[t])).sum(1).mean() for t in probe.sample("all")]
            same = [(final[t].argmax(1) == here[t].argmax(1)).double().mean() for t in probe.sample("all")]
            assert values(found, "lens_kl")[layer] == pytest.approx(float(sum(kl)) / 2, rel=1e-9)
            assert values(found, "lens_agreement")[layer] == pytest.approx(float(sum(same)) / 2, rel=1e-12)

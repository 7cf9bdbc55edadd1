"""The loss on the probe: that of the model's own logits at the sampled tokens, whatever the
model.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from pretend_cuda import PretendCuda
from small import HandWritten, random_tokens
from torch import nn
from torch.nn.functional import cross_entropy

from repdyn import Probe, measure
from repdyn.capture.output_head import NO_LOGITS
from repdyn.measurement.probe_loss import MASKED_SHARE, NO_MASK, masked_tokens
from repdyn.models import build_model
from repdyn.store.schema import (
    PROBE_ACCURACY,
    PROBE_BITS_PER_BYTE,
    PROBE_CALIBRATION_ERROR,
    PROBE_LOSS,
)

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "n_layers": 2,
    "n_heads": 2,
    "context_length": 32,
    "pad_token_id": 0,
}
MASK, SPECIAL = 1, 2


def a_probe(**changes):
    tokens = random_tokens(24, 12)
    tokens[:, -1] = SPECIAL
    settings = {
        "max_vectors": 192,
        "batch_vectors": 96,
        "special_ids": (MASK, SPECIAL),
        "mask_id": MASK,
    }
    return Probe.from_tokens(tokens, **settings | {"bytes_per_token": 3.5} | changes)


def a_model(family="gpt_neox"):
    torch.manual_seed(0)
    return build_model(family, **SIZES).eval()


def values(rows):
    return {row.metric: row.value for row in rows}


def naive(logits, probe, batches):
    """Loss, accuracy and calibration of the next token after each sampled one, one by one in
    float64.
    """
    width = int(probe.lengths[0])
    by_batch = []
    for batch in batches:
        losses = []
        confidences = []
        hits = []
        for index in batch:
            window, position = divmod(int(index), width)
            if position + 1 == width or int(probe.tokens[index + 1]) in probe.special_ids:
                continue
            row = logits[window, position].double().numpy()
            shares = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
            target = int(probe.tokens[index + 1])
            losses.append(-math.log(shares[target]))
            confidences.append(shares.max())
            hits.append(shares.argmax() == target)
        by_batch.append(
            (np.mean(losses), np.mean(hits), naive_calibration_error(confidences, hits))
        )
    return np.mean(by_batch, axis=0)


def naive_calibration_error(confidences, hits, n_bins=15):
    edges, total = np.linspace(0, 1, n_bins + 1), 0.0
    for low, high in pairwise(edges):
        inside = [i for i, confidence in enumerate(confidences) if low < confidence <= high]
        if inside:
            gap = np.mean([hits[i] for i in inside]) - np.mean([confidences[i] for i in inside])
            total += len(inside) / len(hits) * abs(gap)
    return total


@pytest.mark.parametrize("family", ["gpt_neox", "llama"])
def test_a_decoder_is_measured_by_its_own_logits(family):
    model = a_model(family)
    probe = a_probe()
    with torch.no_grad():
        logits = model(input_ids=probe.tokens.view(24, 12)).logits
    loss, accuracy, error = naive(logits, probe, probe.sample("all"))
    profile = measure(model, probe, probe_loss=True)
    scalars = values(profile.scalars)
    assert scalars[PROBE_LOSS] == pytest.approx(loss, rel=1e-6)
    assert scalars[PROBE_BITS_PER_BYTE] == pytest.approx(loss / math.log(2) / 3.5, rel=1e-6)
    assert scalars[PROBE_ACCURACY] == pytest.approx(accuracy, rel=1e-12)
    assert scalars[PROBE_CALIBRATION_ERROR] == pytest.approx(error, rel=1e-5)
    row = profile.scalars[0]
    assert row.low < row.value < row.high
    assert row.layer is None
    assert row.subset is None
    assert row.n_batches == 2
    assert row.probe == probe.hash


def test_the_geometry_is_the_same_with_and_without():
    model = a_model()
    probe = a_probe()
    with_loss, without = (measure(model, probe, probe_loss=on).to_pandas() for on in (True, False))
    assert with_loss["value"].equals(without["value"])
    assert measure(model, probe).scalars == []


def test_an_encoder_predicts_masked_tokens():
    model = a_model("bert")
    probe = a_probe()
    masked, targets = masked_tokens(probe, MASK)
    positions = np.concatenate([at for at, _ in targets])
    assert len(positions) == len(set(positions)) == int(MASKED_SHARE * 288) // 2 * 2
    assert set(positions) <= set(probe.sample("all").ravel())
    assert not np.isin(probe.tokens[positions], probe.special_ids).any()
    ids = probe.tokens.clone()
    ids[positions] = MASK
    assert torch.equal(masked.tokens, ids)
    with torch.no_grad():
        logits = model(input_ids=ids.view(24, 12)).logits.flatten(0, 1).double()
    losses = [cross_entropy(logits[at], probe.tokens[at]).item() for at, _ in targets]
    scalars = values(measure(model, probe, probe_loss=True).scalars)
    assert scalars[PROBE_LOSS] == pytest.approx(np.mean(losses), rel=1e-6)
    assert PROBE_BITS_PER_BYTE not in scalars


def test_a_model_of_one_s_own():
    torch.manual_seed(0)
    model = HandWritten().eval()
    probe = a_probe(bytes_per_token=None)
    with torch.no_grad():
        logits = model(probe.tokens.view(24, 12))
    scalars = values(measure(model, probe, probe_loss=True).scalars)
    assert scalars[PROBE_LOSS] == pytest.approx(
        naive(logits, probe, probe.sample("all"))[0], rel=1e-6
    )
    assert PROBE_BITS_PER_BYTE not in scalars


def test_reasons():
    def reason(model, probe):
        (row,) = measure(model, probe, probe_loss=True).scalars
        assert math.isnan(row.value)
        return row.reason

    assert reason(a_model().base_model, a_probe()) == NO_LOGITS
    assert reason(a_model("bert"), a_probe(mask_id=None)) == NO_MASK
    broken = a_model()
    nn.init.constant_(broken.lm_head.weight, torch.inf)
    assert "not finite" in reason(broken, a_probe())


@pytest.mark.parametrize("family", ["gpt_neox", "bert"])
def test_on_a_device(family):
    expected = values(measure(a_model(family), a_probe(), probe_loss=True).scalars)
    with PretendCuda():
        found = values(measure(a_model(family).to("cuda"), a_probe(), probe_loss=True).scalars)
    assert found == expected

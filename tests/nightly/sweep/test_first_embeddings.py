"""The input embeddings of a checkpoint beside those of the first one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2Model

from repdyn.checkpoints.run import N_COMPARED, cosine_to_first, input_embeddings


@pytest.fixture
def first():
    return torch.randn(3000, 16, generator=torch.Generator().manual_seed(0))


def test_the_median_cosine_of_embeddings_spread_over_the_vocabulary(tmp_path, first):
    assert cosine_to_first(first, tmp_path, 8, is_first=True) == (8, pytest.approx(1))
    later = first + torch.randn(3000, 16, generator=torch.Generator().manual_seed(1))
    places = torch.linspace(0, 2999, N_COMPARED).long()
    a, b = first[places].double(), later[places].double()
    expected = ((a * b).sum(1) / a.norm(dim=1) / b.norm(dim=1)).median().item()
    for is_first in (True, False):
        assert cosine_to_first(later, tmp_path, 64, is_first=is_first) == (8, pytest.approx(expected, rel=1e-12))
    # those of step 8 remain, whatever is measured later
    assert cosine_to_first(-3 * first, tmp_path, 0, is_first=True) == (8, pytest.approx(-1))
    half = first.bfloat16().requires_grad_()
    assert cosine_to_first(half, tmp_path, 9, is_first=True) == (8, pytest.approx(1, abs=1e-4))


def test_without_a_first_checkpoint_there_is_no_cosine(tmp_path, first):
    assert cosine_to_first(first, tmp_path, 8, is_first=False) is None
    assert not list(tmp_path.iterdir())


def test_another_vocabulary_is_not_compared(tmp_path, first):
    cosine_to_first(first[:500], tmp_path, 8, is_first=True)
    assert cosine_to_first(first[:400], tmp_path, 9, is_first=True) is None
    assert cosine_to_first(first[:500, :8], tmp_path, 9, is_first=True) is None
    assert cosine_to_first(first[:500], tmp_path, 9, is_first=True) == (8, pytest.approx(1))


def test_with_a_damaged_file_there_is_no_cosine(tmp_path, first, caplog):
    cosine_to_first(first, tmp_path, 8, is_first=True)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    assert cosine_to_first(first, tmp_path, 9, is_first=True) is None
    assert "of step 9 are not compared" in caplog.text


def test_models_with_and_without_embeddings():
    model = GPT2Model(GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=8))
    found = input_embeddings(model)
    assert found is not None
    assert torch.equal(found, model.wte.weight)
    assert not found.requires_grad
    assert input_embeddings(nn.Linear(2, 2)) is None
    assert input_embeddings(model.to("meta")) is None

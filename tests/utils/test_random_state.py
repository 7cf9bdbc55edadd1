"""What runs beside a training leaves its random numbers as they are."""

import random

import numpy as np
import pytest
import torch

from repdyn.utils.random_state import isolated_rng


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


@pytest.mark.parametrize("fails", [False, True])
def test_generators_go_on_as_if_nothing_had_been_drawn(fails):
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    first, expected = draw(), draw()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert draw() == first
    try:
        with isolated_rng():
            torch.manual_seed(7)
            assert draw() != expected
            if fails:
                raise ValueError
    except ValueError:
        assert fails
    assert draw() == expected


def test_cuda_is_restored_once_it_is_in_use_and_never_initialized(monkeypatch):
    restored = []
    monkeypatch.setattr("torch.cuda.get_rng_state_all", lambda: ["state of device 0"])
    monkeypatch.setattr("torch.cuda.set_rng_state_all", restored.append)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    with isolated_rng():
        pass
    assert restored == []
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    with isolated_rng():
        pass
    assert restored == [["state of device 0"]]

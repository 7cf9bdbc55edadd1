"""Entropy and cosine within sequences: against matrices written out, and what they do not depend
on.
"""

import numpy as np
import pytest
import torch
from hostile import HOSTILE

from repdyn.kernels import (
    Sequences,
    curvature,
    largest_activation,
    prompt_entropy,
    sequence_cosine,
    sequence_entropy,
)

KERNELS = [sequence_entropy, sequence_cosine]
# equal and unequal lengths, of more and of fewer tokens than the 80 coordinates
SPLITS = {
    "equal": (40,) * 10,
    "unequal": (2, 150, 3, 100, 79, 66),
    "one": (400,),
    "pairs": (2,) * 200,
}
CLOUDS = ["gaussian", "low_rank", "offset_3000", "sinks", "bfloat16"]


def of(name, split="unequal"):
    points = HOSTILE[name]()
    assert len(points) == 400
    return Sequences(points, SPLITS[split])


def in_numpy(of_sequences):
    return np.split(of_sequences.x.double().numpy(), np.cumsum(of_sequences.lengths)[:-1])


def naive_entropy(of_sequences, normalised):
    values = []
    for z in in_numpy(of_sequences):
        gram = z @ z.T
        shares = np.linalg.eigvalsh(gram / np.trace(gram))
        shares = shares[shares > 1e-18]
        entropy = -(shares * np.log(shares)).sum()
        values.append(entropy / np.log(min(z.shape)) if normalised else entropy)
    return np.mean(values)


def naive_cosine(of_sequences):
    values = []
    for z in in_numpy(of_sequences):
        units = z / np.linalg.norm(z, axis=1, keepdims=True)
        values.append((units @ units.T)[~np.eye(len(z), dtype=bool)].mean())
    return np.mean(values)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", CLOUDS)
def test_entropy_of_the_matrix_written_out(name, split):
    given = of(name, split)
    for normalised in (True, False):
        found = sequence_entropy(given, normalised=normalised).item()
        assert found == pytest.approx(naive_entropy(given, normalised), rel=1e-9, abs=1e-12)
    assert 0 <= sequence_entropy(given).item() <= 1


def naive_prompt_entropy(of_sequences, order):
    values = []
    for z in in_numpy(of_sequences):
        z = z - z.mean(0)
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        values_of_k = np.linalg.eigvalsh(np.maximum(z.T @ z if len(z) > z.shape[1] else z @ z.T, 0))
        shares = values_of_k[values_of_k > 0] / values_of_k[values_of_k > 0].sum()
        entropy = -np.log((shares**2).sum()) if order == 2 else -(shares * np.log(shares)).sum()
        values.append(entropy / np.log(min(z.shape)))
    return np.mean(values)


@pytest.mark.parametrize("split", ["equal", "one"])
@pytest.mark.parametrize("name", ["gaussian", "low_rank", "sinks"])
def test_prompt_entropy_and_curvature_written_out(name, split):
    given = of(name, split)
    for order in (1, 2):
        assert prompt_entropy(given, order=order).item() == pytest.approx(
            naive_prompt_entropy(given, order), rel=1e-9
        )
    steps = [np.diff(z, axis=0) for z in in_numpy(given)]
    units = [step / np.linalg.norm(step, axis=1, keepdims=True) for step in steps]
    angles = [np.arccos((unit[1:] * unit[:-1]).sum(1)).mean() for unit in units]
    assert curvature(given).item() == pytest.approx(np.mean(angles) - 2 * np.pi / 3, rel=1e-7)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", HOSTILE)
def test_the_largest_activation_counted_one_by_one_in_float64(name, split):
    points = HOSTILE[name]()
    given = Sequences(points, SPLITS[split] if len(points) == 400 else (len(points) - 2, 2))
    expected = np.mean([np.abs(z).max() for z in in_numpy(given)])
    assert largest_activation(given).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", CLOUDS)
def test_cosine_of_every_pair(name, split):
    given = of(name, split)
    assert sequence_cosine(given).item() == pytest.approx(naive_cosine(given), rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["gaussian", "low_rank", "offset_3000", "sinks"])
def test_invariances(name, kernel):
    points = HOSTILE[name]().double()
    lengths = SPLITS["unequal"]
    generator = torch.Generator().manual_seed(0)
    rotation = torch.linalg.qr(torch.randn(80, 80, dtype=torch.float64, generator=generator)).Q
    expected = kernel(Sequences(points, lengths)).item()
    parts = points.split(lengths)
    shuffled = torch.cat([part[torch.randperm(len(part), generator=generator)] for part in parts])
    scaled = torch.cat([part * 3.0**number for number, part in enumerate(parts)])
    for changed in (points @ rotation, points * 7, -points, shuffled, scaled):
        assert kernel(Sequences(changed, lengths)).item() == pytest.approx(
            expected, rel=1e-9, abs=1e-13
        )
    backwards = Sequences(torch.cat(parts[::-1]), lengths[::-1])
    assert kernel(backwards).item() == pytest.approx(expected, rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("exponent", [-300, -200, -30, 30, 200, 300])
def test_vectors_of_any_size(exponent, kernel):
    points = HOSTILE["gaussian"]().double()
    lengths = SPLITS["unequal"]
    expected = kernel(Sequences(points, lengths)).item()
    assert kernel(Sequences(points * 10.0**exponent, lengths)).item() == pytest.approx(
        expected, rel=1e-9
    )

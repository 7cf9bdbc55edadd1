"""Entropy and cosine within sequences: against matrices written out, and what they do not depend
on.
"""

import metric_oracles as oracles
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


def naive(oracle, of_sequences, **settings):
    return oracles.mean_over(of_sequences.lengths, oracle)(
        of_sequences.x.double().numpy(), **settings
    )


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", CLOUDS)
def test_entropy_of_the_matrix_written_out(name, split):
    sequences = of(name, split)
    for normalised in (True, False):
        found = sequence_entropy(sequences, normalised=normalised).item()
        assert found == pytest.approx(
            naive(oracles.sequence_entropy, sequences, normalised=normalised), rel=1e-9, abs=1e-12
        )
    assert 0 <= sequence_entropy(sequences).item() <= 1


@pytest.mark.parametrize("split", ["equal", "one"])
@pytest.mark.parametrize("name", ["gaussian", "low_rank", "sinks"])
def test_prompt_entropy_and_curvature_written_out(name, split):
    sequences = of(name, split)
    for order in (1, 2):
        assert prompt_entropy(sequences, order=order).item() == pytest.approx(
            naive(oracles.prompt_entropy, sequences, order=order), rel=1e-9
        )
    assert curvature(sequences).item() == pytest.approx(
        naive(oracles.curvature, sequences), rel=1e-7
    )


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", HOSTILE)
def test_the_largest_activation_counted_one_by_one_in_float64(name, split):
    points = HOSTILE[name]()
    sequences = Sequences(points, SPLITS[split] if len(points) == 400 else (len(points) - 2, 2))
    expected = naive(oracles.largest_activation, sequences)
    assert largest_activation(sequences).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", CLOUDS)
def test_cosine_of_every_pair(name, split):
    sequences = of(name, split)
    assert sequence_cosine(sequences).item() == pytest.approx(
        naive(oracles.mean_cosine, sequences), rel=1e-12, abs=1e-13
    )


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

import numpy as np
import pytest
import torch
from hostile import HOSTILE

from repdyn.kernels import (
    Cloud,
    Undefined,
    anisotropy,
    effective_rank,
    lidar,
    participation_ratio,
    rank_me,
    spectrum,
)


def naive_singular_values(points):
    x = points.double().numpy()
    return np.linalg.svd(x - x.mean(0), compute_uv=False)


def entropy_rank(shares):
    return np.exp(-(shares * np.log(shares)).sum())


@pytest.mark.parametrize("name", HOSTILE)
def test_numbers_of_directions_against_a_float64_svd(name):
    points = HOSTILE[name]()
    values = naive_singular_values(points)
    squares = values[values > 0] ** 2
    assert participation_ratio(points).item() == pytest.approx(squares.sum() ** 2 / (squares**2).sum(), rel=1e-6)
    assert rank_me(points).item() == pytest.approx(entropy_rank(squares / squares.sum()), rel=1e-6)
    # directions that float32 rounding makes up have singular values of 1e-7 of the largest
    shares = values[values > 1e-6 * values[0]] / values.sum()
    assert effective_rank(points).item() == pytest.approx(entropy_rank(shares), rel=1e-3)


@pytest.mark.parametrize("name", ["gaussian", "heavy_tail", "d_gt_n", "low_rank"])
def test_rank_me_of_points_as_they_are(name):
    points = HOSTILE[name]().double() + 3
    values = np.linalg.svd(points.numpy(), compute_uv=False) ** 2
    shares = values[values > 0] / values.sum()
    raw = rank_me(points, centred=False).item()
    assert raw == pytest.approx(entropy_rank(shares), rel=1e-8)
    assert rank_me(points * 7, centred=False).item() == pytest.approx(raw, rel=1e-8)
    assert rank_me(points - points.mean(0), centred=False).item() == pytest.approx(rank_me(points).item(), rel=1e-8)


def test_even_spectra_count_their_directions():
    cross = torch.cat([torch.eye(9), -torch.eye(9)])
    assert participation_ratio(cross).item() == pytest.approx(9, rel=1e-12)
    assert effective_rank(cross).item() == pytest.approx(9, rel=1e-12)
    assert rank_me(cross).item() == pytest.approx(9, rel=1e-12)


def test_one_decomposition_serves_all(monkeypatch):
    calls = []
    gram_matrix = spectrum.gram_matrix
    monkeypatch.setattr(spectrum, "gram_matrix", lambda *args, **how: calls.append(1) or gram_matrix(*args, **how))
    cloud = Cloud(HOSTILE["gaussian"](), whole_spectrum=True)
    for kernel in (anisotropy.or_raise, participation_ratio.or_raise, effective_rank.or_raise):
        kernel(cloud)
    assert calls == [1]


@pytest.mark.parametrize("kernel", [participation_ratio.or_raise, effective_rank.or_raise, rank_me.or_raise])
def test_undefined_has_a_reason(kernel):
    with pytest.raises(Undefined, match=r"^1 distinct of 10 points, at least 3 needed$"):
        kernel(Cloud(torch.zeros(10, 4)))


def test_lidar_of_normal_texts():
    """Between them variances b, within w: eigenvalues (b + w / q) / (w (1 - 1 / q)), whatever linear map follows."""
    between, views = torch.tensor([8.0, 4, 2, 1, 0, 0]), 4
    texts = torch.arange(20_000).repeat_interleave(views)
    generator = torch.Generator().manual_seed(0)
    x = (between.sqrt() * torch.randn(20_000, 6, generator=generator))[texts]
    x += 0.5**0.5 * torch.randn(len(x), 6, generator=generator)
    assert lidar(x, texts).item() == pytest.approx(3.41, abs=0.02)
    mapped = x @ torch.randn(6, 6, generator=generator) + 3
    assert lidar(mapped, texts, delta=0.0).item() == pytest.approx(lidar(x, texts, delta=0.0).item(), rel=1e-4)
    with pytest.raises(Undefined, match="0 vectors beside one of each of 0 classes, at least 6 needed"):
        lidar.or_raise(x[::views], texts[::views])

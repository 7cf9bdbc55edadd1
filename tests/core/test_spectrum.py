from itertools import permutations
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hostile import HOSTILE

from repdyn import kernels
from repdyn.kernels import (
    Cloud,
    UndefinedError,
    dime,
    effective_rank,
    effective_rank_of_variance,
    lidar,
    participation_ratio,
    spectrum,
    unbiased_participation_ratio,
)
from repdyn.metrics import resolve


def naive_singular_values(points):
    x = points.double().numpy()
    return np.linalg.svd(x - x.mean(0), compute_uv=False)


def entropy_rank(shares):
    return np.exp(-(shares * np.log(shares)).sum())


@pytest.mark.parametrize("name", HOSTILE)
def test_numbers_of_directions_against_a_float64_svd(name):
    points = HOSTILE[name]()
    values = naive_singular_values(points)
    is_above_zero = values > 0
    squares = values[is_above_zero] ** 2
    assert participation_ratio(points).item() == pytest.approx(
        squares.sum() ** 2 / (squares**2).sum(), rel=1e-6
    )
    assert effective_rank_of_variance(points).item() == pytest.approx(
        entropy_rank(squares / squares.sum()), rel=1e-6
    )
    # directions that float32 rounding makes up have singular values of 1e-7 of the largest
    is_more_than_rounding = values > 1e-6 * values[0]
    shares = values[is_more_than_rounding] / values.sum()
    assert effective_rank(points).item() == pytest.approx(entropy_rank(shares), rel=1e-3)


@pytest.mark.parametrize("name", ["gaussian", "heavy_tail", "d_gt_n", "low_rank"])
def test_ranks_of_points_as_they_are(name):
    points = HOSTILE[name]().double() + 3
    values = np.linalg.svd(points.numpy(), compute_uv=False) ** 2
    is_above_zero = values > 0
    shares = values[is_above_zero] / values.sum()
    raw = effective_rank_of_variance(points, centred=False).item()
    assert raw == pytest.approx(entropy_rank(shares), rel=1e-8)
    assert effective_rank_of_variance(points * 7, centred=False).item() == pytest.approx(
        raw, rel=1e-8
    )
    assert effective_rank_of_variance(
        points - points.mean(0), centred=False
    ).item() == pytest.approx(effective_rank_of_variance(points).item(), rel=1e-8)


def test_effective_rank_of_points_as_they_are_is_rank_me():
    """By the published formula: singular values of the embeddings, and 1e-7 added to each share."""
    points = torch.randn(500, 32, generator=torch.Generator().manual_seed(0)) + 0.5
    values = torch.linalg.svdvals(points)
    shares = values / values.sum() + 1e-7
    published = (-shares * shares.log()).sum().exp().item()
    assert effective_rank(points, centred=False).item() == pytest.approx(published, rel=1e-5)
    assert effective_rank(points).item() != pytest.approx(published, rel=1e-2)


def test_the_name_of_two_quantities_is_refused_with_those_of_both():
    for name in ("rank_me", "RankMe", "rankme"):
        with pytest.raises(ValueError, match="effective_rank_of_variance") as refused:
            resolve([name])
        assert "'effective_rank[centred=false]'" in str(refused.value)
    with pytest.raises(AttributeError, match=r"effective_rank\(x, centred=False\)"):
        kernels.rank_me  # noqa: B018


def test_even_spectra_count_their_directions():
    cross = torch.cat([torch.eye(9), -torch.eye(9)])
    assert participation_ratio(cross).item() == pytest.approx(9, rel=1e-12)
    assert effective_rank(cross).item() == pytest.approx(9, rel=1e-12)
    assert effective_rank_of_variance(cross).item() == pytest.approx(9, rel=1e-12)


@pytest.mark.parametrize("n", [4, 5, 33, 64])
@pytest.mark.parametrize("unit", [0.1, 1.0])
def test_orthogonal_points_of_one_length_say_nothing_of_their_distribution(n, unit):
    """What is left of the difference is rounding: a quotient by it was 1e16, or undefined."""
    with pytest.raises(UndefinedError, match="the estimated sum of squared eigenvalues is not"):
        unbiased_participation_ratio.or_raise(unit * torch.eye(n))


def test_one_decomposition_serves_all(monkeypatch):
    gram_matrix = Mock(wraps=spectrum.gram_matrix)
    monkeypatch.setattr(spectrum, "gram_matrix", gram_matrix)
    cloud = Cloud(HOSTILE["gaussian"]())
    for kernel in (participation_ratio.or_raise, effective_rank.or_raise):
        kernel(cloud)
    assert gram_matrix.call_count == 1


@pytest.mark.parametrize(
    "kernel",
    [participation_ratio.or_raise, effective_rank.or_raise, effective_rank_of_variance.or_raise],
)
def test_undefined_has_a_reason(kernel):
    with pytest.raises(UndefinedError, match=r"^1 distinct of 10 points, at least 3 needed$"):
        kernel(Cloud(torch.zeros(10, 4)))


def test_lidar_of_normal_texts():
    """Between them variances b, within w: eigenvalues (b + w / q) / (w (1 - 1 / q)), whatever
    linear map follows.
    """
    between, views = torch.tensor([8.0, 4, 2, 1, 0, 0]), 4
    texts = torch.arange(20_000).repeat_interleave(views)
    generator = torch.Generator().manual_seed(0)
    x = (between.sqrt() * torch.randn(20_000, 6, generator=generator))[texts]
    x += 0.5**0.5 * torch.randn(len(x), 6, generator=generator)
    assert lidar(x, texts).item() == pytest.approx(3.41, abs=0.02)
    mapped = x @ torch.randn(6, 6, generator=generator) + 3
    assert lidar(mapped, texts, delta=0.0).item() == pytest.approx(
        lidar(x, texts, delta=0.0).item(), rel=1e-4
    )
    with pytest.raises(
        UndefinedError, match="0 classes have at least 2 vectors, at least 2 classes needed"
    ):
        lidar.or_raise(x[::views], texts[::views])


def test_dime_is_a_mean_over_all_permutations():
    """Both views of a window must keep to it where windows are exchanged; a third vector belongs to
    the first view.
    """
    x = torch.randn(15, 3, generator=torch.Generator().manual_seed(0))
    windows = torch.tensor([9, 4, 4, 9, 7, -1, 7, 5, 5, 1, 9, 1, 4, 7, -1])
    members = [[9, 11], [1, 2, 12], [7, 8], [4, 6, 13], [0, 3, 10]]
    first, second = (torch.stack([x[rows[turn::2]].mean(0) for rows in members]) for turn in (0, 1))

    def gram(view):
        centred = (view - view.mean(0)).double().numpy()
        return np.array([[a @ b / np.sqrt((a @ a) * (b @ b)) for b in centred] for a in centred])

    def entropy(order):
        shares = (
            np.linalg.eigvalsh(gram(first) * gram(second)[np.ix_(order, order)]).clip(1e-300) / 5
        )
        return -(shares * np.log(shares)).sum()

    expected = np.mean([entropy(order) for order in permutations(range(5))]) - entropy(range(5))
    assert dime(x, windows, permutations=6000).item() == pytest.approx(expected, abs=0.01)
    # of k equal classes, as the corners of a simplex: 2 log(k - 1) less the entropy of squared
    # cosines
    corners = torch.eye(4)[torch.arange(800) % 4].repeat_interleave(2, 0)
    views = torch.arange(800).repeat_interleave(2)
    squared = np.array([1 / 3, 2 / 9, 2 / 9, 2 / 9])
    assert dime(corners, views, pairs=800).item() == pytest.approx(
        2 * np.log(3) + (squared * np.log(squared)).sum(), abs=0.01
    )
    with pytest.raises(
        UndefinedError, match="1 classes have at least 2 vectors, at least 2 classes needed"
    ):
        dime.or_raise(x, torch.tensor([3, 3, *range(4, 17)]))

import itertools

import numpy as np
import pytest
import torch
from hostile import HOSTILE
from pairs import NO_NUMBERS, SCALES, normal, rotation

from repdyn.kernels import Cloud, Undefined, class_variance


def classes_of(n, n_classes=7, without=5):
    """Classes of unequal sizes, in no order, and every fifth vector in none."""
    generator = torch.Generator().manual_seed(3)
    classes = 100 - (torch.rand(n, generator=generator).square() * n_classes).long()
    classes[::without] = -1
    return classes


def naive(points, classes, min_vectors=2):
    """Pair by pair in float64."""
    x, of = points.double().numpy(), classes.numpy()
    # the ratio does not depend on the scale, squares of 1e-300 do
    x = x / np.abs(x).max()
    names = [name for name in np.unique(of) if name >= 0 and (of == name).sum() >= min_vectors]
    means = {name: x[of == name].mean(0) for name in names}
    variances = {name: ((x[of == name] - means[name]) ** 2).sum(1).mean() for name in names}
    return np.mean(
        [
            (variances[a] + variances[b]) / (2 * ((means[a] - means[b]) ** 2).sum())
            for a, b in itertools.combinations(names, 2)
        ]
    )


# two clouds are too small for classes of several vectors, in one all means but two are equal up to rounding
@pytest.mark.parametrize("name", sorted(HOSTILE.keys() - {"n_3", "n_5", "underflowing"}))
def test_pair_by_pair_in_float64(name):
    points = HOSTILE[name]()
    classes = classes_of(len(points))
    assert class_variance(points, classes).item() == pytest.approx(naive(points, classes), rel=1e-7)


@pytest.mark.parametrize("min_vectors", [2, 6, 12])
def test_small_classes_are_left_out(min_vectors):
    points, classes = HOSTILE["low_rank"](), classes_of(400, n_classes=40)
    expected = naive(points, classes, min_vectors)
    assert class_variance(points, classes, min_vectors=min_vectors).item() == pytest.approx(expected, rel=1e-10)
    assert expected != pytest.approx(naive(points, classes, min_vectors + 3), rel=1e-3)


def test_means_that_rounding_decides_have_no_value():
    assert class_variance(HOSTILE["underflowing"](), classes_of(202)).isnan()


@pytest.mark.parametrize("name", ["gaussian", "low_rank", "offset_3000", "d_gt_n"])
def test_invariances(name):
    points = HOSTILE[name]().double()
    classes = classes_of(len(points))
    expected = class_variance(points, classes).item()
    padded = torch.nn.functional.pad(points, (3, 40))
    for changed in (points * 7, points + 5, points @ rotation(points.shape[1]), padded):
        assert class_variance(changed, classes).item() == pytest.approx(expected, rel=1e-9)
    assert class_variance(points.flip(0), classes.flip(0)).item() == pytest.approx(expected, rel=1e-10)
    renamed = torch.where(classes < 0, -5, 3 * (200 - classes))
    assert class_variance(points, renamed).item() == pytest.approx(expected, rel=1e-10)
    kept = classes >= 0
    assert class_variance(points[kept], classes[kept]).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("dtype", "scale"), SCALES.values(), ids=SCALES)
def test_scales_whose_squares_are_no_numbers(dtype, scale):
    points, classes = normal(90, 20).to(dtype), classes_of(90)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-11
    expected = class_variance(points, classes).item()
    assert class_variance(points * scale, classes).item() == pytest.approx(expected, rel=tolerance)


PAIRS = torch.arange(10) // 2
UNDEFINED = {
    **{name: (points, reason, torch.arange(5) // 2) for name, (points, reason) in NO_NUMBERS.items()},
    "constant": (torch.ones(10, 2), "1 distinct of 10 points, at least 3 needed", PAIRS),
    "one class": (
        normal(10, 2),
        "1 classes have at least 2 vectors, at least 2 classes needed",
        torch.tensor([0, 0, 1, 2, 3, 4, 5, -1, -1, -1]),
    ),
    "no class": (normal(10, 2), "0 classes have at least 2 vectors, at least 2 classes needed", torch.full((10,), -1)),
    "same mean": (
        torch.tensor([[1.0, 0], [-1, 0], [0, 2], [0, -2], [5, 5], [6, 6]]),
        "1 of 3 pairs of classes have the same mean up to rounding",
        torch.arange(6) // 2,
    ),
}


@pytest.mark.parametrize(("points", "reason", "classes"), UNDEFINED.values(), ids=UNDEFINED)
def test_undefined_is_nan_with_a_reason(points, reason, classes):
    assert class_variance(points, classes).isnan()
    with pytest.raises(Undefined) as caught:
        class_variance.or_raise(Cloud(points), classes)
    assert caught.value.reason == reason

import metric_oracles as oracles
import pytest
import torch
from hostile import HOSTILE
from pairs import rotation

from repdyn.kernels import class_variance


def classes_of(n, n_classes=7, without=5):
    """Classes of unequal sizes, in no order, and every fifth vector in none."""
    generator = torch.Generator().manual_seed(3)
    classes = 100 - (torch.rand(n, generator=generator).square() * n_classes).long()
    classes[::without] = -1
    return classes


def naive(points, classes, min_vectors=2):
    return oracles.class_variance(points.double().numpy(), classes.numpy(), min_vectors)


# two clouds are too small for classes of several vectors, in one all means but two are equal up to
# rounding
@pytest.mark.parametrize("name", sorted(HOSTILE.keys() - {"n_3", "n_5", "underflowing"}))
def test_pair_by_pair_in_float64(name):
    points = HOSTILE[name]()
    classes = classes_of(len(points))
    assert class_variance(points, classes).item() == pytest.approx(naive(points, classes), rel=1e-7)


@pytest.mark.parametrize("min_vectors", [2, 6, 12])
def test_small_classes_are_left_out(min_vectors):
    points = HOSTILE["low_rank"]()
    classes = classes_of(400, n_classes=40)
    expected = naive(points, classes, min_vectors)
    assert class_variance(points, classes, min_vectors=min_vectors).item() == pytest.approx(
        expected, rel=1e-10
    )
    assert expected != pytest.approx(naive(points, classes, min_vectors + 3), rel=1e-3)


@pytest.mark.parametrize("name", ["gaussian", "low_rank", "offset_3000", "d_gt_n"])
def test_invariances(name):
    points = HOSTILE[name]().double()
    classes = classes_of(len(points))
    expected = class_variance(points, classes).item()
    padded = torch.nn.functional.pad(points, (3, 40))
    for changed in (points * 7, points + 5, points @ rotation(points.shape[1]), padded):
        assert class_variance(changed, classes).item() == pytest.approx(expected, rel=1e-9)
    assert class_variance(points.flip(0), classes.flip(0)).item() == pytest.approx(
        expected, rel=1e-10
    )
    renamed = torch.where(classes < 0, -5, 3 * (200 - classes))
    assert class_variance(points, renamed).item() == pytest.approx(expected, rel=1e-10)
    kept = classes >= 0
    assert class_variance(points[kept], classes[kept]).item() == pytest.approx(expected, rel=1e-9)

"""What users hand to a kernel: arrays, data frames and lists give the value of the tensor; anything
else a sentence that says what to write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from repdyn import kernels

CLOUD = np.random.default_rng(0).normal(size=(60, 5))
KERNELS = [kernels.two_nn, kernels.anisotropy, kernels.mean_cosine, kernels.effective_rank]


class ArrayOfAnotherPackage:
    """As jax and cupy have them, or a xarray: it gives a numpy array that cannot be written to."""

    def __array__(self, dtype=None, copy=None):
        array = CLOUD.copy()
        array.flags.writeable = False
        return array


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize(
    "argument",
    [
        CLOUD,
        CLOUD[::-1][::-1],
        np.asfortranarray(CLOUD),
        CLOUD.astype(">f8"),
        CLOUD.astype(np.longdouble),
        CLOUD.tolist(),
        tuple(map(tuple, CLOUD.tolist())),
        [torch.as_tensor(row) for row in CLOUD],
        pd.DataFrame(CLOUD),
        pd.DataFrame(CLOUD).astype({0: object}),
        ArrayOfAnotherPackage(),
    ],
    ids=[
        "numpy",
        "negative strides",
        "by columns",
        "of another byte order",
        "long double",
        "lists",
        "tuples",
        "list of tensors",
        "data frame",
        "data frame of several types",
        "read-only array",
    ],
)
def test_arrays_lists_and_data_frames_are_points(kernel, argument):
    before = (
        np.array(argument, dtype="float64", copy=True) if hasattr(argument, "__array__") else None
    )
    expected = kernel(torch.as_tensor(CLOUD))
    assert torch.equal(kernel(argument), expected)
    assert torch.equal(kernel(x=argument), expected)
    assert torch.equal(kernel.or_raise(argument), expected)
    assert torch.equal(kernel(kernels.Cloud(argument)), expected)
    assert before is None or np.array_equal(before, np.array(argument, dtype="float64"))


def test_half_precision_of_an_array_is_kept():
    half = CLOUD.astype("float16")
    assert torch.equal(kernels.two_nn(half), kernels.two_nn(torch.as_tensor(half)))


def test_further_points_and_labels_may_be_arrays_and_lists():
    x = torch.as_tensor(CLOUD)
    y = torch.as_tensor(CLOUD[::-1].copy())
    classes = torch.arange(60) % 3
    pairs = [
        (kernels.linear_cka(CLOUD, CLOUD[::-1]), kernels.linear_cka(x, y)),
        (
            kernels.class_variance(CLOUD.tolist(), classes.tolist()),
            kernels.class_variance(x, classes),
        ),
        (
            kernels.class_variance(CLOUD, pd.Series(classes.numpy())),
            kernels.class_variance(x, classes),
        ),
        (kernels.update_ratio([1.0, 0.5], before=[1.0, 0.0]), torch.tensor(0.5)),
        (
            kernels.prompt_entropy(kernels.Sequences(CLOUD, (30, 30))),
            kernels.prompt_entropy(kernels.Sequences(x, (30, 30))),
        ),
    ]
    assert [float(value) for value, _ in pairs] == [float(expected) for _, expected in pairs]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize(
    ("argument", "error", "words"),
    [
        ("states.npy", TypeError, r"nested lists of numbers, got str; read the file first"),
        (Path("states.npy"), TypeError, "got PosixPath; read the file first"),
        (None, TypeError, "got NoneType"),
        (1.0, TypeError, "got float"),
        ({"x": CLOUD}, TypeError, "got dict"),
        (iter(CLOUD), TypeError, "torch.as_tensor"),
        ([["a", "b"], ["c", "d"]], TypeError, "expected nested lists of numbers"),
        ([[1.0, 2.0], [3.0]], ValueError, "lists of one length"),
        (pd.DataFrame({"word": ["a"], "x": [1.0]}), TypeError, "select its columns of numbers"),
        (np.array([["a", "b"]]), TypeError, "expected numbers"),
        (CLOUD[0], ValueError, r"shape \(n_vectors, dim\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_points_is_refused_with_what_to_write(kernel, argument, error, words):
    """AttributeError: 'str' object has no attribute 'x'."""
    with pytest.raises(error, match=words):
        kernel(argument)
    with pytest.raises(error, match=words):
        kernels.Cloud(argument)


def test_an_undefined_value_of_an_array_is_nan():
    assert kernels.two_nn(CLOUD[:1]).isnan()
    assert kernels.two_nn(CLOUD[:1].tolist()).isnan()

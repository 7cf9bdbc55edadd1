"""The store of a sweep for exports."""

import math

import pytest

NAN = math.nan


@pytest.fixture
def store(published, failures, filled, tmp_path):
    """One model swept at three steps, the second without a value in the embedding output, and a
    failed step.
    """

    def dimension(step, depth):
        return NAN if (step, depth) == (1, 0) else 10 + step + depth

    rows = published(
        "lab/model-70m", steps=(0, 1, 8), n_blocks=2, dimension=dimension, probe="abc123"
    )
    return filled(tmp_path / "sweeps", rows, failures(4, probe="abc123"))

"""Made-up runs as fixtures."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest
from synthetic_runs import (
    fill,
    make_failures,
    make_finished,
    make_published,
    make_row,
    make_run,
    make_scalar,
    make_two_stacks,
    to_frame,
)

from repdyn.store import Store
from repdyn.store.schema import Row


@pytest.fixture
def row() -> Callable[..., Row]:
    return make_row


@pytest.fixture
def scalar_row() -> Callable[..., Row]:
    return make_scalar


@pytest.fixture
def run() -> Callable[..., pd.DataFrame]:
    return make_run


@pytest.fixture
def published() -> Callable[..., list[Row]]:
    return make_published


@pytest.fixture
def finished() -> Callable[..., list[Row]]:
    return make_finished


@pytest.fixture
def two_stacks() -> Callable[..., list[Row]]:
    return make_two_stacks


@pytest.fixture
def failures() -> Callable[..., list[Row]]:
    return make_failures


@pytest.fixture
def frame_of() -> Callable[..., pd.DataFrame]:
    """Rows of several runs as a store gives them."""
    return lambda *runs: to_frame([row for rows in runs for row in rows])


@pytest.fixture
def filled() -> Callable[..., Store]:
    return fill


@pytest.fixture
def several(frame_of: Callable[..., pd.DataFrame]) -> pd.DataFrame:
    """Two decoders and two encoders, the larger one first in the alphabet."""
    return frame_of(
        make_published("lab/a-160m", steps=(0, 1, 8, 64, 512), parameters=160_000_000, n_blocks=8),
        make_published("lab/b-70m", steps=(0, 1, 8, 64, 512), parameters=70_000_000, n_blocks=4),
        make_finished("other/bert-large", parameters=300_000_000),
        make_finished("other/bert-base", parameters=100_000_000),
    )

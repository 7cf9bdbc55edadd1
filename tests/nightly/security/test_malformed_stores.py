"""Stores that are damaged: a clear error that names the file, or what was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored_rows import KEY, row
from sweeping import attempt

from repdyn import open_store

FUZZ = settings(
    deadline=None,
    max_examples=120,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
ROWS = [row(layer=layer, value=1.5 * layer) for layer in range(4)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    """A file of a store."""
    return open_store(tmp_path_factory.mktemp("store")).write(KEY, ROWS).read_bytes()


def put(folder: Path, content: bytes) -> Path:
    path = folder / KEY.filename
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def assert_refused_or_right(folder: Path) -> None:
    store = open_store(folder)
    rows, refusal = attempt(lambda: store.read(KEY))
    if refusal is None:
        assert rows == ROWS
    else:
        assert str(folder) in refusal
        assert KEY not in store  # it is measured again
        with pytest.raises(ValueError, match="found none"):
            store.to_pandas()


@FUZZ
@given(
    st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=3
    )
)
def test_a_store_with_flipped_bits_never_gives_other_numbers(whole, tmp_path, flips):
    damaged = bytearray(whole)
    for where, mask in flips:
        damaged[int(where * len(damaged))] ^= mask
    put(tmp_path, bytes(damaged))
    assert_refused_or_right(tmp_path)

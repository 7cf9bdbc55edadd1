"""Fixtures of the tests of the state cache."""

import pytest
from saved_states import IDENTITY, CompletedCache

from repdyn.store.state_cache import StateCache


@pytest.fixture
def state_cache(tmp_path) -> StateCache:
    return CompletedCache(tmp_path / "earlier", **IDENTITY)

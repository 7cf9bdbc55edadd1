"""Fixtures of the tests of the state cache."""

import resource
import signal

import pytest
from saved_states import IDENTITY, CompletedCache

from repdyn.store.state_cache import StateCache


@pytest.fixture
def state_cache(tmp_path) -> StateCache:
    return CompletedCache(tmp_path / "earlier", **IDENTITY)


@pytest.fixture
def full_disk():
    """Return a function that limits files to 100 bytes, or lifts the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def set_full(full: bool) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100 if full else soft, hard))

    yield set_full
    set_full(False)
    signal.signal(signal.SIGXFSZ, before)

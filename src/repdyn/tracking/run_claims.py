"""Names of runs that this process has for itself, so that two trainings that start together share none."""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path

from repdyn.store import Store
from repdyn.store.leases import Claim
from repdyn.store.remote_errors import RemoteError
from repdyn.utils.attempts import TimeoutRunner

log = logging.getLogger(__name__)

CLAIM_SECONDS = 60.0
"""How long a training waits for a store to answer."""
RESUME_SECONDS = 10.0
"""How long a resumed training waits for the name: processes that a killed one has started end a little later."""
_RELEASE_SECONDS = 3.0
_POLL_SECONDS = 0.5

_held: dict[tuple[Path, str], Claim] = {}


def claim_run(store: Store, run: str) -> bool:
    """Return whether this process has the name of a run for itself, claimed now or before.

    Where a store knows no claims, which is logged, the answer is True.
    """
    key = (store.path.resolve(), run)
    if key in _held:
        return True
    try:
        claim = TimeoutRunner(CLAIM_SECONDS)(f"claiming {run}", lambda: store.claim_name(f"run {run}"))
    except (OSError, ValueError, NotImplementedError, RemoteError) as error:
        # a file system without locks, or a server that cannot create a file on condition or does not answer
        log.warning("no other training may call itself %s in %s, which cannot be ensured: %s", run, store.path, error)
        return True
    if claim is None:
        return False
    _held[key] = claim
    return True


def claim_new(store: Store, run: str, steps: Callable[[str], Sequence[int]], *, is_numbered: bool) -> str:
    """Claim the name of a new run, and return it, with a number if another process has it.

    Args:
        store: where it is claimed.
        run: the name.
        steps: returns the stored steps of a name.
        is_numbered: add a number also where the store has steps under the name.
    """

    def is_free(name: str) -> bool:
        if not claim_run(store, name):
            return False
        # a numbered name that another process has given back belongs to its steps
        is_taken = (is_numbered or name != run) and bool(steps(name))
        if is_taken:
            release_run(store, name)
        return not is_taken

    name = next(filter(is_free, chain([run], (f"{run}-{number}" for number in count(2)))))
    if name != run and not is_numbered:
        log.warning("another process measures %s in %s; this one is called %s", run, store.location, name)
    return name


def await_run(store: Store, run: str) -> None:
    """Claim the run that a training goes on with; log that another process has it after waiting a little."""
    deadline = time.monotonic() + RESUME_SECONDS
    while not claim_run(store, run):
        if time.monotonic() > deadline:
            log.warning(
                "another process measures %s in %s, or did until a moment ago; if it still runs, end one of the two",
                *(run, store.location),
            )
            return
        time.sleep(_POLL_SECONDS)


def release_run(store: Store, run: str) -> None:
    """Give the name back; a claim in a remote store that does not answer expires by itself."""
    _release((store.path.resolve(), run))


def _release(key: tuple[Path, str]) -> None:
    if (claim := _held.pop(key, None)) is not None:
        with suppress(TimeoutError):
            TimeoutRunner(_RELEASE_SECONDS)(f"releasing {key[1]}", claim.release)


@atexit.register
def release_all() -> None:
    """Give all names of this process back."""
    for key in list(_held):
        _release(key)

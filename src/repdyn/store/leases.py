"""Claims among machines that share a remote store, which need nothing but files created on condition.

A claim is the file ``claims/NAME.000001`` with the time until which it holds; its process extends it. A claim whose
time is over is taken over by creating ``claims/NAME.000002``: of several processes one succeeds. The clocks of the
machines must agree to within a minute.
"""

from __future__ import annotations

import json
import logging
import time
from threading import Event, Thread
from typing import Protocol
from uuid import uuid4

from repdyn.store.remote_errors import RemoteError
from repdyn.store.remote_folder import RemoteFolder

log = logging.getLogger(__name__)

FOLDER = "claims"
LEASE_SECONDS = 300.0
"""How long the claim of a machine that was lost is in the way."""
_EXTENSIONS_PER_LEASE = 5


class Claim(Protocol):
    """The exclusive right to measure something."""

    def release(self) -> None:
        """Give it back."""
        ...


class Lease:
    """A claim that this process holds, until :meth:`release`.

    Args:
        remote: the remote store.
        name: of the claim's file.
        owner: the machine's copy of the store.
        local: the lock against other processes of this machine; released with the claim.
    """

    def __init__(self, remote: RemoteFolder, name: str, owner: str, local: Claim) -> None:
        self._remote = remote
        self._name = name
        self._owner = owner
        self._local = local
        self._ended = Event()
        self._thread = Thread(target=self._extend, name="repdyn-claim", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Give the claim back; one that cannot be deleted now expires by itself."""
        self._ended.set()
        self._thread.join(LEASE_SECONDS / _EXTENSIONS_PER_LEASE)
        try:
            self._remote.delete(self._name)
        except RemoteError as error:
            log.warning("a claim expires in %d s: %s", LEASE_SECONDS, error)
        finally:
            self._local.release()

    def _extend(self) -> None:
        while not self._ended.wait(LEASE_SECONDS / _EXTENSIONS_PER_LEASE):
            try:
                self._remote.write(self._name, claim_content(self._owner))
            except RemoteError as error:
                log.warning("a claim could not be extended: %s", error)


def acquire(remote: RemoteFolder, name: str, owner: str, local: Claim) -> Lease | None:
    """Return a claim, or None if another process holds it.

    Args:
        remote: the remote store.
        name: of the claim: letters, digits and underscores.
        owner: the machine's copy of the store. A claim of the same owner is that of a killed process, since this one
            holds the local lock.
        local: the lock against other processes of this machine, acquired.

    Raises:
        RemoteError: no answer.
    """
    generations = sorted(file for file in remote.files(FOLDER) if file.startswith(f"{FOLDER}/{name}."))
    if generations and _is_held(remote.read(generations[-1]), owner):
        return None
    number = int(generations[-1].rpartition(".")[2]) + 1 if generations else 1
    created = f"{FOLDER}/{name}.{number:06d}"
    if not remote.create(created, claim_content(owner)):
        return None
    for former in generations:
        remote.delete(former)
    return Lease(remote, created, owner, local)


def check_conditional(remote: RemoteFolder) -> None:
    """Check that the server refuses to create a file twice, which not all that speak the protocol of S3 do.

    Raises:
        ValueError: it does not.
        RemoteError: no answer.
    """
    name = f"{FOLDER}/check_{uuid4().hex}"
    first, second = (remote.create(name, uuid4().bytes) for _ in range(2))
    remote.delete(name)
    if not first or second:
        raise ValueError(
            f"expected a server that creates files on condition (If-None-Match), {remote.shown} does not, so that "
            "several machines would measure the same checkpoints; give each a --store of its own"
        )


def claim_content(owner: str) -> bytes:
    """Return the content of a claim from now on, unlike that of any other."""
    return json.dumps({"owner": owner, "until": time.time() + LEASE_SECONDS, "token": uuid4().hex}).encode()


def _is_held(content: bytes | None, owner: str) -> bool:
    if content is None:
        return False  # released since it was listed
    try:
        claim = json.loads(content)
        return claim["owner"] != owner and claim["until"] > time.time()
    except (ValueError, KeyError, TypeError):
        return False

"""A store on a remote filesystem: a local copy that everything reads, and the uploads of what is written to it."""

from __future__ import annotations

import hashlib
import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from repdyn.probe import Probe
from repdyn.store.keys import MeasurementKey
from repdyn.store.leases import Claim, acquire, check_conditional
from repdyn.store.mirror import Mirror
from repdyn.store.remote_errors import RefusedError, RemoteError
from repdyn.store.remote_folder import RemoteFolder
from repdyn.store.schema import Row
from repdyn.store.store import COMPACT_FROM, JOINED_SECONDS, Store
from repdyn.store.uploader import Uploader
from repdyn.utils.attempts import TimeoutRunner
from repdyn.utils.files import cache_directory

log = logging.getLogger(__name__)

UPLOAD_SECONDS = 120.0
"""How long the end of a sweep or a training waits for the uploads."""
END_SECONDS = 5.0
"""How long the last rows of a run may take to be uploaded if its files are to be joined."""
_DIGEST_DIGITS = 20


class RemoteStore(Store):
    """A store at a URL of fsspec; see :func:`repdyn.open_store`.

    It is read from a copy in the cache, which :meth:`refresh` updates. What is written is stored in the copy at once,
    and uploaded in the background; :meth:`drain` waits for it.
    """

    def __init__(self, url: str) -> None:
        self.remote = RemoteFolder(url)
        digest = hashlib.sha256(self.remote.url.encode()).hexdigest()[:_DIGEST_DIGITS]
        self.mirror = Mirror(self.remote, cache_directory() / "stores" / digest)
        self._uploader = Uploader(self.mirror)
        self._is_conditional = False
        self._folders_left_out: set[str] = set()
        super().__init__(self.mirror.path)

    @property
    def location(self) -> str:
        return self.remote.shown

    @property
    def output(self) -> Path:
        return Path(self.path.name)

    def refresh(self, run: str | None = None) -> None:
        """Download what is new, and have uploaded what an earlier process left waiting.

        Raises:
            RemoteError: the remote store cannot be read.
        """
        self.mirror.refresh("" if run is None else self.folder_of(run).name)
        self._upload_waiting()

    def refresh_runs(self, runs: Sequence[str]) -> None:
        """Download what is new in some runs; in the whole store if it lacks one, so that messages can name the others.

        Raises:
            RemoteError: the remote store cannot be read.
        """
        wanted = {self.folder_of(run).name for run in runs}
        listed = self.mirror.refresh(folders=wanted)
        there = {name.partition("/")[0] for name in listed if name.endswith(".parquet")}
        if not wanted <= there:
            self.mirror.refresh()
        self._folders_left_out = there - wanted
        self._upload_waiting()

    def _upload_waiting(self) -> None:
        if self.mirror.waiting():
            self._uploader.wake()

    def has_other_runs(self, run: str) -> bool:
        return bool(self._folders_left_out - {self.folder_of(run).name}) or super().has_other_runs(run)

    def write(self, key: MeasurementKey, rows: Sequence[Row]) -> Path:
        self.mirror.mark(key.filename)
        written = super().write(key, rows)
        self._uploader.wake()
        return written

    def save_probe(self, probe: Probe) -> Path:
        target = self.probe_path(probe.hash)
        if not target.exists():
            self.mirror.mark(target.relative_to(self.path).as_posix())
        saved = super().save_probe(probe)
        self._uploader.wake()
        return saved

    def discard_failures(self, key: MeasurementKey) -> None:
        before = self._failure_files(key)
        for path in before:
            self.mirror.mark(path.relative_to(self.path).as_posix(), is_deleted=True, is_discarded=True)
        super().discard_failures(key)
        if before:
            self._uploader.wake()

    def claim(self, key: MeasurementKey) -> Claim | None:
        """Claim the measurement of a key among all machines, and look whether another one has stored it meanwhile.

        Raises:
            ValueError: the server cannot create a file on condition.
            RemoteError: no answer.
        """
        claim = super().claim(key)
        if claim is None:
            return None
        try:
            self.mirror.fetch([key.filename, key.failed.filename])
        except BaseException:
            claim.release()
            raise
        # without claims among machines no other one waits for the rows, and a commit for each would be too many
        return _UploadedClaim(claim, self._uploader) if self.remote.creates_conditionally else claim

    def claim_name(self, name: str) -> Claim | None:
        local = super().claim_name(name)
        if local is None or not self.remote.creates_conditionally:
            return local
        try:
            if not self._is_conditional:
                check_conditional(self.remote)
                self._is_conditional = True
            lease = acquire(self.remote, self._lock_path(name).stem, self.mirror.identity, local)
        except BaseException:
            local.release()
            raise
        if lease is None:
            local.release()
            return None
        return lease

    def compact_at_end(self, run: str) -> None:
        """Make a run compact at its end if it has many files, unless the remote store does not answer."""
        if len(list(self.folder_of(run).glob("step*.parquet"))) < COMPACT_FROM:
            return
        join = partial(super().compact_at_end, run)
        try:
            if self._uploader.error or self._uploader.drain(END_SECONDS):
                raise RemoteError("not all of its files are uploaded")
            TimeoutRunner(2 * JOINED_SECONDS)("joining files", join)
        except (OSError, ValueError) as error:
            log.warning("%s was not made compact: %s; repdyn compact %s does so", run, error, self.location)

    @contextmanager
    def replacing_files(self, run: str) -> Iterator[None]:
        """Upload the files that take the place of others, and delete these remotely afterwards."""
        folder = self.folder_of(run).name
        before = self.mirror.local_files()
        yield
        after = self.mirror.local_files()
        for name in sorted(name for name in after - before if name.startswith(f"{folder}/")):
            self.mirror.mark(name)
        for name in sorted(name for name in before - after if name.startswith(f"{folder}/")):
            self.mirror.mark(name, is_deleted=True)
        self._uploader.wake()

    def drain(self, seconds: float = UPLOAD_SECONDS) -> str | None:
        """Wait for the uploads; return why some files still wait and what uploads them, or None.

        Args:
            seconds: at most.
        """
        try:
            left = self._uploader.drain(seconds)
        except RefusedError as error:
            return str(error)
        if not left:
            return None
        reason = self._uploader.error or f"they took more than {seconds:g} s"
        command = f"repdyn push {shlex.quote(str(self.path))} {shlex.quote(self.location)}"
        return f"{left} files are not uploaded: {reason}; they are in {self.path}, and uploaded by {command}"

    def __repr__(self) -> str:
        return f"RemoteStore({self.location!r})"


class _UploadedClaim:
    """A claim that is released once what was measured under it is uploaded, or cannot be for now."""

    def __init__(self, claim: Claim, uploader: Uploader) -> None:
        self._claim = claim
        self._uploader = uploader

    def release(self) -> None:
        try:
            self._uploader.drain(UPLOAD_SECONDS)
        finally:
            self._claim.release()

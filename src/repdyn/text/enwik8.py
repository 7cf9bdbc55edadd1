"""enwik8, the first 10^8 bytes of a dump of the English Wikipedia, downloaded, verified and cached."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from repdyn.text.corpus import ENWIK8_BYTES, Corpus, cache_directory, enwik8_name, read_corpus
from repdyn.utils.attempts import TimeoutRunner
from repdyn.utils.files import write_atomically
from repdyn.utils.redaction import redacted

ENWIK8_URL = "http://mattmahoney.net/dc/enwik8.zip"
_CHUNK_BYTES = 1 << 18
_TIMEOUT_SECONDS = 30
"""How long the server may be silent."""
_TOTAL_SECONDS = 3600
"""How long the download may take in all: 36 MB at 10 kB/s."""
_ALTERNATIVE = "download it elsewhere and give its path"


def enwik8_corpus(cache_dir: str | os.PathLike[str] | None = None, url: str = ENWIK8_URL) -> Corpus:
    """Load enwik8 from the cache, and download it there first if it is missing.

    Args:
        cache_dir: folder of the cache; see ``cache_directory``.
        url: address of a zip holding enwik8, its official one by default.

    Returns:
        The 10^8 bytes of enwik8, verified by their checksum.

    Raises:
        ConnectionError: the address cannot be reached, or the connection is lost.
        ValueError: the file at the address or in the cache is not enwik8.

    Source: Matt Mahoney, Large Text Compression Benchmark.
    """
    path = cache_directory(cache_dir) / "enwik8.zip"
    if not path.exists():
        download(url, path)
    return _read_verified(path, path, "delete it, or give its path as the source to use it under its own name")


def download(url: str, path: Path) -> None:
    """Download enwik8 to ``path``, which is created once the download is complete and its checksum verified."""

    def download_and_verify(partial: Path) -> None:
        with partial.open("wb") as file:
            _download(url, file)
        _read_verified(partial, url, _ALTERNATIVE)

    write_atomically(path, download_and_verify)


def _download(url: str, file: IO[bytes]) -> None:
    deadline = time.monotonic() + _TOTAL_SECONDS
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    try:
        with (
            _answer(url) as response,
            Progress(*columns, TimeRemainingColumn()) as progress,
        ):
            expected = int(response.headers["Content-Length"]) if response.headers["Content-Length"] else None
            task = progress.add_task("enwik8", total=expected)
            received = 0
            # what has arrived: read() would wait for the whole chunk, however slowly it comes
            while chunk := response.read1(_CHUNK_BYTES):
                file.write(chunk)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{received:,} bytes in {_TOTAL_SECONDS:g} s")
                received += len(chunk)
                progress.advance(task, len(chunk))
    except (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError) as error:
        # from None: the traceback of socket calls adds nothing to the message
        raise ConnectionError(f"cannot download enwik8 from {url} ({redacted(str(error))}); {_ALTERNATIVE}") from None
    if expected is not None and received != expected:
        raise ConnectionError(
            f"the download of enwik8 from {url} ended after {received:,} of {expected:,} bytes; "
            f"retry, or {_ALTERNATIVE}"
        )


def _answer(url: str) -> HTTPResponse:
    """Return the answer of the server, whose first lines may not take for ever either."""
    seconds = 2 * _TIMEOUT_SECONDS
    try:
        return TimeoutRunner(seconds)("answering", lambda: urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS))
    except TimeoutError:
        raise TimeoutError(f"no answer in {seconds:g} s") from None


def _read_verified(path: Path, origin: str | Path, remedy: str) -> Corpus:
    try:
        corpus = read_corpus(path)
    except ValueError as error:
        raise ValueError(f"expected enwik8 at {origin}, got another file ({error}); {remedy}") from None
    if corpus.name != enwik8_name(ENWIK8_BYTES):
        raise ValueError(
            f"expected enwik8 at {origin}, got sha256 {corpus.sha256}, {len(corpus.data):,} bytes; {remedy}"
        )
    return corpus

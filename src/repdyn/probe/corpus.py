"""Texts by name or path, with a checksum: files, plain or compressed, enwik8, datasets, and the
built-in one.

:func:`load_corpus` is the way in: it finds the text that a name stands for, cuts it, and reduces a
Wikipedia dump to prose. The checksum in the name of a :class:`Corpus` tells two texts apart that
somebody called alike.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import shutil
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from platform import python_version
from typing import IO, Any

from tqdm import tqdm

from repdyn.probe.encoding import as_utf8
from repdyn.utils.attempts import TimeoutRunner
from repdyn.utils.files import cache_directory, write_atomically
from repdyn.utils.redaction import redacted

DEFAULT_TEXT = "enwik8"
"""The default text of probes and studies."""
ENWIK8_BYTES = 100_000_000
_RECORDS = {
    ".arrow": "arrow",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".tsv": "csv",
}
"""What datasets calls the format of a file of records, which is no text as it stands, by its
ending."""
_NO_TEXTS = frozenset(
    {".7z", ".doc", ".docx", ".epub", ".odt", ".pdf", ".rar", ".tar", ".tgz", ".zst"}
)
"""Endings of archives and documents, whose bytes are no text."""
DATASET = "hf:"
"""How the name of a dataset begins."""
DATASET_BYTES = 10_000_000
"""How much of a dataset is read, unless another number of bytes is given."""

ENWIK8_PREFIXES: dict[str, int] = {
    "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8": ENWIK8_BYTES,
    "5985c81c39d927ae0e169625790ca4d9e7d1531270c8b09ad73176a375bb3d97": 10_000_000,
    "d502ac7ecb9dd47a062e7d19b8dcd3c753b07c142e48b13dcd521cb747116bdd": 4_154_399,
    "369b688978f649681136198fb96db14c1616756260c55fb4b65e9bc049552cad": 1_000_000,
    "581bee9758c531de3795885a1adb331b9c51bfdeefd9a63407815479e22a9072": 100_000,
}
"""Lengths in bytes of known prefixes of enwik8, by their sha256."""


@dataclass(frozen=True)
class Corpus:
    """A text as bytes, with a name derived from its checksum."""

    name: str
    """Human-readable name, such as "enwik8 prefix, 4.15 MB"."""
    data: bytes = field(repr=False)

    @cached_property
    def sha256(self) -> str:
        """Return the checksum of ``data``, the decompressed file, which does not depend on the
        compression.
        """
        return hashlib.sha256(self.data).hexdigest()

    @property
    def text(self) -> str:
        """Return the text, without a character that the end of the file cuts off."""
        return self.data.decode(errors="ignore")

    def head(self, max_bytes: int) -> Corpus:
        """Return the first ``max_bytes`` bytes, named as a part; the corpus itself if it is no
        longer than that.
        """
        if max_bytes >= len(self.data):
            return self
        if self.name == enwik8_name(ENWIK8_BYTES):
            return Corpus(enwik8_name(max_bytes), self.data[:max_bytes])
        return Corpus(f"{self.name}, its first {max_bytes:,} bytes", self.data[:max_bytes])

    def split(self, held_out_percent: int) -> tuple[bytes, bytes, bytes]:
        """Return the text for training, for validation and for testing, the last two of this share
        of the bytes each.

        >>> Corpus("digits", b"0123456789").split(10)
        (b'01234567', b'8', b'9')
        """
        ends = [
            len(self.data) * percent // 100
            for percent in (100 - 2 * held_out_percent, 100 - held_out_percent)
        ]
        return self.data[: ends[0]], self.data[ends[0] : ends[1]], self.data[ends[1] :]


def load_corpus(
    source: str | os.PathLike[str] = "builtin",
    *,
    clean: bool = True,
    max_bytes: int | None = None,
    encoding: str | None = None,
    as_bytes: bool = False,
) -> Corpus:
    """Load a text by name or path, named by its checksum, and clean it if it is a Wikipedia dump.

    Args:
        source: "builtin" (the Python language reference, no download), "enwik8" (from the cache,
            downloaded if missing), "hf:NAME" (a dataset, see :func:`dataset_corpus`), or the path
            of a text file or Wikipedia dump, plain, .gz, .xz, .bz2 or .zip.
        clean: whether a Wikipedia dump is reduced to prose; plain text is never changed.
        max_bytes: number of bytes to use from the start, counted before cleaning; all by default.
        encoding: that of the file, as Python calls it, such as "cp1251"; by default the one of its
            byte order mark, or UTF-8.
        as_bytes: keep the bytes of a file as they are, as a model of bytes reads them; else they
            are UTF-8 without a byte order mark, and lines end as they do where Python reads a text.

    Raises:
        ValueError: ``max_bytes`` is not positive, or the file is empty, damaged, not the expected
            one, or not in its encoding.
        FileNotFoundError: the path does not exist.
        ConnectionError: enwik8 is not in the cache and cannot be downloaded, or a dataset cannot be
            reached.

    >>> load_corpus(max_bytes=22).data
    b'The "assert" statement'
    """
    if max_bytes is not None and max_bytes < 1:
        raise ValueError(
            f"expected max_bytes of at least 1, got {max_bytes}; leave it out to use the whole text"
        )
    if source == "builtin":
        corpus = builtin_corpus()
    elif source == "enwik8":
        corpus = enwik8_corpus()
    elif os.fspath(source).startswith(DATASET):
        corpus = dataset_corpus(os.fspath(source), max_bytes or DATASET_BYTES)
    else:
        if not as_bytes:
            _require_prose(Path(source))
        corpus = read_corpus(source)
        if encoding is not None or not as_bytes:
            decoded = as_utf8(corpus.data, source, encoding)
            # a text that was checked out on Windows is the same text
            corpus = replace(corpus, data=decoded.replace(b"\r\n", b"\n"))
    if max_bytes is not None:
        corpus = corpus.head(max_bytes)
    if clean and is_wiki_dump(corpus.data):
        # imported here, so that other texts do not require the wiki parsers
        from repdyn.probe.clean import clean_dump

        corpus = Corpus(f"{corpus.name}, cleaned", clean_dump(corpus.data))
    return corpus


def enwik8_name(n_bytes: int) -> str:
    """Return the name of the first ``n_bytes`` bytes of enwik8.

    >>> enwik8_name(4_154_399)
    'enwik8 prefix, 4.15 MB'
    """
    return "enwik8" if n_bytes == ENWIK8_BYTES else f"enwik8 prefix, {n_bytes / 1e6:.2f} MB"


def _require_prose(path: Path) -> None:
    """Raise ValueError for a file of records, whose field names and punctuation would be measured
    as text, and for archives and documents.
    """
    endings = {suffix.lower() for suffix in path.suffixes}
    if not endings.isdisjoint(_RECORDS):
        raise ValueError(
            f"expected a file of plain text, got the records of {path}; name the column of their "
            f"texts: '{DATASET}{path},column={_column_of_texts(path)}'"
        )
    if not endings.isdisjoint(_NO_TEXTS):
        raise ValueError(
            f"expected a file of plain text, or such a one as .gz, .xz, .bz2 or .zip, got {path}; "
            "unpack it, or save its text as a file of its own"
        )


def _column_of_texts(path: Path) -> str:
    """Return the column of a file of records that is most likely the text: that of the longest
    text in the first record; "text" where the file cannot be read.
    """
    try:
        first = next(iter(_records(str(path), {"split": "train"})))
        lengths = {name: len(value) for name, value in first.items() if isinstance(value, str)}
        return max(lengths, key=lambda name: lengths[name])
    except Exception:  # whatever a damaged or missing file raises: reading it says more
        return "text"


def _records(name: str, options: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    """Stream the rows of a dataset of the hub, of a local folder of one, or of a file of
    records.
    """
    from datasets import load_dataset  # imported here, since it takes a second

    path = Path(name).expanduser()
    endings = [suffix.lower() for suffix in path.suffixes]
    form = next((_RECORDS[ending] for ending in endings if ending in _RECORDS), None)
    if form is None or not path.is_file():
        return load_dataset(name, options.get("config"), split=options["split"], streaming=True)
    separator: dict[str, Any] = {"sep": "\t"} if ".tsv" in endings else {}
    return load_dataset(form, data_files=str(path), split="train", streaming=True, **separator)


def is_wiki_dump(data: bytes) -> bool:
    """Return whether the data is a MediaWiki XML dump, which can be cleaned, rather than plain
    text.
    """
    return data[:1000].lstrip().startswith(b"<mediawiki")


def read_corpus(path: str | os.PathLike[str]) -> Corpus:
    """Read a text file, plain, .gz, .xz, .bz2 or .zip (a zip of exactly one file), and name it by
    its checksum.

    enwik8 and its known prefixes are recognised by it, whatever the file name; any other dump is
    named "not enwik8", any other text by its file name, both followed by the checksum.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is empty, damaged, or a zip of several files.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        is_folder = "hf:FOLDER reads those in a folder; " if path.is_dir() else ""
        raise FileNotFoundError(
            f"expected a text file (plain, .gz, .xz, .bz2 or .zip), found none at "
            f'{path.absolute()}; {is_folder}give the path of an existing file, "enwik8", '
            '"builtin" or "hf:DATASET"'
        )
    data = _decompress(path)
    if not data:
        raise ValueError(f"expected text, got the empty file {path}")
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 in ENWIK8_PREFIXES:
        return Corpus(enwik8_name(ENWIK8_PREFIXES[sha256]), data)
    name = "not enwik8" if is_wiki_dump(data) else path.name
    return Corpus(f"{name} (sha256 {sha256[:12]})", data)


def builtin_corpus() -> Corpus:
    """Return the language reference that ships with CPython (``pydoc_data.topics``): English text
    without a download.

    It has about half a megabyte and differs between Python versions, so the version is part of the
    name.

    >>> builtin_corpus().data[:22]
    b'The "assert" statement'
    """
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    text = "\n\n".join(topics[key].strip() for key in sorted(topics))
    return Corpus(f"language reference of Python {python_version()}", text.encode())


def dataset_corpus(source: str, max_bytes: int = DATASET_BYTES) -> Corpus:
    """Stream the first texts of a dataset of the Hugging Face Hub, of a local folder of one, or of
    a file of records (.jsonl, .csv, .parquet).

    Args:
        source: "hf:NAME", with ",config=...", ",split=..." (train by default) and ",column=..."
            (text by default) behind it, such as "hf:wikimedia/wikipedia,config=20231101.en" or
            "hf:tweet_eval,config=emotion".
        max_bytes: how many bytes to read.

    Returns:
        The texts with blank lines between them, named by the source and the checksum.

    Raises:
        ValueError: no such dataset, configuration, split or column, or no text in it.
        ConnectionError: the hub cannot be reached.
    """
    from datasets.exceptions import DatasetNotFoundError  # imported here: it takes a second

    name, *settings = source.removeprefix(DATASET).split(",")
    pairs = (setting.partition("=") for setting in settings)
    options = {"split": "train", "column": "text"} | {key: value for key, _, value in pairs}
    form = f"expected {DATASET}NAME,config=...,split=...,column=..."
    if unknown := set(options) - {"config", "split", "column"}:
        raise ValueError(f"{form}, got {', '.join(sorted(unknown))} in {source!r}")
    column = options["column"]
    data = bytearray()
    try:
        # as a stream, of which only the beginning is downloaded
        for row in _records(name, options):
            if not isinstance(row.get(column), str):
                raise ValueError(
                    f"expected a column of texts, got {column!r}; {name} has {', '.join(row)}"
                )
            if data:
                data += b"\n\n"
            data += row[column].strip().encode()
            if len(data) >= max_bytes:
                break
    except DatasetNotFoundError as error:
        raise ValueError(f"{form}, got {source!r}: {error}") from error
    if not data:
        raise ValueError(f"expected texts in the column {column!r} of {name}, got none")
    sha256 = hashlib.sha256(data).hexdigest()
    return Corpus(f"{source}, {len(data):,} bytes (sha256 {sha256[:12]})", bytes(data))


def _decompress(path: Path) -> bytes:
    """Return the content of a file, decompressed by its suffix."""
    suffix = path.suffix.lower()
    if suffix not in _OPENERS:
        return path.read_bytes()
    try:
        with _OPENERS[suffix](path) as file:
            return file.read()
    except PermissionError:
        raise
    except Exception as error:  # damaged files make the decompressors raise errors of any kind
        raise ValueError(
            f"expected a complete {path.suffix} file of one text, {path} cannot be decompressed "
            f"({error}); download it again, or unpack it"
        ) from error


def _open_only_file(path: Path) -> IO[bytes]:
    archive = zipfile.ZipFile(path)
    # folders have entries of their own, and macOS adds its notes on each file
    files = [
        entry.filename
        for entry in archive.infolist()
        if not entry.is_dir() and not entry.filename.startswith("__MACOSX/")
    ]
    if len(files) != 1:
        raise ValueError(f"it holds {len(files)} files")
    return archive.open(files[0])


_OPENERS: dict[str, Callable[[Path], Any]] = {
    ".bz2": bz2.open,
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".zip": _open_only_file,
}

ENWIK8_URL = "http://mattmahoney.net/dc/enwik8.zip"
_TIMEOUT_SECONDS = 30
"""How long the server may be silent."""
_TOTAL_SECONDS = 3600
"""How long the download may take in all: 36 MB at 10 kB/s."""
_ALTERNATIVE = (
    "download it elsewhere and give its path as the text, or take 'builtin', which ships with "
    "Python"
)


def enwik8_corpus(url: str = ENWIK8_URL) -> Corpus:
    """Load the 10^8 bytes of enwik8 (Matt Mahoney, Large Text Compression Benchmark), verified by
    their checksum, from the cache; download them there first, from the address of a zip, if they
    are missing."""
    path = cache_directory() / "enwik8.zip"

    def download_and_verify(partial: Path) -> None:
        try:
            TimeoutRunner(_TOTAL_SECONDS)("the download", lambda: _download(url, partial))
        except (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError) as error:
            # from None: the traceback of socket calls adds nothing to the message
            raise ConnectionError(
                f"cannot download enwik8 from {url} ({redacted(str(error))}); {_ALTERNATIVE}"
            ) from None
        _read_verified(partial, url, _ALTERNATIVE)

    if not path.exists():
        write_atomically(path, download_and_verify)
    return _read_verified(
        path, path, "delete it, or give its path as the source to use it under its own name"
    )


def _download(url: str, path: Path) -> None:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response, path.open("wb") as file:
        expected = response.length
        with tqdm.wrapattr(response, "read", total=expected, desc="enwik8", disable=None) as shown:
            shutil.copyfileobj(shown, file)
        # a server that closes the connection early ends the response without an error
        if expected not in (None, received := file.tell()):
            raise ConnectionError(f"it ended after {received:,} of {expected:,} bytes")


def _read_verified(path: Path, origin: str | Path, remedy: str) -> Corpus:
    try:
        corpus = read_corpus(path)
        if corpus.name == enwik8_name(ENWIK8_BYTES):
            return corpus
        content = f"sha256 {corpus.sha256}, {len(corpus.data):,} bytes"
    except ValueError as error:
        content = f"another file ({error})"
    raise ValueError(f"expected enwik8 at {origin}, got {content}; {remedy}")

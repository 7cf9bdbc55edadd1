"""Load a text by name or path."""

from __future__ import annotations

import os

from repdyn.text.corpus import Corpus, builtin_corpus, enwik8_corpus, is_wiki_dump, read_corpus

DEFAULT_TEXT = "enwik8"
"""The default text of probes and studies."""


def load_corpus(
    source: str | os.PathLike[str] = "builtin",
    *,
    clean: bool = True,
    max_bytes: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Corpus:
    """Load a text by name or path, and clean it if it is a Wikipedia dump.

    Args:
        source: "builtin" (the Python language reference, no download), "enwik8" (from the cache, downloaded if
            missing), or the path of a text file or Wikipedia dump, plain, .gz, .xz or .zip.
        clean: whether a Wikipedia dump is reduced to prose; plain text is never changed.
        max_bytes: number of bytes to use from the start, counted before cleaning; all by default.
        cache_dir: folder of downloads and cleaned text; see ``cache_directory``.

    Returns:
        The text, named by its checksum.

    Raises:
        ValueError: ``max_bytes`` is not positive, or the file is empty, damaged or not the expected one.
        FileNotFoundError: the path does not exist.
        ConnectionError: enwik8 is not in the cache and cannot be downloaded.

    >>> load_corpus(max_bytes=22).data
    b'The "assert" statement'
    """
    if max_bytes is not None and max_bytes < 1:
        raise ValueError(f"expected max_bytes of at least 1, got {max_bytes}; leave it out to use the whole text")
    if source == "builtin":
        corpus = builtin_corpus()
    elif source == "enwik8":
        corpus = enwik8_corpus(cache_dir)
    else:
        corpus = read_corpus(source)
    if max_bytes is not None:
        corpus = corpus.head(max_bytes)
    if clean and is_wiki_dump(corpus.data):
        # imported here, so that other texts do not require the wiki parsers
        from repdyn.text.clean import clean_corpus

        corpus = clean_corpus(corpus, cache_dir)
    return corpus

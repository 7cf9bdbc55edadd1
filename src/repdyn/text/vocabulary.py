"""Count the distinct bytes and characters of a text, raw and cleaned, next to the 205 of the paper.

python -m repdyn.text.vocabulary enwik8_prefix.gz
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from repdyn.text.corpus import Corpus
from repdyn.text.source import load_corpus
from repdyn.utils.printing import PrintableConsole

PAPER_CHARACTERS = 205
"""The "vocabulary of 205 distinct characters" of the paper; raw enwik8 has as many distinct byte values."""


@dataclass(frozen=True)
class Vocabulary:
    """The length of a text and the numbers of its distinct bytes and characters."""

    name: str
    n_bytes: int
    byte_values: int
    """Number of distinct byte values, in [1, 256]."""
    characters: int
    """Number of distinct Unicode characters; bytes that are invalid as UTF-8 are ignored."""


def vocabulary(corpus: Corpus) -> Vocabulary:
    """Count the distinct bytes and characters of a text.

    >>> vocabulary(Corpus("greeting", "héhé".encode()))
    Vocabulary(name='greeting', n_bytes=6, byte_values=3, characters=2)
    """
    characters = set(corpus.data.decode(errors="ignore"))
    return Vocabulary(corpus.name, len(corpus.data), len(set(corpus.data)), len(characters))


def vocabulary_table(vocabularies: Sequence[Vocabulary]) -> Table:
    """Return the counts as a table for the terminal."""
    table = Table(
        "text", caption=f'The paper\'s "{PAPER_CHARACTERS} distinct characters" are the byte values of raw enwik8.'
    )
    for heading in ("bytes", "byte values", "characters"):
        table.add_column(heading, justify="right")
    for text in vocabularies:
        counts = (text.n_bytes, text.byte_values, text.characters)
        table.add_row(text.name, *(f"{count:,}" for count in counts))
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the vocabulary of a text, raw and, if it is a Wikipedia dump, cleaned."""
    parser = argparse.ArgumentParser(
        prog="python -m repdyn.text.vocabulary",
        description=main.__doc__,
        epilog="example: python -m repdyn.text.vocabulary enwik8.zip",
    )
    parser.add_argument("source", metavar="PATH", help='text file, plain, .gz, .xz or .zip; or "enwik8", or "builtin"')
    parser.add_argument("--max-bytes", type=int, help="number of bytes to count from the start; all by default")
    parser.add_argument("--cache-dir", help="folder of downloads and cleaned text (~/.cache/repdyn)")
    options = parser.parse_args(arguments)
    try:
        raw, cleaned = (
            load_corpus(options.source, clean=clean, max_bytes=options.max_bytes, cache_dir=options.cache_dir)
            for clean in (False, True)
        )
    except (OSError, ValueError) as error:
        parser.exit(1, f"{error}\n")
    texts = (raw, cleaned) if raw.name != cleaned.name else (raw,)
    PrintableConsole().print(vocabulary_table([vocabulary(text) for text in texts]))


if __name__ == "__main__":
    main()

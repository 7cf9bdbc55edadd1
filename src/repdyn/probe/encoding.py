"""Text files in any encoding as UTF-8: a byte order mark or the caller says which it is, else it
must be UTF-8.

Nothing is guessed: a text read in the wrong encoding gives the numbers of other words, and one that
is decoded with replacements those of replacement characters.
"""

import codecs
import re
from contextlib import suppress

# those of UTF-32 begin with those of UTF-16
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_LONGEST_CHARACTER = 4
_MOST_ZEROS = 0.01
"""Share of zero bytes from which a file is no text in UTF-8; one in UTF-16 has half of them."""
_GUESSED_BYTES = 100_000


def as_utf8(data: bytes, what: object, encoding: str | None = None) -> bytes:
    """Return a text in UTF-8, without a byte order mark; the same bytes if that is what it is.

    A character that the end of the file cuts off is kept as it is.

    Args:
        data: the content of a text file.
        what: the file, for messages.
        encoding: what Python calls the encoding, such as "cp1251"; None for that of the byte order
            mark, or UTF-8.

    Raises:
        ValueError: it is not in that encoding, with the position of the first byte that is not.

    >>> as_utf8("né".encode("utf-16"), "it") == "né".encode()
    True
    >>> as_utf8("né".encode("latin-1"), "it", "latin-1") == "né".encode()
    True
    """
    if encoding is None:
        encoding = next((name for mark, name in _MARKS if data.startswith(mark)), None)
    elif not _is_encoding(encoding):
        raise ValueError(
            f"expected the name of a text encoding, such as utf-8, utf-16 or cp1251, got "
            f"{encoding!r}"
        )
    try:
        if encoding is not None:
            return data.decode(encoding).encode()
        data.decode()
    except UnicodeDecodeError as error:
        is_cut_off = error.reason == "unexpected end of data"
        if encoding is None and is_cut_off and error.start > len(data) - _LONGEST_CHARACTER:
            return data
        raise ValueError(
            f"expected a text in {encoding or 'UTF-8'}, got {what}, whose byte {error.start:,} "
            f"({data[error.start]:#04x}) is none of it{_guessed(data)}; {_REMEDY}"
        ) from error
    if data.count(0) > _MOST_ZEROS * len(data):
        raise ValueError(
            f"expected a text in UTF-8, got {what} with {data.count(0):,} zero bytes, the first "
            f"at {data.index(0):,}, as UTF-16 without a byte order mark has; {_REMEDY}"
        )
    return data


_REMEDY = (
    "say in which encoding it is with encoding=, or convert it: "
    "iconv -f ENCODING -t UTF-8 FILE > NEW"
)


def _is_encoding(name: str) -> bool:
    try:
        "".encode(name)
    except (LookupError, ValueError):
        return False
    return True


def _guessed(data: bytes) -> str:
    """Return what encoding a text looks like, if the package that knows is here."""
    with suppress(ImportError):
        from charset_normalizer import from_bytes

        best = from_bytes(re.sub(rb"\s+", b" ", data[:_GUESSED_BYTES])).best()
        if best is not None:
            return f"; it looks like {best.encoding}"
    return ""

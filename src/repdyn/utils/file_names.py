"""Names that others chose, of metrics, runs and folders, made safe for file names."""

from __future__ import annotations

import hashlib
import re

_LONGEST_STEM = 200
_DIGEST_DIGITS = 12
_NOT_IN_FILES = re.compile(r"[^\w .,=@+()\[\]-]|^\.", re.ASCII)


def safe_file_name(name: str) -> str:
    """Return a name as one part of a path, without separators, at most 200 characters long; most stay as they are.

    >>> safe_file_name("profile_two_nn[discard=0.8]"), safe_file_name("x/../../y")
    ('profile_two_nn[discard=0.8]', 'x%2F..%2F..%2Fy')
    """
    stem = _NOT_IN_FILES.sub(
        lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass")), name
    )
    if len(stem) <= _LONGEST_STEM:
        return stem or "%"
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_DIGITS]
    return f"{stem[: _LONGEST_STEM - 1 - _DIGEST_DIGITS]}+{digest}"

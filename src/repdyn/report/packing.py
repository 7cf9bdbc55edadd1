"""Arrays in a page: compressed, stored once each, encoded without characters of markup."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np

from repdyn.report.markup import visible

BLOCK = "$"
"""Key of a reference to an array: its offset among all numbers, then its shape."""

_LEVEL = 6
_PACKED = (dict, list, tuple, np.ndarray)


class Packer:
    """Collects the arrays of nested dictionaries and lists; equal arrays are stored once."""

    def __init__(self) -> None:
        self._references: dict[tuple[bytes, tuple[int, ...]], dict[str, list[int]]] = {}
        self._blocks: list[bytes] = []
        self._length = 0

    def pack(self, tree: Any) -> Any:
        """Return the same tree with a reference in place of each array."""
        if isinstance(tree, np.ndarray):
            return self._reference(tree)
        if isinstance(tree, dict):
            return {key: self.pack(value) for key, value in tree.items()}
        if isinstance(tree, list | tuple):
            # most lists contain only names and numbers
            return [self.pack(one) if isinstance(one, _PACKED) else one for one in tree]
        return tree

    def numbers(self) -> str:
        """Return all arrays as text: 32-bit floats, first bytes first, gzip, base64."""
        # sign and exponent change less from value to value than the last bits do
        shuffled = np.frombuffer(b"".join(self._blocks), np.uint8).reshape(-1, 4).T
        return _as_text(shuffled.tobytes())

    def _reference(self, array: np.ndarray) -> dict[str, list[int]]:
        # seven digits are enough for charts; the store has all of them
        block = array.astype("<f4").tobytes()
        if (block, array.shape) not in self._references:
            self._references[block, array.shape] = {BLOCK: [self._length, *array.shape]}
            self._blocks.append(block)
            self._length += array.size
        return self._references[block, array.shape]


def as_text(tree: Any) -> str:
    """Return nested dictionaries and lists as text: JSON, gzip, base64."""
    text = visible(json.dumps(tree, allow_nan=False, separators=(",", ":"), ensure_ascii=False))
    # a name may contain what cannot be encoded
    return _as_text(text.encode(errors="backslashreplace"))


def _as_text(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, _LEVEL, mtime=0)).decode()


def compressed(text: str) -> str:
    """Return a text compressed: gzip, base64."""
    return _as_text(text.encode())

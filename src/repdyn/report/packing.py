"""Numbers in a page: arrays as bytes, each once, compressed, in an alphabet that no markup hides in."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np

from repdyn.report.markup import in_sight

BLOCK = "$"
"""Key of what stands for an array: its offset among all numbers, then its shape."""

_LEVEL = 6


class Packer:
    """Collects the arrays of nested dictionaries and lists; the same array twice is stored once."""

    def __init__(self) -> None:
        self._blocks: list[np.ndarray] = []
        self._places: dict[int, dict[str, list[int]]] = {}
        # what is no longer referred to could leave its id to another array
        self._kept: list[np.ndarray] = []
        self._length = 0

    def pack(self, tree: Any) -> Any:
        """The same tree with a reference in place of each array."""
        if isinstance(tree, np.ndarray):
            return self._place(tree)
        if isinstance(tree, dict):
            return {key: self.pack(value) for key, value in tree.items()}
        if isinstance(tree, list | tuple):
            # lists of names and numbers are most of what there is
            return [self.pack(one) if isinstance(one, dict | list | tuple | np.ndarray) else one for one in tree]
        return tree

    def numbers(self) -> str:
        """All arrays as text: 32-bit floats, first bytes first, gzip, base64."""
        flat = np.concatenate([*self._blocks, np.empty(0, np.float32)]).astype("<f4")
        # sign and exponent change less from value to value than the last bits do
        shuffled = flat.view(np.uint8).reshape(-1, 4).T
        return _as_text(shuffled.tobytes())

    def _place(self, array: np.ndarray) -> dict[str, list[int]]:
        if id(array) not in self._places:
            self._places[id(array)] = {BLOCK: [self._length, *array.shape]}
            self._kept.append(array)
            self._blocks.append(array.astype(np.float32).ravel())
            self._length += array.size
        return self._places[id(array)]


def as_text(tree: Any) -> str:
    """Nested dictionaries and lists as text: JSON, gzip, base64."""
    text = in_sight(json.dumps(tree, allow_nan=False, separators=(",", ":"), ensure_ascii=False))
    # a name may hold what no text can
    return _as_text(text.encode(errors="backslashreplace"))


def _as_text(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, _LEVEL, mtime=0)).decode()


def compressed(text: str) -> str:
    """A text as another: gzip, base64."""
    return _as_text(text.encode())

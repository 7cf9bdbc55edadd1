"""Reading a page back: what its script will see."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ReadPage:
    text: str
    tree: dict[str, Any]
    numbers: np.ndarray

    def array(self, reference: dict[str, list[int]]) -> np.ndarray:
        offset, *shape = reference["$"]
        return self.numbers[offset : offset + int(np.prod(shape))].reshape(shape)


def read_page(path: Path) -> ReadPage:
    text = path.read_text(encoding="utf-8")
    planes = np.frombuffer(_unpacked(text, "numbers"), np.uint8)
    numbers = planes.reshape(4, -1).T.copy().view("<f4").ravel()
    return ReadPage(text, json.loads(_unpacked(text, "tree")), numbers)


def _unpacked(text: str, name: str) -> bytes:
    match = re.search(
        rf'<script type="application/octet-stream" id="{name}">([^<]*)</script>', text
    )
    assert match, name
    return gzip.decompress(base64.b64decode(match[1]))


class Outline(HTMLParser):
    """Elements by name, and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._inside: str = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside not in {"script", "style"}:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

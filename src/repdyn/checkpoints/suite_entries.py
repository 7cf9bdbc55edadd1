"""One mapping of the file of a suite or recipe: its values are read with placeholders substituted, and checked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any, TypeVar

from repdyn.checkpoints.revisions import compile_pattern, whole_number
from repdyn.utils.records import read_yaml

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})(?::(\d{1,18}))?", re.ASCII)
_MAX_ITEMS = 100_000

Description = TypeVar("Description")


@dataclass(frozen=True)
class Entry:
    """A mapping of the file, with its location for messages and the values of placeholders."""

    fields: Mapping[str, Any]
    keys: Collection[str]
    where: str
    substitutions: Mapping[str, str] = field(default_factory=dict)
    guide: str = "docs/suites.md"
    """The page that describes the file, for messages."""

    def __post_init__(self) -> None:
        if not isinstance(self.fields, dict):
            raise self.error(f"a mapping with keys among {', '.join(self.keys)}", self.fields, f"see {self.guide}")
        for key in self.fields:
            if key not in self.keys:
                raise self.error(f"keys among {', '.join(self.keys)}", key, _closest(str(key), self.keys))

    @classmethod
    def of_file(cls, path: Path, keys: Collection[str], **settings: Any) -> Entry:
        """Read the mapping of a YAML file.

        Raises:
            ValueError: the file is not valid YAML, or has other keys.
            OSError: the file cannot be read.
        """
        return cls(read_yaml(path), keys, str(path), **settings)

    def error(self, expected: str, got: object, advice: str) -> ValueError:
        return ValueError(f"expected {expected} in {self.where}, got {got!r:.400}; {advice}")

    def inner(self, fields: Any, keys: Collection[str], name: str) -> Entry:
        return Entry(fields, keys, f"{self.where}, {name}", self.substitutions, self.guide)

    def expanded(self) -> Iterator[Entry]:
        """Yield one entry per combination of the values under ``for``, or per mapping of a list of combinations."""
        loops = self.fields.get("for", {})
        if isinstance(loops, list):
            yield from (self._substituted(combination) for combination in self.items("for"))
            return
        if not isinstance(loops, dict) or not all(isinstance(name, str) for name in loops):
            raise self.error("a mapping of names to lists under for", loops, "write for: {size: [70m, 160m]}")
        values = self.inner(loops, tuple(loops), "for").values
        combinations = list(islice(product(*map(values, loops)), _MAX_ITEMS + 1))
        if len(combinations) > _MAX_ITEMS:
            raise self.error(f"at most {_MAX_ITEMS} combinations under for", "more", "list fewer values")
        for combination in combinations:
            yield self._substituted(dict(zip(loops, combination, strict=True)))

    def _substituted(self, values: Any) -> Entry:
        """Return this entry with the values of its placeholders."""
        if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
            raise self.error(
                "mappings of names to values in the list under for", values, "write - {size: 70m, seed: 1}"
            )
        added = {name: self._text(name, value) for name, value in values.items()}
        return Entry(self.fields, self.keys, self.where, {**self.substitutions, **added}, self.guide)

    def items(self, key: str) -> list[Any]:
        items = self.fields.get(key)
        if not isinstance(items, list) or not items:
            raise self.error(f"a list under {key}", items, "begin each item with a dash")
        return items

    def values(self, key: str) -> list[int | str]:
        """Return the strings and integers of a list, with ranges such as "0..200:20" expanded, ends included."""
        values: list[int | str] = []
        for item in self.items(key) if key in self.fields else []:
            match = _RANGE.fullmatch(item) if isinstance(item, str) else None
            if match:
                start, stop, step = int(match[1]), int(match[2]), int(match[3] or 1)
                if step == 0 or stop < start or (stop - start) % step:
                    raise self.error("a range first..last:step that reaches its last value", item, "check its ends")
                if (stop - start) // step >= _MAX_ITEMS:
                    raise self.error(f"a range of at most {_MAX_ITEMS} values", item, "check its ends")
                values += range(start, stop + 1, step)
            else:
                values.append(item if isinstance(item, int) and not isinstance(item, bool) else self._text(key, item))
        return values

    def text(self, key: str, escaped: bool = False) -> str | None:
        """Return the string under a key with placeholders substituted, or None without the key."""
        if key not in self.fields:
            return None

        def fill(placeholder: re.Match[str]) -> str:
            name = placeholder[1]
            if name not in self.substitutions:
                known = _closest(name, self.substitutions)
                raise self.error(f"placeholders in {key} that are listed under for", name, known)
            return re.escape(self.substitutions[name]) if escaped else self.substitutions[name]

        return _PLACEHOLDER.sub(fill, self._text(key, self.fields[key]))

    def required(self, key: str) -> str:
        text = self.text(key)
        if not text:
            raise self.error(f"the key {key}", text, "add it")
        return text

    def address(self, key: str, name: str = "") -> str:
        """Return the required address under a key, called ``name`` in messages."""
        address = self.required(key)
        if not address.startswith("https://"):
            raise self.error(name or f"an address under {key}", address, "begin it with https://")
        return address

    def number(self, key: str) -> int | None:
        text = self.text(key)
        return None if text is None else whole_number(text, f"{key} in {self.where}")

    def pattern(self, key: str) -> str | None:
        text = self.text(key, escaped=True)
        try:
            return text if text is None else compile_pattern(text).pattern
        except ValueError as error:
            raise ValueError(f"{error} ({key} in {self.where})") from error

    def _text(self, key: str, value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.error(f"a string or an integer under {key}", value, "put it in quotes")
        return str(value)


def read_folder(folder: Path, read: Callable[[Path], Description]) -> dict[str, Description]:
    """Read every YAML file of a folder; return the descriptions by the names of their files."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.yaml"), key=lambda path: path.stem)}


def _closest(name: str, known: Collection[str]) -> str:
    matches = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {matches[0]!r}?" if matches else f"known: {', '.join(known) or 'none'}"

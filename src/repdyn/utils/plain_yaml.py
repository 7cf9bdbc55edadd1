"""Safe reading of YAML files as plain mappings, lists, strings and numbers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import yaml

_DEEPEST = 20
# A loader raises others than its own errors for tags and numbers with invalid text, and for endless nesting.
_NOT_YAML = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError)


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        ValueError: not YAML, or with an alias, a repeated key or too many levels.
        OSError: it cannot be read.
    """
    try:
        # a subclass of SafeLoader: no tag of it makes an object
        return yaml.load(path.read_text(encoding="utf-8"), _PlainLoader)
    except _NOT_YAML as error:
        raise ValueError(f"expected YAML in {path}, got something that does not parse: {error}") from error


class _PlainLoader(yaml.SafeLoader):
    """A loader that rejects aliases, which can expand to more than fits into memory, and repeated keys."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.YAMLError(f"expected no aliases, got *{event.anchor}{event.start_mark}; write it out")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise yaml.YAMLError(f"expected at most {_DEEPEST} levels, got more")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := [key for key, number in keys.items() if number > 1]:
            raise yaml.YAMLError(f"expected each key once, got {twice[0]!r:.80} more often{node.start_mark}")
        return super().construct_mapping(node, deep)

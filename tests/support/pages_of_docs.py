"""The pages of the documentation, their commands and their Python blocks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

EVERY_PAGE = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# LOG.md and CHANGELOG.md tell of names that are gone
PAGES = [path for path in EVERY_PAGE if path.name not in {"LOG.md", "CHANGELOG.md"}]

SCHEMATIC = re.compile(r"\.\.\.|\[options\]|\bKIND\b|\bCOMMAND\b|\|")

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands() -> Iterator[tuple[str, str]]:
    """Every line of a shell block, of an indented block and in backticks that begins with repdyn or
    python.
    """
    for page in PAGES:
        text = page.read_text()
        blocks = [
            code for language, code in FENCE.findall(text) if language in {"bash", "text", ""}
        ]
        rest = FENCE.sub("", text)
        blocks += re.findall(r"^ {4}(?:.*\\\n)*.*$", rest, re.MULTILINE)
        lines = [
            line.strip() for block in blocks for line in re.sub(r"\\\n\s*", "", block).splitlines()
        ]
        lines += [
            " ".join(code.split())
            for code in re.findall(r"(?<!`)`((?:repdyn|python) [^`]+)`(?!`)", rest)
        ]
        for line in dict.fromkeys(lines):
            if re.match(r"(repdyn|python) ", line) and not SCHEMATIC.search(line.split(" #")[0]):
                yield str(page.relative_to(ROOT)), line


def python_blocks() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for language, code in FENCE.findall(page.read_text()):
            if language == "python":
                yield str(page.relative_to(ROOT)), code


COMMANDS = list(commands())


def shell_words(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    return words[: words.index(">")] if ">" in words else words

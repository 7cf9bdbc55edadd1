"""A griffe extension: docstrings as they stand in the source, turned into Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?([^`]+)`")
_DOCTEST = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.MULTILINE)


class DocstringsAsMarkdown(griffe.Extension):
    """Turns Sphinx roles into code and fences doctests, which Markdown would take for quotations
    and links.
    """

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring:
            text = _ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = _DOCTEST.sub(r"\1```pycon\n\g<0>\n\1```", text)

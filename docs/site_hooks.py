"""Hooks of the documentation site: links that leave docs/, the reference of the commands."""

from __future__ import annotations

import io
import os
import posixpath
import re
from contextlib import redirect_stdout, suppress
from typing import Any
from unittest import mock

REPOSITORY = "https://github.com/repdyn/repdyn"
NOT_IN_THE_SITE = (".parquet", ".py", ".safetensors", ".yaml")
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
_IMAGE = re.compile(r'(<img [^>]*src="([^":]+)"[^>]*>)(?!</a>)')
_CODE_IN_CELL = re.compile(r"(?<=<code>)[^<]+(?=</code>.*</td>)")
_BREAK = re.compile(r"(?<=[_.(=[/,])(?=\w)|(?<=[a-z])(?=[A-Z])")
_CLI = "<!-- cli -->"


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Point links to folders and to files outside of docs/ at the repository."""
    folder = posixpath.dirname(page.file.src_uri)

    def rewrite(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        inside = path.startswith("docs/") and not path.endswith(NOT_IN_THE_SITE)
        target = os.path.join(os.path.dirname(config.config_file_path), path)
        if inside and not os.path.isdir(target):
            return link[0]
        kind = "tree" if os.path.isdir(target) else "blob"
        return f"{link[1]}{REPOSITORY}/{kind}/main/{path}{link[3] or ''})"

    markdown = _LINK.sub(rewrite, markdown)
    return markdown.replace(_CLI, command_line_reference()) if _CLI in markdown else markdown


def on_page_content(html: str, *, page: Any, config: Any, files: Any) -> str:
    """Make every image a link to itself, in its full size, and let code in tables break at the
    parts of names.
    """
    html = _CODE_IN_CELL.sub(lambda code: _BREAK.sub("<wbr>", code[0]), html)
    return _IMAGE.sub(r'<a href="\2">\1</a>', html)


def on_nav(nav: Any, *, config: Any, files: Any) -> Any:
    """Write llms.txt, the list of pages that programs read, into the site."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    lines += [
        f"- [{page.title or page.file.name}]({config.site_url}{page.file.url})"
        for page in nav.pages
    ]
    os.makedirs(config.site_dir, exist_ok=True)
    with open(os.path.join(config.site_dir, "llms.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return nav


def command_line_reference() -> str:
    """Return a section in Markdown for every command and kind of study, with its help as it is
    printed.
    """
    from repdyn.lab.commands import STUDIES

    commands = [["sweep"], ["study"], *(["study", kind] for kind in STUDIES)]
    commands += [
        [name]
        for name in (
            "report",
            "figures",
            "watch",
            "insights",
            "query",
            "export",
            "explore",
            "metrics",
        )
    ]
    return "\n".join(
        f"## repdyn {' '.join(c)}\n\n``` {{ .text .help }}\n{help_of(c)}```\n" for c in commands
    )


def help_of(words: list[str]) -> str:
    """Return what ``repdyn WORDS --help`` prints, 100 columns wide and without colours."""
    from repdyn.cli.main import main

    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, COLUMNS="100", NO_COLOR="1"),
        redirect_stdout(printed),
        suppress(SystemExit),
    ):
        main([*words, "--help"])
    if not printed.getvalue():
        raise ValueError(
            f"expected repdyn {' '.join(words)} --help to print something, got nothing"
        )
    return printed.getvalue()

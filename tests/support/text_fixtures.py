"""Small dumps, a folder of real text where there is one, and a cache that is thrown away."""

from __future__ import annotations

import os
from collections.abc import Callable
from html import escape
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
HEADER = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.3/" '
    'xml:lang="en"><siteinfo><namespaces>'
    '<namespace key="0" /><namespace key="10">Template</namespace><namespace '
    'key="14">Category</namespace>'
    "</namespaces></siteinfo>\n"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, found by everything."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("REPDYN_CACHE", str(folder))
    return folder


@pytest.fixture
def make_dump() -> Callable[..., bytes]:
    """A MediaWiki dump of the given pages, title and wikitext."""

    def make(pages: dict[str, str]) -> bytes:
        body = "".join(
            f"<page><title>{escape(title)}</title><revision><id>1</id>"
            f'<text xml:space="preserve">{escape(text, quote=False)}</text></revision></page>\n'
            for title, text in pages.items()
        )
        return f"{HEADER}{body}</mediawiki>".encode()

    return make


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real Wikipedia text."""
    folder = Path(os.environ.get("REPDYN_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real text in {folder}; set REPDYN_DATA")
    return folder


@pytest.fixture(scope="session")
def enwik8_prefix(real_data: Path) -> Path:
    """The first 4,154,399 bytes of enwik8."""
    path = real_data / "enwik8_prefix_4154399.gz"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    return path

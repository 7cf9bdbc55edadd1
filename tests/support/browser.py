"""A real browser for tests of pages: what goes wrong in a page, and what it asks of other hosts, is
kept.

A test module imports the fixture: ``from browser import watched_page``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Error, Page, Request

NAMES = ("chromium", "chromium-browser", "google-chrome")
OWN_HOSTS = ("127.0.0.1", "localhost")
_TIMEOUT = 20_000  # milliseconds


@dataclass(eq=False)
class Watched:
    """A page, and what it did that it should not."""

    page: Page
    errors: list[str] = field(default_factory=list)
    """Errors in the console, and exceptions that nothing caught."""
    strangers: list[str] = field(default_factory=list)
    """Addresses on other hosts that it asked for; none of them was reached."""


@contextmanager
def browser_page() -> Iterator[Watched]:
    """An empty page of a headless chromium, which reaches this machine alone; skips the test where
    there is none.
    """
    executable = os.environ.get("REPDYN_CHROMIUM") or next(
        filter(None, map(shutil.which, NAMES)), None
    )
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright and chromium")
    if executable is None:
        pytest.skip("needs playwright and chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(_TIMEOUT)
        watched = Watched(context.new_page())
        context.route(_is_strange, lambda route: route.abort())
        watched.page.on("console", lambda message: _keep_error(watched, message))
        watched.page.on("pageerror", lambda error: _keep_page_error(watched, error))
        watched.page.on("request", lambda request: _keep_stranger(watched, request))
        try:
            yield watched
        finally:
            browser.close()


@pytest.fixture
def watched_page() -> Iterator[Watched]:
    with browser_page() as watched:
        yield watched


def _keep_error(watched: Watched, message: ConsoleMessage) -> None:
    if message.type == "error":
        watched.errors.append(f"{message.text} ({message.location.get('url', '')})")


def _keep_page_error(watched: Watched, error: Error) -> None:
    watched.errors.append(str(error))


def _keep_stranger(watched: Watched, request: Request) -> None:
    if _is_strange(request.url):
        watched.strangers.append(request.url)


def _is_strange(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in {"http", "https", "ws", "wss"} and parts.hostname not in OWN_HOSTS

from collections.abc import Iterator

import pytest
from browser import Watched, browser_page


@pytest.fixture(scope="module")
def started_browser() -> Iterator[Watched]:
    """A browser for all tests of a module: starting it takes as long as most of them."""
    with browser_page() as watched:
        yield watched


@pytest.fixture
def browser(started_browser: Watched) -> Watched:
    started_browser.errors.clear()
    started_browser.strangers.clear()
    return started_browser

"""Steps of the tests of a report in a browser."""

from __future__ import annotations

from browser import Watched

STEPS = (0, 1, 4, 16, 64)


def ready(watched: Watched) -> None:
    until(watched, "html[data-ready=yes]")


def until(watched: Watched, selector: str) -> None:
    """Wait for an element; to wait for a function would need an eval, which the page forbids."""
    watched.page.locator(selector).wait_for(state="attached")


def state(watched: Watched) -> dict[str, str]:
    return watched.page.evaluate("Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")

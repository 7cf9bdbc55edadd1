"""Checks of the responses of a hub, made before its client library acts on them: it waits as long as it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx2
from huggingface_hub import get_session
from huggingface_hub.utils import parse_ratelimit_headers

from repdyn.hub.errors import CheckpointError

BUSY = {408, 429, 500, 502, 503, 504}
"""Status codes after which a request is repeated."""
_LONGEST_WAIT_SECONDS = 300
_LONGEST_NUMBER = 9
_MOST_PAGES = 2000

_request = threading.local()


@contextmanager
def checked_responses(monitor: Callable[[int], None]) -> Iterator[None]:
    """Check the responses to the requests that this thread makes in the block.

    Args:
        monitor: called at each response with 0; raises an error to end a request that was cancelled or took too long.

    Raises:
        CheckpointError: the hub asks for a longer wait than a sweep grants, or its listing does not end.
    """
    session = get_session()
    hooks = session.event_hooks
    if _check not in hooks["response"]:
        session.event_hooks = {**hooks, "response": [*hooks["response"], _check]}
    _request.pages, _request.monitor = set(), monitor
    try:
        yield
    finally:
        del _request.pages, _request.monitor


def requested_wait(response: httpx2.Response) -> int | None:
    """Return the seconds that a busy hub asks to wait, or None if it names none.

    Raises:
        CheckpointError: a longer time than a sweep waits for.
    """
    if response.status_code not in BUSY:
        return None
    named = response.headers.get("Retry-After", "").strip()
    limits = parse_ratelimit_headers(response.headers) if response.status_code == 429 else None
    if limits is not None and limits.remaining == 0:
        named = str(limits.reset_in_seconds)
    if not (named.isascii() and named.isdecimal()):
        return None
    if len(named) > _LONGEST_NUMBER or int(named) > _LONGEST_WAIT_SECONDS:
        raise CheckpointError(
            f"the hub asks to wait {named:.12}{'...' if len(named) > 12 else ''} seconds before the next request "
            f"({response.status_code}), longer than the {_LONGEST_WAIT_SECONDS} that a sweep waits; try later"
        )
    return int(named)


def _check(response: httpx2.Response) -> None:
    pages: set[str] | None = getattr(_request, "pages", None)
    if pages is None:  # a request of another program part
        return
    _request.monitor(0)
    requested_wait(response)
    following = response.links.get("next", {}).get("url")
    if following is None:
        return
    pages.add(str(response.request.url))
    if following in pages or len(pages) > _MOST_PAGES:
        how = "its pages refer to each other" if following in pages else f"it has more than {_MOST_PAGES:,} pages"
        raise CheckpointError(f"expected a listing that ends from the hub, but {how}: {following:.200}")

"""Checks of the responses of a hub, made before its client library acts on them: it waits as long as it is told to."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx2
from huggingface_hub import get_session
from huggingface_hub.utils import parse_ratelimit_headers

from repdyn.hub.errors import CheckpointError

_SLOW_DOWN = {408, 429}
_FIRST_OF_SERVER = 500
"""Status codes from here on are errors of the server, or of what stands before it: 520 to 530, for example."""
MOST_LISTED_BYTES = 128 << 20
"""Largest size of all pages of a listing."""
_MOST_ERROR_BYTES = 1 << 20
_LONGEST_WAIT_SECONDS = 300
_LONGEST_NUMBER = 9
_MOST_PAGES = 2000

_LONG_WAIT_SECONDS = 10
"""Waits from here on are announced."""

_request = threading.local()
_announcing = threading.Lock()
_announced_until = 0.0
log = logging.getLogger(__name__)


def is_busy(code: int) -> bool:
    """Return whether a request is repeated after a status code."""
    return code in _SLOW_DOWN or code >= _FIRST_OF_SERVER


@contextmanager
def checked_responses(monitor: Callable[[int], None], most_bytes: int | None = None) -> Iterator[None]:
    """Check the responses to the requests that this thread makes in the block.

    Args:
        monitor: called at each response with 0; raises an error to end a request that was cancelled or took too long.
        most_bytes: limit for the content of all responses, after decompression; None where the content goes to a file.

    Raises:
        CheckpointError: the hub asks for a longer wait than a sweep grants, or its listing does not end.
    """
    session = get_session()
    hooks = session.event_hooks
    if _check not in hooks["response"]:
        session.event_hooks = {**hooks, "response": [*hooks["response"], _check]}
    _request.pages, _request.monitor, _request.bytes_left = set(), monitor, most_bytes
    try:
        yield
    finally:
        del _request.pages, _request.monitor, _request.bytes_left


def requested_wait(response: httpx2.Response) -> int | None:
    """Return the seconds that a busy hub asks to wait, or None if it names none.

    Raises:
        CheckpointError: a longer time than a sweep waits for.
    """
    if not is_busy(response.status_code):
        return None
    named = response.headers.get("Retry-After", "").strip()
    limits = parse_ratelimit_headers(response.headers) if response.status_code == 429 else None
    if limits is not None and limits.remaining == 0:
        named = str(limits.reset_in_seconds)
    if not named.isdecimal():
        return None
    named = "".join(str(int(digit)) for digit in named)  # the client reads those of any script
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
    _announce(requested_wait(response) or 0, response)
    if response.is_error:
        _read(response, _MOST_ERROR_BYTES)
    elif _request.bytes_left is not None:
        _request.bytes_left -= _read(response, _request.bytes_left)
    following = response.links.get("next", {}).get("url")
    if following is None:
        return
    pages.add(str(response.request.url))
    if following in pages or len(pages) > _MOST_PAGES:
        how = "its pages refer to each other" if following in pages else f"it has more than {_MOST_PAGES:,} pages"
        raise CheckpointError(f"expected a listing that ends from the hub, but {how}: {following:.200}")


def _announce(seconds: int, response: httpx2.Response) -> None:
    """Log a long wait, once for all requests that wait at the same time: nothing else is printed meanwhile."""
    global _announced_until
    now = time.monotonic()
    with _announcing:
        if seconds < _LONG_WAIT_SECONDS or now + seconds < _announced_until + _LONG_WAIT_SECONDS:
            return
        _announced_until = now + seconds
    log.warning("the hub asks to wait %d seconds before the next request (%d)", seconds, response.status_code)


def _read(response: httpx2.Response, most_bytes: int) -> int:
    """Read the content of a response, as its client would without a limit, and return its size."""
    content = bytearray()
    for piece in response.iter_bytes():
        content += piece
        if len(content) > most_bytes:
            response.close()
            raise CheckpointError(
                f"expected answers of at most {most_bytes:,} bytes from the hub, got more: {response.url!s:.200}"
            )
    response._content = bytes(content)  # where the client looks for it
    return len(content)

"""The explorer in a real browser: it loads without errors and without other hosts, and its controls
do what they say.
"""

from __future__ import annotations

import re
import socket

import pytest
from browser import watched_page  # noqa: F401  (a fixture)
from saved_models import MARKUP

from repdyn.lab.explorer.app import build, launch

pytestmark = pytest.mark.process


SENTENCE, OTHER = f"The coin {MARKUP[0]}{MARKUP[1]}{MARKUP[2]}.", "The note."


TABS = (
    "Nearest tokens",
    "Similarity across layers",
    "Rank across layers",
    "Paths of two sentences",
)


PLOTS = {"Similarity across layers": "similarity", "Rank across layers": "rank"}


SECONDS = 1000


@pytest.fixture
def opened(session, watched_page):  # noqa: F811
    """The page of an encoder and a decoder, shown."""
    blocks = build(session, SENTENCE, OTHER)
    watched_page.page.goto(launch(blocks, host="127.0.0.1", port=0))
    watched_page.page.locator("#lens caption", has_text="a decoder: the next token").wait_for()
    watched_page.page.get_by_role("tab", name=TABS[0]).click()
    captions(watched_page.page, "h")
    yield watched_page
    blocks.close(verbose=False)


def captions(page, token):
    """Wait until both models' nearest tokens are those of one token."""
    for name in ("an encoder", "a decoder"):
        page.locator("#nearest caption").get_by_text(f"{name}: {token}", exact=True).wait_for(
            state="attached"
        )


def plotted(page, name):
    """What is drawn in a tab, once it stands still."""
    page.get_by_role("tab", name=name).click()
    plot = page.locator(f"#{PLOTS[name]} .scatterlayer").first
    plot.wait_for()
    before = None
    for _ in range(50):
        page.wait_for_timeout(0.1 * SECONDS)
        drawn = plot.inner_html()
        if drawn == before:
            return re.sub(r'(class|id|clip-path)="[^"]*"', "", drawn)
        before = drawn
    raise TimeoutError(f"expected a figure that stands still in {name!r}")


def test_a_choice_updates_every_tab_without_errors_or_other_hosts(opened):
    page = opened.page
    page.get_by_role("tab", name=TABS[3]).click()
    page.locator("#paths img").nth(1).wait_for()
    before = {name: plotted(page, name) for name in PLOTS}
    page.get_by_role("tab", name=TABS[0]).click()
    page.locator("#tokens label", has_text=re.compile(r"^\s*c\s*$")).click()
    captions(page, "c")
    after = {name: plotted(page, name) for name in PLOTS}
    assert [name for name in PLOTS if before[name] == after[name]] == []
    page.get_by_role("tab", name=TABS[0]).click()
    page.get_by_label("Add the token's position embedding").check()
    page.get_by_text("got none in a decoder; take the position embeddings off").wait_for()
    page.locator("#nearest caption", has_text="a decoder").wait_for(state="detached")
    page.get_by_label("Add the token's position embedding").uncheck()
    captions(page, "c")
    page.get_by_label("after the attention").check()
    page.locator("#nearest tr:first-child th").get_by_text("0", exact=True).first.wait_for(
        state="detached"
    )
    assert [head.split() for head in page.locator("#nearest thead").all_inner_texts()] == [
        ["layer", "1", "2"]
    ] * 2
    assert opened.errors == []
    assert opened.strangers == []


def test_nothing_outside_this_computer_is_asked_for_anything(session, monkeypatch):
    """Neither when the page is made nor when it is served."""
    addresses, connect = [], socket.socket.connect

    def watched(connecting, address):
        addresses.append(address)
        return connect(connecting, address)

    monkeypatch.setattr(socket.socket, "connect", watched)
    monkeypatch.setattr(socket, "getaddrinfo", _watching(addresses, socket.getaddrinfo))
    blocks = build(session, SENTENCE, OTHER)
    launch(blocks, host="127.0.0.1", port=0)
    blocks.close(verbose=False)
    hosts = {address[0] for address in addresses if isinstance(address, tuple)}
    assert hosts == {"127.0.0.1"}


def _watching(addresses, whole):
    def looked_up(host, *arguments, **settings):
        addresses.append((host,))
        return whole(host, *arguments, **settings)

    return looked_up

"""Take the pictures of docs/explorer.md: start the explorer, use it in a headless chromium, write six PNG files.

    python docs/explorer/screenshots.py all-MiniLM-L6-v2 stories260K-hf

The first model is looked at alone for the nearest tokens of one token and the paths of two sentences, both for cosines
and ranks, the second alone for the logit lens and the attention of a head.
Needs playwright and a chromium (found on the PATH, or named by REPDYN_CHROMIUM).
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from repdyn.explorer.app import build
from repdyn.explorer.server import launch
from repdyn.explorer.session import Session
from repdyn.reading import LoadedModel, load_model
from repdyn.utils.arguments import SENTENCES

HERE = Path(__file__).parent
HOST, NEAREST, MAX_TOKENS = "127.0.0.1", 10, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs=2, metavar="MODEL", help="an encoder, then a decoder")
    models = parser.parse_args().models
    executable = os.environ.get("REPDYN_CHROMIUM") or shutil.which("chromium")
    loaded = [load_model(name, device="cpu", dtype="float32", with_head=True) for name in models]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        _lens(browser, loaded[1])
        _attention(browser, loaded[1])
        shots = ((loaded[:1], "bank", ("nearest", "paths")), (loaded, "the", ("similarity", "rank")))
        for subjects, token, tabs in shots:
            blocks = build(Session(subjects, nearest=NEAREST, max_tokens=MAX_TOKENS), *SENTENCES)
            page = browser.new_page(viewport={"width": 1180, "height": 600})
            page.goto(launch(blocks, host=HOST, port=0))
            _open(page, "nearest")
            page.wait_for_selector("#nearest td")
            page.locator("#tokens label", has_text=token).click()
            page.wait_for_selector(f"#nearest caption:has-text(': {token}')")
            for tab in tabs:
                _open(page, tab)
                page.screenshot(path=HERE / f"{tab}.png", full_page=True)
            blocks.close(verbose=False)
        browser.close()


def _lens(browser: Browser, loaded: LoadedModel) -> None:
    blocks = build(Session([loaded], nearest=NEAREST, max_tokens=MAX_TOKENS), *SENTENCES)
    page = browser.new_page(viewport={"width": 1180, "height": 600})
    page.goto(launch(blocks, host=HOST, port=0))
    page.locator('#lens button[data-layer="3"][data-place="2"]').click()
    page.wait_for_selector("#top caption:has-text('Layer 3')")
    page.screenshot(path=HERE / "lens.png", full_page=True)
    blocks.close(verbose=False)


def _attention(browser: Browser, loaded: LoadedModel) -> None:
    blocks = build(Session([loaded], nearest=NEAREST, max_tokens=MAX_TOKENS), *SENTENCES)
    page = browser.new_page(viewport={"width": 1180, "height": 600})
    page.goto(launch(blocks, host=HOST, port=0))
    _open(page, "attention")
    page.locator("#block input").fill("3")
    page.keyboard.press("Enter")
    page.locator("#attention").get_by_text("in layer 3").wait_for()
    page.wait_for_timeout(1000)
    page.screenshot(path=HERE / "attention.png", full_page=True)
    blocks.close(verbose=False)


def _open(page: Page, tab: str) -> None:
    page.get_by_role("tab", name=tab).click()
    page.wait_for_selector(f"#{tab} :is(table, .cartesianlayer)")
    page.wait_for_timeout(1000)  # the figure comes in with a transition


if __name__ == "__main__":
    main()

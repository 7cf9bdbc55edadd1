"""Make the screenshots of the docs in a headless chromium: of reports, of the table of runs, of the
explorer.

    python docs/screenshots.py
    python docs/screenshots.py --models all-MiniLM-L6-v2 stories260K

The first makes those of reports and runs, from the stores of docs/runs, the second the explorer's,
of an encoder and then a decoder.
An encoder alone gives the pictures in which it is alone.
Needs playwright and a chromium, which REPDYN_CHROMIUM may name.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from repdyn import open_store
from repdyn.activations import LoadedModel, load_model
from repdyn.lab.explorer.app import build, launch
from repdyn.lab.explorer.session import Session
from repdyn.utils.arguments import SENTENCES
from repdyn.views.report import write_report

DOCS = Path(__file__).parent
REPORTS = {
    "failed": (("diverging",), "", "header", 1036),
    "light": (("decoder",), "metric=two_nn&subset=all&step=128", "#controls", 1225),
    "side_by_side": (
        ("decoder", "encoder", "finished"),
        "metric=two_nn&subset=all",
        "#comparison",
        1368,
    ),
    "heads": (
        ("topics",),
        "metric=attention_topic_gap&subset=all&step=200&theme=dark",
        "#controls",
        1228,
    ),
}
"""By name: the stores, the state of the page, the element at the top, and the height in pixels."""
WATCHED = ("decoder", "diverging", "encoder", "finished")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="+", metavar="MODEL", default=[], help="for the explorer alone"
    )
    models = [
        load_model(name, device="cpu", dtype="float32", with_head=True)
        for name in parser.parse_args().models
    ]
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = os.environ.get("REPDYN_CHROMIUM") or next(
        filter(None, map(shutil.which, names)), None
    )
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        if models:
            explorer(browser, models)
        else:
            reports(browser, Path(folder))
            table_of_runs(browser, Path(folder))
        browser.close()


def reports(browser: Browser, folder: Path) -> None:
    for name, (stores, chosen, top, height) in REPORTS.items():
        report = folder / f"{name}.html"
        write_report([open_store(DOCS / "runs" / store) for store in stores], report)
        page = browser.new_page(viewport={"width": 1280, "height": height})
        page.goto(f"{report.as_uri()}#{chosen}")
        page.locator("html[data-ready=yes]").wait_for(state="attached")
        page.evaluate(f"document.querySelector('{top}').scrollIntoView({{behavior: 'instant'}})")
        page.wait_for_timeout(400)
        box = page.locator(top).first.bounding_box()
        assert box is not None
        # the heading above the controls, uncut
        above = 52 if top == "#controls" else 0
        y = max(0.0, box["y"] - above)
        save(page, f"report/{name}.png", clip={"x": 0, "y": y, "width": 1280, "height": height - y})


def table_of_runs(browser: Browser, folder: Path) -> None:
    for name in WATCHED:
        shutil.copytree(DOCS / "runs" / name, folder / "runs" / name)
    command = [sys.executable, "-m", "repdyn", "watch", ".", "--port", "0", "--no-token"]
    with subprocess.Popen(
        command, cwd=folder / "runs", stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        page = browser.new_page(viewport={"width": 1280, "height": 520})
        page.goto(f"{server.stdout.readline().split()[6]}#theme=light")
        page.locator("tbody tr:nth-child(5)").wait_for()
        page.get_by_text("Not described yet").first.wait_for(state="detached")
        page.wait_for_timeout(3000)  # rows that changed are marked for a while
        save(page, "watch/table.png")
        server.terminate()


def explorer(browser: Browser, models: Sequence[LoadedModel]) -> None:
    """Show an encoder alone, a decoder alone, and both with one token."""
    visit(browser, models[:1], "bank", ("nearest", "paths"))
    if len(models) > 1:
        visit(browser, models[1:], "", ("lens", "attention"))
        visit(browser, models, "the", ("similarity", "rank"))


def visit(browser: Browser, models: Sequence[LoadedModel], token: str, tabs: Sequence[str]) -> None:
    """Open the explorer on some models, choose a token unless it is empty, and take a picture of
    each tab.
    """
    blocks = build(Session(models, nearest=10, max_tokens=128), *SENTENCES)
    page = browser.new_page(viewport={"width": 1180, "height": 600})
    page.goto(launch(blocks, host="127.0.0.1", port=0))
    if token:
        open_tab(page, "nearest")
        page.locator("#tokens label", has_text=token).click()
        page.wait_for_selector(f"#nearest caption:has-text(': {token}')")
    for tab in tabs:
        open_tab(page, tab)
        if tab == "lens":
            page.locator('#lens button[data-layer="3"][data-place="2"]').click()
            page.wait_for_selector("#top caption:has-text('Layer 3')")
        elif tab == "attention":
            page.locator("#block input").fill("3")
            page.keyboard.press("Enter")
            page.locator("#attention").get_by_text("in layer 3").wait_for()
            page.wait_for_timeout(1000)
        save(page, f"explorer/{tab}.png", full_page=True)
    blocks.close(verbose=False)


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()
    page.wait_for_selector(f"#{name} :is(table, .cartesianlayer, img)")
    page.wait_for_timeout(1000)  # the figure comes in with a transition


def save(page: Page, name: str, **options: Any) -> None:
    picture = Image.open(io.BytesIO(page.screenshot(**options)))
    look = {
        "method": Image.Quantize.MAXCOVERAGE,
        "kmeans": 2,
        "dither": Image.Dither.NONE,
    }  # rare colours stay, too
    picture.convert("RGB").quantize(**look).save(DOCS / name, optimize=True)  # a third of the bytes
    print(f"{name}: {(DOCS / name).stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()

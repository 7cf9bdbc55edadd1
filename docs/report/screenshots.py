"""Screenshots of reports, taken in a headless chromium: what docs/report.md and the README show.

    python docs/report/screenshots.py

Needs playwright and a chromium (REPDYN_CHROMIUM names one). The reports are those of the stores in docs/runs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from repdyn import open_store
from repdyn.report import write_report

HERE = Path(__file__).parent
RUNS = HERE.parent / "runs"
WIDTH = 1280
_HEADING = 52
"""Pixels of the heading above the controls."""
DECODER, BOTH = ("decoder",), ("decoder", "encoder", "finished")
SHOTS = {
    "failed": (("diverging",), "", "header", 900),
    "light": (DECODER, "metric=two_nn&subset=all&step=128", "#controls", 1180),
    "side_by_side": (BOTH, "metric=two_nn&subset=all", "#comparison", 1130),
    "heads": (("topics",), "metric=attention_topic_gap&subset=all&step=200&theme=dark", "#controls", 1480),
}
"""By name: the stores, the state of the page, the element at the top, and the height in pixels."""


def main() -> None:
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = os.environ.get("REPDYN_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page()
        for name, (stores, chosen, top, height) in SHOTS.items():
            report = Path(folder) / f"{'_'.join(stores)}.html"
            write_report([open_store(RUNS / store) for store in stores], report)
            page.set_viewport_size({"width": WIDTH, "height": height})
            page.goto("about:blank")
            page.goto(f"{report.as_uri()}#{chosen}")
            page.locator("html[data-ready=yes]").wait_for(state="attached")
            _shoot(page, top, HERE / f"{name}.png")
        browser.close()


def _shoot(page: Page, top: str, target: Path) -> None:
    page.evaluate(f"document.querySelector('{top}').scrollIntoView({{behavior: 'instant'}})")
    page.wait_for_timeout(400)
    box, size = page.locator(top).first.bounding_box(), page.viewport_size
    assert box is not None
    assert size is not None
    y = max(0.0, box["y"] - _HEADING * (top == "#controls"))  # what stands above it is cut through
    page.screenshot(path=target, clip={"x": 0, "y": y, "width": size["width"], "height": size["height"] - y})
    print(f"{target}: {target.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()

"""Screenshots of the table of runs, taken in a headless chromium: what docs/watch.md shows.

    python docs/watch/screenshots.py

Needs playwright and a chromium (REPDYN_CHROMIUM names one). The runs are copies of those of docs/runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
RUNS = HERE.parent / "runs"
THEMES = {"table": "light"}


def main() -> None:
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = os.environ.get("REPDYN_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        for name in ("decoder", "diverging", "encoder", "finished"):
            shutil.copytree(RUNS / name, Path(folder) / name)
        command = [sys.executable, "-m", "repdyn", "watch", ".", "--port", "0", "--no-token"]
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        address = server.stdout.readline().split()[6]
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 520})
        for name, theme in THEMES.items():
            page.goto("about:blank")
            page.goto(f"{address}#theme={theme}")
            page.locator(".status.failed").wait_for()
            page.locator("tbody tr:nth-child(5)").wait_for()
            page.get_by_text("Not described yet").first.wait_for(state="detached")
            page.screenshot(path=HERE / f"{name}.png")
            print(f"{name}: {(HERE / f'{name}.png').stat().st_size / 1e3:.0f} kB")
        browser.close()
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()

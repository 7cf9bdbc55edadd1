"""``repdyn demo``: a report that comes with the package."""

import base64
import gzip
import hashlib
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from repdyn.cli import demo
from repdyn.cli.main import main

ROOT = Path(__file__).parents[3]
SECONDS = 2.0
COMMAND = """
import sys, time
from repdyn.cli.main import main
main(["demo", "--no-browser", "-o", sys.argv[1]])
slow = {"torch", "pandas", "numpy", "matplotlib", "transformers", "lightning"} & set(sys.modules)
print(f"{time.process_time():.3f} {sorted(slow)}")
"""


def test_the_page_is_written_and_opened(tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    main(["demo", "-o", str(tmp_path / "new")])
    path = tmp_path / "new" / demo.FILE
    assert f"report: {path}" in capsys.readouterr().out.splitlines()
    assert opened == [path.as_uri()]
    main(["demo", "-o", str(tmp_path), "--no-browser"])
    assert len(opened) == 1


def test_the_page_is_whole_and_allows_the_chart_library_that_is_installed(tmp_path):
    page = demo.write_demo(tmp_path).read_text(encoding="utf-8")
    assert "@@" not in page
    block = re.search(r'id="plotly">([^<]+)<', page)
    assert block
    library = gzip.decompress(base64.b64decode(block[1]))
    assert library.startswith(b"/**\n* plotly.js")
    assert f"'sha256-{base64.b64encode(hashlib.sha256(library).digest()).decode()}'" in page
    assert page.rstrip().endswith("</html>")


@pytest.mark.process
def test_it_takes_less_than_two_seconds_and_imports_nothing_slow(tmp_path):
    command = [sys.executable, "-c", COMMAND, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    seconds, slow = result.stdout.splitlines()[-1].split(" ", 1)
    assert slow == "[]"
    assert float(seconds) < SECONDS


def test_the_page_that_comes_with_the_package_is_that_of_the_repository():
    from repdyn.cli.demo import make_page

    def content(page: bytes) -> str:
        return re.sub(r"Written [\d :-]+ UTC", "", gzip.decompress(page).decode())

    there = content((files("repdyn.cli") / demo.PAGE).read_bytes())
    now = content(make_page(ROOT / "docs" / "runs" / "decoder"))
    assert there == now, "make it again with: python -m repdyn.cli.demo docs/runs/decoder"

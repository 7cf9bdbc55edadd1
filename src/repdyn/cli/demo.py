"""The page that ``repdyn demo`` opens: the report of a finished run, without the chart library, which Plotly has.

It is made again, from a store in the repository, by

    python -m repdyn.cli.demo docs/runs/decoder
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

PAGE, FILE = "demo.html.gz", "repdyn_demo.html"
TITLE = "A small decoder on Wikipedia text"
_LIBRARY, _LIBRARY_HASH = "@@chart-library@@", "@@chart-library-hash@@"
_BLOCK = re.compile(r'(<script type="application/octet-stream" id="plotly">)([^<]*)(</script>)')


def write_demo(folder: Path | None) -> Path:
    """Write the page into a folder, a temporary one unless given, and return its path."""
    folder = folder or Path(tempfile.mkdtemp(prefix="repdyn_demo_"))
    page = gzip.decompress((files("repdyn.cli") / PAGE).read_bytes()).decode()
    library = _chart_library()
    content = base64.b64encode(gzip.compress(library, 1, mtime=0)).decode()
    page = page.replace(_LIBRARY, content).replace(_LIBRARY_HASH, _hash(library))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    path.write_text(page, encoding="utf-8")
    return path


def make_page(store: Path) -> bytes:
    """Return the report of a store, compressed, with marks in place of the chart library and of its hash."""
    from repdyn.report import write_report
    from repdyn.store import open_store

    with tempfile.TemporaryDirectory() as folder:
        page = write_report(open_store(store), Path(folder) / "report.html", title=TITLE).read_text(encoding="utf-8")
    library, found = _chart_library(), _BLOCK.search(page)
    if not found or gzip.decompress(base64.b64decode(found[2])) != library or _hash(library) not in page:
        raise ValueError("expected a report with Plotly's script and its hash, got none; adapt repdyn.cli.demo")
    page = _BLOCK.sub(rf"\g<1>{_LIBRARY}\g<3>", page).replace(_hash(library), _LIBRARY_HASH)
    return gzip.compress(page.encode(), 9, mtime=0)


def _chart_library() -> bytes:
    """Return Plotly's script as browsers read it."""
    return (files("plotly") / "package_data" / "plotly.min.js").read_bytes().replace(b"\r\n", b"\n")


def _hash(library: bytes) -> str:
    """Return the hash by which the security policy of a page allows the script."""
    return base64.b64encode(hashlib.sha256(library).digest()).decode()


if __name__ == "__main__":
    Path(__file__).with_name(PAGE).write_bytes(make_page(Path(sys.argv[1])))

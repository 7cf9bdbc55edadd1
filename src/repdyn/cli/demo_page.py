"""Make the page that ``repdyn demo`` opens, from a store in the repository.

python -m repdyn.cli.demo_page docs/runs/decoder
"""

from __future__ import annotations

import base64
import gzip
import re
import sys
import tempfile
from pathlib import Path

from repdyn.cli.demo import LIBRARY, LIBRARY_HASH, PAGE, chart_library, library_hash
from repdyn.report import write_report
from repdyn.store import open_store

TITLE = "A small decoder on Wikipedia text"
_BLOCK = re.compile(r'(<script type="application/octet-stream" id="plotly">)([^<]*)(</script>)')


def make_page(store: Path) -> bytes:
    """Return the report of a store, compressed, with marks in place of the chart library and of its hash.

    Raises:
        ValueError: nothing is stored, or the report does not hold the chart library as expected.
    """
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(open_store(store), Path(folder) / "report.html", title=TITLE).read_text(encoding="utf-8")
    library, found = chart_library(), _BLOCK.search(page)
    if not found or gzip.decompress(base64.b64decode(found[2])) != library or library_hash(library) not in page:
        raise ValueError("expected a report with Plotly's script and its hash, got none; adapt repdyn.cli.demo_page")
    page = _BLOCK.sub(rf"\g<1>{LIBRARY}\g<3>", page).replace(library_hash(library), LIBRARY_HASH)
    return gzip.compress(page.encode(), 9, mtime=0)


if __name__ == "__main__":
    Path(__file__).with_name(PAGE).write_bytes(make_page(Path(sys.argv[1])))

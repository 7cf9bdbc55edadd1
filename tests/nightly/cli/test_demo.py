"""``repdyn demo``: a report of measurements that come with the package."""

from importlib.resources import files
from pathlib import Path

from repdyn.cli.main import main

ROOT = Path(__file__).parents[3]


def test_the_page_is_written_and_opened(tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    main(["demo", "-o", str(tmp_path / "new")])
    path = tmp_path / "new" / "repdyn_demo.html"
    assert f"report: {path}" in capsys.readouterr().out.splitlines()
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert opened == [path.as_uri()]
    main(["demo", "-o", str(tmp_path), "--no-browser"])
    assert len(opened) == 1


def test_the_measurements_are_those_of_the_repository():
    """Rows of an older version would show values that the site does not have."""
    name = "decoder_wikipedia/rows.parquet"
    there = ROOT / "docs" / "runs" / "decoder" / name
    assert (Path(str(files("repdyn.cli"))) / "demo" / name).read_bytes() == there.read_bytes()

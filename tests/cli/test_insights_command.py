"""What ``repdyn insights`` prints."""

import pytest
from synthetic_runs import fill, make_published

from repdyn.cli.main import main


@pytest.fixture
def printed(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def printed(*runs, colour=False):
        if colour:
            monkeypatch.setenv("FORCE_COLOR", "1")
        main(["insights", str(fill(tmp_path, *runs).path)])
        return capsys.readouterr().out

    return printed


def test_the_status_comes_first_and_lines_fit_80_columns(printed):
    halving = {"dimension": lambda step, depth: 9.0 if step < 32 else 2.0}
    steps = (0, 1, 2, 4, 8, 16, 32)
    lines = printed(make_published("lab/a", steps=steps, **halving), make_published("lab/b", steps=steps)).splitlines()
    assert max(map(len, lines)) <= 80
    headings = [number for number, line in enumerate(lines) if line.startswith("lab/")]
    assert [lines[number].rpartition(": ")[2].strip() for number in headings] == ["watch", "healthy"]
    assert lines[headings[0] + 1].startswith("  reason Alerts were raised")
    assert lines[headings[0] + 2].startswith("  watch  Alert (dimension halved)")
    assert lines[headings[1] + 1].startswith("  reason ")


def test_severity_is_coloured(printed):
    steps = (0, 1, 2, 4, 8, 16, 32)
    assert "\x1b[32mhealthy" in printed(make_published("lab/a", steps=steps), colour=True)


def test_names_do_not_reach_the_terminal_as_they_are(printed):
    assert "\x1b" not in printed(make_published("lab/\x1b[2Ja", steps=(0, 8)))

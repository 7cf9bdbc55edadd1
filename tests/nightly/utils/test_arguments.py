"""What a mistaken command line is told."""

import subprocess
import sys

import pytest

from repdyn.utils.arguments import SuggestingParser


@pytest.mark.process
def test_help_does_not_wait_for_torch():
    code = "import sys, repdyn.utils.arguments; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_fits_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "42")
    examples = (
        "examples:\n  fruit apple --ripe                a ripe one\n  fruit pear\n"
        '  fruit apple --note "a long text in quotes" --ripe\n\nA paragraph in\ntwo lines that are joined and wrapped.'
    )
    parser = SuggestingParser(prog="fruit", epilog=examples)
    assert parser.format_help().partition("examples:\n")[2].splitlines() == [
        "  # a ripe one",
        "  fruit apple --ripe",
        "  fruit pear",
        "  fruit apple --note \\",
        '      "a long text in quotes" --ripe',
        "",
        "A paragraph in two lines that are joined",
        "and wrapped.",
    ]

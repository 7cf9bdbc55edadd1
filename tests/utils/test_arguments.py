"""What a mistaken command line is told."""

import argparse
import subprocess
import sys

import pytest

from repdyn.utils.arguments import SuggestingParser, at_least


def refused(parser: argparse.ArgumentParser, capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit, match="^2$"):
        parser.parse_args(arguments)
    return capsys.readouterr().err.splitlines()[-1]


def with_choices() -> SuggestingParser:
    parser = SuggestingParser(choice="a fruit", prog="fruit")
    parser.add_argument("fruit", metavar="FRUIT", choices=["apple", "pear"])
    parser.add_argument("--ripe", action="store_true")
    return parser


def with_commands() -> SuggestingParser:
    parser = SuggestingParser(choice="a command", prog="kitchen")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    commands.add_parser("wash").add_argument("--with", choices=["water", "soap"])
    commands.add_parser("peel")
    return parser


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["appel"], "fruit: error: expected a fruit, got 'appel'; did you mean 'apple'?"),
        (["qqq"], "fruit: error: expected a fruit, got 'qqq'; there are apple, pear"),
        ([], "fruit: error: expected a fruit, got none; there are apple, pear"),
        (["pear", "--rip3"], "fruit: error: unrecognized arguments: --rip3; did you mean --ripe?"),
        (["pear", "--zzz"], "fruit: error: unrecognized arguments: --zzz; see --help"),
        (["pear", "apple"], "fruit: error: unrecognized arguments: apple"),
    ],
    ids=" ".join,
)
def test_a_mistyped_choice_or_option(capsys, arguments, message):
    assert refused(with_choices(), capsys, *arguments) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["wsh"], "kitchen: error: expected a command, got 'wsh'; did you mean 'wash'?"),
        ([], "kitchen: error: expected a command, got none; there are wash, peel"),
        (["wash", "--wth"], "kitchen: error: unrecognized arguments: --wth; did you mean --with?"),
        (["peel", "--with"], "kitchen: error: unrecognized arguments: --with; see --help"),
    ],
    ids=["mistyped", "none", "option", "option of another"],
)
def test_a_mistyped_command(capsys, arguments, message):
    assert refused(with_commands(), capsys, *arguments) == message


def test_the_choices_of_an_option_are_told_by_argparse(capsys):
    message = refused(with_commands(), capsys, "wash", "--with", "sope")
    assert message.startswith("kitchen wash: error: argument --with: invalid choice: 'sope'")


@pytest.mark.parametrize("text", ["2", "x", "-5", "3.0", ""])
def test_whole_numbers(text):
    assert at_least(3)("3") == 3
    with pytest.raises(argparse.ArgumentTypeError, match=f"^expected a whole number of at least 3, got '{text}'$"):
        at_least(3)(text)


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

"""The command line of a sweep: what it takes, and what it says of what it does not take."""

from __future__ import annotations

import re
import shlex

import pytest

from repdyn.checkpoints.options import Shard, n_bytes, parser

PROG = "analyze_checkpoints.py"


def parse(*arguments: str):
    return parser(PROG).parse_args(arguments)


@pytest.fixture
def refused(capsys):
    """Parses what must be refused, and gives the message."""

    def refused(*arguments: str) -> str:
        with pytest.raises(SystemExit) as stop:
            parse(*arguments)
        assert stop.value.code == 2
        return capsys.readouterr().err

    return refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20GB", 20_000_000_000),
        ("20gb", 20_000_000_000),
        ("20G", 20_000_000_000),
        (" 1.5 TB ", 1_500_000_000_000),
        ("300m", 300_000_000),
        ("2kB", 2000),
        ("1024", 1024),
        ("1b", 1),
    ],
)
def test_sizes(text, expected):
    assert n_bytes(text) == expected
    assert parse("x", "--max-disk", text).max_disk == expected


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1e9", "20 GiB", "20GB/s", "1.GB", "0", "0GB", "0.1", "nan"])
def test_invalid_sizes(text, refused):
    assert f"argument --max-disk: expected a size such as 20GB or 500MB, got {text!r}" in refused(
        "x", f"--max-disk={text}"
    )


@pytest.mark.parametrize(("text", "shard"), [("1/1", Shard(1, 1)), ("8/8", Shard(8, 8)), ("2/10", Shard(2, 10))])
def test_shards(text, shard):
    assert parse("x", "--shard", text).shard == shard


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2", "1 / 2", ""])
def test_invalid_shards(text, refused):
    assert f"argument --shard: expected I/N with 1 <= I <= N, such as 1/8, got {text!r}" in refused(
        "x", f"--shard={text}"
    )


@pytest.mark.parametrize(
    ("text", "positions"), [("2:", slice(2, None)), (":-4", slice(None, -4)), ("1:-1", slice(1, -1))]
)
def test_token_positions(text, positions):
    assert parse("x", "--token-positions", text).token_positions == positions
    assert parse("x").token_positions is None


def test_invalid_token_positions(refused):
    assert "argument --token-positions: expected positions as a slice" in refused("x", "--token-positions", "2")


def test_word_classes():
    given = ([], ["--classes", "words"], ["--classes=none"], ["--classes", "rare", "content"])
    assert [parse("x", *options).classes for options in given] == [["none"], ["words"], ["none"], ["rare", "content"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-vectors=2"], "argument --max-vectors: expected a whole number of at least 3, got '2'"),
        (["--sequence-length=1"], "argument --sequence-length: expected a whole number of at least 2, got '1'"),
        (["--workers=0"], "argument --workers: expected a whole number of at least 1, got '0'"),
        (
            ["--tokens-per-forward=1.5"],
            "argument --tokens-per-forward: expected a whole number of at least 1, got '1.5'",
        ),
        (["--timeout=-3"], "argument --timeout: expected a whole number of at least 1, got '-3'"),
        (["--timeout=nan"], "argument --timeout: expected a whole number of at least 1, got 'nan'"),
        (["--device=gpu0"], "argument --device: expected a device such as cpu, cuda or cuda:1, got 'gpu0'"),
        (["--engine=slurm"], "argument --engine: invalid choice: 'slurm'"),
        (["--classes=verbs"], "argument --classes: invalid choice: 'verbs'"),
        (["--dtype=fp8"], "argument --dtype: invalid choice: 'fp8'"),
        (["--max-dsk=1GB"], "unrecognized arguments: --max-dsk=1GB; did you mean --max-disk?"),
        (["x", "--sute", "pythia"], "unrecognized arguments: --sute pythia; did you mean --suite?"),
        (["--zzz"], "unrecognized arguments: --zzz; see --help"),
        (["two", "sources"], "unrecognized arguments: sources"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_options(arguments, message, refused):
    assert message in refused(*arguments)


def test_errors_do_not_print_the_usage(refused):
    assert refused("--zzz").splitlines() == [
        f"usage: {PROG} [SOURCE | --suite NAME ...] [options]",
        f"{PROG}: error: unrecognized arguments: --zzz; see --help",
    ]


@pytest.mark.parametrize("beginning", ["--revision", "--retry", "--dry"])
def test_abbreviated_options_are_errors(beginning, refused):
    """Their meaning would change with further options."""
    assert f"unrecognized arguments: {beginning}; did you mean {beginning}" in refused("x", beginning)


def test_examples_of_the_help_are_valid(capsys):
    with pytest.raises(SystemExit) as stop:
        parse("--help")
    assert stop.value.code == 0
    shown = re.sub(r"\\\n\s*", "", capsys.readouterr().out)  # long examples go on in the next line
    examples = re.findall(rf"^  {PROG} (.+)$", shown.partition("examples:")[2], re.MULTILINE)
    assert len(examples) >= 8
    for example in examples:
        command = re.split(r" {3,}", example)[0]
        parse(*shlex.split(command.replace('"$((SLURM_ARRAY_TASK_ID + 1))/$SLURM_ARRAY_TASK_COUNT"', "1/4")))
    for status in ("0 everything", "1 some", "2 invalid arguments", "3 no network", "130 interrupted"):
        assert status in " ".join(shown.split())


def test_downloads_lie_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("REPDYN_CACHE", str(tmp_path / "cache"))
    assert parse("x").downloads == tmp_path / "cache" / "downloads"

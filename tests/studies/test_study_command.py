"""The command ``repdyn study``: its list of kinds, its help, and how every mistake ends."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import ClassVar

import pytest

from repdyn.checkpoints.errors import CheckpointError, SweepStoppedError
from repdyn.cli import study as cli
from repdyn.cli.main import main
from repdyn.cli.study import KINDS
from repdyn.studies.driver import Study


def ended(*arguments) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["study", *map(str, arguments)])
    return stopped.value.code


def refused(capsys, *arguments) -> str:
    assert ended(*arguments) == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.fixture
def kind(monkeypatch):
    """A study that takes the place of every other one, and records the models that it measures."""

    class Recorder(Study):
        help = "Help."
        examples = "examples:\n  one"
        measured: ClassVar[list[str]] = []

        @classmethod
        def add_options(cls, parser):
            parser.add_argument("--resamples")

        def measure(self, loaded):
            self.measured.append(loaded.name)

    monkeypatch.setattr(cli, "import_module", lambda name: SimpleNamespace(STUDY=Recorder))
    monkeypatch.setattr(
        "repdyn.studies.driver.load_models", lambda options: [SimpleNamespace(name=name) for name in options.models]
    )
    return Recorder


def test_help_lists_every_kind(capsys):
    assert ended("--help") == 0
    text = capsys.readouterr().out
    assert all(f"  {name}" in text for name in KINDS)
    assert "examples:\n  repdyn study " in text


@pytest.mark.parametrize("name", KINDS)
def test_help_of_a_kind(name, capsys):
    assert ended(name, "--help") == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: repdyn study {name} ")
    assert f"examples:\n  repdyn study {name} " in text
    assert "-o FOLDER" in text


@pytest.mark.process
def test_the_list_of_kinds_does_not_wait_for_torch():
    code = (
        "import sys; from repdyn.cli.main import main\n"
        "try: main(['study', '--help'])\n"
        "except SystemExit: print(sorted({'torch', 'pandas', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["convergance"], "expected a kind of study, got 'convergance'; did you mean 'convergence'?"),
        (["token", "gpt2"], "expected a kind of study, got 'token'; did you mean 'tokens'?"),
        (["xyz"], "expected a kind of study, got 'xyz'; there are convergence, tokens, topics, anatomy, sentences"),
        ([], "expected a kind of study, got none; there are convergence, tokens, topics, anatomy, sentences"),
    ],
    ids=["near", "nearer", "far", "none"],
)
def test_a_mistyped_kind_says_what_was_meant(typed, message, capsys):
    assert refused(capsys, *typed) == f"repdyn study: error: {message}"


def test_a_mistyped_option_says_what_was_meant(kind, capsys):
    message = refused(capsys, "convergence", "gpt2", "-o", "out", "--resample", "5")
    assert message.endswith("error: unrecognized arguments: --resample 5; did you mean --resamples?")


def test_a_study_measures_its_models(kind):
    main(["study", "topics", "a", "b", "-o", "out"])
    assert kind.measured == ["a", "b"]


@pytest.mark.parametrize("failure", [ValueError, OSError, CheckpointError, SweepStoppedError])
def test_every_failure_is_one_line(failure, kind, capsys):
    def finish(_):
        raise failure("expected a model, got https://user:secret@host")

    kind.finish = finish
    assert refused(capsys, "topics", "a", "-o", "out") == "error: expected a model, got https://host"


@pytest.mark.parametrize("when", ["imported", "run"])
def test_a_missing_package_is_said_by_name(when, kind, monkeypatch, capsys):
    def missing(_):
        raise ModuleNotFoundError("No module named 'lxml.etree'", name="lxml.etree")

    kind.finish = missing
    if when == "imported":
        monkeypatch.setattr(cli, "import_module", missing)
    assert refused(capsys, "topics", "a", "-o", "out") == (
        "error: expected the package 'lxml', which this study needs, found none; pip install 'repdyn[topics,train]' "
        "installs the optional packages of studies"
    )


def test_a_missing_module_of_our_own_is_no_missing_package(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'repdyn.x'", name="repdyn.x")

    monkeypatch.setattr(cli, "import_module", missing)
    with pytest.raises(ModuleNotFoundError):
        main(["study", "topics", "a"])

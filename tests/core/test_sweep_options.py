"""The options of a sweep: one list in Python and on the command line, complete before it begins."""

import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from sweeping import options_of

import repdyn
from repdyn.checkpoints.completion import check_contradictions, completed
from repdyn.checkpoints.options import CompleteOptions, Loading, SweepOptions
from repdyn.cli.flags import in_flags
from repdyn.cli.sweep_options import SharedFlags, SweepFlags
from repdyn.metrics import DEFAULT_METRICS

ARGUMENTS = {
    name: parameter
    for name, parameter in inspect.signature(repdyn.sweep).parameters.items()
    if name != "quiet"
}


def test_every_option_is_an_argument_of_its_type_and_default():
    """An option without an argument could be set on the command line alone."""
    options = {field.name: (field.type, field.default) for field in fields(SweepOptions)}
    assert {
        name: (parameter.annotation, parameter.default) for name, parameter in ARGUMENTS.items()
    } == options
    assert "Any" not in str(inspect.signature(repdyn.sweep))


def test_every_argument_is_documented():
    _, _, page = inspect.getdoc(repdyn.sweep).partition("Args:\n")
    described = re.findall(r"^    (\w+): ", page.partition("Returns:")[0], re.MULTILINE)
    assert described == [*ARGUMENTS, "quiet"]


def test_every_argument_reaches_the_sweep(monkeypatch):
    """One that is passed on under another name, or not at all, would silently do nothing."""

    def prepare(options: SweepOptions) -> None:
        raise LookupError(options)

    monkeypatch.setattr("repdyn.checkpoints.sweep.prepare", prepare)
    values = {name: f"value of {name}" for name in ARGUMENTS}
    with pytest.raises(LookupError) as stopped:
        repdyn.sweep(**values)
    assert vars(stopped.value.args[0]) == values


def test_every_option_is_a_flag_of_the_same_default():
    """A flag that is only inherited has no place in the help, and its text is read as it comes."""
    placed = {*inspect.get_annotations(SharedFlags), *inspect.get_annotations(SweepFlags)}
    assert placed == {field.name for field in fields(SweepOptions)}
    assert vars(SweepFlags()) == vars(SweepOptions())


def test_a_completed_sweep_leaves_nothing_of_its_run_open():
    """None stood for "not yet" there, and whoever read an option decided once more what it was."""
    complete = completed(SweepOptions(source="lab/model", attention="eager"))
    assert type(complete) is CompleteOptions
    assert complete.metrics == DEFAULT_METRICS
    assert complete.loading == Loading(device="auto", dtype="float32", attention="eager")
    narrowed = inspect.get_annotations(CompleteOptions)
    undecided = [field.name for field in fields(CompleteOptions) if field.default is MISSING]
    assert undecided == [name for name in vars(complete) if name in narrowed]
    with pytest.raises(TypeError, match="metrics"):
        CompleteOptions(source="lab/model", dtype="auto")


@pytest.mark.parametrize(
    ("options", "argument", "flag"),
    [
        ({"probe": Path("p.safetensors"), "text": "builtin"}, "probe=", "--probe"),
        ({"encoding": "cp1251"}, "text=FILE", "--text FILE"),
        ({"load": "mine:load"}, "load=", "--load"),
        ({"suite": ["pythia"], "source": None, "pattern": "x"}, "pattern=", "--pattern"),
        ({"source": None}, "suite=NAME", "--suite NAME"),
    ],
)
def test_an_error_names_the_argument_in_python_and_the_flag_on_the_command_line(
    options, argument, flag
):
    with pytest.raises(ValueError, match="expected") as refused:
        check_contradictions(SweepOptions(**{"source": "lab/model", **options}))
    message = str(refused.value)
    assert argument in message
    assert not re.findall(r"--(?!list-suites)", message)
    assert flag in in_flags(message)
    assert not re.findall(r"\w=", in_flags(message))


def test_what_is_no_argument_is_not_taken_for_one():
    """Names of settings, calls, and what a user has written, stay as they are."""
    message = (
        "got 'text=x' for two_nn[discard=0.8] in Probe.from_texts([(a, b)], classes=...), "
        "steps=3 and the source=x"
    )
    assert in_flags(message) == message
    assert in_flags('layers=a.* and load="mine:load"') == "--layers a.* and --load mine:load"


def test_the_message_of_a_whole_command_names_flags(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit, match="^2$"):
        repdyn.cli.main.main(["sweep", str(tmp_path), "--probe", "p", "--text", "builtin"])
    assert "expected either --probe or the options" in capsys.readouterr().err


def test_flags_become_the_options_of_python():
    options = options_of("gpt2", "--max-disk", "2GB", "--shard", "2/3", "--layers", "a=x.*,b=y.*")
    assert isinstance(options, SweepOptions)
    assert options.max_disk == 2_000_000_000
    assert options.shard == (2, 3)
    assert options.layers == {"a": "x.*", "b": "y.*"}

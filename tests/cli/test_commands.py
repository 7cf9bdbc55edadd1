"""The command line: help, mistakes, exit statuses, and what other programs read."""

from __future__ import annotations

import inspect
import json
import math
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from cyclopts import App
from sweeping import options_of
from synthetic_runs import fill, make_failures, make_published

import repdyn
from repdyn.cli.flags import in_flags
from repdyn.cli.main import LAB, command_line, main
from repdyn.cli.options import print_json
from repdyn.lab.commands import STUDIES
from repdyn.metrics import METRICS

ROOT = Path(__file__).parents[2]
DOCUMENTED = (ROOT / "docs" / "cli.md").read_text()
HEAVY = (
    "torch",
    "transformers",
    "lightning",
    "datasets",
    "plotly",
    "matplotlib",
    "pandas",
    "scipy",
)
# one process for all, since most of the time goes into imports; each reports what is imported after
# it
START = """
import sys
import tomllib
from contextlib import redirect_stdout
from io import StringIO
import repdyn
from repdyn.cli.main import main
for line in sys.argv[2:]:
    with redirect_stdout(StringIO()):
        try:
            main(line.split())
        except SystemExit as exit:
            assert not exit.code, exit.code
    print(line, [name for name in sys.argv[1].split() if name in sys.modules], sep=": ")
"""


def every_command(app: App, *words: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command and study."""
    yield words
    for name in app:
        if not name.startswith("-"):
            yield from every_command(app[name], *words, name)


@pytest.fixture
def store(tmp_path):
    halving = {"dimension": lambda step, depth: 9.0 if step < 8 else 2.0}
    return fill(tmp_path / "store", make_published("lab/a-70m", steps=(0, 8), **halving))


def refused(capsys, *arguments: object) -> str:
    """Return the line that a command prints as it ends with status 2."""
    with pytest.raises(SystemExit, match="^2$"):
        main(list(map(str, arguments)))
    return capsys.readouterr().err.splitlines()[-1]


def strict(text: str):
    def refuse(name: str):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def listed(capsys, *arguments: object):
    main([*map(str, arguments), "--json"])
    return strict(capsys.readouterr().out)


def test_every_help_fits_80_columns_and_has_examples(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    commands = list(every_command(command_line()))
    assert len(commands) == 1 + 15 + len(STUDIES)
    for words in commands:
        main([*words, "--help"])
        shown = capsys.readouterr().out
        assert not [line for line in shown.splitlines() if len(line) > 80], words
        assert f"Examples:\n  repdyn {' '.join(words)}".rstrip() in shown, words


def test_every_command_is_in_the_docs():
    names = {words[0] for words in every_command(command_line()) if words}
    assert {"sweep", "study", "figures", "insights"} <= names
    assert not [name for name in names if f"| `repdyn {name}` |" not in DOCUMENTED]


def test_help_and_dry_runs_wait_for_neither_models_nor_tables(hub, family, monkeypatch, tmp_path):
    """An import of torch at the top of a module that help needs would cost every call seconds."""
    hub.publish("lab/tiny", "step0", family[0])
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    lines = [
        "--help",
        "figures --help",
        "report --help",
        "audit --help",
        "study --help",
        "sweep --help",
    ]
    lines += ["sweep --list-suites", "reproduce --help", "metrics"]
    lines += [f"sweep lab/tiny --dry-run --metrics all --store {tmp_path / 'sweeps'}"]
    given = [sys.executable, "-c", START, " ".join(HEAVY), *lines]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{line}: []" for line in lines], done.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["figres"], '"figures"'),
        (["swep"], '"sweep"'),
        (["figures", "STORE", "--run", "lab/a-7Om"], "'lab/a-70m'"),
        (["export", "STORE", "--wandb-onlne"], "--wandb-online"),
        (["export", "STORE", "--to", "comet"], "comet"),
        (["export", "STORE", "--wandb-online", "--to", "csv"], "--wandb-online"),
        (["figures", "STORE", "--otput", "x"], "--output"),
        (["insights"], "--print-rules"),
        (["insights", "STORE", "--rules", "none.yaml"], "none.yaml"),
        (["sweep", "gpt2", "--max-disk", "much"], "20GB"),
        (["sweep", "gpt2", "--shard", "9/8"], "I/N"),
        (["sweep", "gpt2", "--layers", "a=,b=c"], "stack=pattern"),
        (["sweep", "gpt2", "--device", "nowhere"], "nowhere"),
        (["sweep", "gpt2", "--json"], "--dry-run"),
        (["sweep"], "neither"),
        (["sweep", "gpt2", "--suite", "pythia"], "both"),
        (["sweep", "./nowhere"], "nowhere"),
        (["sweep", "--suite", "pythis"], "did you mean"),
        (["audit", "none-such"], "suite"),
        (["reproduce"], "--list"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line_that_says_what_was_meant(
    arguments, word, store, capsys, monkeypatch
):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    last = refused(capsys, *(str(store.path) if each == "STORE" else each for each in arguments))
    assert word in last
    assert "error: " in last


@pytest.mark.parametrize("name", ["figures", "insights", "report", "export"])
def test_a_folder_that_is_no_store_is_not_made(name, tmp_path, capsys):
    assert "nowhere" in refused(capsys, name, tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_ctrl_c_is_status_130(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("repdyn.store.find_store", interrupted)
    with pytest.raises(SystemExit, match="^130$"):
        main(["figures", "store"])
    assert capsys.readouterr().err == "stopped\n"


def test_the_options_of_a_sweep_reach_it():
    words = [
        "--max-disk",
        "1.5GB",
        "--timeout",
        "60",
        "--shard",
        "2/3",
        "--no-loss",
        "--layers",
        "a=x.*,b=y.*",
    ]
    options = options_of(
        "gpt2", *words, "--metrics", "two_nn", "'anisotropy@no_sink'", "--store", "s3://bucket/a"
    )
    assert options.source == "gpt2"
    assert options.max_disk == 1_500_000_000
    assert options.timeout == 60
    assert options.loss is False
    assert options.shard == (2, 3)
    assert options.layers == {"a": "x.*", "b": "y.*"}
    assert options.store == "s3://bucket/a"
    assert list(options.metrics) == ["two_nn", "'anisotropy@no_sink'"]


def test_numbers_that_json_does_not_have(capsys):
    print_json(
        {
            "a": (math.nan, -math.inf, 1.5),
            "b": [{"c": math.inf}],
            "d": "\x1b[2J",
            "e": None,
            "f": True,
        }
    )
    text = capsys.readouterr().out
    assert strict(text) == {
        "a": [None, None, 1.5],
        "b": [{"c": None}],
        "d": "\x1b[2J",
        "e": None,
        "f": True,
    }
    assert re.fullmatch(r"[\n -~]*", text)


def test_json_of_alerts_insights_and_metrics_is_documented(store, capsys):
    (alerts,) = listed(capsys, "insights", store.path, "--alerts")
    assert alerts["run"] == "lab/a-70m"
    assert alerts["steps"] == [0, 8]
    assert len(alerts["alerts"]) == 7
    (insights,) = listed(capsys, "insights", store.path)
    assert insights["statements"][0]["steps"] == [8]
    (verdicts,) = listed(capsys, "insights", store.path, "--findings")
    metrics = listed(capsys, "metrics")
    assert [metric["name"] for metric in metrics] == list(METRICS)
    parts = alerts["alerts"][0], insights["statements"][0], verdicts["findings"][0]
    for fields in (alerts, insights, verdicts, *parts, metrics[0]):
        assert not [name for name in fields if f"`{name}`" not in DOCUMENTED]


def test_alerts_by_rules_of_ones_own_and_their_status(store, tmp_path, capsys):
    main(["insights", "--print-rules"])
    (tmp_path / "rules.yaml").write_text(capsys.readouterr().out.replace("0.9", "0.001"))
    main(["insights", str(store.path), "--rules", str(tmp_path / "rules.yaml")])
    assert "0.001" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="^1$"):
        main(["insights", str(store.path), "--fail"])


def test_a_command_that_wrote_nothing_is_no_success(tmp_path, store, capsys):
    failed = fill(tmp_path / "failed", make_failures(8, "gated"))
    other = fill(tmp_path / "other", make_published("lab/b", steps=(0, 8), settings="{}"))
    for stores in ([failed], [store, other]):
        with pytest.raises(SystemExit, match="^1$"):
            main(["figures", *(str(each.path) for each in stores), "-o", str(tmp_path / "out")])
    out, err = capsys.readouterr()
    assert "step 8: gated" in out
    assert err.count("no figure was drawn") == 2
    assert not (tmp_path / "out").exists()


def test_an_export_of_nothing_is_no_success_whatever_the_run_is_called(tmp_path, capsys):
    """It was told by the word "in" of the line that was printed."""
    failed = fill(tmp_path / "failed", make_failures(8, "gated", run="adam in bf16"))
    with pytest.raises(SystemExit, match="^1$"):
        main(["export", str(failed.path), "--to", "csv", "-o", str(tmp_path / "out")])
    out, err = capsys.readouterr()
    assert out == "adam in bf16: nothing measured\n"
    assert "nothing was exported" in err


def test_closed_standard_output_is_no_error(store):
    """It ended in an AttributeError of what was not there."""
    repdyn = f"{sys.executable} -m repdyn"
    commands = (f"insights {store.path}", "metrics --json", f"query 'select 1' {store.path}")
    lines = [f"{repdyn} {each} >&-; echo $? >&2" for each in commands]
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stderr.split() == ["0", "0", "0"]


def test_watch_once_prints_a_line_for_each_run_though_a_link_leads_to_itself(
    tmp_path, store, capsys
):
    (tmp_path / "loop").symlink_to("loop")
    (store.path / "loop").symlink_to("loop")
    main(["watch", str(tmp_path), "--once"])
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split()[0] == "run"
    assert line.split()[0] == "lab/a-70m"
    assert line.split()[2] == "8"


def test_readers_that_have_seen_enough_full_streams_and_a_script_for_completion():
    """``repdyn metrics | head -1`` must end without a traceback; bash completes commands and
    options.
    """
    lines = [
        f'r() {{ {sys.executable} -m repdyn "$@"; }}',
        (
            "r metrics --json | head -1; echo ${PIPESTATUS[0]}; r metrics | head -1 >/dev/null; "
            "echo ${PIPESTATUS[0]}"
        ),
        (
            "r figres 2>/dev/full; echo $?; r figres 2>&-; echo $?; r metrics --json 2>/dev/full "
            ">/dev/null; echo $?"
        ),
        "r metrics --json 2>/dev/null >/dev/full; echo $?",
        command_line().generate_completion(shell="bash"),
        "COMP_WORDS=(repdyn insights --pri); COMP_CWORD=2; _repdyn; echo ${COMPREPLY[*]}",
    ]
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["[", "0", "0", "2", "2", "0", "1", "--print-rules"]
    assert done.stderr == ""


def test_another_package_adds_a_command(monkeypatch, capsys):
    """A laboratory's own command would need a fork; none may take the place of one of ours."""
    other = SimpleNamespace(name="hello", value=f"{__name__}:hello")
    ours = SimpleNamespace(name="sweep", value=f"{__name__}:hello")
    monkeypatch.setattr("repdyn.cli.main.entry_points", lambda group: [other, ours])
    main(["hello", "--name", "world"])
    assert capsys.readouterr().out == "hello world\n"
    main(["sweep", "--help"])
    assert "hello" not in capsys.readouterr().out
    main(["--help"])
    assert "hello" in capsys.readouterr().out


def hello(*, name: str) -> None:
    """Say hello."""
    print(f"hello {name}")


def test_the_commands_of_the_lab_are_entry_points():
    """A command without one would be missed where the table of the checkout is not read."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["repdyn.commands"] == {
        name: f"repdyn.lab.commands:{name}" for name in LAB
    }


def test_messages_of_studies_name_arguments_that_become_flags():
    """A message would show "sequences=" to who has typed --sequences."""
    folder = ROOT / "src" / "repdyn" / "lab" / "studies"
    texts = "\n".join(path.read_text() for path in folder.glob("*.py"))
    named = set(re.findall(r"[ \"'](\w+)=(?=[ ,;\"'])", texts))
    options = {
        name
        for study in STUDIES
        for name in inspect.signature(getattr(repdyn.lab, study)).parameters
    }
    assert {"store", "sequences", "before_after"} <= named & options
    assert [name for name in named & options if in_flags(f"{name}=, got") == f"{name}=, got"] == []

"""The command line: help, mistakes, exit statuses, and what other programs read."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic_runs import fill, make_failures, make_published

from repdyn.checkpoints.options import SweepOptions
from repdyn.cli import main as command
from repdyn.cli import sweep as sweep_command
from repdyn.cli.completion import all_parsers, complete_parser, completion_script
from repdyn.cli.main import main
from repdyn.metrics import METRICS
from repdyn.utils.records import print_json

DOCUMENTED = (Path(__file__).parents[1] / "docs" / "cli.md").read_text()
HEAVY = ("torch", "transformers", "lightning", "datasets", "plotly", "matplotlib", "pandas", "scipy")
# one process for all, since most of the time goes into imports; each reports what is imported after it
START = """
import sys
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


@pytest.fixture(scope="module")
def parser():
    return complete_parser(command._parser(), {name: module for name, (module, _) in command._OWN_PARSER.items()})


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


def test_every_help_fits_80_columns_and_has_examples(parser, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for each in all_parsers(parser):
        if each.prog == "repdyn study":
            each = command.import_module("repdyn.cli.study").build_parser(each.prog)
        shown = each.format_help()
        assert not [line for line in shown.splitlines() if len(line) > 80], each.prog
        assert f"examples:\n  {each.prog.split()[0]}" in shown or "examples:\n  # " in shown


def test_every_command_is_in_the_docs(parser):
    names = {each.prog.split()[1] for each in all_parsers(parser) if " " in each.prog}
    assert {"sweep", "study", "figures", "alerts"} <= names
    assert not [name for name in names if f"| `repdyn {name}` |" not in DOCUMENTED]


def test_help_and_dry_runs_wait_for_neither_models_nor_tables(hub, family, monkeypatch, tmp_path):
    """An import of torch at the top of a module that help needs would cost every call seconds."""
    hub.publish("lab/tiny", "step0", family[0])
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    lines = ["--help", "figures --help", "report --help", "audit --help", "study --help", "sweep --help"]
    lines += ["sweep --list-suites", "reproduce --help", "metrics"]
    lines += [f"sweep lab/tiny --dry-run --metrics all --store {tmp_path / 'sweeps'}"]
    given = [sys.executable, "-c", START, " ".join(HEAVY), *lines]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, [f"{line}: []" for line in lines]), done.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["figres"], "'figures'"),
        (["swep"], "'sweep'"),
        ([], "expected a command"),
        (["figures", "STORE", "--run", "lab/a-7Om"], "'lab/a-70m'"),
        (["export", "STORE", "--wandb-onlne"], "--wandb-online"),
        (["export", "STORE", "--to", "comet"], "comet"),
        (["export", "STORE", "--wandb-online", "--to", "csv"], "--wandb-online"),
        (["alerts"], "--print-rules"),
        (["alerts", "STORE", "--rules", "none.yaml"], "none.yaml"),
        (["alerts", "STORE", "--json", "--print-rules"], "not allowed"),
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
def test_a_mistake_is_one_line_that_says_what_was_meant(arguments, word, store, capsys, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    last = refused(capsys, *(str(store.path) if each == "STORE" else each for each in arguments))
    assert word in last
    assert "error: " in last


@pytest.mark.parametrize("name", ["figures", "alerts", "insights", "report", "export"])
def test_a_folder_that_is_no_store_is_not_made(name, tmp_path, capsys):
    assert "nowhere" in refused(capsys, name, tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_ctrl_c_is_status_130(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_figures", interrupted)
    with pytest.raises(SystemExit, match="^130$"):
        main(["figures", "store"])
    assert capsys.readouterr().err == "stopped\n"


def test_the_options_of_a_sweep_reach_it(monkeypatch):
    """An option that the parser has and SweepOptions lacks would be ignored without a word."""
    seen = []
    monkeypatch.setattr(sweep_command, "run", lambda options, **_: seen.append(options) or 0)
    monkeypatch.setattr(sweep_command, "leave", lambda status: None)
    main(["sweep", "gpt2", "--max-disk", "1.5GB", "--shard", "2/3", "--no-loss", "--layers", "a=x.*,b=y.*"])
    (options,) = seen
    assert (options.source, options.max_disk, options.loss) == ("gpt2", 1_500_000_000, False)
    assert (options.shard.index, options.shard.count, options.layers) == (2, 3, {"a": "x.*", "b": "y.*"})
    known = set(vars(sweep_command.build_parser("repdyn sweep").parse_args([])))
    assert known - set(SweepOptions.__dataclass_fields__) == {"list_suites", "dry_run", "json", "csv"}


def test_numbers_that_json_does_not_have(capsys):
    print_json({"a": (math.nan, -math.inf, 1.5), "b": [{"c": math.inf}], "d": "\x1b[2J", "e": None, "f": True})
    text = capsys.readouterr().out
    assert strict(text) == {"a": [None, None, 1.5], "b": [{"c": None}], "d": "\x1b[2J", "e": None, "f": True}
    assert re.fullmatch(r"[\n -~]*", text)


def test_json_of_alerts_insights_and_metrics_is_documented(store, capsys):
    (alerts,) = listed(capsys, "alerts", store.path)
    assert (alerts["run"], alerts["steps"], len(alerts["alerts"])) == ("lab/a-70m", [0, 8], 7)
    (found,) = listed(capsys, "insights", store.path)
    assert found["statements"][0]["steps"] == [8]
    metrics = listed(capsys, "metrics")
    assert [metric["name"] for metric in metrics] == list(METRICS)
    for fields in (alerts, alerts["alerts"][0], found, found["statements"][0], metrics[0]):
        assert not [name for name in fields if f"`{name}`" not in DOCUMENTED]


def test_alerts_by_rules_of_ones_own_and_their_status(store, tmp_path, capsys):
    main(["alerts", "--print-rules"])
    (tmp_path / "rules.yaml").write_text(capsys.readouterr().out.replace("0.9", "0.001"))
    main(["alerts", str(store.path), "--rules", str(tmp_path / "rules.yaml")])
    assert "0.001" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="^1$"):
        main(["alerts", str(store.path), "--fail"])


def test_the_list_of_metrics_is_that_of_the_docs(capsys):
    main(["metrics", "--markdown"])
    assert capsys.readouterr().out == (Path(__file__).parents[1] / "docs" / "all_metrics.md").read_text()


def test_figures_of_a_store_of_failures_alone(tmp_path, capsys):
    store = fill(tmp_path, make_failures(8, "gated"))
    main(["figures", str(store.path)])
    assert "step 8: gated" in capsys.readouterr().out
    assert not (store.path / "figures").exists()


def test_a_reader_that_has_seen_enough_and_a_script_for_completion(parser):
    """``repdyn metrics | head -1`` must end without a traceback; bash completes commands and options."""
    script = f"{sys.executable} -m repdyn metrics --json | head -1\n{completion_script(parser, 'bash')}\n"
    script += "COMP_WORDS=(repdyn alerts --pri); COMP_CWORD=2\n"
    script += r"$(complete -p repdyn | sed 's/.*-F \([^ ]*\).*/\1/'); "
    script += 'echo "${COMPREPLY[*]}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert (done.stdout.split(), done.stderr) == (["[", "--print-rules"], "")

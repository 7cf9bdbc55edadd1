"""Listings as JSON: nothing else on standard output, documented fields, and no NaN."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic_runs import fill, make_failures, make_published

from repdyn.cli.main import main
from repdyn.metrics import METRICS
from repdyn.utils.records import print_json

DOCUMENTED = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


def strict(text):
    return json.loads(text, parse_constant=refuse_constant)


def listed(capsys, *arguments):
    main([*map(str, arguments), "--json"])
    return strict(capsys.readouterr().out)


@pytest.fixture
def store(tmp_path):
    halving = {"dimension": lambda step, depth: 9.0 if step < 8 else 2.0}
    return fill(tmp_path / "store", make_published("lab/a", steps=(0, 8), **halving))


def test_numbers_that_json_does_not_have(capsys):
    print_json({"a": (math.nan, -math.inf, 1.5), "b": [{"c": math.inf}], "d": "\x1b[2J", "e": None, "f": True})
    text = capsys.readouterr().out
    assert strict(text) == {"a": [None, None, 1.5], "b": [{"c": None}], "d": "\x1b[2J", "e": None, "f": True}
    assert re.fullmatch(r"[\n -~]*", text)


def test_alerts(store, capsys):
    (run,) = listed(capsys, "alerts", store.path)
    assert (run["run"], run["probe"], run["steps"]) == ("lab/a", store.to_pandas()["probe"][0], [0, 8])
    assert run["rules"][0] == "no value"
    assert [alert["layer"] for alert in run["alerts"]] == list(range(7))
    assert run["alerts"][0] | {"message": ""} == {
        **{"rule": "dimension halved", "step": 8, "metric": "two_nn", "subset": "all", "stack": None, "layer": 0},
        **{"value": 2.0, "previous_value": 9.0, "previous_step": 0, "stop": False, "message": ""},
        **{"event": "fell to 0.5 of what it was or less", "detail": "9 at step 0, now 2"},
    }
    assert run["alerts"][0]["message"].startswith("two_nn (all) of layer 0 fell to 0.5")


def test_insights(store, capsys):
    (run,) = listed(capsys, "insights", store.path)
    assert (run["run"], run["stack"], run["status"]) == ("lab/a", None, "unknown")
    statement = run["statements"][0]
    assert (statement["severity"], statement["metric"], statement["steps"]) == ("watch", "two_nn", [8])


def test_undefined_values_are_null(tmp_path, capsys):
    store = fill(
        tmp_path, make_published("lab/a", steps=(0, 8), dimension=lambda step, depth: 9.0 if step < 8 else math.nan)
    )
    (run,) = listed(capsys, "alerts", store.path)
    assert run["alerts"]
    assert all(alert["value"] is None for alert in run["alerts"])


def test_alerts_of_failures_alone(tmp_path, capsys):
    (run,) = listed(capsys, "alerts", fill(tmp_path, make_failures(8, "gated")).path)
    assert (run["steps"], run["alerts"]) == ([], [])


def test_the_status_of_alerts(store, capsys):
    with pytest.raises(SystemExit, match="^1$"):
        main(["alerts", str(store.path), "--json", "--fail"])
    assert strict(capsys.readouterr().out)[0]["alerts"]


def test_metrics(capsys):
    metrics = {metric["name"]: metric for metric in listed(capsys, "metrics")}
    assert list(metrics) == list(METRICS)
    assert metrics["two_nn"]["range"] == [0.0, None]
    assert metrics["two_nn"]["settings"]["discard"] == 0.1
    assert [name for name, metric in metrics.items() if metric["default"]] == ["anisotropy", "two_nn"]


@pytest.mark.parametrize(("command", "other"), [("metrics", "--markdown"), ("alerts", "--print-rules")])
def test_one_format_at_a_time(command, other, capsys):
    with pytest.raises(SystemExit, match="^2$"):
        main([command, "--json", other])
    assert "not allowed with argument --json" in capsys.readouterr().err


def test_the_fields_are_documented(store, capsys):
    for arguments in (["alerts", store.path], ["insights", store.path], ["metrics"]):
        first = listed(capsys, *arguments)[0]
        for fields in (first, *(first.get("alerts") or first.get("statements") or [])[:1]):
            assert not [name for name in fields if f"`{name}`" not in DOCUMENTED]


@pytest.mark.slow
@pytest.mark.process
def test_a_process_writes_nothing_else(store):
    command = [sys.executable, "-m", "repdyn", "alerts", str(store.path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert strict(done.stdout)[0]["run"] == "lab/a"
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.process
def test_a_reader_that_has_seen_enough():
    command = f"{sys.executable} -m repdyn metrics --json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[\n", "")

"""The command repdyn, as a user meets it."""

import subprocess
import sys
from pathlib import Path

import pytest
from synthetic_runs import fill, make_failures, make_published, make_two_stacks

from repdyn.cli import main as command
from repdyn.cli.main import main
from repdyn.metrics import METRICS


@pytest.fixture
def store(tmp_path):
    return fill(tmp_path / "store", make_published("lab/a-70m", steps=(0, 8)), make_published("lab/b-1b", steps=(0, 8)))


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main(list(map(str, arguments)))
    assert stopped.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        *([name, "--help"] for name in ("figures", "alerts", "export", "insights", "metrics", "report", "explore")),
    ],
    ids=" ".join,
)
def test_help_has_examples(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0
    assert "examples:\n  repdyn " in capsys.readouterr().out


@pytest.mark.process
def test_help_does_not_wait_for_torch():
    code = (
        "import sys; from repdyn.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(sorted({'torch', 'pandas', 'matplotlib', 'lightning'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == "repdyn 0.1.0\n"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("figres", "expected a command, got 'figres'; did you mean 'figures'?"),
        ("swep", "expected a command, got 'swep'; did you mean 'sweep'?"),
        ("emit", "expected a command, got 'emit'; did you mean 'export'?"),
        ("alarms", "expected a command, got 'alarms'; did you mean 'alerts'?"),
        (
            "qqq",
            "expected a command, got 'qqq'; there are demo, audit, sweep, reproduce, study, explore, watch, push, pull, verify, report, query, compact, insights, alerts, metrics, figures, export",
        ),
        (
            "",
            "expected a command, got none; there are demo, audit, sweep, reproduce, study, explore, watch, push, pull, verify, report, query, compact, insights, alerts, metrics, figures, export",
        ),
    ],
)
def test_a_mistyped_command_says_what_was_meant(typed, message, capsys):
    assert refused(capsys, *typed.split()) == f"repdyn: error: {message}"


@pytest.mark.process
@pytest.mark.parametrize("name", ["figures", "alerts", "report", "export"])
def test_a_mistyped_run_says_what_was_meant(name, store, capsys):
    message = refused(capsys, name, store.path, "--run", "lab/a-7Om")
    assert message == f"error: expected a run of {store.path}, got 'lab/a-7Om'; did you mean 'lab/a-70m'?"


@pytest.mark.parametrize("name", ["figures", "alerts", "insights", "report", "export"])
def test_a_folder_that_is_no_store(name, tmp_path, capsys):
    with pytest.raises(SystemExit, match="^2$"):
        main([name, str(tmp_path / "nowhere")])
    assert capsys.readouterr() == ("", f"error: expected a store with measurements, found none in {tmp_path}/nowhere\n")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.usefixtures("quick_images")
def test_figures(store, tmp_path, capsys):
    main(
        [
            "figures",
            str(store.path),
            "--run",
            "lab/a-70m",
            "--probe",
            store.to_pandas("lab/a-70m")["probe"][0][:8],
            "-o",
            str(tmp_path / "out"),
        ]
    )
    assert (tmp_path / "out" / "lab%2Fa-70m" / "mean_over_layers.png").exists()
    assert not (tmp_path / "out" / "comparison").exists()
    assert capsys.readouterr().out.startswith("lab/a-70m  GPTNeoXForCausalLM (decoder)")


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.usefixtures("quick_images")
def test_export(store, tmp_path, capsys):
    main(
        [
            "export",
            str(store.path),
            "--run",
            "lab/b-1b",
            "lab/a-70m",
            "--to",
            "csv",
            "tensorboard",
            "-o",
            str(tmp_path / "out"),
        ]
    )
    assert capsys.readouterr().out.splitlines() == [
        f"{name}: 2 checkpoints in {tmp_path}/out/{kind}/{name}/version_0"
        for name in ("lab/b-1b", "lab/a-70m")
        for kind in ("csv", "tensorboard")
    ]


def test_online_is_for_wandb(store, capsys):
    message = "error: expected --wandb-online with --to wandb, got --to csv; leave out --wandb-online"
    assert refused(capsys, "export", store.path, "--wandb-online", "--to", "csv") == message


@pytest.mark.process
def test_export_passes_its_options_on(store, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "repdyn.publish.export.export_store", lambda store, runs, **given: seen.append((runs, given)) or []
    )
    main(["export", str(store.path)])
    main(
        [
            "export",
            str(store.path),
            "--run",
            "x",
            "--to",
            "wandb",
            "csv",
            "--log-layers",
            "all",
            "--wandb-online",
            "--wandb-project",
            "p",
            "--probe",
            "h",
        ]
    )
    default = {
        "to": ["wandb"],
        "probe": None,
        "folder": None,
        "project": "repdyn",
        "online": False,
        "log_layers": "default",
    }
    assert seen == [
        (None, default),
        (["x"], default | {"to": ["wandb", "csv"], "online": True, "project": "p", "probe": "h", "log_layers": "all"}),
    ]


@pytest.mark.parametrize(("former", "present"), [("--online", "--wandb-online"), ("--project", "--wandb-project")])
def test_a_former_option_says_what_it_is_called_now(former, present, store, capsys):
    message = refused(capsys, "export", store.path, former)
    assert message == f"repdyn: error: unrecognized arguments: {former}; did you mean {present}?"


def test_an_unknown_logger_is_refused(store, capsys):
    assert "invalid choice: 'comet'" in refused(capsys, "export", store.path, "--to", "comet")


def test_sweep_gets_its_arguments_as_they_are(monkeypatch):
    seen = []
    monkeypatch.setattr("repdyn.cli.sweep.main", lambda arguments, prog: seen.append((arguments, prog)))
    main(["sweep", "--suite", "pythia", "--help"])
    assert seen == [(["--suite", "pythia", "--help"], "repdyn sweep")]


def test_the_status_of_a_sweep_is_the_commands(monkeypatch):
    def failing(arguments, prog):
        sys.exit(1)

    monkeypatch.setattr("repdyn.cli.sweep.main", failing)
    with pytest.raises(SystemExit) as stopped:
        main(["sweep", "folder"])
    assert stopped.value.code == 1


def test_interrupted(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_figures", interrupted)
    with pytest.raises(SystemExit) as stopped:
        main(["figures", "store"])
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "stopped\n"


def test_figures_of_a_store_of_failures_alone(tmp_path, capsys):
    store = fill(tmp_path, make_failures(8, "gated"))
    main(["figures", str(store.path)])
    assert capsys.readouterr().out.startswith("lab/model-70m: nothing measured, 1 checkpoint failed: step 8: gated")
    assert not Path(store.path / "figures").exists()


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.usefixtures("quick_images")
def test_a_model_with_two_stacks(tmp_path, capsys):
    store = fill(tmp_path / "store", make_two_stacks("quick/1", steps=(0, 8)))
    main(["figures", str(store.path)])
    text = capsys.readouterr().out
    assert "quick/1 (encoder)  T5ForConditionalGeneration (encoder)\n" in text
    assert "quick/1 (decoder)  T5ForConditionalGeneration (decoder)\n" in text
    for folder in ("encoder", "decoder"):
        assert (store.path / "figures" / folder / "mean_over_layers.png").exists()
    main(["export", str(store.path), "--to", "csv"])
    assert capsys.readouterr().out == f"quick/1: 2 checkpoints in {store.path}/exports/csv/quick/1/version_0\n"


def test_the_metrics_are_listed(capsys):
    main(["metrics"])
    assert set(METRICS) <= set(capsys.readouterr().out.split())
    main(["metrics", "--markdown"])
    assert capsys.readouterr().out == (Path(__file__).parents[2] / "docs" / "all_metrics.md").read_text()


@pytest.mark.slow
@pytest.mark.process
def test_alerts_of_a_store(tmp_path, capsys):
    broken = {"dimension": lambda step, depth: 9.0 if step < 8 else 2.0}
    store = fill(
        tmp_path / "store", make_published("lab/a", steps=(0, 8), **broken), make_published("lab/b", steps=(0, 8))
    )
    main(["alerts", str(store.path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("lab/a (probe ")
    assert lines[0].endswith(": 1 alerts; 2 checkpoints, 5 rules")
    assert lines[1] == (
        "  step 8, dimension halved: two_nn (all) of layers 0-6 fell to 0.5 of what it was or less: in layer 0, 9 at step 0, now 2"
    )
    assert lines[2].endswith(": no alert; 2 checkpoints, 5 rules")
    main(["alerts", str(store.path), "--run", "lab/b", "--fail"])
    with pytest.raises(SystemExit) as stopped:
        main(["alerts", str(store.path), "--fail"])
    assert stopped.value.code == 1


@pytest.mark.process
def test_alerts_by_rules_of_ones_own(store, tmp_path, capsys):
    main(["alerts", "--print-rules"])
    (tmp_path / "rules.yaml").write_text(capsys.readouterr().out.replace("0.9", "0.001"))
    main(["alerts", str(store.path), "--rules", str(tmp_path / "rules.yaml"), "--run", "lab/a-70m"])
    assert "one direction: anisotropy (no_sink) of layers 0-6 rose above 0.001" in capsys.readouterr().out
    message = refused(capsys, "alerts", store.path, "--rules", tmp_path / "none.yaml")
    assert message.startswith("error: [Errno 2] No such file")
    assert refused(capsys, "alerts") == (
        "error: expected the folder of a run or a store, got none; or --print-rules for the default rules"
    )


@pytest.mark.slow
def test_a_report_of_a_store(store, tmp_path, capsys):
    main(["report", str(store.path), "-o", str(tmp_path / "page.html")])
    assert capsys.readouterr().out.startswith(f"{tmp_path}/page.html: ")
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")

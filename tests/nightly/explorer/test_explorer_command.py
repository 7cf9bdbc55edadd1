"""``repdyn explore``: what it takes, what it loads, and where it serves."""

from __future__ import annotations

import re
import socket
import sys

import pytest

from repdyn.cli.explore import main
from repdyn.explorer import server


@pytest.fixture
def run_folder(save_model, tmp_path):
    """The folder of a run with three checkpoints."""
    for number, step in enumerate((0, 8, 16)):
        save_model(f"run/hf_checkpoints/step{step}", seed=number)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: MODEL"),
        (["gpt2", "--port", "65536"], "expected a port from 0 to 65535, got '65536'"),
        (["gpt2", "--max-tokens", "1"], "expected a whole number of at least 2, got '1'"),
        (["gpt2", "--revision", "step0"], "unrecognized arguments: --revision step0; did you mean --revisions?"),
    ],
    ids=["no model", "port", "tokens", "typo"],
)
def test_a_mistaken_option_is_refused(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("package", ["gradio", "plotly"])
def test_a_package_that_is_not_there_is_named_with_what_brings_it(monkeypatch, package):
    for name in [name for name in sys.modules if name.startswith("repdyn.explorer.") and not name.endswith(".cli")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)

    class Absent:
        @staticmethod
        def find_spec(name, *_):
            if name.partition(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Absent, *sys.meta_path])
    message = f"expected the package '{package}', which the explorer needs, found none; pip install 'repdyn[explore]'"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        main(["gpt2"])


def test_the_chosen_checkpoints_of_a_run_are_loaded(run_folder, monkeypatch, capsys):
    loaded = []
    monkeypatch.setattr(server, "Session", lambda models, **_: loaded.extend(models) or sys.exit(0))
    with pytest.raises(SystemExit):
        main([str(run_folder), "--device", "cpu"])
    assert [one.name for one in loaded] == ["run@step0", "run@step8", "run@step16"]
    assert "note: step0, step8, step16 of 3 checkpoints; " in capsys.readouterr().err


def test_ctrl_c_closes_the_page(save_model, monkeypatch, capsys):
    class Waiting:
        def wait(self):
            address = capsys.readouterr().out.removeprefix("the explorer is at ").partition(" ")[0]
            port = int(address.rstrip("/").rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                ports.append(port)
            raise KeyboardInterrupt

    ports = []
    monkeypatch.setattr(server, "Event", Waiting)
    with pytest.raises(KeyboardInterrupt):
        main([str(save_model()), "--port", "0", "--device", "cpu"])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ports[0]), timeout=5)

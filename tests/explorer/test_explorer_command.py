"""``repdyn explore``: what it takes, what it loads, and where it serves."""

from __future__ import annotations

import re
import socket
import subprocess
import sys

import pytest
from explorer.conftest import load_folders

from repdyn.cli.explore import main
from repdyn.explorer import server
from repdyn.explorer.server import choose_checkpoints
from repdyn.utils import addresses
from repdyn.utils.addresses import announcement, free_port


@pytest.fixture
def served(monkeypatch):
    """The options with which the page would be served."""
    given = []
    monkeypatch.setattr(server, "serve", given.append)
    return given


@pytest.fixture
def run_folder(save_model, tmp_path):
    """The folder of a run with three checkpoints."""
    for number, step in enumerate((0, 8, 16)):
        save_model(f"run/hf_checkpoints/step{step}", seed=number)
    return tmp_path / "run"


# options


@pytest.mark.process
def test_help_waits_for_neither_torch_nor_gradio():
    code = (
        "import sys\nfrom repdyn.cli.explore import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n"
        "    print(sorted({'torch', 'gradio', 'plotly', 'transformers'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "repdyn explore roberta-base" in result.stdout
    assert result.stdout.endswith("[]\n")


def test_it_serves_this_computer_alone_unless_told_otherwise(served, capsys):
    main(["gpt2"])
    (options,) = served
    assert (options.host, options.port, options.max_tokens) == ("127.0.0.1", 7860, 128)
    assert not options.open
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "my-machine"])
def test_an_address_that_others_reach_is_warned_of(served, capsys, host):
    main(["gpt2", "--host", host])
    assert capsys.readouterr().err == (
        f"warning: anyone who can connect to {host} can use the explorer without a password; leave out --host to serve "
        "this computer only\n"
    )


@pytest.mark.parametrize("host", ["localhost", "::1", "127.0.0.2"])
def test_an_address_of_this_computer_is_not_warned_of(served, capsys, host):
    main(["gpt2", "--host", host])
    assert capsys.readouterr().err == ""


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


# checkpoints


def test_checkpoints_of_a_run_stand_side_by_side(run_folder):
    loaded = load_folders(run_folder, revisions=["step0", "step16"])
    assert [one.name for one in loaded] == ["run@step0", "run@step16"]
    weights = [one.model.get_input_embeddings().weight for one in loaded]
    assert not any(weight.is_meta for weight in weights)
    assert not weights[0].equal(weights[1])


@pytest.fixture
def steps_folder(tmp_path):
    """The folder of a run with the names of six checkpoints, one of another kind, and no weights."""
    for name in ("step0", "step8", "step16", "step100", "step1000", "best", "step007"):
        (tmp_path / "run/hf_checkpoints" / name).mkdir(parents=True)
        (tmp_path / "run/hf_checkpoints" / name / "config.json").write_text("{}")
    return tmp_path / "run"


def test_the_first_middle_and_last_checkpoint_of_a_run_are_chosen(steps_folder):
    names, (note,) = choose_checkpoints([str(steps_folder)], ())
    assert names == ("step0", "step8", "step1000")
    assert note == "step0, step8, step1000 of 6 checkpoints; choose others with --revisions"


def test_a_step_is_found_however_its_folder_spells_it(steps_folder):
    assert choose_checkpoints([str(steps_folder)], ("step7", "step007")) == (("step007",), [])


def test_a_step_without_a_checkpoint_becomes_the_nearest_one(steps_folder):
    names, notes = choose_checkpoints([str(steps_folder)], ("step8", "step12", "step400", "best"))
    assert names == ("step8", "step100", "best")
    assert notes == [
        "no checkpoint step12: the nearest one is step8",
        "no checkpoint step400: the nearest one is step100",
    ]


@pytest.mark.parametrize("revisions", [(), ("step7",)])
def test_nothing_is_chosen_for_the_hub_a_single_model_or_several(steps_folder, revisions):
    single = str(steps_folder / "hf_checkpoints/step8")
    for models in (["gpt2"], [single], [str(steps_folder), "gpt2"]):
        assert choose_checkpoints(models, revisions) == (revisions, [])


def test_the_chosen_checkpoints_of_a_run_are_loaded(run_folder, monkeypatch, capsys):
    loaded = []
    monkeypatch.setattr(server, "Session", lambda models, **_: loaded.extend(models) or sys.exit(0))
    with pytest.raises(SystemExit):
        main([str(run_folder), "--device", "cpu"])
    assert [one.name for one in loaded] == ["run@step0", "run@step8", "run@step16"]
    assert "note: step0, step8, step16 of 3 checkpoints; " in capsys.readouterr().err


def test_a_model_that_does_not_load_is_said_before_the_page_is_served(save_model):
    folder = save_model()
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ValueError, match="expected a model that loads, got model: "):
        main([str(folder), "--port", "0", "--device", "cpu"])


# serving


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_for_others_is_said_so_that_they_can_use_it(monkeypatch, host):
    monkeypatch.setattr(addresses.socket, "gethostname", lambda: "my-machine")
    assert announcement("the explorer", host, "http://localhost:7860/", 7860) == (
        "the explorer is at http://my-machine:7860/, port 7860 of every address of this machine (Ctrl-C ends it)"
    )


@pytest.mark.parametrize(
    ("asked", "said"), [(7860, "port 7860 is not free, port 7861 is used instead\n"), (7861, ""), (0, "")]
)
def test_another_port_than_the_one_asked_for_is_said(asked, said):
    assert announcement("the explorer", "127.0.0.1", "http://127.0.0.1:7861/", asked) == (
        f"{said}the explorer is at http://127.0.0.1:7861/ (Ctrl-C ends it)"
    )


def test_the_next_free_port_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = taken.getsockname()[1]
        assert first < free_port("127.0.0.1", first) < first + 100
    assert free_port("127.0.0.1", 0) > 0


def test_no_free_port_is_an_error(monkeypatch):
    monkeypatch.setattr(addresses, "_PORTS", 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = taken.getsockname()[1]
        with pytest.raises(
            OSError,
            match=f"expected a free port from {first} to {first} at 127.0.0.1, found none: .*; choose another --port",
        ):
            free_port("127.0.0.1", first)


@pytest.mark.slow
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
